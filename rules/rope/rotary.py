"""Rotary position embeddings: tables that repeat themselves, the quarter turn, and the rotation made of both.

Pairs are told apart by `pairs`: 0 pairs element j with j + h (rotate_half, cat(f, f)), 1 pairs 2j with 2j + 1
(interleaved, every element twice). Whatever joins two tensors to pairs is one term, `Paired`, and what repeats a table
is another, `Wide`; its `sign` is -1 where the first of each pair is negated: the signs that a quarter turn needs may
stand in the turned x or in the table. Sources: RoFormer (arXiv 2104.09864) and the exporters' spellings of it. Cos and
sin stay what the model computes at run time: nothing is baked, no position is assumed bounded.
"""

from __future__ import annotations

from typing import Any

from ...egraph.engine.lang import (
    Int,
    Ints,
    Sides,
    Tensor,
    at,
    call,
    concat,
    count,
    dim,
    doubled,
    dtype,
    elem,
    eq,
    le,
    length,
    lt,
    ne,
    num,
    rank,
    reshape,
    rule,
    sizes,
    slice_,
    squeeze,
    tensor,
    turns,
    unsqueeze,
)
from ...egraph.terms.dtypes import FLOAT16, FLOAT32, FLOAT64


def wide(x: Tensor, pairs: int | Int, sign: int | Int = 1) -> Tensor:
    return tensor("Wide", x, pairs, sign)


def paired(x: Tensor, y: Tensor, pairs: int | Int) -> Tensor:
    return tensor("Paired", x, y, pairs)


def rot(x: Tensor, pairs: int | Int) -> Tensor:
    return tensor("Rot", x, pairs)


def rope(x: Tensor, cos: Tensor, sin: Tensor, pairs: int | Int) -> Tensor:
    return tensor("Rope", x, cos, sin, pairs)


def parts(x: Tensor, h: Int, pairs: int) -> tuple[Tensor, Tensor]:
    """The first and the second of each pair, of x with 2h channels."""
    if pairs:
        return slice_(x, 0, 2 * h - 1, step=2), slice_(x, 1, 2 * h, step=2)
    return slice_(x, 0, h), slice_(x, h, 2 * h)


# ------------------------------------------------------------------------------------------------ two tensors as pairs


@rule(stage="marker", holds=dict(x="b s h", y="b s h"), refuse=[dict(x="b s 2", y="b s 3")])
def paired_halves(x: Tensor, y: Tensor, h: Int) -> Sides:
    """cat(x, y) = pairs of x and y, by halves"""
    return Sides(concat([x, y]), paired(x, y, 0), when=[eq(dim(x, -1), num(h)), eq(dim(y, -1), num(h))])


@rule(
    stage="marker", holds=[dict(x="b s h", y="b s h", u="ints b s 2h"), dict(x="b s h", y="b s h", u="ints 0 -1")],
    refuse=[dict(x="h s h", y="h s h", u="ints s 1 0 2h"), dict(x="b 2 4", y="b 2 4", u="ints b 4 0")],
    expand=dict(less=(0, 1)),
)  # fmt: skip
def paired_interleaved(x: Tensor, y: Tensor, u: Tensor, h: Int, less: int) -> Sides:
    """reshape(stack(x, y), u) = reshape(pairs of x and y, u), interleaved   for u of no more axes than x"""
    flat = reshape(tensor("Stack", x, y, -1), u)
    same = [eq(rank(flat), rank(x)), eq(dim(x, -1), num(h)), eq(dim(flat, -1), num(2 * h))]
    return Sides(flat, reshape(paired(x, y, 1), u), when=[lt(rank(flat), rank(x))] if less else same)


@rule(stage="marker", holds=dict(x="b s h", y="b s h"))
def paired_written(x: Tensor, y: Tensor) -> Sides:
    """pairs of x and y, by halves = cat(x, y)"""
    return Sides(paired(x, y, 0), concat([x, y]))


@rule(stage="marker", holds=dict(x="b n s 2h"), refuse=[dict(x="b 6", h=2)])
def paired_parts(x: Tensor, h: Int) -> Sides:
    """pairs of x[0::2] and x[1::2], interleaved = x"""
    first, second = parts(x, h, 1)
    return Sides(paired(first, second, 1), x, when=[eq(dim(x, -1), num(2 * h))])


@rule(stage="marker", holds=dict(x="b s h", y="b s h", pairs=1))
def paired_sign(x: Tensor, y: Tensor, pairs: Int) -> Sides:
    """pairs of x and -y = -(pairs of -x and y)"""
    return Sides(paired(x, -y, pairs), -paired(-x, y, pairs))


# ------------------------------------------------------------------------------------ where a doubled table comes from


@rule(stage="marker", expand=dict(sign=(1, -1)), holds=dict(x="b s h", pairs=1))
def wide_pairs(x: Tensor, pairs: Int, sign: int) -> Sides:
    """pairs of x and x = wide(x), and pairs of -x and x = wide(x), signed"""
    return Sides(paired(x if sign > 0 else -x, x, pairs), wide(x, pairs, sign))


@rule(stage="marker", holds=dict(x="b s H", H=(2, 3)))
def wide_concat(x: Tensor) -> Sides:
    """cat(x, x) = wide(x)"""
    return Sides(concat([x, x]), wide(x, 0))


@rule(stage="marker", expand=dict(n=(2, 3)), holds=dict(x="b s 2", y="b s 3", z="b s 1"))
def wide_concat_several(x: Tensor, y: Tensor, z: Tensor, n: int) -> Sides:
    """cat(x, y, x, y) = wide(cat(x, y)), and so for three"""
    some = [x, y, z][:n]
    return Sides(concat([*some, *some]), wide(concat(some), 0))


@rule(
    stage="marker", expand=dict(pairs=(0, 1)),
    holds=[dict(table="doubled0 5 2h", h=2), dict(table="doubled1 5 2h", h=2)], refuse=[dict(table="5 2h", h=2)],
)  # fmt: skip
def wide_constant(table: Tensor, h: Int, pairs: int) -> Sides:
    """table = wide(the first of its pairs)   for a constant whose pairs are equal"""
    first, _ = parts(table, h, pairs)
    return Sides(table, wide(first, pairs), when=[doubled(table, pairs, 1), eq(dim(table, -1), num(2 * h))])


@rule(
    stage="marker", expand=dict(pairs=(0, 1)),
    holds=[dict(table="signed0 5 2h", h=2), dict(table="signed1 5 2h", h=2)],
    refuse=[dict(table="5 2h", h=2), dict(table="doubled0 5 2h", h=2), dict(table="doubled1 5 2h", h=2)],
)  # fmt: skip
def wide_constant_signed(table: Tensor, h: Int, pairs: int) -> Sides:
    """table = wide(the second of its pairs), signed   for a constant whose pairs differ in sign"""
    _, second = parts(table, h, pairs)
    return Sides(table, wide(second, pairs, -1), when=[doubled(table, pairs, -1), eq(dim(table, -1), num(2 * h))])


# -------------------------------------------------------------------------------------------- how a doubled table moves


@rule(stage="marker", holds=dict(x="b s h", pairs=1, sign=-1))
def wide_cos(x: Tensor, pairs: Int, sign: Int) -> Sides:
    """cos(wide(x)) = wide(cos(x)), whatever its signs"""
    return Sides(call("Cos", wide(x, pairs, sign)), wide(call("Cos", x), pairs))


@rule(stage="marker", holds=dict(x="b s h", pairs=1, sign=-1))
def wide_sin(x: Tensor, pairs: Int, sign: Int) -> Sides:
    """sin(wide(x)) = wide(sin(x))"""
    return Sides(call("Sin", wide(x, pairs, sign)), wide(call("Sin", x), pairs, sign))


@rule(stage="marker", holds=dict(x="b s h", pairs=1, sign=-1))
def wide_neg(x: Tensor, pairs: Int, sign: Int) -> Sides:
    """-wide(x) = wide(-x)"""
    return Sides(-wide(x, pairs, sign), wide(-x, pairs, sign))


@rule(stage="marker", holds=dict(x="b s h", pairs=1, to=10))
def wide_cast(x: Tensor, pairs: Int, to: Int) -> Sides:
    """cast(wide(x)) = wide(cast(x))"""
    return Sides(call("Cast", wide(x, pairs), to), wide(call("Cast", x, to), pairs))


@rule(
    stage="marker", expand=dict(before=(FLOAT16, FLOAT32, FLOAT64), to=(FLOAT16, FLOAT32, FLOAT64)),
    holds=[dict(x="b s h", pairs=1), dict(x="b s h:float16", pairs=0)], refuse=[dict(x="b s h:int64", pairs=1)],
)  # fmt: skip
def wide_cast_signed(x: Tensor, pairs: Int, before: int, to: int) -> Sides:
    """cast(wide(x), signed) = wide(cast(x), signed)   between floating types"""
    return Sides(
        call("Cast", wide(x, pairs, -1), to), wide(call("Cast", x, to), pairs, -1), when=[eq(dtype(x), before)]
    )


@rule(
    stage="marker", expand=dict(divides=(0, 1), one=(0, 1)),
    holds=[dict(x="b s h", scale="", pairs=0, sign=1), dict(x="b s h", scale="", pairs=1, sign=-1),
           dict(x="b s h", scale="1", pairs=0, sign=1), dict(x="s h", scale="b 1 1", pairs=1, sign=-1)],
    refuse=[dict(x="b s h", scale="2h", pairs=0, sign=1), dict(x="b s 3", scale="6", pairs=0, sign=1)],
)  # fmt: skip
def wide_scale(x: Tensor, scale: Tensor, pairs: Int, sign: Int, divides: int, one: int) -> Sides:
    """wide(x) * scale = wide(x * scale), and / scale   for a scale constant along the last axis, or a scalar"""
    left, inner = (t / scale if divides else t * scale for t in (wide(x, pairs, sign), x))
    flat = eq(dim(scale, -1), num(1)) if one else eq(rank(scale), 0)
    return Sides(left, wide(inner, pairs, sign), when=[flat])


@rule(stage="marker", holds=[dict(x="b s h", y="b s h", pairs=0, sign=1, other=-1),
                             dict(x="b s h", y="h", pairs=1, sign=-1, other=-1)])  # fmt: skip
def wide_mul(x: Tensor, y: Tensor, pairs: Int, sign: Int, other: Int) -> Sides:
    """wide(x) * wide(y) = wide(x * y), and the signs as well"""
    return Sides(wide(x, pairs, sign) * wide(y, pairs, other), wide(x * y, pairs, sign * other),
                 when=[eq(dim(x, -1), dim(y, -1))])  # fmt: skip


@rule(stage="marker", expand=dict(n=(2, 3, 4)), holds=dict(x="1 s h", shape="ints b 1 1", pairs=1, sign=-1),
      refuse=[dict(x="1 s 1", shape="ints b 1 2", pairs=0, sign=1)])  # fmt: skip
def wide_expand(x: Tensor, shape: Tensor, pairs: Int, sign: Int, n: int) -> Sides:
    """expand(wide(x), shape) = wide(expand(x, shape))   where the last axis stays"""
    return Sides(tensor("Expand", wide(x, pairs, sign), shape), wide(tensor("Expand", x, shape), pairs, sign),
                 when=[eq(length(shape), n), eq(elem(shape, n - 1), num(1))])  # fmt: skip


@rule(
    stage="marker", holds=[dict(x="b s h", axis=-3, pairs=0, sign=1), dict(x="b s h", axis=-2, pairs=1, sign=-1)],
    refuse=[dict(x="b s h", axis=-1, pairs=0, sign=1)],
)  # fmt: skip
def wide_unsqueeze(x: Tensor, axis: Int, pairs: Int, sign: Int) -> Sides:
    """unsqueeze(wide(x), axis) = wide(unsqueeze(x, axis))   for an axis other than the last"""
    return Sides(unsqueeze(wide(x, pairs, sign), axis), wide(unsqueeze(x, axis), pairs, sign), when=[ne(axis, -1)])


@rule(stage="marker", holds=dict(x="1 s h", axis=-3, pairs=1, sign=-1))
def wide_squeeze(x: Tensor, axis: Int, pairs: Int, sign: Int) -> Sides:
    """squeeze(wide(x), axis) = wide(squeeze(x, axis))   for an axis other than the last"""
    return Sides(squeeze(wide(x, pairs, sign), axis), wide(squeeze(x, axis), pairs, sign), when=[ne(axis, -1)])


@rule(
    stage="marker", expand=dict(n=(2, 3, 4, 5)), holds=dict(x="b s h", perm=(1, 0, 2), pairs=1, sign=-1),
    refuse=[dict(x="b s h", perm=(0, 2, 1), pairs=0, sign=1), dict(x="s h", perm=(1, 0), pairs=0, sign=1),
            dict(x="b n s h", perm=(0, 1, 3, 2), pairs=1, sign=-1),
            dict(x="b n t s h", perm=(0, 1, 2, 4, 3), pairs=1, sign=-1)],
)  # fmt: skip
def wide_transpose(x: Tensor, perm: Ints, pairs: Int, sign: Int, n: int) -> Sides:
    """transpose(wide(x), perm) = wide(transpose(x, perm))   if perm leaves the last axis in place"""
    return Sides(call("Transpose", wide(x, pairs, sign), perm), wide(call("Transpose", x, perm), pairs, sign),
                 when=[eq(count(perm), n), eq(at(perm, n - 1), n - 1)])  # fmt: skip


@rule(stage="marker", holds=dict(x="5 h", ids="ids 5 b s", axis=-2, pairs=1, sign=-1),
      refuse=[dict(x="5 h", ids="ids 5 b s", axis=-1, pairs=0, sign=1)])  # fmt: skip
def wide_gather(x: Tensor, ids: Tensor, axis: Int, pairs: Int, sign: Int) -> Sides:
    """gather(wide(x), ids, axis) = wide(gather(x, ids, axis))   for an axis other than the last"""
    return Sides(call("Gather", wide(x, pairs, sign), ids, axis), wide(call("Gather", x, ids, axis), pairs, sign),
                 when=[ne(axis, -1)])  # fmt: skip


@rule(stage="marker", holds=dict(x="5 h", axis=-2, start=1, end=3, step=1, pairs=1, sign=-1),
      refuse=[dict(x="b 5", axis=-1, start=1, end=3, step=1, pairs=0, sign=1)])  # fmt: skip
def wide_slice_other(x: Tensor, axis: Int, start: Int, end: Int, step: Int, pairs: Int, sign: Int) -> Sides:
    """wide(x)[start:end:step on axis] = wide(x[start:end:step on axis])   for an axis other than the last"""
    return Sides(call("SliceC", wide(x, pairs, sign), axis, start, end, step),
                 wide(call("SliceC", x, axis, start, end, step), pairs, sign), when=[ne(axis, -1)])  # fmt: skip


@rule(
    stage="marker", holds=dict(x="5 h", start="ints 0", end="ints 3", axis=-2, step=1, pairs=1, sign=-1),
    refuse=[dict(x="b 5", start="ints 0", end="ints 3", axis=-1, step=1, pairs=0, sign=1)],
)  # fmt: skip
def wide_slice_dynamic(x: Tensor, start: Tensor, end: Tensor, axis: Int, step: Int, pairs: Int, sign: Int) -> Sides:
    """wide(x)[start:end:step on axis] = wide(x[..])   for any but the last, bounds computed at run time"""
    return Sides(call("Slice", wide(x, pairs, sign), start, end, axis, step),
                 wide(call("Slice", x, start, end, axis, step), pairs, sign), when=[ne(axis, -1)])  # fmt: skip


@rule(stage="marker", holds=dict(x="b 5", h=5, start=1, end=4), refuse=[dict(x="b 5", h=5, start=1, end=7)])
def wide_slice_first(x: Tensor, h: Int, start: Int, end: Int) -> Sides:
    """cat(x, x)[start:end] = x[start:end]   within the first half"""
    return Sides(slice_(wide(x, 0), start, end), slice_(x, start, end), when=[eq(dim(x, -1), num(h)), le(end, h)])


@rule(stage="marker", holds=dict(x="b 5", h=5, start=6, end=9), refuse=[dict(x="b 5", h=5, start=4, end=7)])
def wide_slice_second(x: Tensor, h: Int, start: Int, end: Int) -> Sides:
    """cat(x, x)[h+start:h+end] = x[start:end]   within the second half"""
    return Sides(slice_(wide(x, 0), start, end), slice_(x, start - h, end - h),
                 when=[eq(dim(x, -1), num(h)), le(h, start)])  # fmt: skip


@rule(stage="marker", holds=dict(x="b 5", h=5), refuse=[])
def wide_slice_even(x: Tensor, h: Int) -> Sides:
    """(every element twice)[::2] = x"""
    return Sides(slice_(wide(x, 1), 0, 2 * h - 1, step=2), x, when=[eq(dim(x, -1), num(h))])


# ----------------------------------------------------------------------------------------------------- the quarter turn


@rule(
    stage="marker", expand=dict(pairs=(0, 1)), holds=[dict(x="b n s 2h"), dict(x="2h")], refuse=[dict(x="b 6", h=2)],
)  # fmt: skip
def rot_parts(x: Tensor, h: Int, pairs: int) -> Sides:
    """pairs of -b and a = rot(x)   for pairs a and b of x"""
    first, second = parts(x, h, pairs)
    return Sides(paired(-second, first, pairs), rot(x, pairs), when=[eq(dim(x, -1), num(2 * h))])


@rule(
    stage="marker", contract="finite", expand=dict(sign=(1, -1)),
    holds=[dict(x="b n s 2h", m="turn0 2h 2h", pairs=0), dict(x="b n s 2h", m="back1 2h 2h", pairs=1)],
    refuse=[dict(x="b n s 2h", m="2h 2h", pairs=0)],
)  # fmt: skip
def rot_matrix(x: Tensor, m: Tensor, pairs: Int, sign: int) -> Sides:
    """x @ m = rot(x), or -rot(x)   for the matrix m of a quarter turn"""
    return Sides(x @ m, rot(x, pairs) if sign > 0 else -rot(x, pairs), when=[turns(m, pairs, sign)])


@rule(
    stage="marker", expand=dict(pairs=(0, 1)), holds=[dict(x="b n s 2h", sin="b 1 s h"), dict(x="2h", sin="h")],
    refuse=[dict(x="b 6", sin="b 2", h=2)],
)  # fmt: skip
def rot_swap(x: Tensor, sin: Tensor, h: Int, pairs: int) -> Sides:
    """pairs of b and a * wide(sin), signed = rot(x) * wide(sin)   for pairs a and b of x"""
    first, second = parts(x, h, pairs)
    return Sides(paired(second, first, pairs) * wide(sin, pairs, -1), rot(x, pairs) * wide(sin, pairs),
                 when=[eq(dim(x, -1), num(2 * h))])  # fmt: skip


@rule(
    stage="marker", contract="reassociated",
    holds=[dict(x="b n s 2h", table="h", sin="b 1 s h", pairs=0),
           dict(x="b n s 2h", table="h", sin="b 1 s h", pairs=1)],
)  # fmt: skip
def rot_scale(x: Tensor, table: Tensor, sin: Tensor, pairs: Int) -> Sides:
    """rot(x) * wide(table) * wide(sin) = rot(x) * wide(table * sin)"""
    return Sides(rot(x, pairs) * wide(table, pairs) * wide(sin, pairs), rot(x, pairs) * wide(table * sin, pairs))


# --------------------------------------------------------------------------------------------------------- the rotation


@rule(
    stage="fuse", contract="reassociated", expand=dict(back=(0, 1)),
    holds=[dict(x="b n s 2h", cos="b 1 s h", sin="b 1 s h", pairs=0),
           dict(x="b n s 2h", cos="s h", sin="s h", pairs=1)],
)  # fmt: skip
def rope_sum(x: Tensor, cos: Tensor, sin: Tensor, pairs: Int, back: int) -> Sides:
    """x * wide(cos) + rot(x) * wide(sin) = rope(x, cos, sin); with - for +: rope(x, cos, -sin), a turn back"""
    same, turned = x * wide(cos, pairs), rot(x, pairs) * wide(sin, pairs)
    return Sides(same - turned if back else same + turned, rope(x, cos, -sin if back else sin, pairs))


_HALVES: dict[str, Any] = dict(x="b n s h", y="b n s h", cos="b 1 s h", sin="b 1 s h", pairs=0)
_OTHER_HALVES: list[dict[str, Any]] = [  # cos and sin differ in shape: they might be x and y as well
    dict(_HALVES, x="b n s 3", y="b n s 3", cos="b 1 s 1", sin="b 1 s 3"),
    dict(_HALVES, x="b n s 3", y="b n s 3", cos="b 1 s 3", sin="b 1 s 1"),
    dict(_HALVES, x="b n s 3", y="b n s 1", cos="b 1 s 3", sin="b 1 s 3"),
    dict(_HALVES, x="b n s 3", y="b 1 s 3", cos="b 1 s 3", sin="1 1 s 3"),
    *({**_HALVES, "sin": "1 1 s h", **other} for other in ({"x": "1 b n s h"}, {"y": "1 b n s h"}, {"x": "b n 1 h"})),
]  # fmt: skip


@rule(
    stage="fuse", contract="reassociated", expand=dict(back=(0, 1)), holds=[_HALVES, dict(_HALVES, pairs=1)],
    refuse=_OTHER_HALVES,
)  # fmt: skip
def rope_paired(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor, pairs: Int, back: int) -> Sides:
    """pairs of x*cos - y*sin and y*cos + x*sin = rope(pairs of x and y, cos, sin); with both signs turned: -sin"""
    first, second = (x * cos + y * sin, y * cos - x * sin) if back else (x * cos - y * sin, y * cos + x * sin)
    when = [*(eq(dim(t, -1), dim(x, -1)) for t in (cos, sin)), eq(sizes(x), sizes(y))]
    rhs = rope(paired(x, y, pairs), cos, -sin if back else sin, pairs)
    return Sides(paired(first, second, pairs), rhs, when=when)


_PAIRS = dict(x="b n s 2h", cos="b 1 s h", sin="b 1 s h", shape="ints b n s 2h")
_OTHER_TABLES: list[dict[str, Any]] = [
    dict(_PAIRS, shape="ints n b s 2h"), dict(x="b n s 6", cos="b 1 s 1", sin="b 1 s 3", h=3, shape="ints b n s 6"),
    dict(x="b n s 6", cos="b 1 s 3", sin="b 1 s 1", shape="ints b n s 6"), dict(_PAIRS, x="1 b n s 2h"),
    dict(_PAIRS, cos="1 b 1 s h"), dict(_PAIRS, sin="1 b 1 s h"),
    dict(x="1 1 s 2h", cos="5 1 s h", sin="1 1 s h", shape="ints 1 5 s 2h"),
    dict(x="1 1 s 2h", cos="1 5 s h", sin="1 1 s h", shape="ints 5 1 s 2h"),
    dict(x="1 n 1 2h", cos="3 1 1 h", sin="1 1 1 h", shape="ints 1 n 3 2h"),
    dict(x="1 n s 2h", cos="3 1 s h", sin="1 1 s h", shape="ints 1 n s 6h"),
    dict(x="1 n s 6", cos="3 1 s 1", sin="1 1 s 1", shape="ints 1 n s 6", h=1),
]  # fmt: skip


@rule(
    stage="fuse", contract="reassociated",
    holds=dict(x="b n s 2h", cos="b 1 s h 1", sin="s h 1", shape="ints b n s 2h"),
    refuse=[{**sample, **{name: f"{sample[name]} 1" for name in ("cos", "sin")}} for sample in _OTHER_TABLES],
)  # fmt: skip
def rope_columns(x: Tensor, cos: Tensor, sin: Tensor, shape: Tensor, h: Int) -> Sides:
    """reshape(cat(xe*cos - xo*sin, xo*cos + xe*sin)) = rope(x, cos, sin) of (even, odd) pairs, columns [.., h, 1]"""
    even, odd = unsqueeze(slice_(x, 0, 2 * h - 1, step=2), -1), unsqueeze(slice_(x, 1, 2 * h, step=2), -1)
    flat = tensor("Reshape", concat([even * cos - odd * sin, odd * cos + even * sin]), shape)
    columns = [g for v in (cos, sin) for g in (eq(dim(v, -1), num(1)), eq(dim(v, -2), num(h)))]
    ranks = [le(rank(t), rank(even)) for t in (cos, sin)]
    when = [*ranks, eq(sizes(flat), sizes(x)), eq(dim(x, -1), num(2 * h)), *columns]
    return Sides(flat, rope(x, squeeze(cos, -1), squeeze(sin, -1), 1), when=when)


@rule(stage="marker",
      holds=[dict(x="b 3 h", y="b 5 h", axis=-2, pairs=0, sign=1), dict(x="2 h", y="3 h", axis=-2, pairs=1, sign=-1)],
      refuse=[dict(x="b 3", y=y, axis=-1, pairs=0, sign=1) for y in ("b 3", "b 5")])  # fmt: skip
def wide_stacked(x: Tensor, y: Tensor, axis: Int, pairs: Int, sign: Int) -> Sides:
    """cat(wide(x), wide(y); axis) = wide(cat(x, y; axis))   for an axis other than the last"""
    both = concat([wide(x, pairs, sign), wide(y, pairs, sign)], axis)
    return Sides(both, wide(concat([x, y], axis), pairs, sign), when=[ne(axis, -1)])


@rule(stage="marker", holds=dict(x="b s h"))
def wide_written(x: Tensor) -> Sides:
    """wide(x) = cat(x, x): a table that is wanted whole is computed by halves"""
    return Sides(wide(x, 0), concat([x, x]))
