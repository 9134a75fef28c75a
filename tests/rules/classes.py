"""The numeric meaning of a saturated e-graph: the value of every e-node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnx_egraph.egraph.engine.frozen import Frozen, Row
from onnx_egraph.egraph.terms import LEAVES, OPS, Op
from onnx_egraph.egraph.terms.meaning import apply, widened


@dataclass(frozen=True, slots=True)
class Valued:
    """An e-node and the value it computes."""

    row: Row
    value: Any


def evaluate_classes(
    frozen: Frozen, leaves: Mapping[int, np.ndarray], *, ops: Mapping[str, Op] = OPS, wide: bool = False,
    known: Mapping[int, Any] | None = None,
) -> dict[int, list[Valued]]:  # fmt: skip
    """The value of every e-node that can be computed, by class: rows of one class must agree.

    `leaves` are the arrays of Input and Const by payload; `known` gives values of classes that have no
    other source (opaque operators). An e-node counts once all its operand classes have a value, the first
    one found for each. Raises IllFormed for an e-node that does not take its operands: such a term should
    not be in the class.
    """
    first: dict[int, Any] = {c: (widened(v) if wide else v) for c, v in (known or {}).items()}
    found: dict[int, list[Valued]] = {}
    waiting = [r for r in frozen.rows if r.op in LEAVES or _computable(r, ops)]
    while waiting:
        later = []
        for r in waiting:
            if any(c not in first for c in r.children):
                later.append(r)
                continue
            value = _row(r, first, leaves, ops, wide)
            first.setdefault(r.cls, value)
            found.setdefault(r.cls, []).append(Valued(r, value))
        if len(later) == len(waiting):
            return found
        waiting = later
    return found


def _computable(r: Row, ops: Mapping[str, Op]) -> bool:
    op = ops[r.op]
    return op.numpy is not None and len(op.sorts) == len(r.children) + len(r.attrs)


def _row(r: Row, first: Mapping[int, Any], leaves: Mapping[int, np.ndarray], ops: Mapping[str, Op], wide: bool) -> Any:
    if r.op in LEAVES:
        leaf = leaves[r.attrs[0]]
        return widened(leaf) if wide else leaf
    op = ops[r.op]
    return apply(op, op.joined((first[c] for c in r.children), r.attrs), wide=wide)
