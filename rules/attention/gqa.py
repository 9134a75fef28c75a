"""The whole decode step of a layer as one GroupQueryAttention: norms of q and k, rotation, cache append, attention.

com.microsoft GroupQueryAttention takes q, k and v as [B,S,N*H] and reads its rotary caches by position: here they are
the rows of cos and sin themselves, followed by as many more as its check of the cache length asks for, and row b is
read by batch row b. The mask goes in as a bias with causal=0, so nothing about it has to be proved. More than one
position with a past is taken for one batch row only, so S must be 1. onnxruntime runs the norms on CUDA and WebGPU
alone.
"""

from __future__ import annotations

import math
from typing import Any

from ...egraph.engine.assumption import MASK_FITS, ROWS_VISIBLE, SAME_BATCH
from ...egraph.engine.lang import (
    SWAP,
    Float,
    Int,
    Sides,
    Tensor,
    call,
    cast,
    concat,
    dim,
    dtype,
    eq,
    ints,
    mask_exact,
    num,
    real,
    reshape,
    rule,
    same_batch,
    size,
    size_known,
    slice_,
    squeeze,
    supported,
    tensor,
    transpose,
    unsqueeze,
)
from ...egraph.terms.dtypes import INT32
from ...egraph.terms.expression import Expr
from ..rope.targets import expanded, rows
from .attention import sdpa
from .targets import scale_fits


def _cache(x: Tensor, cos: Tensor, total: Tensor) -> Tensor:
    """[B or 1,1,h] as [B + T,h]: row b for batch row b, then T rows nobody reads."""
    each = squeeze(expanded(x, cos), -2)
    spare = tensor("Expand", slice_(each, 0, 1, -2), concat([total, ints(1)]))
    return concat([each, spare], -2)


_STEP: dict[str, Any] = dict(
    x="b 1 4 16", y="b 1 2 16", v="b 1 2 16", a="b 2 3 16", z="b 2 3 16", cos="b 1 8", sin="b 1 8", w="16", u="16",
    mask="b 1 1 4", eps=1e-6, scale=0.25, cap=0.0, pairs=0,
)  # fmt: skip
_GROWN = {k: _STEP[k].replace("b", "2").replace(" 3 ", " t ").replace("1 4", "1 t+1") for k in ("a", "z", "mask")}
_FIXED = {name: _STEP[name].replace("b", "2") for name in ("x", "y", "v", "cos", "sin")}
_LONG = dict(x="b 3 4 16", y="b 3 2 16", v="b 3 2 16", cos="b 3 8", sin="b 3 8", mask="b 1 3 6")
_SMALL = dict(x="b 1 4 8", y="b 1 2 8", v="b 1 2 8", a="b 2 3 8", z="b 2 3 8", cos="b 1 4", sin="b 1 4", w="8", u="8")


_ALL = dict(x="2 1 4 16", y="2 1 2 16", v="2 1 2 16", a="2 2 3 16", z="2 2 3 16", cos="1 1 8", sin="1 1 8",
            mask="1 1 1 4")  # fmt: skip
_UNEQUAL = [{**_ALL, "y": "1 1 2 16", "a": "1 2 3 16"}, {**_ALL, "v": "1 1 2 16", "z": "1 2 3 16"}]  # they broadcast
_HIDDEN = dict(mask="hiding b 1 1 4")


def _refuses(sample: dict[str, Any], small: dict[str, Any]) -> list[dict[str, Any]]:
    """More than one position, heads of 8 channels or of two sizes, other batches, masks and scales."""
    other: list[dict[str, Any]] = [dict(v="b 1 2 32", z="b 2 3 32"), dict(scale=1e-40), dict(scale=1e35)]
    other += [dict(mask=mask) for mask in ("b 1 3 4", "b 1 1 1", "1 1 4", "b 1 1 4:bool")]
    return [{**sample, **change} for change in (_LONG, small, *_UNEQUAL, *other)]


def _step(
    x: Tensor, y: Tensor, v: Tensor, a: Tensor, z: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, scale: Float,
    cap: Float, guard: int, pairs: Int, weights: tuple[Tensor, Tensor] | None, eps: Float,
) -> Sides:  # fmt: skip
    """One position: x, y and v are [B,1,N or KV,H], a and z the past; weights are those of the norms of q and k."""
    n, k, h, to = (Int("var", (name,)) for name in ("n", "k", "h", "to"))
    queries, news = (tensor("RMSNorm", t, w, eps) for t, w in zip((x, y), weights, strict=True)) if weights else (x, y)
    query, new = (rows(transpose(t, SWAP), cos, sin, pairs, 0, 0) for t in (queries, news))
    keys, values = concat([a, new], -2), concat([z, transpose(v, SWAP)], -2)
    total = size(dim(keys, -2))
    one = size(dim(x, -4))
    flat = [reshape(t, ints(0, 0, i * h * 2)) for t, i in ((x, n), (y, k), (v, k))]
    seqlens = cast(call("Expand", total - ints(1), one), INT32)
    ids = unsqueeze(call("Range", call("Int0", 0), squeeze(one, -1), call("Int0", 1)), -1)
    operands = [*flat, a, z, seqlens, cast(squeeze(total, -1), INT32), _cache(x, cos, total), _cache(x, sin, total),
                ids, mask]  # fmt: skip
    op = "MsGQA" if weights else "MsGQARope"
    node = call(op, *operands, *(weights or ()), n, k, scale, cap, pairs, *([eps] if weights else []))
    split = reshape(call("Out", node, 0), ints(0, 0, n, h * 2))
    when = [
        eq(dim(x, -3), num(1)), eq(dim(x, -2), num(n)), eq(dim(y, -2), num(k)),
        eq(dim(x, -1), num(2 * h)), eq(dim(v, -1), num(2 * h)), eq(h % 8, Int("lit", (0,))),
        mask_exact(mask, query, keys), same_batch(query, keys), same_batch(query, values),
        eq(dtype(x), to), eq(dtype(mask), to), *scale_fits(scale),
        supported(op, x), size_known(dim(keys, -2)), size_known(dim(x, -4)),
    ]  # fmt: skip
    states: list[tuple[Expr, Expr]] = [(keys, call("Out", node, 1)), (values, call("Out", node, 2))]
    states += [(dim(split, -4), dim(x, -4)), (dim(split, -3), num(1))]
    zero, never = (call("FConst", real(value), to) for value in (0.0, -math.inf))
    hidden = call("Equal", reshape(tensor("ReduceMax", mask, (-1,), 1), ints(0, 1, -1, 1)), never)  # as split lies
    clean = tensor("Where", hidden, zero, split) if guard else split
    lhs = sdpa(query, keys, values, mask, scale, cap, guard)
    return Sides(lhs, transpose(clean, SWAP), when=when, states=states)


@rule(
    stage="target", contract="reassociated", assumes=[ROWS_VISIBLE, SAME_BATCH, MASK_FITS],
    expand=dict(guard=(0, 2)),
    holds=[_STEP, {**_STEP, **_FIXED, **_GROWN, "cap": 3.0, "scale": 0.5, "pairs": 1}, {**_STEP, **_HIDDEN}],
    refuse=_refuses(_STEP, _SMALL),
)  # fmt: skip
def gqa_decode(
    x: Tensor, y: Tensor, v: Tensor, a: Tensor, z: Tensor, cos: Tensor, sin: Tensor, w: Tensor, u: Tensor, mask: Tensor,
    eps: Float, scale: Float, cap: Float, pairs: Int, guard: int,
) -> Sides:  # fmt: skip
    """sdpa(rope(rms(x)), cat(past, rope(rms(y))), cat(past, v)) = GroupQueryAttention(x, y, v, past), one position"""
    return _step(x, y, v, a, z, cos, sin, mask, scale, cap, guard, pairs, (w, u), eps)


_PLAIN = {name: text for name, text in _STEP.items() if name not in ("w", "u", "eps")}
_SMALLER = {name: text for name, text in _SMALL.items() if name not in ("w", "u")}


@rule(
    stage="target", contract="reassociated", assumes=[ROWS_VISIBLE, SAME_BATCH, MASK_FITS],
    expand=dict(guard=(0, 2)),
    holds=[_PLAIN, {**_PLAIN, **_FIXED, **_GROWN, "cap": 3.0, "scale": 0.5, "pairs": 1}, {**_PLAIN, **_HIDDEN}],
    refuse=_refuses(_PLAIN, _SMALLER),
)  # fmt: skip
def gqa_decode_plain(
    x: Tensor, y: Tensor, v: Tensor, a: Tensor, z: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, scale: Float,
    cap: Float, pairs: Int, guard: int,
) -> Sides:  # fmt: skip
    """sdpa(rope(x), cat(past, rope(y)), cat(past, v)) = GroupQueryAttention(x, y, v, past), one position"""
    return _step(x, y, v, a, z, cos, sin, mask, scale, cap, guard, pairs, None, real(0.0))
