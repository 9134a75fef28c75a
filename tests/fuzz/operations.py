"""One random node of each operator that rules look into, and of some that they do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from drawing import Draw, Undrawable, Value
from kernels import is_float, numpy_type
from onnx import TensorProto as T
from onnx import numpy_helper as nh
from sizes import Dims, broadcast, fixed, is_fixed, plus, times

Drawer = Callable[[Draw], Any]
MS = "com.microsoft"


def other(d: Draw, op: str, x: Value, place: int = 1) -> Value:
    """A second operand that broadcasts against x: often smaller, sometimes wider, or x itself."""
    how = d.rng.random()
    if how < 0.05:
        return x
    if how < 0.4 and (found := d.values(lambda v: v.dtype == x.dtype and broadcast(v.dims, x.dims) is not None)):
        return d.one(*found)
    if how < 0.6:
        return d.const(np.asarray(d.array(d.one((), (1,), (1,) * x.rank), x.dtype)))
    dims = list(x.dims[int(d.rng.integers(x.rank + 1)) if d.chance(0.4) else 0 :])
    dims = [fixed(1) if d.chance(0.25) else each for each in dims]
    if d.chance(0.1) and len(dims) < 5:
        dims.insert(0, d.one(fixed(1), fixed(2)))
    if is_float(x.dtype) and all(is_fixed(each) for each in dims) and d.chance(0.3):
        return d.numbers(tuple(dims), x.dtype, 0.5, 2.0)
    return d.tensor(x.dtype, tuple(dims))


def unary(op: str, domain: str = "") -> Drawer:
    def draw(d: Draw) -> Value:
        x = d.operand(op, domain, lambda v: v.rank > 0 or not domain)
        if op in ("Sqrt", "Log") and d.chance(0.7) and is_float(x.dtype):
            x = d.unary("Abs", x)
        if op == "Exp" and d.chance(0.5):
            x = d.unary("Tanh", x)
        return d.unary(op, x, domain)

    return draw


def binary(op: str) -> Drawer:
    def draw(d: Draw) -> Value:
        x = d.operand(op)
        y = other(d, op, x)
        if op == "Div" and not is_float(x.dtype):
            y = nonzero(d, x)
        if op == "Pow":
            y = d.number(d.one(-1, -0.5, 0.5, 1, 2, 3, 0), x) if is_float(x.dtype) else d.number(d.one(1, 2, 3), x)
            if is_float(x.dtype) and d.chance(0.1):
                y = d.cast(d.ints(d.one(2, 3)), T.INT64)
        if d.chance(0.3) and not (op in ("Div", "Pow") and (op == "Pow" or not is_float(x.dtype))):
            x, y = y, x
        return d.binary(op, x, y)

    return draw


def nonzero(d: Draw, x: Value) -> Value:
    """Positive integers: division by zero stops the process."""
    width = x.dims[-1] if x.rank and is_fixed(x.dims[-1]) and d.chance(0.3) else None
    shape = (width[0],) if width else d.one((), (1,))
    return d.const(np.asarray(d.rng.integers(1, 5, shape)), x.dtype)


def where(d: Draw) -> Value:
    x = d.operand("Where", place=1)
    y = other(d, "Where", x, 2)
    if d.chance(0.5):
        x, y = y, x
    whole = broadcast(x.dims, y.dims)
    if whole is None:
        raise Undrawable("does not broadcast")
    if found := d.values(lambda v: v.dtype == T.BOOL and broadcast(v.dims, whole) is not None):
        return d.where(d.one(*found), x, y)
    return d.where(d.tensor(T.BOOL, tuple(fixed(1) if d.chance(0.3) else n for n in whole)), x, y)


def range_(d: Draw) -> Value:
    dtype = d.one(T.INT64, T.INT64, T.INT32, T.FLOAT)
    if dtype == T.INT64 and d.chance(0.7):
        x = d.pick(lambda v: v.rank > 0)
        n = d.one(*x.dims)
        start, limit = d.const(np.int64(0)), d.scalar_size(n)
        return d.make("Range", start, limit, d.const(np.int64(1)), dims=(n,))
    n, step = int(d.rng.integers(1, 6)), d.one(1, 2)
    start = int(d.rng.integers(-2, 3))
    return d.make("Range", *(d.const(np.asarray(k), dtype) for k in (start, start + n * step, step)), dims=(fixed(n),))


def matmul(d: Draw) -> Value:
    x = d.operand("MatMul", fits=lambda v: v.rank >= 1)
    if x.rank == 1 or d.chance(0.05):
        x = d.unsqueeze(x, [0])
    if d.chance(0.1):
        y = d.tensor(x.dtype, (x.dims[-1],))
        return d.make("MatMul", x, y, dims=x.dims[:-1])
    found = d.values(lambda v: v.dtype == x.dtype and v.rank >= 2 and v.dims[-2] == x.dims[-1])
    if found and d.chance(0.5):
        return d.matmul(x, d.one(*found))
    lead = x.dims[:-2] if d.chance(0.3) else ()
    return d.matmul(x, d.tensor(x.dtype, (*lead, x.dims[-1], fixed(d.one(1, 2, 4)))))


def cast(d: Draw) -> Value:
    x = d.pick(lambda v: True)
    types = [
        T.FLOAT,
        T.FLOAT16,
        T.DOUBLE,
        T.INT64,
        T.INT32,
        T.INT8,
        T.UINT8,
        T.INT16,
        T.UINT16,
        T.UINT32,
        T.UINT64,
        T.BOOL,
    ]
    to = d.one(*types, *([T.BFLOAT16] if d.opset >= 13 else []))
    if is_float(x.dtype) and d.chance(0.2):  # there and back, by way of a type that holds less
        to = d.one(T.FLOAT16, T.INT32, T.INT64)
        return d.make("Cast", d.make("Cast", x, dims=x.dims, dtype=to, to=to), dims=x.dims, dtype=x.dtype, to=x.dtype)
    if is_float(x.dtype) and not is_float(to) and to != T.BOOL and d.chance(0.9):
        x = d.unary("Tanh", x) if d.chance(0.5) and x.dtype != T.BFLOAT16 else x
    y = d.make("Cast", x, dims=x.dims, dtype=to, to=to)
    if d.opset >= 15 and is_float(x.dtype) and x.dtype != T.BFLOAT16 and y.dtype in (T.FLOAT, T.DOUBLE):
        return d.make("CastLike", x, y, dims=x.dims, dtype=y.dtype)
    if d.chance(0.3):
        y = d.make("Cast", y, dims=x.dims, dtype=x.dtype, to=x.dtype)
    return y


def maximum(d: Draw) -> Value:
    x = d.operand("Max")
    n = d.one(1, 2, 2, 2, 3)
    if n == 1:
        return d.unary("Max", x)
    ys = [other(d, "Max", x) for _ in range(n - 1)]
    dims = broadcast(x.dims, *(y.dims for y in ys))
    if dims is None:
        raise Undrawable("does not broadcast")
    return d.make("Max", x, *ys, dims=dims)


def clip(d: Draw) -> Value:
    x = d.operand("Clip")
    if d.opset < 11:
        return d.unary("Clip", x, min=0.0)
    if is_float(x.dtype) and d.chance(0.5):
        x = d.binary("Mul", x, x)
    low, high = (d.const(np.asarray(bound), x.dtype) for bound in (d.one(0, 0, 1), 3))
    return d.make("Clip", x, *d.one([low], [low], [low, high], [None, high], []), dims=x.dims)


def einsum(d: Draw) -> Value:
    x = d.operand("Einsum", fits=lambda v: 2 <= v.rank <= 4)
    letters = "abcd"[: x.rank]
    sizes = dict(zip(letters, x.dims, strict=True))
    summed = d.one(*letters)
    batch = [c for c in letters if c != summed and d.chance(0.5)]
    sizes["z"] = fixed(d.one(1, 3))
    right = [*batch, summed, *(["z"] if d.chance(0.8) else [])]
    if d.chance(0.5):
        right = [right[i] for i in d.rng.permutation(len(right))]
    out = [c for c in letters if c != summed] + (["z"] if "z" in right else [])
    if d.chance(0.4):
        out = [out[i] for i in d.rng.permutation(len(out))]
    y = d.tensor(x.dtype, tuple(sizes[c] for c in right))
    space = " " if d.chance(0.1) else ""
    equation = f"{letters},{space}{''.join(right)}->{''.join(out)}"
    return d.make("Einsum", x, y, dims=tuple(sizes[c] for c in out), equation=equation)


def dropout(d: Draw) -> Value:
    x = d.operand("Dropout")
    if d.opset < 12:
        return d.unary("Dropout", x, ratio=0.4) if d.chance(0.5) else d.unary("Dropout", x)
    if d.chance(0.2):
        off = d.const(np.array(False))
        return d.make("Dropout", x, None, off, dims=x.dims)
    return d.node("Dropout", [x], [(x.dtype, x.dims), (T.BOOL, x.dims)])[0] if d.chance(0.2) else d.unary("Dropout", x)


def softmax(op: str) -> Drawer:
    def draw(d: Draw) -> Value:
        x = d.operand(op, fits=lambda v: v.rank >= 1)
        axis = d.one(-1, x.rank - 1, int(d.rng.integers(x.rank)))
        axis = max(axis, 0) if axis >= 0 or d.opset >= 11 else x.rank - 1
        return d.unary(op, x, axis=axis) if d.chance(0.9) else d.unary(op, x)

    return draw


def cast_like(d: Draw) -> Value:
    like = d.pick(lambda v: v.dtype in (T.FLOAT, T.DOUBLE, T.INT64, T.INT32))
    x = d.pick(lambda v: True)
    return d.make("CastLike", x, like, dims=x.dims, dtype=like.dtype) if d.opset >= 15 else d.cast(x, like.dtype)


def reduction(op: str) -> Drawer:
    def draw(d: Draw) -> Value:
        x = d.operand(op, fits=lambda v: v.rank >= 1)
        how, keep = d.rng.random(), d.one(0, 1)
        if how < 0.1:
            return d.make(op, x, dims=(fixed(1),) * (x.rank if keep else 0), keepdims=keep)
        last = how < 0.6
        axes = [x.rank - 1] if last else d.rng.permutation(x.rank)[: d.one(1, 1, 2)].tolist()
        return d.reduce(op, x, axes, keep)

    return draw


def transpose(d: Draw) -> Value:
    x = d.operand("Transpose")
    if d.chance(0.15):
        return d.make("Transpose", x, dims=x.dims[::-1])
    perm = list(range(x.rank))
    if d.chance(0.5) and x.rank >= 2:
        i, j = d.rng.permutation(x.rank)[:2]
        perm[i], perm[j] = perm[j], perm[i]
    else:
        perm = d.rng.permutation(x.rank).tolist()
    return d.transpose(x, perm)


def reshape(d: Draw) -> Value:
    x = d.operand("Reshape")
    dims = list(x.dims)
    for _ in range(d.one(1, 1, 2)):
        k = int(d.rng.integers(len(dims))) if dims else 0
        how = d.rng.random()
        if how < 0.35 and len(dims) >= 2:
            k = min(k, len(dims) - 2)
            dims[k : k + 2] = [times(dims[k], dims[k + 1])]
        elif how < 0.7 and dims and (factors := [f for f in (2, 3, 4) if all(n % f == 0 for n in dims[k])]):
            f = d.one(*factors)
            rest = tuple(n // f for n in dims[k])
            dims[k : k + 1] = [fixed(f), rest] if d.chance(0.5) else [rest, fixed(f)]
        elif how < 0.85 and len(dims) < 5:
            dims.insert(k, fixed(1))
        elif fixed(1) in dims:
            dims.remove(fixed(1))
    return d.reshape(x, tuple(dims))


def flatten(d: Draw) -> Value:
    x = d.operand("Flatten")
    axis = int(d.rng.integers(x.rank + 1))
    product = [fixed(1), fixed(1)]
    for i, n in enumerate(x.dims):
        product[i >= axis] = times(product[i >= axis], n)
    signed = axis - x.rank if d.opset >= 11 and axis < x.rank and d.chance(0.4) else axis
    return d.make("Flatten", x, dims=tuple(product), axis=signed)


def expand(d: Draw) -> Value:
    x = d.operand("Expand")
    target = [n if d.chance(0.5) else fixed(1) for n in x.dims]
    target = [
        d.one(fixed(2), d.sizes["b"], d.sizes["s"]) if x.dims[i] == fixed(1) and d.chance(0.5) else n
        for i, n in enumerate(target)
    ]
    if d.chance(0.3) and len(target) < 5:
        target.insert(0, d.one(fixed(1), fixed(2), d.sizes["b"]))
    dims = broadcast(tuple(target), x.dims)
    if dims is None:
        raise Undrawable("does not expand")
    return d.make("Expand", x, d.sizes_of(tuple(target)), dims=dims)


def tile(d: Draw) -> Value:
    x = d.operand("Tile", fits=lambda v: v.rank >= 1)
    count = [1] * x.rank
    count[int(d.rng.integers(x.rank))] = d.one(1, 2, 3)
    if d.chance(0.2):
        count[-1] = 2
    dims = tuple(times(n, fixed(c)) for n, c in zip(x.dims, count, strict=True))
    return d.make("Tile", x, d.ints(*count), dims=dims)


def unsqueeze(d: Draw) -> Value:
    x = d.operand("Unsqueeze", fits=lambda v: v.rank <= 4)
    count = d.one(1, 1, 2)
    return d.unsqueeze(x, d.rng.permutation(x.rank + count)[:count].tolist())


def squeeze(d: Draw) -> Value:
    x = d.operand("Squeeze")
    ones = [i for i, n in enumerate(x.dims) if n == fixed(1)]
    if not ones:
        x, ones = d.unsqueeze(x, [0]), [0]
    fits = all(is_fixed(n) or 1 not in n for n in x.dims)
    if d.chance(0.2) and fits:
        return d.make("Squeeze", x, dims=tuple(n for n in x.dims if n != fixed(1)))
    return d.squeeze(x, d.rng.permutation(ones)[: d.one(1, len(ones))].tolist())


def slice_(d: Draw) -> Value:
    x = d.operand("Slice", fits=lambda v: v.rank >= 1)
    axis = int(d.rng.integers(x.rank))
    n = x.dims[axis]
    if is_fixed(n) and n[0] >= 2:
        if d.chance(0.2):
            return d.slice(x, axis, n[0] - 1, -(n[0] + 1), -1) if d.opset >= 10 else d.slice(x, axis, 0, 1)
        start = int(d.rng.integers(0, n[0]))
        end = int(d.rng.integers(start + 1, n[0] + 1))
        end = d.one(2**31 - 1, 2**63 - 1, end + 5) if end == n[0] and d.chance(0.4) else end
        start, end = (a - n[0] if d.chance(0.3) and 0 <= a < n[0] else a for a in (start, end))
        return d.slice(x, axis, start, end, d.one(1, 1, 1, 2) if d.opset >= 10 else 1)
    how = d.rng.random()
    if how < 0.3 and all(k >= 1 for k in n):
        dims = (*x.dims[:axis], fixed(1), *x.dims[axis + 1 :])
        at = d.one((0, 1), (-1, 2**63 - 1))
        return d.sliced(x, axis, d.ints(at[0]), d.ints(at[1]), dims, 1, at)
    shorter = [m for m in set(d.sizes.values()) if all(1 <= i <= k for i, k in zip(m, n, strict=True))]
    m = d.one(*(shorter or [n]))
    dims = (*x.dims[:axis], m, *x.dims[axis + 1 :])
    return d.sliced(x, axis, d.ints(0), d.size(m), dims, 1)


def gather(d: Draw) -> Value:
    x = d.operand("Gather", fits=lambda v: v.rank >= 1)
    axis = int(d.rng.integers(x.rank))
    n = min(x.dims[axis])
    if n < 1:
        raise Undrawable("nothing to take")
    how = d.rng.random()
    if how < 0.3:
        ids = d.const(np.asarray(int(d.rng.integers(-n, n))), d.one(T.INT64, T.INT32))
    elif how < 0.6:
        ids = d.const(np.sort(d.rng.integers(-n, n, d.one(1, 2, 3))) if d.chance(0.5) else np.arange(n))
    elif how < 0.8 and is_fixed(x.dims[axis]):
        half = n // 2
        ids = d.const(np.roll(np.arange(n), half))
    else:
        dims: Dims = d.one((d.sizes["s"],), (d.sizes["B"], d.sizes["s"]), ())
        ids = d.input(d.one(T.INT64, T.INT32), dims, "ids", 0, x.dims[axis])
    dims = (*x.dims[:axis], *ids.dims, *x.dims[axis + 1 :])
    return d.make("Gather", x, ids, dims=dims, axis=axis - d.one(0, x.rank if d.opset >= 11 else 0))


def gather_nd(d: Draw) -> Value:
    """All positions of two axes, as exporters take them, or some pairs."""
    x = d.operand("GatherND", fits=lambda v: v.rank >= 2)
    if d.opset < 12:
        return gather(d)
    rows, columns = x.dims[:2]
    if min(*rows, *columns) < 1:
        raise Undrawable("nothing to take")
    if d.chance(0.5):
        pairs = np.stack([d.rng.integers(0, min(n), 3) for n in (rows, columns)], axis=-1)
        return d.make("GatherND", x, d.const(pairs), dims=(fixed(3), *x.dims[2:]))
    whole, parts = (rows, columns, fixed(1)), []
    for n, axes in ((rows, [1, 2]), (columns, [0, 2])):
        start, step = d.const(np.int64(0)), d.const(np.int64(1))
        each = d.make("Range", start, d.scalar_size(n), step, dims=(n,))
        parts.append(d.make("Expand", d.unsqueeze(each, axes), d.sizes_of(whole), dims=whole))
    return d.make("GatherND", x, d.concat(parts, 2), dims=x.dims)


def trilu(d: Draw) -> Value:
    if d.opset < 14:
        return transpose(d)
    x = d.operand("Trilu", fits=lambda v: v.rank >= 2)
    more = [d.const(np.int64(d.one(0, 1, -1)))] if d.chance(0.4) else []
    return d.make("Trilu", x, *more, dims=x.dims, upper=d.one(0, 1))


def concat(d: Draw) -> Value:
    x = d.operand("Concat", fits=lambda v: v.rank >= 1)
    axis = x.rank - 1 if d.chance(0.5) else int(d.rng.integers(x.rank))
    rest = (*x.dims[:axis], *x.dims[axis + 1 :])
    fit = d.values(lambda v: v.dtype == x.dtype and v.rank == x.rank and (*v.dims[:axis], *v.dims[axis + 1 :]) == rest)
    parts = [x, *(d.one(*fit) for _ in range(d.one(0, 1, 1, 2)))]
    return d.concat(parts if d.chance(0.5) else parts[::-1], axis)


def split(d: Draw) -> Value:
    x = d.operand("Split", fits=lambda v: any(is_fixed(n) and n[0] >= 2 for n in v.dims))
    axis = d.one(*(i for i, n in enumerate(x.dims) if is_fixed(n) and n[0] >= 2))
    n = x.dims[axis][0]
    if n % 2 == 0 and d.chance(0.6):
        return d.split(x, axis, [n // 2] * 2)[0]
    first = int(d.rng.integers(1, n))
    return d.split(x, axis, [first, n - first])[1]


def shape(d: Draw) -> Value:
    x = d.pick(lambda v: True)
    if d.opset >= 15 and d.chance(0.5):
        start, end = int(d.rng.integers(-x.rank - 1, x.rank + 1)), int(d.rng.integers(-x.rank, x.rank + 2))
        count = len(range(x.rank)[start:end])
        if count:
            return d.make("Shape", x, dims=(fixed(count),), dtype=T.INT64, start=start, end=end)
    return d.make("Shape", x, dims=(fixed(x.rank),), dtype=T.INT64)


def normed(op: str, domain: str = "", bias: bool = False) -> Drawer:
    def draw(d: Draw) -> Value:
        x = d.operand(op, domain, lambda v: v.rank >= 1 and is_fixed(v.dims[-1]))
        if x.dims[-1][0] < 2:
            raise Undrawable("a norm of one number")
        axis = d.one(-1, -1, x.rank - 1)
        w = d.numbers(x.dims[-1:], x.dtype, 0.5, 1.5)
        b = [d.numbers(x.dims[-1:], x.dtype)] if bias and d.chance(0.8) else []
        return d.make(op, x, w, *b, dims=x.dims, axis=axis, epsilon=d.one(1e-5, 1e-6, 1e-3))

    return draw


def skip_normed(op: str, shift: bool = False) -> Drawer:
    def draw(d: Draw) -> Value:
        x = d.pick(lambda v: v.dtype in (T.FLOAT, T.FLOAT16) and v.rank in (2, 3) and is_fixed(v.dims[-1]))
        if x.dims[-1][0] < 2:
            raise Undrawable("a norm of one number")
        skip = d.tensor(x.dtype, x.dims)
        w = d.numbers(x.dims[-1:], x.dtype, 0.5, 1.5)
        more = [d.numbers(x.dims[-1:], x.dtype) if d.chance(0.5) else None for _ in range(1 + shift)]
        while more and more[-1] is None:
            more.pop()
        return d.make(op, x, skip, w, *more, dims=x.dims, domain=MS, epsilon=d.one(1e-5, 1e-6, 1e-3))

    return draw


def bias_gelu(d: Draw) -> Value:
    x = d.pick(lambda v: v.dtype in (T.FLOAT, T.FLOAT16) and v.rank >= 1 and is_fixed(v.dims[-1]))
    return d.make("BiasGelu", x, d.numbers(x.dims[-1:], x.dtype), dims=x.dims, domain=MS)


def gelu(d: Draw) -> Value:
    x = d.operand("Gelu")
    more = {"approximate": d.one("tanh", "none")} if d.chance(0.6) else {}
    return d.unary("Gelu", x, **more)


def quick_gelu(d: Draw) -> Value:
    more = {"alpha": d.one(1.0, 1.702)} if d.chance(0.5) else {}
    return d.unary("QuickGelu", d.floating(types=(T.FLOAT,)), MS, **more)


def heads(d: Draw, dtype: int, n: int, length: str, width: int) -> Value:
    dims = (d.sizes["b"], fixed(n), d.sizes[length], fixed(width))
    found = d.values(lambda v: v.dtype == dtype and v.dims == dims)
    return d.one(*found) if found and d.chance(0.4) else d.input(dtype, dims)


def attention(d: Draw) -> Value:
    if not d.has("Attention"):
        raise Undrawable("no Attention")
    dtype, n, w = d.one(T.FLOAT, T.FLOAT16), 2, 4
    kv = d.one(n, 1)
    q, k, v = heads(d, dtype, n, "s", w), heads(d, dtype, kv, "t", w), heads(d, dtype, kv, "t", d.one(w, 6))
    mask = None
    if d.chance(0.6):
        lead = (d.one(fixed(1), d.sizes["B"]), d.one(fixed(1), fixed(n)))
        mask = d.input(T.BOOL, (*lead, d.sizes["s"], d.sizes["t"]), "mask")
        if d.chance(0.3):
            zero, low = d.const(np.asarray(0.0), dtype), d.const(np.asarray(d.one(-1e4, -np.inf)), dtype)
            mask = d.where(mask, zero, low)
    more: dict[str, Any] = {"scale": d.one(0.5, 0.3)} if d.chance(0.5) else {}
    more |= {"softcap": 2.0} if d.chance(0.2) else {}
    more |= {"is_causal": 1} if d.chance(0.1) else {}
    return d.make("Attention", q, k, v, *([mask] if mask else []), dims=(*q.dims[:3], v.dims[3]), **more)


def rotary(d: Draw) -> Value:
    if not d.has("RotaryEmbedding"):
        raise Undrawable("no RotaryEmbedding")
    x = heads(d, d.one(T.FLOAT, T.FLOAT16), 2, "s", 8)
    part = d.one(0, 0, 4)
    rows = (d.sizes["b"], d.sizes["s"], fixed((part or 8) // 2))
    cos, sin = (d.tensor(x.dtype, rows) for _ in range(2))
    more = {"interleaved": d.one(0, 1)} if d.chance(0.5) else {}
    more |= {"rotary_embedding_dim": part, "num_heads": 2} if part else {}
    if d.chance(0.2):
        tables = [d.numbers((fixed(9), rows[2]), x.dtype) for _ in range(2)]
        ids = d.input(T.INT64, (d.sizes["b"], d.sizes["s"]), "ids", 0, fixed(9))
        return d.make("RotaryEmbedding", x, *tables, ids, dims=x.dims, **more)
    return d.make("RotaryEmbedding", x, cos, sin, dims=x.dims, **more)


# ---- operators that no rule looks into


def opaque(d: Draw) -> Value:
    op = d.one(
        "Relu", "Elu", "Softplus", "Floor", "Sign", "LeakyRelu", "Clip", "Hardmax", "CumSum", "Size", "TopK", "Trilu"
    )
    if op == "CumSum":
        x = d.operand("CumSum", fits=lambda v: v.rank >= 1)
        return d.make("CumSum", x, d.const(np.int64(d.one(0, -1))), dims=x.dims)
    if op == "Size":
        return d.make("Size", d.pick(lambda v: True), dims=(), dtype=T.INT64)
    if op == "Trilu":
        x = d.operand("Trilu", fits=lambda v: v.rank >= 2)
        return d.make("Trilu", x, dims=x.dims, upper=d.one(0, 1))
    if op == "TopK":
        if d.opset < 11:
            raise Undrawable("an old TopK")
        x = d.operand("TopK", fits=lambda v: v.rank >= 1)
        dims = (*x.dims[:-1], fixed(1))
        return d.node("TopK", [x, d.ints(1)], [(x.dtype, dims), (T.INT64, dims)])[0]
    if op == "Hardmax" or (op == "Clip" and d.opset < 11):
        raise Undrawable("old")
    return d.unary(op, d.operand(op))


def filled(d: Draw) -> Value:
    """ConstantOfShape of sizes."""
    x = d.pick(lambda v: True)
    dtype = d.one(T.FLOAT, T.INT64, T.BOOL, T.FLOAT16)
    value = nh.from_array(np.asarray([d.one(0, 1, -2)]).astype(np.float32)) if dtype == T.FLOAT else None
    if dtype != T.FLOAT:
        value = nh.from_array(np.asarray([d.one(0, 1)]).astype(numpy_type(dtype)))
    return d.make("ConstantOfShape", d.sizes_of(x.dims), dims=x.dims, dtype=dtype, value=value)


def shape_arithmetic(d: Draw) -> Value:
    """A sum, product or quotient of sizes as numbers of the graph."""
    x = d.pick(lambda v: v.rank > 0)
    n, m = d.one(*x.dims), d.one(*d.one(x, d.pick(lambda v: v.rank > 0)).dims)
    a, b = d.scalar_size(n), d.scalar_size(m)
    both = d.binary(d.one("Add", "Mul", "Sub", "Div"), a, b)
    if d.chance(0.5):
        return d.cast(both, d.one(T.FLOAT, T.INT32))
    total = plus(n, m) if d.chance(0.5) else times(n, m)
    total_value = d.binary("Add" if total == plus(n, m) else "Mul", a, b)
    if all(k <= 64 for k in total):
        return d.make("Range", d.const(np.int64(0)), total_value, d.const(np.int64(1)), dims=(total,))
    return total_value


def table() -> dict[tuple[str, str], Drawer]:
    """(domain, operator) -> what draws it, for every operator that the reading table knows."""
    plain = "Neg Sqrt Reciprocal Cos Sin Tanh Exp Log Abs Erf Sigmoid Relu Not IsNaN Identity".split()
    pairs = "Add Mul Sub Div Pow And Or Equal Less LessOrEqual Greater GreaterOrEqual".split()
    found: dict[tuple[str, str], Drawer] = {("", op): unary(op) for op in plain}
    found |= {("", op): binary(op) for op in pairs}
    found |= {("", op): reduction(op) for op in ("ReduceMean", "ReduceSum", "ReduceMax")}
    named = {
        "Where": where, "Range": range_, "MatMul": matmul, "Cast": cast, "Max": maximum, "Einsum": einsum,
        "Attention": attention, "RotaryEmbedding": rotary, "Dropout": dropout, "Softmax": softmax("Softmax"),
        "LogSoftmax": softmax("LogSoftmax"), "CastLike": cast_like, "Clip": clip,
        "GatherND": gather_nd, "Trilu": trilu,
        "Transpose": transpose, "Reshape": reshape, "Flatten": flatten, "Expand": expand, "Tile": tile,
        "Unsqueeze": unsqueeze, "Squeeze": squeeze, "Slice": slice_, "Gather": gather, "Concat": concat,
        "Split": split, "Shape": shape, "LayerNormalization": normed("LayerNormalization", bias=True),
        "RMSNormalization": normed("RMSNormalization"), "Gelu": gelu,
        "SimplifiedLayerNormalization": normed("SimplifiedLayerNormalization"),
    }  # fmt: skip
    found |= {("", op): draw for op, draw in named.items()}
    found[MS, "Gelu"], found[MS, "FastGelu"] = unary("Gelu", MS), unary("FastGelu", MS)
    found[MS, "QuickGelu"], found[MS, "BiasGelu"] = quick_gelu, bias_gelu
    found[MS, "SkipSimplifiedLayerNormalization"] = skip_normed("SkipSimplifiedLayerNormalization")
    found[MS, "SkipLayerNormalization"] = skip_normed("SkipLayerNormalization", shift=True)
    return found


MORE: tuple[Drawer, ...] = (opaque, opaque, filled, shape_arithmetic)
