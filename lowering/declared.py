"""Operators that a caller declares: which nodes are calls of them, and what such a call computes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnxruntime.capi import _pybind_state

from ..egraph.errors import RuleError
from ..egraph.terms import FLOAT, INT, INTS, TENSOR, Op
from .model.domains import plain

Kind = tuple[str, str]  # domain and type of an operator; the default domain is ""
#: Domains that onnxruntime itself defines, and that are no one else's to add to.
OWN = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
_ATTRIBUTES: Mapping[str, ir.AttributeType] = {
    INT: ir.AttributeType.INT, FLOAT: ir.AttributeType.FLOAT, INTS: ir.AttributeType.INTS,
}  # fmt: skip


def known_kinds() -> set[Kind]:
    """The operators that onnxruntime knows, whether it has kernels for them or not."""
    return {(plain(schema.domain), schema.name) for schema in _pybind_state.get_all_operator_schema()}


def check(declared: Iterable[Op], kernels: Collection[Kind]) -> None:
    """Raises RuleError for a term that is written as an operator of a domain of onnxruntime's own, where neither that
    nor ONNX nor the `kernels` of a target have one of that name.
    """
    forms = [(op, form) for op in declared for form in op.forms if form.domain in OWN]
    known = {(s.domain, s.name) for s in onnx.defs.get_all_schemas()} | known_kinds() if forms else set()
    for op, form in forms:
        if (form.domain, form.kind) not in known and (form.domain, form.kind) not in kernels:
            raise RuleError(
                f"the term {op.name} is written as {form.name}, which neither ONNX nor onnxruntime nor the target has; "
                "correct the name, or take a domain of your own"
            )


def by_kind(declared: Iterable[Op]) -> dict[Kind, Op]:
    """The declared operators by how files spell them."""
    return {(form.domain, form.kind): op for op in declared for form in op.forms}


def arguments(node: ir.Node, op: Op) -> list[Any] | None:
    """The operands of a call, values and plain numbers in their order; None if the node says more or less than the
    operator has.
    """
    own = {name: _ATTRIBUTES.get(sort) for name, sort in op.operands if sort != TENSOR}
    if (
        None in node.inputs or len(node.inputs) + len(own) != len(op.operands) or len(node.outputs) != 1
        or {name: a.type for name, a in node.attributes.items()} != own
    ):  # fmt: skip
        return None
    given = ((node.attributes[name].value, sort) for name, sort in op.attributes)
    return op.joined(node.inputs, (tuple(value) if sort == INTS else value for value, sort in given))


def call(op: Op, operands: list[Any]) -> np.ndarray:
    """What an operator computes from arrays and plain numbers, by its numpy meaning. Raises what that raises."""
    assert op.numpy is not None
    with np.errstate(all="ignore"):
        found = np.asarray(op.numpy(*operands))
    first = next((x for x in operands if isinstance(x, np.ndarray)), None)
    return found.astype(first.dtype) if op.dtype == "first" and first is not None else found
