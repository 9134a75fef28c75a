"""Constant factors: `scaled(x, v)` is x times the number v, however that is written.

It is a marker, for a file keeps its products and quotients as they are: where a result is cut to an integer, such as
the bucket of a distance, the last bit may decide.
"""

from __future__ import annotations

from typing import Any

from ..egraph.engine.lang import Float, Guard, Sides, Tensor, eq, le, real, rule, scalar, tensor, thin

#: Numbers and inverses of numbers within this and its inverse are normal ones in every type wider than float16.
_FAR = 2.0**100


def scaled(x: Tensor, v: Float | float) -> Tensor:
    return tensor("Scaled", x, v)


def _normal(v: Float) -> list[Guard]:
    return [le(v * v, _FAR**2), le(_FAR**-2, v * v)]


_NUMBER = dict(x="b s", c="=3")


@rule(
    stage="marker", contract="reassociated",
    holds=[_NUMBER, dict(x="b s:float16", c="=-0.7:1:float16")],
    refuse=[dict(_NUMBER, c="=3:1 1 1")],
)  # fmt: skip
def scaled_mul(x: Tensor, c: Tensor, v: Float) -> Sides:
    """x * c = scaled(x, c)   for a constant c"""
    return Sides(x * c, scaled(x, v), when=[eq(scalar(c), v), thin(c, x)])


@rule(
    stage="marker", contract="reassociated",
    holds=[_NUMBER, dict(x="b s:float16", c="=-0.7:1:float16")],
    refuse=[dict(_NUMBER, c="=3:1 1 1"), dict(_NUMBER, c="=1e31"), dict(_NUMBER, c="=1e-31"), dict(_NUMBER, c="=0")],
)  # fmt: skip
def scaled_div(x: Tensor, c: Tensor, v: Float) -> Sides:
    """x / c = scaled(x, 1/c)   for a constant c"""
    return Sides(x / c, scaled(x, real(1.0) / v), when=[eq(scalar(c), v), thin(c, x), *_normal(v)])


_TWO: dict[str, Any] = dict(x="b s", c="=3", w=-0.7)


@rule(
    stage="marker", contract="reassociated", expand=dict(inner=(0, 1), divides=(0, 1)),
    holds=[_TWO, dict(x="b s:float16", c="=0.25:1:float16", w=2.0)],
    refuse=[dict(_TWO, c="=3:1 1 1"), dict(_TWO, c="=1e31"), dict(_TWO, c="=1e-31")],
)  # fmt: skip
def scaled_scaled(x: Tensor, c: Tensor, v: Float, w: Float, inner: int, divides: int) -> Sides:
    """scaled(x * c, w) = scaled(x, w) * c = scaled(x, c*w)   for a constant c; and by / c"""
    # One of two factors is the file's own: of a chain of n factors, n**3 pairs of products of some would be multiplied.
    once = x if inner else scaled(x, w)
    once = once / c if divides else once * c
    both = w / v if divides else v * w
    when = [eq(scalar(c), v), thin(c, x), *_normal(both)]
    return Sides(scaled(once, w) if inner else once, scaled(x, both), when=when)


@rule(stage="marker", holds=[dict(x="b s", v=3.0)])
def scaled_neg(x: Tensor, v: Float) -> Sides:
    """-scaled(x, v) = scaled(x, -v)"""
    return Sides(-scaled(x, v), scaled(x, v * -1.0))


@rule(stage="marker", holds=dict(x="b s"))
def scaled_one(x: Tensor) -> Sides:
    """scaled(x, 1) = x"""
    return Sides(scaled(x, real(1.0)), x)
