"""Scalars that do nothing."""

from __future__ import annotations

from ..egraph.engine.lang import Sides, Tensor, eq, real, rule, scalar, thin


@rule(expand=dict(k=(0, 1)), holds=dict(x="b s", c="=1"), refuse=[dict(x="b s", c="=2"), dict(x="b s", c="=1:1 1 1")])
def mul_one(x: Tensor, c: Tensor, k: int) -> Sides:
    """x * 1 = x"""
    return Sides(x * c, x, when=[eq(scalar(c), real(1.0)), *thin(c, x, k)])


@rule(expand=dict(k=(0, 1)), holds=dict(x="b s", c="=1"), refuse=[dict(x="b s", c="=2"), dict(x="b s", c="=1:1 1 1")])
def div_one(x: Tensor, c: Tensor, k: int) -> Sides:
    """x / 1 = x"""
    return Sides(x / c, x, when=[eq(scalar(c), real(1.0)), *thin(c, x, k)])
