"""What a graph computes from small constants alone: it is written as an initializer, and so costs nothing.

Only operators are computed here whose result the standards of integers and of IEEE 754 fix to the bit, so that the
constant is what the runtime would have computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..egraph.engine.frozen import Frozen, Row, settled
from ..egraph.terms import CONSTANTS, TENSOR, IllFormed, Op
from ..egraph.terms.dtypes import CODES, INT64, NAMES
from ..egraph.terms.meaning import apply
from .model.tensors import SMALL, is_small
from .reader import Payloads

_KINDS = frozenset("biuf")


class Folding:
    """`values` has the array of each class that small constants give; `rows` the e-node that it was computed by."""

    def __init__(self, frozen: Frozen, payloads: Payloads, ops: Mapping[str, Op]) -> None:
        self.frozen, self.payloads, self.ops = frozen, payloads, ops
        self.values: dict[int, Any] = {}
        self.rows = settled((r for r in frozen.rows if r.op == "Const" or ops[r.op].exact), self._folds)
        self._known()

    def _folds(self, r: Row) -> bool:
        value = self._stored(r.attrs[0]) if r.op == "Const" else self._computed(r)
        if value is not None:
            self.values[r.cls] = value
        return value is not None

    def constants(self) -> dict[int, np.ndarray]:
        """The classes that are no constant yet and could be, and their elements."""
        stored = {r.cls for r in self.frozen.rows if r.op in CONSTANTS}
        return {c: v for c, v in self.values.items() if isinstance(v, np.ndarray) and c not in stored}

    def _stored(self, payload: int) -> np.ndarray | None:
        tensor = self.payloads.values[payload].const_value
        return _fitting(np.asarray(tensor.numpy())) if tensor is not None and is_small(tensor) else None

    def _computed(self, r: Row) -> Any:
        op = self.ops[r.op]
        args = op.joined((self.values[c] for c in r.children), r.attrs)
        if not _sound(op, args):
            return None
        try:
            value = apply(op, args)
        except IllFormed:
            return None
        return _fitting(np.asarray(value)) if op.out == TENSOR else value

    def _known(self) -> None:
        """Integer vectors whose elements the facts tell."""
        for c, elements in self.frozen.elements.items():
            shape = self.frozen.shape(c)
            if c in self.values or self.frozen.dtype.get(c) != INT64 or shape is None or len(shape) > 1:
                continue
            count = shape[0] if shape else 1
            if not isinstance(count, int) or not 0 < 8 * count <= SMALL:
                continue
            numbers = [e for i in range(count) if isinstance(e := elements.get(i), int)]
            if len(numbers) == count:
                self.values[c] = np.asarray(numbers, np.int64).reshape(shape)


def _sound(op: Op, args: list[Any]) -> bool:
    """Whether the result is one that every runtime agrees on."""
    if op.name == "Range":
        start, limit, step = (np.asarray(a) for a in args)
        whole = all(a.dtype.kind == "i" and a.size == 1 for a in (start, limit, step)) and int(step) != 0
        return whole and abs(int(limit) - int(start)) <= SMALL
    if op.positive:
        x, y = args
        return x.dtype.kind == "f" or bool((y > 0).all())
    if op.name == "Cast":
        x, to = args
        target = np.dtype(NAMES[to]) if to in CODES.values() and NAMES[to] not in ("string", "bfloat16") else None
        if target is None or target.kind not in _KINDS:
            return False
        if target.kind not in "iu" or x.dtype.kind == "b":
            return True
        limits = np.iinfo(target)
        if x.dtype.kind == "f":  # to which the largest integer may be rounded up, or be infinite
            wide = x.astype(np.float64)
            return bool(((wide >= limits.min) & (wide < limits.max + 1)).all())
        return bool((x >= limits.min).all() and (x <= limits.max).all())
    return True


def _fitting(array: np.ndarray) -> np.ndarray | None:
    """The array if it is small, of a type numpy has, and without NaN, of which there are several."""
    if array.nbytes > SMALL or array.dtype.kind not in _KINDS or str(array.dtype) not in CODES:
        return None
    if array.dtype.kind == "f" and np.isnan(array).any():
        return None
    return np.ascontiguousarray(array).reshape(array.shape)
