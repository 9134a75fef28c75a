"""Rotary positions: nothing is baked, no position is bounded, and rows of position_ids are independent."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnx_egraph import saturate_and_extract

HEAD, HEADS = 16, 3


def model(opset: int = 17) -> onnx.ModelProto:
    """x [B,3,S,16] rotated by angles position_ids [B,S] x inv_freq; cos and sin [B,1,S,16] are outputs too."""
    inv = (10000.0 ** -(np.arange(0, HEAD, 2) / HEAD)).astype(np.float32)[None, :, None]
    inits = {"inv": inv, "one": np.array([1]), "zero": np.array([0]), "half": np.array([HEAD // 2]),
             "whole": np.array([HEAD]), "last": np.array([3])}  # fmt: skip
    node = helper.make_node
    nodes = [
        node("Unsqueeze", ["position_ids", "one"], ["p1"]), node("Cast", ["p1"], ["p2"], to=TensorProto.FLOAT),
        node("MatMul", ["inv", "p2"], ["f1"]), node("Transpose", ["f1"], ["f2"], perm=[0, 2, 1]),
        node("Concat", ["f2", "f2"], ["f3"], axis=-1), node("Cos", ["f3"], ["c1"]), node("Sin", ["f3"], ["s1"]),
        node("Unsqueeze", ["c1", "one"], ["cos"]), node("Unsqueeze", ["s1", "one"], ["sin"]),
        node("Slice", ["x", "zero", "half", "last"], ["x1"]), node("Slice", ["x", "half", "whole", "last"], ["x2"]),
        node("Neg", ["x2"], ["n2"]), node("Concat", ["n2", "x1"], ["rot"], axis=-1),
        node("Mul", ["x", "cos"], ["xc"]), node("Mul", ["rot", "sin"], ["xs"]), node("Add", ["xc", "xs"], ["y"]),
    ]  # fmt: skip
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "rope",
        [value("x", TensorProto.FLOAT, ["B", HEADS, "S", HEAD]), value("position_ids", TensorProto.INT64, ["B", "S"])],
        [value("y", TensorProto.FLOAT, ["B", HEADS, "S", HEAD]), value("cos", TensorProto.FLOAT, ["B", 1, "S", HEAD]),
         value("sin", TensorProto.FLOAT, ["B", 1, "S", HEAD])],
        [numpy_helper.from_array(v, k) for k, v in inits.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def run(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, feeds)


CASES = {
    "position 10": [[10]],
    "position 5,000,000": [[5_000_000]],
    "rows of their own": [[0, 1, 2, 3], [2047, 7, 5_000_000, 40_000]],
    "one row for a batch of 4": [[3, 1, 4, 1, 5]],
}


@pytest.mark.parametrize("opset", [14, 17, 23])
@pytest.mark.parametrize("ids", CASES.values(), ids=CASES)
def test_positions(ids: list[list[int]], opset: int) -> None:
    original = model(opset)
    result = saturate_and_extract(original)
    assert isinstance(result.model, onnx.ModelProto)
    assert [f.op for f in result.report.fused] == ["RotaryEmbedding"]
    positions = np.array(ids, np.int64)
    batch = 4 if positions.shape[0] == 1 else positions.shape[0]
    x = np.random.default_rng(7).standard_normal((batch, HEADS, positions.shape[1], HEAD)).astype(np.float32)
    want, got = (run(m, {"x": x, "position_ids": positions}) for m in (original, result.model))
    for name, a, b in zip(("cos", "sin"), want[1:], got[1:], strict=True):
        assert np.array_equal(a, b), f"{name} is not bit-equal"
    ulp = np.spacing(np.maximum(np.abs(want[0]), np.float32(1)))
    assert np.all(np.abs(want[0] - got[0]) <= 4 * ulp)


def test_no_table_is_baked() -> None:
    result = saturate_and_extract(model())
    assert isinstance(result.model, onnx.ModelProto)
    assert max((np.prod(t.dims, dtype=int) for t in result.model.graph.initializer), default=0) <= HEAD


def test_inv_freq_may_be_an_input() -> None:
    proto = model()
    inv = next(t for t in proto.graph.initializer if t.name == "inv")
    proto.graph.input.append(helper.make_tensor_value_info("inv", TensorProto.FLOAT, [1, HEAD // 2, 1]))
    array = numpy_helper.to_array(inv)
    proto.graph.initializer.remove(inv)
    result = saturate_and_extract(proto)
    assert isinstance(result.model, onnx.ModelProto)
    assert [f.op for f in result.report.fused] == ["RotaryEmbedding"]
    x = np.random.default_rng(0).standard_normal((2, HEADS, 5, HEAD)).astype(np.float32)
    for scale in (1.0, 0.25):
        feeds = {"x": x, "position_ids": np.arange(10).reshape(2, 5), "inv": array * np.float32(scale)}
        for a, b in zip(run(proto, feeds), run(result.model, feeds), strict=True):
            assert np.allclose(a, b, rtol=0, atol=4 * np.finfo(np.float32).eps * np.abs(a).max())


def embeddings() -> onnx.ModelProto:
    """Tokens [B,S] and positions [B,S] embedded, added and normed twice, the views of an export in between."""
    rng = np.random.default_rng(1)
    inits = {
        "wte": rng.standard_normal((11, HEAD)).astype(np.float32), "one": np.array([1]), "last": np.array([-1]),
        "wpe": rng.standard_normal((16, HEAD)).astype(np.float32), "two": np.float32(2), "eps": np.float32(1e-5),
        "w": rng.standard_normal(HEAD).astype(np.float32), "b": rng.standard_normal(HEAD).astype(np.float32),
    }  # fmt: skip
    node = helper.make_node
    nodes = [
        node("Shape", ["input_ids"], ["all"]), node("Gather", ["all", "one"], ["s"]),
        node("Concat", ["last", "s"], ["view"], axis=0), node("Reshape", ["input_ids", "view"], ["ids"]),
        node("Reshape", ["position_ids", "view"], ["positions"]), node("Gather", ["wte", "ids"], ["tokens"]),
        node("Gather", ["wpe", "positions"], ["places"]), node("Add", ["tokens", "places"], ["x0"]),
    ]  # fmt: skip
    for k in range(2):
        nodes += [
            node("ReduceMean", [f"x{k}"], [f"mean{k}"], axes=[-1]), node("Sub", [f"x{k}", f"mean{k}"], [f"c{k}"]),
            node("Pow", [f"c{k}", "two"], [f"sq{k}"]), node("ReduceMean", [f"sq{k}"], [f"v{k}"], axes=[-1]),
            node("Add", [f"v{k}", "eps"], [f"ve{k}"]), node("Sqrt", [f"ve{k}"], [f"sd{k}"]),
            node("Div", [f"c{k}", f"sd{k}"], [f"n{k}"]), node("Mul", [f"n{k}", "w"], [f"m{k}"]),
            node("Add", [f"m{k}", "b"], [f"y{k}"]), node("Add", [f"x{k}", f"y{k}"], [f"x{k + 1}"]),
        ]  # fmt: skip
    value = helper.make_tensor_value_info
    ins = [value(name, TensorProto.INT64, ["B", "S"]) for name in ("input_ids", "position_ids")]
    arrays = [numpy_helper.from_array(np.asarray(v), k) for k, v in inits.items()]
    graph = helper.make_graph(nodes, "gpt", ins, [value("x2", TensorProto.FLOAT, ["B", "S", HEAD])], arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_buffers_are_not_shared_by_names_of_sizes() -> None:
    """onnxruntime takes equal names for equal sizes, and positions of one row have the batch's name."""
    original = embeddings()
    result = saturate_and_extract(original, verify=True)
    assert "LayerNormalization" in {f.op for f in result.report.fused}
    assert isinstance(result.model, onnx.ModelProto)
    assert not any(n.op_type == "Reshape" for n in result.model.graph.node)
    for batch, rows in ((4, 1), (4, 4), (1, 1)):
        ids = np.arange(batch * 5).reshape(batch, 5) % 11
        feeds = {"input_ids": ids, "position_ids": np.arange(rows * 5).reshape(rows, 5) % 16}
        for a, b in zip(run(original, feeds), run(result.model, feeds), strict=True):
            assert np.allclose(a, b, rtol=0, atol=16 * np.finfo(np.float32).eps * np.abs(a).max())
