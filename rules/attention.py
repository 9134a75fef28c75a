"""Scaled dot-product attention: from its many spellings to one term, `sdpa(q, k, v, mask; scale, cap, guard)`.

Operands are BNSH. The scale may sit on q, on k, on both or on the scores; the mask is whatever is added to them; a
guard turns rows of NaN into zeros. Sources: Vaswani et al. (arXiv 1706.03762), GQA (arXiv 2305.13245),
ONNX Attention-23.
"""

from __future__ import annotations

from ..egraph.dtypes import FLOAT16, FLOAT32
from ..egraph.lang import (
    Float,
    Guard,
    Int,
    Ints,
    Sides,
    Tensor,
    call,
    cast,
    dim,
    dtype,
    eq,
    ints,
    le,
    lowest,
    lt,
    ne,
    num,
    rank,
    real,
    reshape,
    rule,
    scalar,
    symbolic,
    thin,
    transpose,
    unsqueeze,
)

_SWAP, _KT = (0, 2, 1, 3), (0, 1, 3, 2)
ROWS_VISIBLE = "no query row is fully masked, or its value does not matter as long as it is finite"
SAME_BATCH = "q, k and v of an attention have the same batch size"


def scores(q: Tensor, k: Tensor, s: Float) -> Tensor:
    return call("Scores", q, k, s)  # type: ignore[no-any-return]


def biased(q: Tensor, k: Tensor, m: Tensor, s: Float, c: Float) -> Tensor:
    return call("Biased", q, k, m, s, c)  # type: ignore[no-any-return]


def soft(x: Tensor, guard: int | Int) -> Tensor:
    return call("SafeSoftmax", x, guard)  # type: ignore[no-any-return]


def repeat(x: Tensor, n: Int) -> Tensor:
    return call("RepeatKV", x, n)  # type: ignore[no-any-return]


def sdpa(q: Tensor, k: Tensor, v: Tensor, m: Tensor, s: Float, c: Float, g: int | Int) -> Tensor:
    return call("Sdpa", q, k, v, m, s, c, g)  # type: ignore[no-any-return]


def absent() -> Tensor:
    return call("Absent")  # type: ignore[no-any-return]


def _scalar(c: Tensor, x: Tensor, k: int) -> list[Guard]:
    return [eq(scalar(c), Float("var", ("cv",))), *thin(c, x, k)]


def _value(c: Tensor, v: Float, x: Tensor, k: int) -> list[Guard]:
    return [eq(scalar(c), v), *thin(c, x, k)]


# ------------------------------------------------------------------------------------------------------- layouts of K^T


@rule(holds=dict(x="b t n h"))
def transpose_k(x: Tensor) -> Sides:
    """transpose(x, 0231) = transpose(transpose(x, 0213), 0132)"""
    return Sides(transpose(x, (0, 2, 3, 1)), transpose(transpose(x, _SWAP), _KT))


@rule(
    holds=dict(x="b n t h", u="ints b*n t h", w="ints b n h t"),
    refuse=[dict(x="2 3 t h", u="ints 6 t h", w="ints 3 2 h t"), dict(x="b n 2 3", u="ints b*n 3 2", w="ints b n 2 3")],
)  # fmt: skip
def transpose_k_3d(x: Tensor, u: Tensor, w: Tensor) -> Sides:
    """reshape(transpose(reshape(x, [B*N, T, H]), 021), [B, N, H, T]) = transpose(x, 0132)"""
    flat: Tensor = call("Reshape", x, u)
    back: Tensor = call("Reshape", transpose(flat, (0, 2, 1)), w)
    shapes = [eq(rank(x), 4), eq(rank(back), 4), eq(dim(flat, -1), dim(x, -1)), eq(dim(flat, -2), dim(x, -2))]
    outer = [eq(dim(back, -4), dim(x, -4)), eq(dim(back, -3), dim(x, -3))]
    inner = [eq(dim(back, -2), dim(x, -1)), eq(dim(back, -1), dim(x, -2))]
    return Sides(back, transpose(x, _KT), when=[*shapes, *outer, *inner])


@rule(
    holds=dict(y="b n t h", u="ints b*n t h", w="ints b n h t", b=2, n=3, h=5, t=1),
    refuse=[dict(y="2 3 5 7", u="ints 6 7 5", w="ints 3 2 5 7", b=2, n=3, h=5, t=7)],
)  # fmt: skip
def transpose_k_flat(y: Tensor, u: Tensor, w: Tensor, b: Int, n: Int, h: Int, t: Int) -> Sides:
    """reshape(transpose(reshape(y, [B*N, T, H]), 021), [B, N, H, T]) = transpose(reshape(y, [B, N, T, H]), 0132)"""
    flat: Tensor = call("Reshape", y, u)
    back: Tensor = call("Reshape", transpose(flat, (0, 2, 1)), w)
    sizes = [eq(dim(back, -4 + i), num(v)) for i, v in enumerate((b, n, h, t))] + [eq(rank(back), 4)]
    rows = [eq(dim(flat, -1), num(h)), eq(dim(flat, -2), num(t)), lt(0, b), lt(0, n), lt(0, t), lt(0, h)]
    return Sides(back, transpose(reshape(y, ints(b, n, t, h)), _KT), when=[*sizes, *rows])


@rule(
    expand=dict(k=(0, 1)), contract="exact", holds=dict(x="b n t h", c="=0.5", p=(0, 1, 3, 2)),
    refuse=[dict(x="b n t h", c="h", p=(0, 1, 3, 2))],
)  # fmt: skip
def transpose_scaled(x: Tensor, c: Tensor, p: Ints, k: int) -> Sides:
    """transpose(x, p) * c = transpose(x * c, p)   for a scalar c"""
    return Sides(transpose(x, p) * c, transpose(x * c, p), when=_scalar(c, x, k))


@rule(
    expand=dict(k=(0, 1)), contract="exact", holds=dict(x="b s n h", c="=0.5", p=(0, 2, 1, 3)),
    refuse=[dict(x="b s n h", c="h", p=(0, 2, 1, 3))],
)  # fmt: skip
def scaled_transpose(x: Tensor, c: Tensor, p: Ints, k: int) -> Sides:
    """transpose(x * c, p) = transpose(x, p) * c   for a scalar c"""
    return Sides(transpose(x * c, p), transpose(x, p) * c, when=_scalar(c, x, k))


@rule(
    expand=dict(k=(0, 1)), contract="exact", holds=dict(x="b s 8", c="=0.5", t="ints b s 2 4"),
    refuse=[dict(x="b s 8", c="8", t="ints b s 2 4")],
)  # fmt: skip
def scaled_reshape(x: Tensor, c: Tensor, t: Tensor, k: int) -> Sides:
    """reshape(x * c, t) = reshape(x, t) * c   for a scalar c"""
    return Sides(call("Reshape", x * c, t), call("Reshape", x, t) * c, when=_scalar(c, x, k))


# ----------------------------------------------------------------------------------------------------------- the scores


@rule(stage="marker", contract="exact", holds=dict(q="b n s h", k="b n t h"), refuse=[])
def scores_matmul(q: Tensor, k: Tensor) -> Sides:
    """q @ transpose(k, 0132) = scores(q, k, 1)"""
    return Sides(q @ transpose(k, _KT), scores(q, k, real(1.0)), when=[eq(rank(q), 4)])


@rule(
    stage="marker", contract="reassociated", expand=dict(j=(0, 1)),
    holds=dict(q="b n s h", k="b n t h", c="=0.5", s=2.0),
    refuse=[dict(q="b n s h", k="b n t h", c="h", s=2.0)],
)  # fmt: skip
def scores_scaled_q(q: Tensor, k: Tensor, c: Tensor, s: Float, v: Float, j: int) -> Sides:
    """scores(q * c, k, s) = scores(q, k, s * c)"""
    return Sides(scores(q * c, k, s), scores(q, k, s * v), when=_value(c, v, q, j), replaces=True)


@rule(
    stage="marker", contract="reassociated", expand=dict(j=(0, 1)),
    holds=dict(q="b n s h", k="b n t h", c="=0.5", s=2.0),
    refuse=[dict(q="b n s h", k="b n t h", c="h", s=2.0)],
)  # fmt: skip
def scores_scaled_k(q: Tensor, k: Tensor, c: Tensor, s: Float, v: Float, j: int) -> Sides:
    """scores(q, k * c, s) = scores(q, k, s * c)"""
    return Sides(scores(q, k * c, s), scores(q, k, s * v), when=_value(c, v, k, j), replaces=True)


@rule(
    stage="marker", contract="reassociated", expand=dict(j=(0, 1)),
    holds=dict(q="b n s h", k="b n t h", c="=0.5", s=2.0),
    refuse=[dict(q="b n s h", k="b n t h", c="h", s=2.0)],
)  # fmt: skip
def scores_divided_q(q: Tensor, k: Tensor, c: Tensor, s: Float, v: Float, j: int) -> Sides:
    """scores(q / c, k, s) = scores(q, k, s / c)"""
    return Sides(scores(q / c, k, s), scores(q, k, s / v), when=[*_value(c, v, q, j), ne(v, real(0.0))], replaces=True)


@rule(
    stage="marker", contract="reassociated", expand=dict(j=(0, 1)),
    holds=dict(q="b n s h", k="b n t h", c="=0.5", s=2.0),
    refuse=[dict(q="b n s h", k="b n t h", c="t", s=2.0)],
)  # fmt: skip
def scores_scaled(q: Tensor, k: Tensor, c: Tensor, s: Float, v: Float, j: int) -> Sides:
    """scores(q, k, s) * c = scores(q, k, s * c)"""
    return Sides(scores(q, k, s) * c, scores(q, k, s * v), when=_value(c, v, q, j))


@rule(
    stage="marker", contract="reassociated", expand=dict(j=(0, 1)),
    holds=dict(q="b n s h", k="b n t h", c="=0.5", s=2.0),
    refuse=[dict(q="b n s h", k="b n t h", c="t", s=2.0)],
)  # fmt: skip
def scores_divided(q: Tensor, k: Tensor, c: Tensor, s: Float, v: Float, j: int) -> Sides:
    """scores(q, k, s) / c = scores(q, k, s / c)"""
    return Sides(scores(q, k, s) / c, scores(q, k, s / v), when=[*_value(c, v, q, j), ne(v, real(0.0))])


# ---------------------------------------------------------------------------------------------- soft cap, mask, softmax


@rule(stage="fuse", contract="exact", holds=dict(q="b n s h", k="b n t h", s=0.5))
def biased_plain(q: Tensor, k: Tensor, s: Float) -> Sides:
    """scores(q, k, s) = biased(q, k, no mask, s)"""
    return Sides(scores(q, k, s), biased(q, k, absent(), s, real(0.0)))


@rule(
    stage="fuse", contract="reassociated", expand=dict(j=(0, 1)),
    holds=dict(q="b n s h", k="b n t h", c="=5", d="=5", s=0.5),
    refuse=[dict(q="b n s h", k="b n t h", c="=5", d="=6", s=0.5)],
)  # fmt: skip
def biased_capped(q: Tensor, k: Tensor, c: Tensor, d: Tensor, s: Float, v: Float, j: int) -> Sides:
    """c * tanh(scores(q, k, s) / c) = biased(q, k, no mask, s, cap c)"""
    lhs = call("Tanh", scores(q, k, s) / c) * d
    return Sides(lhs, biased(q, k, absent(), s, v), when=[*_value(c, v, q, j), *_value(d, v, q, j), ne(v, real(0.0))])


@rule(
    stage="fuse", contract="reassociated",
    holds=[dict(q="b n s h", k="b n t h", m="b 1 s t", s=0.5, c=0.0),
           dict(q="b n s h", k="b n t h", m="s t", s=0.5, c=3.0)],
    refuse=[dict(q="1 n s h", k="1 n t h", m="5 1 1 s t", s=0.5, c=0.0)],
)  # fmt: skip
def biased_mask(q: Tensor, k: Tensor, m: Tensor, s: Float, c: Float) -> Sides:
    """biased(q, k, no mask) + m = biased(q, k, m)"""
    return Sides(biased(q, k, absent(), s, c) + m, biased(q, k, m, s, c), when=[le(rank(m), 4)])


@rule(
    stage="fuse", contract="reassociated", holds=dict(q="b n s h", k="b n t h", m="b 1 s t", p="1 n s t", s=0.5, c=0.0),
)  # fmt: skip
def biased_twice(q: Tensor, k: Tensor, m: Tensor, p: Tensor, s: Float, c: Float) -> Sides:
    """biased(q, k, m) + p = biased(q, k, m + p)"""
    when = [eq(rank(m), 4), eq(rank(p), 4)]
    both = m + p
    states = [(dim(both, a), dim(both, a)) for a in (-1, -2)]  # makes them exist, known or not
    return Sides(biased(q, k, m, s, c) + p, biased(q, k, both, s, c), when=when, states=states)


@rule(
    stage="fuse", contract="finite", holds=dict(w="b 1 s t:bool", x="b n s t", z="=0", n="=-3e38"),
    refuse=[dict(w="b 1 s t:bool", x="b n s t", n="=-5")],
)  # fmt: skip
def mask_where(w: Tensor, q: Tensor, k: Tensor, s: Float, c: Float, n: Tensor) -> Sides:
    """where(w, scores, lowest) = scores + where(w, 0, lowest)"""
    zero: Tensor = call("FConst", real(0.0), FLOAT32)
    lhs: Tensor = call("Where", w, biased(q, k, absent(), s, c), n)
    return Sides(lhs, biased(q, k, call("Where", w, zero, n), s, c), when=[lowest(n), eq(dtype(n), FLOAT32)])


@rule(stage="fuse", contract="exact", holds=dict(x="b n s t"))
def softmax_last(x: Tensor) -> Sides:
    """softmax(x, -1) = soft(x)"""
    return Sides(call("Softmax", x, -1), soft(x, 0))


@rule(stage="fuse", contract="exact", holds=dict(x="b n s t", z="=0"), refuse=[dict(x="b n s t", z="=1")])
def softmax_guarded(x: Tensor, z: Tensor) -> Sides:
    """where(isnan(p), 0, p) = soft(x), guarded   with p = soft(x)"""
    p = soft(x, 0)
    return Sides(call("Where", call("IsNaN", p), z, p), soft(x, 1), when=[eq(scalar(z), real(0.0))])


@rule(
    stage="fuse", contract="reassociated", holds=dict(x="b n s t:float16", g=0),
    refuse=[dict(x="b n s t:float64", g=0)],
)  # fmt: skip
def softmax_widened(x: Tensor, g: Int) -> Sides:
    """cast(soft(cast(x, f32)), f16) = soft(x)   for x of f16"""
    return Sides(cast(soft(cast(x, FLOAT32), g), FLOAT16), soft(x, g), when=[eq(dtype(x), FLOAT16)])


# ------------------------------------------------------------------------------------------------------------ attention


@rule(
    stage="fuse", contract="reassociated",
    holds=dict(q="b n s h", k="b n t h", v="b n t d", m="b 1 s t", s=0.5, c=0.0, g=0),
)  # fmt: skip
def sdpa_matmul(q: Tensor, k: Tensor, v: Tensor, m: Tensor, s: Float, c: Float, g: Int) -> Sides:
    """soft(biased(q, k, m)) @ v = sdpa(q, k, v, m)"""
    heads = [eq(dim(q, -3), dim(k, -3)), eq(dim(q, -3), dim(v, -3)), eq(rank(v), 4)]
    return Sides(soft(biased(q, k, m, s, c), g) @ v, sdpa(q, k, v, m, s, c, g), when=heads)


@rule(stage="fuse", contract="reassociated", holds=[])
def sdpa_matmul_any_heads(q: Tensor, k: Tensor, v: Tensor, m: Tensor, s: Float, c: Float, g: Int) -> Sides:
    """soft(biased(q, k, m)) @ v = sdpa(q, k, v, m)   for k and v of a number of heads that is not fixed: N or 1"""
    heads = [eq(dim(k, -3), dim(v, -3)), symbolic(dim(k, -3), "kv"), eq(rank(k), 4), eq(rank(v), 4)]
    return Sides(soft(biased(q, k, m, s, c), g) @ v, sdpa(q, k, v, m, s, c, g), when=heads)


@rule(
    stage="marker", contract="exact", holds=dict(x="b 2 t h", e="ints b 2 3 t h", u="ints b 6 t h"),
    refuse=[dict(x="b 2 t h", e="ints b 2 3 t h", u="ints b 3 2*t h")],
)  # fmt: skip
def repeat_kv(x: Tensor, e: Tensor, u: Tensor, n: Int, m: Int) -> Sides:
    """reshape(expand(unsqueeze(x, -3), [B, KV, n, T, H]), [B, KV*n, T, H]) = repeat(x, n)"""
    wide: Tensor = call("Expand", unsqueeze(x, -3), e)
    flat: Tensor = call("Reshape", wide, u)
    ranks = [eq(rank(x), 4), eq(rank(wide), 5), eq(rank(flat), 4)]
    sizes = [eq(dim(x, -3), num(n)), eq(dim(wide, -3), num(m)), eq(dim(flat, -3), num(n * m))]
    heads = [eq(dim(wide, -5), dim(x, -4)), eq(dim(wide, -4), dim(x, -3))]
    inner = [eq(dim(wide, -2), dim(x, -2)), eq(dim(wide, -1), dim(x, -1))]
    outer = [eq(dim(flat, -4), dim(x, -4)), eq(dim(flat, -2), dim(x, -2)), eq(dim(flat, -1), dim(x, -1))]
    return Sides(flat, repeat(x, m), when=[*ranks, *sizes, *heads, *inner, *outer])


@rule(
    stage="fuse", contract="exact",
    holds=dict(q="b 6 s h", k="b 2 t h", v="b 2 t d", m="b 1 s t", s=0.5, c=0.0, g=0, n=3),
    refuse=[dict(q="b 6 s h", k="b 1 t h", v="b 1 t d", m="b 1 s t", s=0.5, c=0.0, g=0, n=3)],
)  # fmt: skip
def sdpa_grouped(q: Tensor, k: Tensor, v: Tensor, m: Tensor, s: Float, c: Float, g: Int, n: Int, h: Int) -> Sides:
    """sdpa(q, repeat(k, n), repeat(v, n)) = sdpa(q, k, v), grouped"""
    heads = [eq(dim(k, -3), num(h)), eq(dim(v, -3), num(h)), eq(dim(q, -3), num(h * n))]
    return Sides(sdpa(q, repeat(k, n), repeat(v, n), m, s, c, g), sdpa(q, k, v, m, s, c, g), when=heads)
