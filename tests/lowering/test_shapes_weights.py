"""A weight tells the size of what it is applied to, where the operator runs on no other."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from onnx_egraph.lowering.shapes.inference import Shapes, infer

MS = "com.microsoft"
WEIGHTS: dict[str, np.ndarray] = {
    "w": np.ones((64, 48), np.float32), "wt": np.ones((48, 64), np.float32), "g": np.ones(64, np.float32),
    "i": np.ones((64, 48), np.int8), "z": np.array(0, np.int8), "scale": np.array(0.1, np.float32),
    "blocks": np.ones((48, 2, 16), np.uint8), "scales": np.ones(96, np.float32),
    "filter": np.ones((8, 64, 3), np.float32), "groups": np.ones((8, 32, 3), np.float32),
    "back": np.ones((64, 8, 3), np.float32), "lstm": np.ones((1, 32, 64), np.float32),
    "again": np.ones((1, 32, 8), np.float32), "skip": np.ones((2, 3, 64), np.float32),
    "one": np.ones(1, np.float32),
}  # fmt: skip

ROWS, COLUMNS, BATCHES = (3, None), (None, 3), (2, 3, None)
CHANNELS = (2, None, 5)
TOLD: list[tuple[str, str, str, tuple[int | None, ...], dict[str, Any]]] = [
    ("", "MatMul", "x w", BATCHES, {}),
    ("", "Gemm", "x w", ROWS, {}),
    ("", "Gemm", "x wt", ROWS, {"transB": 1}),
    ("", "Gemm", "x w", COLUMNS, {"transA": 1}),
    (MS, "FusedGemm", "x w", ROWS, {"activation": "Relu"}),
    ("", "MatMulInteger", "x i", BATCHES, {}),
    ("", "QLinearMatMul", "x scale z i scale z scale z", BATCHES, {}),
    (MS, "MatMulNBits", "x blocks scales", BATCHES, {"K": 64, "N": 48, "bits": 4, "block_size": 32}),
    ("", "LayerNormalization", "x g", BATCHES, {"axis": 2}),
    ("", "SimplifiedLayerNormalization", "x g", BATCHES, {}),
    (MS, "SkipLayerNormalization", "x skip g", BATCHES, {}),
    (MS, "SkipSimplifiedLayerNormalization", "x skip g", BATCHES, {}),
    ("", "Conv", "x filter", CHANNELS, {}),
    (MS, "FusedConv", "x filter", CHANNELS, {"activation": "Relu"}),
    ("", "Conv", "x groups", CHANNELS, {"group": 2}),
    ("", "ConvTranspose", "x back", CHANNELS, {}),
    ("", "BatchNormalization", "x g g g g", CHANNELS, {}),
    ("", "InstanceNormalization", "x g g", CHANNELS, {}),
    ("", "LSTM", "x lstm again", BATCHES, {"hidden_size": 8}),
]
OPEN: list[tuple[str, str, str, tuple[int | None, ...], dict[str, Any]]] = [
    ("", "LayerNormalization", "x one", BATCHES, {}),  # onnxruntime broadcasts it
    ("", "SimplifiedLayerNormalization", "x one", BATCHES, {}),
    ("", "LayerNormalization", "x g", (None, 64), {"axis": 0}),
    ("", "Mul", "x g", BATCHES, {}),  # one column is stretched
]


def run(
    domain: str, op: str, ins: str, shape: tuple[int | None, ...], attributes: dict[str, Any]
) -> tuple[Shapes, ir.Model, Any]:
    """The shapes of a model of one node, the model, and a function that runs it."""
    names = ins.split()
    dtype = np.int8 if "i" in names else np.float32
    named = [f"d{k}" if size is None else size for k, size in enumerate(shape)]
    graph = h.make_graph(
        [h.make_node(op, names, ["y"], domain=domain, **attributes)], "g",
        [h.make_tensor_value_info("x", h.np_dtype_to_tensor_dtype(np.dtype(dtype)), named)],
        [h.make_tensor_value_info("y", T.UNDEFINED, None)],
        [nh.from_array(WEIGHTS[n], n) for n in dict.fromkeys(names[1:])],
    )  # fmt: skip
    graph.output[0].ClearField("type")
    imports = [h.make_opsetid("", 20), h.make_opsetid(MS, 1)]
    proto = h.make_model(graph, opset_imports=imports, ir_version=9)
    model = ir.from_proto(proto)
    options = ort.SessionOptions()
    options.log_severity_level = 4

    def at(size: int) -> Any:
        x = np.ones([size if n is None else n for n in shape], dtype)
        return ort.InferenceSession(proto.SerializeToString(), options).run(None, {"x": x})

    return infer(model), model, at


@pytest.mark.parametrize(("domain", "op", "ins", "shape", "attributes"), TOLD)
def test_told(domain: str, op: str, ins: str, shape: tuple[int | None, ...], attributes: dict[str, Any]) -> None:
    shapes, model, at = run(domain, op, ins, shape, attributes)
    assert shapes.of(model.graph.inputs[0]).dims == tuple(64 if n is None else n for n in shape)
    at(64)
    for size in (1, 8):
        with pytest.raises(Exception, match="ONNXRuntimeError"):
            at(size)


@pytest.mark.parametrize(("domain", "op", "ins", "shape", "attributes"), OPEN)
def test_open(domain: str, op: str, ins: str, shape: tuple[int | None, ...], attributes: dict[str, Any]) -> None:
    shapes, model, at = run(domain, op, ins, shape, attributes)
    dims = shapes.of(model.graph.inputs[0]).dims
    assert dims is not None
    assert all(isinstance(size, int) == (n is not None) for size, n in zip(dims, shape, strict=True))
    at(1)
