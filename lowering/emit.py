"""How a term is printed as ONNX: as its declaration says, but for the few that no form describes.

A printer of such a term gets the `Printer`, the operands as values (lists for lists) and the attributes in operand
order, and returns the value of the one node it made: what takes several nodes is several terms, so that each has its
price.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from ..egraph.terms import CLASSES, INT, INTS, LIST, NODE, Op
from ..egraph.terms.dtypes import NAMES

#: The opset whose Shape gives some of the sizes; before, it gives all.
PART_OF_SHAPE = 15


class Printer(Protocol):
    """What printing a term may ask of the writer."""

    opset: int

    def node(
        self, op: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any] | None = None, *,
        domain: str = "", outputs: int = 1,
    ) -> Any: ...  # fmt: skip

    def ints(self, values: Sequence[int]) -> ir.Value: ...

    def scalar(self, value: float | int, dtype: int) -> ir.Value: ...

    def rank(self, value: ir.Value) -> int: ...


def emit(op: Op, printer: Printer, ins: Sequence[Any], attrs: Sequence[Any]) -> Any:
    """The value of a term, or the values of a node: `ins` are its operands that are classes, `attrs` the others."""
    special = _SPECIAL.get(op.name)
    return _written(op, printer, ins, attrs) if special is None else special(printer, list(ins), tuple(attrs))


def _written(op: Op, printer: Printer, ins: Sequence[Any], attrs: Sequence[Any]) -> Any:
    """The node of the term's form in the printer's operator set."""
    form, sorts = op.form(printer.opset), dict(op.operands)
    operands = iter(ins), iter(attrs)
    values = {name: next(operands[sort not in CLASSES]) for name, sort in op.operands}
    inputs: list[ir.Value | None] = []
    for name in form.inputs:
        value: Any = values.get(name)
        sort = sorts.get(name)
        if sort == LIST:
            inputs += value or ()
        elif sort in (INT, INTS):
            left_out = name in form.defaults and value == form.defaults[name]
            inputs.append(None if left_out else printer.ints(value if sort == INTS else [value]))
        else:
            inputs.append(value)
    while inputs and inputs[-1] is None:
        inputs.pop()
    attributes: dict[str, Any] = {}
    for a in form.attributes:
        value = values[a.operand] if a.operand else a.constant
        if a.default is None or value != a.default:
            attributes[a.name] = list(value) if isinstance(value, tuple) else [value] if a.listed else value
    count = 1 if op.out != NODE else int(form.outputs) if form.outputs.isdecimal() else len(values[form.outputs])
    return printer.node(form.kind, inputs, attributes, domain=form.domain, outputs=count)


def _shape(p: Printer, ins: list[Any], attrs: tuple[Any, ...]) -> Any:
    first, last = attrs
    if last == 0 and first == -p.rank(ins[0]):
        return p.node("Shape", ins)
    return p.node("Shape", ins, {"start": first, **({"end": last} if last else {})})


_SPECIAL: Mapping[str, Callable[[Printer, list[Any], tuple[Any, ...]], Any]] = MappingProxyType({
    "Shape": _shape,
    "FConst": lambda p, ins, attrs: p.scalar(attrs[0], attrs[1]),
    "Ints": lambda p, ins, attrs: p.ints(attrs[0]),
    "Int0": lambda p, ins, attrs: p.scalar(attrs[0], 7),
})  # fmt: skip


def constant(values: Any, dtype: int) -> ir.TensorProtocol:
    """A small tensor of the given element type."""
    return ir.tensor(np.asarray(values, NAMES[dtype]), dtype=ir.DataType(dtype))
