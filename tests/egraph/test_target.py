"""What the built-in targets hold, checked against the installed onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi import _pybind_state

from onnx_egraph.egraph.errors import TargetError
from onnx_egraph.egraph.targets import Target, from_kernels, target
from onnx_egraph.egraph.targets.kernels import expand

MS = "com.microsoft"
NUMBERS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "float64": TensorProto.DOUBLE}
NUMBERS["bfloat16"] = TensorProto.BFLOAT16


@dataclass
class Row:
    domain: str
    op_name: str
    provider: str = "CPUExecutionProvider"
    version_range: tuple[int, int] = (1, 2**31 - 1)
    type_constraints: Mapping[str, Sequence[str]] = field(default_factory=dict)


def session(
    domain: str, op: str, dtype: str, shapes: Sequence[Sequence[int]], opset: int = 24, **attrs: object
) -> None:
    names = [f"x{i}" for i in range(len(shapes))]
    ins = [helper.make_tensor_value_info(n, NUMBERS[dtype], s) for n, s in zip(names, shapes, strict=True)]
    node = helper.make_node(op, names, ["y"], domain=domain, **attrs)
    graph = helper.make_graph([node], "g", ins, [helper.make_empty_tensor_value_info("y")])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MS, 1)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=11)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def test_the_fused_ops_of_the_cpu() -> None:
    cpu = target("cpu")
    assert (cpu.name, cpu.provider) == ("cpu", "CPUExecutionProvider")
    for domain in ("", "ai.onnx", MS):
        assert cpu.supports(domain, "RotaryEmbedding", "float16")
        assert not cpu.supports(domain, "RotaryEmbedding", "bfloat16")
    assert cpu.supports(MS, "GroupQueryAttention", "float32")
    assert not cpu.supports("", "GroupQueryAttention", "float32")
    assert cpu.supports("", "SimplifiedLayerNormalization", "bfloat16")
    assert not cpu.supports("", "RMSNormalization", "bfloat16")
    assert not cpu.supports(MS, "SkipLayerNormalization", "float64")
    for missing in ("SwiGLU", "BiasSoftmax", "PackedMultiHeadAttention", "PagedAttention", "RMSNormRotary"):
        assert not any(cpu.supports(MS, missing, dtype) for dtype in NUMBERS)


def test_cuda_has_no_float32_group_query_attention() -> None:
    cuda = target("cuda")
    assert cuda.provider == "CUDAExecutionProvider"
    assert cuda.supports(MS, "GroupQueryAttention", "bfloat16")
    assert not cuda.supports(MS, "GroupQueryAttention", "float32")
    assert cuda.supports("", "RotaryEmbedding", "bfloat16")
    assert cuda.supports("", "Add", "float32")


def test_an_unknown_target_lists_the_known_ones() -> None:
    with pytest.raises(TargetError, match=r"no target 'tpu'; known targets: cpu, cuda"):
        target("tpu")


def test_the_terms_of_a_target() -> None:
    legal = target("cpu").legal
    for term in (
        "MsRope",
        "MsRope3",
        "OnnxRope",
        "RMSNorm",
        "LayerNorm",
        "Gelu",
        "FastGelu",
        "SliceC",
        "Cos",
    ):
        assert {(term, TensorProto.FLOAT), (term, TensorProto.FLOAT16)} <= legal
    assert ("MsRope", TensorProto.BFLOAT16) not in legal
    assert ("RMSNorm", TensorProto.BFLOAT16) not in legal  # SimplifiedLayerNormalization only
    assert ("LayerNorm", TensorProto.BFLOAT16) in legal
    # with norms of q and k inside, as the term has them
    assert "MsGQA" not in {term for term, _ in legal}
    assert ("MsGQA", TensorProto.FLOAT16) in target("cuda").legal
    assert ("MsGQA", TensorProto.FLOAT) not in target("cuda").legal
    assert ("Rope", TensorProto.FLOAT) not in legal  # a marker is in no file
    one = Target("one", "CPUExecutionProvider", 20, frozenset({(MS, "RotaryEmbedding", "float32")}))
    assert one.legal == {("MsRope", TensorProto.FLOAT), ("MsRope3", TensorProto.FLOAT)}


def test_the_cpu_table_agrees_with_the_installed_kernels() -> None:
    installed = from_kernels(_pybind_state.get_all_opkernel_def())
    table = target("cpu")
    assert table.ops <= installed.ops
    kinds = {entry[:2] for entry in table.ops}
    assert {entry for entry in installed.ops if entry[:2] in kinds} == table.ops
    assert installed.opset_max == table.opset_max


def test_kernels_of_another_provider_and_old_ones_do_not_count() -> None:
    rows = [
        Row("ai.onnx", "New", type_constraints={"T": ["tensor(float)", "tensor(string)"]}),
        Row("", "Old", version_range=(7, 12), type_constraints={"T": ["tensor(float)"]}),
        Row("", "Elsewhere", provider="CUDAExecutionProvider", type_constraints={"T1": ["tensor(double)"]}),
        Row("", "Untyped"),
    ]
    ops = from_kernels(rows).ops
    assert {entry for entry in ops if entry[1] in ("New", "Old", "Elsewhere", "Untyped")} == {
        ("", "New", "float32"),
        ("", "New", "float16"),
    }
    cuda = from_kernels(rows, "mine", "CUDAExecutionProvider", 23)
    assert cuda == Target("mine", "CUDAExecutionProvider", 23, frozenset({("", "Elsewhere", "float64")}))
    with pytest.raises(TargetError, match="RocmExecutionProvider"):
        from_kernels(rows, provider="RocmExecutionProvider")


UNARY = [("", op) for op in ("Erf", "Cos", "Softmax", "Sigmoid", "Relu", "Trilu", "Gelu", "Swish", "Mish", "HardSwish")]
UNARY += [(MS, op) for op in ("Gelu", "FastGelu", "QuickGelu")]
CASES = [(domain, op, [(2, 4, 8)], {}) for domain, op in UNARY]
CASES += [
    ("", "MatMul", [(2, 4, 8), (8, 4)], {}),
    ("", "LayerNormalization", [(2, 4, 8), (8,)], {}),
    ("", "RMSNormalization", [(2, 4, 8), (8,)], {}),
    ("", "SimplifiedLayerNormalization", [(2, 4, 8), (8,)], {"stash_type": 1}),
    ("", "RotaryEmbedding", [(1, 2, 4, 8), (1, 4, 4), (1, 4, 4)], {}),
    ("", "Attention", [(1, 2, 4, 8)] * 3, {}),
    (MS, "MultiHeadAttention", [(1, 4, 16)] * 3, {"num_heads": 2}),
    (MS, "SkipLayerNormalization", [(1, 4, 8), (1, 4, 8), (8,)], {}),
    (MS, "SkipSimplifiedLayerNormalization", [(1, 4, 8), (1, 4, 8), (8,)], {}),
    (MS, "FusedMatMul", [(4, 8), (8, 4)], {}),
    (MS, "BiasGelu", [(4, 8), (8,)], {}),
]  # fmt: skip


@pytest.mark.parametrize(("domain", "op", "shapes", "attrs"), CASES, ids=[f"{d}:{o}" for d, o, _, _ in CASES])
def test_supported_means_that_a_session_loads(
    domain: str, op: str, shapes: list[tuple[int, ...]], attrs: dict[str, object]
) -> None:
    cpu = target("cpu")
    for dtype in NUMBERS:
        if cpu.supports(domain, op, dtype):
            session(domain, op, dtype, shapes, **attrs)
        else:
            with pytest.raises(Exception, match=r"NOT_IMPLEMENTED|INVALID_GRAPH|Could not find|invalid"):
                session(domain, op, dtype, shapes, **attrs)


def test_the_highest_opset_loads_and_the_next_does_not() -> None:
    highest = target("cpu").opset_max
    session("", "Add", "float32", [(2,), (2,)], opset=highest)
    with pytest.raises(Exception, match=str(highest)):
        session("", "Add", "float32", [(2,), (2,)], opset=highest + 1)


def test_data_only() -> None:
    """Two calls give equal, hashable targets with numpy's names."""
    cpu = target("cpu")
    assert cpu == target("cpu")
    assert hash(cpu) == hash(target("cpu"))
    named = {dtype for _, _, dtype in cpu.ops} - {"bfloat16"}
    assert {np.dtype(dtype).name for dtype in named} == named


@pytest.mark.parametrize(
    ("table", "says"),
    [({"": "f32 Add"}, "says no element types"), ({"": "f33: Add"}, "kernels for 'f33': element types are any")],
)
def test_a_table_of_kernels_that_cannot_be_read(table: dict[str, str], says: str) -> None:
    with pytest.raises(TargetError, match=says):
        expand(table)


def test_an_element_type_that_is_none() -> None:
    with pytest.raises(TargetError, match="target mine: no element type is named 'float'"):
        Target("mine", "CPUExecutionProvider", 24, frozenset({("", "Add", "float")}))


def test_what_a_runtime_has_no_kernel_for_runs_where_it_falls_back_to() -> None:
    cuda, cpu = target("cuda"), target("cpu")
    assert cuda.supports("", "Add", "float32")
    assert cuda.supports("", "RotaryEmbedding", "bfloat16")
    assert not cuda.supports("", "RotaryEmbedding", "float64")
    assert cpu.supports("", "Mish", "float16")
    assert not cuda.supports("", "Mish", "float16")
