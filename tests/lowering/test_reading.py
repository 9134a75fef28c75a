"""Operators in forms that say little: one part, no axes, nothing to do. Each is read as what it computes."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx import parser

from onnx_egraph import saturate_and_extract

#: (opset, inputs, body that makes y): what runs in onnxruntime and leaves at most the nodes named
FORMS = {
    "split of one part": (13, "float[b,8] x", "p = Split <axis = 1> (x, whole) \n y = Relu (p)", {"Relu"}),
    "split in one": (18, "float[b,8] x", "p = Split <axis = 1, num_outputs = 1> (x) \n y = Relu (p)", {"Relu"}),
    "split by attribute": (11, "float[b,8] x", "p = Split <axis = 1, split = [8]> (x) \n y = Relu (p)", {"Relu"}),
    "split of one part at the end": (13, "float[b,8] x", "y = Split <axis = 1> (x, whole)", {"Identity"}),
    "tile of a scalar": (13, "float x", "p = Tile (x, none) \n y = Relu (p)", {"Relu"}),
    "expand to what it is": (13, "float[b,8] x", "s = Shape (x) \n p = Expand (x, s) \n y = Relu (p)", {"Relu"}),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_of_nothing(name: str) -> None:
    opset, given, body, left = FORMS[name]
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : {opset}]>
    g ({given}) => (float{given.removeprefix("float").removesuffix(" x")} y)
    <int64[1] whole = {{8}}, int64[0] none = {{}}> {{
        {body}
    }}""")
    result = saturate_and_extract(model)
    assert {node.op_type for node in result.model.graph.node} <= left
    x = np.asarray(np.linspace(-1, 1, 24).reshape(3, 8) if "b" in given else -0.5, np.float32)
    a, b = (
        ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for m in (model, result.model)
    )
    assert np.array_equal(a, b)


def test_known_sizes_of_another_type_are_no_int64_vector() -> None:
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
    g (float[2,8] x) => (int32[2] y) {
        s = Shape (x)
        c = Cast <to = 6> (s)
        y = Mul (c, c)
    }""")
    result = saturate_and_extract(model)
    session = ort.InferenceSession(result.model.SerializeToString(), providers=["CPUExecutionProvider"])
    [y] = session.run(None, {"x": np.zeros((2, 8), np.float32)})
    assert y.dtype == np.int32
    assert y.tolist() == [4, 64]
