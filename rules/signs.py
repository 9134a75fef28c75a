"""Signs. In normal form they are in front: of products and quotients, of what odd functions give, of differences.

What is subtracted is added with its sign where a constant can bear that, as sums are what other laws look for.
"""

from __future__ import annotations

from ..egraph.engine.assumption import ZERO_SIGNS
from ..egraph.engine.lang import (
    Float,
    Guard,
    Int,
    Sides,
    Tensor,
    dtype,
    eq,
    exactly,
    ne,
    real,
    rule,
    scalar,
    tensor,
    thin,
)
from ..egraph.terms import OPS
from ..egraph.terms.dtypes import FLOAT16, FLOAT32, FLOAT64

_ODD = sorted(op.name for op in OPS.values() if op.odd)


def _number(c: Tensor, x: Tensor, v: Float, to: Int) -> list[Guard]:
    """c is a constant v other than 0, whose sign numbers of ours do not tell, and does not widen x."""
    return [eq(scalar(c), v), ne(v, real(0.0)), eq(dtype(c), to), thin(c, x)]


def _minus(v: Float, to: Int) -> Tensor:
    return tensor("FConst", v * -1.0, to)


@rule(holds=dict(x="b s"))
def neg_neg(x: Tensor) -> Sides:
    """-(-x) = x"""
    negated = -x
    return Sides(-negated, x)


# ------------------------------------------------------------------------------------------------- other ways to negate


@rule(
    expand=dict(divides=(0, 1)), holds=dict(x="b s", c="=-1"),
    refuse=[dict(x="b s", c="=1"), dict(x="b s", c="=-1:1 1 1")],
)  # fmt: skip
def times_minus_one(x: Tensor, c: Tensor, divides: int) -> Sides:
    """x * -1 = x / -1 = -x"""
    return Sides(x / c if divides else x * c, -x, when=exactly(c, x, -1.0))


# --------------------------------------------------------------------------------------- out of products and functions


@rule(holds=dict(x="b s", y="b s"))
def neg_mul(x: Tensor, y: Tensor) -> Sides:
    """(-x) * y = -(x * y)"""
    return Sides(-x * y, -(x * y))


@rule(
    expand=dict(below=(0, 1), to=(FLOAT16, FLOAT32, FLOAT64)), holds=[dict(x="b s", y="b s")],
    refuse=[dict(x="b s:int64", y="b s:int64")],
)  # fmt: skip
def neg_div(x: Tensor, y: Tensor, below: int, to: int) -> Sides:
    """(-x) / y = x / (-y) = -(x / y)   for floats: the lowest integer has no negative"""
    return Sides(x / -y if below else -x / y, -(x / y), when=[eq(dtype(x), to)])


@rule(
    holds=[dict(x="b s", c="=3"), dict(x="b s", c="=-0.5:1")],
    refuse=[dict(x="b s", c="s"), dict(x="b s", c="=3:1 1 1"), dict(x="b s", c="=0")],
)  # fmt: skip
def neg_scaled(x: Tensor, c: Tensor, v: Float, to: Int) -> Sides:
    """-(x * c) = x * -c   for a constant c"""
    return Sides(-(x * c), x * _minus(v, to), when=_number(c, x, v, to))


@rule(contract="reassociated", expand=dict(f=range(len(_ODD))), holds=dict(x="b s"))
def neg_odd(x: Tensor, f: int) -> Sides:
    """f(-x) = -f(x)   for erf, tanh, sin"""
    name = _ODD[f]
    return Sides(tensor(name, -x), -tensor(name, x))


@rule(contract="reassociated", holds=dict(x="b s"))
def neg_even(x: Tensor) -> Sides:
    """cos(-x) = cos(x)"""
    return Sides(tensor("Cos", -x), tensor("Cos", x))


# ---------------------------------------------------------------------------------------------------- in sums


@rule(expand=dict(below=(0, 1)), holds=dict(x="b s", y="b s"))
def add_neg(x: Tensor, y: Tensor, below: int) -> Sides:
    """x + (-y) = x - y, and x - (-y) = x + y"""
    return Sides(x - -y, x + y) if below else Sides(x + -y, x - y)


# 1 / 0 would show the sign of a 0, which these do not keep.


@rule(
    contract="finite", assumes=[ZERO_SIGNS],
    holds=[dict(x="b s", c="=0"), dict(x="b s", c="=0:1")],
    refuse=[dict(x="b s", c="=1"), dict(x="b s", c="=0:1 1 1")],
)  # fmt: skip
def sub_from_zero(x: Tensor, c: Tensor) -> Sides:
    """0 - x = -x"""
    return Sides(c - x, -x, when=exactly(c, x, 0.0))


@rule(
    contract="finite", assumes=[ZERO_SIGNS], expand=dict(below=(0, 1)),
    holds=[dict(x="b s", c="=0"), dict(x="b s", c="=0:1")],
    refuse=[dict(x="b s", c="=2"), dict(x="b s", c="=0:1 1 1")],
)  # fmt: skip
def add_zero(x: Tensor, c: Tensor, below: int) -> Sides:
    """x + 0 = x - 0 = x"""
    return Sides(x - c if below else x + c, x, when=exactly(c, x, 0.0))


@rule(contract="finite", assumes=[ZERO_SIGNS], holds=dict(x="b s", y="b s"))
def neg_sub(x: Tensor, y: Tensor) -> Sides:
    """-(x - y) = y - x"""
    return Sides(-(x - y), y - x)


@rule(contract="finite", assumes=[ZERO_SIGNS], holds=dict(x="b s", y="b s", z="b s"))
def sub_sub(x: Tensor, y: Tensor, z: Tensor) -> Sides:
    """x - (y - z) = x + (z - y)"""
    return Sides(x - (y - z), x + (z - y))


@rule(
    holds=[dict(x="b s", c="=3"), dict(x="b s", c="=-0.5:1")],
    refuse=[dict(x="b s", c="s"), dict(x="b s", c="=3:1 1 1"), dict(x="b s", c="=0")],
)  # fmt: skip
def sub_number(x: Tensor, c: Tensor, v: Float, to: Int) -> Sides:
    """x - c = x + -c   for a constant c"""
    return Sides(x - c, x + _minus(v, to), when=_number(c, x, v, to))


@rule(
    holds=[dict(x="b s", y="b 1", c="=3"), dict(x="s", y="b s", c="=-0.5:1")],
    refuse=[dict(x="b s", y="b s", c="s"), dict(x="b s", y="b s", c="=3:1 1 1"), dict(x="b s", y="b s", c="=0")],
)  # fmt: skip
def sub_scaled(x: Tensor, y: Tensor, c: Tensor, v: Float, to: Int) -> Sides:
    """x - y * c = x + y * -c   for a constant c, as masks are subtracted"""
    return Sides(x - y * c, x + y * _minus(v, to), when=_number(c, y, v, to))
