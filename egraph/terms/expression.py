"""Terms: pattern variables, constructors and literals, as Python objects that print, evaluate and list their variables.

A rule is written over these objects. Operators build terms (`x * y`, `-x`); everything else is a call of the same name
as in the term table (`call("Cos", x)`, or the helpers in `lang.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

import numpy as np

from ..errors import RuleError
from . import CLASSES, DIM, FLOAT, INT, INTS, LIST, OPS, TENSOR, Op, declare, form, signature
from .dtypes import code

Env = Mapping[str, Any]


def _dim(x: Any, i: int) -> int | None:
    shape = np.shape(x)
    return shape[i] if -len(shape) <= i < 0 else None


def _elem(x: Any, i: int) -> int | None:
    x = np.asarray(x)
    return int(x.reshape(-1)[i]) if x.dtype.kind in "iu" and 0 <= i < x.size else None


def _widths(xs: list[Any]) -> tuple[int, ...] | None:
    """The last sizes of matrices and vectors; None if one is neither."""
    return tuple(np.shape(x)[-1] for x in xs) if all(np.ndim(x) in (1, 2) for x in xs) else None


def number(x: Any) -> float | None:
    """The value of a floating array of one element, if it is finite."""
    x = np.asarray(x)
    return float(x.reshape(-1)[0]) if x.size == 1 and x.dtype.kind == "f" and np.isfinite(x).all() else None


def fill(x: Any) -> float | None:
    """The number of which a floating array of several elements holds nothing but copies, if it is finite."""
    x = np.asarray(x)
    return number(x.reshape(-1)[:1]) if x.size > 1 and x.dtype.kind == "f" and (x == x.reshape(-1)[0]).all() else None


#: What is no term: arithmetic on attributes, and the facts of tensors that are numbers; None where there is none.
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b,
    "/": lambda a, b: a // b if isinstance(a, int) and isinstance(b, int) else a / b,
    "%": lambda a, b: a % b, "min": min, "max": max, "abs": abs, "to-f64": float,
    "vec-of": lambda *a: tuple(a), "vec-get": lambda v, i: v[i], "vec-length": len, "DNum": lambda n: n,
    "rank": lambda x: None if x is None else np.ndim(x), "dtype": lambda x: code(np.asarray(x)), "len": np.size,
    "fval": number, "filled": fill, "dim": _dim, "elem": _elem,
    "sizes": lambda x: None if x is None else np.shape(x), "axes": np.ndim, "item-of": lambda xs, i: xs[i],
    "widths-of": _widths,
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Expr:
    """head is "var" (args = (name,)), "lit" (args = (value,)), one of `_FUNCTIONS`, or the name of a term."""

    head: str
    args: tuple[Any, ...]
    op: Op | None = None
    sort: ClassVar[str] = TENSOR

    def text(self) -> str:
        """The expression in egglog's language."""
        if self.head in ("var", "lit"):
            quoted = self.head == "lit" and isinstance(self.args[0], str)
            return f'"{self.args[0]}"' if quoted else str(self.args[0])
        return f"({self.head} {' '.join(a.text() for a in self.args)})" if self.args else f"({self.head})"

    def key(self) -> tuple[Any, ...]:
        """Structural identity."""
        return (self.head, *(a.key() if isinstance(a, Expr) else a for a in self.args))

    def variables(self) -> frozenset[str]:
        if self.head in ("var", "lit"):
            return frozenset(self.args if self.head == "var" else ())
        return frozenset().union(*(a.variables() for a in self.args))

    def value(self, env: Env) -> Any:
        """Evaluate with numpy; `env` binds tensor variables to arrays and the others to numbers or tuples."""
        if self.head == "var":
            return env[self.args[0]]
        if self.head == "lit":
            return self.args[0]
        args = [a.value(env) for a in self.args]
        if self.op is not None:
            meaning = self.op.numpy
            if meaning is None:
                raise RuleError(f"term {self.head} has no numeric meaning and cannot be used in a checked rule")
            with np.errstate(all="ignore"):  # as onnxruntime: NaN and infinities come without a word
                return meaning(*args)
        return _FUNCTIONS[self.head](*args)

    def parts(self) -> list[Expr]:
        """Every expression in it, itself included, children first."""
        inner = () if self.head in ("var", "lit") else self.args
        return [*(p for a in inner for p in a.parts()), self]

    def subterms(self) -> list[Expr]:
        """Every tensor- or list-valued constructor in it, itself included, children first."""
        return [p for p in self.parts() if p.op is not None]


class Tensor(Expr):
    """A value of the graph."""

    __slots__ = ()

    def __add__(self, other: Tensor) -> Tensor:
        return _binary("Add", self, other)

    def __sub__(self, other: Tensor) -> Tensor:
        return _binary("Sub", self, other)

    def __mul__(self, other: Tensor) -> Tensor:
        return _binary("Mul", self, other)

    def __truediv__(self, other: Tensor) -> Tensor:
        return _binary("Div", self, other)

    def __matmul__(self, other: Tensor) -> Tensor:
        return _binary("MatMul", self, other)

    def __neg__(self) -> Tensor:
        return Tensor("Neg", (self,), OPS["Neg"])


def _binary(name: str, x: Tensor, y: Tensor) -> Tensor:
    return Tensor(name, (x, y), OPS[name])


class Tensors(Expr):
    """A list of tensors (the operands of Concat)."""

    __slots__ = ()
    sort = LIST


class Node(Expr):
    """A node with several outputs."""

    __slots__ = ()
    sort = "Nd"


class Dim(Expr):
    """A dimension, number or symbol."""

    __slots__ = ()
    sort = DIM


class Ints(Expr):
    """A short vector of integers: a permutation, axes, sizes."""

    __slots__ = ()
    sort = INTS


class _Number(Expr):
    __slots__ = ()

    def _bin(self, op: str, other: Any, swap: bool = False) -> Self:
        rhs = other if isinstance(other, Expr) else type(self)("lit", (other,))
        return type(self)(op, (rhs, self) if swap else (self, rhs))

    def __add__(self, other: Any) -> Self:
        return self._bin("+", other)

    def __sub__(self, other: Any) -> Self:
        return self._bin("-", other)

    def __rsub__(self, other: Any) -> Self:
        return self._bin("-", other, swap=True)

    def __mul__(self, other: Any) -> Self:
        return self._bin("*", other)

    def __rmul__(self, other: Any) -> Self:
        return self._bin("*", other)

    def __truediv__(self, other: Any) -> Self:
        return self._bin("/", other)

    def __floordiv__(self, other: Any) -> Self:
        return self._bin("/", other)

    def __mod__(self, other: Any) -> Self:
        return self._bin("%", other)


class Int(_Number):
    """An integer: an axis, a width, an element type."""

    __slots__ = ()
    sort = INT


class Float(_Number):
    """A number used as an attribute, such as epsilon."""

    __slots__ = ()
    sort = FLOAT


_BY_SORT: dict[str, type[Expr]] = {
    TENSOR: Tensor, LIST: Tensors, "Nd": Node, DIM: Dim, INTS: Ints, INT: Int, FLOAT: Float,
}  # fmt: skip


def variable(name: str, kind: type[Expr]) -> Expr:
    return kind("var", (name,))


def lift(value: Any, sort: str) -> Expr:
    """A Python value as a literal of the given sort. Raises RuleError if it is of another sort."""
    if isinstance(value, Expr):
        if value.sort != sort:
            raise RuleError(f"{value.text()} is of sort {value.sort}, {sort} is wanted")
        return value
    if sort == LIST:
        tail: Expr = Tensors("Nil", (), OPS["Nil"])
        for item in reversed(list(value)):
            tail = Tensors("Cons", (lift(item, TENSOR), tail), OPS["Cons"])
        return tail
    if sort == INTS:
        return Ints("vec-of", tuple(lift(v, INT) for v in value)) if len(value) else Ints("vec-empty", ())
    if sort == INT and isinstance(value, int):
        return Int("lit", (int(value),))
    if sort == FLOAT and isinstance(value, int | float):
        return Float("lit", (float(value),))
    if sort == DIM and isinstance(value, int):
        return Dim("DNum", (Int("lit", (value,)),))
    raise RuleError(f"{value!r} cannot be used as {sort}")


def call(name: str, *args: Any) -> Any:
    """The term `name(*args)`. Raises RuleError for an unknown term, a wrong number of operands or a wrong sort."""
    op = OPS.get(name)
    if op is None:
        raise RuleError(f"unknown term {name!r}; the table is egraph/terms")
    return apply(op, *args)


def tensor(name: str, *args: Any) -> Tensor:
    """`call`, for a term that is a tensor."""
    return cast(Tensor, call(name, *args))


def apply(op: Op, *args: Any) -> Any:
    """The term of an operator that may be missing from the table (terms added by a caller)."""
    if len(args) != len(op.operands):
        raise RuleError(f"{op.name} takes {len(op.operands)} operands, got {len(args)}")
    lifted = tuple(lift(a, sort) for a, (_, sort) in zip(args, op.operands, strict=True))
    return cast(Any, _BY_SORT[op.out])(op.name, lifted, op)


def operator(name: str, sig: str, numpy: Callable[..., Any], *, onnx: str, shape: str = "same") -> Op:
    """Declare a term of your own, written to files as the ONNX node `onnx` ("domain::OpType").

    `sig` lists operands, e.g. "x w eps:f64": tensors unless a sort is given; the others become node attributes.
    `numpy` is its meaning, on arrays and plain numbers. `shape` names a shape law of facts.py ("" for none).
    """
    if name in OPS:
        raise RuleError(f"the term {name!r} exists already; choose another name")
    inputs, attributes = (
        " ".join(n for n, sort in signature(sig) if (sort in CLASSES) == tensors) for tensors in (True, False)
    )
    return declare(name, sig, numpy, shape, role="fused", forms=(form(onnx, inputs, attributes),))
