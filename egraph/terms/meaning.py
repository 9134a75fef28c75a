"""The numeric meaning of terms: one side of a rule on arrays, or every class of a saturated e-graph.

Terms are evaluated as ONNX would run them: operands of an elementwise operator share their element type,
slices of constant bounds are in range, a quarter turn needs an even last axis. What a model cannot hold is
`IllFormed`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..engine.assumption import HEADS, MASK_FITS, ROWS_VISIBLE, SAME_BATCH
from ..engine.saturate import Frozen, Row
from . import CLASSES, INTS, LEAVES, OPS, TENSOR, Assumed, IllFormed, Op
from .attention import hides, lowest, widens
from .dtypes import NAMES
from .expression import Env, Expr

_BAD = (ValueError, IndexError, TypeError, ArithmeticError, AttributeError)


def evaluate(e: Expr, env: Env, *, wide: bool = False) -> Any:
    """The value of a term. `wide` computes in float64: floating leaves and casts to floating types become
    float64.

    Raises IllFormed where the operator does not take the operands, KeyError for a variable env does not bind.
    """
    if e.head == "var":
        value = env[e.args[0]]
        if wide and isinstance(value, list):
            return [_widened(v) for v in value]
        return _widened(value) if wide else value
    if e.op is None or e.head in ("dim", "elem"):
        try:
            return e.value(env)
        except ArithmeticError as error:
            raise IllFormed(str(error)) from error
    return apply(e.op, [evaluate(a, env, wide=wide) for a in e.args], wide=wide)


def apply(op: Op, args: list[Any], *, wide: bool = False) -> Any:
    """`op` on evaluated operands, as an array where it makes a tensor. Raises IllFormed."""
    if op.numpy is None:
        raise IllFormed(f"{op.name} has no numeric meaning")
    tensors = [a for a, s in zip(args, op.sorts, strict=True) if s == TENSOR and a is not None]
    _check(op, args, tensors)
    if wide and op.name == "Cast" and tensors[0].dtype.kind == "f" and NAMES[args[1]].startswith("float"):
        return tensors[0]
    try:
        with np.errstate(all="ignore"):
            value = op.numpy(*args)
    except _BAD as error:
        raise IllFormed(f"{op.name}: {error}") from error
    if op.out != TENSOR or value is None:
        return value
    return _widened(np.asarray(value)) if wide else np.asarray(value)


def outside(e: Expr, env: Env, assumes: Collection[str]) -> bool:
    """Whether e holds an attention that these assumptions exclude."""
    for t in e.subterms() if assumes else ():
        if t.head == "Sdpa":
            q, k, v, m = (evaluate(a, env) for a in t.args[:4])
            batch = {k.shape[0], v.shape[0]} | ({m.shape[0]} - {1} if m is not None and m.ndim == 4 else set())
            if SAME_BATCH in assumes and batch != {q.shape[0]}:
                return True
            if HEADS in assumes and k.shape[-3] != q.shape[-3]:
                return True
            if MASK_FITS in assumes and widens(q, k, m):
                return True
            if ROWS_VISIBLE in assumes and m is not None and _undefined(v, m, evaluate(t.args[-1], env)):
                return True
    return False


def _undefined(v: np.ndarray, m: np.ndarray, guard: int) -> bool:
    """Whether the mask m hides a row entirely, and that need not be the 0 that a guard makes of it."""
    hidden, by_infinity = hides(m, lowest(m)), hides(m)
    return bool(hidden.any()) and not (guard == 2 and (hidden == by_infinity).all() and np.isfinite(v).all())


def largest(e: Expr, env: Env) -> float:
    """The largest finite magnitude among the values of e and its subterms."""
    values = [np.asarray(evaluate(t, env)) for t in e.subterms() if t.sort == TENSOR]
    return max(float(np.abs(v[np.isfinite(v)]).max(initial=0)) for v in values if v.dtype.kind == "f")


def _widened(x: Any) -> Any:
    return x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x


def _check(op: Op, args: list[Any], tensors: list[np.ndarray]) -> None:
    """Raises IllFormed for operands the term's declaration excludes."""
    operands = {name: a for a, (name, _) in zip(args, op.operands, strict=True) if a is not None}
    if len({operands[name].dtype for name in op.same if name in operands}) > 1:
        raise IllFormed(f"{op.name} of different element types")
    if op.boolean and tensors[0].dtype != bool:
        raise IllFormed(f"{op.name} of numbers")
    if op.floating and tensors[0].dtype.kind != "f":
        raise IllFormed(f"{op.name} of {tensors[0].dtype}")
    if op.requires is not None:
        op.requires(*args)


# ----------------------------------------------------------------------------------------- a whole e-graph


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
    first: dict[int, Any] = {c: (_widened(v) if wide else v) for c, v in (known or {}).items()}
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
        return _widened(leaf) if wide else leaf
    op, children, attrs = ops[r.op], iter(r.children), iter(r.attrs)
    args = [
        first[next(children)] if s in CLASSES else tuple(next(attrs)) if s == INTS else next(attrs) for s in op.sorts
    ]
    return apply(op, args, wide=wide)


def differs(x: np.ndarray, y: np.ndarray) -> str:
    """Why x and y are not bit-equal, "" if they are. Any NaN equals any NaN; -0.0 and 0.0 differ."""
    if x.shape != y.shape:
        return f"shapes {x.shape} and {y.shape}"
    if x.dtype != y.dtype:
        return f"element types {x.dtype} and {y.dtype}"
    same = x == y
    if x.dtype.kind == "f":
        same = (same & (np.signbit(x) == np.signbit(y))) | (np.isnan(x) & np.isnan(y))
    return first_difference(np.asarray(same), x, y)


def first_difference(same: np.ndarray, x: np.ndarray, y: np.ndarray) -> str:
    if same.all():
        return ""
    at = tuple(int(i[0]) for i in np.nonzero(~np.atleast_1d(same)))
    left, right = np.atleast_1d(x)[at], np.atleast_1d(y)[at]
    return f"first difference at {at}: left {left!r}, right {right!r}"


__all__ = [
    "Assumed",
    "IllFormed",
    "Valued",
    "apply",
    "differs",
    "evaluate",
    "evaluate_classes",
    "first_difference",
    "largest",
    "outside",
]
