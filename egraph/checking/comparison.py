"""Are both sides of a law equal on given operands? As its contract promises.

`exact`: bit for bit, with NaN, infinities, zeros of both signs,
subnormals and extreme integers among the values; any NaN equals any NaN. `reassociated` and `finite`: with
`ref` the left side computed in float64 and n the longest axis,

    |right - ref| <= 4 max|left - ref| + 4 eps sqrt(n) max|ref|      (float64: of all values on the way to ref)

that is, the right side may err no more than a few times what the left side errs itself, plus rounding of n
terms in random order. `reassociated` besides: some draws hold NaN, infinities, zeros and subnormals, some
numbers whose products overflow. The right side is NaN, inf or -inf exactly where the left side is, unless one
of them is that for its type's sake, and not in float64; where products overflow, it is a number where the left
side is one. Draws of `finite` rules hold finite numbers only, apart from masks of -inf.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from ..engine.assumption import HEADS, MASK_FITS, ROWS_VISIBLE, SAME_BATCH, VALUES_FIT
from ..engine.rule import Rule, Sides
from ..terms import DIM, TENSOR, Assumed, IllFormed
from ..terms.attention import hides, lowest, widens
from ..terms.dtypes import eps
from ..terms.expression import Env, Expr
from ..terms.meaning import evaluate


def bind(
    sides: Sides, env: Mapping[str, Any], letters: Mapping[str, int], used: frozenset[str] | None = None
) -> tuple[dict[str, Any], list[int]]:  # fmt: skip
    """The environment completed by the guards, and the guards that fail. Raises IllFormed if one cannot be
    asked.

    A variable that no guard binds is the letter of its name. `used` are the variables of both sides, if known.
    """
    full, failing = dict(env), []
    waiting = list(enumerate(sides.when))
    while waiting:
        later = []
        for i, g in waiting:
            before = dict(full)
            try:
                with np.errstate(all="ignore"):
                    if not g.test(full):
                        failing.append(i)
                        full = before  # it binds nothing
            except KeyError:
                full = before
                later.append((i, g))
            except (ValueError, IndexError, TypeError, AttributeError, ArithmeticError) as error:
                raise IllFormed(str(error)) from error
        if len(later) == len(waiting):
            named = {n for _, g in later for n in g.uses - set(full) if n in letters}
            if not named and failing:
                return full, failing  # one of those would have bound it
            if not named:
                raise IllFormed("a guard asks for a variable that nothing binds")
            full.update({n: letters[n] for n in named})
        waiting = later
    used = sides.lhs.variables() | sides.rhs.variables() if used is None else used
    full.update({n: letters[n] for n in used - set(full) if n in letters})
    return full, failing


def unequal(rule: Rule, sides: Sides, env: Mapping[str, Any], overflows: bool = False) -> str:
    """Why the two sides differ on `env`, or those of an equality the rule states besides; "" if they agree.
    With `overflows`, a number must stay one, but NaN may become one.

    Raises IllFormed if the left side cannot be computed.
    """
    if outside(sides.lhs, env, rule.assumes):
        return ""
    text = _compared(rule, sides.lhs, sides.rhs, env, overflows)
    for a, b in sides.states if not text else ():
        if a.sort == DIM and (sizes := (evaluate(a, env), evaluate(b, env)))[0] != sizes[1]:
            return f"the rule states that {a.text()} = {b.text()}, but they are {sizes[0]} and {sizes[1]}"
        if a.sort == TENSOR and (text := _compared(rule, a, b, env)):
            return f"{text}, where the rule states that {a.text()} = {b.text()}"
    return text


def _compared(rule: Rule, a: Expr, b: Expr, env: Mapping[str, Any], overflows: bool = False) -> str:
    left = evaluate(a, env)
    try:
        right = evaluate(b, env)
    except IllFormed as error:
        excluded = rule.assumes and isinstance(error, Assumed)
        return "" if excluded else f"the right side cannot be computed: {error}"
    if rule.contract == "exact" or left.dtype.kind != "f":
        return differs(left, right)
    if left.shape != right.shape or left.dtype != right.dtype:
        return differs(left, right)
    ref, kind = evaluate(a, env, wide=True), str(left.dtype)
    usable = np.isfinite(left) & np.isfinite(ref)
    if rule.contract == "reassociated" and not overflows and not usable.all():
        same = usable | same_pattern(left, ref, right, evaluate(b, env, wide=True))
        if text := first_difference(same, left, right):
            return f"{text}: NaN and infinities must be the same"
    if not usable.any():
        return ""
    longest = max((max(v.shape, default=1) for v in env.values() if isinstance(v, np.ndarray)), default=1)
    with np.errstate(all="ignore"):
        # float64 has no wider type to measure the left side with: its largest intermediate value stands in.
        size = largest(a, env) if kind == "float64" else np.abs(ref)[usable].max()
        off = np.abs(left.astype(np.float64) - ref)[usable].max()
        bound = 4 * off + 4 * eps(kind) * longest**0.5 * size
        same = ~usable | (np.abs(right.astype(np.float64) - ref) <= bound)
    text = first_difference(same, left, right)
    return f"{text}, allowed {bound:.3g}" if text else ""


def same_pattern(
    left: np.ndarray, ref: np.ndarray, right: np.ndarray, wide: np.ndarray | None = None
) -> np.ndarray:  # fmt: skip
    """Where two sides are NaN, inf, -inf or a number alike, or one of them, in float64 `ref` and `wide`, is another:
    what overflows depends on the type.
    """
    given = (left, ref, right, right if wide is None else wide)
    a, b, c, d = (np.where(np.isfinite(x), 0.0, x.astype(np.float64)) for x in given)
    return np.asarray(_alike(a, c) | ~_alike(a, b) | ~_alike(c, d))


def _alike(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.asarray((x == y) | (np.isnan(x) & np.isnan(y)))


def outside(e: Expr, env: Env, assumes: Collection[str]) -> bool:
    """Whether e holds an attention that these assumptions exclude."""
    for t in e.subterms() if assumes else ():
        if t.head == "Contract" and VALUES_FIT in assumes:
            p, v = (evaluate(a, env) for a in t.args)
            if p.shape[-1] != v.shape[-2]:
                return True
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
