"""Where transposes, reshapes and scales stand around the scores: K^T in one or two steps, scales moved through."""

from __future__ import annotations

from ...egraph.engine.lang import (
    SWAP,
    Float,
    Guard,
    Int,
    Ints,
    Sides,
    Tensor,
    call,
    dim,
    eq,
    ints,
    le,
    lt,
    num,
    rank,
    reshape,
    rule,
    scalar,
    tensor,
    thin,
    transpose,
)  # fmt: skip
from .attention import KT, TURNED, WIDER


def _scalar(c: Tensor, x: Tensor) -> list[Guard]:
    return [eq(scalar(c), Float("var", ("cv",))), thin(c, x)]


@rule(holds=dict(x="b t n h"))
def transpose_k(x: Tensor) -> Sides:
    """transpose(x, 0231) = transpose(transpose(x, 0213), 0132)"""
    return Sides(transpose(x, (0, 2, 3, 1)), transpose(transpose(x, SWAP), KT))


@rule(
    holds=dict(y="b t n*h", u="ints b*n t h", w="ints b n h t"),
    refuse=[dict(y="2 3 5 7", u="ints 6 7 5", w="ints 2 3 7 5"), dict(y="2 3 5 7", u="ints 15 2 7", w="ints 5 3 2 7"),
            dict(y="2 3 5 7", u="ints 6 7 5", w="ints 10 1 3 7"), dict(y="2 3 5 7", u="ints 6 7 5", w="ints 1 2 3 5 7"),
            dict(y="2 0 15", u="ints 6 -1 5", w="ints 2 3 5 -1")],
)  # fmt: skip
def transpose_k_flat(y: Tensor, u: Tensor, w: Tensor, b: Int, n: Int, h: Int, t: Int) -> Sides:
    """reshape(transpose(reshape(y, [B*N, T, H]), 021), [B, N, H, T]) = transpose(reshape(y, [B, N, T, H]), 0132)"""
    flat = tensor("Reshape", y, u)
    back = tensor("Reshape", transpose(flat, (0, 2, 1)), w)
    sizes = [eq(dim(back, -4 + i), num(v)) for i, v in enumerate((b, n, h, t))] + [eq(rank(back), 4)]
    rows = [eq(dim(flat, -1), num(h)), eq(dim(flat, -2), num(t)), lt(0, b * n * h * t)]  # 0 would copy a size of y
    return Sides(back, transpose(reshape(y, ints(b, n, t, h)), KT), when=[*sizes, *rows])


@rule(
    expand=dict(j=(0, 1)), contract="exact", holds=dict(x="b n t h", c="=0.5", perm=(0, 1, 3, 2)),
    refuse=[dict(x="b n t h", c="t", perm=(0, 1, 3, 2)), dict(x="b n t h", c=WIDER, perm=(0, 1, 3, 2))],
)  # fmt: skip
def transpose_scaled(x: Tensor, c: Tensor, perm: Ints, j: int) -> Sides:
    """transpose(x, perm) * c = transpose(x * c, perm),   and / c, for a scalar c"""
    turned = transpose(x, perm)
    if j:
        return Sides(turned / c, transpose(x / c, perm), when=_scalar(c, x))
    return Sides(turned * c, transpose(x * c, perm), when=_scalar(c, x))


@rule(
    expand=dict(j=(0, 1)), contract="exact", holds=dict(x="b s n h", c="=0.5", perm=(0, 2, 1, 3)),
    refuse=[dict(x="b s n h", c="h", perm=(0, 2, 1, 3)), dict(x="b s n h", c=WIDER, perm=(0, 1, 3, 4, 2))],
)  # fmt: skip
def scaled_transpose(x: Tensor, c: Tensor, perm: Ints, j: int) -> Sides:
    """transpose(x * c, perm) = transpose(x, perm) * c,   and / c, for a scalar c"""
    turned = transpose(x, perm)
    if j:
        return Sides(transpose(x / c, perm), turned / c, when=_scalar(c, x))
    return Sides(transpose(x * c, perm), turned * c, when=_scalar(c, x))


@rule(
    expand=dict(j=(0, 1)), contract="exact", holds=dict(x="b s 8", c="=0.5", shape="ints b s 2 4"),
    refuse=[dict(x="b s 8", c="8", shape="ints b s 2 4"), dict(x="b s 8", c=WIDER, shape="ints b s 2 4"),
            dict(x="2 3 8", c="=0.5:1 1 1", shape="ints 6 8"), dict(x="2 3 8", c="=0.5:1 1 1 1", shape="ints 0 2 3 8")],
)  # fmt: skip
def scaled_reshape(x: Tensor, c: Tensor, shape: Tensor, j: int) -> Sides:
    """reshape(x * c, shape) = reshape(x, shape) * c,   and / c, for a scalar c"""
    scaled, plain = tensor("Reshape", x / c if j else x * c, shape), call("Reshape", x, shape)
    return Sides(scaled, plain / c if j else plain * c, when=[*_scalar(c, x), le(rank(c), rank(scaled))])


@rule(
    stage="marker", contract="reassociated", expand=dict(r=(3, 4)),
    holds=[dict(x="b n s h", y="b n h t"), dict(x="b s h", y="b h t")],
    refuse=[dict(x="s h", y="b n h t"), dict(x="s h", y="b h t")],
)  # fmt: skip
def transpose_product(x: Tensor, y: Tensor, r: int) -> Sides:
    """transpose(x @ y, 0132) = transpose(y, 0132) @ transpose(x, 0132)"""
    back = TURNED[r]
    when = [eq(rank(x), r), eq(rank(y), r)]
    return Sides(transpose(x @ y, back), transpose(y, back) @ transpose(x, back), when=when)
