"""What is known of operators' operands for inferring shapes, generating inputs and comparing numbers; nothing here
leads to a fusion.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import onnx_ir as ir

# What an input reaches as an additive mask.
SOFTMAX = frozenset({"Softmax", "LogSoftmax", "Exp", "Attention", "MultiHeadAttention", "GroupQueryAttention"})

_GATHERS = ("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "GatherBlockQuantized")
_TABLES: Mapping[str, Mapping[int, int]] = MappingProxyType(
    {op: {1: 0} for op in _GATHERS}
    | {
        "EmbedLayerNormalization": {0: 2, 1: 4, 8: 3},
        "RotaryEmbedding": {3: 1},  # the standard op; com.microsoft's has the ids second and the caches third
    }
)

# Operands that hold weights. Exponents, bounds and the like stay: Pow(x, 2.0000002) is NaN for x < 0.
WEIGHTS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("MatMul", "Add", "Mul"), (0, 1)),
        **dict.fromkeys(("Conv", "LayerNormalization", "RMSNormalization"), (1, 2)),
        **dict.fromkeys(("Gather", "Transpose", "Cast", "Unsqueeze", "Reshape"), (0,)),
        "Gemm": (0, 1, 2),
    }
)

# Operators that norm operands themselves: operand -> its norm's weight, and the attribute with its number of heads.
NORMED: Mapping[tuple[str, str], Mapping[int, tuple[int, str]]] = MappingProxyType(
    {("com.microsoft", "GroupQueryAttention"): {0: (14, "num_heads"), 1: (15, "kv_num_heads")}}
)
INNER_NORM = "SimplifiedLayerNormalization"

# Operators with one output that has dtype and shape of the first operand.
SAME = tuple(
    (
        "Acos Acosh Asin Asinh Atan Atanh BitwiseNot Celu Cos Cosh CumSum Elu Erf Exp Gelu HardSigmoid "
        "HardSwish Hardmax InstanceNormalization LayerNormalization LeakyRelu Log LogSoftmax LpNormalization "
        "Mish PRelu RMSNormalization Reciprocal Relu ScatterElements ScatterND Selu Shrink Sigmoid Sign Sin "
        "Sinh Softmax Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu Trilu"
    ).split()
)


def title(node: ir.Node) -> str:
    """How a message calls a node: by its name, or else by what it gives."""
    named = node.name or next((o.name for o in node.outputs if o.name), "")
    return f"node {named!r} ({node.domain + '::' if node.domain else ''}{node.op_type})"


def width(dtype: ir.DataType | None) -> float:
    """Bytes of an element; a guess where there is no saying."""
    return 8.0 if dtype is None or dtype == ir.DataType.STRING else dtype.itemsize


def tables(node: ir.Node) -> Mapping[int, int]:
    """The operands that hold indices, each with the operand that holds the table they index."""
    contrib = node.op_type == "RotaryEmbedding" and node.domain == "com.microsoft"
    return {1: 2} if contrib else _TABLES.get(node.op_type, {})


def scales_trailing_axes(op: str) -> bool:
    """Whether a constant operand's axes line up with the last axes of the first operand."""
    return op.endswith("LayerNormalization") or op in ("RMSNormalization", "Add", "Sub", "Mul", "Div")
