"""What is known of operators' operands for inferring shapes, generating inputs and comparing numbers: of fused ones
what their terms declare, of others what stands here. Nothing here leads to a fusion.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import onnx_ir as ir

from ...egraph.terms import OPS

_FORMS = tuple((op, form) for op in OPS.values() for form in op.forms)

# What an input reaches as an additive mask.
SOFTMAX = frozenset({"Softmax", "LogSoftmax", "Exp"} | {form.kind for op, form in _FORMS if op.attends})

_GATHERS = (
    "Gather",
    "GatherElements",
    "GatherND",
    "ScatterElements",
    "ScatterND",
    "com.microsoft::GatherBlockQuantized",
)
_TABLES: Mapping[str, Mapping[int, int]] = MappingProxyType(
    {op: {1: 0} for op in _GATHERS}
    | {"com.microsoft::EmbedLayerNormalization": {0: 2, 1: 4, 8: 3}}
    | {form.name: form.indexes for _, form in _FORMS if form.indexes}
)

_NORMS = {form.kind: tuple(map(form.inputs.index, op.weights)) for op, form in _FORMS if op.weights}
# Operands that hold weights. Exponents, bounds and the like stay: Pow(x, 2.0000002) is NaN for x < 0.
WEIGHTS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("MatMul", "Add", "Mul"), (0, 1)),
        "Conv": (1, 2),
        **dict.fromkeys(("Gather", "Transpose", "Cast", "Unsqueeze", "Reshape"), (0,)),
        "Gemm": (0, 1, 2),
        **_NORMS,
    }
)

# Operators that norm operands themselves: operand -> its norm's weight, and the attribute with its number of heads.
NORMED: Mapping[str, Mapping[int, tuple[int, str]]] = MappingProxyType(
    {
        form.name: {
            form.inputs.index(name): (form.inputs.index(weight), heads) for name, (weight, heads) in op.norms.items()
        }
        for op, form in _FORMS
        if op.norms
    }
)
INNER_NORM = OPS["RMSNorm"].forms[0].kind

# Operators with one output that has dtype and shape of the first operand.
SAME = (
    *(form.kind for op, form in _FORMS if (op.role, op.shape, op.dtype, form.domain) == ("fused", "same", "first", "")),
    *(
        "Acos Acosh Asin Asinh Atan Atanh BitwiseNot Celu Cos Cosh CumSum Elu Erf Exp HardSigmoid "
        "HardSwish Hardmax InstanceNormalization LeakyRelu Log LogSoftmax LpNormalization "
        "Mish PRelu Reciprocal Relu ScatterElements ScatterND Selu Shrink Sigmoid Sign Sin "
        "Sinh Softmax Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu Trilu"
    ).split(),
)


def full_name(node: ir.Node) -> str:
    """`domain::Type`, or the type alone in the default domain, as `Form.name`."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def title(node: ir.Node) -> str:
    """How a message calls a node: by its name, or else by what it gives."""
    named = node.name or next((o.name for o in node.outputs if o.name), "")
    return f"node {named!r} ({full_name(node)})"


def width(dtype: ir.DataType | None) -> float:
    """Bytes of an element; a guess where there is no saying."""
    return 8.0 if dtype is None or dtype == ir.DataType.STRING else dtype.itemsize


def tables(node: ir.Node) -> Mapping[int, int]:
    """The operands that hold indices, each with the operand that holds the table they index."""
    return _TABLES.get(full_name(node), {})


def scales_trailing_axes(op: str) -> bool:
    """Whether a constant operand's axes line up with the last axes of the first operand."""
    return op in ("Add", "Sub", "Mul", "Div") or op.removeprefix("Skip") in _NORMS
