"""Grouped attention in five axes: the query heads of one key head side by side, [B,KV,n,S,H], keys not repeated.

`grouped(x, n)` is x of [B,KV*n,S,H] so. Every step of an attention may happen in that form or in the other.
"""

from __future__ import annotations

from ...egraph.engine.lang import (
    Float,
    Int,
    Sides,
    Tensor,
    dim,
    eq,
    le,
    num,
    rank,
    rule,
    scalar,
    squeeze,
    tensor,
    transpose,
    unsqueeze,
)
from .attention import KT, repeat, soft


def grouped(x: Tensor, n: Int) -> Tensor:
    return tensor("Grouped", x, n)


@rule(
    stage="marker", contract="exact", holds=dict(x="b 6 s h", u="ints b 2 3 s h"),
    refuse=[dict(x="2 6 5 7", u="ints 1 4 3 5 7"), dict(x="2 6 5 7", u="ints 2 7 3 5 2"),
            dict(x="2 6 5 7", u="ints 2 5 3 2 7"), dict(x="2 6 5 7", u="ints 2 2 15 7"),
            dict(x="6 5 7", u="ints 6 1 1 5 7"), dict(x="1 6 5 7", u="ints 1 1 2 3 5 7"),
            dict(x="2 3 1 5 7", u="ints 3 2 1 5 7")],
)  # fmt: skip
def grouped_reshape(x: Tensor, u: Tensor, n: Int) -> Sides:
    """reshape(x, [B, KV, n, S, H]) = grouped(x, n)"""
    wide = tensor("Reshape", x, u)
    same = [eq(dim(wide, a - (a < -2)), dim(x, a)) for a in (-1, -2, -4)]  # of as many elements, so KV is as well
    return Sides(wide, grouped(x, n), when=[eq(rank(wide), 5), eq(rank(x), 4), eq(dim(wide, -3), num(n)), *same])


@rule(
    stage="marker", contract="exact", holds=dict(x="b 6 s h", n=3, w="ints b 6 s h"),
    refuse=[dict(x="2 6 5 7", n=3, w="ints 4 3 5 7"), dict(x="2 6 5 7", n=3, w="ints 2 7 5 6"),
            dict(x="2 6 5 7", n=3, w="ints 2 10 3 7"), dict(x="2 6 5 7", n=3, w="ints 2 1 6 5 7")],
)  # fmt: skip
def grouped_apart(x: Tensor, n: Int, w: Tensor) -> Sides:
    """reshape(grouped(x, n), [B, KV*n, S, H]) = x"""
    apart = tensor("Reshape", grouped(x, n), w)
    return Sides(apart, x, when=[eq(rank(apart), 4), *(eq(dim(apart, a), dim(x, a)) for a in (-1, -2, -4))])


@rule(
    stage="marker", contract="reassociated",
    holds=[dict(x="b 6 s h", y="b 2 h t", n=3), dict(x="b 6 s h", y="1 2 h t", n=3)],
    refuse=[dict(x="b 6 s h", y=y, n=3) for y in ("b 1 h t", "2 h t")] + [dict(x="b 3 s h", y="b 2 h t", n=3)],
)  # fmt: skip
def grouped_matmul(x: Tensor, y: Tensor, k: Int, n: Int) -> Sides:
    """grouped(x, n) @ unsqueeze(y, -3) = grouped(x @ repeat(y, n), n)"""
    when = [eq(dim(y, -3), num(k)), eq(dim(x, -3), num(k * n)), eq(rank(y), 4)]
    return Sides(grouped(x, n) @ unsqueeze(y, -3), grouped(x @ repeat(y, n), n), when=when)


@rule(stage="marker", contract="exact", holds=dict(x="b 2 t h", n=3))
def repeat_turned(x: Tensor, n: Int) -> Sides:
    """repeat(transpose(x, 0132), n) = transpose(repeat(x, n), 0132)"""
    return Sides(repeat(transpose(x, KT), n), transpose(repeat(x, n), KT))


@rule(stage="marker", contract="exact", holds=dict(x="b 2 t h"))
def unsqueeze_turned(x: Tensor) -> Sides:
    """transpose(unsqueeze(x, -3), 01243) = unsqueeze(transpose(x, 0132), -3)"""
    return Sides(transpose(unsqueeze(x, -3), (0, 1, 2, 4, 3)), unsqueeze(transpose(x, KT), -3))


@rule(
    stage="marker", contract="exact", expand=dict(j=(0, 1)), holds=dict(x="b 6 s h", n=3, c="=0.5"),
    refuse=[dict(x="b 6 s h", n=3, c="h"), dict(x="b 6 s h", n=3, c="=0.5:1 1 1 1 1 1")],
)  # fmt: skip
def grouped_scaled(x: Tensor, n: Int, c: Tensor, j: int) -> Sides:
    """grouped(x, n) * c = grouped(x * c, n),   and / c, for a scalar c"""
    when = [eq(scalar(c), Float("var", ("cv",))), le(rank(c), 4)]
    if j:
        return Sides(grouped(x, n) / c, grouped(x / c, n), when=when)
    return Sides(grouped(x, n) * c, grouped(x * c, n), when=when)


@rule(
    stage="marker", contract="exact", expand=dict(k=(0, 1)),
    holds=[dict(x="b 6 s t", n=3, mask="s t"), dict(x="b 6 s t", n=3, mask="t"),
           dict(x="b 6 s t", n=3, mask="b 1 1 s t")],
    refuse=[dict(x="b 6 s t", n=3, mask="3 s t"), dict(x="b 6 s t", n=3, mask="b 2 1 s t"),
            dict(x="b 6 s t", n=3, mask="b 1 3 s t"), dict(x="b 6 s t", n=3, mask="1 1 1 1 s t")],
)  # fmt: skip
def grouped_plus(x: Tensor, n: Int, mask: Tensor, k: int) -> Sides:
    """grouped(x, n) + mask = grouped(x + mask', n)   for a mask that is the same for all heads"""
    if k:
        when = [eq(rank(mask), 5), eq(dim(mask, -3), num(1)), eq(dim(mask, -4), num(1))]
        return Sides(grouped(x, n) + mask, grouped(x + squeeze(mask, -3), n), when=when)
    return Sides(grouped(x, n) + mask, grouped(x + mask, n), when=[le(rank(mask), 2)])


@rule(stage="fuse", contract="exact", holds=dict(x="b 6 s t", n=3, g=1))
def grouped_softmax(x: Tensor, n: Int, g: Int) -> Sides:
    """soft(grouped(x, n)) = grouped(soft(x), n)"""
    return Sides(soft(grouped(x, n), g), grouped(soft(x, g), n))
