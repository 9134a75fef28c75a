"""On CUDA a Qwen3 decode step holds one GroupQueryAttention per layer, with QK-norm, rotation and cache inside.

No GPU is needed: the node's norms are taken out again, which is what the CPU kernel runs, and the numbers compared with
the original's.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper
from onnxruntime.transformers.float16 import convert_float_to_float16

from onnx_egraph import saturate_and_extract
from onnx_egraph.lowering.verify.verify import verify

EXPORT = Path(__file__).parent / "exports" / "qwen3_past_ts_sdpa.onnx"
LAYERS, HEADS, GROUPS, HEAD = 2, 4, 2, 32


def decode_step() -> onnx.ModelProto:
    """The export in float16, one new position at a time."""
    model = onnx.load(EXPORT)
    length = next(i for i in model.graph.input if i.name == "input_ids").type.tensor_type.shape.dim[1]
    length.Clear()
    length.dim_value = 1
    half: onnx.ModelProto = convert_float_to_float16(model, keep_io_types=False, disable_shape_infer=True)
    return half


def without_norms(model: onnx.ModelProto) -> onnx.ModelProto:
    """Each GroupQueryAttention with its norms in front of it."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    nodes = list(made.graph.node)
    del made.graph.node[:]
    for n in nodes:
        if n.op_type == "GroupQueryAttention":
            epsilon = next(a for a in n.attribute if a.name == "qk_norm_epsilon")
            for i, (heads, weight) in enumerate(((HEADS, n.input[14]), (GROUPS, n.input[15]))):
                base = f"{n.name}_{i}"
                for name, dims in (("split", [0, 0, heads, HEAD]), ("join", [0, 0, heads * HEAD])):
                    made.graph.initializer.append(helper.make_tensor(f"{base}_{name}", 7, [len(dims)], dims))
                made.graph.node.extend([
                    helper.make_node("Reshape", [n.input[i], f"{base}_split"], [f"{base}_4d"]),
                    helper.make_node("SimplifiedLayerNormalization", [f"{base}_4d", weight], [f"{base}_n"],
                                     axis=-1, epsilon=epsilon.f, stash_type=1),
                    helper.make_node("Reshape", [f"{base}_n", f"{base}_join"], [f"{base}_3d"]),
                ])  # fmt: skip
                n.input[i] = f"{base}_3d"
            del n.input[14:]
            n.attribute.remove(epsilon)
        made.graph.node.append(n)
    return made


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def test_one_node_per_layer() -> None:
    result = saturate_and_extract(decode_step(), target="cuda")
    model = result.model
    assert isinstance(model, onnx.ModelProto)
    ops = [n.op_type for n in model.graph.node]
    assert ops.count("GroupQueryAttention") == LAYERS
    assert "RotaryEmbedding" not in ops
    assert "Softmax" not in ops
    assert ops.count("SkipSimplifiedLayerNormalization") == 2 * LAYERS
    assert sum(op in ("SimplifiedLayerNormalization", "RMSNormalization") for op in ops) == 1
    for n in model.graph.node:
        if n.op_type == "GroupQueryAttention":
            attributes = {a.name: helper.get_attribute_value(a) for a in n.attribute}
            assert attributes["num_heads"] == HEADS
            assert attributes["kv_num_heads"] == GROUPS
            assert attributes["do_rotary"] == 1
            assert attributes["causal"] == 0
            given = [n.input[i] for i in (3, 4, 5, 6, 7, 8, 9, 10, 14, 15)]
            assert all(given), "cache, rotation, mask and norms are inputs"
            assert {o for o in n.output[1:]} <= {o.name for o in model.graph.output}, "the presents are its outputs"


@pytest.mark.parametrize("past", [1, 6])
@pytest.mark.parametrize("batch", [1, 3])
def test_numbers(batch: int, past: int) -> None:
    original = decode_step()
    result = saturate_and_extract(original, target="cuda")
    assert isinstance(result.model, onnx.ModelProto)
    rng = np.random.default_rng(batch)
    caches = {
        i.name: rng.standard_normal((batch, GROUPS, past, HEAD)).astype(np.float16)
        for i in original.graph.input if i.name.startswith("past")
    }  # fmt: skip
    mask = np.ones((batch, past + 1), np.int64)
    mask[-1, : past // 2] = 0
    feeds = {"input_ids": rng.integers(3, 128, (batch, 1)), "attention_mask": mask, **caches}
    want, got = (session(m).run(None, feeds) for m in (original, without_norms(result.model)))
    for a, b in zip(want, got, strict=True):
        assert a.dtype == b.dtype == np.float16
        assert a.shape == b.shape
        scale = max(1.0, float(np.abs(a.astype(np.float32)).max()))
        # two layers of products over up to 128 terms, each rounded to half
        assert np.abs(a.astype(np.float32) - b.astype(np.float32)).max() <= 4 * 2.0**-10 * np.sqrt(128) / 4 * scale


def test_verification_needs_no_such_kernel() -> None:
    """Inside verification the norms stand in front of the node, in a copy: the result keeps them."""
    result = saturate_and_extract(decode_step(), target="cuda", verify=True)
    assert result.report.verified
    assert result.report.counts()["GroupQueryAttention"] == LAYERS
    wrong = onnx.ModelProto()
    assert isinstance(result.model, onnx.ModelProto)
    for field in ("qk_norm_epsilon", "weight"):
        wrong.CopyFrom(result.model)
        node = next(n for n in wrong.graph.node if n.op_type == "GroupQueryAttention")
        if field == "weight":
            node.input[14], node.input[15] = node.input[15], node.input[14]
        else:
            next(a for a in node.attribute if a.name == field).f = 0.5
        found = verify(decode_step(), wrong, provider="CUDAExecutionProvider")
        assert {m.kind for m in found.mismatches} == {"value"}, field


def test_a_missing_kernel_is_no_fault_of_a_rule() -> None:
    """The provider the result is for may have kernels that the one at hand has not."""
    ins = [helper.make_tensor_value_info("x", 1, [1, 2, 2560]), helper.make_tensor_value_info("b", 1, [2560])]
    outs = [helper.make_tensor_value_info("y", 1, [1, 2, 1280])]
    plain = [helper.make_node("Add", ["x", "b"], ["s"]), helper.make_node("Split", ["s"], ["y", "g"], axis=-1)]
    plain[1].attribute.append(helper.make_attribute("num_outputs", 2))
    fused = [helper.make_node("BiasSplitGelu", ["x", "b"], ["y"], domain="com.microsoft")]
    sets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    one, other = (
        helper.make_model(helper.make_graph(nodes, "g", ins, outs), opset_imports=sets, ir_version=10)
        for nodes in (plain, fused)
    )
    result = verify(one, other, provider="CUDAExecutionProvider")
    assert not result.ok
    assert not result.mismatches
    assert result.skipped.startswith("not compared: the result needs the CUDAExecutionProvider")
    assert {m.kind for m in verify(one, other).mismatches} == {"error"}


def test_float32_has_no_such_kernel() -> None:
    result = saturate_and_extract(EXPORT, target="cuda")
    assert "GroupQueryAttention" not in {f.op for f in result.report.fused}
    assert "Attention" in {f.op for f in result.report.fused}
