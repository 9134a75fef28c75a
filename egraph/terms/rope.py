"""Rotary position embedding (RoFormer, arXiv 2104.09864): its stages and its operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from .op import Assumed, IllFormed, NodeView, Op, array, declare, form, refusing


def pair(x: np.ndarray, y: np.ndarray, pairs: int) -> np.ndarray:
    """Two [..., h] -> [..., 2h]: pairs=0 cat(x, y) (halves), pairs=1 an element of each in turn (interleaved)."""
    if not pairs:
        return np.concatenate([x, y], axis=-1)
    return np.stack([x, y], axis=-1).reshape(*x.shape[:-1], 2 * x.shape[-1])


def widen(x: np.ndarray, pairs: int, sign: int = 1) -> np.ndarray:
    """[..., h] -> [..., 2h]: pairs=0 cat(x, x) (rotate-half tables), pairs=1 each element twice (interleaved); with
    sign=-1 the first of each pair is negated.
    """
    return pair(-x if sign < 0 else x, x, pairs)


def rotate(x: np.ndarray, pairs: int) -> np.ndarray:
    """[..., 2h] -> [..., 2h], a quarter turn of each pair: pairs=0 cat(-x2, x1) of halves, pairs=1 of (even, odd)."""
    if pairs:
        return pair(-x[..., 1::2], x[..., 0::2], 1)
    h = x.shape[-1] // 2
    return pair(-x[..., h:], x[..., :h], 0)


def rope(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, pairs: int) -> np.ndarray:
    """x * widen(cos) + rotate(x) * widen(sin), with numpy broadcasting (RoFormer, arXiv 2104.09864, eq. 34)."""
    return array(x * widen(cos, pairs) + rotate(x, pairs) * widen(sin, pairs))


def turned(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, pairs: int, width: int) -> np.ndarray:
    """rope of the first `width` channels (0: all)."""
    r = width or x.shape[-1]
    return np.concatenate([rope(x[..., :r], cos, sin, pairs), x[..., r:]], axis=-1)


def bnsh(x: np.ndarray, heads: int) -> np.ndarray:
    """[B,S,N*H] as [B,N,S,H]."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def flat(x: np.ndarray) -> np.ndarray:
    """[B,N,S,H] as [B,S,N*H]."""
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], x.shape[1] * x.shape[3])


def rope_rows(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, pairs: int, layout: int, width: int) -> np.ndarray:
    """rope of the first `width` channels (0: all) with one row of cos and sin [B or 1, S, h] per position."""
    axis = 2 if layout else 1
    return turned(x, np.expand_dims(cos, axis), np.expand_dims(sin, axis), pairs, width)


def ms_rope(
    x: np.ndarray, ids: np.ndarray, cos: np.ndarray, sin: np.ndarray, pairs: int, width: int, heads: int
) -> np.ndarray:
    """com.microsoft RotaryEmbedding. x [B,N,S,H] or [B,S,N*H]; ids [B,S] or [1] (offset); cos, sin [L, R/2]."""
    size = x.shape[-1] // heads if heads else 2 * cos.shape[-1]
    y = x.reshape(*x.shape[:2], -1, size).transpose(0, 2, 1, 3) if x.ndim == 3 else x
    pos = ids if ids.ndim == 2 else np.broadcast_to(ids[0] + np.arange(y.shape[2], like=y), (y.shape[0], y.shape[2]))
    y = turned(y, cos[pos][:, None], sin[pos][:, None], pairs, width or size)
    return flat(y) if x.ndim == 3 else y


def onnx_rope(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, pairs: int, width: int, heads: int) -> np.ndarray:
    """ai.onnx RotaryEmbedding-23 without position_ids. x [B,N,S,H] or [B,S,N*H]; cos, sin [B,S,R/2]."""
    y = turned(bnsh(x, heads) if x.ndim == 3 else x, cos[:, None], sin[:, None], pairs, width)
    return flat(y) if x.ndim == 3 else y


def _rows_fit(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, pairs: int, layout: int, width: int) -> None:
    if x.ndim != 4 or cos.ndim != 3 or sin.ndim != 3 or width > x.shape[-1]:
        raise IllFormed("x is of rank 4, cos and sin are of rank 3, and no more channels turn than there are")
    if 2 * cos.shape[-1] != (width or x.shape[-1]):
        raise IllFormed("rows of cos and sin are [B or 1, S, h], x is of rank 4")
    positions = x.shape[1 if layout else 2]
    if any(t.shape[1:] != (positions, cos.shape[2]) for t in (cos, sin)):
        raise IllFormed("cos and sin have one row per position")
    if any(t.shape[0] not in (1, x.shape[0]) for t in (cos, sin)):
        raise Assumed("cos and sin have rows for each batch row of x, or for all")


def _whole_rows(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, pairs: int, width: int) -> None:
    if x.ndim != 4 or cos.ndim != 3 or sin.ndim != 3 or (width or x.shape[-1]) != 2 * cos.shape[-1]:
        raise IllFormed("cos and sin are of rank 3, and half as wide as what turns")
    if width > x.shape[-1] or any(t.shape != (x.shape[0], x.shape[-2], cos.shape[-1]) for t in (cos, sin)):
        raise IllFormed("cos and sin are [B, S, h] for x of [B, N, S, H], of which 2h channels turn")


def _read_rotary(node: NodeView) -> tuple[Any, ...] | None:
    """ONNX RotaryEmbedding-23 on [B,N,S,H] with rows of cos and sin."""
    shapes = [node.dims(i) for i in range(3)]
    if node.present(3) or [len(d) if d is not None else 0 for d in shapes] != [4, 3, 3]:
        return None
    return ("RopeEach", *map(node.x, range(3)), node.int("interleaved", 0), node.int("rotary_embedding_dim", 0))


_OPTIONS = "interleaved=pairs?0 rotary_embedding_dim=width?0 num_heads=heads?0"
_MS_OPERANDS = "x ids cos sin pairs:i64 width:i64 heads:i64"
_MS_FORMS = (form("com.microsoft::RotaryEmbedding", "x ids cos sin", _OPTIONS, indexes={1: 2}),)

TERMS: tuple[Op, ...] = (
    declare(
        "Paired", "x y pairs:i64", pair, "wide", role="marker", same="x y", common=True,
        requires=refusing(
            lambda x, y, pairs: pairs not in (0, 1) or not x.ndim or x.shape != y.shape,
            "pairs of tensors of different shapes",
        ),
        doc="cat(x, y), or an element of each in turn",
    ),
    declare(
        "Wide", "x pairs:i64 sign:i64", widen, "wide", role="marker", common=True,
        requires=refusing(lambda x, pairs, sign: pairs not in (0, 1) or sign not in (1, -1), "two halves, and a sign"),
        doc="cat(x, x), or every element twice; with sign -1 the first of each pair is negated",
    ),
    declare(
        "Rot", "x pairs:i64", rotate, "same", role="marker", doc="quarter turn of each pair",
        requires=refusing(lambda x, _: not x.ndim or x.shape[-1] % 2, "a quarter turn of an odd number of channels"),
    ),
    declare(
        "Rope", "x cos sin pairs:i64", rope, role="marker", same="x cos sin",
        requires=refusing(
            lambda x, cos, sin, _: any(not t.ndim or 2 * t.shape[-1] != x.shape[-1] for t in (cos, sin)),
            "cos and sin have half as many channels as x",
        ),
        doc="x*wide(cos) + rot(x)*wide(sin), broadcasting",
    ),
    declare(
        "RopeT", "x cos sin pairs:i64 layout:i64 width:i64", rope_rows, "same", role="marker", same="x cos sin",
        requires=_rows_fit,
        doc="rope with caches [B or 1, S, h]; layout 0: x is [B,N,S,H], 1: x is [B,S,N,H]; width 0: all of H turns",
    ),
    declare(
        "RopeEach", "x cos sin pairs:i64 width:i64",
        lambda x, cos, sin, pairs, width: rope_rows(x, cos, sin, pairs, 0, width), "same",
        role="marker", same="x cos sin", requires=_whole_rows,
        doc="rope of [B,N,S,H] with caches [B,S,h], as ONNX RotaryEmbedding has it",
    ),
    declare("MsRope", _MS_OPERANDS, ms_rope, "same", role="fused", forms=_MS_FORMS),
    declare("MsRope3", _MS_OPERANDS, ms_rope, "same", role="fused", forms=_MS_FORMS),
    declare(
        "OnnxRope", "x cos sin pairs:i64 width:i64 heads:i64", onnx_rope, "same", role="fused",
        forms=(form("RotaryEmbedding", "x cos sin", _OPTIONS, since=23, indexes={3: 1}),),  # rows may be picked by ids
        reads={"RotaryEmbedding": _read_rotary},
    ),
)  # fmt: skip
