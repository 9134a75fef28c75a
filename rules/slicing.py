"""Slices, splits, gathers and concatenations of one another, and of an axis seen as two."""

from __future__ import annotations

from ..egraph.engine.lang import (
    Guard,
    Int,
    Ints,
    Sides,
    Tensor,
    Tensors,
    arange,
    at,
    call,
    concat,
    dim,
    eq,
    le,
    num,
    rank,
    rule,
    slice_,
    tensor,
    unsqueeze,
)


def part(x: Tensor, axis: Int, sizes: Ints, k: int) -> Tensor:
    return tensor("Out", call("Split", x, axis, sizes), k)


@rule(holds=dict(x="b 5", i="ids= 1 2 3", a=-1), refuse=[dict(x="b 5", i="ids= 3 1 2", a=-1)])
def gather_range(x: Tensor, i: Tensor, a: Int, s: Int, e: Int, t: Int) -> Sides:
    """gather(x, [s, s+t, .., e-1], a) = x[s:e:t on a]"""
    return Sides(call("Gather", x, i, a), slice_(x, s, e, a, t), when=[arange(i, s, e, t)])


@rule(holds=dict(x="b 5", a=-1, i=2))
def slice_one(x: Tensor, a: Int, i: Int) -> Sides:
    """x[i:i+1 on a] = unsqueeze(gather(x, i, a), a)"""
    return Sides(slice_(x, i, i + 1, a), unsqueeze(call("Gather", x, call("Int0", i), a), a))


@rule(
    stage="marker", holds=[dict(x="b 6", t="ints b 3 2", a=-1, i=1), dict(x="b 6", t="ints b 3 2", a=-2, i=0)],
    refuse=[dict(x="b 6", t="ints b 3 2", a=-1, i=-1)],
)  # fmt: skip
def split_cell(x: Tensor, t: Tensor, a: Int, i: Int) -> Sides:
    """gather(reshape(x, t), i, a) = cell(reshape(x, t), i, a)   for a number i from the front"""
    split = tensor("Reshape", x, t)
    return Sides(call("Gather", split, call("Int0", i), a), tensor("Cell", split, i, a), when=[le(0, i)])


@rule(stage="marker", holds=dict(x="b s h", y="b s h", a=-2))
def stack_pair(x: Tensor, y: Tensor, a: Int) -> Sides:
    """cat(unsqueeze(x, a), unsqueeze(y, a); a) = stack(x, y; a)"""
    return Sides(concat([unsqueeze(x, a), unsqueeze(y, a)], a), tensor("Stack", x, y, a))


@rule(holds=dict(x="b 5", a=-1, z=(2, 3)))
def split_first(x: Tensor, a: Int, z: Ints) -> Sides:
    """split(x, [z0, ..], a)[0] = x[0:z0 on a]"""
    return Sides(part(x, a, z, 0), slice_(x, 0, at(z, 0), a))


@rule(holds=dict(x="b 5", a=-1, z=(2, 3)))
def split_second(x: Tensor, a: Int, z: Ints) -> Sides:
    """split(x, [z0, z1, ..], a)[1] = x[z0:z0+z1 on a]"""
    return Sides(part(x, a, z, 1), slice_(x, at(z, 0), at(z, 0) + at(z, 1), a))


@rule(holds=dict(x="b 6", a=-1, z=(2, 3, 1)))
def split_third(x: Tensor, a: Int, z: Ints) -> Sides:
    """split(x, [z0, z1, z2, ..], a)[2] = x[z0+z1:z0+z1+z2 on a]"""
    return Sides(part(x, a, z, 2), slice_(x, at(z, 0) + at(z, 1), at(z, 0) + at(z, 1) + at(z, 2), a))


@rule(expand=dict(k=(3, 4, 5)), holds=dict(x="b 8", a=-1, z=(1, 1, 1, 1, 2, 2)))
def split_later(x: Tensor, a: Int, z: Ints, k: int) -> Sides:
    """split(x, z, a)[k] = x[sum(z[:k]):sum(z[:k+1]) on a]"""
    before = at(z, 0)
    for j in range(1, k):
        before = before + at(z, j)
    return Sides(part(x, a, z, k), slice_(x, before, before + at(z, k), a))


@rule(holds=dict(x="b 8", a=-1, s=1, e=7, u=2, v=4))
def slice_slice(x: Tensor, a: Int, s: Int, e: Int, u: Int, v: Int) -> Sides:
    """x[s:e][u:v] = x[s+u:s+v], on one axis"""
    return Sides(slice_(slice_(x, s, e, a), u, v, a), slice_(x, s + u, s + v, a))


@rule(holds=dict(x="b 3", y="b 5", a=-1, m=3, s=1, e=3), refuse=[dict(x="b 3", y="b 5", a=-1, m=3, s=1, e=4)])
def slice_concat_first(x: Tensor, y: Tensors, a: Int, m: Int, s: Int, e: Int) -> Sides:
    """cat(x, ..)[s:e] = x[s:e]   within x"""
    whole = tensor("Concat", call("Cons", x, y), a)
    return Sides(slice_(whole, s, e, a), slice_(x, s, e, a), when=[eq(dim(x, a), num(m)), le(e, m)])


@rule(holds=dict(x="b 3", y="b 5", a=-1, m=3, s=4, e=8), refuse=[dict(x="b 3", y="b 5", a=-1, m=3, s=2, e=8)])
def slice_concat_second(x: Tensor, y: Tensor, a: Int, m: Int, s: Int, e: Int) -> Sides:
    """cat(x, y)[m+s:m+e] = y[s:e]   within y, where x has m elements"""
    return Sides(slice_(concat([x, y], a), s, e, a), slice_(y, s - m, e - m, a), when=[eq(dim(x, a), num(m)), le(m, s)])


@rule(holds=dict(x="b 5", a=-1, n=5), refuse=[dict(x="b 5", a=-1, n=4)])
def slice_nothing(x: Tensor, a: Int, n: Int) -> Sides:
    """x[0:size] = x"""
    return Sides(slice_(x, 0, n, a), x, when=[eq(dim(x, a), num(n))])


@rule(holds=dict(x="b 8", a=-1, m=3, n=8), refuse=[dict(x="b 8", a=-1, m=3, n=6)])
def concat_slices(x: Tensor, a: Int, m: Int, n: Int) -> Sides:
    """cat(x[0:m], x[m:n]) = x   where x has n elements"""
    return Sides(concat([slice_(x, 0, m, a), slice_(x, m, n, a)], a), x, when=[eq(dim(x, a), num(n))])


@rule(holds=dict(x="b 3", y="b 5", z="b 2", a=-1))
def concat_three(x: Tensor, y: Tensor, z: Tensor, a: Int) -> Sides:
    """cat(x, y, z) = cat(x, cat(y, z))"""
    return Sides(concat([x, y, z], a), concat([x, concat([y, z], a)], a))


def _of_pairs(x: Tensor, split: Tensor, outer: Int, inner: Int, r: int) -> list[Guard]:
    """x has r axes, and split is x with its last axis as outer * inner."""
    sizes = [eq(dim(split, -2), num(outer)), eq(dim(split, -1), num(inner)), eq(dim(x, -1), num(outer * inner))]
    same = [eq(dim(split, -j - 1), dim(x, -j)) for j in range(2, r + 1)]
    return [eq(rank(x), r), eq(rank(split), r + 1), *sizes, *same]


@rule(
    expand=dict(r=(2, 3, 4)),
    holds=[dict(x="b s 6", t="ints b s 2 3", i=1), dict(x="b n s 6", t="ints b n s 3 2", i=2)],
    refuse=[dict(x="3 4", t="ints 2 3 2", i=1), dict(x="2 3 6", t="ints 3 2 3 2", i=1),
            dict(x="2 3 5 6", t="ints 3 2 5 3 2", i=1)],
)  # fmt: skip
def slice_of_rows(x: Tensor, t: Tensor, i: Int, k: Int, h: Int, r: int) -> Sides:
    """cell(reshape(x, [.., k, h]), i, -2) = x[i*h:i*h+h]"""
    split = tensor("Reshape", x, t)
    return Sides(tensor("Cell", split, i, -2), slice_(x, i * h, i * h + h), when=_of_pairs(x, split, k, h, r))


@rule(
    expand=dict(r=(2, 3, 4)),
    holds=[dict(x="b s 6", t="ints b s 3 2", i=1), dict(x="b n s 6", t="ints b n s 2 3", i=2)],
    refuse=[dict(x="3 4", t="ints 2 2 3", i=1), dict(x="2 3 6", t="ints 3 2 2 3", i=1),
            dict(x="2 3 5 6", t="ints 3 2 5 2 3", i=1)],
)  # fmt: skip
def slice_of_columns(x: Tensor, t: Tensor, i: Int, k: Int, h: Int, r: int) -> Sides:
    """cell(reshape(x, [.., h, k]), i, -1) = x[i::k]"""
    split = tensor("Reshape", x, t)
    every = slice_(x, i, i + k * (h - 1) + 1, step=k)
    return Sides(tensor("Cell", split, i, -1), every, when=_of_pairs(x, split, h, k, r))


@rule(
    expand=dict(r=(2, 3, 4)), holds=dict(x="b s h", y="b s h", u="ints b s 2h"),
    refuse=[dict(x="2 3 h", y="2 3 h", u="ints 3 2 2h"), dict(x="1 n s h", y="1 n s h", u="ints n s 2h"),
            dict(x="b s h", y="b s h", u="ints 1 b s 2h")],
)  # fmt: skip
def reshape_stacked_rows(x: Tensor, y: Tensor, u: Tensor, h: Int, r: int) -> Sides:
    """reshape(stack(x, y; -2), [.., 2h]) = cat(x, y)"""
    flat = tensor("Reshape", tensor("Stack", x, y, -2), u)
    same = [eq(dim(flat, -j), dim(x, -j)) for j in range(2, r + 1)]
    when = [eq(rank(x), r), eq(rank(flat), r), eq(dim(x, -1), num(h)), eq(dim(flat, -1), num(2 * h)), *same]
    return Sides(flat, concat([x, y]), when=when)
