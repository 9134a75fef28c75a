"""Scalars that do nothing, and signs on their way out."""

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


@rule(holds=dict(x="b s"))
def neg_neg(x: Tensor) -> Sides:
    """-(-x) = x"""
    negated = -x
    return Sides(-negated, x)


@rule(expand=dict(k=(0, 1)), holds=dict(x="b s", c="=-1"), refuse=[dict(x="b s", c="=1"), dict(x="b s", c="=-1:1 1 1")])
def mul_minus_one(x: Tensor, c: Tensor, k: int) -> Sides:
    """x * -1 = -x"""
    return Sides(x * c, -x, when=[eq(scalar(c), real(-1.0)), *thin(c, x, k)])


@rule(holds=dict(x="b s", y="b s"))
def neg_mul(x: Tensor, y: Tensor) -> Sides:
    """(-x) * y = -(x * y)"""
    return Sides(-x * y, -(x * y))


@rule(holds=dict(x="b s", y="b s"))
def add_neg(x: Tensor, y: Tensor) -> Sides:
    """x + (-y) = x - y"""
    return Sides(x + -y, x - y)


@rule(holds=dict(x="b s", y="b s"))
def sub_neg(x: Tensor, y: Tensor) -> Sides:
    """x - (-y) = x + y"""
    return Sides(x - -y, x + y)
