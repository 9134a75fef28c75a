"""From a rotation to the operators a runtime has for it.

The caches are rows of cos and sin [B or 1, S, h], computed once per distinct angle and shared by all layers. A leading
dimension of 1 serves every batch row: com.microsoft takes [S, h] with position_ids = [0] (an offset). Any other is
expanded to x's batch and flattened to [B*S, h] with position_ids = arange(B*S), or kept as [B, S, h] for the ONNX
operator, which does not broadcast. The 3-D form on [B, S, N*H] needs no transpose and is the fastest.
"""

from __future__ import annotations

from typing import Any

from ...egraph.engine.lang import (
    SWAP,
    Guard,
    Int,
    Sides,
    Tensor,
    call,
    concat,
    dim,
    eq,
    ints,
    le,
    ne,
    num,
    rank,
    reshape,
    rule,
    size,
    size_known,
    sizes,
    slice_,
    squeeze,
    supported,
    symbolic,
    tensor,
    transpose,
    unsqueeze,
)


def _same_rows(cos: Tensor, x: Tensor, j: int) -> list[Guard]:
    """cos has one row for all batch rows (j = 0), a row for each (1), or a number of rows that is not fixed (2)."""
    if j == 2:
        return [symbolic(dim(cos, -4), "rows"), ne(dim(x, -4), num(1))]
    return [eq(dim(cos, -4), dim(x, -4) if j else num(1))]


_ROWS = "cos and sin have one row per position, for all batch rows or for each"


def rows(x: Tensor, cos: Tensor, sin: Tensor, pairs: int | Int, layout: int, width: int | Int) -> Tensor:
    return tensor("RopeT", x, cos, sin, pairs, layout, width)


_BNSH: dict[str, Any] = dict(x="b n s 2h", cos="b 1 s h", sin="b 1 s h", pairs=0)


@rule(
    stage="fuse", contract="exact", assumes=[_ROWS], expand=dict(j=(0, 1, 2)),
    holds=[_BNSH, dict(_BNSH, cos="1 1 s h", sin="1 1 s h", pairs=1),
           dict(_BNSH, x="2 n s 2h", cos="B 1 s h", sin="B 1 s h", B=(1, 2))],
    refuse=[dict(_BNSH, x="1 n s 2h", cos="B 1 s h", sin="B 1 s h", B=(2, 3)),
            dict(_BNSH, x="B n s 2h", cos="3 1 s h", sin="3 1 s h", B=(1, 3)),
            dict(_BNSH, cos="b n s h", sin="b n s h"), dict(_BNSH, cos="b n s h"), dict(_BNSH, sin="b n s h"),
            dict(_BNSH, cos="b 1 1 h"), dict(_BNSH, x="b n 1 2h"), dict(_BNSH, sin="b 1 1 h"),
            dict(_BNSH, x="n s 2h"), dict(_BNSH, cos="1 s h"), dict(_BNSH, sin="1 s h"), dict(_BNSH, x="1 n s 2h")],
)  # fmt: skip
def rope_rows_heads_first(x: Tensor, cos: Tensor, sin: Tensor, pairs: Int, j: int) -> Sides:
    """rope(x, cos, sin) = rope of [B,N,S,H] with rows [B,S,h], where cos and sin are [B,1,S,h]"""
    shapes = [eq(rank(x), 4), eq(rank(cos), 4), eq(dim(cos, -3), num(1)), eq(dim(cos, -2), dim(x, -2))]
    when = [*shapes, eq(sizes(cos), sizes(sin)), *_same_rows(cos, x, j)]
    return Sides(call("Rope", x, cos, sin, pairs), rows(x, squeeze(cos, -3), squeeze(sin, -3), pairs, 0, 0), when=when)


_BSNH: dict[str, Any] = dict(x="b s n 2h", cos="b s 1 h", sin="b s 1 h", pairs=0)


@rule(
    stage="fuse", contract="exact", assumes=[_ROWS], expand=dict(j=(0, 1, 2)),
    holds=[_BSNH, dict(_BSNH, cos="1 s 1 h", sin="1 s 1 h", pairs=1),
           dict(_BSNH, x="2 s n 2h", cos="B s 1 h", sin="B s 1 h", B=(1, 2))],
    refuse=[dict(_BSNH, x="1 s n 2h", cos="B s 1 h", sin="B s 1 h", B=(2, 3)),
            dict(_BSNH, x="B s n 2h", cos="3 s 1 h", sin="3 s 1 h", B=(1, 3)), dict(_BSNH, cos="b s n h"),
            dict(_BSNH, sin="b s n h"), dict(_BSNH, cos="b s n h", sin="b s n h"), dict(_BSNH, cos="b 1 1 h"),
            dict(_BSNH, sin="b 1 1 h"), dict(_BSNH, x="1 s n 2h")],
)  # fmt: skip
def rope_rows_positions_first(x: Tensor, cos: Tensor, sin: Tensor, pairs: Int, j: int) -> Sides:
    """rope(x, cos, sin) = rope of [B,S,N,H] with rows [B,S,h], where cos and sin are [B,S,1,h]"""
    shapes = [eq(rank(x), 4), eq(rank(cos), 4), eq(dim(cos, -2), num(1)), eq(dim(cos, -3), dim(x, -3))]
    when = [*shapes, eq(sizes(cos), sizes(sin)), *_same_rows(cos, x, j)]
    return Sides(call("Rope", x, cos, sin, pairs), rows(x, squeeze(cos, -2), squeeze(sin, -2), pairs, 1, 0), when=when)


@rule(
    stage="fuse", contract="exact", expand=dict(r=(1, 2, 3)),
    holds=[dict(x="b n s 2h", cos="s h", sin="s h", pairs=1), dict(x="b s n 2h", cos="s 1 h", sin="s 1 h", pairs=0)],
    refuse=[dict(x="n s 2h", cos="s h", sin="s h", pairs=0), dict(x="b n s 2h", cos="1 1 s h", sin="1 s h", pairs=0),
            dict(x="b n s 2h", cos="1 s h", sin="1 1 s h", pairs=0)],
)  # fmt: skip
def rope_tables(x: Tensor, cos: Tensor, sin: Tensor, pairs: Int, r: int) -> Sides:
    """rope(x, cos, sin) = rope(x, cos and sin with one more leading axis)   for x of rank 4"""
    more = (unsqueeze(t, -r - 1) for t in (cos, sin))
    return Sides(call("Rope", x, cos, sin, pairs), call("Rope", x, *more, pairs),
                 when=[eq(rank(x), 4), eq(rank(cos), r), eq(rank(sin), r)])  # fmt: skip


@rule(
    stage="fuse", contract="exact",
    holds=[dict(x="n s 2h", cos="s h", sin="1 s h", pairs=1), dict(x="s n 2h", cos="s 1 h", sin="s 1 h", pairs=0)],
    refuse=[dict(x="b n s 2h", cos="s h", sin="s h", pairs=0), dict(x="n s 2h", cos="b n s h", sin="s h", pairs=0),
            dict(x="n s 2h", cos="s h", sin="b n s h", pairs=0)],
)  # fmt: skip
def rope_without_batch(x: Tensor, cos: Tensor, sin: Tensor, pairs: Int) -> Sides:
    """rope(x, cos, sin) = squeeze(rope(unsqueeze(x, -4), cos, sin), -4)   for x of rank 3: one batch row"""
    when = [eq(rank(x), 3), le(rank(cos), 3), le(rank(sin), 3)]
    return Sides(
        call("Rope", x, cos, sin, pairs), squeeze(call("Rope", unsqueeze(x, -4), cos, sin, pairs), -4), when=when
    )


_BSH: dict[str, Any] = dict(x="b s 2h", cos="b s h", sin="b s h", pairs=1)
_SHARED: dict[str, Any] = dict(_BSH, x="B s 2h", cos="s h", sin="s h", B=(2, 3))


@rule(
    stage="fuse", contract="exact", expand=dict(shared=(0, 1, 2)),
    holds=[_BSH, _SHARED, dict(_SHARED, cos="1 s h", sin="1 s h")],
    refuse=[dict(_BSH, x="1 b s 2h"), dict(_BSH, cos="1 s h", sin="1 s h"), dict(_BSH, cos="s h", sin="s h"),
            *({**_BSH, t: other} for t in ("cos", "sin") for other in ("1 b s h", "1 s h", "b 1 h", "s h")),
            *({**_SHARED, t: other} for t in ("cos", "sin") for other in ("1 h", "1 s h", "1 1 s h")),
            dict(_SHARED, x="1 B s 2h"),
            *({**_SHARED, "cos": one, "sin": other} for one, other in (("1 s h", "B s h"), ("B s h", "1 s h")))],
)  # fmt: skip
def rope_without_heads(x: Tensor, cos: Tensor, sin: Tensor, pairs: Int, shared: int) -> Sides:
    """rope(x, cos, sin) = squeeze(rope with an axis of one head, -3)   for x of rank 3 and rows of cos and sin"""
    tables = (cos, sin)
    here = [g for t in tables for g in (eq(rank(t), 2 if shared == 2 else 3), eq(dim(t, -2), dim(x, -2)))]
    if shared:  # by all batch rows, as [1,S,h] or [S,h]; a number in their place is taken for that of heads
        of = [symbolic(dim(x, -3), "batch"), *(eq(dim(t, -3), num(1)) for t in tables if shared == 1)]
    else:
        of = [eq(dim(cos, -3), dim(sin, -3)), ne(dim(cos, -3), num(1))]
    turned = call("Rope", *(unsqueeze(t, -3) for t in (x, cos, sin)), pairs)
    return Sides(call("Rope", x, cos, sin, pairs), squeeze(turned, -3), when=[eq(rank(x), 3), *here, *of])


_SBNH: dict[str, Any] = dict(x="s b n 2h", cos="s 1 1 h", sin="s 1 1 h", pairs=1)
_SYMBOLS: dict[str, Any] = dict(x="s 2 n 2h", cos="s B 1 h", sin="s B 1 h", B=(1, 2), pairs=0)


@rule(
    stage="fuse", contract="exact", assumes=[_ROWS], holds=[_SBNH, _SYMBOLS],
    refuse=[dict(_SBNH, x="s b 1 2h"), dict(_SBNH, x="s 1 n 2h", cos="s 3 1 h", sin="s 3 1 h"), dict(_SBNH, x="s n 2h"),
            *({**_SBNH, t: other} for t in ("cos", "sin") for other in ("1 1 1 h", "s 1 n h", "1 1 h", "s b 1 h")),
            *(dict(_SBNH, cos=both, sin=both) for both in ("1 1 1 h", "1 s 1 1 h")),
            dict(_SYMBOLS, x="s B n 2h", B=(2, 3)), dict(_SYMBOLS, sin="s 1 1 h", B=(2, 3))],
)  # fmt: skip
def rope_rows_before_batch(x: Tensor, cos: Tensor, sin: Tensor, pairs: Int) -> Sides:
    """rope(x, cos, sin) = rope of [S,B,N,H] with rows [S,B,h], where cos and sin are [S,1,1,h]: S takes B's place"""
    to = concat([ints(1), size(dim(x, -3)), ints(1)])
    cosines, sines = (tensor("Expand", squeeze(t, -2), to) for t in (cos, sin))
    shapes = [eq(rank(x), 4), eq(rank(cos), 4), eq(dim(cos, -2), num(1)), eq(dim(cos, -4), dim(x, -4))]
    several = [ne(dim(cos, -3), dim(x, -3)), ne(dim(x, -2), num(1)), ne(dim(x, -3), num(1)), size_known(dim(x, -3))]
    return Sides(
        call("Rope", x, cos, sin, pairs), rows(x, cosines, sines, pairs, 1, 0),
        when=[*shapes, eq(sizes(cos), sizes(sin)), *several],
        states=[(dim(t, -2), dim(x, -3)) for t in (cosines, sines)],
    )  # fmt: skip


@rule(stage="fuse", holds=[dict(x="b n s 2h", cos="b s h", sin="b s h", pairs=0, width=0),
                           dict(x="b n s 8", cos="b s 3", sin="b s 3", pairs=1, width=6)])  # fmt: skip
def rope_each(x: Tensor, cos: Tensor, sin: Tensor, pairs: Int, width: Int) -> Sides:
    """rope_bnsh with a row for each position of each batch row = rope_bnsh"""
    return Sides(
        tensor("RopeEach", x, cos, sin, pairs, width), rows(x, cos, sin, pairs, 0, width), replaces=True,
        states=[(dim(t, a), dim(x, b)) for t in (cos, sin) for a, b in ((-3, -4), (-2, -2))],
    )  # fmt: skip


_ROWS_BSNH = [
    dict(x="b s n 8", cos="b s 3", sin="1 s 3", pairs=1, width=6),
    dict(x="b s n 8", cos="1 s 4", sin="b s 4", pairs=0, width=8),
]


@rule(stage="fuse", contract="exact", holds=_ROWS_BSNH)
def rope_before_transpose(x: Tensor, cos: Tensor, sin: Tensor, pairs: Int, width: Int) -> Sides:
    """rope_bnsh(transpose(x, 0213)) = transpose(rope_bsnh(x), 0213)"""
    return Sides(rows(transpose(x, SWAP), cos, sin, pairs, 0, width),
                 transpose(rows(x, cos, sin, pairs, 1, width), SWAP))  # fmt: skip


@rule(stage="fuse", contract="exact", holds=_ROWS_BSNH)
def rope_after_transpose(x: Tensor, cos: Tensor, sin: Tensor, pairs: Int, width: Int) -> Sides:
    """transpose(rope_bsnh(x), 0213) = rope_bnsh(transpose(x, 0213))"""
    return Sides(transpose(rows(x, cos, sin, pairs, 1, width), SWAP),
                 rows(transpose(x, SWAP), cos, sin, pairs, 0, width))  # fmt: skip


@rule(
    stage="fuse", contract="exact", expand=dict(layout=(0, 1)),
    holds=[dict(x="b n s 8", cos="b s 3", sin="b s 3", pairs=1, width=6, end=8),
           dict(x="b n s 8", cos="b s 2", sin="b s 2", pairs=0, width=4, end=8)],
    refuse=[dict(x="b n s 9", cos="b s 3", sin="b s 3", pairs=0, width=6, end=8)],
)  # fmt: skip
def rope_partial(x: Tensor, cos: Tensor, sin: Tensor, pairs: Int, width: Int, end: Int, layout: int) -> Sides:
    """cat(rope(x[:width]), x[width:]) = rope of the first width channels of x"""
    turned = rows(slice_(x, 0, width), cos, sin, pairs, layout, 0)
    return Sides(concat([turned, slice_(x, width, end)]), rows(x, cos, sin, pairs, layout, width),
                 when=[eq(dim(x, -1), num(end))])  # fmt: skip


# -------------------------------------------------------------------------------------------------------- the operators


def expanded(x: Tensor, cos: Tensor) -> Tensor:
    """[B or 1, S, h] expanded to x's batch."""
    return tensor("Expand", cos, concat([size(dim(x, -4)), ints(1, 1)]))


def _flat(x: Tensor, cos: Tensor, h: Int) -> Tensor:
    """The same as [B*S, h]."""
    return tensor("Reshape", expanded(x, cos), concat([size(dim(x, -4)) * size(dim(cos, -2)), ints(h)]))


def _ids(x: Tensor, cos: Tensor) -> Tensor:
    """arange(B*S) as [B, S]."""
    b, s = size(dim(x, -4)), size(dim(cos, -2))
    every = tensor("Range", call("Int0", 0), squeeze(b * s, -1), call("Int0", 1))
    return tensor("Reshape", every, concat([b, s]))


def _heads(n: Int, width: Int) -> Int:
    """num_heads is wanted with a partial width only."""
    return n * Int("min", (width, Int("lit", (1,))))


_FULL = dict(x="b n s 2h", cos="1 s h", sin="1 s h", pairs=0, width=0)
_PART = dict(x="b n s 10", cos="1 s 3", sin="1 s 3", pairs=1, width=6)
_EACH = dict(x="b n s 2h", cos="b s h", sin="b s h", pairs=0, width=0)
_EACH_PART = dict(x="b n s 10", cos="b s 3", sin="b s 3", pairs=1, width=6)


@rule(
    stage="target", contract="reassociated", holds=[_FULL, _PART],
    refuse=[dict(_FULL, cos="b s h"), dict(_FULL, sin="b s h")],
)  # fmt: skip
def ms_rope_shared(x: Tensor, cos: Tensor, sin: Tensor, pairs: Int, width: Int, n: Int) -> Sides:
    """rope of [B,N,S,H] with rows [1,S,h] = com.microsoft RotaryEmbedding with caches [S,h] at offset 0"""
    op = tensor("MsRope", x, ints(0), squeeze(cos, -3), squeeze(sin, -3), pairs, width, _heads(n, width))
    when = [eq(dim(cos, -3), num(1)), eq(dim(sin, -3), num(1)), eq(dim(x, -3), num(n)), supported(op.head, x)]
    return Sides(rows(x, cos, sin, pairs, 0, width), op, when=when)


@rule(stage="target", contract="reassociated", holds=[_EACH, _EACH_PART], refuse=[_FULL])
def ms_rope_rows(x: Tensor, cos: Tensor, sin: Tensor, pairs: Int, width: Int, n: Int, h: Int) -> Sides:
    """rope of [B,N,S,H] with rows [B,S,h] = com.microsoft RotaryEmbedding with caches [B*S,h] at arange(B*S)"""
    op = tensor("MsRope", x, _ids(x, cos), _flat(x, cos, h), _flat(x, sin, h), pairs, width, _heads(n, width))
    when = [ne(dim(cos, -3), num(1)), eq(dim(cos, -1), num(h)), eq(dim(x, -3), num(n)), supported(op.head, x),
            size_known(dim(x, -4)), size_known(dim(cos, -2))]  # fmt: skip
    return Sides(rows(x, cos, sin, pairs, 0, width), op, when=when)


_FULL_S = dict(x="b s n 2h", cos="1 s h", sin="1 s h", pairs=0, width=0)
_PART_S = dict(x="b s n 10", cos="1 s 3", sin="1 s 3", pairs=1, width=6)


@rule(
    stage="target", contract="reassociated", holds=[_FULL_S, _PART_S],
    refuse=[dict(_FULL_S, cos="b s h"), dict(_FULL_S, sin="b s h")],
)  # fmt: skip
def ms_rope3_shared(x: Tensor, cos: Tensor, sin: Tensor, pairs: Int, width: Int, n: Int, e: Int) -> Sides:
    """rope of [B,S,N,H] with rows [1,S,h] = com.microsoft RotaryEmbedding on [B,S,N*H] with caches [S,h] at offset 0"""
    flat = reshape(x, ints(0, 0, n * e))
    op = tensor("MsRope3", flat, ints(0), squeeze(cos, -3), squeeze(sin, -3), pairs, width, _heads(n, width))
    when = [eq(dim(cos, -3), num(1)), eq(dim(sin, -3), num(1)), eq(dim(x, -2), num(n)), eq(dim(x, -1), num(e)),
            supported(op.head, x)]  # fmt: skip
    return Sides(rows(x, cos, sin, pairs, 1, width), reshape(op, ints(0, 0, n, e)), when=when)


@rule(
    stage="target", contract="reassociated",
    holds=[dict(_FULL_S, cos="b s h", sin="b s h"), dict(_PART_S, cos="b s 3", sin="b s 3")], refuse=[_FULL_S],
)  # fmt: skip
def ms_rope3_rows(x: Tensor, cos: Tensor, sin: Tensor, pairs: Int, width: Int, n: Int, e: Int, h: Int) -> Sides:
    """rope of [B,S,N,H] with rows [B,S,h] = com.microsoft RotaryEmbedding on [B,S,N*H] with caches [B*S,h]"""
    flat = reshape(x, ints(0, 0, n * e))
    op = tensor("MsRope3", flat, _ids(x, cos), _flat(x, cos, h), _flat(x, sin, h), pairs, width, _heads(n, width))
    when = [ne(dim(cos, -3), num(1)), eq(dim(cos, -1), num(h)), eq(dim(x, -2), num(n)), eq(dim(x, -1), num(e)),
            supported(op.head, x), size_known(dim(x, -4)), size_known(dim(cos, -2))]  # fmt: skip
    return Sides(rows(x, cos, sin, pairs, 1, width), reshape(op, ints(0, 0, n, e)), when=when)


@rule(stage="target", contract="reassociated", holds=[_EACH, _FULL, _EACH_PART])
def onnx_rope_rows(x: Tensor, cos: Tensor, sin: Tensor, pairs: Int, width: Int, n: Int) -> Sides:
    """rope of [B,N,S,H] with rows [B or 1,S,h] = ONNX RotaryEmbedding with caches [B,S,h]"""
    op = tensor("OnnxRope", x, expanded(x, cos), expanded(x, sin), pairs, width, _heads(n, width))
    when = [eq(dim(x, -3), num(n)), supported(op.head, x), size_known(dim(x, -4))]
    return Sides(rows(x, cos, sin, pairs, 0, width), op, when=when)


@rule(stage="target", contract="reassociated", holds=[_FULL_S, dict(_PART_S, cos="b s 3", sin="b s 3")])
def onnx_rope3_rows(x: Tensor, cos: Tensor, sin: Tensor, pairs: Int, width: Int, n: Int, e: Int) -> Sides:
    """rope of [B,S,N,H] with rows [B or 1,S,h] = ONNX RotaryEmbedding on [B,S,N*H] with caches [B,S,h]"""
    flat = reshape(x, ints(0, 0, n * e))
    op = tensor("OnnxRope", flat, expanded(x, cos), expanded(x, sin), pairs, width, n)
    when = [eq(dim(x, -2), num(n)), eq(dim(x, -1), num(e)), supported(op.head, x), size_known(dim(x, -4))]
    return Sides(rows(x, cos, sin, pairs, 1, width), reshape(op, ints(0, 0, n, e)), when=when)
