"""A layer normalization without a bias is the same term as one with, and is written without one."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from onnx_egraph import saturate_and_extract

PARTS = (
    "m = ReduceMean(x, last) c = Sub(x, m) s = Mul(c, c) v = ReduceMean(s, last) e = Add(v, eps)"
    " r = Sqrt(e) n = Div(c, r) y = Mul(n, w)"
)
TEXTS: dict[str, tuple[str, int]] = {  # what is computed, and with how many inputs it is written
    "written out": (PARTS, 2),
    "read twice": ("a = LayerNormalization(x, w) b = LayerNormalization(x, w) y = Add(a, b)", 2),
    "a bias behind": ("n = LayerNormalization(x, w) y = Add(n, bias)", 3),
    "a bias in front of a sum": ("n = LayerNormalization(x, w) y = Add(bias, n)", 3),
}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", TEXTS)
def test_written_with_as_many_inputs_as_it_has(name: str, strict: bool) -> None:
    text, inputs = TEXTS[name]
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 20]> g (float[b,n,8] x) => (float[b,n,8] y) {{ {text} }}'
    )
    constants = {
        "last": np.array([-1]),
        "eps": np.float32(1e-5),
        "w": np.linspace(1, 2, 8),
        "bias": np.linspace(0, 1, 8),
    }
    for key, value in constants.items():
        if key in text:
            array = np.asarray(value)
            array = array.astype(np.float32) if array.dtype.kind == "f" else array
            model.graph.initializer.append(numpy_helper.from_array(array, key))
    result = saturate_and_extract(model, strict=strict, verify=True)
    assert isinstance(result.model, onnx.ModelProto)
    assert result.report.verified
    norms = [node for node in result.model.graph.node if node.op_type == "LayerNormalization"]
    assert [len(node.input) for node in norms] == [inputs]
    assert len(result.model.graph.node) == (2 if name == "read twice" else 1)
