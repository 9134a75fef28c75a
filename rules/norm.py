"""Normalization over the last axis.

Sources: RMSNorm (arXiv 1910.07467), ONNX LayerNormalization-17, RMSNormalization-23.

`rnorm(x, eps)` is x / sqrt(mean(x^2) + eps); a layer normalization is the rnorm of x minus its mean.
"""

from __future__ import annotations

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
    float_of,
    ints,
    lt,
    num,
    rank,
    real,
    rule,
    scalar,
    squeeze,
    supported,
    tensor,
    thin,
)
from ..egraph.terms.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64

_LAST = (-1,)


def mean(x: Tensor) -> Tensor:
    return tensor("ReduceMean", x, _LAST, 1)


def rsqrt(x: Tensor) -> Tensor:
    return tensor("RSqrt", x)


def rnorm(x: Tensor, eps: Float) -> Tensor:
    return tensor("RNorm", x, eps)


def center(x: Tensor) -> Tensor:
    return tensor("Center", x)


def sqrt(x: Tensor) -> Tensor:
    return tensor("Sqrt", x)


def reciprocal(x: Tensor) -> Tensor:
    return tensor("Reciprocal", x)


def filled(value: float, to: Int, h: Int) -> Tensor:
    """The constant vector of h equal numbers of element type to."""
    return tensor("Expand", call("FConst", real(value), to), ints(h))


# ------------------------------------------------------------------------------------------------ the inverse of a root


@rule(stage="marker", contract="reassociated", holds=dict(x="positive b s"))
def rsqrt_reciprocal(x: Tensor) -> Sides:
    """1 / sqrt(x), by Reciprocal = rsqrt(x)"""
    return Sides(reciprocal(sqrt(x)), rsqrt(x))


@rule(
    stage="marker", contract="reassociated", expand=dict(k=(0, 1)),
    holds=[dict(x="positive b s", c="=1"), dict(x="positive b s", c="=1:1")],
    refuse=[dict(x="positive b s", c="=2")],
)  # fmt: skip
def rsqrt_div(x: Tensor, c: Tensor, k: int) -> Sides:
    """1 / sqrt(x), by Div = rsqrt(x)"""
    return Sides(c / sqrt(x), rsqrt(x), when=[eq(scalar(c), real(1.0)), *thin(c, x, k)])


@rule(
    stage="marker", contract="reassociated", expand=dict(k=(0, 1)),
    holds=[dict(x="b s h", e="=1e-6", c="=-0.5"), dict(x="b s h", e="=1e-6:1", c="=-0.5:1")],
    refuse=[dict(x="b s h", e="=1e-6", c="=0.5"), dict(x="b s h", e="=1e-6", c="=-0.5:1 1 1 1"),
            dict(x="b s h", e="=0", c="=-0.5"), dict(x="b s h", e="b s 1", c="=-0.5")],
)  # fmt: skip
def rsqrt_pow(x: Tensor, e: Tensor, c: Tensor, eps: Float, k: int) -> Sides:
    """(mean(x*x) + eps) ** -0.5 = rsqrt(mean(x*x) + eps)   for eps above zero: of -inf and -0.0 they differ"""
    square = mean(x * x) + e
    when = [eq(scalar(c), real(-0.5)), *thin(c, x, k), eq(scalar(e), eps), lt(real(0.0), eps)]
    return Sides(call("Pow", square, c), rsqrt(square), when=when)


# ------------------------------------------------------------------------------------------------------------ the mean


@rule(holds=dict(x="b s h"))
def mean_squeezed(x: Tensor) -> Sides:
    """mean(x) without its axis = squeeze(mean(x), -1)"""
    return Sides(tensor("ReduceMean", x, _LAST, 0), squeeze(mean(x), -1))


@rule(
    stage="marker", contract="reassociated", holds=[dict(x="b s h", c="=2", h=2), dict(x="b 3", c="=3:1", h=3)],
    expand=dict(k=(0, 1)),
    refuse=[dict(x="b s h", c="=3", h=2), dict(x="b s h", c="=2:1 1 1 1", h=2)],
)  # fmt: skip
def mean_sum(x: Tensor, c: Tensor, h: Int, k: int) -> Sides:
    """sum(x) / n = mean(x)   for a last axis of n"""
    total = tensor("ReduceSum", x, _LAST, 1)
    return Sides(total / c, mean(x), when=[eq(dim(x, -1), num(h)), eq(scalar(c), float_of(h)), *thin(c, x, k)])


# ----------------------------------------------------------------------------------------------------------- rnorm, RMS


@rule(
    stage="marker", contract="reassociated", expand=dict(k=(0, 1)),
    holds=[dict(x="b s h", c="=2"), dict(x="b s h", c="=2:1")],
    refuse=[dict(x="b s h", c="=3"), dict(x="b s h", c="=2:1 1 1 1")],
)  # fmt: skip
def square_pow(x: Tensor, c: Tensor, k: int) -> Sides:
    """x ** 2 = x * x"""
    return Sides(call("Pow", x, c), x * x, when=[eq(scalar(c), real(2.0)), *thin(c, x, k)])


@rule(
    stage="fuse", contract="reassociated", expand=dict(k=(0, 1)),
    holds=[dict(x="b s h", e="=1e-6"), dict(x="b s h", e="=1e-6:1")],
    refuse=[dict(x="b s h", e="b s 1")],
)  # fmt: skip
def rnorm_mul(x: Tensor, e: Tensor, eps: Float, k: int) -> Sides:
    """x * rsqrt(mean(x*x) + eps) = rnorm(x, eps)"""
    return Sides(x * rsqrt(mean(x * x) + e), rnorm(x, eps), when=[eq(scalar(e), eps), *thin(e, x, k)])


@rule(
    stage="fuse", contract="reassociated", expand=dict(k=(0, 1)),
    holds=[dict(x="b s h", e="=1e-6"), dict(x="b s h", e="=1e-6:1")],
    refuse=[dict(x="b s h", e="b s 1")],
)  # fmt: skip
def rnorm_div(x: Tensor, e: Tensor, eps: Float, k: int) -> Sides:
    """x / sqrt(mean(x*x) + eps) = rnorm(x, eps)"""
    return Sides(x / sqrt(mean(x * x) + e), rnorm(x, eps), when=[eq(scalar(e), eps), *thin(e, x, k)])


@rule(
    stage="fuse", contract="reassociated", expand=dict(form=(0, 1, 2), k=(0, 1)),
    holds=[dict(x="b s h", w="h", e="=1e-6"), dict(x="h", w="b s 1", e="=1e-6:1")],
    refuse=[dict(x="b s h", w="h", e="b s 1")],
)  # fmt: skip
def rnorm_weighted(x: Tensor, w: Tensor, e: Tensor, eps: Float, form: int, k: int) -> Sides:
    """(x * w) * rsqrt(mean(x*x) + eps) = (x * w) / sqrt(mean(x*x) + eps) = x * (w * rsqrt(..)) = rnorm(x, eps) * w"""
    square = mean(x * x) + e
    product = ((x * w) * rsqrt(square), (x * w) / sqrt(square), x * (w * rsqrt(square)))[form]
    return Sides(product, rnorm(x, eps) * w, when=[eq(scalar(e), eps), *thin(e, x, k)])


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
    return Sides(rnorm(x, eps), call("RMSNorm", x, filled(1.0, to, h), eps), when=when)


# --------------------------------------------------------------------------------------------------- LayerNormalization


@rule(
    stage="fuse", contract="reassociated", expand=dict(to=(FLOAT16, FLOAT32, FLOAT64, BFLOAT16)),
    holds=[dict(x="b s h"), dict(x="b s h:float16")],
    refuse=[dict(x="b s h:int64")],
)  # fmt: skip
def center_sub(x: Tensor, to: int) -> Sides:
    """x - mean(x) = center(x)   for floating x: the mean of integers is rounded"""
    return Sides(x - mean(x), center(x), when=[eq(dtype(x), to)])


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
