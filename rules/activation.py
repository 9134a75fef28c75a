"""Activations. Gelu and its approximations with tanh and sigmoid: Hendrycks & Gimpel (arXiv 1606.08415); ONNX Gelu-20.

`erf_plus(x)` is 1 + erf(x / sqrt(2)); `cubic(x)` is x + 0.044715 x^3, `tanh_plus(x)` 1 + tanh(sqrt(2/pi) cubic(x)).
"""

from __future__ import annotations

from ..egraph.engine.lang import (
    Float,
    Guard,
    Int,
    Sides,
    Tensor,
    apply,
    call,
    dtype,
    eq,
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
from ..egraph.terms.activation import FAST_GELU, GELU, QUICK_GELU
from ..egraph.terms.dtypes import FLOAT16

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


def _others(sample: dict[str, str], *constants: str) -> list[dict[str, str]]:
    """Another constant c, the last one so in float16 as well, another one, and either with more axes than x."""
    found = [dict(sample, c=c) for c in (*constants, sample["c"] + ":1 1 1")]
    return [*found, _halved(dict(sample, c=constants[-1])), *(dict(sample, o=o) for o in ("=2", "=1:1 1 1"))]


_OVER, _TIMES, _TANH = (dict(x="b h", c=c, o="=1") for c in (
    "=1.4142135623730951", "=0.7071067811865476", "=0.7978845608028654",
))  # fmt: skip


@rule(
    stage="marker", contract="reassociated", expand=dict(k=(0, 1), half=(0, 1)), holds=[_OVER, _halved(_OVER)],
    refuse=_others(_OVER, "=1.4146", "=1.4144", "=1.5"),
)  # fmt: skip
def erf_plus_div(x: Tensor, c: Tensor, o: Tensor, v: Float, k: int, half: int) -> Sides:
    """1 + erf(x / sqrt(2)) = erf_plus(x)"""
    return Sides(call("Erf", x / c) + o, erf_plus(x), when=[*_about(c, x, k, v, 2**0.5, half), *_one(o, x, k, 1.0)])


@rule(
    stage="marker", contract="reassociated", expand=dict(k=(0, 1), half=(0, 1)), holds=[_TIMES, _halved(_TIMES)],
    refuse=_others(_TIMES, "=0.7073", "=0.7072", "=0.75"),
)  # fmt: skip
def erf_plus_mul(x: Tensor, c: Tensor, o: Tensor, v: Float, k: int, half: int) -> Sides:
    """1 + erf(x * sqrt(1/2)) = erf_plus(x)"""
    return Sides(call("Erf", x * c) + o, erf_plus(x), when=[*_about(c, x, k, v, 0.5**0.5, half), *_one(o, x, k, 1.0)])


# ------------------------------------------------------------------------------------------------------- tanh and 1


_CUBE, _ROOT = 0.044715, 0.7978845608028654  # sqrt(2 / pi)


@rule(
    stage="marker", contract="reassociated", expand=dict(k=(0, 1)),
    holds=[dict(x="b h", c="=3"), dict(x="b h", c="=3:1")],
    refuse=[dict(x="b h", c="=2"), dict(x="b h", c="=3:1 1 1")],
)  # fmt: skip
def cube_pow(x: Tensor, c: Tensor, k: int) -> Sides:
    """x ** 3 = x * x * x"""
    return Sides(call("Pow", x, c), x * x * x, when=_one(c, x, k, 3.0))


_CUBIC = dict(x="b h", d="=0.044715")


@rule(
    stage="marker", contract="reassociated", expand=dict(inner=(0, 1), k=(0, 1), half=(0, 1)),
    holds=[_CUBIC, _halved(_CUBIC)],
    refuse=[dict(_CUBIC, d="=0.04472"), dict(_CUBIC, d="=0.04"), _halved(dict(_CUBIC, d="=0.04")),
            dict(_CUBIC, d="=0.044725"), dict(_CUBIC, d="=0.044715:1 1 1")],
)  # fmt: skip
def cubic_sum(x: Tensor, d: Tensor, v: Float, inner: int, k: int, half: int) -> Sides:
    """x + 0.044715 * (x*x*x) = x + 0.044715*x*x*x = cubic(x)"""
    cube = d * x * x * x if inner else d * (x * x * x)
    return Sides(x + cube, cubic(x), when=_about(d, x, k, v, _CUBE, half))


_FACTORED = dict(x="b h", c="", d="=0.044715", o="=1")


@rule(
    stage="marker", contract="reassociated", expand=dict(k=(0, 1), half=(0, 1)), holds=[_FACTORED, _halved(_FACTORED)],
    refuse=[dict(_FACTORED, d="=0.04472"), dict(_FACTORED, d="=0.04"), _halved(dict(_FACTORED, d="=0.04")),
            dict(_FACTORED, d="=0.044725"), dict(_FACTORED, o="=2"),
            dict(_FACTORED, d="=0.044715:1 1 1"), dict(_FACTORED, o="=1:1 1 1")],
)  # fmt: skip
def cubic_factored(x: Tensor, c: Tensor, d: Tensor, o: Tensor, v: Float, k: int, half: int) -> Sides:
    """(x * c) * (1 + 0.044715*x*x) = cubic(x) * c"""
    when = [*_about(d, x, k, v, _CUBE, half), *_one(o, x, k, 1.0)]
    return Sides((x * c) * (o + d * x * x), cubic(x) * c, when=when)


_SPREAD = dict(x="b h", c="=0.8", d="=0.035772")


@rule(
    stage="marker", contract="reassociated", expand=dict(k=(0, 1), half=(0, 1)), holds=[_SPREAD, _halved(_SPREAD)],
    refuse=[dict(_SPREAD, d="=0.0358"), dict(_SPREAD, c="=0.81"), _halved(dict(_SPREAD, d="=0.04")),
            dict(_SPREAD, c="=0.8:1 1 1"), dict(_SPREAD, d="=0.035772:1 1 1")],
)  # fmt: skip
def cubic_spread(x: Tensor, c: Tensor, d: Tensor, v: Float, w: Float, k: int, half: int) -> Sides:
    """c*x + d*(x*x*x) = c * cubic(x)   for d = 0.044715 c"""
    ratio = w / v
    alike = near(ratio, _CUBE, _CUBE * 2 * _TOLERANCE[1 - half])
    when = [eq(scalar(c), v), eq(scalar(d), w), alike, *thin(c, x, k), *thin(d, x, k)]
    when += [eq(dtype(x), FLOAT16)] if half else []
    return Sides(c * x + d * (x * x * x), c * cubic(x), when=when)


@rule(
    stage="marker", contract="reassociated", expand=dict(k=(0, 1), half=(0, 1)), holds=[_TANH, _halved(_TANH)],
    refuse=_others(_TANH, "=0.7981", "=0.798", "=0.7"),
)  # fmt: skip
def tanh_plus_cubic(x: Tensor, c: Tensor, o: Tensor, v: Float, k: int, half: int) -> Sides:
    """1 + tanh(sqrt(2/pi) * cubic(x)) = tanh_plus(x)"""
    when = [*_about(c, x, k, v, _ROOT, half), *_one(o, x, k, 1.0)]
    return Sides(call("Tanh", c * cubic(x)) + o, tanh_plus(x), when=when)


# -------------------------------------------------------------------------------------------------------------- fused


def _runs(op: Op, x: Tensor) -> list[Guard]:
    """The target has the operator, and for FastGelu, which takes no scalar, x has an axis."""
    return [supported(op.name, x), *([lt(0, rank(x))] if op is FAST_GELU else [])]


def _gate(x: Tensor, tanh: int) -> tuple[Tensor, Tensor, list[Guard]]:
    """The factor that makes twice a Gelu of x, the fused operator, and what says that the target runs it."""
    op = FAST_GELU if tanh else GELU
    return tanh_plus(x) if tanh else erf_plus(x), apply(op, x), _runs(op, x)


@rule(
    stage="fuse", contract="reassociated", expand=dict(tanh=(0, 1), order=(0, 1, 2), k=(0, 1)),
    holds=[dict(x="b h", c="=0.5"), dict(x="", c="=0.5")],
    refuse=[dict(x="b h", c="=0.4"), dict(x="b h", c="=0.5:1 1 1")],
)  # fmt: skip
def gelu(x: Tensor, c: Tensor, tanh: int, order: int, k: int) -> Sides:
    """x * 0.5 * erf_plus(x) = Gelu(x), in every order; with tanh_plus(x): FastGelu(x)"""
    gate, fused, legal = _gate(x, tanh)
    product = (x * c * gate, x * gate * c, x * (c * gate))[order]
    return Sides(product, fused, when=[*_one(c, x, k, 0.5), *legal])


@rule(
    stage="fuse", contract="reassociated", expand=dict(tanh=(0, 1), k=(0, 1)),
    holds=[dict(x="b h", c="=2"), dict(x="", c="=2")], refuse=[dict(x="b h", c="=3"), dict(x="b h", c="=2:1 1 1")],
)  # fmt: skip
def gelu_halved(x: Tensor, c: Tensor, tanh: int, k: int) -> Sides:
    """(x * erf_plus(x)) / 2 = Gelu(x); with tanh_plus(x): FastGelu(x)"""
    gate, fused, legal = _gate(x, tanh)
    return Sides((x * gate) / c, fused, when=[*_one(c, x, k, 2.0), *legal])


_SIGMOID = dict(x="b h", c="=1.5957691216057308")


@rule(
    stage="fuse", contract="reassociated", expand=dict(k=(0, 1), half=(0, 1)), holds=[_SIGMOID, _halved(_SIGMOID)],
    refuse=[dict(_SIGMOID, c="=1.596"), dict(_SIGMOID, c="=1.702"), _halved(dict(_SIGMOID, c="=1.5")),
            dict(_SIGMOID, c="=1.5957691216057308:1 1 1"), dict(_SIGMOID, x="")],
)  # fmt: skip
def gelu_sigmoid(x: Tensor, c: Tensor, v: Float, k: int, half: int) -> Sides:
    """x * sigmoid(2 sqrt(2/pi) * cubic(x)) = FastGelu(x)   as sigmoid(2 t) = (1 + tanh(t)) / 2"""
    when = [*_about(c, x, k, v, 2 * _ROOT, half), *_runs(FAST_GELU, x)]
    return Sides(x * tensor("Sigmoid", c * cubic(x)), apply(FAST_GELU, x), when=when)


@rule(
    stage="fuse", contract="reassociated", expand=dict(k=(0, 1)),
    holds=[dict(x="b h", c="=1.702"), dict(x="b h", c="=3")],
    refuse=[dict(x="b h", c="h"), dict(x="b h", c="=1.702:1 1 1")],
)  # fmt: skip
def quick_gelu(x: Tensor, c: Tensor, alpha: Float, k: int) -> Sides:
    """x * sigmoid(alpha * x) = QuickGelu(x, alpha)"""
    when = [eq(scalar(c), alpha), *thin(c, x, k), supported(QUICK_GELU.name, x)]
    return Sides(x * tensor("Sigmoid", x * c), apply(QUICK_GELU, x, alpha), when=when)
