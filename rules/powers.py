"""Powers: products where the exponent is 2 or 3, roots where it is a half, one inverse of a root."""

from __future__ import annotations

from ..egraph.engine.lang import (
    Int,
    Sides,
    Tensor,
    call,
    dtype,
    elem,
    eq,
    exactly,
    float_of,
    floating,
    le,
    length,
    num,
    rule,
    tensor,
    thin,
    zero_or_more,
)

#: Above any exponent of a formula, and a number in float16 as well.
_LARGEST = 1024


def rsqrt(x: Tensor) -> Tensor:
    return tensor("RSqrt", x)


def sqrt(x: Tensor) -> Tensor:
    return tensor("Sqrt", x)


def reciprocal(x: Tensor) -> Tensor:
    return tensor("Reciprocal", x)


# -------------------------------------------------------------------------------------------------------------- powers


@rule(
    contract="reassociated",
    holds=[dict(x="b s", c="ints 3"), dict(x="b s:float16", c="ints 2")],
    refuse=[dict(x="b 2", c="ints 2 2"), dict(x="", c="ints 3"), dict(x="b s:int64", c="ints 3"),
            dict(x="b s", c="ints 2000"), dict(x="b s", c="ints -2000"), dict(x="b s", c="=3")],
)  # fmt: skip
def pow_integer(x: Tensor, c: Tensor, n: Int, to: Int) -> Sides:
    """x ** n = x ** float(n)   for an integer n"""
    bound = [le(n, _LARGEST), le(-_LARGEST, n)]
    when = [eq(length(c), 1), eq(elem(c, 0), num(n)), *bound, thin(c, x), floating(x), eq(dtype(x), to)]
    return Sides(call("Pow", x, c), call("Pow", x, call("FConst", float_of(n), to)), when=when)


@rule(
    stage="marker", contract="reassociated",
    holds=[dict(x="b s h", c="=2"), dict(x="b s h", c="=2:1")],
    refuse=[dict(x="b s h", c="=3"), dict(x="b s h", c="=2:1 1 1 1")],
)  # fmt: skip
def pow_two(x: Tensor, c: Tensor) -> Sides:
    """x ** 2 = x * x"""
    return Sides(call("Pow", x, c), x * x, when=exactly(c, x, 2.0))


@rule(
    stage="marker", contract="reassociated",
    holds=[dict(x="b h", c="=3"), dict(x="b h", c="=3:1")],
    refuse=[dict(x="b h", c="=2"), dict(x="b h", c="=3:1 1 1")],
)  # fmt: skip
def pow_three(x: Tensor, c: Tensor) -> Sides:
    """x ** 3 = x * x * x"""
    return Sides(call("Pow", x, c), x * x * x, when=exactly(c, x, 3.0))


@rule(
    stage="marker", contract="reassociated", expand=dict(inverse=(0, 1)),
    holds=[dict(x="squares b h", c=c) for c in ("=0.5", "=0.5:1", "=-0.5", "=-0.5:1")],
    refuse=[*(dict(x="squares b h", c=c) for c in ("=0.25", "=0.5:1 1 1", "=-0.5:1 1 1")),
            *(dict(x="b h", c=c) for c in ("=0.5", "=-0.5"))],
)  # fmt: skip
def pow_half(x: Tensor, c: Tensor, inverse: int) -> Sides:
    """x ** 0.5 = sqrt(x), x ** -0.5 = rsqrt(x)   for x of 0 and above: of -inf and -0.0 they differ"""
    when = [*exactly(c, x, -0.5 if inverse else 0.5), zero_or_more(x)]
    return Sides(call("Pow", x, c), rsqrt(x) if inverse else sqrt(x), when=when)


# ------------------------------------------------------------------------------------------------------------ inverses


@rule(
    stage="marker", holds=[dict(x="b s", c="=1"), dict(x="b s", c="=1:1")],
    refuse=[dict(x="b s", c="=2"), dict(x="b s", c="=1:1 1 1")],
)  # fmt: skip
def reciprocal_div(x: Tensor, c: Tensor) -> Sides:
    """1 / x = reciprocal(x)"""
    return Sides(c / x, reciprocal(x), when=exactly(c, x, 1.0))


@rule(stage="marker", contract="reassociated", holds=dict(x="b s"))
def rsqrt_reciprocal(x: Tensor) -> Sides:
    """reciprocal(sqrt(x)) = rsqrt(x)"""
    return Sides(reciprocal(sqrt(x)), rsqrt(x))


@rule(stage="marker", contract="reassociated", holds=dict(x="squares b s"), refuse=[dict(x="b s")])
def rsqrt_inside(x: Tensor) -> Sides:
    """sqrt(reciprocal(x)) = rsqrt(x)   for x of 0 and above: of -0.0 they differ"""
    return Sides(sqrt(reciprocal(x)), rsqrt(x), when=[zero_or_more(x)])
