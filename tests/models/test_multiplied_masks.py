"""Masks of zeros and ones that scores are multiplied by, with a low number for the rest (GPT-2): chosen, not added."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

from onnx_egraph import saturate_and_extract

MASKS = {
    "minus": "m = Cast <to = 1> (u)  r = Sub (one, m)  kept = Mul (s, m)  low = Mul (r, big)  z = Sub (kept, low)",
    "plus": "m = Cast <to = 1> (u)  r = Sub (one, m)  kept = Mul (m, s)  low = Mul (lowest, r)  z = Add (low, kept)",
    "turned": "m = Cast <to = 1> (u)  r = Sub (m, one)  kept = Mul (s, m)  low = Mul (r, big)  z = Add (kept, low)",
    "negated": "m = Cast <to = 1> (u)  r = Sub (one, m)  kept = Mul (s, m)  up = Mul (r, big)  low = Neg (up)"
    "  z = Add (kept, low)",
    "inverted": "m = Cast <to = 1> (u)  n = Not (u)  r = Cast <to = 1> (n)  kept = Mul (s, m)  low = Mul (r, lowest)"
    "  z = Add (kept, low)",
    "cast first": "f = Cast <to = 1> (keep)  m = Unsqueeze (f, axes)  r = Sub (one, m)  kept = Mul (s, m)"
    "  low = Mul (r, big)  z = Sub (kept, low)",
}
FALSE = {
    "the same side twice": "m = Cast <to = 1> (u)  kept = Mul (s, m)  low = Mul (m, big)  z = Sub (kept, low)",
    "of two": "m = Cast <to = 1> (u)  r = Sub (two, m)  kept = Mul (s, m)  low = Mul (r, big)  z = Sub (kept, low)",
    "of no truth": "m = Cast <to = 1> (ints)  r = Sub (one, m)  kept = Mul (s, m)  low = Mul (r, big)"
    "  z = Sub (kept, low)",
}


def model(mask: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 17]>
    g (float[b,4,s,8] q, float[b,4,t,8] k, float[b,4,t,8] v, bool[b,t] keep, int64[b,1,1,t] ints) => (float[b,4,s,8] o)
    <float one = {{1.0}}, float two = {{2.0}}, float big = {{1000000000.0}}, float lowest = {{-1000000000.0}},
     float half = {{0.353553}}, int64[2] axes = {{1, 2}}> {{
        u = Unsqueeze (keep, axes)
        kt = Transpose <perm = [0, 1, 3, 2]> (k)
        a = MatMul (q, kt)
        s = Mul (a, half)
        {mask}
        p = Softmax <axis = -1> (z)
        o = MatMul (p, v)
    }}""")


@pytest.mark.parametrize("name", MASKS)
def test_it_is_an_attention(name: str) -> None:
    report = saturate_and_extract(model(MASKS[name]), verify=True).report
    assert sum(report.counts().values()) == 1, report.text()


@pytest.mark.parametrize("name", FALSE)
def test_what_only_looks_like_one_is_none(name: str) -> None:
    """Or it is one with what is added: then the numbers are right."""
    result = saturate_and_extract(model(FALSE[name]), verify=True)
    assert not result.report.counts(), result.report.text()


TRUTHS = {
    "a buffer": "m = Slice (table, from, to, axes)",
    "a buffer of integers": "n = Slice (counts, from, to, axes)  m = Cast <to = 1> (n)",
    "a buffer of bytes": "n = Slice (bytes, from, to, axes)  m = Cast <to = 1> (n)",
    "a triangle of ones": "f = ConstantOfShape <value: tensor = float[1] {1.0}> (to)  m = Trilu <upper = 0> (f)",
    "a triangle of one number": "f = Expand (one, to)  m = Trilu <upper = 0> (f)",
    "a triangle of integers": "f = ConstantOfShape <value: tensor = int64[1] {1}> (to)"
    "  n = Trilu <upper = 0> (f)  m = Cast <to = 1> (n)",
    "chosen": "u = Unsqueeze (mask, axes)  m = Where (u, one, zero)",
    "chosen otherwise": "u = Unsqueeze (mask, axes)  n = Not (u)  m = Where (n, zero, one)",
    "by way of integers": "u = Unsqueeze (mask, axes)  n = Cast <to = 7> (u)  m = Cast <to = 1> (n)",
    "reshaped": "f = Cast <to = 1> (mask)  m = Reshape (f, shape)",
    "of two": "u = Unsqueeze (mask, axes)  f = Cast <to = 1> (u)  n = Slice (table, from, to, axes)  m = Mul (f, n)",
}
NO_TRUTHS = {
    "a buffer of others": "m = Slice (others, from, to, axes)",
    "a triangle of twos": "f = ConstantOfShape <value: tensor = float[1] {2.0}> (to)  m = Trilu <upper = 0> (f)",
    "chosen of others": "u = Unsqueeze (mask, axes)  m = Where (u, one, half)",
    "integers": "i = Unsqueeze (ints, axes)  m = Cast <to = 1> (i)",
    "a sum": "u = Unsqueeze (mask, axes)  f = Cast <to = 1> (u)  n = Slice (table, from, to, axes)  m = Add (f, n)",
}


def square(mask: str) -> onnx.ModelProto:
    made = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 17]>
    g (float[b,4,s,8] q, float[b,4,s,8] k, float[b,4,s,8] v, bool[b,s] mask, int64[b,s] ints) => (float[b,4,s,8] o)
    <float one = {{1.0}}, float zero = {{0.0}}, float big = {{1000000000.0}}, float half = {{0.353553}},
     int64[2] from = {{0, 0}}, int64[2] axes = {{1, 2}}, int64[1] two = {{2}}, int64[1] three = {{3}},
     int64[4] shape = {{0, 1, 1, -1}}> {{
        sizes = Shape (q)
        length = Slice (sizes, two, three)
        to = Concat <axis = 0> (length, length)
        kt = Transpose <perm = [0, 1, 3, 2]> (k)
        a = MatMul (q, kt)
        s = Mul (a, half)
        {mask}
        r = Sub (one, m)  kept = Mul (s, m)  low = Mul (r, big)  z = Sub (kept, low)
        p = Softmax <axis = -1> (z)
        o = MatMul (p, v)
    }}""")
    ones = np.tril(np.ones((1, 32, 32)))
    for name, array in (
        ("table", ones),
        ("others", 2 * ones),
        ("counts", ones.astype(np.int64)),
        ("bytes", ones.astype(np.uint8)),
    ):
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        made.graph.initializer.append(numpy_helper.from_array(array, name))
    return made


@pytest.mark.parametrize("name", TRUTHS)
def test_zeros_and_ones_select_wherever_they_come_from(name: str) -> None:
    report = saturate_and_extract(square(TRUTHS[name]), verify=True).report
    assert sum(report.counts().values()) == 1, report.text()


@pytest.mark.parametrize("name", NO_TRUTHS)
def test_other_numbers_do_not(name: str) -> None:
    result = saturate_and_extract(square(NO_TRUTHS[name]), verify=True)
    assert not result.report.counts(), result.report.text()


def test_a_near_miss_names_the_mask_that_may_have_other_numbers() -> None:
    """Of each mask that is not proved to be of zeros and ones, and that is what is to be proved."""
    for name in NO_TRUTHS:
        lines = saturate_and_extract(square(NO_TRUTHS[name])).near_misses()
        assert any("sdpa-matmul" in x and "every element of m is 0 or 1: m is" in x and "(m)" in x for x in lines), (
            lines
        )


def test_a_near_miss_names_the_number_that_the_mask_is_subtracted_from() -> None:
    (line,) = saturate_and_extract(model(FALSE["of two"])).near_misses()
    assert "selected-rest" in line
    assert line.endswith("leads if value(o) = 1.0: o is float32[] 2 (two)")
