"""The one table of terms: name, operand and attribute sorts, numpy meaning, shape law.

Axes are counted from the END (-1 is the last) wherever the rank is known, so that one pattern serves every rank and
values of unknown rank; only permutations are lists of positions counted from the front. Dimensions are of sort `Dim`:
a number or a symbol. `scalar` operands are attributes, printed into the ONNX node.

A *marker* is a term no file can hold: it names a stage on the way to a fused operator (a half turn, a widened table),
carries all that distinguishes the forms it merges, and is never extracted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from .dtypes import NAMES

TENSOR, LIST, NODE, DIM, INTS, INT, FLOAT = "T", "TL", "Nd", "Dim", "IV", "i64", "f64"


@dataclass(frozen=True, slots=True)
class Op:
    """One kind of term. `operands` are (name, sort) in order; `shape` names a law of `facts.py` ("" = none)."""

    name: str
    operands: tuple[tuple[str, str], ...]
    numpy: Callable[..., Any] | None
    out: str = TENSOR
    shape: str = ""
    dtype: str = "first"  # "first": of the first tensor operand; "bool"; "int64"; "" = not derived
    commutative: bool = False
    marker: bool = False
    onnx: str = ""  # "domain::OpType" for terms declared by a caller; the built-in ones are spelled in lowering/emit.py
    doc: str = field(default="", compare=False)

    @property
    def sorts(self) -> tuple[str, ...]:
        return tuple(sort for _, sort in self.operands)


def _softmax(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return np.asarray(e / e.sum(axis=axis, keepdims=True)).astype(x.dtype)


def _erf(x: np.ndarray) -> np.ndarray:
    from scipy.special import erf

    return np.asarray(erf(x.astype(np.float64))).astype(x.dtype)


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return (1 / (1 + np.exp(-x.astype(np.float64)))).astype(x.dtype)


def _reshape(x: np.ndarray, target: np.ndarray) -> np.ndarray:
    return x.reshape([x.shape[i] if d == 0 else int(d) for i, d in enumerate(target)])


def _expand(x: np.ndarray, target: np.ndarray) -> np.ndarray:
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(int(d) for d in target)))


def _along(x: np.ndarray, axis: int, where: slice) -> np.ndarray:
    index: list[slice] = [slice(None)] * x.ndim
    index[axis] = where
    return x[tuple(index)]


def _slice(x: np.ndarray, start: np.ndarray, end: np.ndarray, axis: int, step: int) -> np.ndarray:
    first, last, size = int(start[0]), int(end[0]), x.shape[axis]
    if step < 0 and last < -size:
        return _along(x, axis, slice(first, None, step))
    return _along(x, axis, slice(first, last, step))


def _split(x: np.ndarray, axis: int, sizes: tuple[int, ...]) -> list[np.ndarray]:
    return list(np.split(x, np.cumsum(sizes)[:-1], axis=axis))


def _cast(x: np.ndarray, to: int) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(NAMES[to])


def _divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind in "iu":
        quotient = np.abs(x) // np.abs(y)
        return np.asarray(np.where((x < 0) != (y < 0), -quotient, quotient), dtype=x.dtype)
    with np.errstate(all="ignore"):
        return np.asarray(x / y)


def _pow(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(np.power(x, y.astype(x.dtype)))


def _quiet(f: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return f(*args)

    return call


def widen(x: np.ndarray, pairs: int) -> np.ndarray:
    """[..., h] -> [..., 2h]: pairs=0 cat(x, x) (rotate-half tables), pairs=1 each element twice (interleaved)."""
    return np.repeat(x, 2, axis=-1) if pairs else np.concatenate([x, x], axis=-1)


def rotate(x: np.ndarray, pairs: int) -> np.ndarray:
    """[..., 2h] -> [..., 2h], a quarter turn of each pair: pairs=0 cat(-x2, x1) of halves, pairs=1 of (even, odd)."""
    if pairs:
        return np.stack([-x[..., 1::2], x[..., 0::2]], axis=-1).reshape(x.shape)
    h = x.shape[-1] // 2
    return np.concatenate([-x[..., h:], x[..., :h]], axis=-1)


def rope(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, pairs: int) -> np.ndarray:
    """x * widen(cos) + rotate(x) * widen(sin), with numpy broadcasting (RoFormer, arXiv 2104.09864, eq. 34)."""
    return np.asarray(x * widen(cos, pairs) + rotate(x, pairs) * widen(sin, pairs))


def rope_rows(
    x: np.ndarray, cos: np.ndarray, sin: np.ndarray, pairs: int, layout: int, width: int
) -> np.ndarray:
    """rope of the first `width` channels (0: all) with one row of cos and sin [B or 1, S, h] per position."""
    axis = 2 if layout else 1
    r = width or x.shape[-1]
    turned = rope(x[..., :r], np.expand_dims(cos, axis), np.expand_dims(sin, axis), pairs)
    return np.concatenate([turned, x[..., r:]], axis=-1)


def ms_rope(
    x: np.ndarray, ids: np.ndarray, cos: np.ndarray, sin: np.ndarray, pairs: int, width: int, heads: int
) -> np.ndarray:
    """com.microsoft RotaryEmbedding. x [B,N,S,H] or [B,S,N*H]; ids [B,S] or [1] (offset); cos, sin [L, R/2]."""
    three = x.ndim == 3
    size = x.shape[-1] // heads if heads else 2 * cos.shape[-1]
    y = x.reshape(*x.shape[:2], -1, size).transpose(0, 2, 1, 3) if three else x
    pos = ids if ids.ndim == 2 else np.broadcast_to(int(ids[0]) + np.arange(y.shape[2]), (y.shape[0], y.shape[2]))
    c, s = cos[pos][:, None], sin[pos][:, None]
    r = width or size
    y = np.concatenate([rope(y[..., :r], c, s, pairs), y[..., r:]], axis=-1)
    return y.transpose(0, 2, 1, 3).reshape(x.shape) if three else y


def onnx_rope(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, pairs: int, width: int, heads: int) -> np.ndarray:
    """ai.onnx RotaryEmbedding-23 without position_ids. x [B,N,S,H] or [B,S,N*H]; cos, sin [B,S,R/2]."""
    three = x.ndim == 3
    y = x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3) if three else x
    r = width or y.shape[-1]
    y = np.concatenate([rope(y[..., :r], cos[:, None], sin[:, None], pairs), y[..., r:]], axis=-1)
    return y.transpose(0, 2, 1, 3).reshape(x.shape) if three else y


def scores(q: np.ndarray, k: np.ndarray, scale: float) -> np.ndarray:
    return np.asarray(q @ np.swapaxes(k, -1, -2) * np.asarray(scale, q.dtype))


def biased(q: np.ndarray, k: np.ndarray, mask: np.ndarray | None, scale: float, cap: float) -> np.ndarray:
    with np.errstate(all="ignore"):
        s = scores(q, k, scale)
        s = (cap * np.tanh(s / cap)).astype(s.dtype) if cap else s
        if mask is None:
            return s
        # a hidden key is seen by the NaN of its score alone, as in onnxruntime, which adds -inf
        added = np.where(mask, np.zeros_like(s), np.asarray(-np.inf, s.dtype)) if mask.dtype == bool else mask
        return np.asarray(s + added)


def safe_softmax(x: np.ndarray, guard: int) -> np.ndarray:
    with np.errstate(all="ignore"):
        p = _softmax(x, -1)
    return np.where(np.isnan(p), np.zeros_like(p), p) if guard else p


def hides(mask: np.ndarray, lowest: float = -np.inf) -> np.ndarray:
    """[.., S, 1]: the rows from which a mask hides every key, by False or by numbers that are not above `lowest`."""
    return np.asarray((~mask if mask.dtype == bool else mask <= lowest).all(-1, keepdims=True))


def lowest(mask: np.ndarray) -> float:
    """What hides a key from onnxruntime's Attention: the lowest number of the type does, too."""
    return -np.inf if mask.dtype == bool else float(np.finfo(mask.dtype).min)


def sdpa(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None, scale: float, cap: float, guard: int
) -> np.ndarray:
    """softmax(scale * q k^T + mask) v on [B,N,S,H], [B,KV,T,H], [B,KV,T,Hv]; each KV head serves N/KV query heads.

    guard 0: none; 1: what the softmax makes NaN becomes 0; 2: so do rows that False or -inf hides entirely, no others;
    -1: none, and another one behind the result replaces rows of NaN.
    """
    hidden = hides(mask) if guard == 2 and mask is not None else np.False_
    return _attention(q, k, v, mask, scale, cap, int(guard == 1), hidden)


def _attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None, scale: float, cap: float, guard: int,
    hidden: np.ndarray | np.bool_,
) -> np.ndarray:  # fmt: skip
    """Attention whose `hidden` rows have weights of zero."""
    k, v = (np.repeat(t, q.shape[1] // t.shape[1], axis=1) for t in (k, v))
    with np.errstate(all="ignore"):
        p = safe_softmax(biased(q, k, mask, scale, cap), guard)
        return np.asarray(np.where(hidden, np.zeros_like(p), p) @ v)


def onnx_attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None, scale: float, cap: float
) -> np.ndarray:
    """ai.onnx Attention-23 on 4-D operands, not causal. A fully masked row gives 0, another row of NaN stays one."""
    hidden = hides(mask, lowest(mask)) if mask is not None else np.False_
    return _attention(q, k, v, mask, scale, cap, 0, hidden)


def onnx_attention_flat(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None, heads: int, kv_heads: int, scale: float,
    cap: float,
) -> np.ndarray:  # fmt: skip
    """The same on [B,S,N*H], [B,T,KV*H] and [B,T,KV*Hv]; returns [B,S,N*Hv]."""
    split = [
        t.reshape(*t.shape[:2], n, -1).transpose(0, 2, 1, 3) for t, n in ((q, heads), (k, kv_heads), (v, kv_heads))
    ]
    out = onnx_attention(split[0], split[1], split[2], mask, scale, cap)
    return out.transpose(0, 2, 1, 3).reshape(*q.shape[:2], -1)


def ms_mha(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None, heads: int, scale: float
) -> np.ndarray:
    """com.microsoft MultiHeadAttention; the mask is added.

    q [B,S,N*H]; k, v [B,T,N*H] or both [B,N,T,H]; mask [B or 1,N or 1,S,T].
    Returns [B,S,N*Hv]; H and Hv may differ in the 3-D form only.
    """
    split = [t if t.ndim == 4 else t.reshape(*t.shape[:2], heads, -1).transpose(0, 2, 1, 3) for t in (q, k, v)]
    if k.ndim == 4 and k.shape[-1] != v.shape[-1]:
        raise ValueError("k and v of rank 4 have one head size")
    if any(t.shape[1] != heads for t in split):
        raise ValueError("q, k and v have the same number of heads")
    full = (*split[0].shape[:3], split[1].shape[2])
    if mask is not None and (mask.ndim != 4 or any(a not in (1, b) for a, b in zip(mask.shape, full, strict=True))):
        raise ValueError("the mask is [B or 1, N or 1, S, T]")
    out = sdpa(split[0], split[1], split[2], mask, scale, 0.0, 0)
    return out.transpose(0, 2, 1, 3).reshape(*q.shape[:2], -1)


def ms_gqa(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, past_key: np.ndarray, past_value: np.ndarray, seqlens: np.ndarray,
    total: np.ndarray, cos: np.ndarray, sin: np.ndarray, ids: np.ndarray, bias: np.ndarray,
    q_weight: np.ndarray | None, k_weight: np.ndarray | None, num_heads: int, kv_num_heads: int, scale: float,
    cap: float, pairs: int, eps: float,
) -> list[np.ndarray]:  # fmt: skip
    """com.microsoft GroupQueryAttention, causal=0, growing past, with the rotation and maybe norms of q and k inside.

    q [B,S,N*H]; k, v [B,S,KV*H]; past [B,KV,P,H]; cos, sin [L,H/2] with L >= P+S; ids [B,S];
    bias [B or 1,N or 1,S,P+S]; weights [H] -> output [B,S,N*H], present key and value [B,KV,P+S,H].
    """
    if not int(total) == past_key.shape[2] + q.shape[1] <= cos.shape[0] or (seqlens + 1 != int(total)).any():
        raise ValueError("the total length is that of the past and of q, the caches have a row for each position")
    heads = [
        t.reshape(*t.shape[:2], n, -1).transpose(0, 2, 1, 3)
        for t, n in ((q, num_heads), (k, kv_num_heads), (v, kv_num_heads))
    ]
    c, s = cos[ids][:, None], sin[ids][:, None]
    turned = [
        rope(t if w is None else _rms_norm(t, w, eps), c, s, pairs)
        for t, w in ((heads[0], q_weight), (heads[1], k_weight))
    ]
    keys = np.concatenate([past_key, turned[1]], axis=2)
    values = np.concatenate([past_value, heads[2]], axis=2)
    out = sdpa(turned[0], keys, values, bias, scale, cap, 0)
    return [out.transpose(0, 2, 1, 3).reshape(q.shape), keys, values]


def _mean(x: np.ndarray, axes: tuple[int, ...], keep: int) -> np.ndarray:
    return _kept(np.mean(x, axis=axes, dtype=np.float64), axes, keep).astype(x.dtype)


def _sum(x: np.ndarray, axes: tuple[int, ...], keep: int) -> np.ndarray:
    return _kept(np.sum(x, axis=axes, dtype=x.dtype), axes, keep)


def _kept(reduced: np.ndarray | np.generic, axes: tuple[int, ...], keep: int) -> np.ndarray:
    return np.expand_dims(reduced, axes) if keep else np.asarray(reduced)


def rnorm(x: np.ndarray, eps: float) -> np.ndarray:
    """x / sqrt(mean(x^2) + eps) over the last axis, computed wide (Zhang & Sennrich, arXiv 1910.07467)."""
    wide = x.astype(np.float64)
    return np.asarray(wide / np.sqrt((wide**2).mean(-1, keepdims=True) + eps)).astype(x.dtype)


def _rms_norm(x: np.ndarray, w: np.ndarray, eps: float) -> np.ndarray:
    wide = x.astype(np.float64)
    return np.asarray(wide / np.sqrt((wide**2).mean(-1, keepdims=True) + eps) * w).astype(x.dtype)


def _layer_norm(x: np.ndarray, w: np.ndarray, b: np.ndarray, eps: float) -> np.ndarray:
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * w + b).astype(x.dtype)


def _fast_gelu(x: np.ndarray) -> np.ndarray:
    y = x.astype(np.float64)
    return np.asarray(0.5 * y * (1 + np.tanh(0.7978845608028654 * (y + 0.044715 * y**3)))).astype(x.dtype)


def _tanh_plus(x: np.ndarray) -> np.ndarray:
    y = x.astype(np.float64)
    return (1 + np.tanh(0.7978845608028654 * (y + 0.044715 * y**3))).astype(x.dtype)


def _cubic(x: np.ndarray) -> np.ndarray:
    y = x.astype(np.float64)
    with np.errstate(over="ignore"):  # beyond what float16 holds: inf
        return np.asarray(y + 0.044715 * y**3).astype(x.dtype)


def _quick_gelu(x: np.ndarray, alpha: float) -> np.ndarray:
    y = x.astype(np.float64)
    return np.asarray(y * _sigmoid(alpha * y)).astype(x.dtype)


def _where(c: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(c, x, y)


def _sig(text: str) -> tuple[tuple[str, str], ...]:
    """'x y:i64' -> (('x', 'T'), ('y', 'i64')): operands are tensors unless a sort is given."""
    return tuple((w.split(":")[0], w.split(":")[1] if ":" in w else TENSOR) for w in text.split())


def _table() -> Mapping[str, Op]:
    ops: list[Op] = []

    def op(name: str, sig: str, numpy: Callable[..., Any] | None, shape: str = "", **more: Any) -> None:
        ops.append(Op(name, _sig(sig), numpy, shape=shape, **more))

    # Leaves. Payloads (tensors, names) live in a side table of the caller; only integers enter the e-graph.
    op("Input", "payload:i64", None, dtype="")
    op("Const", "payload:i64", None, dtype="")
    op("FConst", "value:f64 to:i64", lambda v, to: np.asarray(v, NAMES[to]), "scalar", dtype="cast")
    op("Ints", "values:IV", lambda v: np.asarray(v, np.int64), "ints", dtype="int64")
    op("Int0", "value:i64", lambda v: np.asarray(v, np.int64), "int0", dtype="int64")
    op("Absent", "", lambda: None, dtype="")
    op("DimT", "d:Dim", lambda d: np.asarray([d], np.int64), "dimt", dtype="int64", marker=True)
    op("Cons", "head tail:TL", lambda h, t: [h, *t], out=LIST, dtype="")
    op("Nil", "", lambda: [], out=LIST, dtype="")
    # What no rule knows: comes back verbatim.
    op("Op1", "payload:i64 ins:TL", None, dtype="")
    op("OpN", "payload:i64 ins:TL", None, out=NODE, dtype="")
    op("Out", "node:Nd index:i64", lambda n, i: n[i], dtype="")
    # Elementwise.
    unary: Mapping[str, Callable[..., Any]] = {
        "Neg": np.negative, "Sqrt": np.sqrt, "Reciprocal": np.reciprocal, "Cos": np.cos, "Sin": np.sin,
        "Tanh": np.tanh, "Exp": np.exp, "Log": np.log, "Abs": np.abs, "Erf": _erf, "Sigmoid": _sigmoid,
    }  # fmt: skip
    for name, f in unary.items():
        op(name, "x", _quiet(f), "same")
    op("Not", "x", np.logical_not, "same")
    op("IsNaN", "x", np.isnan, "same", dtype="bool")
    op("Cast", "x to:i64", _cast, "same", dtype="cast")
    op("Add", "x y", _quiet(np.add), "broadcast", commutative=True)
    op("Mul", "x y", _quiet(np.multiply), "broadcast", commutative=True)
    op("Sub", "x y", _quiet(np.subtract), "broadcast")
    op("Div", "x y", _divide, "broadcast")
    op("Pow", "x y", _pow, "broadcast")
    op("Max", "x y", np.maximum, "broadcast", commutative=True)
    op("And", "x y", np.logical_and, "broadcast", commutative=True)
    op("Or", "x y", np.logical_or, "broadcast", commutative=True)
    for name, f in {
        "Equal": np.equal, "Less": np.less, "LessOrEqual": np.less_equal, "Greater": np.greater,
        "GreaterOrEqual": np.greater_equal,
    }.items():  # fmt: skip
        op(name, "x y", f, "broadcast", dtype="bool", commutative=name == "Equal")
    op("Where", "c x y", _where, "where", dtype="second")
    # Linear algebra and reductions.
    op("MatMul", "x y", _quiet(np.matmul), "matmul")
    op("Softmax", "x axis:i64", _quiet(_softmax), "same")
    op("ReduceMean", "x axes:IV keep:i64", _mean, "reduce")
    op("ReduceSum", "x axes:IV keep:i64", _sum, "reduce")
    op("ReduceMax", "x axes:IV keep:i64", lambda x, axes, keep: _kept(np.max(x, axis=axes), axes, keep), "reduce")
    # Layout.
    op("Transpose", "x perm:IV", lambda x, p: np.transpose(x, p), "transpose")
    op("Reshape", "x target", _reshape, "reshape")
    op("Expand", "x target", _expand, "expand")
    op("Unsqueeze", "x axis:i64", lambda x, a: np.expand_dims(x, a), "unsqueeze")
    op("Squeeze", "x axis:i64", lambda x, a: np.squeeze(x, a), "squeeze")
    op("Slice", "x start end axis:i64 step:i64", _slice, "slice")
    op("SliceC", "x axis:i64 start:i64 end:i64 step:i64", lambda x, a, s, e, t: _along(x, a, slice(s, e, t)), "slicec")
    op("Gather", "x ids axis:i64", lambda x, i, a: np.take(x, i, axis=a), "gather")
    op("Concat", "xs:TL axis:i64", lambda xs, a: np.concatenate(xs, axis=a), "concat", dtype="list")
    op("Split", "x axis:i64 sizes:IV", _split, out=NODE, shape="split", dtype="")
    op(
        "Shape", "x first:i64 last:i64",  # dims first..last-1 counted from the end; last = 0 means through the end
        lambda x, a, b: np.asarray(x.shape[a : b or None], np.int64), "shapeof", dtype="int64",
    )  # fmt: skip
    op("Range", "start limit step", lambda a, b, c: np.arange(a, b, c, dtype=a.dtype), "range")
    # Stage markers.
    op("Wide", "x pairs:i64", widen, "wide", marker=True, doc="cat(x, x), or every element twice")
    op("Cell", "x index:i64 axis:i64", lambda x, i, a: np.take(x, i, axis=a), marker=True, doc="x at a place")
    op("Stack", "x y axis:i64", lambda x, y, a: np.stack([x, y], axis=a), marker=True, doc="both along a new axis")
    op("Rot", "x pairs:i64", rotate, "same", marker=True, doc="quarter turn of each pair")
    op("Rope", "x cos sin pairs:i64", rope, marker=True, doc="x*wide(cos) + rot(x)*wide(sin), broadcasting")
    op(
        "RopeT", "x cos sin pairs:i64 layout:i64 width:i64", rope_rows, "same", marker=True,
        doc="rope with caches [B or 1, S, h]; layout 0: x is [B,N,S,H], 1: x is [B,S,N,H]; width 0: all of H turns",
    )  # fmt: skip
    # Batch sizes, heads and masks may be broadcast: what these three join has facts of its own.
    op("Scores", "q k scale:f64", scores, marker=True, doc="scale * q @ k^T over [B,N,S,H] and [B,N,T,H]")
    op(
        "Biased", "q k mask scale:f64 cap:f64", biased, marker=True,
        doc="scores, soft cap (0: none), mask added",
    )  # fmt: skip
    op("SafeSoftmax", "x guard:i64", safe_softmax, "same", marker=True, doc="softmax; guard 1: rows of NaN become 0")
    op(
        "Merged", "x", lambda x: x.reshape(-1, *x.shape[2:]), "merged", marker=True,
        doc="batch and heads as one axis: [B,N,S,H] as [B*N,S,H]",
    )  # fmt: skip
    op(
        "RepeatKV", "x times:i64", lambda x, n: np.repeat(x, n, axis=-3), "repeated", marker=True,
        doc="each head, times in a row",
    )  # fmt: skip
    op(
        "Grouped", "x times:i64", lambda x, n: x.reshape(x.shape[0], -1, n, *x.shape[2:]), "grouped", marker=True,
        doc="heads in groups: [B,KV*n,S,H] as [B,KV,n,S,H]",
    )  # fmt: skip
    op(
        "Sdpa", "q k v mask scale:f64 cap:f64 guard:i64", sdpa, marker=True,
        doc="attention on BNSH, KV may be grouped; guard as in `sdpa`",
    )  # fmt: skip
    op("RSqrt", "x", _quiet(lambda x: 1 / np.sqrt(x)), "same", marker=True)
    op("RNorm", "x eps:f64", rnorm, "same", marker=True)
    op("Center", "x", lambda x: (x - x.mean(-1, keepdims=True)).astype(x.dtype), "same", marker=True)
    op("ErfPlus", "x", lambda x: (1 + _erf(x / np.sqrt(2.0))).astype(x.dtype), "same", marker=True)
    op("Cubic", "x", _cubic, "same", marker=True)
    op("TanhPlus", "x", _tanh_plus, "same", marker=True)
    # Fused operators.
    op("RMSNorm", "x w eps:f64", _rms_norm, "same")
    op("LayerNorm", "x w b eps:f64", _layer_norm, "same")
    op("Gelu", "x", lambda x: (x.astype(np.float64) * (1 + _erf(x / np.sqrt(2.0))) / 2).astype(x.dtype), "same")
    op("FastGelu", "x", _fast_gelu, "same")
    op("QuickGelu", "x alpha:f64", _quick_gelu, "same")
    op("OnnxAttention", "q k v mask scale:f64 cap:f64", onnx_attention, "sdpa")
    op(
        "OnnxAttention3", "q k v mask num_heads:i64 kv_num_heads:i64 scale:f64 cap:f64", onnx_attention_flat,
        "attention3",
    )  # fmt: skip
    op("MsMHA", "q k v mask num_heads:i64 scale:f64", ms_mha, "mha")
    op(
        "MsGQA", "q k v past_key past_value seqlens total cos sin ids bias q_weight k_weight num_heads:i64"
        " kv_num_heads:i64 scale:f64 cap:f64 pairs:i64 eps:f64", _quiet(ms_gqa), out=NODE, dtype="",
    )  # fmt: skip
    op(
        "MsGQARope", "q k v past_key past_value seqlens total cos sin ids bias num_heads:i64 kv_num_heads:i64 scale:f64"
        " cap:f64 pairs:i64", _quiet(lambda *a: ms_gqa(*(*a[:11], None, None, *a[11:], 0.0))), out=NODE, dtype="",
    )  # fmt: skip
    op("MsRope", "x ids cos sin pairs:i64 width:i64 heads:i64", ms_rope, "same")
    op("MsRope3", "x ids cos sin pairs:i64 width:i64 heads:i64", ms_rope, "same")
    op("OnnxRope", "x cos sin pairs:i64 width:i64 heads:i64", onnx_rope, "same")
    return MappingProxyType({o.name: o for o in ops})


#: The term table, read only.
OPS: Mapping[str, Op] = _table()
