"""Each fused node of a whole decoder is explained by its own part of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnx_egraph import Limits, Result, saturate_and_extract
from onnx_egraph.egraph.explanation.explain import Derivation

EXAMPLE = Path(__file__).parents[2] / "examples" / "qwen3_2layers.onnx"
EXPORTS = Path(__file__).parents[1] / "models" / "exports"


@pytest.fixture(scope="module")
def decoder() -> Result:
    return saturate_and_extract(EXAMPLE)


@pytest.fixture(scope="module")
def derived(decoder: Result) -> dict[str, tuple[str, Derivation]]:
    return {f.node: (f.op, decoder.explain(f.node)) for f in decoder.report.fused}


def test_every_chain_replays(derived: dict[str, tuple[str, Derivation]]) -> None:
    for op, found in derived.values():
        assert found.complete, op
        assert found.steps
        assert all(s.compared and not s.false and s.before for s in found.steps)


def test_a_rotation_is_explained_by_rules_of_rotations(derived: dict[str, tuple[str, Derivation]]) -> None:
    """It equals no original value: what the model has is its transpose, split into heads."""
    chains = {found.rules for op, found in derived.values() if op == "RotaryEmbedding"}
    (chain,) = chains
    assert chain[-2:] == ("ms-rope3-shared", "squeeze-unsqueeze")
    assert {"wide-cos", "rot-parts", "rope-sum"} <= set(chain)
    assert not any(rule.startswith(("scores", "sdpa", "biased", "softmax", "onnx")) for rule in chain)


def test_an_attention_begins_where_the_rotations_end(derived: dict[str, tuple[str, Derivation]]) -> None:
    for op, found in derived.values():
        if op == "Attention":
            assert not any(rule.startswith(("wide", "rot", "rope", "ms-rope")) for rule in found.rules)
            assert found.result.startswith("OnnxAttention3(x, y, z, u, ")
            assert [value.endswith(" of the result") for _, value in found.where] == [True, True, False, False]


def test_the_cheap_list_has_every_rule_of_the_chain(
    decoder: Result, derived: dict[str, tuple[str, Derivation]]
) -> None:
    for f in decoder.report.fused:
        assert set(derived[f.node][1].rules) <= set(f.rules)
        if f.op == "RotaryEmbedding":
            assert not any(rule.startswith(("scores", "sdpa", "biased", "softmax", "onnx")) for rule in f.rules)


def test_constants_have_their_own_numbers(decoder: Result) -> None:
    """An array read from a file has a byte order, and is a builtin type to numpy no more."""
    (explainer,) = decoder._explainers
    constant = explainer._inputs().constant
    known = [v.const_value for v in explainer.reading.payloads.values if v.const_value is not None]
    payloads = [k for k, v in enumerate(explainer.reading.payloads.values) if v.const_value is not None]
    assert known
    for k, tensor in zip(payloads, known, strict=True):
        found = constant(k)
        assert found is not None
        np.testing.assert_array_equal(found, tensor.numpy())


def sinks() -> onnx.ModelProto:
    """softmax(cat(q @ k^T + mask, sink))[:-1] @ v, where the mask is built for a past and new positions."""

    def node(op: str, ins: list[str], out: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(op, ins, [out], name=f"/{out}", **attributes)

    def tensor(name: str, dims: list[str | int]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)

    nodes = [
        node("Reshape", ["x", "heads"], "x4"), node("Transpose", ["x4"], "q", perm=[0, 2, 1, 3]),
        node("Reshape", ["y", "heads"], "y4"), node("Transpose", ["y4"], "new", perm=[0, 2, 1, 3]),
        node("Concat", ["past", "new"], "k", axis=2), node("Transpose", ["k"], "kt", perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "kt"], "qk"), node("Mul", ["qk", "scale"], "scaled"),
        node("Add", ["scaled", "mask"], "scores"),
        node("Shape", ["x"], "size"), node("Slice", ["size", "zero", "one"], "batch"),
        node("Slice", ["size", "one", "two"], "seq"), node("Concat", ["batch", "four", "seq", "one"], "to", axis=0),
        node("Expand", ["sink", "to"], "wide"), node("Concat", ["scores", "wide"], "all", axis=-1),
        node("Softmax", ["all"], "soft", axis=-1), node("Slice", ["soft", "zero", "last", "last"], "weights"),
        node("MatMul", ["weights", "k"], "out"), node("Transpose", ["out"], "back", perm=[0, 2, 1, 3]),
        node("Reshape", ["back", "flat"], "z"),
    ]  # fmt: skip
    vectors = {"heads": [0, 0, 4, 16], "flat": [0, 0, 64], **{n: [k] for k, n in enumerate(["zero", "one", "two"])}}
    vectors |= {"four": [4], "last": [-1]}
    weights = [numpy_helper.from_array(np.asarray(v, np.int64), name) for name, v in vectors.items()]
    weights.append(numpy_helper.from_array(np.asarray(0.25, np.float32), "scale"))
    weights.append(numpy_helper.from_array(np.linspace(-1, 1, 4, dtype=np.float32).reshape(1, 4, 1, 1), "sink"))
    flat, past = ["b", "s", 64], ["b", 4, "p", 16]
    ins = [tensor("x", flat), tensor("y", flat), tensor("past", past), tensor("mask", ["b", 1, "s", "t"])]
    graph = helper.make_graph(nodes, "main", ins, [tensor("z", flat)], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_sizes_are_taken_from_values_outside_of_the_region() -> None:
    """The result asks shapes of q and k for sizes; what q is computed from is in the chain all the same."""
    result = saturate_and_extract(sinks())
    (fused,) = result.report.fused
    found = result.explain(fused.node)
    assert found.complete
    assert "sdpa-sink" in found.rules
    assert not any(s.false for s in found.steps)


def masked() -> onnx.ModelProto:
    """softmax(where(hidden, -inf, q @ k^T)) @ v"""
    model = sinks()
    del model.graph.node[8:17]
    minus = numpy_helper.from_array(np.asarray(-np.inf, np.float32), "minus")
    model.graph.initializer.append(minus)
    model.graph.input[3].type.tensor_type.elem_type = TensorProto.BOOL
    at = [n.op_type for n in model.graph.node].index("Mul") + 1
    model.graph.node.insert(at, helper.make_node("Where", ["mask", "minus", "scaled"], ["scores"], name="/scores"))
    model.graph.node.insert(at + 1, helper.make_node("Softmax", ["scores"], ["weights"], name="/weights", axis=-1))
    del model.graph.input[3].type.tensor_type.shape.dim[:2]
    return model


def test_a_chain_with_a_mask_is_not_called_false() -> None:
    """Rules for masks assume that no row is hidden entirely; so do the numbers they are checked on."""
    result = saturate_and_extract(masked())
    (fused,) = result.report.fused
    found = result.explain(fused.node)
    assert found.complete
    assert "mask-where" in found.rules
    assert not any(s.false for s in found.steps)


@pytest.mark.parametrize("hidden", ["keep", "drop"])
def test_rows_of_one_key_are_not_hidden_either(hidden: str) -> None:
    """Whether the mask keeps or hides: where a rule assumes that rows are visible, those of one key are."""
    kept = "keep, b, low" if hidden == "keep" else "keep, low, b"
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 23]>
    g (float[8,2,1,16] q, float[8,2,1,16] k, float[8,2,1,16] v, bool[8,1,1,1] keep) => (float[8,2,1,16] o)
    <float low = {{-3.4028234663852886e38}}, float scale = {{0.25}}, float cap = {{5.0}}> {{
        kt = Transpose <perm = [0, 1, 3, 2]> (k)
        a = MatMul (q, kt)
        scaled = Mul (a, scale)
        small = Div (scaled, cap)
        bent = Tanh (small)
        b = Mul (bent, cap)
        s = Where ({kept})
        p = Softmax <axis = -1> (s)
        o = MatMul (p, v)
    }}""")
    result = saturate_and_extract(model)
    (fused,) = result.report.fused
    found = result.explain(fused.node)
    assert found.complete
    assert not any(s.false for s in found.steps), found.text()


def test_what_went_through_a_coarser_type_is_compared_as_that() -> None:
    """Scores in float16 that are widened: a sum in float32 differs from one that was rounded on the way."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 17]>
    g (float16[b,2,s,64] q, float16[b,2,t,64] k, float16[b,2,t,64] v) => (float[b,2,s,64] o)
    <float eighth = {0.125}> {
        scale = Cast <to = 10> (eighth)
        kt = Transpose <perm = [0, 1, 3, 2]> (k)
        a = MatMul (q, kt)
        b = Mul (a, scale)
        w = Cast <to = 1> (b)
        p = Softmax <axis = -1> (w)
        wide = Cast <to = 1> (v)
        o = MatMul (p, wide)
    }""")
    result = saturate_and_extract(model)
    (fused,) = result.report.fused
    found = result.explain(fused.node)
    assert "scores-widened" in found.rules
    assert found.complete
    assert not any(s.false for s in found.steps), found.text()


# ------------------------------------------------------------------------------------------------ near misses


def test_what_lies_inside_a_fused_node_is_no_near_miss(decoder: Result) -> None:
    assert decoder.near_misses() == []


def clamped() -> onnx.ModelProto:
    """softmax(relu(q @ k^T)) @ v"""
    model = masked()
    (where,) = (n for n in model.graph.node if n.op_type == "Where")
    where.CopyFrom(helper.make_node("Relu", ["scaled"], ["scores"], name="/scores"))
    del model.graph.input[3]
    return model


def test_an_operator_too_many_is_named() -> None:
    (line,) = saturate_and_extract(clamped()).near_misses()
    assert line.startswith("/out (Sdpa): sdpa-matmul")
    assert "needs biased(q, k, mask, scale, cap): there is" in line
    assert line.endswith("(scores)")


def test_a_larger_operator_of_the_target_says_what_it_wants() -> None:
    """On CUDA a decode step is one operator, for float16 and one position; this one has neither."""
    result = saturate_and_extract(EXPORTS / "qwen3_past_ts_sdpa.onnx", target="cuda")
    lines = result.near_misses()
    assert lines
    for line in lines:
        assert "gqa-decode" in line
        assert "needs dim(x, -3) = 1 and the target runs MsGQA on the element type of x: x is float32[" in line
    assert saturate_and_extract(EXPORTS / "qwen3_past_ts_sdpa.onnx").near_misses() == [], "the CPU has none"


def test_a_kept_name_is_known_and_another_is_not(decoder: Result) -> None:
    kept = [n for n in decoder.model.graph if n.op_type == "MatMul"]  # type: ignore[union-attr]
    assert decoder.knows(kept[0].name or "")
    assert decoder.knows(decoder.report.fused[0].node)
    assert not decoder.knows("nosuch")


def test_a_stopped_saturation_says_so_first() -> None:
    limits = Limits(iterations=2)
    lines = saturate_and_extract(masked(), limits=limits).near_misses()
    assert lines[0] == "saturation stopped early (iteration limit 2): with more, more may be fused"
    assert not any("got as far as" in line for line in lines)
    whole = saturate_and_extract(masked())
    assert whole.report.fused
    assert not any("stopped early" in line for line in whole.near_misses())
