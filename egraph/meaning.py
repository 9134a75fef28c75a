"""The numeric meaning of terms: one side of a rule on arrays, or every class of a saturated e-graph.

Terms are evaluated as ONNX would run them: operands of an elementwise operator share their element type,
slices of constant bounds are in range, a quarter turn needs an even last axis. What a model cannot hold is
`IllFormed`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from .assumption import HEADS, MASK_FITS, ROWS_VISIBLE, SAME_BATCH
from .dtypes import NAMES
from .errors import EGraphError
from .ops import INTS, LIST, NODE, OPS, TENSOR, Op, hides, lowest
from .saturate import Frozen, Row
from .term import Env, Expr

_SAME_TYPE = frozenset(
    "Add Sub Mul Div Pow Max And Or Equal Less LessOrEqual Greater GreaterOrEqual Where MatMul Rope RopeT "
    "RMSNorm LayerNorm Scores Biased Sdpa".split()
)
_FLOAT = frozenset(
    "Sqrt Reciprocal Cos Sin Tanh Exp Log Erf Sigmoid Softmax IsNaN RSqrt RNorm ErfPlus Cubic TanhPlus "
    "RMSNorm LayerNorm Gelu FastGelu QuickGelu SafeSoftmax Sdpa".split()
)
_BOOL = frozenset(("And", "Or", "Not"))
#: Markers of attention, and how many of their operands are [B, N, S, H].
_BNSH: Mapping[str, int] = MappingProxyType(
    {"Scores": 2, "Biased": 2, "Sdpa": 3, "RepeatKV": 1, "Merged": 1, "Grouped": 1}
)
_BAD = (ValueError, IndexError, TypeError, ArithmeticError, AttributeError)


class IllFormed(EGraphError):
    """Operands that no valid model can hold."""


class Assumed(IllFormed):
    """Operands a model may hold, but that a rule may exclude by saying so in `assumes`."""


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
            if MASK_FITS in assumes and _widens(q, k, m):
                return True
            if ROWS_VISIBLE in assumes and m is not None and _undefined(v, m, evaluate(t.args[-1], env)):
                return True
    return False


def _undefined(v: np.ndarray, m: np.ndarray, guard: int) -> bool:
    """Whether the mask m hides a row entirely, and that need not be the 0 that a guard makes of it."""
    hidden, by_infinity = hides(m, lowest(m)), hides(m)
    return bool(hidden.any()) and not (guard == 2 and (hidden == by_infinity).all() and np.isfinite(v).all())


def _widens(q: np.ndarray, k: np.ndarray, m: np.ndarray | None) -> bool:
    """Whether adding the mask m to the scores of q and k gives more than the scores are."""
    full = (*q.shape[:-1], k.shape[-2])
    return m is not None and any(a not in (1, b) for a, b in zip(m.shape[::-1], full[::-1], strict=False))


def largest(e: Expr, env: Env) -> float:
    """The largest finite magnitude among the values of e and its subterms."""
    values = [np.asarray(evaluate(t, env)) for t in e.subterms() if t.sort == TENSOR]
    return max(float(np.abs(v[np.isfinite(v)]).max(initial=0)) for v in values if v.dtype.kind == "f")


def _widened(x: Any) -> Any:
    return x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x


def _check(op: Op, args: list[Any], tensors: list[np.ndarray]) -> None:
    group = tensors[1:] if op.name == "Where" else args[0] if op.name == "Concat" else tensors
    if op.name in ("Sdpa", "OnnxAttention", "OnnxAttention3"):
        group = [t for t in tensors if t.dtype != bool] if tensors[0].dtype != bool else tensors  # a mask may be
    if (op.name in _SAME_TYPE or op.name == "Concat") and len({x.dtype for x in group}) > 1:
        raise IllFormed(f"{op.name} of different element types")
    if op.name in _BOOL and tensors[0].dtype != bool:
        raise IllFormed(f"{op.name} of numbers")
    if op.name in _FLOAT and tensors[0].dtype.kind != "f":
        raise IllFormed(f"{op.name} of {tensors[0].dtype}")
    if op.name == "Rot" and (not tensors[0].ndim or tensors[0].shape[-1] % 2):
        raise IllFormed("a quarter turn of an odd number of channels")
    if op.name == "SliceC":
        x, axis, start, end, step = args
        if not -x.ndim <= axis < 0 or not 0 <= start <= end <= x.shape[axis] or step < 1:
            raise IllFormed(f"slice {start}:{end}:{step} of {x.shape} at {axis}")
    if op.name == "Split" and sum(args[2]) != (args[0].shape[args[1]] if -args[0].ndim <= args[1] < 0 else -1):
        raise IllFormed(f"split of {args[0].shape} into {args[2]}")
    if op.name == "Reshape" and -1 not in args[1] and args[0].size == 0:
        raise IllFormed("reshape of an empty tensor")
    if op.name == "RopeT":
        x, c, s, _, layout, width = args
        if x.ndim != 4 or c.ndim != 3 or s.ndim != 3 or 2 * c.shape[-1] != (width or x.shape[-1]):
            raise IllFormed("rows of cos and sin are [B or 1, S, h], x is of rank 4")
        seq = x.shape[1 if layout else 2]
        if any(t.shape[1:] != (seq, c.shape[2]) for t in (c, s)):
            raise IllFormed("cos and sin have one row per position")
        if any(t.shape[0] not in (1, x.shape[0]) for t in (c, s)):
            raise Assumed("cos and sin have rows for each batch row of x, or for all")
    if op.name in _BNSH and any(x.ndim != 4 for x in args[: _BNSH[op.name]]):
        raise IllFormed(f"{op.name} takes operands of rank 4")
    if op.name in ("Sdpa", "OnnxAttention"):
        n, kv, kv2 = (t.shape[-3] if t.ndim == 4 else 0 for t in tensors[:3])
        if kv != kv2 or not kv or n % kv:
            raise IllFormed("k and v have the same number of heads, which divides that of q")
    if op.name == "OnnxAttention3" and any(t.ndim != 3 for t in tensors[:3]):
        raise IllFormed("OnnxAttention3 takes operands of rank 3")
    if op.name == "OnnxAttention" and _widens(tensors[0], tensors[1], args[3]):
        raise IllFormed("a mask is broadcast to the scores")
    if op.name in ("Biased", "Sdpa") and any(m.ndim > 4 for m in tensors[_BNSH[op.name] :]):
        raise IllFormed("a mask has no more axes than the scores")
    if op.name == "Rope":
        x, c, s = tensors
        if any(not t.ndim or 2 * t.shape[-1] != x.shape[-1] for t in (c, s)):
            raise IllFormed("cos and sin have half as many channels as x")
    if op.name in ("RMSNorm", "LayerNorm") and any(t.shape != tensors[0].shape[-1:] for t in tensors[1:]):
        raise IllFormed("scale and bias are vectors of the last axis")


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
    waiting = [r for r in frozen.rows if r.op in ("Input", "Const") or _computable(r, ops)]
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
    if r.op in ("Input", "Const"):
        leaf = leaves[r.attrs[0]]
        return _widened(leaf) if wide else leaf
    op, children, attrs = ops[r.op], iter(r.children), iter(r.attrs)
    args = [
        first[next(children)] if s in (TENSOR, LIST, NODE) else tuple(next(attrs)) if s == INTS else next(attrs)
        for s in op.sorts
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
