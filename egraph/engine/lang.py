"""What rule files are written in: short names for terms, and the facts guards may ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..terms import DIM, INT
from ..terms.dtypes import masking
from ..terms.expression import (
    Dim,
    Env,
    Expr,
    Float,
    Int,
    Ints,
    Node,
    Tensor,
    Tensors,
    apply,
    call,
    lift,
    operator,
    tensor,
    variable,
)
from .guard import Fact, Guard, called, eq, le, lt, ne, near, num, relation
from .rule import Sides, load_egglog, rule, select

# ------------------------------------------------------------------------------------------------------------- terms


#: Exchanges heads and positions: BNSH <-> BSNH.
SWAP = (0, 2, 1, 3)


def concat(xs: Sequence[Tensor] | Tensors, axis: int | Int = -1) -> Tensor:
    return tensor("Concat", xs, axis)


def cast(x: Tensor, to: int | Int) -> Tensor:
    return tensor("Cast", x, to)


def transpose(x: Tensor, perm: Sequence[int] | Ints) -> Tensor:
    return tensor("Transpose", x, perm)


def reshape(x: Tensor, target: Tensor | Sequence[int]) -> Tensor:
    return tensor("Reshape", x, target if isinstance(target, Expr) else ints(*target))


def slice_(x: Tensor, start: int | Int, end: int | Int, axis: int | Int = -1, step: int | Int = 1) -> Tensor:
    return tensor("SliceC", x, axis, start, end, step)


def unsqueeze(x: Tensor, axis: int | Int) -> Tensor:
    return tensor("Unsqueeze", x, axis)


def squeeze(x: Tensor, axis: int | Int) -> Tensor:
    return tensor("Squeeze", x, axis)


def shape(x: Tensor, first: int = 0, last: int = 0) -> Tensor:
    """Sizes `first` to `last` (excluded; 0 is the end) of x as an int64 vector, counted from the end."""
    return tensor("Shape", x, first, last)


def ints(*values: int | Int) -> Tensor:
    """The int64 vector of the given numbers, a constant."""
    return tensor("Ints", values)


def size(d: Expr) -> Tensor:
    """A dimension as an int64 tensor of shape [1], taken from a graph input that has it."""
    return tensor("DimT", d)


def at(v: Ints, index: int | Int) -> Int:
    """Element `index` of a vector attribute, such as a permutation."""
    return Int("vec-get", (v, lift(index, INT)))


def count(v: Ints) -> Int:
    """Length of a vector attribute."""
    return Int("vec-length", (v,))


# ------------------------------------------------------------------------------------------------------------- facts


def _array(x: Expr, env: Env) -> np.ndarray:
    return np.asarray(x.value(env))


def rank(x: Expr) -> Fact:
    """The number of axes of x; nothing for an operand that is absent."""
    return Fact("rank", (x,))


def dtype(x: Expr) -> Fact:
    return Fact("dtype", (x,))


def dim(x: Expr, axis: int | Int) -> Expr:
    """Dimension `axis` (counted from the end, so negative) of x."""
    return Dim("dim", (x, lift(axis, INT)))


def elem(x: Expr, index: int | Int) -> Expr:
    """Element `index` of an integer vector (or of a scalar, at 0), as a dimension."""
    return Dim("elem", (x, lift(index, INT)))


def length(x: Expr) -> Fact:
    """Number of elements of an integer vector."""
    return Fact("len", (x,))


def scalar(c: Expr) -> Fact:
    """The value of a floating constant of one element, of any rank; absent for NaN and Inf."""
    return Fact("fval", (c,))


def thin(c: Expr, x: Expr, k: int) -> list[Guard]:
    """The one-element constant c does not widen x: k = 0, it has rank 0; k = 1, it has no more axes than x."""
    return [le(rank(c), rank(x))] if k else [eq(rank(c), 0)]


def real(value: float) -> Float:
    """A number, for guards on the value of constants."""
    return Float("lit", (value,))


def float_of(n: Int) -> Float:
    """An integer as a number, for guards on the value of constants."""
    return Float("to-f64", (n,))


def is_const(c: Expr) -> Guard:
    """c is a true constant: an initializer nobody can override, or made of such."""
    return relation("const", c, test=lambda env: True, says="{0} is a constant")


def doubled(c: Expr, pairs: int | Int) -> Guard:
    """c is a constant whose last axis is cat(t, t) (pairs = 0), holds every element twice (pairs = 1), or is cat(-t, t)
    with no zero in t (pairs = 2).
    """
    p = lift(pairs, INT)

    def test(env: dict[str, Any]) -> bool:
        x = _array(c, env)
        if x.ndim == 0 or x.shape[-1] % 2 or not x.shape[-1]:
            return False
        h = x.shape[-1] // 2
        if p.value(env) == 2:
            return bool(np.array_equal(x[..., :h], -x[..., h:]) and x.all())
        a, b = (x[..., ::2], x[..., 1::2]) if p.value(env) else (x[..., :h], x[..., h:])
        return bool(np.array_equal(a, b))

    return relation("doubled", c, p, test=test, says="{0} repeats itself", anchors=True)


def arange(c: Expr, start: Int, end: Int, step: Int) -> Guard:
    """c is the constant vector start, start+step, ... below end; binds the three."""

    def test(env: dict[str, Any]) -> bool:
        x = _array(c, env)
        if x.ndim != 1 or x.dtype.kind not in "iu" or x.size < 2 or int(x[0]) < 0:
            return False
        first, stride = int(x[0]), int(x[1] - x[0])
        if stride < 1 or not np.array_equal(x, first + stride * np.arange(x.size)):
            return False
        for v, k in ((start, first), (end, int(x[-1]) + 1), (step, stride)):
            if env.setdefault(v.args[0], k) != k:
                return False
        return True

    return relation("irange", c, start, end, step, test=test, says="{0} is a range")


def lowest(c: Expr) -> Guard:
    """c is a constant so low that adding it to a score leaves nothing of it: -inf, or at most -1e30 (f16: -6e4)."""

    def test(env: dict[str, Any]) -> bool:
        x = _array(c, env)
        return bool(x.size == 1 and x.dtype.kind == "f" and x.reshape(-1)[0] <= masking(x.dtype.itemsize))

    return relation("lowest", c, test=test, says="{0} masks")


def visible(m: Expr) -> Guard:
    """Every row of the mask m leaves some key unmasked, by proof."""

    def test(env: dict[str, Any]) -> bool:
        x = _array(m, env)
        if x.dtype == bool:
            return bool(x.ndim and x.any(-1).all())
        return bool(x.dtype.kind == "f" and x.ndim and (x.max(-1) > masking(x.dtype.itemsize)).all())

    return relation("visible", m, test=test, says="no row of {0} hides every key")


def within(m: Expr, axis: int, x: Expr, other: int) -> Guard:
    """Axis `axis` of the mask m of an `Sdpa` is 1 or axis `other` of x, or symbols may make it so; m has that axis."""

    def test(env: dict[str, Any]) -> bool:
        mask, whole = _array(m, env), _array(x, env)
        return mask.ndim >= -axis and mask.shape[axis] in (1, whole.shape[other])

    return relation("within", m, x, axis, other, test=test, says="axis {2} of {0} broadcasts into {1}")


def same_batch(q: Expr, k: Expr) -> Guard:
    """Operands of an `Sdpa` have the same batch size by proof, or symbols that can only be equal."""

    def test(env: dict[str, Any]) -> bool:
        return bool(_array(q, env).shape[:1] == _array(k, env).shape[:1])

    return relation("same-batch", q, k, test=test, says="{0} and {1} have one batch size")


def mask_exact(m: Expr, q: Expr, k: Expr) -> Guard:
    """The mask m of an `Sdpa` has its rows and columns, and a batch and heads that are 1 or those of q."""

    def test(env: dict[str, Any]) -> bool:
        mask, x, y = (t.value(env) for t in (m, q, k))
        full = (*x.shape[:3], y.shape[2])
        return bool(
            mask is not None and mask.ndim == 4 and mask.shape[2:] == full[2:]
            and all(a in (1, b) for a, b in zip(mask.shape[:2], full[:2], strict=True))
        )  # fmt: skip

    return relation("mask-exact", m, q, k, test=test, says="{0} has the shape of the scores")


def symbolic(d: Expr, name: str) -> Guard:
    """d is a symbol, not a number. `name` is a variable of its own."""
    fact = Fact("=", (d, Dim("DSym", (Int("var", (name,)),))))
    return Guard((fact,), lambda env: True, f"{called(d)} is not fixed")


def supported(op: str, x: Expr) -> Guard:
    """The target runs `op` on x's element type."""
    says = f"the target runs {op} on the element type of {called(x)}"
    return relation("supported", op, dtype(x), test=lambda env: True, says=says)


def size_known(d: Expr) -> Guard:
    """Some graph input has this very dimension, so that `size` can be written."""
    return relation("sized", d, test=lambda env: d.value(env) is not None, says="{0} has a source")


__all__ = [
    "DIM", "SWAP", "Dim", "Float", "Guard", "Int", "Ints", "Node", "Sides", "Tensor", "Tensors",
    "apply", "arange", "at", "call", "cast", "concat", "count", "dim", "doubled", "dtype", "elem", "eq",
    "float_of", "ints", "is_const", "le", "length", "lift", "load_egglog", "lowest", "lt", "mask_exact", "ne",
    "near", "num", "operator", "rank", "real", "reshape", "rule", "same_batch", "scalar", "select", "shape", "size",
    "size_known", "slice_", "squeeze", "supported", "symbolic", "tensor", "thin", "transpose", "unsqueeze",
    "variable", "visible", "within",
]  # fmt: skip
