"""What is known of operators' operands for inferring shapes, generating inputs and comparing numbers: of fused ones
what their terms declare, of others what stands here. Nothing here leads to a fusion.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from ...egraph.terms import OPS, names

_FORMS = tuple((op, form) for op in OPS.values() for form in op.forms)

# What an input reaches as an additive mask.
SOFTMAX = frozenset(form.kind for op, form in _FORMS if op.masked or op.attends)

_GATHERS = "Gather GatherElements GatherND ScatterElements ScatterND com.microsoft::GatherBlockQuantized".split()
_TABLES: Mapping[str, Mapping[int, int]] = (
    {op: {1: 0} for op in _GATHERS}
    | {"com.microsoft::EmbedLayerNormalization": {0: 2, 1: 4, 8: 3}}
    | {form.name: form.indexes for _, form in _FORMS if form.indexes}
)

# Operands that hold weights. Exponents, bounds and the like stay: Pow(x, 2.0000002) is NaN for x < 0.
WEIGHTS: Mapping[str, tuple[int, ...]] = {
    "Conv": (1, 2),
    "Gemm": (0, 1, 2),
    **{form.kind: tuple(map(form.inputs.index, op.weights)) for op, form in _FORMS if op.weights},
}

# Operators that line up the axes of a constant operand with the last ones of the first.
_BROADCASTS = frozenset(f.kind for op, f in _FORMS if op.shape == "broadcast" or (op.role == "fused" and op.weights))
# Operands whose elements an operator passes on as they are; of Concat, all.
MOVED: Mapping[str, tuple[int, ...]] = dict.fromkeys(("Cast", "Identity", "Flatten", "Tile"), (0,)) | {
    form.kind: tuple(map(form.inputs.index, op.moves)) for op, form in _FORMS if op.moves
}
# Operators that ask something of their operands.
ASKING = names("operator") & {op.name for op in OPS.values() if op.boolean or op.dtype == "bool"} | {"Xor"}

# Operators with a cache: its operands -> those that are appended to it, and the attribute with their number of heads.
CACHED: Mapping[str, Mapping[int, tuple[int, str]]] = {
    form.kind: {form.inputs.index(f"past_{long}"): (form.inputs.index(short), "kv_num_heads")
                for long, short in (("key", "k"), ("value", "v"))}
    for _, form in _FORMS if "past_key" in form.inputs
}  # fmt: skip

# Operators that norm operands themselves: operand -> its norm's weight, and the attribute with its number of heads.
NORMED: Mapping[str, Mapping[int, tuple[int, str]]] = {
    form.name: {
        form.inputs.index(name): (form.inputs.index(weight), heads) for name, (weight, heads) in op.norms.items()
    }
    for op, form in _FORMS
    if op.norms
}
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
    return indexed(full_name(node))


def indexed(name: str) -> Mapping[int, int]:
    """The same of an operator by its full name."""
    return _TABLES.get(name, {})


def scales_trailing_axes(op: str) -> bool:
    """Whether a constant operand's axes line up with the last axes of the first operand."""
    return op.removeprefix("Skip") in _BROADCASTS
