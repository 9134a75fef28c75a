"""Integers wrap around: what is claimed of them holds at the limits of their type, too."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from cases import FLOAT, INT64, Case, const, is_fresh, node, tensor
from onnx import TensorProto, helper

from onnx_egraph import NodeCount, saturate_and_extract


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.int8, np.uint8])
def test_what_a_caller_feeds_may_wrap_around(kind: type) -> None:
    """Whatever is claimed of integers, relative to what was fed, holds at the limits of their type."""
    limits = np.iinfo(kind)
    case = Case(
        [
            node("Add", "x three", "a"), node("Sub", "x three", "s"), node("Mul", "x three", "m"),
            node("Neg", "x", "n"), node("Abs", "x", "b"), node("Greater", "a x", "g"), node("Less", "s x", "l"),
            node("Sub", "a x", "d"), node("Cast", "a", "c", to=INT64), node("Add", "x none", "same"),
            node("Max", "a x", "big"), node("ReduceSum", "x", "r", keepdims=0),
        ],
        [tensor("x", helper.np_dtype_to_tensor_dtype(np.dtype(kind)), [2])],
        "a s m n b g l d c same big r".split(),
        [const("three", [3], kind), const("none", [0], kind)],
    )  # fmt: skip
    for fed in ([limits.max, limits.min], [limits.max - 3, limits.min + 3], [5, 7]):
        x = np.array(fed, kind)
        known = dict(zip(map(str, case.elems("x")), map(int, x), strict=True))
        three = np.full(2, 3, kind)
        with np.errstate(over="ignore"):
            found = {"a": x + three, "s": x - three, "m": x * three, "n": -x, "b": np.abs(x), "g": x + three > x}
            found |= {"l": x - three < x, "d": three, "c": x + three, "same": x, "big": np.maximum(x + three, x)}
        for name, values in found.items():
            for claim, value in zip(case.elems(name), values, strict=True):
                if case.shapes.symbols(claim) <= known.keys():
                    assert case.shapes.evaluate(claim, known) == value, (name, claim, fed)
    assert case["same"].elems == case["x"].elems


def test_a_range_between_what_a_caller_feeds_has_a_length_of_its_own() -> None:
    case = Case(
        [
            node("Range", "zero x one", "counted"), node("Range", "y x one", "between"),
            node("Range", "x zero less", "down"),
        ],
        [tensor("x", INT64, []), tensor("y", INT64, [])], "counted between down".split(),
        [const("zero", 0), const("one", 1), const("less", -1)],
    )  # fmt: skip
    assert case["counted"].dims == (f"max(0, {case.elems('x')[0]})",)
    assert is_fresh(case.dims("between")[0])  # where y is far below 0, x - y wraps around and nothing is counted
    assert is_fresh(case.dims("down")[0])


def test_sizes_multiplied_by_much_are_unknown() -> None:
    """Nobody allocates a tensor of so many elements, but a model may compute the number."""
    case = Case(
        [
            node("Shape", "x", "n"), node("Cast", "n", "i", to=TensorProto.INT32), node("Mul", "i many", "narrow"),
            node("Mul", "i some", "fine"), node("Mul", "n n", "n2"), node("Mul", "n2 n2", "n4"),
            node("Mul", "n4 n4", "n8"), node("Cast", "n", "f", to=FLOAT), node("Mul", "f real", "inexact"),
            node("Cast", "inexact", "back", to=INT64),
        ],
        [tensor("x", FLOAT, ["n"])], "narrow fine n8 back".split(),
        [const("many", [10**9], np.int32), const("some", [64], np.int32), const("real", 10**6, np.float32)],
    )  # fmt: skip
    assert case["fine"].elems == ("64*n",)
    assert case["n4"].elems == ("n*n*n*n",)
    for name in ("narrow", "n8", "back"):
        assert is_fresh(case.elems(name)[0]), name


@pytest.mark.parametrize("flag", [-1, 2, 0, 1])
def test_a_flag_is_set_by_one_alone(flag: int) -> None:
    """Any other number is no, to onnxruntime and to ONNX's shape inference."""
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 3] x) => (float[m] y) {{
        r = ReduceMax <axes = [-2], keepdims = {flag}> (x)
        a = Neg (r)
        n = Neg (a)
        y = ReduceMean <axes = [0], keepdims = 0> (n)
    }}""")
    case = Case([*model.graph.node], [*model.graph.input], ["y"], opset=17)
    assert case.dims("r") == ((1, 3) if flag == 1 else (3,))
    result = saturate_and_extract(model, cost=NodeCount(), verify=True)
    assert result.report.verified, result.report.verification
