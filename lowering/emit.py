"""How a term is printed as ONNX: as its declaration says, but for the few that no form describes.

A term is one node at most: what takes several nodes is several terms, so that each has its price.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from ..egraph.terms import INT, INTS, LIST, NODE, NUMBERS, Op
from ..egraph.terms.dtypes import INT64, NAMES

#: The opset whose Shape gives some of the sizes; before, it gives all.
PART_OF_SHAPE = 15


class Printer(Protocol):
    """What printing a term may ask of the writer."""

    opset: int

    def node(
        self, op: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any] | None = None, *,
        domain: str = "", outputs: int = 1, sparing: bool = False,
    ) -> Any: ...  # fmt: skip
    def ints(self, values: Sequence[int]) -> ir.Value: ...
    def scalar(self, value: float | int, dtype: int) -> ir.Value: ...
    def rank(self, value: ir.Value) -> int: ...


def emit(op: Op, printer: Printer, ins: Sequence[Any], attrs: Sequence[Any]) -> Any:
    """The value of a term, or the values of a node: `ins` are its operands that are classes, `attrs` the others."""
    if op.name in NUMBERS:
        value, dtype = (*attrs, INT64)[:2]
        return printer.ints(value) if INTS in op.sorts else printer.scalar(value, dtype)
    return _shape(printer, *ins, *attrs) if op.name == "Shape" else _written(op, printer, ins, attrs)


def _written(op: Op, printer: Printer, ins: Sequence[Any], attrs: Sequence[Any]) -> Any:
    """The node of the term's form in the printer's operator set."""
    form, sorts = op.form(printer.opset), dict(op.operands)
    values = dict(zip(sorts, op.joined(ins, attrs), strict=True))
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
    return printer.node(form.kind, inputs, attributes, domain=form.domain, outputs=count, sparing=form.sparing)


def _shape(p: Printer, x: ir.Value, first: int, last: int) -> Any:
    if last == 0 and first == -p.rank(x):
        return p.node("Shape", [x])
    return p.node("Shape", [x], {"start": first, **({"end": last} if last else {})})


def constant(values: Any, dtype: int) -> ir.TensorProtocol:
    """A small tensor of the given element type."""
    return ir.tensor(np.asarray(values, NAMES[dtype]), dtype=ir.DataType(dtype))
