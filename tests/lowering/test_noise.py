"""What verification may call compared, and how close an answer has to be, channel by channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from onnx_egraph import saturate_and_extract
from onnx_egraph.lowering.verify.feeds import plan_feeds
from onnx_egraph.lowering.verify.verify import verify

Io = tuple[str, int, Sequence[str | int] | None]


def model(
    nodes: list[onnx.NodeProto], ins: list[Io], outs: list[Io], weights: Mapping[str, Any] | None = None
) -> onnx.ModelProto:
    made_in, made_out = ([h.make_tensor_value_info(*io) for io in side] for side in (ins, outs))
    inits = [nh.from_array(np.asarray(a), name) for name, a in (weights or {}).items()]
    graph = h.make_graph(nodes, "g", made_in, made_out, inits)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 20)], ir_version=10)


def n(op: str, ins: str, outs: str, **attributes: Any) -> onnx.NodeProto:
    return h.make_node(op, ins.split(), outs.split(), **attributes)


X: Io = ("x", T.FLOAT, ["b", 8])
Y: Io = ("y", T.FLOAT, ["b", 8])


# ---- what says nothing


def random() -> onnx.ModelProto:
    return model([n("RandomNormalLike", "x", "r"), n("Add", "x r", "y")], [X], [Y])


def blank(low: float) -> onnx.ModelProto:
    """The root of a negative number, or a number over zero."""
    if low:
        nodes = [n("Abs", "x", "a"), n("Sub", "low a", "c"), n("Sqrt", "c", "y")]
    else:
        nodes = [n("Abs", "x", "a"), n("Div", "a low", "y")]
    return model(nodes, [X], [Y], {"low": np.float32(low)})


def empty() -> onnx.ModelProto:
    return model([n("Relu", "x", "y")], [("x", T.FLOAT, [0, 3])], [("y", T.FLOAT, [0, 3])])


def steep(factor: float, *, also: bool = False) -> onnx.ModelProto:
    """sin(1e8 x factor): the last bit of x decides everything."""
    nodes = [n("Mul", "x big", "a"), n("Mul", "a f", "p"), n("Sin", "p", "y")]
    outs = [Y]
    if also:
        nodes.append(n("Neg", "x", "z"))
        outs.append(("z", T.FLOAT, ["b", 8]))
    return model(nodes, [X], outs, {"big": np.float32(1e8), "f": np.float32(factor)})


@pytest.mark.parametrize(
    ("made", "field"),
    [
        pytest.param(random(), "excluded", id="random"),
        pytest.param(blank(-1.0), "blank", id="NaN"),
        pytest.param(blank(0.0), "blank", id="infinite"),
        pytest.param(empty(), "blank", id="empty"),
        pytest.param(steep(1.5), "ill_conditioned", id="steep"),
    ],
)
def test_agreement_that_says_nothing_is_no_verification(made: onnx.ModelProto, field: str) -> None:
    result = verify(made, made)
    assert not result.ok
    assert not result.mismatches
    assert result.skipped == "no output can be compared"
    assert getattr(result, field) == ["y"]
    report = saturate_and_extract(made, verify=True).report
    assert report.verified is False
    assert report.verification.startswith("NOT verified: no output can be compared; not compared, since ")
    blamed = {"excluded": ", by node 'r' (RandomNormalLike)", "ill_conditioned": ""}.get(field, ", by node 'y'")
    assert f": y{blamed}" in report.verification


def test_a_steep_output_is_not_vouched_for() -> None:
    result = verify(steep(1.5), steep(1.0))
    assert not result.ok
    both = verify(steep(1.5, also=True), steep(1.5, also=True))
    assert both.ok
    assert both.ill_conditioned == ["y"]


# ---- channels of different size


def beside(factor: float, large: float, many: int, dtype: int = T.FLOAT) -> onnx.ModelProto:
    """`many` channels times `large`, next to eight times `factor`."""
    kind = h.tensor_dtype_to_np_dtype(dtype)
    nodes = [n("Mul", "z large", "p"), n("Mul", "x f", "q"), n("Concat", "p q", "y", axis=-1)]
    ins: list[Io] = [("x", dtype, ["b", 8]), ("z", dtype, ["b", many])]
    weights = {"large": np.array(large, kind), "f": np.array(factor, kind)}
    return model(nodes, ins, [("y", dtype, ["b", many + 8])], weights)


@pytest.mark.parametrize("many", [1, 8, 24])
@pytest.mark.parametrize("large", [1.0, 1e3, 1e5])
def test_a_large_channel_hides_no_error_of_the_others(large: float, many: int) -> None:
    good = verify(beside(1.0, large, many), beside(1.0, large, many))
    assert good.ok
    assert not good.ill_conditioned
    bad = verify(beside(1.0, large, many), beside(1.001, large, many))
    assert {m.kind for m in bad.mismatches} == {"value"}
    assert all(m.where[1] >= many and m.max_abs > m.tolerance > 0 for m in bad.mismatches)


def test_a_large_channel_hides_no_error_in_half_precision() -> None:
    assert verify(beside(1.0, 1e4, 8, T.FLOAT16), beside(1.0, 1e4, 8, T.FLOAT16)).ok
    assert not verify(beside(1.0, 1e4, 8, T.FLOAT16), beside(1.02, 1e4, 8, T.FLOAT16)).ok


@pytest.mark.parametrize("batch", [1, "b"])
@pytest.mark.parametrize("seed", range(4))
def test_reassociation_passes_in_every_channel(batch: int | str, seed: int) -> None:
    """Of thousands of sums of 256 products some are small by cancellation; their error is not."""
    rng = np.random.default_rng(seed)
    a, c = (rng.standard_normal((256, 2048)).astype(np.float32) for _ in range(2))
    a[:, :4] *= 1e4
    ins: list[Io] = [("x", T.FLOAT, [batch, 256])]
    outs: list[Io] = [("y", T.FLOAT, [batch, 2048])]
    nodes = [n("MatMul", "x a", "p"), n("MatMul", "x c", "q"), n("Add", "p q", "y")]
    apart = model(nodes, ins, outs, {"a": a, "c": c})
    merged = model([n("MatMul", "x ac", "y")], ins, outs, {"ac": a + c})
    result = verify(apart, merged)
    assert result.ok, result.mismatches
    assert result.max_abs > 0


# ---- element types and sizes


def scaled(factor: float, dtype: int) -> onnx.ModelProto:
    nodes = [n("Cast", "x", "f", to=T.FLOAT), n("Mul", "f c", "g"), n("Cast", "g", "y", to=dtype)]
    return model(nodes, [("x", dtype, ["b", 8])], [("y", dtype, ["b", 8])], {"c": np.float32(factor)})


def test_types_numpy_has_not_are_fed_and_compared() -> None:
    good = verify(scaled(1.5, T.BFLOAT16), scaled(1.5, T.BFLOAT16))
    assert good.ok
    assert not good.dropped
    assert {m.kind for m in verify(scaled(1.5, T.BFLOAT16), scaled(1.9, T.BFLOAT16)).mismatches} == {"value"}


@pytest.mark.parametrize("dtype", [T.FLOAT8E4M3FN, T.FLOAT8E5M2])
def test_eight_roundings_of_a_type_with_two_digits_are_no_comparison(dtype: int) -> None:
    result = verify(scaled(1.5, dtype), scaled(1.5, dtype))
    assert not result.mismatches
    assert not result.dropped
    assert result.ill_conditioned == ["y"]


def test_inputs_too_large_to_compare_are_left_out() -> None:
    def relu(*shape: int | str) -> onnx.ModelProto:
        return model([n("Relu", "x", "y")], [("x", T.FLOAT, shape)], [("y", T.FLOAT, shape)])

    result = verify(relu(2, 2**31, 6), relu(2, 2**31, 6))
    assert not result.ok
    assert "96.0 GiB of inputs are too many" in result.skipped
    feeds, left_out = plan_feeds(relu("b", 8), dims={"b": [2, 2**40]})
    assert {f.dims["b"] for f in feeds} == {2}
    assert any(f"b={2**40}: " in line for line in left_out)
