"""Normalization over the last axis.

Sources: RMSNorm (arXiv 1910.07467), ONNX LayerNormalization-17, RMSNormalization-23.

`rnorm(x, eps)` is x / sqrt(mean(x^2) + eps); a layer normalization is the rnorm of x minus its mean.
"""

from __future__ import annotations

from typing import Any

from ..egraph.engine.assumption import NO_CANCELLATION, SUMS_REORDERED
from ..egraph.engine.lang import (
    Float,
    Int,
    Sides,
    Tensor,
    call,
    cast,
    dim,
    dtype,
    eq,
    filled,
    float_of,
    floating,
    ints,
    le,
    ne,
    num,
    rank,
    real,
    rule,
    scalar,
    sizes,
    squeeze,
    supported,
    tensor,
    thin,
)
from ..egraph.terms.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from .numbers import ROUNDED, about
from .powers import rsqrt, sqrt
from .scales import scaled

_LAST = (-1,)


def mean(x: Tensor) -> Tensor:
    return tensor("ReduceMean", x, _LAST, 1)


def rnorm(x: Tensor, eps: Float) -> Tensor:
    return tensor("RNorm", x, eps)


def center(x: Tensor) -> Tensor:
    return tensor("Center", x)


def vector(value: float, to: Int, h: Int) -> Tensor:
    """The constant vector of h equal numbers of element type to."""
    return tensor("Expand", call("FConst", real(value), to), ints(h))


# ------------------------------------------------------------------------------------------------------------ the mean


@rule(holds=dict(x="b s h"))
def mean_squeezed(x: Tensor) -> Sides:
    """mean(x) without its axis = squeeze(mean(x), -1)"""
    return Sides(tensor("ReduceMean", x, _LAST, 0), squeeze(mean(x), -1))


@rule(
    stage="marker", contract="reassociated", expand=dict(kind=ROUNDED),
    holds=[dict(x="b s h", v=0.5, h=2), dict(x="b 3", v=0.33333334, h=3), dict(x="b 3:float16", v=0.3333, h=3)],
    refuse=[dict(x="b s h", v=0.5, h=3), dict(x="b s h", v=0.5001, h=2), dict(x="b s h:float16", v=0.501, h=2),
            dict(x="b s h:float64", v=0.5, h=2)],
)  # fmt: skip
def mean_sum(x: Tensor, h: Int, v: Float, kind: int) -> Sides:
    """sum(x) * (1/n) = mean(x)   for a last axis of n"""
    when = [eq(dim(x, -1), num(h)), *about(v * float_of(h), x, 1.0, kind)]
    return Sides(scaled(tensor("ReduceSum", x, _LAST, 1), v), mean(x), when=when)


@rule(
    stage="marker", contract="reassociated", holds=[dict(x="b s 4", c="=0.25:4 1")],
    refuse=[dict(x="b s 4", c="4 1"), dict(x="b s 4", c="=0.25:4 2"), dict(x="b 2 s 4", c="=0.25:2 4 1"),
            dict(x="b s 4:float64", c="=0.25:4 1:float64")],
)  # fmt: skip
def sum_matmul(x: Tensor, c: Tensor, v: Float) -> Sides:
    """x @ c = sum(x) * v   for a column c of copies of v, which are added in another order"""
    when = [ne(dtype(x), FLOAT64), eq(filled(c), v), eq(rank(c), 2), eq(dim(c, -1), num(1))]
    return Sides(x @ c, scaled(tensor("ReduceSum", x, _LAST, 1), v), when=when)


# ----------------------------------------------------------------------------------------------------------- rnorm, RMS


@rule(
    stage="fuse", contract="reassociated",
    holds=[dict(x="b s h", e="=1e-6"), dict(x="b s h", e="=1e-6:1")],
    refuse=[dict(x="b s h", e="b s 1")],
)  # fmt: skip
def rnorm_mul(x: Tensor, e: Tensor, eps: Float) -> Sides:
    """x * rsqrt(mean(x*x) + eps) = rnorm(x, eps)"""
    return Sides(x * rsqrt(mean(x * x) + e), rnorm(x, eps), when=[eq(scalar(e), eps), thin(e, x)])


@rule(stage="fuse", expand=dict(inverse=(0, 1)), holds=[dict(x="b s h"), dict(x="b h:float16")])
def root_mean_square(x: Tensor, to: Int, inverse: int) -> Sides:
    """sqrt(mean(x*x)) = sqrt(mean(x*x) + 0), and so of rsqrt: eps is 0"""
    root, square = (rsqrt if inverse else sqrt), mean(x * x)
    return Sides(root(square), root(square + call("FConst", real(0.0), to)), when=[eq(dtype(x), to)])


@rule(
    stage="fuse", contract="reassociated",
    holds=[dict(x="b s h", e="=1e-6"), dict(x="b s h", e="=1e-6:1")],
    refuse=[dict(x="b s h", e="b s 1")],
)  # fmt: skip
def rnorm_div(x: Tensor, e: Tensor, eps: Float) -> Sides:
    """x / sqrt(mean(x*x) + eps) = rnorm(x, eps)"""
    return Sides(x / sqrt(mean(x * x) + e), rnorm(x, eps), when=[eq(scalar(e), eps), thin(e, x)])


@rule(
    stage="fuse", contract="reassociated", expand=dict(form=(0, 1, 2)),
    holds=[dict(x="b s h", w="h", e="=1e-6"), dict(x="h", w="b s 1", e="=1e-6:1")],
    refuse=[dict(x="b s h", w="h", e="b s 1")],
)  # fmt: skip
def rnorm_weighted(x: Tensor, w: Tensor, e: Tensor, eps: Float, form: int) -> Sides:
    """(x * w) * rsqrt(mean(x*x) + eps) = (x * w) / sqrt(mean(x*x) + eps) = x * (w * rsqrt(..)) = rnorm(x, eps) * w"""
    square = mean(x * x) + e
    product = ((x * w) * rsqrt(square), (x * w) / sqrt(square), x * (w * rsqrt(square)))[form]
    return Sides(product, rnorm(x, eps) * w, when=[eq(scalar(e), eps), thin(e, x)])


@rule(
    stage="fuse", contract="reassociated", expand=dict(to=(FLOAT16, BFLOAT16)),
    holds=dict(x="b s h:float16", eps=1e-5), refuse=[dict(x="b s h", eps=1e-5)],
)  # fmt: skip
def rnorm_wide(x: Tensor, eps: Float, to: int) -> Sides:
    """cast(rnorm(cast(x, f32), eps), type of x) = rnorm(x, eps), which computes in f32 itself"""
    return Sides(cast(rnorm(cast(x, FLOAT32), eps), to), rnorm(x, eps), when=[eq(dtype(x), to)])


@rule(
    stage="fuse", contract="reassociated", holds=[dict(x="b s h", w="h", eps=1e-5), dict(x="b s h", w="h", eps=0.5)],
    refuse=[dict(x="b s 1", w="h", eps=1e-5), dict(x="b s h", w="1", eps=1e-5), dict(x="h", w="b h", eps=1e-5)],
)  # fmt: skip
def rms_norm(x: Tensor, w: Tensor, eps: Float) -> Sides:
    """rnorm(x, eps) * w = RMSNormalization(x, w, eps)"""
    when = [eq(rank(w), 1), eq(dim(w, -1), dim(x, -1)), eq(dtype(w), dtype(x)), supported("RMSNorm", x)]
    return Sides(rnorm(x, eps) * w, call("RMSNorm", x, w, eps), when=when)


@rule(stage="fuse", contract="reassociated", holds=[dict(x="b s h", eps=1e-5), dict(x="b s h:float16", eps=1e-5)])
def rms_norm_plain(x: Tensor, h: Int, to: Int, eps: Float) -> Sides:
    """rnorm(x, eps) = RMSNormalization(x, ones, eps)"""
    when = [eq(dim(x, -1), num(h)), eq(dtype(x), to), supported("RMSNorm", x)]
    return Sides(rnorm(x, eps), call("RMSNorm", x, vector(1.0, to, h), eps), when=when)


# --------------------------------------------------------------------------------------------------- LayerNormalization


@rule(
    stage="fuse", contract="reassociated", expand=dict(turned=(0, 1)),
    holds=dict(x="b s h"), refuse=[dict(x="b s h:int64")],
)  # fmt: skip
def center_sub(x: Tensor, turned: int) -> Sides:
    """x - mean(x) = center(x), and mean(x) - x = -center(x)   for floating x: the mean of integers is rounded"""
    whole, middle = (-center(x), mean(x) - x) if turned else (center(x), x - mean(x))
    return Sides(middle, whole, when=[floating(x)])


@rule(stage="fuse", contract="finite", assumes=[NO_CANCELLATION], holds=dict(x="b s h"), refuse=[dict(x="b s h:int64")])
def variance_moments(x: Tensor) -> Sides:
    """mean(x*x) - mean(x)**2 = mean(center(x)**2)   which rounds less, as nothing cancels"""
    m = mean(x)
    return Sides(mean(x * x) - m * m, mean(center(x) * center(x)), when=[floating(x)])


@rule(
    stage="fuse", contract="finite", holds=[dict(x="b s h", r="b s 1", b="h"), dict(x="b s h", r="h", b="b s h")],
    refuse=[dict(x="b s h:int64", r="b s 1:int64", b="h:int64")],
)  # fmt: skip
def center_affine(x: Tensor, r: Tensor, b: Tensor) -> Sides:
    """x*r + (b - mean(x)*r) = center(x)*r + b"""
    return Sides(x * r + (b - mean(x) * r), center(x) * r + b, when=[floating(x)])


@rule(
    stage="fuse", contract="reassociated",
    holds=[dict(x="b s h", w="h", eps=1e-5), dict(x="b h:float16", w="h:float16", eps=1e-5)],
)  # fmt: skip
def layer_norm_plain(x: Tensor, w: Tensor, eps: Float) -> Sides:
    """RMSNormalization(center(x), w, eps) = LayerNormalization(x, w, eps)"""
    unbiased = call("LayerNorm", x, w, tensor("Absent"), eps)
    return Sides(call("RMSNorm", center(x), w, eps), unbiased, when=[supported("LayerNorm", x)])


@rule(
    stage="fuse", contract="reassociated",
    holds=[dict(x="b s h", w="h", b="h", eps=1e-5), dict(x="b s h", w="h", b="h", eps=0.5)],
    refuse=[dict(x="b s h", w="h", b="1", eps=1e-5), dict(x="h", w="h", b="b h", eps=1e-5)],
)  # fmt: skip
def layer_norm(x: Tensor, w: Tensor, b: Tensor, eps: Float) -> Sides:
    """LayerNormalization(x, w, eps) + b = LayerNormalization(x, w, b, eps)"""
    when = [eq(rank(b), 1), eq(dim(b, -1), dim(x, -1)), eq(dtype(b), dtype(x))]
    return Sides(call("LayerNorm", x, w, tensor("Absent"), eps) + b, call("LayerNorm", x, w, b, eps), when=when)


# ----------------------------------------------------------------------------------------------------------- skip norms

_SUM: dict[str, Any] = dict(x="b s h", skip="b s h", w="h", b="h", eps=1e-5)
_HALVES = {name: text if name == "eps" else f"{text}:float16" for name, text in _SUM.items()}
_NO_SUM = [dict(_SUM, skip="b 1 h"), dict(_SUM, skip="h"), dict(_SUM, x="b 1 h"), dict(_SUM, x="h", skip="h"),
           dict(_SUM, x="b 2 s h", skip="b 2 s h"), dict(_SUM, eps=-1e-5)]  # fmt: skip


def _norms(total: Tensor, x: Tensor, skip: Tensor, bias: Tensor, w: Tensor, b: Tensor, eps: Float, kind: int) -> Any:
    """The norm of a total, and the node that makes both: of RMSNorm (0), of LayerNorm without b (1) or with it (2)."""
    if kind == 0:
        return tensor("RMSNorm", total, w, eps), call("SkipRMSNorm", x, skip, w, bias, eps)
    shift = b if kind == 2 else tensor("Absent")
    return tensor("LayerNorm", total, w, shift, eps), call("SkipLayerNorm", x, skip, w, shift, bias, eps)


@rule(
    stage="target", contract="reassociated", expand=dict(kind=(0, 1, 2), r=(2, 3)),
    holds=[_SUM, dict(_SUM, x="s h", skip="s h", eps=0.5), _HALVES], refuse=_NO_SUM,
)  # fmt: skip
def skip_norm(x: Tensor, skip: Tensor, w: Tensor, b: Tensor, eps: Float, kind: int, r: int) -> Sides:
    """norm(x + skip, w, eps) = the first result of a skip norm of x and skip, whose last is x + skip"""
    normed, node = _norms(x + skip, x, skip, tensor("Absent"), w, b, eps, kind)
    when = [eq(rank(x), r), eq(sizes(x), sizes(skip)), le(real(0.0), eps),
            supported("SkipLayerNorm" if kind else "SkipRMSNorm", x)]  # fmt: skip
    states = [(x + skip, tensor("Out", node, 3))]
    return Sides(normed, tensor("Out", node, 0), when=when, states=states, once=True)


@rule(
    stage="target", contract="finite", assumes=[SUMS_REORDERED], expand=dict(kind=(0, 1, 2), place=(0, 1)),
    holds=[dict(_SUM, v="h"), {**_HALVES, "v": "h:float16"}],
    refuse=[dict(_SUM, x="b s 1", v="h"), dict(_SUM, v="s h"), dict(_SUM, v="1")],
)  # fmt: skip
def skip_norm_bias(
    x: Tensor, skip: Tensor, v: Tensor, w: Tensor, b: Tensor, eps: Float, kind: int, place: int
) -> Sides:  # fmt: skip
    """skip norm of x + v and skip, or of skip and x + v, = skip norm of x and skip with the bias v; so are the sums"""
    both = (skip, x + v) if place else (x + v, skip)
    _, apart = _norms(x, *both, tensor("Absent"), w, b, eps, kind)
    _, node = _norms(x, x, skip, v, w, b, eps, kind)
    when = [eq(rank(v), 1), eq(dim(v, -1), dim(x, -1))]
    return Sides(tensor("Out", apart, 0), tensor("Out", node, 0), when=when,
                 states=[(tensor("Out", apart, 3), tensor("Out", node, 3))])  # fmt: skip
