"""Activations. Gelu and its approximations with tanh and sigmoid: Hendrycks & Gimpel (arXiv 1606.08415); ONNX Gelu-20.

`erf_plus(x)` is 1 + erf(x / sqrt(2)); `cubic(x)` is x + 0.044715 x^3, `tanh_plus(x)` 1 + tanh(sqrt(2/pi) cubic(x)).
"""

from __future__ import annotations

from typing import Any

from ..egraph.engine.lang import (
    Float,
    Guard,
    Int,
    Sides,
    Tensor,
    apply,
    call,
    dim,
    dtype,
    eq,
    exactly,
    lt,
    near,
    rank,
    real,
    rule,
    scalar,
    supported,
    tensor,
    thin,
)
from ..egraph.terms import Op
from ..egraph.terms.activation import BIAS_GELU, FAST_GELU, GELU, QUICK_GELU
from .numbers import ROUNDED, about
from .scales import scaled

#: How far the scale inside erf or tanh may be off besides, as one of six digits is: that changes 1 + erf or 1 + tanh
#: by two units of the last place of 1 at most, as much as computing it does.
_DIGITS = 6e-7


def _halved(sample: dict[str, Any]) -> dict[str, Any]:
    """The sample in float16."""
    return {name: f"{text}:float16" if isinstance(text, str) else text for name, text in sample.items()}


def _doubled(sample: dict[str, Any]) -> dict[str, Any]:
    """The sample in float64, in which its constants are the same."""
    return {name: f"{text}:float64" if isinstance(text, str) else text for name, text in sample.items()}


def erf_plus(x: Tensor) -> Tensor:
    return tensor("ErfPlus", x)


def cubic(x: Tensor) -> Tensor:
    return tensor("Cubic", x)


def tanh_plus(x: Tensor) -> Tensor:
    return tensor("TanhPlus", x)


# ------------------------------------------------------------------------------------------------------------ erf and 1


@rule(stage="marker", expand=dict(tanh=(0, 1)), holds=dict(x="b h", c="=0.5"), refuse=[dict(x="b h", c="=0.3")])
def gate_halves(x: Tensor, c: Tensor, to: Int, tanh: int) -> Sides:
    """erf(x) * 0.5 + 0.5 = (erf(x) + 1) * 0.5; the same for tanh"""
    f = tensor("Tanh" if tanh else "Erf", x)
    one = call("FConst", real(1.0), to)
    return Sides(f * c + c, (f + one) * c, when=[eq(scalar(c), real(0.5)), eq(dtype(c), to)])


_OTHER_ONES = ("=2", "=1:1 1 1")
_INSIDE_ERF: dict[str, Any] = dict(x="b h", v=0.5**0.5, o="=1")


@rule(
    stage="marker", contract="reassociated", expand=dict(kind=ROUNDED),
    holds=[_INSIDE_ERF, _halved(_INSIDE_ERF), dict(_INSIDE_ERF, v=0.707107)],
    refuse=[*(dict(_INSIDE_ERF, v=v) for v in (0.70711, 0.7073, 0.75)), _halved(dict(_INSIDE_ERF, v=0.75)),
            _doubled(_INSIDE_ERF), *(dict(_INSIDE_ERF, o=o) for o in _OTHER_ONES)],
)  # fmt: skip
def erf_plus_scaled(x: Tensor, o: Tensor, v: Float, kind: int) -> Sides:
    """1 + erf(x * sqrt(1/2)) = erf_plus(x)"""
    when = [*about(v, x, 0.5**0.5, kind, _DIGITS), *exactly(o, x, 1.0)]
    return Sides(tensor("Erf", scaled(x, v)) + o, erf_plus(x), when=when)


# -------------------------------------------------------------------------------- sigmoid and tanh


def sigmoid(x: Tensor) -> Tensor:
    return tensor("Sigmoid", x)


def tanh(x: Tensor) -> Tensor:
    return tensor("Tanh", x)


@rule(
    stage="marker", contract="reassociated", expand=dict(divides=(0, 1)),
    holds=[dict(x="b s", y="b s", o="=1"), dict(x="b s", y="", o="=1:1")],
    refuse=[dict(x="b s", y="b s", o="=2"), dict(x="b s", y="b s", o="=1:1 1 1")],
)  # fmt: skip
def sigmoid_reciprocal(x: Tensor, y: Tensor, o: Tensor, divides: int) -> Sides:
    """reciprocal(1 + exp(x)) = sigmoid(-x), and y / (1 + exp(x)) = y * sigmoid(-x)"""
    below, when = o + tensor("Exp", x), exactly(o, x, 1.0)
    if divides:
        return Sides(y / below, y * sigmoid(-x), when=when)
    return Sides(tensor("Reciprocal", below), sigmoid(-x), when=when)


_LIKE_TANH: dict[str, Any] = dict(x="b s", v=2.0, o="=-1")


@rule(
    stage="marker", contract="reassociated",
    holds=[_LIKE_TANH, dict(x="b s", v=-2.0, o="=1:1")],
    refuse=[dict(_LIKE_TANH, v=3.0, o="=-1.5"), dict(_LIKE_TANH, o="=1"), dict(_LIKE_TANH, o="=-1:1 1 1")],
)  # fmt: skip
def tanh_sigmoid(x: Tensor, o: Tensor, v: Float) -> Sides:
    """sigmoid(x) * 2 - 1 = tanh(x * 0.5), and with the other sign of both"""
    when = [eq(v * v, real(4.0)), eq(scalar(o), v * -0.5), thin(o, x)]
    return Sides(scaled(sigmoid(x), v) + o, tanh(scaled(x, v * 0.25)), when=when)


_LIKE_SIGMOID = dict(x="b s", c="=0.5")


@rule(
    stage="marker", contract="reassociated",
    holds=[_LIKE_SIGMOID, dict(x="b s", c="=0.5:1")], refuse=[dict(x="b s", c="=0.4"), dict(x="b s", c="=0.5:1 1 1")],
)  # fmt: skip
def sigmoid_tanh(x: Tensor, c: Tensor) -> Sides:
    """tanh(x) * 0.5 + 0.5 = sigmoid(x * 2)"""
    return Sides(scaled(tanh(x), 0.5) + c, sigmoid(scaled(x, 2.0)), when=exactly(c, x, 0.5))


# ------------------------------------------------------------------------------------------------------- tanh and 1


_CUBE, _ROOT = 0.044715, 0.7978845608028654  # sqrt(2 / pi)


_CUBIC = dict(x="b h", d="=0.044715")


def _constant(d: Tensor, x: Tensor, v: Float, kind: int) -> list[Guard]:
    return [eq(scalar(d), v), *about(v, x, _CUBE, kind), thin(d, x)]


@rule(
    stage="marker", contract="reassociated", expand=dict(inner=(0, 1), kind=ROUNDED),
    holds=[_CUBIC, _halved(_CUBIC)],
    refuse=[dict(_CUBIC, d="=0.04472"), dict(_CUBIC, d="=0.04"), _halved(dict(_CUBIC, d="=0.04")),
            dict(_CUBIC, d="=0.044725"), dict(_CUBIC, d="=0.044715:1 1 1"), _doubled(_CUBIC)],
)  # fmt: skip
def cubic_sum(x: Tensor, d: Tensor, v: Float, inner: int, kind: int) -> Sides:
    """x + 0.044715 * (x*x*x) = x + 0.044715*x*x*x = cubic(x)"""
    cube = d * x * x * x if inner else d * (x * x * x)
    return Sides(x + cube, cubic(x), when=_constant(d, x, v, kind))


_FACTORED = dict(x="b h", c="", d="=0.044715", o="=1")


@rule(
    stage="marker", contract="reassociated", expand=dict(scales=(0, 1), inner=(0, 1), kind=ROUNDED),
    holds=[_FACTORED, _halved(_FACTORED)],
    refuse=[dict(_FACTORED, d="=0.04472"), dict(_FACTORED, d="=0.04"), _halved(dict(_FACTORED, d="=0.04")),
            dict(_FACTORED, d="=0.044725"), dict(_FACTORED, o="=2"),
            dict(_FACTORED, d="=0.044715:1 1 1"), dict(_FACTORED, o="=1:1 1 1"), _doubled(_FACTORED)],
)  # fmt: skip
def cubic_factored(
    x: Tensor, c: Tensor, d: Tensor, o: Tensor, v: Float, scales: int, inner: int, kind: int
) -> Sides:  # fmt: skip
    """x * (1 + 0.044715*x*x) = cubic(x), and (x * c) * (1 + 0.044715*x*x) = cubic(x) * c"""
    factor = o + (d * x * x if inner else d * (x * x))
    when = [*_constant(d, x, v, kind), *exactly(o, x, 1.0)]
    return Sides((x * c if scales else x) * factor, cubic(x) * c if scales else cubic(x), when=when)


_SPREAD = dict(x="b h", c="=0.8", d="=0.035772")


@rule(
    stage="marker", contract="reassociated", expand=dict(kind=ROUNDED), holds=[_SPREAD, _halved(_SPREAD)],
    refuse=[dict(_SPREAD, d="=0.0358"), dict(_SPREAD, c="=0.81"), _halved(dict(_SPREAD, d="=0.04")),
            dict(_SPREAD, c="=0.8:1 1 1"), dict(_SPREAD, d="=0.035772:1 1 1"), _doubled(_SPREAD)],
)  # fmt: skip
def cubic_spread(x: Tensor, c: Tensor, d: Tensor, v: Float, w: Float, kind: int) -> Sides:
    """c*x + d*(x*x*x) = c * cubic(x)   for d = 0.044715 c"""
    ratio = w / v
    alike = near(ratio, _CUBE, _CUBE * 2 * ROUNDED[kind])
    when = [eq(scalar(c), v), eq(scalar(d), w), alike, eq(dtype(x), kind), thin(c, x), thin(d, x)]
    return Sides(c * x + d * (x * x * x), c * cubic(x), when=when)


_INSIDE_TANH: dict[str, Any] = dict(x="b h", v=_ROOT, o="=1")


@rule(
    stage="marker", contract="reassociated", expand=dict(kind=ROUNDED),
    holds=[_INSIDE_TANH, _halved(_INSIDE_TANH)],
    refuse=[*(dict(_INSIDE_TANH, v=v) for v in (0.79788, 0.798, 0.7)), _halved(dict(_INSIDE_TANH, v=0.7)),
            _doubled(_INSIDE_TANH), *(dict(_INSIDE_TANH, o=o) for o in _OTHER_ONES)],
)  # fmt: skip
def tanh_plus_cubic(x: Tensor, o: Tensor, v: Float, kind: int) -> Sides:
    """1 + tanh(sqrt(2/pi) * cubic(x)) = tanh_plus(x)"""
    when = [*about(v, x, _ROOT, kind, _DIGITS), *exactly(o, x, 1.0)]
    return Sides(tanh(scaled(cubic(x), v)) + o, tanh_plus(x), when=when)


@rule(
    stage="marker", contract="reassociated", expand=dict(f=(0, 1)),
    holds=[dict(x="b h", v=0.5, w=0.7), dict(x="b h", v=-0.5, w=-0.7)], refuse=[dict(x="b h", v=0.5, w=-0.7)],
)  # fmt: skip
def gate_distributed(x: Tensor, v: Float, w: Float, to: Int, f: int) -> Sides:
    """a + a*f = a * (f + 1)   for a = x*v and f = erf(x*w) or tanh(cubic(x)*w), of one sign: inf - inf is in neither"""
    gate = tanh(scaled(cubic(x), w)) if f else tensor("Erf", scaled(x, w))
    a = scaled(x, v)
    when = [lt(real(0.0), v * w), eq(dtype(x), to)]
    return Sides(a + a * gate, a * (gate + call("FConst", real(1.0), to)), when=when)


# -------------------------------------------------------------------------------------------------------------- fused


def _runs(op: Op, x: Tensor) -> list[Guard]:
    """The target has the operator, and for FastGelu, which takes no scalar, x has an axis."""
    return [supported(op.name, x), *([lt(0, rank(x))] if op is FAST_GELU else [])]


def _gate(x: Tensor, tanh: int) -> tuple[Tensor, Tensor, list[Guard]]:
    """The factor that makes twice a Gelu of x, the fused operator, and what says that the target runs it."""
    op = FAST_GELU if tanh else GELU
    return tanh_plus(x) if tanh else erf_plus(x), apply(op, x), _runs(op, x)


@rule(
    stage="fuse", contract="reassociated", expand=dict(tanh=(0, 1), order=(0, 1, 2)),
    holds=[dict(x="b h", v=0.5), dict(x="", v=0.5)], refuse=[dict(x="b h", v=0.4)],
)  # fmt: skip
def gelu(x: Tensor, v: Float, tanh: int, order: int) -> Sides:
    """x * 0.5 * erf_plus(x) = Gelu(x), in every order; with tanh_plus(x): FastGelu(x)"""
    gate, fused, legal = _gate(x, tanh)
    product = (scaled(x, v) * gate, scaled(x * gate, v), x * scaled(gate, v))[order]
    return Sides(product, fused, when=[eq(v, real(0.5)), *legal])


_SIGMOID: dict[str, Any] = dict(x="b h", v=2 * _ROOT)


@rule(
    stage="fuse", contract="reassociated", expand=dict(kind=ROUNDED), holds=[_SIGMOID, _halved(_SIGMOID)],
    refuse=[*(dict(_SIGMOID, v=v) for v in (1.596, 1.702)), _halved(dict(_SIGMOID, v=1.5)), dict(_SIGMOID, x=""),
            _doubled(_SIGMOID)],
)  # fmt: skip
def gelu_sigmoid(x: Tensor, v: Float, kind: int) -> Sides:
    """x * sigmoid(2 sqrt(2/pi) * cubic(x)) = FastGelu(x)   as sigmoid(2 t) = (1 + tanh(t)) / 2"""
    when = [*about(v, x, 2 * _ROOT, kind, _DIGITS), *_runs(FAST_GELU, x)]
    return Sides(x * sigmoid(scaled(cubic(x), v)), apply(FAST_GELU, x), when=when)


@rule(
    stage="target", contract="reassociated", holds=[dict(x="b s h", b="h"), dict(x="h:float16", b="h:float16")],
    refuse=[dict(x="b s 1", b="h"), dict(x="b h", b="b h"), dict(x="b h", b="1"), dict(x="b h", b="")],
)  # fmt: skip
def bias_gelu(x: Tensor, b: Tensor) -> Sides:
    """Gelu(x + b) = BiasGelu(x, b)"""
    when = [eq(rank(b), 1), eq(dim(b, -1), dim(x, -1)), supported(BIAS_GELU.name, x)]
    return Sides(apply(GELU, x + b), apply(BIAS_GELU, x, b), when=when)


@rule(stage="fuse", contract="reassociated", holds=[dict(x="b h", alpha=1.702), dict(x="b h", alpha=3.0)])
def quick_gelu(x: Tensor, alpha: Float) -> Sides:
    """x * sigmoid(alpha * x) = QuickGelu(x, alpha)"""
    return Sides(x * sigmoid(scaled(x, alpha)), apply(QUICK_GELU, x, alpha), when=[supported(QUICK_GELU.name, x)])
