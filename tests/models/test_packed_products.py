"""Products of one tensor with several constant matrices become one where that is cheaper, with the numbers they had."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as make
import onnx.numpy_helper as arrays
import onnx_ir as ir
import onnxruntime as ort
import pytest

from onnx_egraph import NodeCount, Roofline, Work, Workload, saturate, saturate_and_extract
from onnx_egraph.lowering.model import tensors
from onnx_egraph.lowering.model.tensors import Joined

FLOAT = onnx.TensorProto.FLOAT
DECODE = [Workload("decode", {"s": 1})]


def products(
    nodes: str, weights: Mapping[str, tuple[int, ...]], outputs: Mapping[str, int], *, kind: str = "float32",
    inputs: str = "x", overridable: str = "", rank: int = 3, width: int = 64,
) -> onnx.ModelProto:  # fmt: skip
    """`nodes` are texts such as "q = MatMul x wq", `outputs` their widths by name."""
    rng, code = np.random.default_rng(0), make.np_dtype_to_tensor_dtype(np.dtype(kind))
    lead = ["a", "b", "s"][3 - rank + 1 :]
    stored = [arrays.from_array(rng.standard_normal(s).astype(kind), n) for n, s in weights.items()]
    made = []
    for text in nodes.split(";"):
        out, op, *ins = text.replace("=", " ").split()
        made.append(make.make_node(op, ins, [out], name=f"make_{out}"))
    given = [make.make_tensor_value_info(n, code, [*lead, width]) for n in inputs.split()]
    given += [make.make_tensor_value_info(n, code, weights[n]) for n in overridable.split()]
    asked = [make.make_tensor_value_info(n, code, [*lead, w] if w else weights.get(n, ())) for n, w in outputs.items()]
    graph = make.make_graph(made, "g", given, asked, stored)
    return make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8)


ATTENTION = "q = MatMul x wq; k = MatMul x wk; v = MatMul x wv"
WEIGHTS = {"wq": (64, 96), "wk": (64, 32), "wv": (64, 32)}
WIDTHS = {"q": 96, "k": 32, "v": 32}


def kinds(model: Any) -> Counter[str]:
    graph = model.graph
    return Counter(n.op_type for n in (graph if isinstance(model, ir.Model) else graph.node))


def run(model: onnx.ModelProto | Path, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    found: list[np.ndarray] = ort.InferenceSession(source, providers=["CPUExecutionProvider"]).run(None, dict(feed))
    return found


def assert_equal_numbers(before: Any, after: Any, names: str = "x", *, rank: int = 3, kind: str = "float32") -> None:
    rng = np.random.default_rng(1)
    for shape in itertools.product(*[(1, 3), (1, 5), (1, 2)][: rank - 1]):
        feed = {n: rng.standard_normal((*shape, 64)).astype(kind) for n in names.split()}
        for want, got in zip(run(before, feed), run(after, feed), strict=True):
            eps = float(np.finfo(kind).eps)
            assert (want.shape, want.dtype) == (got.shape, got.dtype)
            np.testing.assert_allclose(
                got.astype(np.float64), want.astype(np.float64), rtol=0, atol=eps * 64 * np.abs(want).max()
            )


# ---- chosen by price


def test_one_new_position_is_cheaper_with_one_product_and_a_prompt_with_several() -> None:
    model = products(ATTENTION, WEIGHTS, WIDTHS)
    space = saturate(model)
    decode = space.extract(dims=DECODE, verify=True)
    assert kinds(decode.model) == {"MatMul": 1, "Split": 1}
    assert decode.report.verified
    assert decode.report.cost_after < decode.report.cost_before
    prompt = space.extract(dims=[Workload("prompt", {"s": 512})])
    assert kinds(prompt.model) == {"MatMul": 3}
    assert_equal_numbers(model, decode.model)


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_any_rank(rank: int) -> None:
    model = products(ATTENTION, WEIGHTS, WIDTHS, rank=rank)
    packed = saturate_and_extract(model, cost=NodeCount(), verify=True).model
    assert kinds(packed) == {"MatMul": 1, "Split": 1}
    assert_equal_numbers(model, packed, rank=rank)


@pytest.mark.parametrize("kind", ["float16", "float64"])
def test_any_float(kind: str) -> None:
    model = products(ATTENTION, WEIGHTS, WIDTHS, kind=kind)
    packed = saturate_and_extract(model, cost=NodeCount()).model
    assert kinds(packed) == {"MatMul": 1, "Split": 1}
    assert_equal_numbers(model, packed, kind=kind)


def test_a_long_group_is_taken_whole() -> None:
    count = 24
    nodes = ";".join(f"y{k} = MatMul x w{k}" for k in range(count))
    model = products(nodes, {f"w{k}": (64, 16 + k) for k in range(count)}, {f"y{k}": 16 + k for k in range(count)})
    packed = saturate_and_extract(model, cost=NodeCount()).model
    assert kinds(packed) == {"MatMul": 1, "Split": 1}
    assert [list(t.dims) for t in packed.graph.initializer if len(t.dims) == 2] == [[64, sum(range(16, 16 + count))]]
    assert_equal_numbers(model, packed)


def test_each_input_has_a_group_of_its_own() -> None:
    nodes = f"{ATTENTION}; g = MatMul y wg; u = MatMul y wu; o = MatMul y wo; z = Relu y; d = MatMul z wd"
    more, widths = {"wg": (64, 48), "wu": (64, 48), "wo": (64, 8), "wd": (64, 16)}, {"g": 48, "u": 48, "o": 8, "d": 16}
    model = products(nodes, {**WEIGHTS, **more}, {**WIDTHS, **widths}, inputs="x y")
    packed = saturate_and_extract(model, cost=NodeCount(), verify=True).model
    assert kinds(packed) == {"MatMul": 3, "Split": 2, "Relu": 1}
    assert_equal_numbers(model, packed, "x y")


BIASED = "q1 = MatMul x wq; q = Add q1 bq; k1 = MatMul x wk; k = Add bk k1; v1 = MatMul x wv; v = Add v1 bv"
BIASES = {"bq": (96,), "bk": (32,), "bv": (32,)}


@pytest.mark.parametrize("kind", ["float32", "float16", "float64"])
@pytest.mark.parametrize("rank", [2, 3, 4])
def test_what_is_added_to_each_product_is_added_to_the_packed_one(rank: int, kind: str) -> None:
    model = products(BIASED, {**WEIGHTS, **BIASES}, WIDTHS, rank=rank, kind=kind)
    result = saturate_and_extract(model, cost=NodeCount(), verify=True)
    assert kinds(result.model) == {"MatMul": 1, "Add": 1, "Split": 1}
    assert sorted(tuple(t.dims) for t in result.model.graph.initializer if t.data_type != 7) == [(64, 160), (160,)]
    assert_equal_numbers(model, result.model, rank=rank, kind=kind)
    again = saturate_and_extract(result.model, cost=NodeCount())
    assert again.report.unchanged
    for node in result.model.graph.node:
        derivation = result.explain(node.name)
        assert derivation.complete, derivation.text()
        assert set(derivation.rules) <= {"packed-sum", "packed-product"}


def test_sums_are_packed_for_one_new_position_and_not_for_a_prompt() -> None:
    space = saturate(products(BIASED, {**WEIGHTS, **BIASES}, WIDTHS))
    assert kinds(space.extract(dims=DECODE).model) == {"MatMul": 1, "Add": 1, "Split": 1}
    assert kinds(space.extract(dims=[Workload("prompt", {"s": 512})]).model) == {"MatMul": 3, "Add": 3}


@pytest.mark.parametrize(
    ("nodes", "biases"),
    [(BIASED.replace("k = Add bk k1", "k = Relu k1"), BIASES), (BIASED, {**BIASES, "bk": (1,)}),
     (BIASED, {**BIASES, "bk": (1, 32)})],
)  # fmt: skip
def test_what_is_no_vector_for_each_stays_behind_the_split(nodes: str, biases: Mapping[str, tuple[int, ...]]) -> None:
    model = products(nodes, {**WEIGHTS, **{n: b for n, b in biases.items() if n in nodes}}, WIDTHS)
    packed = saturate_and_extract(model, cost=NodeCount(), verify=True).model
    assert kinds(packed)["MatMul"] == kinds(packed)["Split"] == 1
    assert kinds(packed)["Add"] == nodes.count("Add")
    assert_equal_numbers(model, packed)


def test_a_vector_that_is_an_input_stays_behind_the_split() -> None:
    model = products(BIASED, {**WEIGHTS, **BIASES}, WIDTHS, overridable="bk")
    packed = saturate_and_extract(model, cost=NodeCount(), verify=True).model
    assert kinds(packed) == {"MatMul": 1, "Split": 1, "Add": 3}


def test_vectors_that_are_used_elsewhere_are_packed_all_the_same() -> None:
    """Storing one twice is nothing; of two that are added to one product, each sum keeps its own numbers."""
    nodes = f"{BIASED}; p = Add q1 cq; r = Mul bq q"
    model = products(nodes, {**WEIGHTS, **BIASES, "cq": (96,)}, {**WIDTHS, "p": 96, "r": 96})
    result = saturate_and_extract(model, dims=DECODE, verify=True)
    assert kinds(result.model)["MatMul"] == 1
    assert_equal_numbers(model, result.model)


def test_many_vectors_for_each_product_are_no_burden() -> None:
    """Not every choice of one for each is a list."""
    count, each = 12, 4
    nodes = [f"p{k} = MatMul x w{k}" for k in range(count)]
    nodes += [f"y{k}_{j} = Add p{k} b{k}_{j}" for k in range(count) for j in range(each)]
    weights: dict[str, tuple[int, ...]] = {f"w{k}": (64, 16 + k) for k in range(count)}
    weights |= {f"b{k}_{j}": (16 + k,) for k in range(count) for j in range(each)}
    widths = {f"y{k}_{j}": 16 + k for k in range(count) for j in range(each)}
    result = saturate_and_extract(products("; ".join(nodes), weights, widths), cost=NodeCount(), verify=True)
    assert kinds(result.model)["MatMul"] == 1
    assert result.report.egraph["tuples"] < 20_000


def test_vectors_in_files_are_joined_when_saved(tmp_path: Path) -> None:
    model = products(BIASED, {**WEIGHTS, **BIASES}, WIDTHS)
    onnx.save_model(model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    result = saturate_and_extract(tmp_path / "m.onnx", cost=NodeCount(), verify=True)
    assert kinds(result.model) == {"MatMul": 1, "Add": 1, "Split": 1}
    result.save(tmp_path / "out.onnx")
    assert_equal_numbers(tmp_path / "m.onnx", tmp_path / "out.onnx")


def test_two_wide_products_are_on_offer() -> None:
    """As gate and up of a layer are."""
    nodes = "g = MatMul x wg; a = Sigmoid g; s = Mul g a; u = MatMul x wu; m = Mul s u; y = MatMul m wd"
    model = products(nodes, {"wg": (64, 256), "wu": (64, 256), "wd": (256, 64)}, {"y": 64})
    packed = saturate_and_extract(model, cost=PartsAreFree(), dims=DECODE, verify=True).model
    assert kinds(packed)["MatMul"] == 2
    assert_equal_numbers(model, packed)


def test_a_cost_model_is_asked_for_the_operators_of_the_file() -> None:
    asked: list[Work] = []

    class Watching(Roofline):
        def cost(self, work: Work) -> int:
            asked.append(work)
            return 0 if work.op == "Split" else super().cost(work)

    result = saturate_and_extract(products(ATTENTION, WEIGHTS, WIDTHS), cost=Watching())
    assert {work.op for work in asked} == {"MatMul", "Split", "Concat"}
    assert {(*work.attrs.items(),) for work in asked if work.op == "Split"} == {(("axis", -1), ("sizes", (96, 32, 32)))}
    assert saturate_and_extract(result.model, cost=Watching()).report.cost_before == result.report.cost_after


# ---- what is no constant weight of its own


def test_a_product_with_an_input_is_left_out() -> None:
    model = products(ATTENTION, WEIGHTS, WIDTHS, overridable="wk")
    packed = saturate_and_extract(model, cost=PartsAreFree()).model
    assert kinds(packed) == {"MatMul": 2, "Split": 1}
    [split] = [n for n in packed.graph.node if n.op_type == "Split"]
    assert [*split.output] == ["q", "v"]
    assert "wk" in {i.name for i in packed.graph.input}
    assert_equal_numbers(model, packed)


class PartsAreFree(Roofline):
    """Splitting costs nothing, so that every product that can be packed at no other price is."""

    def cost(self, work: Work) -> int:
        return 0 if work.op == "Split" else super().cost(work)


def test_one_product_twice_is_one() -> None:
    model = products("q = MatMul x wq; p = MatMul x wq; k = MatMul x wk", WEIGHTS, {"q": 96, "p": 96, "k": 32})
    packed = saturate_and_extract(model, cost=PartsAreFree(), dims=DECODE, verify=True).model
    assert kinds(packed)["MatMul"] == 1
    assert_equal_numbers(model, packed)


@pytest.mark.parametrize(
    ("node", "output"),
    [("t = Transpose wk", {"t": 0}), ("t = MatMul y wk", {"t": 32}), ("", {"wk": 0}),
     ("u = MatMul y wk; t = MatMul y wx", {"u": 32, "t": 8})],
)  # fmt: skip
def test_a_weight_that_is_used_elsewhere_is_not_stored_twice(node: str, output: Mapping[str, int]) -> None:
    nodes = f"{ATTENTION}; {node}" if node else ATTENTION
    weights = {**WEIGHTS, "wx": (64, 8)} if "wx" in node else WEIGHTS
    shapes = {**weights, "t": (32, 64)} if "Transpose" in node else weights
    model = products(nodes, weights, {**WIDTHS, **output}, inputs="x y" if " y " in node else "x")
    for value in model.graph.output:
        if value.name in output and not output[value.name]:
            value.CopyFrom(make.make_tensor_value_info(value.name, FLOAT, shapes[value.name]))
    for dims in (None, DECODE):
        result = saturate_and_extract(model, cost=PartsAreFree(), dims=dims).model
        assert kinds(result) == kinds(model)
        assert sum(len(t.raw_data) for t in result.graph.initializer) == sum(
            len(t.raw_data) for t in model.graph.initializer
        )


def test_layers_that_share_their_weights_share_the_packed_ones() -> None:
    nodes = f"{ATTENTION}; q2 = MatMul y wq; k2 = MatMul y wk; v2 = MatMul y wv"
    model = products(nodes, WEIGHTS, {**WIDTHS, "q2": 96, "k2": 32, "v2": 32}, inputs="x y")
    result = saturate_and_extract(model, dims=DECODE, verify=True)
    assert kinds(result.model) == {"MatMul": 2, "Split": 2}
    large = [list(t.dims) for t in result.model.graph.initializer if len(t.dims) == 2]
    assert large == [[64, 160]]
    assert_equal_numbers(model, result.model, "x y")


def test_weights_of_an_outer_graph_are_not_packed_in_a_body() -> None:
    model = products(ATTENTION, WEIGHTS, WIDTHS)
    inner = [*model.graph.node]
    then = make.make_graph(
        [make.make_node("Identity", [f"{n}_"], [n]) for n in WIDTHS],
        "then", [], [make.make_tensor_value_info(n, FLOAT, None) for n in WIDTHS],
    )  # fmt: skip
    del then.node[:]
    for node in inner:
        then.node.append(make.make_node("MatMul", [*node.input], [f"then_{node.output[0]}"]))
    other = make.make_graph([], "other", [], [])
    for n in WIDTHS:
        other.node.append(make.make_node("MatMul", ["x", f"w{n}"], [f"minus_{n}"]))
        other.node.append(make.make_node("Neg", [f"minus_{n}"], [f"other_{n}"]))
    for graph, name in ((then, "then"), (other, "other")):
        del graph.output[:]
        graph.output.extend(make.make_tensor_value_info(f"{name}_{n}", FLOAT, None) for n in WIDTHS)
    del model.graph.node[:]
    choice = make.make_node("If", ["c"], [*WIDTHS], then_branch=then, else_branch=other)
    model.graph.node.append(choice)
    model.graph.input.append(make.make_tensor_value_info("c", onnx.TensorProto.BOOL, []))
    result = saturate_and_extract(model, cost=PartsAreFree(), dims=DECODE, verify=True)
    size = sum(np.prod(s) for s in WEIGHTS.values()) * 4
    assert len(result.model.SerializeToString()) < 1.1 * size


# ---- what is written


def test_the_result_stays_as_it_is() -> None:
    model = products(ATTENTION, WEIGHTS, WIDTHS)
    result = saturate_and_extract(model, dims=DECODE)
    again = saturate_and_extract(result.model, dims=DECODE)
    assert again.report.unchanged
    assert again.model.SerializeToString(deterministic=True) == result.model.SerializeToString(deterministic=True)
    other = saturate_and_extract(model, dims=DECODE).model
    assert other.SerializeToString(deterministic=True) == result.model.SerializeToString(deterministic=True)
    table = result.costs()
    assert sum(row.costs[0] for row in table) == result.report.cost_after == again.report.cost_before


def test_a_packed_product_is_explained() -> None:
    result = saturate_and_extract(products(ATTENTION, WEIGHTS, WIDTHS), dims=DECODE)
    for node in result.model.graph.node:
        derivation = result.explain(node.name)
        assert derivation.complete, derivation.text()
        assert derivation.rules == ("packed-product",)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A model with its weights in a file, in a folder of its own."""
    folder = tmp_path / "given"
    folder.mkdir()
    model = products(ATTENTION, {**WEIGHTS, "wo": (64, 64)}, {**WIDTHS, "o": 64})
    model.graph.node.insert(0, make.make_node("Relu", ["x"], ["y"], name="relu"))
    model.graph.node.append(make.make_node("MatMul", ["y", "wo"], ["o"], name="make_o"))
    onnx.save_model(model, folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    return folder / "m.onnx"


def test_weights_in_files_are_joined_when_saved_a_few_rows_at_a_time(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    result = saturate_and_extract(stored, dims=DECODE, verify=True)
    joined = [v.const_value for v in result.model.graph.initializers.values() if isinstance(v.const_value, Joined)]
    assert [part.name for part in joined[0].parts] == ["wq", "wk", "wv"]
    monkeypatch.setattr(tensors, "_CHUNK", 1000)
    monkeypatch.setattr(Joined, "tobytes", lambda self: pytest.fail("a joined tensor is wanted whole"))
    monkeypatch.setattr(Joined, "numpy", lambda self: pytest.fail("a joined tensor is wanted whole"))
    place = tmp_path / "out" / "m.onnx"
    place.parent.mkdir()
    result.save(place)
    assert sorted(p.name for p in place.parent.iterdir()) == ["m.onnx", "m.onnx.data"]
    assert (place.parent / "m.onnx.data").stat().st_size == (stored.parent / "w.bin").stat().st_size
    assert_equal_numbers(stored, place)
    first = {p.name: p.read_bytes() for p in place.parent.iterdir()}
    result.save(place)
    assert {p.name: p.read_bytes() for p in place.parent.iterdir()} == first


def test_the_saved_result_stays_as_it_is(stored: Path) -> None:
    """Beside the model that was read, over it, and over an earlier result."""
    given = stored.read_bytes()
    beside = stored.with_name("out.onnx")
    saturate_and_extract(stored, dims=DECODE).save(beside)
    first = {p.name: p.read_bytes() for p in stored.parent.iterdir()}
    assert first["m.onnx"] == given
    assert_equal_numbers(stored, beside)
    again = saturate_and_extract(beside, dims=DECODE)
    assert again.report.unchanged
    again.save(beside)
    saturate_and_extract(stored, dims=DECODE).save(beside)
    assert {p.name: p.read_bytes() for p in stored.parent.iterdir()} == first
    saturate_and_extract(stored, dims=DECODE).save(stored)
    assert_equal_numbers(beside, stored)


def test_a_result_that_was_not_saved_is_read_and_saved(stored: Path, tmp_path: Path) -> None:
    result = saturate_and_extract(stored, dims=DECODE)
    again = saturate_and_extract(result.model, dims=DECODE)
    assert again.report.unchanged
    again.save(tmp_path / "again.onnx")
    result.save(tmp_path / "first.onnx")
    assert_equal_numbers(stored, tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx.data").read_bytes() == (tmp_path / "first.onnx.data").read_bytes()


def test_a_part_that_is_gone_is_named(stored: Path, tmp_path: Path) -> None:
    result = saturate_and_extract(stored, dims=DECODE)
    (stored.parent / "w.bin").unlink()
    with pytest.raises(Exception, match=r"external data file .*w\.bin is missing"):
        result.save(tmp_path / "out.onnx")


def test_a_proto_keeps_its_weights_in_their_file(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(stored.parent)
    result = saturate_and_extract(onnx.load(stored, load_external_data=False), dims=DECODE, verify=True)
    assert kinds(result.model) == {"Relu": 1, "Concat": 1, "MatMul": 2, "Split": 1}
    assert all(t.external_data for t in result.model.graph.initializer if len(t.dims) == 2)
    place = stored.with_name("out.onnx")
    place.write_bytes(result.model.SerializeToString())
    assert_equal_numbers(stored, place)
    assert saturate_and_extract(place, dims=DECODE).report.unchanged
