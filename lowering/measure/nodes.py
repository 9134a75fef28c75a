"""A work as the node that a file has for it, so that a term and a node that no rule looks into are told to be one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import onnx

from ...egraph.targets import ABSENT, TensorType, Work
from ...egraph.terms import CLASSES, LIST, OPS, Op

#: The newest name of an operator that has several.
_NEWEST: Mapping[str, str] = MappingProxyType({
    form.name: op.forms[-1].name for op in OPS.values() for form in op.forms[:-1]
})  # fmt: skip


def term(work: Work) -> Op | None:
    """The term that a work is of; None for a node of that name which no rule looks into."""
    op = OPS.get(work.op)
    if op is None or not op.forms or op.role not in ("operator", "fused"):
        return None
    sorts = [sort for sort in op.sorts if sort in CLASSES]
    fits = len(work.ins) >= len(sorts) - 1 if LIST in sorts else len(work.ins) == len(sorts)
    same = {name for name, _ in op.attributes} | op.constants.keys() == work.attrs.keys()
    return op if fits and same else None


def as_node(work: Work) -> Work:
    """The same with operands and attributes as the newest form of its term has them.

    Numbers that the form has as operands stay attributes.
    """
    op = term(work)
    if op is None:
        name = _NEWEST.get(work.op, work.op)
        return Work(name, _stripped(work.ins), work.outs, _told(name, work.attrs))
    form, ins = op.forms[-1], work.ins
    if LIST not in op.sorts:
        tensors = dict(zip((name for name, sort in op.operands if sort in CLASSES), work.ins, strict=True))
        ins = tuple(tensors.get(name, ABSENT) for name in form.inputs if name in tensors or not name)
    attrs: dict[str, Any] = {name: work.attrs[name] for name, _ in op.attributes if name in form.inputs}
    for a in form.attributes:
        value = work.attrs[a.operand] if a.operand else a.constant
        if a.default is None or value != a.default:
            attrs[a.name] = [value] if a.listed else value
    return Work(form.name, _stripped(ins), work.outs, _told(form.name, attrs))


def _told(name: str, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that are not what goes without saying."""
    defaults, told = _defaults(name), {a: _rounded(value) for a, value in attrs.items()}
    return {a: value for a, value in told.items() if a not in defaults or value != defaults[a]}


def _rounded(value: object) -> object:
    """A number that a file has in float32, as a term has it."""
    return float(f"{value:.6g}") if isinstance(value, float) else value


@cache
def _defaults(name: str) -> Mapping[str, object]:
    """Values of attributes of an operator of ONNX that a node need not name."""
    if "::" in name or not onnx.defs.has(name):
        return MappingProxyType({})
    attributes = onnx.defs.get_schema(name).attributes
    given = {a: onnx.helper.get_attribute_value(s.default_value) for a, s in attributes.items() if s.default_value.name}
    return MappingProxyType({a: v.decode() if isinstance(v, bytes) else _rounded(v) for a, v in given.items()})


def _stripped(ins: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
    """Without what is left out at the end."""
    count = len(ins)
    while count and not ins[count - 1].dtype:
        count -= 1
    return ins[:count]
