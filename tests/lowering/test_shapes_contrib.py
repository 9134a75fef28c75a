"""Operators of onnxruntime alone: type and sizes are inferred as onnxruntime computes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper

from onnx_egraph.lowering.shapes.contrib import LIKE, TABLE
from onnx_egraph.lowering.shapes.inference import infer

RNG = np.random.default_rng(0)
SIZES = {"b": 2, "b@x": 2, "s": 3}
BYTES = RNG.integers(0, 255, (8, 6)).astype(np.uint8)
ONE, WEIGHTS = np.float32(0.02), RNG.standard_normal((8, 6)).astype(np.float32)
ROWS = np.array([[1, 3], [0, 2]], np.int64)
BLOCKS = RNG.integers(0, 255, (6, 1, 16)).astype(np.uint8)

# operator, the inputs behind x (None: left out), attributes; x is [b, s, 8]
CASES: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("DequantizeLinear", [ONE, np.uint8(3)], {}),
    ("QuantizeLinear", [ONE, np.int8(3)], {}),
    ("DynamicQuantizeMatMul", [BYTES, ONE], {}),
    ("MatMulIntegerToFloat", [BYTES, ONE, ONE], {}),
    ("MatMulBnb4", [RNG.integers(0, 255, 24).astype(np.uint8), np.ones(3, np.float32)],
     dict(K=8, N=6, block_size=16, quant_type=1)),
    ("Trilu", [np.int64(0)], {}),
    ("FusedGemm", [WEIGHTS.T.copy(), WEIGHTS[0]], dict(transB=1, activation="Relu")),
    ("GatherBlockQuantized", [ROWS, np.ones((5, 1), np.float32)], dict(bits=4, block_size=16, gather_axis=0)),
]  # fmt: skip
OF_BYTES = {"DequantizeLinear", "MatMulIntegerToFloat"}


@pytest.mark.parametrize(("op", "others", "attributes"), CASES, ids=[op for op, _, _ in CASES])
def test_sizes_are_those_of_onnxruntime(op: str, others: list[Any], attributes: dict[str, Any]) -> None:
    shape: list[Any] = ["b", "s", 8]
    if op == "FusedGemm":
        shape = ["b", 8]
    kind = np.dtype(np.uint8 if op in OF_BYTES else np.float32)
    names = ["x", *(f"w{i}" for i in range(len(others)))]
    constants = [onnx.numpy_helper.from_array(np.asarray(a), n) for a, n in zip(others, names[1:], strict=True)]
    inputs = [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(kind), shape)]
    if op == "GatherBlockQuantized":
        inputs = []
        constants.append(onnx.numpy_helper.from_array(RNG.integers(0, 255, (5, 8)).astype(np.uint8), "x"))
    node = helper.make_node(op, names, ["y"], domain="com.microsoft", **attributes)
    graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name="y")], constants)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=8)
    model = ir.from_proto(proto)
    shapes = infer(model)
    facts = shapes.of(model.graph.outputs[0])
    assert facts.dims is not None
    feeds = {"x": RNG.integers(0, 9, [SIZES.get(d, d) for d in shape]).astype(kind)} if inputs else {}
    [y] = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    assert facts.dtype is not None
    assert facts.dtype.numpy() == y.dtype
    assert tuple(shapes.evaluate(d, SIZES) for d in facts.dims) == y.shape


def test_no_operator_stands_twice() -> None:
    assert not TABLE.keys() & LIKE.keys()
    assert {op for op, _, _ in CASES} <= TABLE.keys() | LIKE.keys()


def test_what_is_quantized_without_a_zero_point_is_bytes() -> None:
    node = helper.make_node("QuantizeLinear", ["x", "s"], ["y"], domain="com.microsoft")
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 8])],
        [onnx.ValueInfoProto(name="y")], [onnx.numpy_helper.from_array(ONE, "s")],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8))
    assert infer(model).of(model.graph.outputs[0]).dtype == ir.DataType.UINT8


@pytest.mark.parametrize("opset", [9, 16])
def test_a_norm_in_operator_sets_before_the_one_that_brought_it(opset: int) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : {opset}]>
        g (float[b, s, 8] x, float[8] w) => (float[b, s, 8] y) {{ y, mean, inverse = LayerNormalization(x, w, w) }}""")
    onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    loaded = ir.from_proto(model)
    shapes = infer(loaded)
    assert [shapes.of(o).dims for o in loaded.graph[0].outputs] == [("b", "s", 8), *[("b", "s", 1)] * 2]
