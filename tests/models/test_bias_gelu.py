"""A bias before a Gelu as one operator: where that is cheaper, and where the bias is a vector."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx.helper as make
import onnx.numpy_helper as arrays
import onnxruntime as ort
import pytest

from onnx_egraph import NodeCount, saturate_and_extract

WIDTH = 64


def gelu(
    type_: str, bias: tuple[int, ...] = (WIDTH,), fused: bool = False, width: int | str = WIDTH
) -> onnx.ModelProto:
    code = make.np_dtype_to_tensor_dtype(np.dtype(type_))
    stored = arrays.from_array(np.linspace(-1, 1, int(np.prod(bias))).reshape(bias).astype(type_), "c")
    apart = [make.make_node("Add", ["x", "c"], ["t"]), make.make_node("Gelu", ["t"], ["y"])]
    nodes = [make.make_node("BiasGelu", ["x", "c"], ["y"], domain="com.microsoft")] if fused else apart
    ends = [make.make_tensor_value_info("x", code, ["b", "s", width]), make.make_tensor_value_info("y", code, None)]
    graph = make.make_graph(nodes, "g", ends[:1], ends[1:], [stored])
    sets = [make.make_opsetid("", 20), make.make_opsetid("com.microsoft", 1)]
    return make.make_model(graph, opset_imports=sets, ir_version=9)


def kinds(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


@pytest.mark.parametrize("type_", ["float32", "float16"])
def test_one_operator_with_the_same_numbers(type_: str) -> None:
    model = gelu(type_)
    result = saturate_and_extract(model, cost=NodeCount(), verify=True)
    assert kinds(result.model) == {"BiasGelu": 1}
    assert result.report.counts() == {"BiasGelu": 1}
    x = np.random.default_rng(0).standard_normal((2, 3, WIDTH)).astype(type_)
    rounding = 8 * float(np.finfo(type_).eps)
    np.testing.assert_allclose(run(result.model, x), run(model, x), rtol=rounding, atol=rounding)


@pytest.mark.parametrize("bias", [(), (1,), (1, WIDTH), (3, WIDTH), (1, 3, WIDTH)])
def test_another_bias_stays_outside(bias: tuple[int, ...]) -> None:
    assert kinds(saturate_and_extract(gelu("float32", bias), cost=NodeCount(), verify=True).model)["BiasGelu"] == 0


def test_one_that_widens_stays_outside() -> None:
    assert kinds(saturate_and_extract(gelu("float32", width=1), cost=NodeCount(), verify=True).model)["BiasGelu"] == 0


def test_it_pays_in_float16_alone() -> None:
    assert kinds(saturate_and_extract(gelu("float16")).model) == {"BiasGelu": 1}
    assert kinds(saturate_and_extract(gelu("float32")).model) == {"Add": 1, "Gelu": 1}


def test_one_of_the_input_is_taken_apart_where_that_is_cheaper() -> None:
    assert kinds(saturate_and_extract(gelu("float32", fused=True), verify=True).model) == {"Add": 1, "Gelu": 1}
    assert saturate_and_extract(gelu("float16", fused=True)).report.unchanged
