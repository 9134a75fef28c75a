"""Scalars that do nothing, and bounds that hold anyway."""

from __future__ import annotations

from ..egraph.engine.lang import (
    Float,
    Sides,
    Tensor,
    eq,
    exactly,
    le,
    rank,
    real,
    rule,
    scalar,
    tensor,
    zero_or_more,
)


@rule(holds=dict(x="b s", c="=1"), refuse=[dict(x="b s", c="=2"), dict(x="b s", c="=1:1 1 1")])
def mul_one(x: Tensor, c: Tensor) -> Sides:
    """x * 1 = x"""
    return Sides(x * c, x, when=exactly(c, x, 1.0))


# ------------------------------------------------------------------------------------------------ bounds that hold


@rule(holds=dict(x="squares b s"), refuse=[dict(x="b s")])
def relu_nothing(x: Tensor) -> Sides:
    """relu(x) = x   for x of 0 and above"""
    return Sides(tensor("Relu", x), x, when=[zero_or_more(x)])


@rule(
    holds=[dict(x="squares b s", c="=0"), dict(x="squares b s", c="=-1:1")],
    refuse=[dict(x="squares b s", c="=0.1"), dict(x="squares b s", c="=0:1 1 1"), dict(x="b s", c="=0")],
)  # fmt: skip
def max_nothing(x: Tensor, c: Tensor, v: Float) -> Sides:
    """max(x, c) = x   for x of 0 and above and c of 0 and below"""
    when = [eq(scalar(c), v), le(v, real(0.0)), le(rank(c), rank(x)), zero_or_more(x)]
    return Sides(tensor("Max", x, c), x, when=when)


@rule(
    contract="finite", holds=[dict(x="squares b s", c="=0"), dict(x="squares b s", c="=-1")],
    refuse=[dict(x="squares b s", c="=0.1"), dict(x="b s", c="=0")],
)  # fmt: skip
def clip_nothing(x: Tensor, c: Tensor, v: Float) -> Sides:
    """clip(x, c) = x   for x of 0 and above and c of 0 and below; of inf it would be the largest number"""
    when = [eq(scalar(c), v), le(v, real(0.0)), zero_or_more(x)]
    return Sides(tensor("ClipBelow", x, c), x, when=when)
