"""Rotary position embeddings: tables that repeat themselves, the quarter turn, and the rotation made of both.

Pairs are told apart by `pairs`: 0 pairs element j with j + h (rotate_half, cat(f, f)), 1 pairs 2j with 2j + 1
(interleaved, every element twice). Sources: RoFormer (arXiv 2104.09864) and the exporters' spellings of it. Cos and
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
    eq,
    le,
    ne,
    num,
    rank,
    rule,
    slice_,
    squeeze,
    tensor,
    unsqueeze,
)


def wide(x: Tensor, pairs: int | Int) -> Tensor:
    return tensor("Wide", x, pairs)


def rot(x: Tensor, pairs: int | Int) -> Tensor:
    return tensor("Rot", x, pairs)


def rope(x: Tensor, cos: Tensor, sin: Tensor, pairs: int | Int) -> Tensor:
    return tensor("Rope", x, cos, sin, pairs)


# ------------------------------------------------------------------------------------ where a doubled table comes from


@rule(stage="marker", holds=dict(x="b s h"))
def wide_concat(x: Tensor) -> Sides:
    """cat(x, x) = wide(x)"""
    return Sides(concat([x, x]), wide(x, 0))


@rule(stage="marker", holds=dict(x="b s 2", y="b s 3"))
def wide_concat_4(x: Tensor, y: Tensor) -> Sides:
    """cat(x, y, x, y) = wide(cat(x, y))"""
    return Sides(concat([x, y, x, y]), wide(concat([x, y]), 0))


@rule(stage="marker", holds=dict(x="b s 2", y="b s 3", z="b s 1"))
def wide_concat_6(x: Tensor, y: Tensor, z: Tensor) -> Sides:
    """cat(x, y, z, x, y, z) = wide(cat(x, y, z))"""
    return Sides(concat([x, y, z, x, y, z]), wide(concat([x, y, z]), 0))


_TWICE = dict(x="b s h", twice="ints b s h 2", shape="ints b s 2h")


@rule(
    stage="marker", expand=dict(r=(1, 2, 3, 4)), holds=_TWICE,
    refuse=[dict(_TWICE, twice="ints b s h 3", shape="ints b s 3h"), dict(_TWICE, shape="ints s b 2h"),
            dict(x="1 3", twice="ints 2 3 1", shape="ints 1 6"), dict(_TWICE, shape="ints 1 b s 2h"),
            dict(x="b s 1", twice="ints b s 3 2", shape="ints b s 6"),
            dict(x="b 1 h", twice="ints b 5 h 2", shape="ints b 5 2h"),
            *(dict(x="1 s h", twice="ints 3 s h 2", shape=t) for t in ("ints 3 s 2h", "ints 1 s 6h")),
            dict(x="1 n s h", twice="ints 3 n s h 2", shape="ints 3 n s 2h")],
)  # fmt: skip
def wide_repeat(x: Tensor, twice: Tensor, shape: Tensor, h: Int, r: int) -> Sides:
    """reshape(expand(unsqueeze(x, -1), [.., h, 2]), [.., 2h]) = wide(x), every element twice"""
    pairs = tensor("Expand", unsqueeze(x, -1), twice)
    flat = tensor("Reshape", pairs, shape)
    same = [eq(dim(flat, -k), dim(x, -k)) for k in range(2, r + 1)]
    sizes = [eq(dim(pairs, -1), num(2)), eq(dim(pairs, -2), num(h)), eq(dim(x, -1), num(h)), eq(rank(pairs), r + 1)]
    when = [eq(rank(x), r), *sizes, eq(rank(flat), r), eq(dim(flat, -1), num(2 * h)), *same]
    return Sides(flat, wide(x, 1), when=when)


@rule(
    stage="marker", expand=dict(r=(1, 2, 3, 4)), holds=dict(x="b s h", shape="ints b s 2h"),
    refuse=[dict(x="b s h", shape="ints s b 2h"), dict(x="1 n s h", shape="ints n s 2h"),
            dict(x="b s h", shape="ints 1 b s 2h")],
)  # fmt: skip
def wide_stack(x: Tensor, shape: Tensor, h: Int, r: int) -> Sides:
    """reshape(stack(x, x), [.., 2h]) = wide(x), every element twice"""
    flat = tensor("Reshape", concat([unsqueeze(x, -1), unsqueeze(x, -1)]), shape)
    same = [eq(dim(flat, -k), dim(x, -k)) for k in range(2, r + 1)]
    when = [eq(rank(x), r), eq(rank(flat), r), eq(dim(x, -1), num(h)), eq(dim(flat, -1), num(2 * h)), *same]
    return Sides(flat, wide(x, 1), when=when)


@rule(stage="marker", holds=dict(table="doubled0 5 2h", h=2), refuse=[dict(table="5 2h", h=2)])
def wide_constant(table: Tensor, h: Int) -> Sides:
    """table = wide(table[..., :h])   for a constant whose halves are equal"""
    return Sides(table, wide(slice_(table, 0, h), 0), when=[doubled(table, 0), eq(dim(table, -1), num(2 * h))])


@rule(stage="marker", holds=dict(table="doubled1 5 2h", h=2), refuse=[dict(table="5 2h", h=2)])
def wide_constant_pairs(table: Tensor, h: Int) -> Sides:
    """table = wide(table[..., ::2])   for a constant that holds every element twice"""
    return Sides(table, wide(slice_(table, 0, 2 * h - 1, step=2), 1),
                 when=[doubled(table, 1), eq(dim(table, -1), num(2 * h))])  # fmt: skip


@rule(stage="marker", holds=dict(table="doubled2 5 2h", h=2),
      refuse=[dict(table="5 2h", h=2), dict(table="doubled0 5 2h", h=2)])  # fmt: skip
def signed_constant(table: Tensor, h: Int) -> Sides:
    """table = cat(-table[h:], table[h:])   for a constant whose halves differ in sign"""
    second = slice_(table, h, 2 * h)
    return Sides(table, concat([-second, second]), when=[doubled(table, 2), eq(dim(table, -1), num(2 * h))])


# -------------------------------------------------------------------------------------------- how a doubled table moves


@rule(stage="marker", holds=dict(x="b s h", pairs=1))
def wide_cos(x: Tensor, pairs: Int) -> Sides:
    """cos(wide(x)) = wide(cos(x))"""
    return Sides(call("Cos", wide(x, pairs)), wide(call("Cos", x), pairs))


@rule(stage="marker", holds=dict(x="b s h", pairs=1))
def wide_sin(x: Tensor, pairs: Int) -> Sides:
    """sin(wide(x)) = wide(sin(x))"""
    return Sides(call("Sin", wide(x, pairs)), wide(call("Sin", x), pairs))


@rule(stage="marker", holds=dict(x="b s h", pairs=1))
def wide_neg(x: Tensor, pairs: Int) -> Sides:
    """-wide(x) = wide(-x)"""
    return Sides(-wide(x, pairs), wide(-x, pairs))


@rule(stage="marker", holds=dict(x="b s h", pairs=1, to=10))
def wide_cast(x: Tensor, pairs: Int, to: Int) -> Sides:
    """cast(wide(x)) = wide(cast(x))"""
    return Sides(call("Cast", wide(x, pairs), to), wide(call("Cast", x, to), pairs))


@rule(
    stage="marker", holds=[dict(x="b s h", scale="", pairs=0), dict(x="b s h", scale="", pairs=1)],
    refuse=[dict(x="b s h", scale="2h", pairs=0)],
)  # fmt: skip
def wide_scale(x: Tensor, scale: Tensor, pairs: Int) -> Sides:
    """wide(x) * scale = wide(x * scale)   for a scalar scale"""
    return Sides(wide(x, pairs) * scale, wide(x * scale, pairs), when=[eq(rank(scale), 0)])


@rule(
    stage="marker", holds=[dict(x="b s h", scale="1", pairs=0), dict(x="s h", scale="b 1 1", pairs=1)],
    refuse=[dict(x="b s 3", scale="6", pairs=0)],
)  # fmt: skip
def wide_scale_one(x: Tensor, scale: Tensor, pairs: Int) -> Sides:
    """wide(x) * scale = wide(x * scale)   for scale constant along the last axis"""
    return Sides(wide(x, pairs) * scale, wide(x * scale, pairs), when=[eq(dim(scale, -1), num(1))])


@rule(stage="marker", holds=[dict(x="b s h", y="b s h", pairs=0), dict(x="b s h", y="h", pairs=1)])
def wide_mul(x: Tensor, y: Tensor, pairs: Int) -> Sides:
    """wide(x) * wide(y) = wide(x * y)"""
    return Sides(wide(x, pairs) * wide(y, pairs), wide(x * y, pairs), when=[eq(dim(x, -1), dim(y, -1))])


@rule(
    stage="marker", holds=[dict(x="b s h", axis=-3, pairs=0), dict(x="b s h", axis=-2, pairs=1)],
    refuse=[dict(x="b s h", axis=-1, pairs=0)],
)  # fmt: skip
def wide_unsqueeze(x: Tensor, axis: Int, pairs: Int) -> Sides:
    """unsqueeze(wide(x), axis) = wide(unsqueeze(x, axis))   for an axis other than the last"""
    return Sides(unsqueeze(wide(x, pairs), axis), wide(unsqueeze(x, axis), pairs), when=[ne(axis, -1)])


@rule(stage="marker", holds=dict(x="1 s h", axis=-3, pairs=1))
def wide_squeeze(x: Tensor, axis: Int, pairs: Int) -> Sides:
    """squeeze(wide(x), axis) = wide(squeeze(x, axis))   for an axis other than the last"""
    return Sides(squeeze(wide(x, pairs), axis), wide(squeeze(x, axis), pairs), when=[ne(axis, -1)])


@rule(
    stage="marker", expand=dict(n=(2, 3, 4, 5)), holds=dict(x="b s h", perm=(1, 0, 2), pairs=1),
    refuse=[dict(x="b s h", perm=(0, 2, 1), pairs=0), dict(x="s h", perm=(1, 0), pairs=0),
            dict(x="b n s h", perm=(0, 1, 3, 2), pairs=1), dict(x="b n t s h", perm=(0, 1, 2, 4, 3), pairs=1)],
)  # fmt: skip
def wide_transpose(x: Tensor, perm: Ints, pairs: Int, n: int) -> Sides:
    """transpose(wide(x), perm) = wide(transpose(x, perm))   if perm leaves the last axis in place"""
    return Sides(call("Transpose", wide(x, pairs), perm), wide(call("Transpose", x, perm), pairs),
                 when=[eq(count(perm), n), eq(at(perm, n - 1), n - 1)])  # fmt: skip


@rule(stage="marker", holds=dict(x="5 h", ids="ids 5 b s", axis=-2, pairs=1),
      refuse=[dict(x="5 h", ids="ids 5 b s", axis=-1, pairs=0)])  # fmt: skip
def wide_gather(x: Tensor, ids: Tensor, axis: Int, pairs: Int) -> Sides:
    """gather(wide(x), ids, axis) = wide(gather(x, ids, axis))   for an axis other than the last"""
    return Sides(call("Gather", wide(x, pairs), ids, axis), wide(call("Gather", x, ids, axis), pairs),
                 when=[ne(axis, -1)])  # fmt: skip


@rule(stage="marker", holds=dict(x="5 h", axis=-2, start=1, end=3, step=1, pairs=1),
      refuse=[dict(x="b 5", axis=-1, start=1, end=3, step=1, pairs=0)])  # fmt: skip
def wide_slice_other(x: Tensor, axis: Int, start: Int, end: Int, step: Int, pairs: Int) -> Sides:
    """wide(x)[start:end:step on axis] = wide(x[start:end:step on axis])   for an axis other than the last"""
    return Sides(call("SliceC", wide(x, pairs), axis, start, end, step),
                 wide(call("SliceC", x, axis, start, end, step), pairs), when=[ne(axis, -1)])  # fmt: skip


@rule(
    stage="marker", holds=dict(x="5 h", start="ints 0", end="ints 3", axis=-2, step=1, pairs=1),
    refuse=[dict(x="b 5", start="ints 0", end="ints 3", axis=-1, step=1, pairs=0)],
)  # fmt: skip
def wide_slice_dynamic(x: Tensor, start: Tensor, end: Tensor, axis: Int, step: Int, pairs: Int) -> Sides:
    """wide(x)[start:end:step on axis] = wide(x[..])   for any but the last, bounds computed at run time"""
    return Sides(call("Slice", wide(x, pairs), start, end, axis, step),
                 wide(call("Slice", x, start, end, axis, step), pairs), when=[ne(axis, -1)])  # fmt: skip


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


@rule(stage="marker", holds=[dict(x="b n s 2h"), dict(x="2h")], refuse=[dict(x="b 6", h=2)])
def rot_halves(x: Tensor, h: Int) -> Sides:
    """cat(-x[h:], x[:h]) = rot(x)"""
    return Sides(concat([-slice_(x, h, 2 * h), slice_(x, 0, h)]), rot(x, 0), when=[eq(dim(x, -1), num(2 * h))])


@rule(stage="marker", holds=[dict(x="b n s 2h"), dict(x="2h")], refuse=[dict(x="b 6", h=2)])
def rot_back(x: Tensor, h: Int) -> Sides:
    """cat(x[h:], -x[:h]) = -rot(x)"""
    return Sides(concat([slice_(x, h, 2 * h), -slice_(x, 0, h)]), -rot(x, 0), when=[eq(dim(x, -1), num(2 * h))])


@rule(
    stage="marker", expand=dict(r=(1, 2, 3, 4, 5)), holds=dict(x="b n s 2h", shape="ints b n s 2h"),
    refuse=[dict(x="b n s 2h", shape="ints n b s 2h"), dict(x="b n s 6", shape="ints b n s 4", h=2),
            dict(x="b n s 2h", shape="ints 1 b n s 2h")],
)  # fmt: skip
def rot_pairs(x: Tensor, shape: Tensor, h: Int, r: int) -> Sides:
    """reshape(stack(-x[1::2], x[0::2]), shape of x) = rot(x) of (even, odd) pairs"""
    even, odd = slice_(x, 0, 2 * h - 1, step=2), slice_(x, 1, 2 * h, step=2)
    flat = tensor("Reshape", concat([unsqueeze(-odd, -1), unsqueeze(even, -1)]), shape)
    same = [eq(dim(flat, -k), dim(x, -k)) for k in range(1, r + 1)]
    return Sides(flat, rot(x, 1), when=[eq(rank(x), r), eq(rank(flat), r), eq(dim(x, -1), num(2 * h)), *same])


@rule(
    stage="marker", holds=[dict(x="b n s 2h", sin="b 1 s h"), dict(x="2h", sin="h")],
    refuse=[dict(x="b 6", sin="b 2", h=2)],
)  # fmt: skip
def rot_swap(x: Tensor, sin: Tensor, h: Int) -> Sides:
    """cat(x[h:], x[:h]) * cat(-sin, sin) = rot(x) * wide(sin)"""
    swapped = concat([slice_(x, h, 2 * h), slice_(x, 0, h)])
    return Sides(swapped * concat([-sin, sin]), rot(x, 0) * wide(sin, 0), when=[eq(dim(x, -1), num(2 * h))])


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
    stage="fuse", contract="reassociated",
    holds=[dict(x="b n s 2h", cos="b 1 s h", sin="b 1 s h", pairs=0),
           dict(x="b n s 2h", cos="s h", sin="s h", pairs=1)],
)  # fmt: skip
def rope_sum(x: Tensor, cos: Tensor, sin: Tensor, pairs: Int) -> Sides:
    """x * wide(cos) + rot(x) * wide(sin) = rope(x, cos, sin)"""
    return Sides(x * wide(cos, pairs) + rot(x, pairs) * wide(sin, pairs), rope(x, cos, sin, pairs))


_HALVES = dict(x="b n s h", y="b n s h", cos="b 1 s h", sin="1 1 s h")


@rule(
    stage="fuse", contract="reassociated", holds=dict(_HALVES, sin="b 1 s h"),
    refuse=[dict(_HALVES, x="b n s 3", y="b n s 3", cos="b 1 s 1", sin="b 1 s 3"),
            dict(_HALVES, x="b n s 3", y="b n s 3", cos="b 1 s 3", sin="b 1 s 1"),
            dict(_HALVES, x="b n s 3", y="b n s 1", cos="b 1 s 3", sin="b 1 s 3"),
            dict(_HALVES, x="b n s 3", y="b 1 s 3", cos="b 1 s 3", sin="1 1 s 3"),
            dict(_HALVES, x="1 b n s h"), dict(_HALVES, y="1 b n s h"), dict(_HALVES, x="b n 1 h")],
)  # fmt: skip
def rope_halves(x: Tensor, y: Tensor, cos: Tensor, sin: Tensor, h: Int) -> Sides:
    """cat(x*cos - y*sin, y*cos + x*sin) = rope(cat(x, y), cos, sin)"""
    sizes = [eq(dim(t, -1), num(h)) for t in (x, y, cos, sin)] + [eq(rank(x), 4), eq(rank(y), 4)]
    same = [eq(dim(x, -k), dim(y, -k)) for k in (2, 3, 4)]
    return Sides(concat([x * cos - y * sin, y * cos + x * sin]), rope(concat([x, y]), cos, sin, 0), when=sizes + same)


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
    stage="fuse", contract="reassociated", expand=dict(r=(3, 4)),
    holds=_PAIRS, refuse=_OTHER_TABLES,
)  # fmt: skip
def rope_pairs(x: Tensor, cos: Tensor, sin: Tensor, shape: Tensor, h: Int, r: int) -> Sides:
    """reshape(stack(xe*cos - xo*sin, xo*cos + xe*sin)) = rope(x, cos, sin) of (even, odd) pairs"""
    even, odd = slice_(x, 0, 2 * h - 1, step=2), slice_(x, 1, 2 * h, step=2)
    turned = [unsqueeze(even * cos - odd * sin, -1), unsqueeze(odd * cos + even * sin, -1)]
    flat = tensor("Reshape", concat(turned), shape)
    sizes = [eq(dim(x, -1), num(2 * h)), eq(dim(cos, -1), num(h)), eq(dim(sin, -1), num(h))]
    same = [eq(dim(flat, -k), dim(x, -k)) for k in range(1, r + 1)]
    ranks = [eq(rank(x), r), eq(rank(flat), r), le(rank(cos), r), le(rank(sin), r)]
    return Sides(flat, rope(x, cos, sin, 1), when=[*ranks, *sizes, *same])


@rule(
    stage="fuse", contract="reassociated", expand=dict(r=(3, 4)),
    holds=dict(x="b n s 2h", cos="b 1 s h 1", sin="s h 1", shape="ints b n s 2h"),
    refuse=[{**sample, **{name: f"{sample[name]} 1" for name in ("cos", "sin")}} for sample in _OTHER_TABLES],
)  # fmt: skip
def rope_columns(x: Tensor, cos: Tensor, sin: Tensor, shape: Tensor, h: Int, r: int) -> Sides:
    """reshape(cat(xe*cos - xo*sin, xo*cos + xe*sin)) = rope(x, cos, sin) of (even, odd) pairs, columns [.., h, 1]"""
    even, odd = unsqueeze(slice_(x, 0, 2 * h - 1, step=2), -1), unsqueeze(slice_(x, 1, 2 * h, step=2), -1)
    flat = tensor("Reshape", concat([even * cos - odd * sin, odd * cos + even * sin]), shape)
    columns = [g for v in (cos, sin) for g in (eq(dim(v, -1), num(1)), eq(dim(v, -2), num(h)))]
    same = [eq(dim(flat, -k), dim(x, -k)) for k in range(1, r + 1)]
    ranks = [eq(rank(x), r), eq(rank(flat), r), le(rank(cos), r + 1), le(rank(sin), r + 1)]
    when = [*ranks, eq(dim(x, -1), num(2 * h)), *columns, *same]
    return Sides(flat, rope(x, squeeze(cos, -1), squeeze(sin, -1), 1), when=when)


@rule(stage="marker", holds=[dict(x="b 3 h", y="b 5 h", axis=-2, pairs=0), dict(x="2 h", y="3 h", axis=-2, pairs=1)],
      refuse=[dict(x="b 3", y="b 3", axis=-1, pairs=0), dict(x="b 3", y="b 5", axis=-1, pairs=0)])  # fmt: skip
def wide_stacked(x: Tensor, y: Tensor, axis: Int, pairs: Int) -> Sides:
    """cat(wide(x), wide(y); axis) = wide(cat(x, y; axis))   for an axis other than the last"""
    return Sides(concat([wide(x, pairs), wide(y, pairs)], axis), wide(concat([x, y], axis), pairs), when=[ne(axis, -1)])


@rule(stage="marker", holds=dict(x="b s h"))
def wide_written(x: Tensor) -> Sides:
    """wide(x) = cat(x, x): a table that is wanted whole is computed by halves"""
    return Sides(wide(x, 0), concat([x, x]))
