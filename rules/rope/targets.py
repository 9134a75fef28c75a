"""From a rotation to the operators a runtime has for it.

The caches are rows of cos and sin [B or 1, S, h], computed once per distinct angle and shared by all layers. A leading
dimension of 1 serves every batch row: com.microsoft takes [S, h] with position_ids = [0] (an offset). Any other is
expanded to x's batch and flattened to [B*S, h] with position_ids = arange(B*S), or kept as [B, S, h] for the ONNX
operator, which does not broadcast. The 3-D form on [B, S, N*H] needs no transpose and is the fastest.
"""

from __future__ import annotations

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
    ne,
    num,
    rank,
    reshape,
    rule,
    size,
    size_known,
    slice_,
    squeeze,
    supported,
    symbolic,
    tensor,
    transpose,
    unsqueeze,
)


def _same_rows(c: Tensor, x: Tensor, j: int) -> list[Guard]:
    """cos has one row for all batch rows (j = 0), a row for each (1), or a number of rows that is not fixed (2)."""
    if j == 2:
        return [symbolic(dim(c, -4), "rows"), ne(dim(x, -4), num(1))]
    return [eq(dim(c, -4), dim(x, -4) if j else num(1))]


_ROWS = "cos and sin have one row per position, for all batch rows or for each"


def rows(x: Tensor, c: Tensor, s: Tensor, p: int | Int, layout: int, width: int | Int) -> Tensor:
    return tensor("RopeT", x, c, s, p, layout, width)


@rule(
    stage="fuse", contract="exact", assumes=[_ROWS], expand=dict(j=(0, 1, 2)),
    holds=[dict(x="b n s 2h", c="b 1 s h", d="b 1 s h", p=0), dict(x="b n s 2h", c="1 1 s h", d="1 1 s h", p=1),
           dict(x="2 n s 2h", c="B 1 s h", d="B 1 s h", p=0, B=(1, 2))],
    refuse=[dict(x="1 n s 2h", c="B 1 s h", d="B 1 s h", p=0, B=(2, 3)),
            dict(x="B n s 2h", c="3 1 s h", d="3 1 s h", p=0, B=(1, 3)),
            dict(x="b n s 2h", c="b n s h", d="b n s h", p=0), dict(x="b n s 2h", c="b n s h", d="b 1 s h", p=0),
            dict(x="b n s 2h", c="b 1 s h", d="b n s h", p=0), dict(x="b n s 2h", c="b 1 1 h", d="b 1 s h", p=0),
            dict(x="b n 1 2h", c="b 1 s h", d="b 1 s h", p=0), dict(x="b n s 2h", c="b 1 s h", d="b 1 1 h", p=0),
            dict(x="n s 2h", c="b 1 s h", d="b 1 s h", p=0), dict(x="b n s 2h", c="1 s h", d="b 1 s h", p=0),
            dict(x="b n s 2h", c="b 1 s h", d="1 s h", p=0), dict(x="1 n s 2h", c="b 1 s h", d="b 1 s h", p=0)],
)  # fmt: skip
def rope_rows_bnsh(x: Tensor, c: Tensor, d: Tensor, p: Int, j: int) -> Sides:
    """rope(x, c, s) = rope of [B,N,S,H] with rows [B,S,h], where c and s are [B,1,S,h]"""
    shapes = [eq(rank(t), 4) for t in (x, c, d)] + [eq(dim(c, -3), num(1)), eq(dim(d, -3), num(1))]
    seq = [eq(dim(c, -2), dim(x, -2)), eq(dim(d, -2), dim(x, -2)), eq(dim(c, -4), dim(d, -4))]
    when = [*shapes, *seq, *_same_rows(c, x, j)]
    return Sides(call("Rope", x, c, d, p), rows(x, squeeze(c, -3), squeeze(d, -3), p, 0, 0), when=when)


@rule(
    stage="fuse", contract="exact", assumes=[_ROWS], expand=dict(j=(0, 1, 2)),
    holds=[dict(x="b s n 2h", c="b s 1 h", d="b s 1 h", p=0), dict(x="b s n 2h", c="1 s 1 h", d="1 s 1 h", p=1),
           dict(x="2 s n 2h", c="B s 1 h", d="B s 1 h", p=0, B=(1, 2))],
    refuse=[dict(x="1 s n 2h", c="B s 1 h", d="B s 1 h", p=0, B=(2, 3)),
            dict(x="B s n 2h", c="3 s 1 h", d="3 s 1 h", p=0, B=(1, 3)),
            dict(x="b s n 2h", c="b s n h", d="b s 1 h", p=0), dict(x="b s n 2h", c="b s 1 h", d="b s n h", p=0),
            dict(x="b s n 2h", c="b 1 1 h", d="b s 1 h", p=0), dict(x="b s n 2h", c="b s 1 h", d="b 1 1 h", p=0),
            dict(x="1 s n 2h", c="b s 1 h", d="b s 1 h", p=0)],
)  # fmt: skip
def rope_rows_bsnh(x: Tensor, c: Tensor, d: Tensor, p: Int, j: int) -> Sides:
    """rope(x, c, s) = rope of [B,S,N,H] with rows [B,S,h], where c and s are [B,S,1,h]"""
    shapes = [eq(rank(t), 4) for t in (x, c, d)] + [eq(dim(c, -2), num(1)), eq(dim(d, -2), num(1))]
    seq = [eq(dim(c, -3), dim(x, -3)), eq(dim(d, -3), dim(x, -3)), eq(dim(c, -4), dim(d, -4))]
    when = [*shapes, *seq, *_same_rows(c, x, j)]
    return Sides(call("Rope", x, c, d, p), rows(x, squeeze(c, -2), squeeze(d, -2), p, 1, 0), when=when)


@rule(
    stage="fuse", contract="exact", holds=dict(x="b n s 2h", c="s h", d="s h", p=1),
    refuse=[dict(x="b n s 2h", c="1 h", d="s h", p=0), dict(x="b n s 2h", c="s h", d="1 h", p=0),
            dict(x="n s 2h", c="s h", d="s h", p=0), dict(x="b n s 2h", c="h", d="s h", p=0),
            dict(x="b n s 2h", c="s h", d="h", p=0), dict(x="b n s 2h", c="1 s h", d="s h", p=0),
            dict(x="b n s 2h", c="s h", d="1 s h", p=0)],
)  # fmt: skip
def rope_rows_table(x: Tensor, c: Tensor, d: Tensor, p: Int) -> Sides:
    """rope(x, c, s) = rope of [B,N,S,H] with rows [1,S,h], where c and s are [S,h]"""
    shapes = [eq(rank(x), 4), eq(rank(c), 2), eq(rank(d), 2), eq(dim(c, -2), dim(x, -2)), eq(dim(d, -2), dim(x, -2))]
    return Sides(call("Rope", x, c, d, p), rows(x, unsqueeze(c, -3), unsqueeze(d, -3), p, 0, 0), when=shapes)


@rule(
    stage="fuse", contract="exact", holds=dict(x="b n s 2h", c="1 s h", d="1 s h", p=1),
    refuse=[dict(x="b n s 2h", c="n s h", d="1 s h", p=0), dict(x="b n s 2h", c="1 s h", d="n s h", p=0),
            dict(x="b n s 2h", c="1 1 h", d="1 s h", p=0), dict(x="b n s 2h", c="1 s h", d="1 1 h", p=0)],
)  # fmt: skip
def rope_rows_table_3d(x: Tensor, c: Tensor, d: Tensor, p: Int) -> Sides:
    """rope(x, c, s) = rope of [B,N,S,H] with rows c, s, where they are [1,S,h]"""
    shapes = [eq(rank(x), 4), eq(rank(c), 3), eq(rank(d), 3), eq(dim(c, -3), num(1)), eq(dim(d, -3), num(1))]
    seq = [eq(dim(c, -2), dim(x, -2)), eq(dim(d, -2), dim(x, -2))]
    return Sides(call("Rope", x, c, d, p), rows(x, c, d, p, 0, 0), when=shapes + seq)


@rule(stage="fuse", contract="exact", holds=dict(x="b s n 8", c="b s 3", d="1 s 3", p=1, w=6))
def rope_before_transpose(x: Tensor, c: Tensor, d: Tensor, p: Int, w: Int) -> Sides:
    """rope_bnsh(transpose(x, 0213)) = transpose(rope_bsnh(x), 0213)"""
    return Sides(rows(transpose(x, SWAP), c, d, p, 0, w), transpose(rows(x, c, d, p, 1, w), SWAP))


@rule(stage="fuse", contract="exact", holds=dict(x="b s n 8", c="b s 3", d="1 s 3", p=1, w=6))
def rope_after_transpose(x: Tensor, c: Tensor, d: Tensor, p: Int, w: Int) -> Sides:
    """transpose(rope_bsnh(x), 0213) = rope_bnsh(transpose(x, 0213))"""
    return Sides(transpose(rows(x, c, d, p, 1, w), SWAP), rows(transpose(x, SWAP), c, d, p, 0, w))


@rule(
    stage="fuse", contract="exact", expand=dict(layout=(0, 1)),
    holds=dict(x="b n s 8", c="b s 3", d="b s 3", p=1, r=6, e=8),
    refuse=[dict(x="b n s 9", c="b s 3", d="b s 3", p=0, r=6, e=8)],
)  # fmt: skip
def rope_partial(x: Tensor, c: Tensor, d: Tensor, p: Int, r: Int, e: Int, layout: int) -> Sides:
    """cat(rope(x[:r]), x[r:]) = rope of the first r channels of x"""
    turned = rows(slice_(x, 0, r), c, d, p, layout, 0)
    return Sides(concat([turned, slice_(x, r, e)]), rows(x, c, d, p, layout, r), when=[eq(dim(x, -1), num(e))])


# -------------------------------------------------------------------------------------------------------- the operators


def expanded(x: Tensor, c: Tensor) -> Tensor:
    """[B or 1, S, h] expanded to x's batch."""
    return tensor("Expand", c, concat([size(dim(x, -4)), ints(1, 1)]))


def _flat(x: Tensor, c: Tensor, h: Int) -> Tensor:
    """The same as [B*S, h]."""
    return tensor("Reshape", expanded(x, c), concat([size(dim(x, -4)) * size(dim(c, -2)), ints(h)]))


def _ids(x: Tensor, c: Tensor) -> Tensor:
    """arange(B*S) as [B, S]."""
    b, s = size(dim(x, -4)), size(dim(c, -2))
    every = tensor("Range", call("Int0", 0), squeeze(b * s, -1), call("Int0", 1))
    return tensor("Reshape", every, concat([b, s]))


def _heads(n: Int, w: Int) -> Int:
    """num_heads is wanted with a partial width only."""
    return n * Int("min", (w, Int("lit", (1,))))


_FULL = dict(x="b n s 2h", c="1 s h", d="1 s h", p=0, w=0)
_PART = dict(x="b n s 10", c="1 s 3", d="1 s 3", p=1, w=6)
_EACH = dict(x="b n s 2h", c="b s h", d="b s h", p=0, w=0)
_EACH_PART = dict(x="b n s 10", c="b s 3", d="b s 3", p=1, w=6)


@rule(
    stage="target", contract="reassociated", holds=[_FULL, _PART],
    refuse=[dict(_FULL, c="b s h"), dict(_FULL, d="b s h")],
)  # fmt: skip
def ms_rope_shared(x: Tensor, c: Tensor, d: Tensor, p: Int, w: Int, n: Int) -> Sides:
    """rope of [B,N,S,H] with rows [1,S,h] = com.microsoft RotaryEmbedding with caches [S,h] at offset 0"""
    op = tensor("MsRope", x, ints(0), squeeze(c, -3), squeeze(d, -3), p, w, _heads(n, w))
    when = [eq(dim(c, -3), num(1)), eq(dim(d, -3), num(1)), eq(dim(x, -3), num(n)), supported(op.head, x)]
    return Sides(rows(x, c, d, p, 0, w), op, when=when)


@rule(stage="target", contract="reassociated", holds=[_EACH, _EACH_PART], refuse=[_FULL])
def ms_rope_rows(x: Tensor, c: Tensor, d: Tensor, p: Int, w: Int, n: Int, h: Int) -> Sides:
    """rope of [B,N,S,H] with rows [B,S,h] = com.microsoft RotaryEmbedding with caches [B*S,h] at arange(B*S)"""
    op = tensor("MsRope", x, _ids(x, c), _flat(x, c, h), _flat(x, d, h), p, w, _heads(n, w))
    when = [ne(dim(c, -3), num(1)), eq(dim(c, -1), num(h)), eq(dim(x, -3), num(n)), supported(op.head, x),
            size_known(dim(x, -4)), size_known(dim(c, -2))]  # fmt: skip
    return Sides(rows(x, c, d, p, 0, w), op, when=when)


_FULL_S = dict(x="b s n 2h", c="1 s h", d="1 s h", p=0, w=0)
_PART_S = dict(x="b s n 10", c="1 s 3", d="1 s 3", p=1, w=6)


@rule(
    stage="target", contract="reassociated", holds=[_FULL_S, _PART_S],
    refuse=[dict(_FULL_S, c="b s h"), dict(_FULL_S, d="b s h")],
)  # fmt: skip
def ms_rope3_shared(x: Tensor, c: Tensor, d: Tensor, p: Int, w: Int, n: Int, e: Int) -> Sides:
    """rope of [B,S,N,H] with rows [1,S,h] = com.microsoft RotaryEmbedding on [B,S,N*H] with caches [S,h] at offset 0"""
    flat = reshape(x, ints(0, 0, n * e))
    op = tensor("MsRope3", flat, ints(0), squeeze(c, -3), squeeze(d, -3), p, w, _heads(n, w))
    when = [eq(dim(c, -3), num(1)), eq(dim(d, -3), num(1)), eq(dim(x, -2), num(n)), eq(dim(x, -1), num(e)),
            supported(op.head, x)]  # fmt: skip
    return Sides(rows(x, c, d, p, 1, w), reshape(op, ints(0, 0, n, e)), when=when)


@rule(
    stage="target", contract="reassociated",
    holds=[dict(_FULL_S, c="b s h", d="b s h"), dict(_PART_S, c="b s 3", d="b s 3")], refuse=[_FULL_S],
)  # fmt: skip
def ms_rope3_rows(x: Tensor, c: Tensor, d: Tensor, p: Int, w: Int, n: Int, e: Int, h: Int) -> Sides:
    """rope of [B,S,N,H] with rows [B,S,h] = com.microsoft RotaryEmbedding on [B,S,N*H] with caches [B*S,h]"""
    flat = reshape(x, ints(0, 0, n * e))
    op = tensor("MsRope3", flat, _ids(x, c), _flat(x, c, h), _flat(x, d, h), p, w, _heads(n, w))
    when = [ne(dim(c, -3), num(1)), eq(dim(c, -1), num(h)), eq(dim(x, -2), num(n)), eq(dim(x, -1), num(e)),
            supported(op.head, x), size_known(dim(x, -4)), size_known(dim(c, -2))]  # fmt: skip
    return Sides(rows(x, c, d, p, 1, w), reshape(op, ints(0, 0, n, e)), when=when)


@rule(stage="target", contract="reassociated", holds=[_EACH, _FULL, _EACH_PART])
def onnx_rope_rows(x: Tensor, c: Tensor, d: Tensor, p: Int, w: Int, n: Int) -> Sides:
    """rope of [B,N,S,H] with rows [B or 1,S,h] = ONNX RotaryEmbedding with caches [B,S,h]"""
    op = tensor("OnnxRope", x, expanded(x, c), expanded(x, d), p, w, _heads(n, w))
    when = [eq(dim(x, -3), num(n)), supported(op.head, x), size_known(dim(x, -4))]
    return Sides(rows(x, c, d, p, 0, w), op, when=when)


@rule(stage="target", contract="reassociated", holds=[_FULL_S, dict(_PART_S, c="b s 3", d="b s 3")])
def onnx_rope3_rows(x: Tensor, c: Tensor, d: Tensor, p: Int, w: Int, n: Int, e: Int) -> Sides:
    """rope of [B,S,N,H] with rows [B or 1,S,h] = ONNX RotaryEmbedding on [B,S,N*H] with caches [B,S,h]"""
    flat = reshape(x, ints(0, 0, n * e))
    op = tensor("OnnxRope", flat, expanded(x, c), expanded(x, d), p, w, n)
    when = [eq(dim(x, -2), num(n)), eq(dim(x, -1), num(e)), supported(op.head, x), size_known(dim(x, -4))]
    return Sides(rows(x, c, d, p, 1, w), reshape(op, ints(0, 0, n, e)), when=when)
