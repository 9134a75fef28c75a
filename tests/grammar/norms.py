"""RMSNorm, x / sqrt(mean(x^2) + eps) * w, and LayerNorm, which is that of x - mean(x), plus b; over the last axis."""

from __future__ import annotations

import numpy as np
from grammar.choices import Drawing
from grammar.writer import F32, F64, Arrays, Spelling, Writer

WIDTH = 16
SIZES = [{"batch": 2, "seq": 5}, {"batch": 1, "seq": 1}, {"batch": 3, "seq": 4}]
RANK = 3


def square(w: Writer, x: str) -> str:
    options = ("x * x", "x ^ 2.0", "x ^ int64 2", "x ^ int32 2")
    how = w.draw.choice("square", options)
    if w.draw.wrong("norm.cube"):
        return w.Pow(x, w.num(3))
    if how == "x * x":
        return w.Mul(x, x)
    return w.Pow(x, w.num(2, {"x ^ int64 2": np.int64, "x ^ int32 2": np.int32}.get(how)))


def mean(w: Writer, x: str, width: int, rank: int) -> str:
    """The mean of the last axis, which stays as an axis of size 1."""
    options = ("ReduceMean", "ReduceMean and Unsqueeze", "positive axis", "sum / n", "sum * (1/n)", "sum / n of Shape",
               "sum * (1/n) of Shape", "n of Shape times 1/n", "MatMul of ones / n")  # fmt: skip
    axis = -1
    if w.draw.wrong("norm.axis"):
        return w.reduce("ReduceMean", x, 1)
    how = w.draw.choice("mean", options)
    if how == "ReduceMean and Unsqueeze":
        return w.unsqueeze(w.reduce("ReduceMean", x, -1, keep=False), -1)
    if how in ("ReduceMean", "positive axis"):
        return w.reduce("ReduceMean", x, rank - 1 if how == "positive axis" else axis)
    if how == "MatMul of ones / n":
        return w.MatMul(x, w.const(np.full((width, 1), 1 / width)))
    total = w.reduce("ReduceSum", x, axis)
    n = width + 1 if w.draw.wrong("norm.count") else width
    if how == "sum / n":
        return w.Div(total, w.num(n))
    if how == "sum * (1/n)":
        return w.mul(total, w.num(1 / n))
    size = w.cast(w.squeeze(w.size(x, rank - 1, rank), 0), w.kind)
    if how == "sum / n of Shape":
        return w.Div(total, size)
    if how == "sum * (1/n) of Shape":
        return w.mul(total, w.Div(w.num(1), size))
    return w.mul(total, w.Reciprocal(size))


def guarded(w: Writer, v: str) -> str:
    """A variance, which is no less than 0."""
    match w.draw.choice("variance", ("as it is", "Max(v, 0)", "Relu", "Clip at 0")):
        case "Max(v, 0)":
            return w.Max(v, w.num(0))
        case "Relu":
            return w.Relu(v)
        case "Clip at 0":
            return w.Clip(v, w.const(0))
    return v


def over_root(w: Writer, x: str, v: str, eps: float, scale: str) -> tuple[str, str]:
    """x / sqrt(v + eps), and 1 / sqrt(v + eps) times the scale where that is multiplied first; "" if not."""
    if w.draw.wrong("norm.eps outside"):
        return w.Div(x, w.add(w.Sqrt(v), w.num(0.3))), ""
    if w.draw.wrong("norm.eps subtracted"):
        return w.Div(x, w.Sqrt(w.Abs(w.Sub(v, w.num(0.1))))), ""
    total = w.add(v, w.num(eps))
    if w.draw.wrong("norm.root"):
        return w.Div(x, w.Pow(total, w.num(0.4))), ""
    if w.draw.wrong("norm.no root"):
        return w.Div(x, total), ""
    first = w.draw.choice("norm.order", ("x r, then w", "r w, then x", "x w, then r"))
    options = ["1 / sqrt v", "Reciprocal(Sqrt)", "v ^ -0.5", "sqrt(1 / v)", "sqrt(Reciprocal)", "Reciprocal(v ^ 0.5)",
               "1 / v ^ 0.5"]  # fmt: skip
    if first == "x r, then w":
        options = ["x / sqrt v", *options, "x / v ^ 0.5"]
    how = w.draw.choice("root", options)
    if how in ("x / sqrt v", "x / v ^ 0.5"):
        return w.Div(x, w.Sqrt(total) if how == "x / sqrt v" else w.Pow(total, w.num(0.5))), ""
    one = w.num(1)
    match how:
        case "1 / sqrt v":
            r = w.Div(one, w.Sqrt(total))
        case "Reciprocal(Sqrt)":
            r = w.Reciprocal(w.Sqrt(total))
        case "v ^ -0.5":
            r = w.Pow(total, w.num(-0.5))
        case "sqrt(1 / v)":
            r = w.Sqrt(w.Div(one, total))
        case "sqrt(Reciprocal)":
            r = w.Sqrt(w.Reciprocal(total))
        case "Reciprocal(v ^ 0.5)":
            r = w.Reciprocal(w.Pow(total, w.num(0.5)))
        case _:
            r = w.Div(one, w.Pow(total, w.num(0.5)))
    if first == "r w, then x" and scale:
        r = w.mul(r, scale)
        return w.mul(x, r), r
    if first == "x w, then r" and scale:
        return w.mul(w.mul(x, scale), r), r
    return w.mul(x, r), ""


def _wide(w: Writer) -> bool:
    """Whether it is computed in a wider type."""
    return w.draw.choice("widened", ("no", "yes")) == "yes"


def _weight(w: Writer, array: np.ndarray, rank: int) -> str:
    if w.draw.choice("weight.shape", ("rank 1", "all axes")) == "all axes":
        array = array.reshape((1,) * (rank - 1) + array.shape)
    if w.draw.choice("weight", ("constant", "1 + constant")) == "1 + constant":
        return w.add(w.const(array - np.asarray(1, array.dtype)), w.num(1))
    return w.const(array)


def _kind(w: Writer) -> np.dtype:
    return F64 if w.element == F64 else F32


def rms(w: Writer, x: str, width: int, rank: int, weight: np.ndarray, eps: float) -> str:
    wide = _wide(w)
    with w.computing(_kind(w) if wide else w.element):
        late = wide and w.draw.choice("narrowed", ("before the weight", "after the weight")) == "before the weight"
        y = w.cast(x, w.kind) if wide else x
        other = w.add(y, w.num(0.5)) if w.draw.wrong("norm.of another") else y
        v = guarded(w, mean(w, square(w, other), width, rank))
        scale = "" if late else _weight(w, weight, rank)
        y, used = over_root(w, y, v, eps, scale)
        if scale and not used:
            y = w.mul(y, scale)
    if wide:
        y = w.cast(y, w.element)
    return w.mul(y, _weight(w, weight, rank)) if late else y


def layer(w: Writer, x: str, width: int, rank: int, weight: np.ndarray, bias: np.ndarray | None, eps: float) -> str:
    wide = _wide(w)
    with w.computing(_kind(w) if wide else w.element):
        y = w.cast(x, w.kind) if wide else x
        m = mean(w, y, width, rank)

        def centered() -> str:
            if w.draw.wrong("norm.not centered"):
                return w.Sub(y, w.mul(m, w.num(0.5)))
            return w.Sub(y, m) if w.draw.choice("centered", ("x - m", "x + -m")) == "x - m" else w.add(y, w.negative(m))

        how = w.draw.choice("moment", ("mean (x-m)^2", "x-m twice", "mean x^2 - m^2", "mean (m-x)^2"))
        d = centered()
        match how:
            case "x-m twice":
                v = mean(w, square(w, centered()), width, rank)
            case "mean x^2 - m^2":
                v = w.Sub(mean(w, square(w, y), width, rank), square(w, m))
            case "mean (m-x)^2":
                v = mean(w, square(w, w.Sub(m, y)), width, rank)
            case _:
                v = mean(w, square(w, d), width, rank)
        v = guarded(w, v)
        scale = _weight(w, weight, rank)
        shift = None if bias is None else w.const(bias)
        if w.draw.wrong("norm.eps outside"):
            return _back(w, w.mul(w.Div(d, w.add(w.Sqrt(v), w.num(0.3))), scale), wide)
        if shift and w.draw.choice("affine", ("d r w + b", "x r + (b - m r)")) == "x r + (b - m r)":
            y = _keras(w, y, m, v, eps, scale, shift)
        else:
            y, used = over_root(w, d, v, eps, scale)
            y = y if used else w.mul(y, scale)
            y = w.add(y, shift) if shift else y
    return _back(w, y, wide)


def _back(w: Writer, y: str, wide: bool) -> str:
    return w.cast(y, w.element) if wide else y


def _keras(w: Writer, x: str, m: str, v: str, eps: float, scale: str, shift: str) -> str:
    """x r + (b - m r), r with the weight in it, as Keras writes it."""
    total = w.add(v, w.num(eps))
    r = w.Reciprocal(w.Sqrt(total)) if w.draw.choice("keras.root", ("Reciprocal", "Div")) == "Reciprocal" else w.Div(
        w.num(1), w.Sqrt(total)
    )  # fmt: skip
    r = w.mul(r, scale)
    sign = w.draw.choice("keras.sign", ("b - m r", "b + -m r", "x r - (m r - b)", "b + -(m r)"))
    if w.draw.wrong("norm.keras sign"):
        return w.add(w.mul(x, r), w.add(shift, w.mul(m, r)))
    match sign:
        case "b + -m r":
            return w.add(w.mul(x, r), w.add(shift, w.mul(w.negative(m), r)))
        case "x r - (m r - b)":
            return w.Sub(w.mul(x, r), w.Sub(w.mul(m, r), shift))
        case "b + -(m r)":
            return w.add(w.mul(x, r), w.add(shift, w.negative(w.mul(m, r))))
    first = w.draw.choice("keras.order", ("x r first", "b - m r first"))
    apart = w.Sub(shift, w.mul(m, r))
    return w.Add(w.mul(x, r), apart) if first == "x r first" else w.Add(apart, w.mul(x, r))


def normalized(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, eps: float) -> np.ndarray:
    """In float64; centered if there is a bias."""
    d = x - x.mean(-1, keepdims=True) if bias is not None else x
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + eps) * weight + (0 if bias is None else bias)


def _expected(w: Writer, fused: str) -> dict[str, int]:
    """Nothing in float64, for which the attribute epsilon, a float32, is too coarse."""
    return {} if w.element == F64 else {fused: 1}


def _eps(w: Writer) -> float:
    return float(w.draw.choice("eps", ("1e-5", "1e-3", "1e-2")))


def rmsnorm(draw: Drawing, prefix: str = "") -> Spelling:
    w = Writer(draw, prefix, SIZES)
    weight, eps = w.weights(WIDTH, low=0.5, high=1.5), _eps(w)
    x = w.input("x", "batch", "seq", WIDTH)
    w.output(rms(w, x, WIDTH, RANK, weight, eps), RANK)

    def reference(f: Arrays) -> list[np.ndarray]:
        return [normalized(f["x"], weight.astype(F64), None, eps)]

    return w.finish(reference, _expected(w, "RMSNormalization"), WIDTH)


def layernorm(draw: Drawing, prefix: str = "") -> Spelling:
    w = Writer(draw, prefix, SIZES)
    weight, eps = w.weights(WIDTH, low=0.5, high=1.5), _eps(w)
    bias = w.weights(WIDTH) if draw.choice("bias", ("yes", "no")) == "yes" else None
    x = w.input("x", "batch", "seq", WIDTH)
    w.output(layer(w, x, WIDTH, RANK, weight, bias, eps), RANK)

    def reference(f: Arrays) -> list[np.ndarray]:
        shift = np.zeros(WIDTH) if bias is None else bias.astype(F64)
        return [normalized(f["x"], weight.astype(F64), shift, eps)]

    return w.finish(reference, _expected(w, "LayerNormalization"), WIDTH)
