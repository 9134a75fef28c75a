"""From `sdpa` to the attention operators a runtime has.

ONNX Attention-23 takes BNSH operands, grouped heads, a soft cap and a mask whose last two dims are exactly S and T; a
row whose mask is nowhere above the lowest number gives 0. com.microsoft MultiHeadAttention takes q as [B,S,N*H], k and
v as BNSH of as many heads, a mask [1 or B, 1 or N, S, T] that is added; a row masked with -inf gives NaN. Any other NaN
among the scores makes a row of NaN in both.
"""

from __future__ import annotations

from typing import Any

from ...egraph.engine.assumption import HEADS, MASK_FITS, ROWS_VISIBLE, SAME_BATCH
from ...egraph.engine.lang import (
    SWAP,
    Float,
    Guard,
    Int,
    Sides,
    Tensor,
    concat,
    dim,
    dtype,
    eq,
    ints,
    le,
    lt,
    mask_exact,
    ne,
    num,
    rank,
    real,
    reshape,
    rule,
    same_batch,
    shape,
    size,
    size_known,
    squeeze,
    supported,
    symbolic,
    tensor,
    transpose,
    unsqueeze,
    visible,
    within,
)
from ...egraph.terms import INT
from ...egraph.terms.dtypes import BOOL
from ...egraph.terms.expression import lift
from .attention import BEHIND, absent, sdpa


def _batch(q: Tensor, k: Tensor, v: Tensor) -> list[Guard]:
    return [same_batch(q, k), same_batch(q, v)]


def scale_fits(scale: Float) -> list[Guard]:
    """An attribute is a float32, and what underflows to 0 there stands for another scale."""
    return [lt(real(1e-60), scale * scale), lt(scale * scale, real(1e60))]


def _fits(q: Tensor, k: Tensor, mask: Tensor, *, floating: bool = False) -> list[Guard]:
    return [mask_exact(mask, q, k), *([eq(dtype(mask), dtype(q))] if floating else [])]


_PLAIN: dict[str, Any] = dict(q="b n s h", k="b n t h", v="b n t d", scale=0.5)
_MASKED = dict(_PLAIN, mask="b 1 s t")
_FULL = dict(_MASKED, cap=0.0, g=0)
_SYMBOLS: dict[str, Any] = dict(q="A n s h", k="C n t h", v="D n t d", A=(2, 3), C=(2, 5), D=(2, 7))


def _other_batch(sample: dict[str, Any]) -> list[dict[str, Any]]:
    """Operands whose batch sizes are not known to be equal, some or all of them fixed."""
    fixed = dict(q="2 n s h", k="2 n t h", v="2 n t d")
    unequal = [{**fixed, "k": "1 n t h"}, {**fixed, "v": "1 n t d"}]
    return [{**sample, **s} for s in (*unequal, *({**_SYMBOLS, name: fixed[name]} for name in fixed))]


def _other_scale(sample: dict[str, Any]) -> list[dict[str, Any]]:
    """Scales the operator does not take, or not as they are."""
    return [dict(sample, scale=scale) for scale in (-0.5, 1e-40, 1e35)]


def _other_mask(sample: dict[str, Any]) -> list[dict[str, Any]]:
    """Masks of another shape than the scores."""
    one = dict(q="1 1 s h", k="1 1 t h", v="1 1 t d")
    wide = [{**sample, **one, "mask": mask} for mask in ("5 1 s t", "1 5 s t")]
    return [*(dict(sample, mask=mask) for mask in ("b 1 1 t", "b 1 s 1", "s t")), *wide]


# ------------------------------------------------------------------------------------------------------- masks that fit


@rule(
    stage="fuse", contract="exact", expand=dict(r=(0, 1, 2, 3)),
    holds=[dict(_FULL, mask="1 s t"), dict(_FULL, mask="n 1 t", cap=3.0, g=1), dict(_FULL, mask="s t"),
           dict(_FULL, mask="t"), dict(_FULL, mask="")],
    refuse=[_FULL],
)  # fmt: skip
def mask_short(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: Float, cap: Float, g: Int, r: int) -> Sides:
    """sdpa(.., mask) = sdpa(.., unsqueeze(mask, -4))   for a mask of rank 3, and so for lower ones"""
    longer = unsqueeze(mask, -r - 1)
    return Sides(sdpa(q, k, v, mask, scale, cap, g), sdpa(q, k, v, longer, scale, cap, g), when=[eq(rank(mask), r)])


@rule(
    stage="fuse", contract="exact", assumes=[MASK_FITS], expand=dict(a=(1, 2), known=(0, 1)),
    holds=[dict(_FULL, mask="b 1 1 t"), dict(_FULL, mask="b 1 s 1", cap=3.0, g=1),
           dict(_FULL, q="b n 7 h", mask="b 1 1 t"), dict(_FULL, k="b n 7 h", v="b n 7 d", mask="b 1 s 1")],
    refuse=[_FULL, dict(_FULL, mask="absent"), dict(_FULL, q="b n 1 h", mask="b 1 5 t"),
            dict(_FULL, k="b n 1 h", v="b n 5 d", mask="b 1 s 5")],
)  # fmt: skip
def mask_expanded(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: Float, cap: Float, g: Int, a: int, known: int
) -> Sides:
    """sdpa(.., mask) = sdpa(.., mask expanded to S rows, T columns)   with sizes of inputs, or else those of q and k"""
    rows, columns = dim(q, -2), dim(k, -2)
    sizes = [size(rows), size(columns)] if known else [shape(x, -2, -1) for x in (q, k)]
    full = tensor("Expand", mask, concat([ints(1, 1), concat(sizes)]))
    wrong = ne(dim(mask, -1), columns) if a == 1 else ne(dim(mask, -2), rows)
    when = [wrong, within(mask, -2, q, -2), within(mask, -1, k, -2)]
    when += [size_known(rows), size_known(columns)] if known else []
    states = [(dim(full, -2), rows), (dim(full, -1), columns)]
    return Sides(sdpa(q, k, v, mask, scale, cap, g), sdpa(q, k, v, full, scale, cap, g), when=when, states=states)


# -------------------------------------------------------------------------------------------------------- the operators


_ADDED = dict(_MASKED, g=0)
_ONE = dict(mask="1 1 s t")  # whatever the batch
_GROUPED = dict(q="b 6 s h", k="b 2 t h", v="b 2 t d")


def _flat(x: Tensor, n: Int, h: Int) -> Tensor:
    """[B,N,S,H] as [B,S,N*H]."""
    return reshape(transpose(x, SWAP), ints(0, 0, n * h))


def _onnx(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: Float, cap: Float, r: int) -> Tensor:
    """ONNX Attention as BNSH; r = 3: its operands and result are [B,S,N*H]."""
    if r == 4:
        return tensor("OnnxAttention", q, k, v, mask, scale, cap)
    n, kv, h, d = (Int("var", (name,)) for name in ("n", "kv", "h", "d"))
    out = tensor("OnnxAttention3", _flat(q, n, h), _flat(k, kv, h), _flat(v, kv, d), mask, n, kv, scale, cap)
    return transpose(reshape(out, ints(0, 0, n, d)), SWAP)


def _onnx_legal(q: Tensor, k: Tensor, v: Tensor, scale: Float, r: int) -> list[Guard]:
    known = {"n": dim(q, -3), "kv": dim(k, -3), "h": dim(q, -1), "d": dim(v, -1)} if r == 3 else {}
    sizes = [eq(size, num(Int("var", (name,)))) for name, size in known.items()]
    return [*sizes, lt(real(0.0), scale), *scale_fits(scale),
            supported("OnnxAttention3" if r == 3 else "OnnxAttention", q)]  # fmt: skip


@rule(
    stage="target", contract="reassociated", assumes=[ROWS_VISIBLE, SAME_BATCH, MASK_FITS],
    expand=dict(r=(3, 4)),
    holds=[_FULL, {**_FULL, **_SYMBOLS, **_ONE}, {**_FULL, **_GROUPED, "cap": 3.0, "g": 2}],
    refuse=[*_other_mask(_FULL), *_other_batch({**_FULL, **_ONE}), *_other_scale(_FULL),
            dict(_FULL, g=1), dict(_FULL, g=BEHIND)],
)  # fmt: skip
def onnx_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: Float, cap: Float, g: Int, r: int) -> Sides:
    """sdpa(q, k, v, mask) = ONNX Attention   unguarded, or 0 in rows that mask hides"""
    when = [*_batch(q, k, v), *_fits(q, k, mask), *_onnx_legal(q, k, v, scale, r), eq(g % 2, lift(0, INT))]
    return Sides(sdpa(q, k, v, mask, scale, cap, g), _onnx(q, k, v, mask, scale, cap, r), when=when)


_SINGLE = dict(q="1 1 3 h", k="1 1 5 h", v="1 1 5 d")
_BOOL = dict(_MASKED, mask="b 1 s t:bool", cap=0.0)


@rule(
    stage="target", contract="reassociated", assumes=[SAME_BATCH, MASK_FITS], expand=dict(r=(3, 4)),
    holds=[_BOOL, {**_BOOL, **_SYMBOLS, "mask": "1 1 s t:bool", "cap": 3.0}],
    refuse=[dict(_BOOL, mask="b 1 s t"), *_other_scale(_BOOL), dict(_BOOL, mask="b 1 1 t:bool"),
            dict(_BOOL, mask="b 1 s 1:bool"), *_other_batch(dict(_BOOL, mask="1 1 s t:bool")),
            *({**_BOOL, **_SINGLE, "mask": f"{mask}:bool"} for mask in ("5 1 3 5", "1 5 3 5"))],
)  # fmt: skip
def onnx_attention_bool(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: Float, cap: Float, r: int) -> Sides:
    """sdpa(q, k, v, mask), 0 in rows that mask hides = ONNX Attention   for a boolean mask"""
    when = [*_batch(q, k, v), *_fits(q, k, mask), *_onnx_legal(q, k, v, scale, r), eq(dtype(mask), BOOL)]
    return Sides(sdpa(q, k, v, mask, scale, cap, 2), _onnx(q, k, v, mask, scale, cap, r), when=when)


_CAUSAL = dict(q="2 n 3 h", k="2 n 5 h", v="2 n 5 d", mask="causal 1 1 3 5", scale=0.5, cap=0.0, g=0)


@rule(
    stage="target", contract="reassociated", assumes=[SAME_BATCH, MASK_FITS], expand=dict(r=(3, 4)),
    holds=[_CAUSAL, {**_FULL, **_SYMBOLS, "mask": "causal 1 1 s t", "cap": 3.0, "g": 2}],
    refuse=[_FULL, dict(_CAUSAL, g=1), *_other_scale(_CAUSAL),
            *(dict(_CAUSAL, mask=f"causal {mask}") for mask in ("3 5", "1 1 1 5", "1 1 3 1")),
            *({**_CAUSAL, **_SINGLE, "mask": f"causal {mask}"} for mask in ("5 1 3 5", "1 5 3 5")),
            *_other_batch(dict(_FULL, mask="causal 1 1 s t"))],
)  # fmt: skip
def onnx_attention_visible(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: Float, cap: Float, g: Int, r: int
) -> Sides:
    """sdpa(q, k, v, mask) = ONNX Attention   unless guarded, for a mask that leaves every row a key"""
    when = [*_batch(q, k, v), *_fits(q, k, mask), *_onnx_legal(q, k, v, scale, r), visible(mask), ne(g, 1)]
    return Sides(sdpa(q, k, v, mask, scale, cap, g), _onnx(q, k, v, mask, scale, cap, r), when=when)


@rule(
    stage="target", contract="reassociated", assumes=[SAME_BATCH], expand=dict(r=(3, 4)),
    holds=[dict(_PLAIN, cap=0.0, g=0), {**_PLAIN, **_SYMBOLS, "cap": 3.0, "g": 2}],
    refuse=[*_other_batch(dict(_PLAIN, cap=0.0, g=0)), *_other_scale(dict(_PLAIN, cap=0.0, g=0)),
            dict(_PLAIN, cap=0.0, g=1)],
)  # fmt: skip
def onnx_attention_plain(q: Tensor, k: Tensor, v: Tensor, scale: Float, cap: Float, g: Int, r: int) -> Sides:
    """sdpa(q, k, v) = ONNX Attention without a mask   unless guarded"""
    when = [*_batch(q, k, v), *_onnx_legal(q, k, v, scale, r), ne(g, 1)]
    return Sides(sdpa(q, k, v, absent(), scale, cap, g), _onnx(q, k, v, absent(), scale, cap, r), when=when)


def _mha(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: Float, n: Int, h: Int, d: Int, r: int) -> Tensor:
    """r = 3: k and v are laid out as q is; r = 4: they stay BNSH, of one head size; r = 5: of unfixed heads, too.
    r = 1: one head, whose axis goes.
    """
    if r == 1:
        return unsqueeze(tensor("MsMHA", *(squeeze(x, -3) for x in (q, k, v)), mask, 1, scale), -3)
    keys, values = (k, v) if r >= 4 else (_flat(k, n, h), _flat(v, n, d))
    out = tensor("MsMHA", _flat(q, n, h), keys, values, mask, n, scale)
    return transpose(reshape(out, ints(0, 0, n, d)), SWAP)


def _equal_heads(q: Tensor, k: Tensor, v: Tensor, n: Int, h: Int, d: Int, r: int) -> list[Guard]:
    # v has as many heads as k in every sdpa
    if r == 1:
        return [eq(dim(q, -3), num(1)), supported("MsMHA", q)]
    heads = [eq(dim(q, -3), num(n)), symbolic(dim(k, -3), "kv") if r == 5 else eq(dim(k, -3), num(n))]
    sizes = [eq(dim(q, -1), num(h)), eq(dim(v, -1), num(d)), *([eq(dim(v, -1), dim(q, -1))] if r >= 4 else [])]
    return [*heads, *sizes, supported("MsMHA", q)]


_ONE_HEAD = dict(q="b 1 s h", k="b 1 t h", v="b 1 t d")
_UNFIXED: dict[str, Any] = dict(q="b 6 s h", k="b K t h", v="b K t h", K=(6, 1))


def _mha_refuses(sample: dict[str, Any]) -> list[dict[str, Any]]:
    scales = [dict(sample, scale=scale) for scale in (0.0, 1e-40, 1e35)]
    shared = dict(q="b 6 s h", k="b 1 t h", v="b 1 t d")
    return [{**sample, **_GROUPED}, {**sample, **_GROUPED, "v": "b 2 t h"}, {**sample, **shared}, *scales]


@rule(
    stage="target", contract="reassociated", assumes=[SAME_BATCH, MASK_FITS, HEADS], expand=dict(r=(1, 3, 4, 5)),
    holds=[_ADDED, dict(_ADDED, v="b n t h", g=BEHIND), {**_ADDED, **_ONE_HEAD}, {**_ADDED, **_SYMBOLS, **_ONE},
           {**_ADDED, **_UNFIXED}],
    refuse=[*_other_mask(_ADDED), *_other_batch({**_ADDED, **_ONE}), *_mha_refuses(_ADDED),
            dict(_ADDED, mask="b 1 s t:bool"), dict(_ADDED, g=1), dict(_ADDED, g=2)],
)  # fmt: skip
def ms_mha(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: Float, g: Int, n: Int, h: Int, d: Int, r: int
) -> Sides:
    """sdpa(q, k, v, mask) = com.microsoft MultiHeadAttention   unguarded, or with a guard behind"""
    when = [*_batch(q, k, v), *_fits(q, k, mask, floating=True), *_equal_heads(q, k, v, n, h, d, r), *scale_fits(scale)]
    when += [le(g, 0)]
    return Sides(sdpa(q, k, v, mask, scale, real(0.0), g), _mha(q, k, v, mask, scale, n, h, d, r), when=when)


@rule(
    stage="target", contract="reassociated", assumes=[SAME_BATCH, HEADS], expand=dict(r=(1, 3, 4, 5)),
    holds=[dict(_PLAIN, g=2), dict(_PLAIN, v="b n t h", g=0), {**_PLAIN, **_ONE_HEAD, "g": 0},
           {**_PLAIN, **_SYMBOLS, "g": 0}, {**_PLAIN, **_UNFIXED, "g": 0}],
    refuse=[dict(sample, g=0) for sample in (*_other_batch(_PLAIN), *_mha_refuses(_PLAIN))] + [dict(_PLAIN, g=1)],
)  # fmt: skip
def ms_mha_plain(q: Tensor, k: Tensor, v: Tensor, scale: Float, n: Int, h: Int, d: Int, g: Int, r: int) -> Sides:
    """sdpa(q, k, v) = com.microsoft MultiHeadAttention without a mask   unless guarded"""
    when = [*_batch(q, k, v), *_equal_heads(q, k, v, n, h, d, r), *scale_fits(scale), ne(g, 1)]
    return Sides(sdpa(q, k, v, absent(), scale, real(0.0), g), _mha(q, k, v, absent(), scale, n, h, d, r), when=when)
