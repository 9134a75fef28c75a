"""Slices, splits, gathers and concatenations of one another, and of an axis seen as two."""

from __future__ import annotations

from itertools import accumulate

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
    lt,
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


@rule(
    expand=dict(k=range(6)),
    holds=[dict(x="b 5", axis=-1, z=(2, 3)), dict(x="b 6", axis=-1, z=(2, 3, 1)), dict(x="6 b", axis=-2, z=(1, 2, 3)),
           dict(x="b 8", axis=-1, z=(1, 1, 1, 1, 2, 2)), dict(x="8 b", axis=-2, z=(1, 2, 1, 2, 1, 1))],
)  # fmt: skip
def split_part(x: Tensor, axis: Int, z: Ints, k: int) -> Sides:
    """split(x, z, axis)[k] = x[sum(z[:k]):sum(z[:k+1]) on axis]"""
    ends = list(accumulate(at(z, j) for j in range(k + 1)))
    return Sides(part(x, axis, z, k), slice_(x, ends[k - 1] if k else 0, ends[k], axis))


@rule(holds=[dict(x="b 8", axis=-1, start=1, end=7, u=2, v=4), dict(x="8 b", axis=-2, start=2, end=8, u=0, v=3)])
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


@rule(holds=[dict(x="b 3", y="b 5", z="b 2", axis=-1), dict(x="3 b", y="5 b", z="2 b", axis=-2)])
def concat_three(x: Tensor, y: Tensor, z: Tensor, axis: Int) -> Sides:
    """cat(x, y, z) = cat(x, cat(y, z))"""
    return Sides(concat([x, y, z], axis), concat([x, concat([y, z], axis)], axis))


def _of_pairs(x: Tensor, split: Tensor, outer: Int, inner: Int, r: int) -> list[Guard]:
    """x has r axes, and split is x with its last axis as outer * inner."""
    sizes = [eq(dim(split, -2), num(outer)), eq(dim(split, -1), num(inner)), eq(dim(x, -1), num(outer * inner))]
    same = [eq(dim(split, -j - 1), dim(x, -j)) for j in range(2, r + 1)]
    return [eq(rank(x), r), eq(rank(split), r + 1), *sizes, *same]


@rule(
    expand=dict(r=(2, 3, 4, 5), axis=(-2, -1)),
    holds=[dict(x="b s 6", shape="ints b s 2 3", index=1), dict(x="b n s 6", shape="ints b n s 3 2", index=2),
           dict(x="b n s 6", shape="ints b n s 2 3", index=2)],
    refuse=[dict(x="3 4", shape="ints 2 3 2", index=1), dict(x="2 3 6", shape="ints 3 2 3 2", index=1),
            dict(x="2 3 5 6", shape="ints 3 2 5 3 2", index=1), dict(x="2 3 5 2 6", shape="ints 3 2 5 2 3 2", index=1),
            dict(x="3 4", shape="ints 2 2 3", index=1)],
)  # fmt: skip
def slice_of_pairs(x: Tensor, shape: Tensor, index: Int, k: Int, h: Int, r: int, axis: int) -> Sides:
    """cell(reshape(x, [.., k, h]), index, -2) = x[index*h:index*h+h], and cell(.., index, -1) = x[index::h]"""
    split = tensor("Reshape", x, shape)
    row, every = slice_(x, index * h, index * h + h), slice_(x, index, index + h * (k - 1) + 1, step=h)
    return Sides(tensor("Cell", split, index, axis), row if axis == -2 else every, when=_of_pairs(x, split, k, h, r))


@rule(
    expand=dict(fewer=(0, 1)),
    holds=[dict(x="b s h", y="b s h", u="ints b s 2h"), dict(x="b s h", y="b s h", u="ints 0 -1")],
    refuse=[dict(x="2 s h", y="2 s h", u="ints s 1 0 2h"), dict(x="b s 3", y="b s 3", u="ints b 3s 0")],
)  # fmt: skip
def reshape_stacked_rows(x: Tensor, y: Tensor, u: Tensor, h: Int, fewer: int) -> Sides:
    """reshape(stack(x, y; -2), u) = reshape(cat(x, y), u)   for u of no more axes than x"""
    flat = tensor("Reshape", tensor("Stack", x, y, -2), u)
    same = [eq(rank(flat), rank(x)), eq(dim(x, -1), num(h)), eq(dim(flat, -1), num(2 * h))]
    return Sides(flat, tensor("Reshape", concat([x, y]), u), when=[lt(rank(flat), rank(x))] if fewer else same)


@rule(
    stage="marker",
    expand=dict(k=(0, 1)),
    holds=dict(x="b s h", y="b s h", axis=-2),
)
def cell_of_stack(x: Tensor, y: Tensor, axis: Int, k: int) -> Sides:
    """gather(stack(x, y; axis), 0 or 1, axis) = x or y"""
    return Sides(call("Gather", tensor("Stack", x, y, axis), call("Int0", k), axis), y if k else x)


@rule(stage="marker", holds=dict(x="b s h", y="b s h", axis=-3), refuse=[dict(x="b s h", y="b s h", axis=-1)])
def stack_unsqueezed(x: Tensor, y: Tensor, axis: Int) -> Sides:
    """unsqueeze(stack(x, y), axis) = stack(unsqueeze(x, axis+1), unsqueeze(y, axis+1))   for an axis before the last"""
    more = (unsqueeze(t, axis + 1) for t in (x, y))
    return Sides(unsqueeze(tensor("Stack", x, y, -1), axis), tensor("Stack", *more, -1), when=[lt(axis, -1)])


@rule(
    expand=dict(k=(0, 1)), holds=dict(x="b 1", y="b 1", z="b 1", w="b 1"),
    refuse=[{**dict(x="b 1", y="b 1", z="b 1", w="b 1"), name: "b 2"} for name in "xyzw"],
)  # fmt: skip
def slice_of_four(x: Tensor, y: Tensor, z: Tensor, w: Tensor, k: int) -> Sides:
    """cat(x, y, z, w)[0::2] = cat(x, z), and [1::2] = cat(y, w)   where each has one element"""
    one = [eq(dim(t, -1), num(1)) for t in (x, y, z, w)]
    return Sides(slice_(concat([x, y, z, w]), k, k + 3, step=2), concat([y, w] if k else [x, z]), when=one)


@rule(
    expand=dict(before=(0, 1)),
    holds=[dict(x="b 5", axis=-2, at=-1, index=2), dict(x="5 b", axis=-1, at=-3, index=2)],
    refuse=[dict(x="b 5", axis=-1, at=-1, index=0)],
)  # fmt: skip
def gather_added_axis(x: Tensor, axis: Int, at: Int, index: Int, before: int) -> Sides:
    """gather(unsqueeze(x, axis), index, at) = unsqueeze(gather(x, index, at), axis)   of one place on another axis"""
    cell = call("Gather", unsqueeze(x, axis), call("Int0", index), at)
    if before:
        return Sides(cell, unsqueeze(call("Gather", x, call("Int0", index), at), axis + 1), when=[lt(axis, at)])
    return Sides(cell, unsqueeze(call("Gather", x, call("Int0", index), at + 1), axis), when=[lt(at, axis)])


@rule(stage="marker", holds=dict(x="b s h", y="b s h", z="s h"))
def stack_product(x: Tensor, y: Tensor, z: Tensor) -> Sides:
    """stack(x, y) * unsqueeze(z, -1) = stack(x * z, y * z)"""
    return Sides(tensor("Stack", x, y, -1) * unsqueeze(z, -1), tensor("Stack", x * z, y * z, -1))


@rule(stage="marker", holds=dict(x="b s h", y="b s h", z="s h", w="s h"))
def stack_sum(x: Tensor, y: Tensor, z: Tensor, w: Tensor) -> Sides:
    """stack(x, y) + stack(z, w) = stack(x + z, y + w)"""
    return Sides(tensor("Stack", x, y, -1) + tensor("Stack", z, w, -1), tensor("Stack", x + z, y + w, -1))


@rule(
    stage="marker", expand=dict(r=(1, 2, 3, 4), axis=(-1, -2)),
    holds=[dict(x="b s h", shape="ints b s h 2"), dict(x="b s h", shape="ints 1 1 2 1")],
    refuse=[dict(x="b s h", shape="ints b s h 3"), dict(x="b s h", shape="ints b s 3 h"),
            dict(x="1 s h", shape="ints 5 s h 2"), dict(x="b 1 h", shape="ints b 5 h 2"),
            dict(x="b s 1", shape="ints b s 5 2"), dict(x="b s h", shape="ints 2 b s h 1"),
            dict(x="1 n s h", shape="ints 5 n s h 2")],
)  # fmt: skip
def stack_expanded(x: Tensor, shape: Tensor, r: int, axis: int) -> Sides:
    """expand(unsqueeze(x, axis), [.., 2, ..]) = stack(x, x; axis)   where no other axis grows"""
    one = unsqueeze(x, axis)
    two = tensor("Expand", one, shape)
    same = [eq(dim(two, -k), dim(one, -k)) for k in range(1, r + 2) if k != -axis]
    sizes = [eq(rank(two), r + 1), eq(dim(two, axis), num(2))]
    return Sides(two, tensor("Stack", x, x, axis), when=[*sizes, *same])
