"""Products of one tensor with several constant matrices as one product, which is split."""

from __future__ import annotations

from ..egraph.engine.lang import (
    Int,
    Ints,
    Sides,
    Tensor,
    Tensors,
    biases,
    call,
    eq,
    item,
    rule,
    tensor,
    weights,
    widths,
)


@rule(
    stage="target", contract="reassociated",
    holds=[dict(x="b s h", ws="h 3, h 5", i=0), dict(x="b s h", ws="h 3, h 5", i=1),
           dict(x="s h", ws="h n, h m, h n", i=2), dict(x="b k s h", ws="h 3, h 1, h 2, h 7", i=2)],
    refuse=[dict(x="b s h", ws="b h 3, b h 5", i=0)],
)  # fmt: skip
def packed_product(x: Tensor, ws: Tensors, i: Int, z: Ints) -> Sides:
    """x @ ws[i] = split(x @ cat(ws), widths of ws)[i]   for the constant matrices ws that x is multiplied by"""
    whole = call("Product", x, call("Beside", ws))
    return Sides(call("MatMul", x, item(ws, i)), tensor("Out", call("Parts", whole, z), i),
                 when=[weights(x, ws), eq(widths(ws), z)])  # fmt: skip


@rule(
    stage="target", contract="reassociated",
    holds=[dict(x="b s h", ws="h 3, h 5", bs="3, 5", i=0), dict(x="s h", ws="h n, h m, h n", bs="n, m, n", i=2),
           dict(x="b s h:float16", ws="h 3:float16, h 5:float16", bs="3:float16, 5:float16", i=1)],
    refuse=[dict(x="b s h", ws="b h 3, b h 5", bs="3, 5", i=0)],
)  # fmt: skip
def packed_sum(x: Tensor, ws: Tensors, bs: Tensors, i: Int, z: Ints) -> Sides:
    """x @ ws[i] + bs[i] = split(x @ cat(ws) + cat(bs), widths of ws)[i]   for those ws, and constant vectors bs"""
    whole = call("Product", x, call("Beside", ws)) + call("Beside", bs)
    return Sides(call("MatMul", x, item(ws, i)) + item(bs, i), tensor("Out", call("Parts", whole, z), i),
                 when=[biases(x, ws, bs), eq(widths(ws), z)])  # fmt: skip
