"""Scaled dot-product attention (Vaswani et al., arXiv 1706.03762): its stages and its operators.

Axes are [B,N,S,H] (BNSH): batch, heads, positions, head size.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .arithmetic import quiet, softmax
from .norm import rms_norm
from .op import NODE, IllFormed, NodeView, Op, array, declare, form, refusing
from .rope import bnsh, flat, rope


def scores(q: np.ndarray, k: np.ndarray, scale: float) -> np.ndarray:
    return array(q @ np.swapaxes(k, -1, -2) * np.full_like(q, scale, shape=()))


def biased(q: np.ndarray, k: np.ndarray, mask: np.ndarray | None, scale: float, cap: float) -> np.ndarray:
    with np.errstate(all="ignore"):
        s = scores(q, k, scale)
        s = (cap * np.tanh(s / cap)).astype(s.dtype) if cap else s
        if mask is None:
            return s
        # a hidden key is seen by the NaN of its score alone, as in onnxruntime, which adds -inf
        added = np.where(mask, np.zeros_like(s), np.full_like(s, -np.inf, shape=())) if mask.dtype == bool else mask
        return array(s + added)


def safe_softmax(x: np.ndarray, guard: int) -> np.ndarray:
    with np.errstate(all="ignore"):
        p = softmax(x, -1)
    return np.where(np.isnan(p), np.zeros_like(p), p) if guard else p


def hides(mask: np.ndarray, lowest: float = -np.inf) -> np.ndarray:
    """[.., S, 1]: the rows from which a mask hides every key, by False or by numbers that are not above `lowest`."""
    return array((~mask if mask.dtype == bool else mask <= lowest).all(-1, keepdims=True))


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
        return array(np.where(hidden, np.zeros_like(p), p) @ v)


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
    return flat(onnx_attention(bnsh(q, heads), bnsh(k, kv_heads), bnsh(v, kv_heads), mask, scale, cap))


def ms_mha(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None, heads: int, scale: float
) -> np.ndarray:
    """com.microsoft MultiHeadAttention; the mask is added.

    q [B,S,N*H]; k, v [B,T,N*H] or both [B,N,T,H]; mask [B or 1,N or 1,S,T].
    Returns [B,S,N*Hv]; H and Hv may differ in the 3-D form only.
    """
    split = [t if t.ndim == 4 else bnsh(t, heads) for t in (q, k, v)]
    if k.ndim == 4 and k.shape[-1] != v.shape[-1]:
        raise IllFormed("k and v of rank 4 have one head size")
    if any(t.shape[1] != heads for t in split):
        raise IllFormed("q, k and v have the same number of heads")
    full = (*split[0].shape[:3], split[1].shape[2])
    if mask is not None and (mask.ndim != 4 or any(a not in (1, b) for a, b in zip(mask.shape, full, strict=True))):
        raise IllFormed("the mask is [B or 1, N or 1, S, T]")
    return sdpa(split[0], split[1], split[2], mask, scale, 0.0, 0).transpose(0, 2, 1, 3).reshape(*q.shape[:2], -1)


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
        raise IllFormed("the total length is that of the past and of q, the caches have a row for each position")
    c, s = cos[ids][:, None], sin[ids][:, None]
    turned = [
        rope(t if w is None else rms_norm(t, w, eps), c, s, pairs)
        for t, w in ((bnsh(q, num_heads), q_weight), (bnsh(k, kv_num_heads), k_weight))
    ]
    keys = np.concatenate([past_key, turned[1]], axis=2)
    values = np.concatenate([past_value, bnsh(v, kv_num_heads)], axis=2)
    return [sdpa(turned[0], keys, values, bias, scale, cap, 0).transpose(0, 2, 1, 3).reshape(q.shape), keys, values]


def widens(q: np.ndarray, k: np.ndarray, mask: np.ndarray | None) -> bool:
    """Whether adding a mask to the scores of q and k gives more than the scores are."""
    full = (*q.shape[:-1], k.shape[-2])
    return mask is not None and any(a not in (1, b) for a, b in zip(mask.shape[::-1], full[::-1], strict=False))


def _bnsh(*operands: np.ndarray) -> None:
    if any(x.ndim != 4 for x in operands):
        raise IllFormed("attention takes operands of rank 4")


def _one_type(q: np.ndarray, k: np.ndarray, *others: np.ndarray | None) -> None:
    """All operands have q's type; a mask may be boolean."""
    typed = [x for x in others if x is not None and (x.dtype != bool or q.dtype == bool)]
    if any(x.dtype != q.dtype for x in (k, *typed)):
        raise IllFormed("attention of different element types")


def _grouped_heads(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
    heads, keys, values = (t.shape[-3] if t.ndim == 4 else 0 for t in (q, k, v))
    if keys != values or not keys or heads % keys:
        raise IllFormed("k and v have the same number of heads, which divides that of q")


def _scores_fit(q: np.ndarray, k: np.ndarray, scale: float) -> None:
    if q.ndim != k.ndim or q.ndim not in (3, 4):
        raise IllFormed("scores take operands of rank 4, or of rank 3 for one head without an axis")


def _biased_fit(q: np.ndarray, k: np.ndarray, mask: np.ndarray | None, scale: float, cap: float) -> None:
    _scores_fit(q, k, scale)
    if mask is not None and mask.ndim > q.ndim:
        raise IllFormed("a mask has no more axes than the scores")


def _sdpa_fit(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None, *numbers: float) -> None:
    _one_type(q, k, v, mask)
    _bnsh(q, k, v)
    _grouped_heads(q, k, v)
    if mask is not None and mask.ndim > 4:
        raise IllFormed("a mask has no more axes than the scores")


def _attention_fit(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None, *numbers: float) -> None:
    _one_type(q, k, v, mask)
    _grouped_heads(q, k, v)
    if widens(q, k, mask):
        raise IllFormed("a mask is broadcast to the scores")


def _flat_fit(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None, *numbers: float) -> None:
    _one_type(q, k, v, mask)
    if any(t.ndim != 3 for t in (q, k, v)):
        raise IllFormed("this form of attention takes operands of rank 3")


def _one_operand(x: np.ndarray, *numbers: int) -> None:
    _bnsh(x)


def _read_attention(node: NodeView) -> tuple[Any, ...] | None:
    """ONNX Attention-23 on [B,N,S,H] without a past. The mask is boolean: of a row it hides, operator and term
    both make 0.
    """
    q, k, v = (node.dims(i) for i in range(3))
    if q is None or k is None or v is None or {len(q), len(k), len(v)} != {4} or not isinstance(q[-1], int):
        return None
    beyond = any(node.present(i) for i in range(4, node.count()))
    if beyond or node.int("is_causal", 0) or node.int("softmax_precision", 0) or not node.only_first_output():
        return None
    mask: Any = ("Absent",)
    if node.present(3):
        fits = (node.dims(3) or ())[-2:] == (q[-2], k[-2])  # a shorter one would be padded in opset 24
        if not node.is_bool(3) or not fits:
            return None
        mask = node.x(3)
    scale = node.float("scale", 0.0) or float(q[-1]) ** -0.5
    return ("Sdpa", node.x(0), node.x(1), node.x(2), mask, scale, node.float("softcap", 0.0), 2)


_GQA_TENSORS = "q k v past_key past_value seqlens total cos sin ids bias"
_GQA_NUMBERS = "num_heads:i64 kv_num_heads:i64 scale:f64 cap:f64 pairs:i64"
_GQA_OPTIONS = "num_heads kv_num_heads scale causal:0 do_rotary:1", "rotary_interleaved=pairs?0 softcap=cap?0"
_GQA = "com.microsoft::GroupQueryAttention"

TERMS: tuple[Op, ...] = (
    # Batch sizes, heads and masks may be broadcast: what these three join has facts of its own.
    declare(
        "Scores", "q k scale:f64", scores, role="marker", same="q k", requires=_scores_fit, common=True,
        doc="scale * q @ k^T over [B,N,S,H] and [B,N,T,H], or [B,S,H] and [B,T,H]",
    ),
    declare(
        "Biased", "q k mask scale:f64 cap:f64", biased, role="marker", same="q k mask", requires=_biased_fit,
        doc="scores, soft cap (0: none), mask added",
    ),
    declare(
        "SafeSoftmax", "x guard:i64", safe_softmax, "same", role="marker", floating=True,
        requires=refusing(lambda x, guard: guard not in (0, 1), "a softmax has a guard or none"),
        doc="softmax; guard 1: rows of NaN become 0",
    ),
    declare(
        "Merged", "x", lambda x: x.reshape(-1, *x.shape[2:]), "merged", role="marker", requires=_one_operand,
        doc="batch and heads as one axis: [B,N,S,H] as [B*N,S,H]",
    ),
    declare(
        "RepeatKV", "x times:i64", lambda x, n: np.repeat(x, n, axis=-3), "repeated", role="marker",
        requires=_one_operand, common=True, doc="each head, times in a row",
    ),
    declare(
        "Grouped", "x times:i64", lambda x, n: x.reshape(x.shape[0], -1, n, *x.shape[2:]), "grouped", role="marker",
        requires=_one_operand, doc="heads in groups: [B,KV*n,S,H] as [B,KV,n,S,H]",
    ),
    declare(
        "Sdpa", "q k v mask scale:f64 cap:f64 guard:i64", sdpa, role="marker", floating=True, requires=_sdpa_fit,
        doc="attention on BNSH, KV may be grouped; guard as in `sdpa`",
    ),
    declare(
        "OnnxAttention", "q k v mask scale:f64 cap:f64", onnx_attention, "sdpa", role="fused", requires=_attention_fit,
        forms=(form("Attention", "q k v mask", "scale softcap=cap?0", since=23),), reads={"Attention": _read_attention},
    ),
    declare(
        "OnnxAttention3", "q k v mask num_heads:i64 kv_num_heads:i64 scale:f64 cap:f64", onnx_attention_flat,
        "attention3", role="fused", requires=_flat_fit,
        forms=(form("Attention", "q k v mask", "scale softcap=cap?0 q_num_heads=num_heads kv_num_heads", since=23),),
    ),
    declare(
        "MsMHA", "q k v mask num_heads:i64 scale:f64", ms_mha, "mha", role="fused",
        forms=(form("com.microsoft::MultiHeadAttention", "q k v - - mask", "num_heads scale"),),
    ),
    declare(
        "MsGQA", f"{_GQA_TENSORS} q_weight k_weight {_GQA_NUMBERS} eps:f64", quiet(ms_gqa), out=NODE, dtype="",
        role="fused", norms={"q": ("q_weight", "num_heads"), "k": ("k_weight", "kv_num_heads")},
        forms=(form(_GQA, f"{_GQA_TENSORS} - - - q_weight k_weight", " qk_norm_epsilon=eps ".join(_GQA_OPTIONS),
                    outputs="3", kernel="GroupQueryAttention+qk_norm"),),
    ),
    declare(
        "MsGQARope", f"{_GQA_TENSORS} {_GQA_NUMBERS}", quiet(lambda *a: ms_gqa(*(*a[:11], None, None, *a[11:], 0.0))),
        out=NODE, dtype="", role="fused",
        forms=(form(_GQA, _GQA_TENSORS, " ".join(_GQA_OPTIONS), outputs="3", kernel="GroupQueryAttention+rotary"),),
    ),
)  # fmt: skip
