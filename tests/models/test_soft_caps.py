"""Scores with a soft cap, c * tanh(s / c): however it is written, and as the bound that masks of -1e4 need."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

from onnx_egraph import saturate_and_extract

CAPS = {
    "quotient": "d = Div (s, c)  h = Tanh (d)  x = Mul (h, c)",
    "product": "d = Mul (s, inverse)  h = Tanh (d)  x = Mul (c, h)",
    "divided again": "d = Div (s, c)  h = Tanh (d)  x = Div (h, inverse)",
    "of another number": "d = Div (s, c)  h = Tanh (d)  x = Mul (h, two)",
    "of one": "x = Tanh (s)",
}
MASKS = {
    "seen": "z = Where (mask, x, low)",
    "hidden": "n = Not (mask)  z = Where (n, low, x)",
    "multiplied": "m = CastLike (mask, c)  r = Sub (one, m)  kept = Mul (x, m)  beyond = Mul (r, low)"
    "  z = Add (kept, beyond)",
}
UNBOUNDED = {
    "no cap": "x = Identity (s)",
    "a cap of what is negative": "d = Mul (s, inverse)  h = Tanh (d)  x = Mul (h, low)",
    "relu": "x = Relu (s)",
    "a far cap": "d = Mul (s, inverse)  h = Tanh (d)  x = Mul (h, far)",
}


def model(cap: str, mask: str, kind: str = "float") -> onnx.ModelProto:
    made = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 17]>
    g ({kind}[b,4,s,8] q, {kind}[b,4,t,8] k, {kind}[b,4,t,8] v, bool[b,1,1,t] mask) => ({kind}[b,4,s,8] o)
    <float c = {{5.0}}, float inverse = {{0.2}}, float two = {{2.0}}, float one = {{1.0}}, float low = {{-10000.0}},
     float far = {{9990.0}}, float half = {{0.353553}}> {{
        kt = Transpose <perm = [0, 1, 3, 2]> (k)
        a = MatMul (q, kt)
        s = Mul (a, half)
        {cap}
        {mask}
        p = Softmax <axis = -1> (z)
        o = MatMul (p, v)
    }}""")
    if kind == "float16":
        for given in made.graph.initializer:
            given.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(given).astype(np.float16), given.name))
    return made


@pytest.mark.parametrize("cap", CAPS)
def test_a_cap_is_one_of_the_attention(cap: str) -> None:
    report = saturate_and_extract(model(CAPS[cap], "z = Identity (x)"), verify=True).report
    assert report.counts() == {"Attention": 1}, report.text()


@pytest.mark.parametrize("kind", ["float", "float16"])
@pytest.mark.parametrize("mask", MASKS)
def test_a_number_below_a_cap_hides(mask: str, kind: str) -> None:
    report = saturate_and_extract(model(CAPS["quotient"], MASKS[mask], kind), verify=True).report
    assert report.counts() == {"Attention": 1}, report.text()
    assert not any("1e8" in assumed for assumed in report.assumptions)


@pytest.mark.parametrize("cap", UNBOUNDED)
def test_a_number_that_scores_may_reach_does_not(cap: str) -> None:
    result = saturate_and_extract(model(UNBOUNDED[cap], MASKS["seen"]), verify=True)
    assert not result.report.counts(), result.report.text()


def test_a_near_miss_tells_of_the_bound() -> None:
    misses = saturate_and_extract(model(UNBOUNDED["no cap"], MASKS["seen"])).near_misses()
    assert any("softmax-bounded" in miss and "a proved bound" in miss for miss in misses), misses
