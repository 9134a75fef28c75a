"""A sum and the norm of it as one operator with two results, where that is cheaper, and only where it adds the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.helper as make
import onnx.numpy_helper as arrays
import onnxruntime as ort
import pytest

from onnx_egraph import NodeCount, Roofline, Work, Workload, calibrate, saturate, saturate_and_extract
from onnx_egraph.lowering.measure.table import Table

MS = "com.microsoft"
SKIP = {"SimplifiedLayerNormalization": "SkipSimplifiedLayerNormalization",
        "LayerNormalization": "SkipLayerNormalization"}  # fmt: skip
WIDTH = 16
Dims = Sequence[int | str]


def block(
    kind: str, *, bias: str = "", outputs: str = "y h", type_: str = "float32", dims: Dims = ("b", "s", WIDTH),
    skip: Dims | None = None, shift: bool = False, eps: float = 1e-5,
) -> onnx.ModelProto:  # fmt: skip
    """h = x (+ bias) + skip, y = norm(h); the bias is added to the operand of that name."""
    rng, code = np.random.default_rng(0), make.np_dtype_to_tensor_dtype(np.dtype(type_))
    nodes, ins = [], {"x": "x", "skip": "skip"}
    if bias:
        nodes.append(make.make_node("Add", [bias, "bias"], ["biased"]))
        ins[bias] = "biased"
    nodes.append(make.make_node("Add", [ins["x"], ins["skip"]], ["h"]))
    stash = {"stash_type": 1} if kind in SKIP else {}
    nodes.append(make.make_node(kind, ["h", "w", *(["shift"] if shift else [])], ["y"], axis=-1, epsilon=eps, **stash))
    vectors = ["w", *(["shift"] if shift else []), *(["bias"] if bias else [])]
    stored = [arrays.from_array(rng.standard_normal(WIDTH).astype(type_), name) for name in vectors]
    given = {"x": dims, "skip": skip or dims}
    graph = make.make_graph(
        nodes, "g", [make.make_tensor_value_info(n, code, d) for n, d in given.items()],
        [make.make_tensor_value_info(n, code, None) for n in outputs.split()], stored,
    )  # fmt: skip
    return make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8)


def kinds(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def run(model: onnx.ModelProto, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(None, dict(feed))
    return found


def assert_equal_numbers(before: onnx.ModelProto, after: onnx.ModelProto, shape: Sequence[int], type_: str) -> None:
    rng = np.random.default_rng(1)
    feed = {name: rng.standard_normal(shape).astype(type_) for name in ("x", "skip")}
    for want, got in zip(run(before, feed), run(after, feed), strict=True):
        assert (want.shape, want.dtype) == (got.shape, got.dtype)
        rounding = 8 * float(np.finfo(type_).eps)
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=rounding, atol=rounding * 4)


@pytest.mark.parametrize("type_", ["float32", "float16"])
@pytest.mark.parametrize("dims", [("b", "s", WIDTH), ("n", WIDTH)])
@pytest.mark.parametrize(("kind", "shift"), [*((kind, False) for kind in SKIP), ("LayerNormalization", True)])
def test_the_sum_comes_out_of_the_same_node(kind: str, dims: Dims, shift: bool, type_: str) -> None:
    model = block(kind, dims=dims, shift=shift, type_=type_, eps=1e-3)
    result = saturate_and_extract(model, cost=NodeCount(), verify=True)
    assert kinds(result.model) == {SKIP[kind]: 1}
    [node] = result.model.graph.node
    assert [*node.output] == ["y", "", "", "h"]
    assert make.get_node_attr_value(node, "epsilon") == pytest.approx(1e-3)
    assert result.report.counts() == {SKIP[kind]: 1}
    assert_equal_numbers(model, result.model, (2, 3, WIDTH)[3 - len(dims) :], type_)


@pytest.mark.parametrize("kind", SKIP)
def test_a_sum_that_nobody_takes_is_left_out(kind: str) -> None:
    model = block(kind, outputs="y")
    result = saturate_and_extract(model, cost=NodeCount(), verify=True)
    [node] = result.model.graph.node
    assert [*node.output] == ["y"]
    again = saturate_and_extract(result.model, cost=NodeCount())
    assert again.report.unchanged


@pytest.mark.parametrize("bias", ["x", "skip"])
@pytest.mark.parametrize("type_", ["float32", "float16"])
@pytest.mark.parametrize("kind", SKIP)
def test_a_vector_that_is_added_besides_goes_in_as_the_bias(kind: str, type_: str, bias: str) -> None:
    model = block(kind, bias=bias, type_=type_)
    result = saturate_and_extract(model, cost=NodeCount(), verify=True)
    assert kinds(result.model) == {SKIP[kind]: 1}
    [node] = result.model.graph.node
    assert node.input[-1] == "bias"
    assert_equal_numbers(model, result.model, (2, 3, WIDTH), type_)
    assert kinds(saturate_and_extract(model, cost=NodeCount(), strict=True).model) == {"Add": 1, SKIP[kind]: 1}


@pytest.mark.parametrize(
    ("dims", "skip"),
    [(("b", "s", WIDTH), ("b", 1, WIDTH)), (("b", "s", WIDTH), (1, "s", WIDTH)), (("b", 1, WIDTH), ("b", "s", WIDTH)),
     (("b", "s", WIDTH), (WIDTH,)), (("b", "s", WIDTH), ("s", WIDTH)), (("b", "s", WIDTH), ("c", "s", WIDTH)),
     (("b", 2, "s", WIDTH), None), ((WIDTH,), None)],
)  # fmt: skip
@pytest.mark.parametrize("kind", SKIP)
def test_nothing_is_broadcast_and_ranks_are_2_or_3(kind: str, dims: Dims, skip: Dims | None) -> None:
    model = block(kind, dims=dims, skip=skip)
    result = saturate_and_extract(model, cost=NodeCount(), verify=True)
    assert kinds(result.model) == {"Add": 1, kind: 1}


@pytest.mark.parametrize("kind", SKIP)
def test_other_near_misses_stay(kind: str) -> None:
    double = saturate_and_extract(block(kind, type_="float64"), cost=NodeCount(), verify=True)
    assert kinds(double.model) == {"Add": 1, kind: 1}  # the kernel has no such type
    negative = saturate_and_extract(block(kind, eps=-1e-5), cost=NodeCount())
    assert kinds(negative.model) == {"Add": 1, kind: 1}  # the kernel takes none


@pytest.mark.parametrize("kind", SKIP)
def test_chosen_where_it_is_faster_only(kind: str) -> None:
    """As measured: SkipLayerNormalization is slower but for the fewest elements; SkipSimplifiedLayerNormalization is
    slower in prompts, and about as fast for one position.
    """
    space = saturate(block(kind))
    prompt = space.extract(dims=[Workload("prompt", {"b": 1, "s": 128})])
    assert kinds(prompt.model) == {"Add": 1, kind: 1}
    single = space.extract(dims=[Workload("decode", {"b": 1, "s": 1})])
    assert kinds(single.model) == {SKIP[kind]: 1}
    assert kinds(space.extract().model) == {"Add": 1, kind: 1}
    half = saturate_and_extract(block(kind, type_="float16"))
    assert kinds(half.model) == {"Add": 1, kind: 1}


@pytest.mark.parametrize("kind", SKIP)
def test_a_skip_norm_of_the_input_is_read_as_what_it_means(kind: str) -> None:
    model = block(kind, bias="x")
    fused = saturate_and_extract(model, cost=NodeCount()).model
    apart = saturate_and_extract(fused, dims=[Workload("prompt", {"b": 1, "s": 128})], verify=True)
    assert kinds(apart.model) == {"Add": 2, kind: 1}
    assert_equal_numbers(fused, apart.model, (2, 3, WIDTH), "float32")
    assert saturate_and_extract(fused, cost=NodeCount()).report.unchanged


def written(kind: str, outputs: str, dims: Dims = ("b", "s", WIDTH), skip: Dims = ("b", "s", WIDTH)) -> onnx.ModelProto:
    """A skip norm as others write it, without an epsilon; outputs that begin with _ are of the node alone."""
    node = make.make_node(SKIP[kind], ["x", "skip", "w"], outputs.replace("-", "").split(" "), domain=MS)
    given = [make.make_tensor_value_info(n, 1, d) for n, d in (("x", dims), ("skip", skip))]
    made = [make.make_tensor_value_info(n, 1, None) for n in node.output if n]
    graph = make.make_graph([node], "g", given, made, [arrays.from_array(np.ones(WIDTH, np.float32), "w")])
    sets = [make.make_opsetid("", 17), make.make_opsetid(MS, 1)]
    return make.make_model(graph, opset_imports=sets, ir_version=8)


class Apart(Roofline):
    """Anything but a skip norm."""

    def cost(self, work: Work) -> int:
        return super().cost(work) * (1000 if "Skip" in work.op else 1)


@pytest.mark.parametrize("kind", SKIP)
def test_the_epsilon_that_goes_without_saying_is_that_of_the_operator(kind: str) -> None:
    model = written(kind, "y - - h")
    apart = saturate_and_extract(model, cost=Apart(), verify=True).model
    assert kinds(apart) == {"Add": 1, kind: 1}
    tiny = {name: np.full((1, 2, WIDTH), 1e-6, np.float32) * np.arange(WIDTH) for name in ("x", "skip")}
    feed = {name: array.astype(np.float32) for name, array in tiny.items()}
    for want, got in zip(run(model, feed), run(apart, feed), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize(
    ("dims", "skip"), [((1, "s", WIDTH), ("b", "s", WIDTH)), (("b", "s", WIDTH), ("c", "s", WIDTH))]
)
@pytest.mark.parametrize("kind", SKIP)
def test_one_whose_skip_may_be_larger_stays(kind: str, dims: Dims, skip: Dims) -> None:
    model = written(kind, "y - - h", dims, skip)
    assert kinds(saturate_and_extract(model, cost=Apart()).model) == {SKIP[kind]: 1}


@pytest.mark.parametrize("skip", [(1, "s", WIDTH), ("s", WIDTH)])
@pytest.mark.parametrize("kind", SKIP)
def test_one_whose_skip_has_no_batch_is_taken_apart(kind: str, skip: Dims) -> None:
    model = written(kind, "y - - h", skip=skip)
    assert kinds(saturate_and_extract(model, cost=Apart(), verify=True).model) == {"Add": 1, kind: 1}
    assert kinds(saturate_and_extract(model, cost=NodeCount(), verify=True).model) == {SKIP[kind]: 1}


def test_a_result_stays_as_it_is_and_costs_what_was_predicted() -> None:
    model = block("SimplifiedLayerNormalization")
    dims = [Workload("decode", {"b": 1, "s": 1})]
    first = saturate_and_extract(model, dims=dims)
    again = saturate_and_extract(first.model, dims=dims)
    assert again.report.unchanged
    assert again.report.cost_before == first.report.cost_after
    assert again.model.SerializeToString(deterministic=True) == first.model.SerializeToString(deterministic=True)


def test_each_is_explained() -> None:
    for kind in SKIP:
        result = saturate_and_extract(block(kind, bias="x"), cost=NodeCount())
        derivation = result.explain(result.report.fused[0].node)
        assert derivation.complete, derivation.text()
        assert derivation.rules == ("skip-norm", "skip-norm-bias")


def test_it_is_measured_like_the_others(tmp_path: Path) -> None:
    model = block("SimplifiedLayerNormalization")
    path, dims = tmp_path / "prices.json", [Workload("decode", {"b": 1, "s": 1})]
    table = calibrate(model, table=path, dims=dims)
    [entry] = [entry.work for entry in table.entries.values() if entry.work.op == "SkipRMSNorm"]
    assert [out.dtype for out in entry.outs] == ["float32"]
    fused = saturate_and_extract(model, cost=NodeCount()).model
    measured = set(table.entries)
    calibrate(fused, table=path, dims=dims)
    assert set(Table.read(path).entries) == measured  # the node has the price of the term
