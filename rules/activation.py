"""Activations. Gelu: Hendrycks & Gimpel (arXiv 1606.08415); ONNX Gelu-20."""

from __future__ import annotations

from ..egraph.dtypes import FLOAT16
from ..egraph.lang import (
    Float,
    Guard,
    Sides,
    Tensor,
    call,
    dtype,
    eq,
    near,
    real,
    rule,
    scalar,
    supported,
    tensor,
    thin,
)

#: Relative: half a unit of the last place in float16, two units in float32. A constant farther off is another function.
_TOLERANCE = (5e-4, 2.5e-7)


def _one(c: Tensor, x: Tensor, k: int, value: float) -> list[Guard]:
    return [eq(scalar(c), real(value)), *thin(c, x, k)]


def _about(c: Tensor, x: Tensor, k: int, v: Float, value: float, half: int) -> list[Guard]:
    kind = [eq(dtype(x), FLOAT16)] if half else []
    return [eq(scalar(c), v), near(v, value, value * _TOLERANCE[1 - half]), *kind, *thin(c, x, k)]


def _halved(sample: dict[str, str]) -> dict[str, str]:
    """The sample in float16."""
    return {name: f"{text}:float16" for name, text in sample.items()}


def erf_plus(x: Tensor) -> Tensor:
    return tensor("ErfPlus", x)


@rule(
    stage="marker", contract="reassociated", expand=dict(k=(0, 1), half=(0, 1)),
    holds=[dict(x="b h", c="=1.4142135623730951", o="=1"), _halved(dict(x="b h", c="=1.4142135623730951", o="=1"))],
    refuse=[dict(x="b h", c="=1.4146", o="=1"),
            dict(x="b h", c="=1.5", o="=1"), dict(x="b h", c="=1.4142135623730951", o="=2"),
            dict(x="b h", c="=1.4144", o="=1"), _halved(dict(x="b h", c="=1.5", o="=1")),
            dict(x="b h", c="=1.4142135623730951:1 1 1", o="=1"), dict(x="b h", c="=1.4142135623730951", o="=1:1 1 1")],
)  # fmt: skip
def erf_plus_div(x: Tensor, c: Tensor, o: Tensor, v: Float, k: int, half: int) -> Sides:
    """1 + erf(x / sqrt(2)) = erf_plus(x)"""
    return Sides(call("Erf", x / c) + o, erf_plus(x), when=[*_about(c, x, k, v, 2**0.5, half), *_one(o, x, k, 1.0)])


@rule(
    stage="marker", contract="reassociated", expand=dict(k=(0, 1), half=(0, 1)),
    holds=[dict(x="b h", c="=0.7071067811865476", o="=1"), _halved(dict(x="b h", c="=0.7071067811865476", o="=1"))],
    refuse=[dict(x="b h", c="=0.7073", o="=1"),
            dict(x="b h", c="=0.75", o="=1"), dict(x="b h", c="=0.7071067811865476", o="=2"),
            dict(x="b h", c="=0.7072", o="=1"), _halved(dict(x="b h", c="=0.75", o="=1")),
            dict(x="b h", c="=0.7071067811865476:1 1 1", o="=1"), dict(x="b h", c="=0.7071067811865476", o="=1:1 1 1")],
)  # fmt: skip
def erf_plus_mul(x: Tensor, c: Tensor, o: Tensor, v: Float, k: int, half: int) -> Sides:
    """1 + erf(x * sqrt(1/2)) = erf_plus(x)"""
    return Sides(call("Erf", x * c) + o, erf_plus(x), when=[*_about(c, x, k, v, 0.5**0.5, half), *_one(o, x, k, 1.0)])


@rule(
    stage="fuse", contract="reassociated", expand=dict(k=(0, 1)), holds=dict(x="b h", c="=0.5"),
    refuse=[dict(x="b h", c="=0.4"), dict(x="b h", c="=0.5:1 1 1")],
)  # fmt: skip
def gelu_last(x: Tensor, c: Tensor, k: int) -> Sides:
    """(x * erf_plus(x)) * 0.5 = Gelu(x)"""
    return Sides(x * erf_plus(x) * c, call("Gelu", x), when=[*_one(c, x, k, 0.5), supported("Gelu", x)])


@rule(
    stage="fuse", contract="reassociated", expand=dict(k=(0, 1)), holds=dict(x="b h", c="=2"),
    refuse=[dict(x="b h", c="=3"), dict(x="b h", c="=2:1 1 1")],
)  # fmt: skip
def gelu_halved(x: Tensor, c: Tensor, k: int) -> Sides:
    """(x * erf_plus(x)) / 2 = Gelu(x)"""
    return Sides((x * erf_plus(x)) / c, call("Gelu", x), when=[*_one(c, x, k, 2.0), supported("Gelu", x)])


@rule(
    stage="fuse", contract="reassociated", expand=dict(k=(0, 1)), holds=dict(x="b h", c="=0.5"),
    refuse=[dict(x="b h", c="=0.4"), dict(x="b h", c="=0.5:1 1 1")],
)  # fmt: skip
def gelu_first(x: Tensor, c: Tensor, k: int) -> Sides:
    """(0.5 * x) * erf_plus(x) = Gelu(x)"""
    return Sides((x * c) * erf_plus(x), call("Gelu", x), when=[*_one(c, x, k, 0.5), supported("Gelu", x)])


@rule(
    stage="fuse", contract="reassociated", expand=dict(k=(0, 1)), holds=dict(x="b h", c="=0.5"),
    refuse=[dict(x="b h", c="=0.4"), dict(x="b h", c="=0.5:1 1 1")],
)  # fmt: skip
def gelu_inner(x: Tensor, c: Tensor, k: int) -> Sides:
    """x * (0.5 * erf_plus(x)) = Gelu(x)"""
    return Sides(x * (c * erf_plus(x)), call("Gelu", x), when=[*_one(c, x, k, 0.5), supported("Gelu", x)])


# ------------------------------------------------------------------------------------------------------- tanh-GELU


def tanh_plus(x: Tensor) -> Tensor:
    return tensor("TanhPlus", x)


_CUBE, _ROOT = 0.044715, 0.7978845608028654  # sqrt(2 / pi)
_TANH = dict(x="b h", c="=0.7978845608028654", d="=0.044715", o="=1")
_NEAR = [dict(c="=0.798"), dict(d="=0.04472")]  # in float16, not in float32
_FAR = [dict(c="=0.7"), dict(d="=0.04")]


def _inexact(sample: dict[str, str]) -> list[dict[str, str]]:
    return [*({**sample, **s} for s in _NEAR + _FAR), *(_halved({**sample, **s}) for s in _FAR)]


@rule(
    stage="marker", contract="reassociated", expand=dict(k=(0, 1), half=(0, 1)),
    holds=[dict(_TANH, t="=3"), _halved(dict(_TANH, t="=3"))],
    refuse=[dict(_TANH, t="=3", c="=0.7981"), dict(_TANH, t="=3", d="=0.044725"),
            *_inexact(dict(_TANH, t="=3")), dict(_TANH, t="=2"),
            dict(_TANH, t="=3", o="=2"), dict(_TANH, t="=3:1 1 1"), dict(_TANH, t="=3", c="=0.7978845608028654:1 1 1"),
            dict(_TANH, t="=3", d="=0.044715:1 1 1"), dict(_TANH, t="=3", o="=1:1 1 1")],
)  # fmt: skip
def tanh_plus_pow(
    x: Tensor, c: Tensor, d: Tensor, t: Tensor, o: Tensor, v: Float, w: Float, k: int, half: int
) -> Sides:  # fmt: skip
    """1 + tanh(sqrt(2/pi) * (x + 0.044715 * x**3)) = tanh_plus(x)"""
    when = [*_about(c, x, k, v, _ROOT, half), *_about(d, x, k, w, _CUBE, half)]
    when += [*_one(t, x, k, 3.0), *_one(o, x, k, 1.0)]
    return Sides(call("Tanh", c * (x + d * call("Pow", x, t))) + o, tanh_plus(x), when=when)


@rule(
    stage="marker", contract="reassociated", expand=dict(k=(0, 1), half=(0, 1)), holds=[_TANH, _halved(_TANH)],
    refuse=[dict(_TANH, c="=0.7981"), dict(_TANH, d="=0.044725"),
            *_inexact(_TANH), dict(_TANH, o="=2"),
            dict(_TANH, c="=0.7978845608028654:1 1 1"), dict(_TANH, d="=0.044715:1 1 1"), dict(_TANH, o="=1:1 1 1")],
)  # fmt: skip
def tanh_plus_mul(x: Tensor, c: Tensor, d: Tensor, o: Tensor, v: Float, w: Float, k: int, half: int) -> Sides:
    """1 + tanh(sqrt(2/pi) * (x + 0.044715 * (x*x*x))) = tanh_plus(x)"""
    when = [*_about(c, x, k, v, _ROOT, half), *_about(d, x, k, w, _CUBE, half), *_one(o, x, k, 1.0)]
    return Sides(call("Tanh", c * (x + d * (x * x * x))) + o, tanh_plus(x), when=when)


@rule(
    stage="marker", contract="reassociated", expand=dict(k=(0, 1), half=(0, 1)), holds=[_TANH, _halved(_TANH)],
    refuse=[dict(_TANH, c="=0.7981"), dict(_TANH, d="=0.044725"),
            *_inexact(_TANH), dict(_TANH, o="=2"),
            dict(_TANH, c="=0.7978845608028654:1 1 1"), dict(_TANH, d="=0.044715:1 1 1"), dict(_TANH, o="=1:1 1 1")],
)  # fmt: skip
def tanh_plus_factored(x: Tensor, c: Tensor, d: Tensor, o: Tensor, v: Float, w: Float, k: int, half: int) -> Sides:
    """1 + tanh(sqrt(2/pi) * x * (1 + 0.044715 * x * x)) = tanh_plus(x)"""
    when = [*_about(c, x, k, v, _ROOT, half), *_about(d, x, k, w, _CUBE, half), *_one(o, x, k, 1.0)]
    return Sides(call("Tanh", (x * c) * (o + (d * x) * x)) + o, tanh_plus(x), when=when)


@rule(
    stage="fuse", contract="reassociated", expand=dict(k=(0, 1)), holds=dict(x="b h", c="=0.5"),
    refuse=[dict(x="b h", c="=0.4"), dict(x="b h", c="=0.5:1 1 1")],
)  # fmt: skip
def fast_gelu_first(x: Tensor, c: Tensor, k: int) -> Sides:
    """(0.5 * x) * tanh_plus(x) = FastGelu(x)"""
    return Sides((x * c) * tanh_plus(x), call("FastGelu", x), when=[*_one(c, x, k, 0.5), supported("FastGelu", x)])


@rule(
    stage="fuse", contract="reassociated", expand=dict(k=(0, 1)), holds=dict(x="b h", c="=0.5"),
    refuse=[dict(x="b h", c="=0.4"), dict(x="b h", c="=0.5:1 1 1")],
)  # fmt: skip
def fast_gelu_last(x: Tensor, c: Tensor, k: int) -> Sides:
    """(x * tanh_plus(x)) * 0.5 = FastGelu(x)"""
    return Sides(x * tanh_plus(x) * c, call("FastGelu", x), when=[*_one(c, x, k, 0.5), supported("FastGelu", x)])


@rule(
    stage="fuse", contract="reassociated", expand=dict(k=(0, 1)), holds=dict(x="b h", c="=0.5"),
    refuse=[dict(x="b h", c="=0.4"), dict(x="b h", c="=0.5:1 1 1")],
)  # fmt: skip
def fast_gelu_inner(x: Tensor, c: Tensor, k: int) -> Sides:
    """x * (0.5 * tanh_plus(x)) = FastGelu(x)"""
    return Sides(x * (c * tanh_plus(x)), call("FastGelu", x), when=[*_one(c, x, k, 0.5), supported("FastGelu", x)])
