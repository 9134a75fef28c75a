"""What rule files are written in: short names for terms, and the facts guards may ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..terms import DIM, INT
from ..terms.expression import (
    Dim,
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
from .fact import counted
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


def rank(x: Expr) -> Fact:
    """The number of axes of x; nothing for an operand that is absent."""
    return Fact("rank", (x,))


def dtype(x: Expr) -> Fact:
    return Fact("dtype", (x,))


def dim(x: Expr, axis: int | Int) -> Expr:
    """Dimension `axis` (counted from the end, so negative) of x."""
    return Dim("dim", (x, lift(axis, INT)))


def sizes(x: Expr) -> Fact:
    """All dimensions of x, to be compared with those of another tensor; nothing if one is unknown, or above six."""
    return Fact("sizes", (x,))


def elem(x: Expr, index: int | Int) -> Expr:
    """Element `index` of an integer vector (or of a scalar, at 0), as a dimension."""
    return Dim("elem", (x, lift(index, INT)))


def item(xs: Tensors, index: int | Int) -> Tensor:
    """Element `index` of a list of tensors that `weights` or `biases` tells of."""
    return Tensor("item-of", (xs, lift(index, INT)))


def widths(xs: Tensors) -> Fact:
    """The last sizes of such a list, all of known ones."""
    return Fact("widths-of", (xs,))


def length(x: Expr) -> Fact:
    """Number of elements of an integer vector."""
    return Fact("len", (x,))


def scalar(c: Expr) -> Fact:
    """The value of a floating constant of one element, of any rank; absent for NaN and Inf."""
    return Fact("fval", (c,))


def thin(c: Expr, x: Expr) -> Guard:
    """The one-element constant c does not widen x: it has rank 0, or no more axes than x is known to have."""
    return replace(le(rank(c), Fact("axes", (x,))), says=f"{called(c)} does not widen {called(x)}")


def exactly(c: Expr, x: Expr, value: float) -> list[Guard]:
    """c is that constant, and does not widen x."""
    return [eq(scalar(c), real(value)), thin(c, x)]


def filled(c: Expr) -> Fact:
    """The number that every element of a floating constant of several elements is; absent for NaN and Inf."""
    return Fact("filled", (c,))


def real(value: float) -> Float:
    """A number, for guards on the value of constants."""
    return Float("lit", (value,))


def float_of(n: Int) -> Float:
    """An integer as a number, for guards on the value of constants."""
    return Float("to-f64", (n,))


def is_const(c: Expr) -> Guard:
    """c is a true constant: an initializer nobody can override, or made of such."""
    return relation("const", c)


def doubled(c: Expr, pairs: int | Int, sign: int | Int) -> Guard:
    """c is a constant whose last axis is cat(t, t) (pairs = 0), or holds every element twice (1); with a sign of -1 the
    first of each pair is negated, and none is zero.
    """
    return relation("doubled", c, pairs, sign)


def turns(c: Expr, pairs: int | Int, sign: int | Int) -> Guard:
    """c is a constant matrix, and y @ c a quarter turn of each pair of y: by halves (pairs = 0) or interleaved (1);
    backwards with a sign of -1.
    """
    return relation("turns", c, pairs, sign)


def arange(c: Expr, start: Int, end: Int, step: Int) -> Guard:
    """c is the constant vector start, start+step, ... below end; binds the three."""

    def test(env: dict[str, Any]) -> bool:
        found = counted(np.asarray(c.value(env)))
        return found is not None and all(
            env.setdefault(v.args[0], k) == k for v, k in zip((start, end, step), found, strict=True)
        )

    return relation("irange", c, start, end, step, test=test)


def lowest(c: Expr) -> Guard:
    """c is a constant so low that adding it to a score leaves nothing of it: -inf, or at most -1e30 (f16: -6e4)."""
    return relation("lowest", c)


def floating(x: Expr) -> Guard:
    """The elements of x are floats."""
    return Guard((Fact("floating", (dtype(x),)),), lambda env: np.asarray(x.value(env)).dtype.kind == "f",
                 f"{called(x)} is floating")  # fmt: skip


def zero_or_more(x: Expr) -> Guard:
    """No element of the floating x is below 0, or is -0.0, by proof: it is a square, a mean of such, or the like."""
    return relation("zero-or-more", x)


def zero_or_one(x: Expr) -> Guard:
    """Every element of x is 0 or 1, by proof: it is a boolean as a number, a constant, or a part of such."""
    return relation("zero-or-one", x)


def weights(x: Expr, ws: Tensors) -> Guard:
    """ws are the constant matrices that x is multiplied by, each once."""

    def test(env: dict[str, Any]) -> bool:
        given = np.asarray(x.value(env))
        shapes = [(w.dtype, w.ndim, *w.shape[:1]) for w in ws.value(env)]
        return all(shape == (given.dtype, 2, *given.shape[-1:]) for shape in shapes)

    return relation("weights-of", x, ws, test=test)


def biases(x: Expr, ws: Tensors, bs: Tensors) -> Guard:
    """ws are those matrices, and bs constant vectors that are added to the products, one to each."""

    def test(env: dict[str, Any]) -> bool:
        given, pairs = np.asarray(x.value(env)), zip(ws.value(env), bs.value(env), strict=True)
        return all({w.dtype, b.dtype} == {given.dtype} and w.shape == (*given.shape[-1:], *b.shape) for w, b in pairs)

    return relation("biases-of", x, ws, bs, test=test)


def never(c: Expr) -> Guard:
    """c is a constant of one element, -inf."""
    return relation("never", c)


def all_true(m: Expr) -> Guard:
    """Every element of the boolean m is true, by proof."""
    return relation("all-true", m)


def all_false(m: Expr) -> Guard:
    """Every element of the boolean m is false, by proof."""
    return relation("all-false", m)


def visible(m: Expr) -> Guard:
    """Every row of the mask m leaves some key unmasked, by proof."""
    return relation("visible", m)


def within(m: Expr, axis: int, x: Expr, other: int) -> Guard:
    """Axis `axis` of the mask m of an `Sdpa` is 1 or axis `other` of x, or symbols may make it so; m has that axis."""
    return relation("within", m, x, axis, other)


def same_batch(q: Expr, k: Expr) -> Guard:
    """Operands of an `Sdpa` have the same batch size by proof, or symbols that can only be equal."""
    return relation("same-batch", q, k)


def mask_exact(m: Expr, q: Expr, k: Expr) -> Guard:
    """The mask m of an `Sdpa` has its rows and columns, and a batch and heads that are 1 or those of q."""
    return relation("mask-exact", m, q, k)


def symbolic(d: Expr, name: str) -> Guard:
    """d is a symbol, not a number. `name` is a variable of its own."""
    fact = Fact("=", (d, Dim("DSym", (Int("var", (name,)),))))
    return Guard((fact,), lambda env: True, f"{called(d)} is not fixed")


def supported(op: str, x: Expr) -> Guard:
    """The target runs `op` on x's element type."""
    fact = Fact("supported", (Expr("lit", (op,)), dtype(x)))
    return Guard((fact,), lambda env: True, f"the target runs {op} on the element type of {called(x)}")


def size_known(d: Expr) -> Guard:
    """Some graph input has this very dimension, so that `size` can be written."""
    return relation("sized", d)


__all__ = [
    "DIM", "SWAP", "Dim", "Float", "Guard", "Int", "Ints", "Node", "Sides", "Tensor", "Tensors", "all_false",
    "all_true", "apply", "arange", "at", "biases", "call", "cast", "concat", "count", "dim", "doubled", "dtype",
    "elem", "eq", "exactly", "filled", "float_of", "floating", "ints", "is_const", "item", "le", "length", "lift",
    "load_egglog", "lowest", "lt", "mask_exact", "ne", "near", "never", "num", "operator", "rank", "real", "reshape",
    "rule", "same_batch", "scalar", "select", "shape", "size", "size_known", "sizes", "slice_", "squeeze",
    "supported", "symbolic", "tensor", "thin", "transpose", "turns", "unsqueeze", "variable", "visible", "weights",
    "widths", "within", "zero_or_more", "zero_or_one",
]  # fmt: skip
