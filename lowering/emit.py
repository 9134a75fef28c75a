"""How each term is printed as ONNX: the writing table, and the only place that names fused operators.

An emitter gets the `Printer`, the operands as values (lists for Concat) and the attributes in operand order, and
returns the value(s) of the one node it made: what takes several nodes is several terms, so that each has its price.
Old opsets are spelled here: axes as attributes before 13 and 18.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from ..egraph.dtypes import NAMES

MICROSOFT = "com.microsoft"
#: Terms that need a newer opset than any model they may be chosen for, and which.
NEEDS_OPSET: Mapping[str, int] = MappingProxyType({"OnnxRope": 23, "OnnxAttention": 23, "OnnxAttention3": 23})
#: The opset whose Shape gives some of the sizes; before, it gives all.
PART_OF_SHAPE = 15
#: Attributes that a term need not name, and that its price depends on.
ALWAYS: Mapping[str, Mapping[str, int]] = MappingProxyType({"MsGQA": {"do_rotary": 1}, "MsGQARope": {"do_rotary": 1}})


class Printer(Protocol):
    """What an emitter may ask of the writer."""

    opset: int

    def node(
        self, op: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any] | None = None, *,
        domain: str = "", outputs: int = 1,
    ) -> Any: ...  # fmt: skip

    def ints(self, values: Sequence[int]) -> ir.Value: ...

    def scalar(self, value: float | int, dtype: int) -> ir.Value: ...

    def rank(self, value: ir.Value) -> int: ...


Emitter = Callable[[Printer, list[Any], tuple[Any, ...]], Any]


def _plain(op: str, *names: str, domain: str = "") -> Emitter:
    """A node of type `op` on the tensor operands, with the attributes under the given names."""

    def emit(p: Printer, ins: list[Any], attrs: tuple[Any, ...]) -> Any:
        return p.node(op, ins, dict(zip(names, attrs, strict=True)), domain=domain)

    return emit


def _listed(op: str, *names: str) -> Emitter:
    def emit(p: Printer, ins: list[Any], attrs: tuple[Any, ...]) -> Any:
        return p.node(op, ins[0], dict(zip(names, attrs, strict=True)))

    return emit


def _axes_since(op: str, since: int, keep: bool = False) -> Emitter:
    """Axes are an input from opset `since`, an attribute before."""

    def emit(p: Printer, ins: list[Any], attrs: tuple[Any, ...]) -> Any:
        axes = attrs[0] if isinstance(attrs[0], tuple) else (attrs[0],)
        more = {"keepdims": attrs[1]} if keep else {}
        if p.opset >= since:
            return p.node(op, [*ins, p.ints(axes)], more)
        return p.node(op, ins, {"axes": list(axes), **more})

    return emit


def _transpose(p: Printer, ins: list[Any], attrs: tuple[Any, ...]) -> Any:
    return p.node("Transpose", ins, {"perm": list(attrs[0])})


def _slice(p: Printer, ins: list[Any], attrs: tuple[Any, ...]) -> Any:
    axis, step = attrs
    return p.node("Slice", [*ins, p.ints([axis]), *([] if step == 1 else [p.ints([step])])])


def _slicec(p: Printer, ins: list[Any], attrs: tuple[Any, ...]) -> Any:
    axis, start, end, step = attrs
    bounds = [p.ints([start]), p.ints([end]), p.ints([axis])]
    return p.node("Slice", [ins[0], *bounds, *([] if step == 1 else [p.ints([step])])])


def _split(p: Printer, ins: list[Any], attrs: tuple[Any, ...]) -> Any:
    axis, sizes = attrs
    if p.opset >= 13:
        return p.node("Split", [ins[0], p.ints(sizes)], {"axis": axis}, outputs=len(sizes))
    return p.node("Split", ins, {"axis": axis, "split": list(sizes)}, outputs=len(sizes))


def _shape(p: Printer, ins: list[Any], attrs: tuple[Any, ...]) -> Any:
    first, last = attrs
    if last == 0 and first == -p.rank(ins[0]):
        return p.node("Shape", ins)
    return p.node("Shape", ins, {"start": first, **({"end": last} if last else {})})


def _norm(p: Printer, ins: list[Any], attrs: tuple[Any, ...]) -> Any:
    if p.opset >= 23:
        return p.node("RMSNormalization", ins, {"axis": -1, "epsilon": attrs[0], "stash_type": 1})
    return p.node("SimplifiedLayerNormalization", ins, {"axis": -1, "epsilon": attrs[0], "stash_type": 1})


def _layer_norm(p: Printer, ins: list[Any], attrs: tuple[Any, ...]) -> Any:
    return p.node("LayerNormalization", ins, {"axis": -1, "epsilon": attrs[0]})


def _rotary(domain: str) -> Emitter:
    def emit(p: Printer, ins: list[Any], attrs: tuple[Any, ...]) -> Any:
        pairs, width, heads = attrs
        more = {"interleaved": pairs} if pairs else {}
        more |= {"rotary_embedding_dim": width} if width else {}
        more |= {"num_heads": heads} if heads else {}
        if domain:
            return p.node("RotaryEmbedding", [ins[0], ins[1], ins[2], ins[3]], more, domain=domain)
        return p.node("RotaryEmbedding", ins, more)

    return emit


def _attention(p: Printer, ins: list[Any], attrs: tuple[Any, ...]) -> Any:
    *heads, scale, cap = attrs
    operands = ins if ins[3] is not None else ins[:3]
    more = {"scale": scale, **({"softcap": cap} if cap else {})}
    return p.node("Attention", operands, more | dict(zip(("q_num_heads", "kv_num_heads"), heads, strict=False)))


def _mha(p: Printer, ins: list[Any], attrs: tuple[Any, ...]) -> Any:
    heads, scale = attrs
    q, k, v, mask = ins
    operands = [q, k, v] if mask is None else [q, k, v, None, None, mask]
    return p.node("MultiHeadAttention", operands, {"num_heads": heads, "scale": scale}, domain=MICROSOFT)


def _gqa(p: Printer, ins: list[Any], attrs: tuple[Any, ...]) -> Any:
    heads, groups, scale, cap, pairs, *eps = attrs
    operands = [*ins[:11], *([None, None, None, *ins[11:]] if eps else [])]
    more = {"num_heads": heads, "kv_num_heads": groups, "scale": scale, "causal": 0, **ALWAYS["MsGQA"]}
    more |= {"qk_norm_epsilon": eps[0]} if eps else {}
    more |= {"rotary_interleaved": 1} if pairs else {}
    more |= {"softcap": cap} if cap else {}
    return p.node("GroupQueryAttention", operands, more, domain=MICROSOFT, outputs=3)


def _gelu(p: Printer, ins: list[Any], attrs: tuple[Any, ...]) -> Any:
    return p.node("Gelu", ins, domain="" if p.opset >= 20 else MICROSOFT)


def _fast_gelu(p: Printer, ins: list[Any], attrs: tuple[Any, ...]) -> Any:
    return p.node("FastGelu", ins, domain=MICROSOFT)


def _quick_gelu(p: Printer, ins: list[Any], attrs: tuple[Any, ...]) -> Any:
    return p.node("QuickGelu", ins, {"alpha": attrs[0]}, domain=MICROSOFT)


def _table() -> Mapping[str, Emitter]:
    same = (
        "Neg Sqrt Reciprocal Cos Sin Tanh Exp Log Abs Erf Sigmoid Not IsNaN Add Mul Sub Div Pow And Or Equal Less "
        "LessOrEqual Greater GreaterOrEqual Max Where MatMul Reshape Expand Range"
    ).split()  # fmt: skip
    table: dict[str, Emitter] = {name: _plain(name) for name in same}
    table.update({
        "Cast": _plain("Cast", "to"), "Softmax": _plain("Softmax", "axis"), "Gather": _plain("Gather", "axis"),
        "Concat": _listed("Concat", "axis"), "Split": _split,
        "Transpose": _transpose, "Slice": _slice, "SliceC": _slicec,
        "Unsqueeze": _axes_since("Unsqueeze", 13), "Squeeze": _axes_since("Squeeze", 13),
        "ReduceMean": _axes_since("ReduceMean", 18, keep=True), "ReduceSum": _axes_since("ReduceSum", 13, keep=True),
        "ReduceMax": _axes_since("ReduceMax", 18, keep=True),
        "Shape": _shape,
        "FConst": lambda p, ins, attrs: p.scalar(attrs[0], attrs[1]),
        "Ints": lambda p, ins, attrs: p.ints(attrs[0]),
        "Int0": lambda p, ins, attrs: p.scalar(attrs[0], 7),
        "RMSNorm": _norm, "LayerNorm": _layer_norm, "Gelu": _gelu, "FastGelu": _fast_gelu,
        "QuickGelu": _quick_gelu,
        "OnnxAttention": _attention, "OnnxAttention3": _attention, "MsMHA": _mha, "MsGQA": _gqa, "MsGQARope": _gqa,
        "MsRope": _rotary(MICROSOFT), "MsRope3": _rotary(MICROSOFT), "OnnxRope": _rotary(""),
    })  # fmt: skip
    return MappingProxyType(table)


#: term -> emitter. Leaves (Input, Const, Absent), lists and verbatim nodes are printed by the writer itself.
EMITTERS: Mapping[str, Emitter] = _table()

#: Operators of a file that are printed from one term of another name.
PRINTED: Mapping[str, str] = MappingProxyType({
    "Slice": "SliceC", "RMSNormalization": "RMSNorm", "SimplifiedLayerNormalization": "RMSNorm",
    "LayerNormalization": "LayerNorm",
})  # fmt: skip

#: Fused operators by the name they get in a file, for reports.
FUSED: Mapping[str, str] = MappingProxyType({
    "RMSNorm": "RMSNormalization", "LayerNorm": "LayerNormalization", "Gelu": "Gelu", "FastGelu": "FastGelu",
    "QuickGelu": "QuickGelu",
    "OnnxAttention": "Attention", "OnnxAttention3": "Attention",
    "MsMHA": "MultiHeadAttention", "MsGQA": "GroupQueryAttention", "MsGQARope": "GroupQueryAttention",
    "MsRope": "RotaryEmbedding", "MsRope3": "RotaryEmbedding", "OnnxRope": "RotaryEmbedding",
})  # fmt: skip


def custom(op: str, names: Sequence[str]) -> Emitter:
    """The emitter of a term declared by a caller: a node `domain::OpType`, the non-tensor operands as attributes."""
    domain, _, kind = op.rpartition("::")
    return _plain(kind, *names, domain=domain)


def constant(values: Any, dtype: int) -> ir.TensorProtocol:
    """A small tensor of the given element type."""
    return ir.tensor(np.asarray(values, NAMES[dtype]), dtype=ir.DataType(dtype))
