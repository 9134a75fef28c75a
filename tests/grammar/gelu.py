"""GELU: x (1 + erf(x / sqrt 2)) / 2, its form with tanh(sqrt(2/pi) (x + 0.044715 x^3)), and x sigmoid(a x)."""

from __future__ import annotations

import numpy as np
from grammar.choices import Drawing
from grammar.norms import square
from grammar.writer import F32, Spelling, Writer
from scipy.special import erf as exact_erf

CUBIC = 0.044715
SIZES = [{"batch": 2, "seq": 5}, {"batch": 1, "seq": 1}, {"batch": 3, "seq": 4}]
OUTER = ("(x/2) gate", "(x gate)/2", "x (gate/2)", "x gate / 2", "x/2 + (x/2) f", "x (1/2 + f/2)", "(gate/2) x")


def scaled(w: Writer, x: str, factor: float, name: str, digits: str) -> str:
    """x * factor, or x divided by 1 / factor; `digits` is the factor or its inverse as it is often rounded."""
    short = ("rounded",) if w.kind != np.float64 else ()
    how = w.draw.choice(f"{name}.scale", ("mul", "div", "mul, run time", "div, run time", *short))
    if w.draw.wrong(f"{name}.factor"):
        factor *= 1.2
    squared = round(factor**2, 15)
    match how:
        case "div":
            return w.Div(x, w.num(1 / factor))
        case "mul, run time":
            return w.mul(x, w.Sqrt(w.num(squared)))
        case "div, run time":
            return w.Div(x, w.Sqrt(w.num(1 / squared)))
        case "rounded":
            if float(digits) > 1:
                return w.Div(x, w.num(float(digits)))
            return w.mul(x, w.num(float(digits)))
    return w.mul(x, w.num(factor))


def outer(w: Writer, x: str, f: str, how: str) -> str:
    """x (1 + f) / 2"""
    half = w.num(0.6 if w.draw.wrong("gelu.half") else 0.5)
    if w.draw.wrong("gelu.another gate"):
        f = w.Abs(f)
    if how == "x/2 + (x/2) f":
        a = w.mul(x, half)
        return w.add(a, w.mul(a, f))
    if how == "x (1/2 + f/2)":
        return w.mul(x, w.add(w.mul(f, half), half))
    one = w.num(0.9 if w.draw.wrong("gelu.one") else 1)
    if w.draw.wrong("gelu.sign"):
        gate = w.Sub(one, f)
    else:
        form = w.draw.choice("gate", ("f + 1", "1 + f", "f - -1", "1 - -f"))
        match form:
            case "1 + f":
                gate = w.Add(one, f)
            case "f - -1":
                gate = w.Sub(f, w.num(-1))
            case "1 - -f":
                gate = w.Sub(one, w.negative(f))
            case _:
                gate = w.Add(f, one)
    match how:
        case "(x gate)/2":
            return w.mul(w.mul(x, gate), half)
        case "x (gate/2)":
            return w.mul(x, w.mul(gate, half))
        case "(gate/2) x":
            return w.Mul(w.Div(gate, w.num(2)), x)
        case "x gate / 2":
            return w.Div(w.mul(x, gate), w.num(2))
    return w.mul(w.mul(x, half), gate)


def erf(w: Writer, x: str) -> str:
    u = scaled(w, x, 0.5**0.5, "erf", "1.41421")
    f = w.Erf(u)
    if w.draw.choice("odd", ("f(u)", "-f(-u)")) == "-f(-u)":
        f = w.negative(w.Erf(w.negative(u)))
    return outer(w, x, f, w.draw.choice("outer", OUTER))


def tanh(w: Writer, x: str) -> str:
    c = CUBIC * 1.3 if w.draw.wrong("gelu.cubic") else CUBIC
    inner = w.draw.choice("inner", ("x + c x^3", "x (1 + c x^2)", "k x + k c x^3"))
    if inner == "x (1 + c x^2)":
        cubic = w.mul(x, w.add(w.num(1), w.mul(square(w, x), w.num(c))))
    else:
        cubic = w.add(x, w.mul(_cube(w, x), w.num(c)))
    k = (2 / np.pi) ** 0.5
    if inner == "k x + k c x^3":
        u = w.add(w.mul(x, w.num(k)), w.mul(_cube(w, x), w.num(k * c)))
    else:
        u = scaled(w, cubic, k, "tanh", "0.797885")
    how = w.draw.choice("tanh", ("Tanh", "2 sigmoid(2u) - 1", "sigmoid(2u)", "1 - 2 / (1 + e^2u)"))
    if how == "sigmoid(2u)":
        return w.mul(x, sigmoid(w, w.mul(u, w.num(2))))
    match how:
        case "2 sigmoid(2u) - 1":
            f = w.Sub(w.mul(sigmoid(w, w.mul(u, w.num(2))), w.num(2)), w.num(1))
        case "1 - 2 / (1 + e^2u)":
            f = w.Sub(w.num(1), w.Div(w.num(2), w.add(w.Exp(w.mul(u, w.num(2))), w.num(1))))
        case _:
            f = w.Tanh(u)
    return outer(w, x, f, w.draw.choice("outer", OUTER))


def _cube(w: Writer, x: str) -> str:
    match w.draw.choice("cube", ("x ^ 3.0", "x ^ int64 3", "x ^ int32 3", "(x x) x", "x (x x)", "x^2 x")):
        case "x ^ int64 3":
            return w.Pow(x, w.num(3, np.int64))
        case "x ^ int32 3":
            return w.Pow(x, w.num(3, np.int32))
        case "(x x) x":
            return w.Mul(w.Mul(x, x), x)
        case "x (x x)":
            return w.Mul(x, w.Mul(x, x))
        case "x^2 x":
            return w.mul(square(w, x), x)
    return w.Pow(x, w.num(3))


def sigmoid(w: Writer, x: str) -> str:
    options = ("Sigmoid", "1 / (1 + e^-x)", "Reciprocal", "tanh(x/2)/2 + 1/2")
    how = w.draw.choice("sigmoid", options)
    if how == "Sigmoid":
        return w.Sigmoid(x)
    if how == "tanh(x/2)/2 + 1/2":
        return w.add(w.mul(w.Tanh(w.mul(x, w.num(0.5))), w.num(0.5)), w.num(0.5))
    total = w.add(w.num(1), w.Exp(w.negative(x)))
    return w.Reciprocal(total) if how == "Reciprocal" else w.Div(w.num(1), total)


def quick(w: Writer, x: str, alpha: float) -> str:
    if w.draw.wrong("quick.sign"):
        alpha = -alpha
    z = x
    if alpha != 1:
        by = w.draw.choice("alpha.scale", ("mul", "div"))
        z = w.mul(x, w.num(alpha)) if by == "mul" else w.Div(x, w.num(1 / alpha))
    gated = w.add(x, w.num(1)) if w.draw.wrong("quick.gated") else x
    how = w.draw.choice("quick", ("x sigmoid", "x / (1 + e^-z)"))
    if how == "x / (1 + e^-z)":
        return w.Div(gated, w.add(w.Exp(w.negative(z)), w.num(1)))
    return w.mul(gated, sigmoid(w, z))


def gelu(x: np.ndarray, form: str) -> np.ndarray:
    """In float64; the form is "erf", "tanh" or alpha."""
    if form == "erf":
        return x * (1 + exact_erf(x / 2**0.5)) / 2
    if form == "tanh":
        return x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + CUBIC * x**3))) / 2
    return x / (1 + np.exp(-float(form) * x))


def _spell(draw: Drawing, prefix: str, form: str) -> Spelling:
    w = Writer(draw, prefix, SIZES, ("float32", "float16"))
    x = w.input("x", "batch", "seq", 16)
    wide = draw.choice("widened", ("no", "yes")) == "yes" and w.element != F32
    with w.computing(F32 if wide else w.element):
        y = w.cast(x, w.kind) if wide else x
        if form == "quick":
            form = draw.choice("alpha", ("1.702", "1"))
            y = quick(w, y, float(form))
        else:
            y = erf(w, y) if form == "erf" else tanh(w, y)
    w.output(w.cast(y, w.element) if wide else y, 3)
    fused = {"erf": "Gelu", "tanh": "FastGelu", "1": "Sigmoid"}.get(form, "QuickGelu")
    return w.finish(lambda f: [gelu(f["x"], form)], {} if apart(w, fused, wide) else {fused: 1}, 1)


def apart(w: Writer, fused: str, wide: bool = False) -> bool:
    """Whether it may stay in parts: onnxruntime takes a Gelu and a FastGelu of float16 apart, and five digits of
    sqrt(2) are another function in float32, by ten times what the gate is rounded.
    """
    if w.element != F32 and not wide:
        return fused in ("Gelu", "FastGelu")
    return w.draw.chosen.get("erf.scale") == "rounded"


def gelu_erf(draw: Drawing, prefix: str = "") -> Spelling:
    return _spell(draw, prefix, "erf")


def gelu_tanh(draw: Drawing, prefix: str = "") -> Spelling:
    return _spell(draw, prefix, "tanh")


def gelu_sigmoid(draw: Drawing, prefix: str = "") -> Spelling:
    return _spell(draw, prefix, "quick")
