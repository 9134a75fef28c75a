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
    elem,
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


@rule(holds=dict(x="b 5", ids="ids= 1 2 3", axis=-1), refuse=[dict(x="b 5", ids="ids= 3 1 2", axis=-1)])
def gather_range(x: Tensor, ids: Tensor, axis: Int, start: Int, end: Int, step: Int) -> Sides:
    """gather(x, [start, start+step, .., end-1], axis) = x[start:end:step on axis]"""
    return Sides(call("Gather", x, ids, axis), slice_(x, start, end, axis, step), when=[arange(ids, start, end, step)])


@rule(holds=dict(x="b 5", axis=-1, index=2))
def slice_one(x: Tensor, axis: Int, index: Int) -> Sides:
    """x[index:index+1 on axis] = unsqueeze(gather(x, index, axis), axis)"""
    return Sides(slice_(x, index, index + 1, axis), unsqueeze(call("Gather", x, call("Int0", index), axis), axis))


@rule(
    stage="marker",
    holds=[dict(x="b 6", shape="ints b 3 2", axis=-1, index=1), dict(x="b 6", shape="ints b 3 2", axis=-2, index=0)],
    refuse=[dict(x="b 6", shape="ints b 3 2", axis=-1, index=-1)],
)  # fmt: skip
def split_cell(x: Tensor, shape: Tensor, axis: Int, index: Int) -> Sides:
    """gather(reshape(x, shape), index, axis) = cell(reshape(x, shape), index, axis)   for an index from the front"""
    split = tensor("Reshape", x, shape)
    return Sides(call("Gather", split, call("Int0", index), axis), tensor("Cell", split, index, axis),
                 when=[le(0, index)])  # fmt: skip


@rule(stage="marker", holds=dict(x="b s h", y="b s h", axis=-2))
def stack_pair(x: Tensor, y: Tensor, axis: Int) -> Sides:
    """cat(unsqueeze(x, axis), unsqueeze(y, axis); axis) = stack(x, y; axis)"""
    return Sides(concat([unsqueeze(x, axis), unsqueeze(y, axis)], axis), tensor("Stack", x, y, axis))


@rule(holds=dict(x="b 5", axis=-1, z=(2, 3)))
def split_first(x: Tensor, axis: Int, z: Ints) -> Sides:
    """split(x, [z0, ..], axis)[0] = x[0:z0 on axis]"""
    return Sides(part(x, axis, z, 0), slice_(x, 0, at(z, 0), axis))


@rule(holds=dict(x="b 5", axis=-1, z=(2, 3)))
def split_second(x: Tensor, axis: Int, z: Ints) -> Sides:
    """split(x, [z0, z1, ..], axis)[1] = x[z0:z0+z1 on axis]"""
    return Sides(part(x, axis, z, 1), slice_(x, at(z, 0), at(z, 0) + at(z, 1), axis))


@rule(holds=dict(x="b 6", axis=-1, z=(2, 3, 1)))
def split_third(x: Tensor, axis: Int, z: Ints) -> Sides:
    """split(x, [z0, z1, z2, ..], axis)[2] = x[z0+z1:z0+z1+z2 on axis]"""
    return Sides(part(x, axis, z, 2), slice_(x, at(z, 0) + at(z, 1), at(z, 0) + at(z, 1) + at(z, 2), axis))


@rule(expand=dict(k=(3, 4, 5)), holds=dict(x="b 8", axis=-1, z=(1, 1, 1, 1, 2, 2)))
def split_later(x: Tensor, axis: Int, z: Ints, k: int) -> Sides:
    """split(x, z, axis)[k] = x[sum(z[:k]):sum(z[:k+1]) on axis]"""
    before = at(z, 0)
    for j in range(1, k):
        before = before + at(z, j)
    return Sides(part(x, axis, z, k), slice_(x, before, before + at(z, k), axis))


@rule(holds=dict(x="b 8", axis=-1, start=1, end=7, u=2, v=4))
def slice_slice(x: Tensor, axis: Int, start: Int, end: Int, u: Int, v: Int) -> Sides:
    """x[start:end][u:v] = x[start+u:start+v], on one axis"""
    return Sides(slice_(slice_(x, start, end, axis), u, v, axis), slice_(x, start + u, start + v, axis))


@rule(holds=dict(x="b 3", y="b 5", axis=-1, m=3, start=1, end=3),
      refuse=[dict(x="b 3", y="b 5", axis=-1, m=3, start=1, end=4)])  # fmt: skip
def slice_concat_first(x: Tensor, y: Tensors, axis: Int, m: Int, start: Int, end: Int) -> Sides:
    """cat(x, ..)[start:end] = x[start:end]   within x"""
    whole = tensor("Concat", call("Cons", x, y), axis)
    return Sides(slice_(whole, start, end, axis), slice_(x, start, end, axis),
                 when=[eq(dim(x, axis), num(m)), le(end, m)])  # fmt: skip


@rule(holds=dict(x="b 3", y="b 5", axis=-1, m=3, start=4, end=8),
      refuse=[dict(x="b 3", y="b 5", axis=-1, m=3, start=2, end=8)])  # fmt: skip
def slice_concat_second(x: Tensor, y: Tensor, axis: Int, m: Int, start: Int, end: Int) -> Sides:
    """cat(x, y)[m+start:m+end] = y[start:end]   within y, where x has m elements"""
    return Sides(slice_(concat([x, y], axis), start, end, axis), slice_(y, start - m, end - m, axis),
                 when=[eq(dim(x, axis), num(m)), le(m, start)])  # fmt: skip


@rule(holds=dict(x="b 5", limit="=5:int64", axis=-1), refuse=[dict(x="b 5", limit="=4:int64", axis=-1)])
def gather_all(x: Tensor, limit: Tensor, axis: Int) -> Sides:
    """gather(x, [0, 1, .., size - 1], axis) = x"""
    places = call("Range", call("Int0", 0), limit, call("Int0", 1))
    return Sides(call("Gather", x, places, axis), x, when=[eq(elem(limit, 0), dim(x, axis))])


@rule(holds=dict(x="b 5", axis=-1, n=5), refuse=[dict(x="b 5", axis=-1, n=4)])
def slice_nothing(x: Tensor, axis: Int, n: Int) -> Sides:
    """x[0:size] = x"""
    return Sides(slice_(x, 0, n, axis), x, when=[eq(dim(x, axis), num(n))])


@rule(holds=dict(x="b 8", axis=-1, m=3, n=8), refuse=[dict(x="b 8", axis=-1, m=3, n=6)])
def concat_slices(x: Tensor, axis: Int, m: Int, n: Int) -> Sides:
    """cat(x[0:m], x[m:n]) = x   where x has n elements"""
    return Sides(concat([slice_(x, 0, m, axis), slice_(x, m, n, axis)], axis), x, when=[eq(dim(x, axis), num(n))])


@rule(holds=dict(x="b 3", y="b 5", z="b 2", axis=-1))
def concat_three(x: Tensor, y: Tensor, z: Tensor, axis: Int) -> Sides:
    """cat(x, y, z) = cat(x, cat(y, z))"""
    return Sides(concat([x, y, z], axis), concat([x, concat([y, z], axis)], axis))


def _of_pairs(x: Tensor, split: Tensor, outer: Int, inner: Int, r: int) -> list[Guard]:
    """x has r axes, and split is x with its last axis as outer * inner."""
    sizes = [eq(dim(split, -2), num(outer)), eq(dim(split, -1), num(inner)), eq(dim(x, -1), num(outer * inner))]
    same = [eq(dim(split, -j - 1), dim(x, -j)) for j in range(2, r + 1)]
    return [eq(rank(x), r), eq(rank(split), r + 1), *sizes, *same]


@rule(
    expand=dict(r=(2, 3, 4)),
    holds=[dict(x="b s 6", shape="ints b s 2 3", index=1), dict(x="b n s 6", shape="ints b n s 3 2", index=2)],
    refuse=[dict(x="3 4", shape="ints 2 3 2", index=1), dict(x="2 3 6", shape="ints 3 2 3 2", index=1),
            dict(x="2 3 5 6", shape="ints 3 2 5 3 2", index=1)],
)  # fmt: skip
def slice_of_rows(x: Tensor, shape: Tensor, index: Int, k: Int, h: Int, r: int) -> Sides:
    """cell(reshape(x, [.., k, h]), index, -2) = x[index*h:index*h+h]"""
    split = tensor("Reshape", x, shape)
    return Sides(tensor("Cell", split, index, -2), slice_(x, index * h, index * h + h),
                 when=_of_pairs(x, split, k, h, r))  # fmt: skip


@rule(
    expand=dict(r=(2, 3, 4)),
    holds=[dict(x="b s 6", shape="ints b s 3 2", index=1), dict(x="b n s 6", shape="ints b n s 2 3", index=2)],
    refuse=[dict(x="3 4", shape="ints 2 2 3", index=1), dict(x="2 3 6", shape="ints 3 2 2 3", index=1),
            dict(x="2 3 5 6", shape="ints 3 2 5 2 3", index=1)],
)  # fmt: skip
def slice_of_columns(x: Tensor, shape: Tensor, index: Int, k: Int, h: Int, r: int) -> Sides:
    """cell(reshape(x, [.., h, k]), index, -1) = x[index::k]"""
    split = tensor("Reshape", x, shape)
    every = slice_(x, index, index + k * (h - 1) + 1, step=k)
    return Sides(tensor("Cell", split, index, -1), every, when=_of_pairs(x, split, h, k, r))


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
