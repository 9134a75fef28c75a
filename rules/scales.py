"""Constant factors: `scaled(x, v)` is x times the number v, however that is written.

It is a marker, for a file keeps its products and quotients as they are: where a result is cut to an integer, such as
the bucket of a distance, the last bit may decide.
"""

from __future__ import annotations

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


@rule(
    stage="marker", contract="reassociated", holds=[dict(x="b s", v=3.0, w=-0.7), dict(x="b s:float16", v=0.25, w=2.0)],
    refuse=[dict(x="b s", v=1e20, w=1e20), dict(x="b s", v=1e-20, w=1e-20)],
)  # fmt: skip
def scaled_scaled(x: Tensor, v: Float, w: Float) -> Sides:
    """scaled(scaled(x, v), w) = scaled(x, v*w)"""
    return Sides(scaled(scaled(x, v), w), scaled(x, v * w), when=_normal(v * w))


@rule(stage="marker", holds=[dict(x="b s", v=3.0)])
def scaled_neg(x: Tensor, v: Float) -> Sides:
    """-scaled(x, v) = scaled(x, -v)"""
    return Sides(-scaled(x, v), scaled(x, v * -1.0))


@rule(stage="marker", holds=dict(x="b s"))
def scaled_one(x: Tensor) -> Sides:
    """scaled(x, 1) = x"""
    return Sides(scaled(x, real(1.0)), x)
