"""Signs. In normal form they are in front: of products and quotients, of what odd functions give, of differences.

What is subtracted is added with its sign where a constant can bear that, as sums are what other laws look for.
"""

from __future__ import annotations

from ..egraph.engine.assumption import ZERO_SIGNS
from ..egraph.engine.lang import (
    Float,
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


@rule(holds=dict(x="b s"))
def neg_neg(x: Tensor) -> Sides:
    """-(-x) = x"""
    negated = -x
    return Sides(-negated, x)


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
    contract="finite", assumes=[ZERO_SIGNS], expand=dict(place=(0, 1, 2)),
    holds=[dict(x="b s", c="=0"), dict(x="b s", c="=0:1")],
    refuse=[dict(x="b s", c="=2"), dict(x="b s", c="=0:1 1 1")],
)  # fmt: skip
def add_zero(x: Tensor, c: Tensor, place: int) -> Sides:
    """x + 0 = x - 0 = x, and 0 - x = -x"""
    left, right = ((x + c, x), (x - c, x), (c - x, -x))[place]
    return Sides(left, right, when=exactly(c, x, 0.0))


@rule(contract="finite", assumes=[ZERO_SIGNS], expand=dict(outer=(0, 1)), holds=dict(x="b s", y="b s", z="b s"))
def neg_sub(x: Tensor, y: Tensor, z: Tensor, outer: int) -> Sides:
    """-(x - y) = y - x, and z - (x - y) = z + (y - x)"""
    return Sides(z - (x - y), z + (y - x)) if outer else Sides(-(x - y), y - x)


@rule(
    expand=dict(place=(0, 1, 2)), holds=[dict(x="b s", y="b s", c="=3"), dict(x="b 1", y="b s", c="=-0.5:1")],
    refuse=[dict(x="b s", y="b s", c=c) for c in ("s", "=3:1 1 1", "=0")],
)  # fmt: skip
def sub_number(x: Tensor, y: Tensor, c: Tensor, v: Float, to: Int, place: int) -> Sides:
    """x - c = x + -c, -(x * c) = x * -c, y - x * c = y + x * -c   for a constant c, as masks are subtracted"""
    # numbers of ours do not tell the sign of a 0
    minus, when = tensor("FConst", v * -1.0, to), [eq(scalar(c), v), ne(v, real(0.0)), eq(dtype(c), to), thin(c, x)]
    left, right = ((x - c, x + minus), (-(x * c), x * minus), (y - x * c, y + x * minus))[place]
    return Sides(left, right, when=when)
