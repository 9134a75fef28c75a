"""Fragments that fuse, each in one of many spellings: normalization, GELU, rotation, attention."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from drawing import Draw, Undrawable, Value
from onnx import TensorProto as T
from sizes import broadcast, fixed, is_fixed, times


def _wide(d: Draw, even: bool = False) -> Value:
    """A floating value with a last axis of fixed size."""

    def fits(v: Value) -> bool:
        return v.rank >= 2 and is_fixed(v.dims[-1]) and v.dims[-1][0] >= 2 and not (even and v.dims[-1][0] % 2)

    if d.values(lambda v: fits(v) and v.dtype in (T.FLOAT, T.FLOAT16, T.DOUBLE)) and d.chance(0.6):
        return d.floating(fits)
    dims = d.one(
        (d.sizes["b"], d.sizes["s"], fixed(8)),
        (d.sizes["s"], fixed(6)),
        (d.sizes["b"], fixed(2), d.sizes["s"], fixed(4)),
    )
    return d.input(d.one(T.FLOAT, T.FLOAT, T.FLOAT16, T.DOUBLE), dims)


def _mean(d: Draw, x: Value) -> Value:
    how = d.rng.random()
    if how < 0.7:
        return d.reduce("ReduceMean", x, [-1])
    if how < 0.85:
        return d.unsqueeze(d.reduce("ReduceMean", x, [-1], keep=0), [x.rank - 1])
    return d.binary("Div", d.reduce("ReduceSum", x, [-1]), d.number(x.dims[-1][0], x))


def _square(d: Draw, x: Value) -> Value:
    return d.binary("Mul", x, x) if d.chance(0.5) else d.binary("Pow", x, d.number(2, x))


def _unit(d: Draw, x: Value, weight: Value | None = None) -> Value:
    """x / sqrt(mean(x^2) + eps), at times with the weight inside."""
    total = d.add(_mean(d, _square(d, x)), d.number(d.one(1e-6, 1e-5, 1e-3), x))
    how = d.one("div", "reciprocal", "one over", "power")
    root = d.binary("Pow", total, d.number(-0.5, x)) if how == "power" else d.unary("Sqrt", total)
    if how == "div":
        return d.binary("Div", x, root)
    inverse = (
        root
        if how == "power"
        else d.unary("Reciprocal", root)
        if how == "reciprocal"
        else d.binary("Div", d.number(1, x), root)
    )
    return d.mul(x, inverse)


def rms_norm(d: Draw) -> Value:
    x = _wide(d)
    w = d.numbers(x.dims[-1:], x.dtype, 0.5, 1.5) if d.chance(0.9) else d.tensor(x.dtype, x.dims[-1:])
    y = d.cast(_unit(d, d.cast(x, T.FLOAT)), T.FLOAT16) if x.dtype == T.FLOAT16 and d.chance(0.7) else _unit(d, x)
    return d.mul(y, w) if d.chance(0.85) else y


def layer_norm(d: Draw) -> Value:
    x = _wide(d)
    centered = d.binary("Sub", x, _mean(d, x))
    y = _unit(d, centered)
    if d.chance(0.9):
        y = d.mul(y, d.numbers(x.dims[-1:], x.dtype, 0.5, 1.5))
    if d.chance(0.8):
        y = d.add(y, d.numbers(x.dims[-1:], x.dtype))
    return y


def gelu(d: Draw) -> Value:
    x = d.floating()
    one, half = d.number(1, x), d.number(0.5, x)
    scaled = d.binary("Div", x, d.number(2**0.5, x)) if d.chance(0.6) else d.mul(x, d.number(0.5**0.5, x))
    gate = d.add(d.unary("Erf", scaled), one)
    how = d.one(0, 1, 2, 3)
    if how == 0:
        return d.mul(d.mul(x, half), gate)
    if how == 1:
        return d.mul(d.mul(x, gate), half)
    if how == 2:
        return d.mul(x, d.mul(gate, half))
    return d.binary("Div", d.mul(x, gate), d.number(2, x))


def fast_gelu(d: Draw) -> Value:
    x = d.floating()
    one, half, c = d.number(1, x), d.number(0.5, x), d.number(0.7978845608028654, x)
    cube = d.binary("Pow", x, d.number(3, x)) if d.chance(0.5) else d.mul(d.binary("Mul", x, x), x)
    cubic = d.add(x, d.mul(cube, d.number(0.044715, x)))
    if d.chance(0.25):
        return d.mul(x, d.unary("Sigmoid", d.mul(cubic, d.number(1.5957691216057308, x))))
    gate = d.add(d.unary("Tanh", d.mul(cubic, c)), one)
    return d.mul(d.mul(x, half), gate) if d.chance(0.5) else d.mul(d.mul(x, gate), half)


def quick_gelu(d: Draw) -> Value:
    x = d.floating(types=(T.FLOAT, T.FLOAT16))
    return d.mul(x, d.unary("Sigmoid", d.mul(x, d.number(d.one(1.702, 1.0, 2.0), x))))


def _angles(d: Draw, half: int) -> Value:
    """[B, S, half] or [S, half] of positions times frequencies."""
    frequency = (1.0 / 100 ** (np.arange(half) / half)).astype(np.float32)
    how = d.one("range", "ids", "matmul")
    if how == "range" and d.opset >= 11:
        n = d.scalar_size(d.sizes["s"])
        ids = d.make("Range", d.const(np.int64(0)), n, d.const(np.int64(1)), dims=(d.sizes["s"],))
        ids = d.unsqueeze(ids, [0])
    else:
        ids = d.input(T.INT64, (d.sizes["B"], d.sizes["s"]), "ids", 0, fixed(40))
    places = d.cast(ids, T.FLOAT)
    if how == "matmul":
        column = d.const(frequency.reshape(1, half, 1))
        row = d.unsqueeze(places, [1])
        return d.transpose(d.matmul(column, row), [0, 2, 1])
    return d.mul(d.unsqueeze(places, [2]), d.const(frequency))


def _halves(d: Draw, x: Value) -> list[Value]:
    n = x.dims[-1][0]
    if d.chance(0.4):
        return d.split(x, -1, [n // 2] * 2)
    return [d.slice(x, -1, 0, n // 2), d.slice(x, -1, n // 2, d.one(n, 2**63 - 1))]


def rope(d: Draw) -> Value:
    """Rotated halves or pairs of [B, N, S, H] or [B, S, N, H], of all channels or the first."""
    w, n, part = 8, 2, d.one(0, 0, 4)
    dtype = d.one(T.FLOAT, T.FLOAT, T.FLOAT16)
    last = d.chance(0.25)  # [B, S, N, H]
    dims = (
        (d.sizes["b"], d.sizes["s"], fixed(n), fixed(w)) if last else (d.sizes["b"], fixed(n), d.sizes["s"], fixed(w))
    )
    whole = d.input(dtype, dims)
    if not last and d.chance(0.4):
        flat = d.input(dtype, (d.sizes["b"], d.sizes["s"], fixed(n * w)))
        whole = d.transpose(d.reshape(flat, (d.sizes["b"], d.sizes["s"], fixed(n), fixed(w))), [0, 2, 1, 3])
    x = d.slice(whole, -1, 0, part) if part else whole
    width = part or w
    pairs = d.chance(0.3)
    angle = _angles(d, width // 2)
    half_tables = d.chance(0.3)
    if not half_tables and not pairs:
        angle = d.concat([angle, angle], -1)
    cos, sin = d.unary("Cos", angle), d.unary("Sin", angle)
    if not half_tables and pairs:
        cos, sin = (_twice(d, t) for t in (cos, sin))
    if d.chance(0.2):
        cos, sin = (d.mul(t, d.number(1.25, t)) for t in (cos, sin))
    cos, sin = (d.cast(d.unsqueeze(t, [2 if last else 1]), dtype) for t in (cos, sin))
    if half_tables:
        a, b = _pairs(d, x) if pairs else _halves(d, x)
        first, second = d.binary("Sub", d.mul(a, cos), d.mul(b, sin)), d.add(d.mul(b, cos), d.mul(a, sin))
        y = _together(d, first, second) if pairs else d.concat([first, second], -1)
    else:
        a, b = _pairs(d, x) if pairs else _halves(d, x)
        turned = _together(d, d.unary("Neg", b), a) if pairs else d.concat([d.unary("Neg", b), a], -1)
        y = d.add(d.mul(x, cos), d.mul(turned, sin))
    return d.concat([y, d.slice(whole, -1, part, w)], -1) if part else y


def _pairs(d: Draw, x: Value) -> list[Value]:
    n = x.dims[-1][0]
    if d.opset >= 10 and d.chance(0.5):
        return [d.slice(x, -1, k, d.one(n, 2**63 - 1), 2) for k in (0, 1)]
    apart = d.reshape(x, (*x.dims[:-1], fixed(n // 2), fixed(2)))
    dims = (*x.dims[:-1], fixed(n // 2))
    return [d.make("Gather", apart, d.const(np.int64(k)), dims=dims, axis=apart.rank - 1) for k in (0, 1)]


def _together(d: Draw, a: Value, b: Value) -> Value:
    stacked = d.concat([d.unsqueeze(a, [a.rank]), d.unsqueeze(b, [b.rank])], -1)
    return d.reshape(stacked, (*a.dims[:-1], times(a.dims[-1], fixed(2))))


def _twice(d: Draw, x: Value) -> Value:
    return _together(d, x, x)


def _heads(d: Draw, dtype: int, n: int, length: str, width: int) -> Value:
    """[B, N, S, H]: an input, or split from [B, S, N*H]."""
    b, s = d.sizes["b"], d.sizes[length]
    if d.chance(0.5):
        dims = (b, fixed(n), s, fixed(width))
        found = d.values(lambda v: v.dtype == dtype and v.dims == dims)
        return d.one(*found) if found and d.chance(0.5) else d.input(dtype, dims)
    flat = d.input(dtype, (b, s, fixed(n * width)))
    if d.chance(0.4):
        flat = d.matmul(flat, d.numbers((fixed(n * width), fixed(n * width)), dtype, -0.5, 0.5))
    return d.transpose(d.reshape(flat, (b, s, fixed(n), fixed(width))), [0, 2, 1, 3])


def attention(d: Draw) -> Value:
    n, w, kv = 2, 4, d.one(2, 2, 2, 1)
    dtype = d.one(T.FLOAT, T.FLOAT, T.FLOAT16)
    length = d.one("s", "t")
    q, k = _heads(d, dtype, n, "s", w), _heads(d, dtype, kv, length, w)
    v = _heads(d, dtype, kv, length, d.one(w, w, 3))
    if kv != n:
        k, v = (_repeated(d, t, n // kv) for t in (k, v))
    place = d.one("q", "k", "scores", "scores", "both", "none")
    scale = d.one(0.5, 0.3, -0.5) if d.chance(0.3) else w**-0.5

    def scaled(x: Value, by: float) -> Value:
        return d.mul(x, d.number(by, x)) if d.chance(0.6) else d.binary("Div", x, d.number(1 / by, x))

    if place == "both":
        scale = abs(scale)
        q, k = scaled(q, scale**0.5), scaled(k, scale**0.5)
    q, k = scaled(q, scale) if place == "q" else q, scaled(k, scale) if place == "k" else k
    if d.opset >= 12 and d.chance(0.15):
        s = d.make("Einsum", q, k, dims=(*q.dims[:3], k.dims[2]), equation="bnqh,bnkh->bnqk")
    else:
        s = d.matmul(q, d.transpose(k, [0, 1, 3, 2]))
    s = scaled(s, scale) if place == "scores" else s
    if d.chance(0.2):
        s = d.mul(d.unary("Tanh", d.binary("Div", s, d.number(5, s))), d.number(5, s))
    s = _masked(d, s, n, length)
    if dtype == T.FLOAT16 and d.chance(0.3):
        p = d.cast(d.unary("Softmax", d.cast(s, T.FLOAT), axis=3), T.FLOAT16)
    elif d.chance(0.15):
        top = d.reduce("ReduceMax", s, [-1])
        e = d.unary("Exp", d.binary("Sub", s, top))
        p = d.binary("Div", e, d.reduce("ReduceSum", e, [-1]))
    else:
        p = d.unary("Softmax", s, axis=d.one(3, 3, -1) if d.opset >= 11 else 3)
    if d.chance(0.3) and d.opset >= 9:
        p = d.where(d.make("IsNaN", p, dims=p.dims, dtype=T.BOOL), d.number(0, p), p)
    o = d.matmul(p, v)
    if d.chance(0.6):
        o = d.transpose(o, [0, 2, 1, 3])
        o = d.reshape(o, (*o.dims[:2], times(o.dims[2], o.dims[3])))
    return o


def _repeated(d: Draw, x: Value, times_: int) -> Value:
    """Each head, some times in a row: [B, KV, S, H] to [B, KV * times, S, H]."""
    b, kv, s, w = x.dims
    wide = d.unsqueeze(x, [2])
    dims = (b, kv, fixed(times_), s, w)
    target = (fixed(1), fixed(1), fixed(times_), fixed(1), fixed(1)) if d.chance(0.4) else dims
    return d.reshape(d.make("Expand", wide, d.sizes_of(target), dims=dims), (b, times(kv, fixed(times_)), s, w))


def _masked(d: Draw, s: Value, n: int, length: str) -> Value:
    how = d.one("none", "add", "where", "made", "causal", "low")
    lead = (d.one(fixed(1), d.sizes["B"]), d.one(fixed(1), fixed(1), fixed(n)))
    full = (*lead, d.one(fixed(1), d.sizes["s"]), d.sizes[length])
    low = d.one(-1e9, -np.inf, -3e38) if s.dtype == T.FLOAT else d.one(-1e4, -np.inf, -6e4)
    if how == "none":
        return s
    if how == "add":
        return d.add(s, d.input(s.dtype, full, "additive"))
    if how in ("where", "made"):
        keep = d.input(T.BOOL, full, "mask")
        if how == "where":
            hide = d.chance(0.3)
            c = d.unary("Not", keep) if hide else keep
            return d.where(c, *((d.number(low, s), s) if hide else (s, d.number(low, s))))
        return d.add(s, d.where(keep, d.number(0, s), d.number(low, s)))
    if how == "causal" and length == "s" and d.opset >= 14:
        dims = (d.sizes["s"], d.sizes["s"])
        ones = d.make("Expand", d.const(np.ones((1, 1), np.float32)), d.sizes_of(dims), dims=dims)
        keep = d.cast(d.make("Trilu", ones, dims=dims, upper=0), T.BOOL)
        return d.where(keep, s, d.number(low, s))
    if how == "low":
        mask = d.input(T.INT64, (d.sizes["B"], d.sizes[length]), "mask")
        wide = d.cast(d.unsqueeze(mask, [1, 2]), s.dtype)
        hidden = d.binary("Sub", d.number(1, wide), wide)
        bias = d.mul(hidden, d.const(np.asarray(-1e4), s.dtype))
        if broadcast(bias.dims, s.dims) != s.dims:
            raise Undrawable("the mask is larger")
        return d.add(s, bias)
    return s


FRAGMENTS: dict[str, Callable[[Draw], Value]] = {
    "rms norm": rms_norm, "layer norm": layer_norm, "gelu": gelu, "fast gelu": fast_gelu, "quick gelu": quick_gelu,
    "rope": rope, "attention": attention,
}  # fmt: skip
