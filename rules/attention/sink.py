"""Attention with a sink: a score per head that belongs to no key and takes its share of each softmax.

The sink is a key of zeros whose mask is the sink and whose value is zero, so any attention operator can hold it; of a
query that is infinite it makes NaN.
Source: Xiao et al., Efficient Streaming Language Models with Attention Sinks (arXiv 2309.17453); gpt-oss.
"""

from __future__ import annotations

from typing import Any

from ...egraph.engine.assumption import SCORES_FINITE
from ...egraph.engine.lang import (
    Float,
    Int,
    Sides,
    Tensor,
    call,
    concat,
    dim,
    dtype,
    eq,
    ints,
    le,
    rank,
    rule,
    shape,
    tensor,
)
from .attention import absent, biased, repeat, sdpa, soft

_SINK: dict[str, Any] = dict(
    q="b n s h", k="b n t h", v="b n t d", mask="b 1 s t", e="b n s 1", scale=0.5, cap=0.0, g=0,
)  # fmt: skip


def _zeros(*sizes: Tensor, to: Int) -> Tensor:
    return tensor("Expand", call("FConst", Float("lit", (0.0,)), to), concat(list(sizes)))


def _sink(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, e: Tensor, scale: Float, cap: Float, g: Int, to: Int, masked: int,
    n: Int | None,
) -> Sides:  # fmt: skip
    """With n, each head of k and v serves n heads of q. Since e has q's sizes, so have the scores it is joined to."""
    given = mask if masked else absent()
    used_k, used_v = (k, v) if n is None else (repeat(k, n), repeat(v, n))
    weights = tensor("Slice", soft(concat([biased(q, used_k, given, scale, cap), e]), g), ints(0), ints(-1), -1, 1)
    one, scores = ints(1), [shape(q, -4, -1), shape(k, -2, -1)]
    full = tensor("Expand", mask, concat(scores)) if masked else _zeros(*scores, to=to)
    keys, values = (concat([x, _zeros(shape(x, -4, -2), one, shape(x, -1, 0), to=to)], -2) for x in (k, v))
    bias = concat([full, e])
    states = [(dim(keys, -2), dim(bias, -1)), (dim(values, -2), dim(bias, -1))]
    states += [(dim(full, a), dim(q, a)) for a in (-4, -3, -2)]
    when = [eq(rank(v), 4), eq(dtype(q), to), *(eq(dim(k, a), dim(v, a)) for a in (-4, -3, -2))]
    when += [eq(dim(k, -4), dim(q, -4)), *(eq(dim(e, a), dim(q, a)) for a in (-4, -3, -2))]
    when += [le(rank(mask), 4)] if masked else []
    return Sides(weights @ used_v, sdpa(q, keys, values, bias, scale, cap, g), when=when, states=states)


@rule(
    stage="fuse", contract="finite", assumes=[SCORES_FINITE], expand=dict(masked=(0, 1)),
    holds=[_SINK, dict(_SINK, mask="1 1 s t", cap=3.0, g=1), dict(_SINK, k="b 1 t h", v="b 1 t d")],
    refuse=[dict(_SINK, v="t d"), dict(_SINK, v="1 b n t d"), dict(_SINK, k="b n t h", v="b 1 t d"),
            dict(_SINK, k="b 1 t h"), dict(_SINK, v="1 n t d"), dict(_SINK, k="1 n t h", v="1 n t d"),
            dict(_SINK, q="1 n s h"), dict(_SINK, q="b n 1 h"), dict(_SINK, k="b n 1 h"), dict(_SINK, k="1 n t h"),
            dict(_SINK, q="b 1 s h", k="b 1 t h", v="b 1 t d", mask="b n s t"),
            dict(_SINK, q="1 n s h", k="1 n t h", v="1 n t d", mask="b 1 s t")],
)  # fmt: skip
def sdpa_sink(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, e: Tensor, scale: Float, cap: Float, g: Int, to: Int, masked: int
) -> Sides:
    """soft(cat(biased(q, k, mask), e))[:-1] @ v = sdpa(q, cat(k, 0), cat(v, 0), cat(mask, e))"""
    return _sink(q, k, v, mask, e, scale, cap, g, to, masked, None)


_GROUPED = dict(_SINK, q="b 6 s h", k="b 2 t h", v="b 2 t d", e="b 6 s 1", n=3)


@rule(
    stage="fuse", contract="finite", assumes=[SCORES_FINITE], expand=dict(masked=(0, 1)),
    holds=[_GROUPED, dict(_GROUPED, k="b 3 t h", v="b 3 t d", mask="1 1 s t", cap=3.0, g=1, n=2)],
    refuse=[dict(_GROUPED, q="1 6 s h"), dict(_GROUPED, q="b 6 1 h"), dict(_GROUPED, k="b 2 1 h"),
            dict(_GROUPED, k="1 2 t h"), dict(_GROUPED, v="1 2 t d"), dict(_GROUPED, k="1 2 t h", v="1 2 t d"),
            dict(_GROUPED, q="1 6 s h", k="1 2 t h", v="1 2 t d", mask="b 1 s t"),
            dict(_GROUPED, q="b 1 s h", mask="b 6 s t")],
)  # fmt: skip
def sdpa_sink_grouped(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, e: Tensor, scale: Float, cap: Float, g: Int, to: Int, n: Int,
    masked: int
) -> Sides:  # fmt: skip
    """soft(cat(biased(q, repeat(k), mask), e))[:-1] @ repeat(v) = sdpa(q, cat(k, 0), cat(v, 0), cat(mask, e))"""
    return _sink(q, k, v, mask, e, scale, cap, g, to, masked, n)
