"""Scaled dot-product attention: from its many spellings to one term, `sdpa(q, k, v, mask; scale, cap, guard)`.

Operands are BNSH; up to the softmax they may be [B,S,H], one head without an axis. The scale may sit on q, on k, on
both or on the scores; the mask is whatever is added to them; a guard turns rows of NaN into zeros. Sources: Vaswani et
al. (arXiv 1706.03762), GQA (arXiv 2305.13245), ONNX Attention-23.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ...egraph.engine.assumption import HALF_SCORES, ROWS_VISIBLE, SCORES_FINITE, SMALL_SCORES, VALUES_FIT
from ...egraph.engine.lang import (
    Float,
    Guard,
    Int,
    Sides,
    Tensor,
    call,
    cast,
    dim,
    dtype,
    eq,
    exactly,
    ints,
    le,
    lowest,
    lt,
    ne,
    never,
    num,
    rank,
    real,
    reshape,
    rule,
    scalar,
    squeeze,
    symbolic,
    tensor,
    transpose,
    unsqueeze,
)
from ...egraph.terms.dtypes import FLOAT16, FLOAT32, masking
from ...egraph.terms.expression import Expr

KT = (0, 1, 3, 2)
#: The last two axes exchanged, by rank.
TURNED = {3: (0, 2, 1), 4: KT}
#: Of float32.
LOWEST = -3.4028234663852886e38
#: Of float16.
LOWEST_HALF = -65504.0
#: The guard of an `sdpa` that has none inside because one follows. Kept apart from 0, none at all: an operator that
#: assumes visible rows stands for that and for a guarded one, and would join this one to the result of its guard.
BEHIND = -1


def scores(q: Tensor, k: Tensor, scale: Float) -> Tensor:
    return tensor("Scores", q, k, scale)


def biased(q: Tensor, k: Tensor, mask: Tensor, scale: Float, cap: Float) -> Tensor:
    return tensor("Biased", q, k, mask, scale, cap)


def soft(x: Tensor, guard: int | Int) -> Tensor:
    return tensor("SafeSoftmax", x, guard)


def repeat(x: Tensor, n: Int) -> Tensor:
    return tensor("RepeatKV", x, n)


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: Float, cap: Float, g: int | Int) -> Tensor:
    return tensor("Sdpa", q, k, v, mask, scale, cap, g)


def absent() -> Tensor:
    return tensor("Absent")


def _value(c: Tensor, v: Float, q: Tensor) -> list[Guard]:
    """c is a constant of value v that does not widen the scores of q, or q itself."""
    return [eq(scalar(c), v), le(rank(c), rank(q))]


def _sized(mask: Tensor) -> list[tuple[Expr, Expr]]:
    """Makes the last dims of a new mask exist, known or not."""
    return [(dim(mask, a), dim(mask, a)) for a in (-1, -2)]


WIDER = "=0.5:1 1 1 1 1"
_QK = dict(q="b n s h", k="b n t h")


# ----------------------------------------------------------------------------------------------------------- the scores


@rule(
    stage="marker", contract="exact", expand=dict(r=(3, 4)),
    holds=[dict(q="b n s h", y="b n h t"), dict(q="b s h", y="b h t")],
    refuse=[dict(q="s h", y="b n h t"), dict(q="b n s h", y="h t")],
)  # fmt: skip
def scores_matmul(q: Tensor, y: Tensor, r: int) -> Sides:
    """q @ y = scores(q, transpose(y, 0132), 1)   whether or not y is keys that were turned"""
    return Sides(q @ y, scores(q, transpose(y, TURNED[r]), real(1.0)), when=[eq(rank(q), r), eq(rank(y), r)])


_FACTOR = dict(_QK, c="=0.5", scale=2.0)
_OTHER_FACTORS = [dict(_FACTOR, c=c) for c in ("h", "=0", "=1")]


def _moved_factor(q: Tensor, k: Tensor, c: Tensor, scale: Float, v: Float, divides: int, of_keys: int) -> Sides:
    """A factor or divisor of q or k other than 0. One of 1 gives the very term scaled, which must not be replaced."""
    part, more = k if of_keys else q, scale / v if divides else scale * v
    by = part / c if divides else part * c
    left = scores(q, by, scale) if of_keys else scores(by, k, scale)
    when = [*_value(c, v, part), ne(v, real(0.0)), ne(v, real(1.0))]
    return Sides(left, scores(q, k, more), when=when, replaces=True)


@rule(
    stage="marker", contract="reassociated", expand=dict(divides=(0, 1)), holds=_FACTOR,
    refuse=[*_OTHER_FACTORS, dict(_FACTOR, q="s h", c="=0.5:1 1 1 1")],
)  # fmt: skip
def scores_scaled_q(q: Tensor, k: Tensor, c: Tensor, scale: Float, v: Float, divides: int) -> Sides:
    """scores(q * c, k, scale) = scores(q, k, scale * c),   and / c"""
    return _moved_factor(q, k, c, scale, v, divides, 0)


@rule(
    stage="marker", contract="reassociated", expand=dict(divides=(0, 1)), holds=_FACTOR,
    refuse=[*_OTHER_FACTORS, dict(_FACTOR, k="t h", c="=0.5:1 1 1 1")],
)  # fmt: skip
def scores_scaled_k(q: Tensor, k: Tensor, c: Tensor, scale: Float, v: Float, divides: int) -> Sides:
    """scores(q, k * c, scale) = scores(q, k, scale * c),   and / c"""
    return _moved_factor(q, k, c, scale, v, divides, 1)


@rule(
    stage="marker", contract="reassociated", holds=dict(_QK, c="=0.5", scale=2.0),
    refuse=[dict(_QK, c="t", scale=2.0), dict(_QK, c=WIDER, scale=2.0)],
)  # fmt: skip
def scores_scaled(q: Tensor, k: Tensor, c: Tensor, scale: Float, v: Float) -> Sides:
    """scores(q, k, scale) * c = scores(q, k, scale * c)"""
    return Sides(scores(q, k, scale) * c, scores(q, k, scale * v), when=_value(c, v, q))


@rule(
    stage="marker", contract="reassociated", holds=dict(_QK, c="=0.5", scale=2.0),
    refuse=[dict(_QK, c="t", scale=2.0), dict(_QK, c=WIDER, scale=2.0), dict(_QK, c="=0", scale=2.0)],
)  # fmt: skip
def scores_divided(q: Tensor, k: Tensor, c: Tensor, scale: Float, v: Float) -> Sides:
    """scores(q, k, scale) / c = scores(q, k, scale / c)"""
    return Sides(scores(q, k, scale) / c, scores(q, k, scale / v), when=[*_value(c, v, q), ne(v, real(0.0))])


@rule(
    stage="marker", contract="reassociated", holds=dict(q="b n s h:float16", k="b n t h:float16", scale=0.5),
    refuse=[dict(_QK, scale=0.5)],
)  # fmt: skip
def scores_widened(q: Tensor, k: Tensor, scale: Float) -> Sides:
    """cast(scores(q, k, scale), f32) = scores(cast(q, f32), cast(k, f32), scale)   for q of f16"""
    wide = scores(cast(q, FLOAT32), cast(k, FLOAT32), scale)
    return Sides(cast(scores(q, k, scale), FLOAT32), wide, when=[eq(dtype(q), FLOAT16)])


# ---------------------------------------------------------------------------------------------- soft cap, mask, softmax


@rule(stage="fuse", contract="exact", holds=dict(q="b n s h", k="b n t h", scale=0.5))
def biased_plain(q: Tensor, k: Tensor, scale: Float) -> Sides:
    """scores(q, k, scale) = biased(q, k, no mask, scale)"""
    return Sides(scores(q, k, scale), biased(q, k, absent(), scale, real(0.0)))


@rule(
    stage="fuse", contract="reassociated", holds=dict(_QK, c=5.0, scale=0.5),
    refuse=[dict(_QK, c=0.0, scale=0.5), dict(_QK, c=-5.0, scale=0.5)],
)  # fmt: skip
def biased_capped(q: Tensor, k: Tensor, c: Float, scale: Float) -> Sides:
    """scaled(tanh(scores(q, k, scale)), c) = biased(q, k, no mask, scale * c, cap c)"""
    lhs = tensor("Scaled", call("Tanh", scores(q, k, scale)), c)
    return Sides(lhs, biased(q, k, absent(), scale * c, c), when=[lt(real(0.0), c)])


@rule(stage="fuse", contract="reassociated", holds=dict(_QK, scale=0.5))
def biased_capped_at_one(q: Tensor, k: Tensor, scale: Float) -> Sides:
    """tanh(scores(q, k, scale)) = biased(q, k, no mask, scale, cap 1)"""
    return Sides(call("Tanh", scores(q, k, scale)), biased(q, k, absent(), scale, real(1.0)))


@rule(
    stage="fuse", contract="reassociated",
    holds=[dict(_QK, mask="b 1 s t", scale=0.5, cap=0.0), dict(_QK, mask="s t", scale=0.5, cap=3.0)],
    refuse=[dict(q="1 n s h", k="1 n t h", mask="5 1 1 s t", scale=0.5, cap=0.0)],
)  # fmt: skip
def biased_mask(q: Tensor, k: Tensor, mask: Tensor, scale: Float, cap: Float) -> Sides:
    """biased(q, k, no mask) + mask = biased(q, k, mask)"""
    return Sides(
        biased(q, k, absent(), scale, cap) + mask, biased(q, k, mask, scale, cap), when=[le(rank(mask), rank(q))]
    )


@rule(
    stage="fuse", contract="reassociated",
    holds=[dict(_QK, mask="b 1 s t", p="1 n s t", scale=0.5, cap=0.0),
           dict(_QK, mask="s t", p="b n 1 t", scale=0.5, cap=3.0)],
    refuse=[dict(_QK, mask="absent", p="1 n s t", scale=0.5, cap=0.0),
            dict(_QK, mask="s t", p="1 1 1 s t", scale=0.5, cap=0.0)],
)  # fmt: skip
def biased_twice(q: Tensor, k: Tensor, mask: Tensor, p: Tensor, scale: Float, cap: Float) -> Sides:
    """biased(q, k, mask) + p = biased(q, k, mask + p)"""
    both = mask + p
    when = [le(rank(x), rank(q)) for x in (mask, p)]
    return Sides(biased(q, k, mask, scale, cap) + p, biased(q, k, both, scale, cap), when=when, states=_sized(both))


@rule(
    stage="fuse", contract="exact",
    holds=[dict(_QK, mask="b 1 s t", p="1 n s t", scale=0.5, cap=0.0),
           dict(_QK, mask="s t", p="t", scale=0.5, cap=3.0)],
)  # fmt: skip
def biased_minus(q: Tensor, k: Tensor, mask: Tensor, p: Tensor, scale: Float, cap: Float) -> Sides:
    """biased(q, k, mask) - p = biased(q, k, mask) + (-p)"""
    lhs = biased(q, k, mask, scale, cap)
    return Sides(lhs - p, lhs + -p)


_LOW: dict[str, Any] = dict(_QK, w="b 1 s t:bool", n="=-3e38", scale=0.5, cap=0.0)
_LOW_REFUSES = [dict(_LOW, n="=-5"), dict(_LOW, n="=-3e38:1 1 1 1 1"), dict(_LOW, w="1 1 1 s t:bool"),
                dict(_LOW, q="b n s h:float64", k="b n t h:float64", n="=-3e38:float64")]  # fmt: skip


def _selected(w: Tensor, x: Tensor, n: Tensor, masks: int) -> Tensor:
    """masks = 0: w says what is seen; 1: what is hidden."""
    return tensor("Where", w, n, x) if masks else tensor("Where", w, x, n)


def _masked(w: Tensor, n: Tensor, q: Tensor) -> list[Guard]:
    return [le(rank(n), rank(q)), le(rank(w), rank(q)), eq(dtype(n), FLOAT32)]


@rule(
    stage="fuse", contract="finite", assumes=[SCORES_FINITE], expand=dict(j=(0, 1)),
    holds=[_LOW, dict(_LOW, w="s t:bool", cap=3.0)], refuse=_LOW_REFUSES,
)  # fmt: skip
def mask_where(w: Tensor, q: Tensor, k: Tensor, scale: Float, cap: Float, n: Tensor, j: int) -> Sides:
    """where(w, scores, lowest) = scores + where(w, 0, lowest)"""
    zero = tensor("FConst", real(0.0), FLOAT32)
    lhs = _selected(w, biased(q, k, absent(), scale, cap), n, j)
    return Sides(lhs, biased(q, k, _selected(w, zero, n, j), scale, cap), when=[lowest(n), *_masked(w, n, q)])


@rule(
    stage="fuse", contract="finite", assumes=[SCORES_FINITE], expand=dict(j=(0, 1)),
    holds=[dict(_LOW, mask="b 1 s t"), dict(_LOW, w="s t:bool", mask="b n 1 t", cap=3.0)],
    refuse=[*(dict(r, mask="b 1 s t") for r in _LOW_REFUSES[:3]), dict(_LOW, mask="absent"),
            dict(_LOW_REFUSES[3], mask="b 1 s t:float64")],
)  # fmt: skip
def mask_where_biased(
    w: Tensor, q: Tensor, k: Tensor, mask: Tensor, scale: Float, cap: Float, n: Tensor, j: int
) -> Sides:  # fmt: skip
    """where(w, scores + mask, lowest) = scores + where(w, mask, lowest)"""
    both = _selected(w, mask, n, j)
    when = [lowest(n), *_masked(w, n, q), le(rank(mask), rank(q))]
    lhs, rhs = _selected(w, biased(q, k, mask, scale, cap), n, j), biased(q, k, both, scale, cap)
    return Sides(lhs, rhs, when=when, states=_sized(both))


_NEVER: dict[str, Any] = dict(_LOW, q="b n s h:float16", k="b n t h:float16", n="=-inf:float16")


@rule(
    stage="fuse", contract="finite", assumes=[SCORES_FINITE], expand=dict(j=(0, 1)),
    holds=[_NEVER, dict(_NEVER, w="s t:bool", cap=3.0)],
    refuse=[dict(_NEVER, n="=-65504:float16"), dict(_NEVER, n="=-inf:float16:1 1 1 1 1"),
            dict(_NEVER, w="1 1 1 s t:bool"), dict(_LOW, n="=-inf")],
)  # fmt: skip
def mask_where_never(w: Tensor, q: Tensor, k: Tensor, scale: Float, cap: Float, n: Tensor, j: int) -> Sides:
    """where(w, scores, -inf) = scores + where(w, 0, -inf)   in f16, whose lowest number would overflow"""
    zero = tensor("FConst", real(0.0), FLOAT16)
    lhs = _selected(w, biased(q, k, absent(), scale, cap), n, j)
    when = [never(n), le(rank(n), rank(q)), le(rank(w), rank(q)), eq(dtype(n), FLOAT16)]
    return Sides(lhs, biased(q, k, _selected(w, zero, n, j), scale, cap), when=when)


_BIG = dict(_LOW, n="=-1e9")


@rule(
    stage="fuse", contract="finite", expand=dict(j=(0, 1)), assumes=[SMALL_SCORES, ROWS_VISIBLE],
    holds=[_BIG, dict(_BIG, w="s t:bool", cap=3.0)],
    refuse=[dict(_BIG, n="=-1e4"), dict(_BIG, n="=-3e38"), dict(_BIG, n="=-1e9:1 1 1 1 1"),
            dict(_BIG, w="1 1 1 s t:bool"), dict(_BIG, q="b n s h:float64", k="b n t h:float64", n="=-1e9:float64")],
)  # fmt: skip
def mask_where_big(w: Tensor, q: Tensor, k: Tensor, scale: Float, cap: Float, n: Tensor, v: Float, j: int) -> Sides:
    """where(w, scores, -1e9) = scores + where(w, 0, -1e9)   up to what a softmax can tell"""
    zero = tensor("FConst", real(0.0), FLOAT32)
    lhs = _selected(w, biased(q, k, absent(), scale, cap), n, j)
    when = [eq(scalar(n), v), lt(real(-1e30), v), lt(v, real(-0.99e8)), *_masked(w, n, q)]
    return Sides(lhs, biased(q, k, _selected(w, zero, n, j), scale, cap), when=when)


@rule(
    stage="fuse", contract="reassociated", expand=dict(j=(0, 1)),
    holds=[dict(_QK, mask="b 1 s t", d="=4", scale=0.5), dict(_QK, mask="s t", d="=0.5", scale=0.5)],
    refuse=[dict(_QK, mask="absent", d="=4", scale=0.5), dict(_QK, mask="b 1 s t", d="t", scale=0.5),
            dict(_QK, mask="b 1 s t", d="=4:1 1 1 1 1", scale=0.5), dict(_QK, mask="b 1 s t", d="=0", scale=0.5)],
)  # fmt: skip
def biased_scaled(q: Tensor, k: Tensor, mask: Tensor, d: Tensor, scale: Float, v: Float, j: int) -> Sides:
    """biased(q, k, mask, scale) * d = biased(q, k, mask * d, scale * d),   and / d"""
    plain = biased(q, k, mask, scale, real(0.0))
    when = [*_value(d, v, q), le(rank(mask), rank(q)), ne(v, real(0.0))]
    if j:
        return Sides(plain / d, biased(q, k, mask / d, scale / v, real(0.0)), when=when)
    return Sides(plain * d, biased(q, k, mask * d, scale * v, real(0.0)), when=when)


@rule(stage="fuse", contract="exact", holds=dict(x="b n s t"))
def softmax_last(x: Tensor) -> Sides:
    """softmax(x, -1) = soft(x)"""
    return Sides(call("Softmax", x, -1), soft(x, 0))


def _shifted(x: Tensor) -> Tensor:
    return x - tensor("ReduceMax", x, (-1,), 1)


@rule(stage="marker", contract="reassociated", holds=dict(x="b n s t"))
def softmax_shifted(x: Tensor) -> Sides:
    """softmax(x - max(x)) = softmax(x)   along the last axis"""
    return Sides(call("Softmax", _shifted(x), -1), call("Softmax", x, -1))


@rule(stage="marker", contract="reassociated", expand=dict(inverse=(0, 1)), holds=dict(x="b n s t"))
def softmax_written(x: Tensor, inverse: int) -> Sides:
    """e / sum(e) = softmax(x)   with e = exp(x - max(x)), along the last axis; also e * (1 / sum(e))"""
    e = call("Exp", _shifted(x))
    total = tensor("ReduceSum", e, (-1,), 1)
    return Sides(e * call("Reciprocal", total) if inverse else e / total, call("Softmax", x, -1))


@rule(stage="marker", contract="reassociated", holds=dict(x="b n s t", axis=-1))
def softmax_of_log(x: Tensor, axis: Int) -> Sides:
    """exp(log-softmax(x, axis)) = softmax(x, axis)"""
    return Sides(call("Exp", call("LogSoftmax", x, axis)), call("Softmax", x, axis))


@rule(
    stage="fuse", contract="reassociated",
    holds=[dict(x="b n s t", z="=0"), dict(x="b n s t", z="=0:1")],
    refuse=[dict(x="b n s t", z="=1"), dict(x="b n s t", z="=0:1 1 1 1 1")],
)  # fmt: skip
def softmax_guarded(x: Tensor, z: Tensor) -> Sides:
    """where(isnan(p), 0, p) = soft(x), guarded   with p = soft(x)"""
    p = soft(x, 0)
    return Sides(call("Where", call("IsNaN", p), z, p), soft(x, 1), when=exactly(z, x, 0.0))  # or -0.0


@rule(
    stage="fuse", contract="finite", assumes=[ROWS_VISIBLE, SCORES_FINITE],
    holds=[dict(x="b n s t", n="=-3e38", g=0), dict(x="b n s t", n="=-3e38:1", g=1)],
    refuse=[dict(x="b n s t", n="=-5", g=0), dict(x="t", n="=-3e38:1 1", g=0)],
)  # fmt: skip
def softmax_floored(x: Tensor, n: Tensor, g: Int) -> Sides:
    """soft(max(x, lowest)) = soft(x), guarded: a row of -inf stays finite"""
    return Sides(soft(call("Max", x, n), g), soft(x, 1), when=[lowest(n), le(rank(n), rank(x))])


_CLEARED = dict(_LOW, z="=0", g=0)


@rule(
    stage="fuse", contract="finite", assumes=[SCORES_FINITE], expand=dict(j=(0, 1)),
    holds=[_CLEARED, dict(_CLEARED, w="s t:bool", cap=3.0, z="=0:1", g=1)],
    refuse=[dict(_CLEARED, z="=1"), dict(_CLEARED, z="=0:1 1 1 1 1"), dict(_CLEARED, n="=-5")],
)  # fmt: skip
def softmax_cleared(
    w: Tensor, q: Tensor, k: Tensor, scale: Float, cap: Float, n: Tensor, z: Tensor, g: Int, j: int
) -> Sides:  # fmt: skip
    """where(w, soft(scores + where(w, 0, lowest)), 0) = soft(scores + where(w, 0, -inf)), guarded"""
    zero, never = (tensor("FConst", real(value), FLOAT32) for value in (0.0, -math.inf))
    x, y = (biased(q, k, _selected(w, zero, low, j), scale, cap) for low in (n, never))
    when = [lowest(n), eq(scalar(z), real(0.0)), le(rank(z), rank(q))]
    return Sides(_selected(w, soft(x, g), z, j), soft(y, 1), when=when)


@rule(
    stage="fuse", contract="reassociated", holds=dict(x="b n s t:float16", g=1),
    refuse=[dict(x="b n s t:float64", g=0)],
)  # fmt: skip
def softmax_widened(x: Tensor, g: Int) -> Sides:
    """cast(soft(cast(x, f32)), f16) = soft(x)   for x of f16"""
    return Sides(cast(soft(cast(x, FLOAT32), g), FLOAT16), soft(x, g), when=[eq(dtype(x), FLOAT16)])


_HALF = dict(w="b 1 s t:bool", x="b n s t:float16", n="=-65504:float16", g=0)


@rule(
    stage="fuse", contract="finite", assumes=[HALF_SCORES], expand=dict(j=(0, 1)),
    holds=[_HALF, dict(_HALF, w="s t:bool", n="=-65504:float16:1", g=1)],
    refuse=[dict(_HALF, n="=-5:float16"), dict(_HALF, n="=-70000:float16"), dict(_HALF, n="=-65504:float16:1 1 1 1 1"),
            dict(_HALF, x="b n s t", n="=-3e38")],
)  # fmt: skip
def softmax_half(w: Tensor, x: Tensor, n: Tensor, v: Float, g: Int, j: int) -> Sides:
    """soft(where(w, x, lowest)) = cast(soft(where(w, cast(x, f32), lowest of f32)), f16)   for x of f16"""
    low = tensor("FConst", real(LOWEST), FLOAT32)
    wide = _selected(w, cast(x, FLOAT32), low, j)
    when = [eq(scalar(n), v), lt(v, real(-6e4)), eq(dtype(x), FLOAT16), le(rank(n), rank(x))]
    return Sides(soft(_selected(w, x, n, j), g), cast(soft(wide, g), FLOAT16), when=when)


_BOUNDED: dict[str, Any] = dict(_QK, w="b 1 s t:bool", n="=-1e4", scale=0.5, cap=5.0, g=0)
_HALVES = {name: f"{_QK[name]}:float16" for name in _QK}


@rule(
    stage="fuse", contract="reassociated", expand=dict(to=(FLOAT32, FLOAT16), j=(0, 1)),
    holds=[_BOUNDED, dict(_BOUNDED, **_HALVES, w="s t:bool", n="=-1e4:1:float16", g=1)],
    refuse=[dict(_BOUNDED, cap=0.0), dict(_BOUNDED, n="=-3"), dict(_BOUNDED, n="=-1e4:1 1 1 1 1"),
            dict(_BOUNDED, n="=-3e38"), dict(_BOUNDED, **_HALVES, n="=-65504:float16"),
            dict(_BOUNDED, w="1 1 1 s t:bool")],
)  # fmt: skip
def softmax_bounded(
    w: Tensor, q: Tensor, k: Tensor, scale: Float, cap: Float, n: Tensor, v: Float, g: Int, to: int, j: int
) -> Sides:  # fmt: skip
    """soft(where(w, scores, n)) = soft(where(w, scores, lowest))   for scores bounded so that n leaves nothing"""
    low = tensor("FConst", real(LOWEST if to == FLOAT32 else LOWEST_HALF), to)
    x = biased(q, k, absent(), scale, cap)
    bounded = replace(lt(real(0.0), cap), says="a proved bound of the scores, as a soft cap gives one")
    when = [bounded, eq(scalar(n), v), lt(v + cap, real(-150.0)), lt(real(masking(4 if to == FLOAT32 else 2)), v)]
    when += [eq(dtype(n), to), le(rank(n), rank(q)), le(rank(w), rank(q))]
    return Sides(soft(_selected(w, x, n, j), g), soft(_selected(w, x, low, j), g), when=when)


_WIDENED: dict[str, Any] = dict(
    q="b n s h:float16", k="b n t h:float16", mask="b 1 s t:float16", scale=0.5, cap=0.0
)  # fmt: skip


@rule(
    stage="fuse", contract="reassociated", expand=dict(masked=(0, 1)),
    holds=[_WIDENED, dict(_WIDENED, mask="t:float16", cap=3.0)],
    refuse=[*({**_WIDENED, **_QK, "mask": mask, "cap": 3.0} for mask in ("b 1 s t", "absent")),
            dict(_WIDENED, mask="absent")],
)  # fmt: skip
def biased_widened(q: Tensor, k: Tensor, mask: Tensor, scale: Float, cap: Float, masked: int) -> Sides:
    """cast(biased(q, k, mask), f32) = biased(cast(q, f32), cast(k, f32), cast(mask, f32))   for q of f16"""
    wide = [cast(x, FLOAT32) for x in (q, k, mask)]
    lhs = cast(biased(q, k, mask if masked else absent(), scale, cap), FLOAT32)
    when = [eq(dtype(q), FLOAT16), eq(dtype(mask), FLOAT16) if masked else lt(real(0.0), cap)]
    return Sides(lhs, biased(wide[0], wide[1], wide[2] if masked else absent(), scale, cap), when=when)


@rule(
    stage="fuse", contract="reassociated", holds=[dict(x="b n s t", v="b n t d:float16", g=1)],
    refuse=[dict(x="b n s t:float64", v="b n t d:float16", g=0)],
)  # fmt: skip
def values_widened(x: Tensor, v: Tensor, g: Int) -> Sides:
    """cast(soft(x), f16) @ v = cast(soft(x) @ cast(v, f32), f16)   for x of f32"""
    p = soft(x, g)
    return Sides(cast(p, FLOAT16) @ v, cast(p @ cast(v, FLOAT32), FLOAT16), when=[eq(dtype(x), FLOAT32)])


@rule(
    stage="fuse", contract="reassociated", assumes=[VALUES_FIT], expand=dict(narrow=(0, 1)),
    holds=[dict(x="b n s t", v="b n t d", g=1), dict(x="b s t", v="b t d:float16", g=0)],
)  # fmt: skip
def values_contracted(x: Tensor, v: Tensor, g: Int, narrow: int) -> Sides:
    """contract(soft(x), v) = soft(x) @ v   for an Einsum of weights and values; also of weights as f16"""
    p = cast(soft(x, g), FLOAT16) if narrow else soft(x, g)
    return Sides(tensor("Contract", p, v), p @ v)


@rule(stage="marker", contract="exact", holds=dict(x="b 2 t h:float16", n=3, to=1))
def repeat_cast(x: Tensor, n: Int, to: Int) -> Sides:
    """cast(repeat(x, n), to) = repeat(cast(x, to), n)"""
    return Sides(cast(repeat(x, n), to), repeat(cast(x, to), n))


# ------------------------------------------------------------------------------------------------------------ attention

_QKV = dict(q="b n s h", k="b n t h", v="b n t d", mask="b 1 s t", scale=0.5, cap=0.0, g=0)


@rule(
    stage="fuse", contract="reassociated", expand=dict(one=(0, 1)),
    holds=[_QKV, dict(_QKV, k="b 1 t h", v="b 1 t d", cap=3.0, g=1)],
    refuse=[dict(_QKV, q="b 5 s h", k="b 1 t h", v="b 5 t d"), dict(_QKV, q="b 5 s h", k="b 5 t h", v="b 1 t d"),
            dict(_QKV, q="b 1 s h", k="b 5 t h", v="b 5 t d"), dict(_QKV, v="t d"),
            dict(_QKV, k="b 1 t h", v="t d"), dict(_QKV, q="n s h", k="n t h", mask="s t")],
)  # fmt: skip
def sdpa_matmul(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: Float, cap: Float, g: Int, one: int) -> Sides:
    """soft(biased(q, k, mask)) @ v = sdpa(q, k, v, mask)   for k and v of as many heads as q, or of one"""
    heads = [eq(dim(x, -3), num(1) if one else dim(q, -3)) for x in (k, v)] + [eq(rank(x), 4) for x in (q, v)]
    return Sides(soft(biased(q, k, mask, scale, cap), g) @ v, sdpa(q, k, v, mask, scale, cap, g), when=heads)


_HEAD = dict(_QKV, q="b s h", k="b t h", v="b t d", mask="b s t")


@rule(
    stage="fuse", contract="reassociated", expand=dict(deep=(0, 1, 2)),
    holds=[_HEAD, dict(_HEAD, mask="s t", cap=3.0, g=1)],
    refuse=[_QKV, dict(_HEAD, q="b n s h", k="b n t h", v="n t d"),
            *({**_HEAD, "mask": mask, wrong: f"1 {shape}"}
                    for mask in ("b s t", "s t", "absent") for wrong, shape in (("k", "t h"), ("v", "t d")))],
)  # fmt: skip
def sdpa_one_head(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: Float, cap: Float, g: Int, deep: int) -> Sides:
    """soft(biased(q, k, mask)) @ v = squeeze(sdpa(q', k', v', mask'), -3)   for [B,S,H], with one head as axis -3"""
    mask = mask if deep else absent()
    each = unsqueeze(mask, -3) if deep == 2 else mask
    when = [eq(rank(q), 3), eq(rank(v), 3), *(eq(dim(x, -3), dim(q, -3)) for x in (k, v))]
    when += [eq(rank(mask), 3)] if deep == 2 else [le(rank(mask), 2)] if deep else []
    apart = sdpa(unsqueeze(q, -3), unsqueeze(k, -3), unsqueeze(v, -3), each, scale, cap, g)
    return Sides(soft(biased(q, k, mask, scale, cap), g) @ v, squeeze(apart, -3), when=when)


_UNGUARDED = {name: given for name, given in _QKV.items() if name != "g"}
_HIDING = dict(_UNGUARDED, mask="hiding b 1 s t", cap=3.0)
_LOWEST = dict(_UNGUARDED, mask="lowest b 1 s t", cap=3.0)
_NARROW: dict[str, Any] = dict(_UNGUARDED, **{name: f"{_QKV[name]}:float16" for name in ("q", "k", "v", "mask")})


@rule(stage="fuse", contract="finite", assumes=[SCORES_FINITE], holds=[_UNGUARDED, _HIDING, _LOWEST])
def guard_dropped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: Float, cap: Float) -> Sides:
    """sdpa(q, k, v, mask), guarded = sdpa(q, k, v, mask), 0 in rows that mask hides: nothing else makes NaN"""
    return Sides(sdpa(q, k, v, mask, scale, cap, 1), sdpa(q, k, v, mask, scale, cap, 2))


def _behind(o: Tensor, v: Tensor, to: Int) -> Tensor:
    """where(isnan(o), 0 * mean(v), o): what o is if its rows of NaN are weights of zero instead."""
    nothing = tensor("ReduceMean", v, (-2,), 1) * call("FConst", real(0.0), to)
    return tensor("Where", call("IsNaN", o), nothing, o)


@rule(
    stage="fuse", contract="reassociated", expand=dict(groups=(0, 1)),
    holds=[_UNGUARDED, _HIDING,
           dict(_NARROW, q="b 6 s h:float16", k="b 2 t h:float16", v="b 2 t d:float16")],
)  # fmt: skip
def guard_behind(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: Float, cap: Float, to: Int, n: Int, kv: Int, groups: int
) -> Sides:  # fmt: skip
    """sdpa(q, k, v, mask), guarded = where(isnan(o), 0 * mean(v), o)   o = sdpa(q, k, v, mask): NaN of v stay NaN"""
    o, when = sdpa(q, k, v, mask, scale, cap, BEHIND), [eq(dtype(v), to)]
    if not groups:
        return Sides(sdpa(q, k, v, mask, scale, cap, 1), _behind(o, v, to), when=[*when, eq(dim(q, -3), dim(v, -3))])
    when += [eq(dim(q, -3), num(n)), eq(dim(v, -3), num(kv)), lt(kv, n)]
    clean = reshape(_behind(reshape(o, ints(0, kv, -1, 0)), v, to), ints(0, n, -1, 0))  # heads of a group are rows
    return Sides(sdpa(q, k, v, mask, scale, cap, 1), clean, when=when)


_ANY = dict(_QKV, q="b 6 s h", k="b K t h", v="b K t d", K=(1, 6), cap=3.0, g=1)


@rule(
    stage="fuse", contract="reassociated", holds=_ANY,
    refuse=[dict(_ANY, k="b 1 t h"), dict(_ANY, v="b 1 t d"), dict(_ANY, v="K t d"), dict(_ANY, q="b 1 s h"),
            dict(_ANY, k="b 1 t h", v="b 1 t d", mask="b K s t")],
)  # fmt: skip
def sdpa_matmul_any_heads(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: Float, cap: Float, g: Int, n: Int
) -> Sides:
    """soft(biased(q, k, mask)) @ v = sdpa(q, k, v, mask)   for k and v of heads that are not fixed: N or 1"""
    heads = [eq(dim(q, -3), num(n)), lt(1, n), eq(dim(k, -3), dim(v, -3)), symbolic(dim(k, -3), "kv"), eq(rank(v), 4)]
    return Sides(soft(biased(q, k, mask, scale, cap), g) @ v, sdpa(q, k, v, mask, scale, cap, g), when=heads)


@rule(
    stage="marker", contract="exact", holds=dict(x="b 2 t h", e="ints b 2 3 t h", u="ints b 6 t h"),
    refuse=[dict(x="b 2 t h", e="ints b 2 3 t h", u="ints b 3 2*t h"),
            dict(x="b 1 t h", e="ints b 2 3 t h", u="ints b 6 t h"),
            dict(x="1 2 t h", e="ints 5 2 3 t h", u="ints 5 6 t h"),
            dict(x="b 2 1 h", e="ints b 2 3 5 h", u="ints b 6 5 h"),
            dict(x="b 2 t 1", e="ints b 2 3 t 5", u="ints b 6 t 5"),
            dict(x="1 b 2 t h", e="ints 1 b 2 3 t h", u="ints b 6 t h"),
            dict(x="b 2 t h", e="ints b 2 3 t h", u="ints 1 b 6 t h")],
)  # fmt: skip
def repeat_kv(x: Tensor, e: Tensor, u: Tensor, n: Int, m: Int) -> Sides:
    """reshape(expand(unsqueeze(x, -3), [B, KV, n, T, H]), [B, KV*n, T, H]) = repeat(x, n)"""
    wide = tensor("Expand", unsqueeze(x, -3), e)
    flat = tensor("Reshape", wide, u)
    heads = [eq(dim(x, -3), num(n)), eq(dim(wide, -3), num(m)), eq(dim(flat, -3), num(n * m))]
    # A wide value of as many elements as this has no other axis expanded.
    others = [eq(dim(flat, a), dim(x, a)) for a in (-4, -2, -1)]
    return Sides(flat, repeat(x, m), when=[eq(rank(x), 4), eq(rank(flat), 4), *heads, *others])


@rule(
    stage="fuse", contract="exact",
    holds=[dict(_QKV, q=f"b {n} s h", k="b 2 t h", v="b 2 t d", n=3, cap=3.0, g=1) for n in (6, 12)],
)  # fmt: skip
def sdpa_grouped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: Float, cap: Float, g: Int, n: Int) -> Sides:
    """sdpa(q, repeat(k, n), repeat(v, n)) = sdpa(q, k, v), grouped"""
    return Sides(sdpa(q, repeat(k, n), repeat(v, n), mask, scale, cap, g), sdpa(q, k, v, mask, scale, cap, g))
