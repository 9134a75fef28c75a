"""Rotary position embeddings: tables that repeat themselves, the quarter turn, and the rotation made of both.

Pairs are told apart by `pairs`: 0 pairs element j with j + h (rotate_half, cat(f, f)), 1 pairs 2j with 2j + 1
(interleaved, every element twice). Sources: RoFormer (arXiv 2104.09864) and the exporters' spellings of it. Cos and
sin stay what the model computes at run time: nothing is baked, no position is assumed bounded.
"""

from __future__ import annotations

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


@rule(
    stage="marker", expand=dict(r=(1, 2, 3, 4)), holds=dict(x="b s h", t="ints b s h 2", u="ints b s 2h"),
    refuse=[dict(x="b s h", t="ints b s h 3", u="ints b s 3h"), dict(x="b s h", t="ints b s h 2", u="ints s b 2h"),
            dict(x="1 3", t="ints 2 3 1", u="ints 1 6"), dict(x="b s 1", t="ints b s 3 2", u="ints b s 6"),
            dict(x="b s h", t="ints b s h 2", u="ints 1 b s 2h"), dict(x="b 1 h", t="ints b 5 h 2", u="ints b 5 2h"),
            dict(x="1 s h", t="ints 3 s h 2", u="ints 3 s 2h"), dict(x="1 s h", t="ints 3 s h 2", u="ints 1 s 6h"),
            dict(x="1 n s h", t="ints 3 n s h 2", u="ints 3 n s 2h")],
)  # fmt: skip
def wide_repeat(x: Tensor, t: Tensor, u: Tensor, h: Int, r: int) -> Sides:
    """reshape(expand(unsqueeze(x, -1), [.., h, 2]), [.., 2h]) = wide(x), every element twice"""
    pairs = tensor("Expand", unsqueeze(x, -1), t)
    flat = tensor("Reshape", pairs, u)
    same = [eq(dim(flat, -k), dim(x, -k)) for k in range(2, r + 1)]
    sizes = [eq(dim(pairs, -1), num(2)), eq(dim(pairs, -2), num(h)), eq(dim(x, -1), num(h)), eq(rank(pairs), r + 1)]
    when = [eq(rank(x), r), *sizes, eq(rank(flat), r), eq(dim(flat, -1), num(2 * h)), *same]
    return Sides(flat, wide(x, 1), when=when)


@rule(
    stage="marker", expand=dict(r=(1, 2, 3, 4)), holds=dict(x="b s h", u="ints b s 2h"),
    refuse=[dict(x="b s h", u="ints s b 2h"), dict(x="1 n s h", u="ints n s 2h"), dict(x="b s h", u="ints 1 b s 2h")],
)  # fmt: skip
def wide_stack(x: Tensor, u: Tensor, h: Int, r: int) -> Sides:
    """reshape(stack(x, x), [.., 2h]) = wide(x), every element twice"""
    flat = tensor("Reshape", concat([unsqueeze(x, -1), unsqueeze(x, -1)]), u)
    same = [eq(dim(flat, -k), dim(x, -k)) for k in range(2, r + 1)]
    when = [eq(rank(x), r), eq(rank(flat), r), eq(dim(x, -1), num(h)), eq(dim(flat, -1), num(2 * h)), *same]
    return Sides(flat, wide(x, 1), when=when)


@rule(stage="marker", holds=dict(c="doubled0 5 2h", h=2), refuse=[dict(c="5 2h", h=2)])
def wide_constant(c: Tensor, h: Int) -> Sides:
    """c = wide(c[..., :h])   for a constant whose halves are equal"""
    return Sides(c, wide(slice_(c, 0, h), 0), when=[doubled(c, 0), eq(dim(c, -1), num(2 * h))])


@rule(stage="marker", holds=dict(c="doubled1 5 2h", h=2), refuse=[dict(c="5 2h", h=2)])
def wide_constant_pairs(c: Tensor, h: Int) -> Sides:
    """c = wide(c[..., ::2])   for a constant that holds every element twice"""
    return Sides(c, wide(slice_(c, 0, 2 * h - 1, step=2), 1), when=[doubled(c, 1), eq(dim(c, -1), num(2 * h))])


@rule(stage="marker", holds=dict(c="doubled2 5 2h", h=2), refuse=[dict(c="5 2h", h=2), dict(c="doubled0 5 2h", h=2)])
def signed_constant(c: Tensor, h: Int) -> Sides:
    """c = cat(-c[h:], c[h:])   for a constant whose halves differ in sign"""
    second = slice_(c, h, 2 * h)
    return Sides(c, concat([-second, second]), when=[doubled(c, 2), eq(dim(c, -1), num(2 * h))])


# -------------------------------------------------------------------------------------------- how a doubled table moves


@rule(stage="marker", holds=dict(x="b s h", p=1))
def wide_cos(x: Tensor, p: Int) -> Sides:
    """cos(wide(x)) = wide(cos(x))"""
    return Sides(call("Cos", wide(x, p)), wide(call("Cos", x), p))


@rule(stage="marker", holds=dict(x="b s h", p=1))
def wide_sin(x: Tensor, p: Int) -> Sides:
    """sin(wide(x)) = wide(sin(x))"""
    return Sides(call("Sin", wide(x, p)), wide(call("Sin", x), p))


@rule(stage="marker", holds=dict(x="b s h", p=1))
def wide_neg(x: Tensor, p: Int) -> Sides:
    """-wide(x) = wide(-x)"""
    return Sides(-wide(x, p), wide(-x, p))


@rule(stage="marker", holds=dict(x="b s h", p=1, t=10))
def wide_cast(x: Tensor, p: Int, t: Int) -> Sides:
    """cast(wide(x)) = wide(cast(x))"""
    return Sides(call("Cast", wide(x, p), t), wide(call("Cast", x, t), p))


@rule(
    stage="marker", holds=[dict(x="b s h", c="", p=0), dict(x="b s h", c="", p=1)],
    refuse=[dict(x="b s h", c="2h", p=0)],
)  # fmt: skip
def wide_scale(x: Tensor, c: Tensor, p: Int) -> Sides:
    """wide(x) * c = wide(x * c)   for a scalar c"""
    return Sides(wide(x, p) * c, wide(x * c, p), when=[eq(rank(c), 0)])


@rule(
    stage="marker", holds=[dict(x="b s h", c="1", p=0), dict(x="s h", c="b 1 1", p=1)],
    refuse=[dict(x="b s 3", c="6", p=0)],
)  # fmt: skip
def wide_scale_one(x: Tensor, c: Tensor, p: Int) -> Sides:
    """wide(x) * c = wide(x * c)   for c constant along the last axis"""
    return Sides(wide(x, p) * c, wide(x * c, p), when=[eq(dim(c, -1), num(1))])


@rule(stage="marker", holds=[dict(x="b s h", y="b s h", p=0), dict(x="b s h", y="h", p=1)])
def wide_mul(x: Tensor, y: Tensor, p: Int) -> Sides:
    """wide(x) * wide(y) = wide(x * y)"""
    return Sides(wide(x, p) * wide(y, p), wide(x * y, p), when=[eq(dim(x, -1), dim(y, -1))])


@rule(
    stage="marker", holds=[dict(x="b s h", a=-3, p=0), dict(x="b s h", a=-2, p=1)],
    refuse=[dict(x="b s h", a=-1, p=0)],
)  # fmt: skip
def wide_unsqueeze(x: Tensor, a: Int, p: Int) -> Sides:
    """unsqueeze(wide(x), a) = wide(unsqueeze(x, a))   for a other than the last"""
    return Sides(unsqueeze(wide(x, p), a), wide(unsqueeze(x, a), p), when=[ne(a, -1)])


@rule(stage="marker", holds=dict(x="1 s h", a=-3, p=1))
def wide_squeeze(x: Tensor, a: Int, p: Int) -> Sides:
    """squeeze(wide(x), a) = wide(squeeze(x, a))   for a other than the last"""
    return Sides(squeeze(wide(x, p), a), wide(squeeze(x, a), p), when=[ne(a, -1)])


@rule(
    stage="marker", expand=dict(n=(2, 3, 4, 5)), holds=dict(x="b s h", q=(1, 0, 2), p=1),
    refuse=[dict(x="b s h", q=(0, 2, 1), p=0), dict(x="s h", q=(1, 0), p=0), dict(x="b n s h", q=(0, 1, 3, 2), p=1),
            dict(x="b n t s h", q=(0, 1, 2, 4, 3), p=1)],
)  # fmt: skip
def wide_transpose(x: Tensor, q: Ints, p: Int, n: int) -> Sides:
    """transpose(wide(x), q) = wide(transpose(x, q))   if q leaves the last axis in place"""
    return Sides(call("Transpose", wide(x, p), q), wide(call("Transpose", x, q), p),
                 when=[eq(count(q), n), eq(at(q, n - 1), n - 1)])  # fmt: skip


@rule(stage="marker", holds=dict(x="5 h", i="ids 5 b s", a=-2, p=1), refuse=[dict(x="5 h", i="ids 5 b s", a=-1, p=0)])
def wide_gather(x: Tensor, i: Tensor, a: Int, p: Int) -> Sides:
    """gather(wide(x), i, a) = wide(gather(x, i, a))   for a other than the last"""
    return Sides(call("Gather", wide(x, p), i, a), wide(call("Gather", x, i, a), p), when=[ne(a, -1)])


@rule(stage="marker", holds=dict(x="5 h", a=-2, s=1, e=3, t=1, p=1), refuse=[dict(x="b 5", a=-1, s=1, e=3, t=1, p=0)])
def wide_slice_other(x: Tensor, a: Int, s: Int, e: Int, t: Int, p: Int) -> Sides:
    """wide(x)[s:e:t on a] = wide(x[s:e:t on a])   for a other than the last"""
    return Sides(call("SliceC", wide(x, p), a, s, e, t), wide(call("SliceC", x, a, s, e, t), p), when=[ne(a, -1)])


@rule(
    stage="marker", holds=dict(x="5 h", s="ints 0", e="ints 3", a=-2, t=1, p=1),
    refuse=[dict(x="b 5", s="ints 0", e="ints 3", a=-1, t=1, p=0)],
)  # fmt: skip
def wide_slice_dynamic(x: Tensor, s: Tensor, e: Tensor, a: Int, t: Int, p: Int) -> Sides:
    """wide(x)[s:e:t on a] = wide(x[s:e:t on a])   for a other than the last, bounds computed at run time"""
    return Sides(call("Slice", wide(x, p), s, e, a, t), wide(call("Slice", x, s, e, a, t), p), when=[ne(a, -1)])


@rule(stage="marker", holds=dict(x="b 5", h=5, s=1, e=4), refuse=[dict(x="b 5", h=5, s=1, e=7)])
def wide_slice_first(x: Tensor, h: Int, s: Int, e: Int) -> Sides:
    """cat(x, x)[s:e] = x[s:e]   within the first half"""
    return Sides(slice_(wide(x, 0), s, e), slice_(x, s, e), when=[eq(dim(x, -1), num(h)), le(e, h)])


@rule(stage="marker", holds=dict(x="b 5", h=5, s=6, e=9), refuse=[dict(x="b 5", h=5, s=4, e=7)])
def wide_slice_second(x: Tensor, h: Int, s: Int, e: Int) -> Sides:
    """cat(x, x)[h+s:h+e] = x[s:e]   within the second half"""
    return Sides(slice_(wide(x, 0), s, e), slice_(x, s - h, e - h), when=[eq(dim(x, -1), num(h)), le(h, s)])


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
    stage="marker", expand=dict(r=(1, 2, 3, 4, 5)), holds=dict(x="b n s 2h", u="ints b n s 2h"),
    refuse=[dict(x="b n s 2h", u="ints n b s 2h"), dict(x="b n s 6", u="ints b n s 4", h=2),
            dict(x="b n s 2h", u="ints 1 b n s 2h")],
)  # fmt: skip
def rot_pairs(x: Tensor, u: Tensor, h: Int, r: int) -> Sides:
    """reshape(stack(-x[1::2], x[0::2]), shape of x) = rot(x) of (even, odd) pairs"""
    even, odd = slice_(x, 0, 2 * h - 1, step=2), slice_(x, 1, 2 * h, step=2)
    flat = tensor("Reshape", concat([unsqueeze(-odd, -1), unsqueeze(even, -1)]), u)
    same = [eq(dim(flat, -k), dim(x, -k)) for k in range(1, r + 1)]
    return Sides(flat, rot(x, 1), when=[eq(rank(x), r), eq(rank(flat), r), eq(dim(x, -1), num(2 * h)), *same])


@rule(
    stage="marker", holds=[dict(x="b n s 2h", s="b 1 s h"), dict(x="2h", s="h")],
    refuse=[dict(x="b 6", s="b 2", h=2)],
)  # fmt: skip
def rot_swap(x: Tensor, s: Tensor, h: Int) -> Sides:
    """cat(x[h:], x[:h]) * cat(-s, s) = rot(x) * wide(s)"""
    swapped = concat([slice_(x, h, 2 * h), slice_(x, 0, h)])
    return Sides(swapped * concat([-s, s]), rot(x, 0) * wide(s, 0), when=[eq(dim(x, -1), num(2 * h))])


@rule(
    stage="marker", contract="reassociated",
    holds=[dict(x="b n s 2h", t="h", s="b 1 s h", p=0), dict(x="b n s 2h", t="h", s="b 1 s h", p=1)],
)  # fmt: skip
def rot_scale(x: Tensor, t: Tensor, s: Tensor, p: Int) -> Sides:
    """rot(x) * wide(t) * wide(s) = rot(x) * wide(t * s)"""
    return Sides(rot(x, p) * wide(t, p) * wide(s, p), rot(x, p) * wide(t * s, p))


# --------------------------------------------------------------------------------------------------------- the rotation


@rule(
    stage="fuse", contract="reassociated",
    holds=[dict(x="b n s 2h", c="b 1 s h", s="b 1 s h", p=0), dict(x="b n s 2h", c="s h", s="s h", p=1)],
)  # fmt: skip
def rope_sum(x: Tensor, c: Tensor, s: Tensor, p: Int) -> Sides:
    """x * wide(c) + rot(x) * wide(s) = rope(x, c, s)"""
    return Sides(x * wide(c, p) + rot(x, p) * wide(s, p), rope(x, c, s, p))


@rule(
    stage="fuse", contract="reassociated", holds=dict(x="b n s h", y="b n s h", c="b 1 s h", s="b 1 s h"),
    refuse=[dict(x="b n s 3", y="b n s 3", c="b 1 s 1", s="b 1 s 3"),
            dict(x="b n s 3", y="b n s 3", c="b 1 s 3", s="b 1 s 1"),
            dict(x="b n s 3", y="b n s 1", c="b 1 s 3", s="b 1 s 3"),
            dict(x="b n s 3", y="b 1 s 3", c="b 1 s 3", s="1 1 s 3"),
            dict(x="1 b n s h", y="b n s h", c="b 1 s h", s="1 1 s h"),
            dict(x="b n s h", y="1 b n s h", c="b 1 s h", s="1 1 s h"),
            dict(x="b n 1 h", y="b n s h", c="b 1 s h", s="1 1 s h")],
)  # fmt: skip
def rope_halves(x: Tensor, y: Tensor, c: Tensor, s: Tensor, h: Int) -> Sides:
    """cat(x*c - y*s, y*c + x*s) = rope(cat(x, y), c, s)"""
    sizes = [eq(dim(t, -1), num(h)) for t in (x, y, c, s)] + [eq(rank(x), 4), eq(rank(y), 4)]
    same = [eq(dim(x, -k), dim(y, -k)) for k in (2, 3, 4)]
    return Sides(concat([x * c - y * s, y * c + x * s]), rope(concat([x, y]), c, s, 0), when=sizes + same)


@rule(
    stage="fuse", contract="reassociated", expand=dict(r=(3, 4)),
    holds=dict(x="b n s 2h", c="b 1 s h", s="b 1 s h", u="ints b n s 2h"),
    refuse=[dict(x="b n s 2h", c="b 1 s h", s="b 1 s h", u="ints n b s 2h"),
            dict(x="b n s 6", c="b 1 s 1", s="b 1 s 3", h=3, u="ints b n s 6"),
            dict(x="b n s 6", c="b 1 s 3", s="b 1 s 1", u="ints b n s 6"),
            dict(x="1 b n s 2h", c="b 1 s h", s="b 1 s h", u="ints b n s 2h"),
            dict(x="b n s 2h", c="1 b 1 s h", s="b 1 s h", u="ints b n s 2h"),
            dict(x="b n s 2h", c="b 1 s h", s="1 b 1 s h", u="ints b n s 2h"),
            dict(x="1 1 s 2h", c="5 1 s h", s="1 1 s h", u="ints 1 5 s 2h"),
            dict(x="1 1 s 2h", c="1 5 s h", s="1 1 s h", u="ints 5 1 s 2h"),
            dict(x="1 n 1 2h", c="3 1 1 h", s="1 1 1 h", u="ints 1 n 3 2h"),
            dict(x="1 n s 2h", c="3 1 s h", s="1 1 s h", u="ints 1 n s 6h"),
            dict(x="1 n s 6", c="3 1 s 1", s="1 1 s 1", u="ints 1 n s 6", h=1)],
)  # fmt: skip
def rope_pairs(x: Tensor, c: Tensor, s: Tensor, u: Tensor, h: Int, r: int) -> Sides:
    """reshape(stack(xe*c - xo*s, xo*c + xe*s)) = rope(x, c, s) of (even, odd) pairs"""
    even, odd = slice_(x, 0, 2 * h - 1, step=2), slice_(x, 1, 2 * h, step=2)
    turned = [unsqueeze(even * c - odd * s, -1), unsqueeze(odd * c + even * s, -1)]
    flat = tensor("Reshape", concat(turned), u)
    sizes = [eq(dim(x, -1), num(2 * h)), eq(dim(c, -1), num(h)), eq(dim(s, -1), num(h))]
    same = [eq(dim(flat, -k), dim(x, -k)) for k in range(1, r + 1)]
    ranks = [eq(rank(x), r), eq(rank(flat), r), le(rank(c), r), le(rank(s), r)]
    return Sides(flat, rope(x, c, s, 1), when=[*ranks, *sizes, *same])


@rule(
    stage="fuse", contract="reassociated", expand=dict(r=(3, 4)),
    holds=dict(x="b n s 2h", c="b 1 s h 1", s="s h 1", u="ints b n s 2h"),
    refuse=[dict(x="b n s 2h", c="b 1 s h 1", s="b 1 s h 1", u="ints n b s 2h"),
            dict(x="b n s 6", c="b 1 s 1 1", s="b 1 s 3 1", h=3, u="ints b n s 6"),
            dict(x="b n s 6", c="b 1 s 3 1", s="b 1 s 1 1", u="ints b n s 6"),
            dict(x="1 b n s 2h", c="b 1 s h 1", s="b 1 s h 1", u="ints b n s 2h"),
            dict(x="b n s 2h", c="1 b 1 s h 1", s="b 1 s h 1", u="ints b n s 2h"),
            dict(x="b n s 2h", c="b 1 s h 1", s="1 b 1 s h 1", u="ints b n s 2h"),
            dict(x="1 1 s 2h", c="5 1 s h 1", s="1 1 s h 1", u="ints 1 5 s 2h"),
            dict(x="1 1 s 2h", c="1 5 s h 1", s="1 1 s h 1", u="ints 5 1 s 2h"),
            dict(x="1 n 1 2h", c="3 1 1 h 1", s="1 1 1 h 1", u="ints 1 n 3 2h"),
            dict(x="1 n s 2h", c="3 1 s h 1", s="1 1 s h 1", u="ints 1 n s 6h"),
            dict(x="1 n s 6", c="3 1 s 1 1", s="1 1 s 1 1", u="ints 1 n s 6", h=1)],
)  # fmt: skip
def rope_columns(x: Tensor, c: Tensor, s: Tensor, u: Tensor, h: Int, r: int) -> Sides:
    """reshape(cat(xe*c - xo*s, xo*c + xe*s)) = rope(x, c, s) of (even, odd) pairs, all of them columns [.., h, 1]"""
    even, odd = unsqueeze(slice_(x, 0, 2 * h - 1, step=2), -1), unsqueeze(slice_(x, 1, 2 * h, step=2), -1)
    flat = tensor("Reshape", concat([even * c - odd * s, odd * c + even * s]), u)
    columns = [g for v in (c, s) for g in (eq(dim(v, -1), num(1)), eq(dim(v, -2), num(h)))]
    same = [eq(dim(flat, -k), dim(x, -k)) for k in range(1, r + 1)]
    ranks = [eq(rank(x), r), eq(rank(flat), r), le(rank(c), r + 1), le(rank(s), r + 1)]
    when = [*ranks, eq(dim(x, -1), num(2 * h)), *columns, *same]
    return Sides(flat, rope(x, squeeze(c, -1), squeeze(s, -1), 1), when=when)


@rule(stage="marker", holds=[dict(x="b 3 h", y="b 5 h", a=-2, p=0), dict(x="2 h", y="3 h", a=-2, p=1)],
      refuse=[dict(x="b 3", y="b 3", a=-1, p=0), dict(x="b 3", y="b 5", a=-1, p=0)])  # fmt: skip
def wide_stacked(x: Tensor, y: Tensor, a: Int, p: Int) -> Sides:
    """cat(wide(x), wide(y); a) = wide(cat(x, y; a))   for a other than the last"""
    return Sides(concat([wide(x, p), wide(y, p)], a), wide(concat([x, y], a), p), when=[ne(a, -1)])


@rule(stage="marker", holds=dict(x="b s h"))
def wide_written(x: Tensor) -> Sides:
    """wide(x) = cat(x, x): a table that is wanted whole is computed by halves"""
    return Sides(wide(x, 0), concat([x, x]))
