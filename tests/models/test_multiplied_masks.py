"""Masks of zeros and ones that scores are multiplied by, with a low number for the rest (GPT-2): chosen, not added."""

from __future__ import annotations

import onnx.parser
import pytest

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
