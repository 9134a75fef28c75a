"""A guard inside an attention, where(isnan(p), 0, p) @ v: strict=True keeps every number and every NaN of it; by
default it may go, since scores are finite, and the report says so.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from onnx_egraph import Result, saturate_and_extract
from onnx_egraph.egraph.engine.assumption import SCORES_FINITE
from onnx_egraph.egraph.targets import target

HEADS, SIZE = 12, 64  # large enough for an operator to pay
#: What is put into which operand; `hidden` masks a row.
FINITE = ("nothing", "hidden")
SPECIAL = ("nan in q", "inf in q", "nan in k", "inf in k", "nan in v", "inf in v", "infs in v", "nan in m", "overflow",
           "overflow below", "nan in q, hidden", "nan in v, hidden")  # fmt: skip


@cache
def model(opset: int, masked: bool, kind: str) -> onnx.ModelProto:
    node, code = helper.make_node, helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    nodes = [
        node("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]), node("MatMul", ["q", "kt"], ["s"]),
        node("Mul", ["s", "scale"], ["x"]), *([node("Add", ["x", "m"], ["y"])] if masked else []),
        node("Softmax", ["y" if masked else "x"], ["p"], axis=-1), node("IsNaN", ["p"], ["wrong"]),
        node("Where", ["wrong", "zero", "p"], ["g"]), node("MatMul", ["g", "v"], ["o"]),
    ]  # fmt: skip
    ins = [helper.make_tensor_value_info(n, code, ["B", HEADS, "S", SIZE]) for n in "qkv"]
    ins += [helper.make_tensor_value_info("m", code, ["B", 1, "S", "S"])] if masked else []
    outs = [helper.make_tensor_value_info("o", code, ["B", HEADS, "S", SIZE])]
    numbers = [numpy_helper.from_array(np.asarray(v, kind), n) for n, v in (("scale", SIZE**-0.5), ("zero", 0))]
    sets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(helper.make_graph(nodes, "g", ins, outs, numbers), opset_imports=sets, ir_version=10)


@cache
def optimized(opset: int, masked: bool, kind: str, strict: bool) -> Result:
    return saturate_and_extract(model(opset, masked, kind), strict=strict)


def feeds(case: str, masked: bool, kind: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    given = {n: rng.standard_normal((2, HEADS, 5, SIZE)).astype(kind) for n in "qkv"}
    given["m"] = np.triu(np.full((2, 1, 5, 5), -np.inf), 1).astype(kind)
    value = -np.inf if "-inf" in case else np.nan if "nan" in case else np.inf
    if " in " in case:
        operand = case.split(" in ")[1][0]
        given[operand][1, 0, 2, 3] = value
        if case.startswith("infs"):
            given[operand][1, 0, 1, 3] = -np.inf
    if case.startswith("overflow"):
        given["q"][0, 1, 2] = np.finfo(kind).max / 4
        given["k"][0, 1] = np.finfo(kind).max / (-4 if "below" in case else 4)
    if "hidden" in case:
        given["m"][1, 0, 2] = -np.inf
    return given if masked else {n: given[n] for n in "qkv"}


def run(made: onnx.ModelProto, given: dict[str, np.ndarray]) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, given)[0])


def equal(a: np.ndarray, b: np.ndarray) -> bool:
    """NaN and infinities in the same places, and the same numbers up to the rounding of 64 terms."""
    bound = 64 * float(np.finfo(a.dtype).eps)
    return bool(np.allclose(a.astype(float), b.astype(float), rtol=bound, atol=bound, equal_nan=True))


def cases(names: tuple[str, ...]) -> list[tuple[str, bool]]:
    return [(n, masked) for n in names for masked in (False, True) if masked or not ("hidden" in n or n[-1] == "m")]


@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize(("case", "masked"), cases(FINITE + SPECIAL))
@pytest.mark.parametrize("opset", [17, 23])
def test_strict_keeps_every_number(opset: int, case: str, masked: bool, kind: str) -> None:
    if kind == "float16" and case.startswith("overflow"):
        case = "inf in q"  # onnxruntime computes float16 in float32, by Casts, where it has no kernel
    result, given = optimized(opset, masked, kind, True), feeds(case, masked, kind)
    assert not any("strict does without" in a for a in result.report.assumptions)
    assert isinstance(result.model, onnx.ModelProto)
    assert equal(run(model(opset, masked, kind), given), run(result.model, given))


@pytest.mark.parametrize("kind", ["float32", "float16"])
@pytest.mark.parametrize(("case", "masked"), cases((*FINITE, "nan in v", "inf in v")))
@pytest.mark.parametrize("opset", [17, 23])
def test_the_default_keeps_numbers_of_finite_scores(opset: int, case: str, masked: bool, kind: str) -> None:
    result, given = optimized(opset, masked, kind, False), feeds(case, masked, kind)
    assert isinstance(result.model, onnx.ModelProto)
    assert "Softmax" not in {n.op_type for n in result.model.graph.node}
    assert str(SCORES_FINITE) in result.report.assumptions
    assert equal(run(model(opset, masked, kind), given), run(result.model, given))


@pytest.mark.parametrize("masked", [False, True])
def test_strict_still_fuses(masked: bool) -> None:
    result = optimized(17, masked, "float32", True)
    assert result.report.counts() == ({"MultiHeadAttention": 1} if masked else {"Attention": 1})


def test_without_a_guard_nothing_is_assumed_of_scores() -> None:
    plain = onnx.ModelProto()
    plain.CopyFrom(model(17, False, "float32"))
    del plain.graph.node[4:6]
    plain.graph.node[-1].input[0] = "p"
    result = saturate_and_extract(plain)
    assert result.report.counts() == {"Attention": 1}
    assert not any("strict does without" in a for a in result.report.assumptions)
    assert isinstance(result.model, onnx.ModelProto)
    for case, _ in cases(SPECIAL):
        given = feeds(case, False, "float32")
        assert equal(run(plain, given), run(result.model, given)), case


@pytest.mark.parametrize("case", [*FINITE, *SPECIAL])
def test_a_guard_behind_an_operator_of_an_older_runtime(case: str) -> None:
    """Of opsets below 23 only, a runtime has MultiHeadAttention alone."""
    cpu = target("cpu")
    older = type(cpu)(cpu.name, cpu.provider, 20, cpu.ops)
    result = saturate_and_extract(model(17, True, "float32"), target=older)
    assert result.report.counts() == {"MultiHeadAttention": 1}
    assert isinstance(result.model, onnx.ModelProto)
    given = feeds(case, True, "float32")
    assert equal(run(model(17, True, "float32"), given), run(result.model, given))
