"""Constant factors that belong to no fused operator stay as they are written, to the last bit."""

from __future__ import annotations

import onnx
import onnx.parser

from onnx_egraph import saturate_and_extract


def test_a_bucket_of_a_distance_is_computed_as_it_is_written() -> None:
    """x / c * d is cut to an integer: as one product it may end in another bucket, as log(16/8) / log(16) * 8 does."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[b, 8] x) => (int64[b, 8] z) <float c = {2.7725887}, float d = {8.0}, float e = {1.0}>
        { l = Log(x)  q = Div(l, c)  p = Mul(q, d)  s = Sub(p, e)  r = Reciprocal(q)  t = Mul(s, r)
          z = Cast <to = 7> (t) }""")
    kept = [node.op_type for node in saturate_and_extract(model).model.graph.node]
    assert kept == ["Log", "Div", "Mul", "Sub", "Reciprocal", "Mul", "Cast"]
