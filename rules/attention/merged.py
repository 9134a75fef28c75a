"""Attention in three axes: batch and heads merged into one, [B*N, S, H], and taken apart again.

`merged(x)` is x of [B,N,S,H] as [B*N,S,H]. Every step of an attention may happen in that form or in the other.
"""

from __future__ import annotations

from ...egraph.engine.lang import (
    Float,
    Int,
    Sides,
    Tensor,
    dim,
    eq,
    ints,
    le,
    num,
    rank,
    reshape,
    rule,
    scalar,
    tensor,
    transpose,
    unsqueeze,
)
from .attention import KT, soft


def merged(x: Tensor) -> Tensor:
    return tensor("Merged", x)


@rule(
    stage="normal", contract="exact", holds=dict(x="b n s h", u="ints b*n s h"),
    refuse=[dict(x="2 3 5 7", u="ints 6 7 5"), dict(x="2 3 5 7", u="ints 2 15 7"), dict(x="2 3 5 7", u="ints 1 6 5 7"),
            dict(x="3 5 7", u="ints 3 5 7"), dict(x="1 2 3 5 7", u="ints 6 5 7")],
)  # fmt: skip
def merged_reshape(x: Tensor, u: Tensor) -> Sides:
    """reshape(x, [B*N, S, H]) = merged(x)"""
    flat = tensor("Reshape", x, u)
    when = [eq(rank(x), 4), eq(rank(flat), 3), *(eq(dim(flat, a), dim(x, a)) for a in (-1, -2))]
    return Sides(flat, merged(x), when=when)


@rule(
    stage="normal", contract="exact", expand=dict(keys=(0, 1)), holds=dict(x="s b n*h", u="ints s b*n h"),
    refuse=[dict(x="2 2 6", u="ints 2 3 4"), dict(x="2 3 6", u="ints 3 6 2"), dict(x="2 2 3 6", u="ints 2 18 2")],
)  # fmt: skip
def merged_heads(x: Tensor, u: Tensor, e: Int, h: Int, keys: int) -> Sides:
    """transpose(reshape(x, [S, B*N, H]), 102) = merged(transpose(reshape(x, [S, B, N, H]), 1203)),   and with K^T"""
    split = tensor("Reshape", x, u)
    when = [eq(rank(x), 3), eq(dim(split, -3), dim(x, -3)), eq(dim(split, -1), num(h))]
    when += [eq(dim(x, -1), num(e)), eq(e % h, 0)]
    heads = reshape(x, ints(0, 0, e / h, h))
    apart = transpose(heads, (1, 2, 0, 3))
    if keys:
        return Sides(transpose(split, (1, 2, 0)), merged(transpose(apart, KT)), when=when)
    return Sides(transpose(split, (1, 0, 2)), merged(apart), when=when)


@rule(
    stage="normal", contract="exact", holds=dict(x="b n s h", w="ints b n s h"),
    refuse=[dict(x="2 3 5 7", w="ints 3 2 5 7"), dict(x="2 3 5 7", w="ints 2 3 7 5"),
            dict(x="2 3 5 7", w="ints 1 2 3 5 7"), dict(x="2 3 5 7", w="ints 2 5 3 7"),
            dict(x="2 3 5 7", w="ints 6 5 7")],
)  # fmt: skip
def merged_apart(x: Tensor, w: Tensor) -> Sides:
    """reshape(merged(x), [B, N, S, H]) = x"""
    apart = tensor("Reshape", merged(x), w)
    return Sides(apart, x, when=[eq(rank(apart), 4), *(eq(dim(apart, a), dim(x, a)) for a in (-1, -2, -3))])


@rule(stage="normal", contract="exact", holds=dict(x="b n s 3"))
def merged_swapped(x: Tensor, h: Int) -> Sides:
    """transpose(merged(x), 102) = reshape(transpose(x, 2013), [S, B*N, H])"""
    rows = reshape(transpose(x, (2, 0, 1, 3)), ints(0, -1, h))
    return Sides(transpose(merged(x), (1, 0, 2)), rows, when=[eq(dim(x, -1), num(h))])


@rule(stage="normal", contract="exact", holds=dict(x="b n s h"))
def merged_transpose(x: Tensor) -> Sides:
    """transpose(merged(x), 021) = merged(transpose(x, 0132))"""
    return Sides(transpose(merged(x), (0, 2, 1)), merged(transpose(x, KT)))


@rule(
    stage="normal", contract="reassociated", holds=dict(x="b n s h", y="b n h t"),
    refuse=[dict(x="2 3 s h", y="3 2 h t"), dict(x="1 1 s h", y="b n h t")],
)  # fmt: skip
def merged_matmul(x: Tensor, y: Tensor) -> Sides:
    """merged(x) @ merged(y) = merged(x @ y)   for as many heads"""
    return Sides(merged(x) @ merged(y), merged(x @ y), when=[eq(dim(x, -3), dim(y, -3))])


@rule(
    stage="normal", contract="exact", expand=dict(j=(0, 1)), holds=dict(x="b n s h", c="=0.5"),
    refuse=[dict(x="b n s h", c="h"), dict(x="b n s h", c="=0.5:1 1 1 1")],
)  # fmt: skip
def merged_scaled(x: Tensor, c: Tensor, j: int) -> Sides:
    """merged(x) * c = merged(x * c),   and / c, for a scalar c"""
    when = [eq(scalar(c), Float("var", ("cv",))), le(rank(c), 3)]
    return Sides(merged(x) / c, merged(x / c), when=when) if j else Sides(merged(x) * c, merged(x * c), when=when)


@rule(
    stage="normal", contract="exact", expand=dict(k=(0, 1)),
    holds=[dict(x="b n s t", mask="s t"), dict(x="b n s t", mask="t"), dict(x="b n s t", mask="1 s t")],
    refuse=[dict(x="2 3 s t", mask="6 s t"), dict(x="1 1 s t", mask="5 s t"), dict(x="b n s t", mask="1 1 s t")],
)  # fmt: skip
def merged_plus(x: Tensor, mask: Tensor, k: int) -> Sides:
    """merged(x) + mask = merged(x + mask)   for mask the same for batch and heads"""
    when = [eq(rank(mask), 3), eq(dim(mask, -3), num(1))] if k else [le(rank(mask), 2)]
    return Sides(merged(x) + mask, merged(x + mask), when=when)


@rule(
    stage="normal", contract="exact", holds=[dict(x="b n s t", mask="b*n s t"), dict(x="b n s t", mask="b*n 1 t")],
    refuse=[dict(x="2 3 s t", mask="1 s t"), dict(x="1 1 s t", mask="5 s t"), dict(x="2 3 s t", mask="s t")],
)  # fmt: skip
def merged_plus_each(x: Tensor, mask: Tensor, n: Int) -> Sides:
    """merged(x) + mask = merged(x + mask')   for mask of [B*N, S, T] and mask' of [B, N, S, T]"""
    apart = reshape(unsqueeze(mask, -4), ints(-1, n, 0, 0))
    when = [eq(rank(mask), 3), eq(dim(x, -3), num(n)), eq(dim(mask, -3), dim(merged(x), -3))]
    return Sides(merged(x) + mask, merged(x + apart), when=when, states=[(dim(apart, -4), dim(x, -4))])


@rule(
    stage="normal", contract="exact", holds=[dict(x="b n s t", y="b n s t"), dict(x="b n s t", y="b n 1 t")],
    refuse=[dict(x="2 3 s t", y="3 2 s t"), dict(x="1 1 s t", y="b n s t")],
)  # fmt: skip
def merged_sum(x: Tensor, y: Tensor) -> Sides:
    """merged(x) + merged(y) = merged(x + y)   for as many heads"""
    return Sides(merged(x) + merged(y), merged(x + y), when=[eq(dim(x, -3), dim(y, -3))])


@rule(stage="fuse", contract="exact", holds=dict(x="b n s t", g=1))
def merged_softmax(x: Tensor, g: Int) -> Sides:
    """soft(merged(x)) = merged(soft(x))"""
    return Sides(soft(merged(x), g), merged(soft(x, g)))
