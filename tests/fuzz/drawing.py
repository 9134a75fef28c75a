"""A random model under construction: typed values whose sizes are known for several bindings of the symbols.

A size is a tuple, its number under each binding: sizes that are equal in all of them are taken for equal, and an
operand fits only if it fits in all. So nothing needs to be solved, and every drawn model runs for every binding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from kernels import is_float, numpy_type, types_of
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh
from sizes import CASES, Dim, Dims, broadcast, fixed, is_fixed, plus

HOSTILE = ("", " ", "a/b", "a.b", "ü", "Add", "x", "axes", "0", "-", "a b", "$1", "node/y")


class Undrawable(Exception):
    """What was begun cannot be finished here: the next thing is drawn instead."""


@dataclass(frozen=True)
class Value:
    name: str
    dtype: int
    dims: Dims

    @property
    def rank(self) -> int:
        return len(self.dims)


@dataclass(frozen=True)
class Feed:
    """How an input is fed: "normal", "positive", "bool", "mask" (of a row at least the first is true), "additive"
    (such a mask, added), or integers of `low <= i < high`, where `high` may depend on the binding.
    """

    value: Value
    kind: str = "normal"
    low: int = -3
    high: Dim = (4,) * CASES
    optional: np.ndarray | None = None  # an initializer that may be overridden


@dataclass
class Scope:
    """Nodes of one graph. Values of the outer ones are visible, but not to a function."""

    outer: Scope | None = None
    function: bool = False
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)

    def visible(self) -> list[Value]:
        return [*(self.outer.visible() if self.outer else ()), *self.values]


class Draw:
    """One model being drawn. Everything random comes from `rng`."""

    def __init__(self, seed: int | Sequence[int], opset: int | None = None) -> None:
        self.rng = np.random.default_rng(seed)
        newer = self.chance(0.85)
        self.opset = opset or int(self.rng.integers(13, 25) if newer else self.rng.integers(7, 13))
        self.sizes: dict[str, Dim] = {}
        for k, name in enumerate("bstp"):
            first = int(self.rng.permutation([2, 3, 4, 5])[0])
            later = [1 if k == 0 or self.chance(0.2) else int(self.rng.integers(1, 7)) for _ in range(CASES - 1)]
            self.sizes[name] = (first, *self.rng.permutation(later).tolist())
            if self.sizes[name][1:] == (1,) * (CASES - 1) and k:
                self.sizes[name] = (first, 1, first + 1)
        own = tuple(1 if self.chance(0.3) else n for n in self.sizes["b"])
        self.sizes["B"] = own  # the leading axis of integer inputs has the batch's name, and is theirs
        self.feeds: list[Feed] = []
        self.declared: dict[str, str] = {}  # how much is said of an input's shape
        self.functions: list[onnx.FunctionProto] = []
        self.scope = self.top = Scope()
        self.positive: set[str] = set()
        self.kinds: set[tuple[str, str]] = set()  # operators drawn
        self.fragments: list[str] = []
        self._count = 0
        self._hostile = self.chance(0.1)

    # ---- chance

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def one(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    # ---- making

    def name(self, stem: str = "v") -> str:
        self._count += 1
        odd = self.one(*HOSTILE) if self._hostile and self.chance(0.2) else ""
        return f"{odd}{stem}{self._count}" if odd or not self._hostile else f"{stem}{self._count}"

    def has(self, op: str, domain: str = "") -> bool:
        return bool(types_of(domain, op, self.opset if not domain else 1))

    def node(
        self,
        op: str,
        inputs: Sequence[Value | None],
        outputs: Sequence[tuple[int, Dims]],
        domain: str = "",
        **attributes: Any,
    ) -> list[Value]:
        """The values of a new node of the scope, of the given element types and sizes."""
        first = inputs[0] if inputs and domain != "local" and op not in ("If", "Loop", "Scan") else None
        if first is not None and first.dtype not in types_of(domain, op, self.opset if not domain else 1):
            raise Undrawable(f"{op} has no kernel for this")
        made = [Value(self.name(op[0].lower()), dtype, dims) for dtype, dims in outputs]
        if any(np.prod([d[k] for d in v.dims]) > 4096 for v in made for k in range(CASES)):
            raise Undrawable("too large")
        if any(0 in d for v in made for d in v.dims):
            raise Undrawable("empty")
        names = ["" if v is None else v.name for v in inputs]
        proto = h.make_node(op, names, [v.name for v in made], domain=domain, **attributes)
        if self.chance(0.5):
            proto.name = self.name("n")
        self.scope.nodes.append(proto)
        self.scope.values += made
        self.kinds.add((domain, op))
        return made

    def make(
        self, op: str, *inputs: Value | None, dims: Dims, dtype: int | None = None, domain: str = "", **attributes: Any
    ) -> Value:
        first = next((v.dtype for v in inputs if v is not None), T.FLOAT)
        return self.node(op, inputs, [(first if dtype is None else dtype, dims)], domain, **attributes)[0]

    def const(self, array: Any, dtype: int | None = None) -> Value:
        """A constant: an initializer, one that may be overridden, or a Constant node, in this graph or an outer one."""
        array = np.asarray(array) if dtype is None else np.asarray(array, numpy_type(dtype))
        kind = h.np_dtype_to_tensor_dtype(array.dtype)
        value = Value(self.name("c"), kind, tuple(fixed(n) for n in array.shape))
        node = self._constant_node(array, value) if self.scope.function or self.chance(0.35) else None
        if node is not None:
            self.scope.nodes.append(node)
            self.scope.values += [value] * bool(array.size)  # what follows takes no empty one
        else:
            scope = self.scope if self.chance(0.5) or self.scope.function else self.top
            scope.initializers.append(nh.from_array(array, value.name))
            scope.values += [value] * bool(array.size)
            if scope is self.top and self.chance(0.06):
                self.feeds.append(Feed(value, optional=array))
        return value

    def _constant_node(self, array: np.ndarray, value: Value) -> onnx.NodeProto:
        named: dict[str, Any] = {"value": nh.from_array(array, self.name("t"))}
        if self.opset >= 12 and self.chance(0.5):
            if array.dtype == np.int64:
                named = {"value_ints": array.tolist()} if array.ndim == 1 and array.size else named
                named = {"value_int": int(array)} if array.ndim == 0 else named
            elif array.dtype == np.float32 and np.isfinite(array).all():
                named = {"value_floats": array.tolist()} if array.ndim == 1 and array.size else named
                named = {"value_float": float(array)} if array.ndim == 0 else named
        return h.make_node("Constant", [], [value.name], **named)

    def ints(self, *numbers: int) -> Value:
        return (
            self.plain_const(np.array(numbers, np.int64))
            if self.chance(0.3)
            else self.const(np.array(numbers, np.int64))
        )

    def plain_const(self, array: np.ndarray) -> Value:
        """An initializer of this graph, or a Constant node where there are none."""
        value = Value(self.name("c"), h.np_dtype_to_tensor_dtype(array.dtype), tuple(fixed(n) for n in array.shape))
        if self.scope.function:
            self.scope.nodes.append(self._constant_node(array, value))
        else:
            self.scope.initializers.append(nh.from_array(array, value.name))
        self.scope.values.append(value)
        return value

    def number(self, x: float, like: Value) -> Value:
        """A constant of one element that does not change what it is combined with."""
        shape = self.one((), (), (1,), (1,) * self.one(1, max(1, like.rank))) if like.rank else ()
        return self.const(np.full(shape, x), like.dtype)

    def numbers(self, dims: Dims, dtype: int, low: float = -1.5, high: float = 1.5) -> Value:
        """A random constant of fixed sizes."""
        if not all(is_fixed(d) for d in dims):
            raise Undrawable("a constant has fixed sizes")
        return self.const(self.array([d[0] for d in dims], dtype, low, high))

    def array(self, shape: Sequence[int], dtype: int, low: float = -1.5, high: float = 1.5) -> np.ndarray:
        kind = numpy_type(dtype)
        if dtype == T.BOOL:
            return np.asarray(self.rng.random(shape) < 0.5)
        if is_float(dtype):
            array = np.asarray(self.rng.uniform(low, high, shape)).astype(kind)
            if self.chance(0.05) and array.size:
                special = [np.nan, np.inf, -np.inf, -0.0, 1e-38, 1e-40, 0.0]
                array.reshape(-1)[int(self.rng.integers(array.size))] = np.asarray(self.one(*special)).astype(kind)
            return array
        info = np.iinfo(kind)
        array = np.asarray(self.rng.integers(max(info.min, -3), 4, shape)).astype(kind)
        if self.chance(0.1) and array.size:
            array.reshape(-1)[int(self.rng.integers(array.size))] = self.one(info.min, info.max)
        return array

    def input(self, dtype: int, dims: Dims, kind: str = "", low: int = -3, high: Dim = (4,) * CASES) -> Value:
        """A new input of the model. Its sizes are fixed or those of a symbol."""
        here: Scope | None = self.scope
        while here is not None:
            if here.function:
                raise Undrawable("a function has its own inputs only")
            here = here.outer
        for d in dims:
            if not is_fixed(d) and d not in self.sizes.values():
                raise Undrawable("an input has no computed sizes")
        value = Value(self.name("x"), dtype, dims)
        self.declared[value.name] = self.one(*["full"] * 7, "unnamed", "no shape")
        plain = "bool" if dtype == T.BOOL else "normal"
        if not kind and not is_float(dtype) and dtype != T.BOOL:
            low = max(low, int(np.iinfo(numpy_type(dtype)).min))
        self.feeds.append(Feed(value, kind or plain, low, high))
        self.top.values.append(value)
        if kind == "positive":
            self.positive.add(value.name)
        return value

    # ---- finding

    def values(self, fits: Callable[[Value], bool] = lambda v: True) -> list[Value]:
        return [v for v in self.scope.visible() if fits(v)]

    def pick(self, fits: Callable[[Value], bool], recent: float = 0.6) -> Value:
        """A visible value, the last ones rather. Raises Undrawable if none fits."""
        found = self.values(fits)
        if not found:
            raise Undrawable("no such value")
        if self.chance(recent):
            return found[-1 - min(int(self.rng.geometric(0.3)) - 1, len(found) - 1)]
        return self.one(*found)

    def operand(
        self, op: str, domain: str = "", fits: Callable[[Value], bool] = lambda v: True, place: int = 0
    ) -> Value:
        """A value of an element type that the operator takes; at times one cast to it."""
        types = types_of(domain, op, self.opset if not domain else 1, place)
        if not types:
            raise Undrawable(f"no {op} in opset {self.opset}")
        found = self.values(lambda v: v.dtype in types and fits(v))
        if found and self.chance(0.85):
            return self.pick(lambda v: v.dtype in types and fits(v))
        return self.cast(self.pick(fits), self.one(*types))

    def cast(self, x: Value, to: int) -> Value:
        return x if x.dtype == to else self.make("Cast", x, dims=x.dims, dtype=to, to=to)

    def floating(
        self, fits: Callable[[Value], bool] = lambda v: True, types: Iterable[int] = (T.FLOAT, T.FLOAT16, T.DOUBLE)
    ) -> Value:
        wanted = tuple(types)
        if self.values(lambda v: v.dtype in wanted and fits(v)):
            return self.pick(lambda v: v.dtype in wanted and fits(v))
        return self.cast(self.pick(fits), self.one(*wanted))

    def tensor(self, dtype: int, dims: Dims) -> Value:
        """A value of exactly this kind: one that is there, a constant, an input or one made to fit."""
        if (found := self.values(lambda v: v.dtype == dtype and v.dims == dims)) and self.chance(0.7):
            return self.one(*found)
        if all(is_fixed(d) for d in dims) and self.chance(0.6):
            return self.numbers(dims, dtype)
        if (other := self.values(lambda v: v.dims == dims)) and self.chance(0.5):
            return self.cast(self.one(*other), dtype)
        return self.input(dtype, dims)

    # ---- sizes

    def owner(self, d: Dim) -> tuple[Value, int]:
        found = [(v, a) for v in self.scope.visible() for a, each in enumerate(v.dims) if each == d]
        if not found:
            raise Undrawable("no value has this size")
        return self.one(*found)

    def size(self, d: Dim) -> Value:
        """A vector of one element, the size, spelled in one of several ways."""
        if is_fixed(d) and self.chance(0.7):
            return self.ints(d[0])
        x, axis = self.owner(d)
        how = int(self.rng.integers(4))
        if how == 0 and self.opset >= 15:
            end = {} if axis == x.rank - 1 else {"end": axis + 1 if self.chance(0.5) else axis + 1 - x.rank}
            return self.make("Shape", x, dims=(fixed(1),), dtype=T.INT64, start=axis - self.one(0, x.rank), **end)
        shape = self.make("Shape", x, dims=(fixed(x.rank),), dtype=T.INT64)
        at = axis - self.one(0, x.rank)
        if how == 1:
            scalar = self.make("Gather", shape, self.const(np.int64(at)), dims=(), axis=0)
            return self.unsqueeze(scalar, [0])
        if how == 2 and self.opset >= 10:
            return self.make("Slice", shape, self.ints(axis), self.ints(axis + 1), dims=(fixed(1),))
        return self.make("Gather", shape, self.ints(at), dims=(fixed(1),), axis=0)

    def scalar_size(self, d: Dim) -> Value:
        return self.squeeze(self.size(d), [0])

    def sizes_of(self, dims: Dims) -> Value:
        """The vector of sizes, as a constant or joined of the sizes of values."""
        if all(is_fixed(d) for d in dims) and self.chance(0.7):
            return self.ints(*(d[0] for d in dims))
        parts = [self.size(d) for d in dims]
        return (
            self.make("Concat", *parts, dims=(fixed(len(dims)),), axis=0) if dims else self.const(np.zeros(0, np.int64))
        )

    # ---- what every part needs

    def axes(self, op: str, x: Value, axes: Sequence[int], dims: Dims, since: int, **attributes: Any) -> Value:
        """A node with axes: an input from opset `since`, an attribute before."""
        if self.opset >= since:
            return self.make(op, x, self.ints(*axes), dims=dims, **attributes)
        return self.make(op, x, dims=dims, axes=list(axes), **attributes)

    def unsqueeze(self, x: Value, axes: Sequence[int]) -> Value:
        """New axes, counted in the result."""
        rank = x.rank + len(axes)
        at, rest = {a % rank for a in axes}, iter(x.dims)
        dims = tuple(fixed(1) if i in at else next(rest) for i in range(rank))
        signed = [a % rank - (rank if self.opset >= 11 and self.chance(0.4) else 0) for a in axes]
        return self.axes("Unsqueeze", x, signed, dims, 13)

    def squeeze(self, x: Value, axes: Sequence[int]) -> Value:
        at = {a % x.rank for a in axes}
        dims = tuple(d for i, d in enumerate(x.dims) if i not in at)
        signed = [a % x.rank - (x.rank if self.opset >= 11 and self.chance(0.4) else 0) for a in axes]
        return self.axes("Squeeze", x, signed, dims, 13)

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        more = {"perm": list(perm)} if perm else {}
        return self.make("Transpose", x, dims=tuple(x.dims[p] for p in perm), **more)

    def reshape(self, x: Value, dims: Dims) -> Value:
        """To sizes of as many elements; the target is spelled with 0, -1, numbers and sizes of other values."""
        plain = [d[0] if is_fixed(d) else 0 if i < x.rank and x.dims[i] == d else None for i, d in enumerate(dims)]
        if (None not in plain or plain.count(None) == 1) and self.chance(0.6):
            numbers = [-1 if p is None else p for p in plain]
            if None not in plain and numbers and self.chance(0.4):
                numbers[int(self.rng.integers(len(numbers)))] = -1
            return self.make("Reshape", x, self.ints(*numbers), dims=dims)
        if not dims:
            return self.make("Reshape", x, self.const(np.zeros(0, np.int64)), dims=dims)
        free = int(self.rng.integers(len(dims))) if self.chance(0.5) else -1
        if free < 0 and (missing := [i for i, d in enumerate(dims) if not is_fixed(d) and not self._owned(d)]):
            free = missing[0]
        parts = [self.ints(-1) if i == free else self.size(d) for i, d in enumerate(dims)]
        target = self.make("Concat", *parts, dims=(fixed(len(dims)),), axis=0)
        more = {"allowzero": 1} if self.opset >= 14 and self.chance(0.1) else {}
        return self.make("Reshape", x, target, dims=dims, **more)

    def _owned(self, d: Dim) -> bool:
        return any(d in v.dims for v in self.scope.visible())

    def slice(self, x: Value, axis: int, start: int, end: int, step: int = 1) -> Value:
        """A slice of an axis of fixed size."""
        n = x.dims[axis][0]
        left = len(range(n)[slice(start, end, step)])
        if not is_fixed(x.dims[axis]) or left < 1:
            raise Undrawable("empty")
        dims = (*x.dims[: axis % x.rank], fixed(left), *x.dims[axis % x.rank + 1 :])
        return self.sliced(x, axis, self.ints(start), self.ints(end), dims, step, (start, end))

    def sliced(
        self,
        x: Value,
        axis: int,
        start: Value,
        end: Value,
        dims: Dims,
        step: int = 1,
        known: tuple[int, int] | None = None,
    ) -> Value:
        if self.opset < 10:
            if step != 1 or known is None:
                raise Undrawable("an old Slice has attributes")
            return self.make("Slice", x, dims=dims, starts=[known[0]], ends=[known[1]], axes=[axis % x.rank])
        at = axis % x.rank - (x.rank if self.opset >= 11 and self.chance(0.4) else 0)
        more = [self.ints(step)] if step != 1 or self.chance(0.2) else []
        return self.make("Slice", x, start, end, self.ints(at), *more, dims=dims)

    def split(self, x: Value, axis: int, sizes: Sequence[int]) -> list[Value]:
        dims = [(*x.dims[: axis % x.rank], fixed(n), *x.dims[axis % x.rank + 1 :]) for n in sizes]
        outs = [(x.dtype, d) for d in dims]
        at = axis % x.rank - (x.rank if self.opset >= 11 and self.chance(0.4) else 0)
        if self.opset >= 18 and len(set(sizes)) == 1 and self.chance(0.4):
            return self.node("Split", [x], outs, axis=at, num_outputs=len(sizes))
        if self.opset >= 13:
            return self.node("Split", [x, self.ints(*sizes)], outs, axis=at)
        return self.node("Split", [x], outs, axis=at, split=list(sizes))

    def concat(self, xs: Sequence[Value], axis: int) -> Value:
        total = xs[0].dims[axis]
        for x in xs[1:]:
            total = plus(total, x.dims[axis])
        at = axis % xs[0].rank
        dims = (*xs[0].dims[:at], total, *xs[0].dims[at + 1 :])
        signed = at - (xs[0].rank if self.opset >= 11 and self.chance(0.4) else 0)
        return self.make("Concat", *xs, dims=dims, axis=signed)

    def binary(self, op: str, x: Value, y: Value) -> Value:
        dims = broadcast(x.dims, y.dims)
        if dims is None:
            raise Undrawable("does not broadcast")
        compares = op in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
        return self.make(op, x, y, dims=dims, dtype=T.BOOL if compares else None)

    def unary(self, op: str, x: Value, domain: str = "", **attributes: Any) -> Value:
        return self.make(op, x, dims=x.dims, dtype=T.BOOL if op == "IsNaN" else None, domain=domain, **attributes)

    def mul(self, x: Value, y: Value) -> Value:
        return self.binary("Mul", *((x, y) if self.chance(0.5) else (y, x)))

    def add(self, x: Value, y: Value) -> Value:
        return self.binary("Add", *((x, y) if self.chance(0.5) else (y, x)))

    def where(self, c: Value, x: Value, y: Value) -> Value:
        dims = broadcast(c.dims, x.dims, y.dims)
        if dims is None:
            raise Undrawable("does not broadcast")
        return self.make("Where", c, x, y, dims=dims, dtype=x.dtype)

    def matmul(self, x: Value, y: Value) -> Value:
        lead = broadcast(x.dims[:-2], y.dims[:-2]) if x.rank > 2 or y.rank > 2 else ()
        if lead is None or min(x.rank, y.rank) < 2 or x.dims[-1] != y.dims[-2]:
            raise Undrawable("does not multiply")
        return self.make("MatMul", x, y, dims=(*lead, x.dims[-2], y.dims[-1]))

    def reduce(self, op: str, x: Value, axes: Sequence[int], keep: int = 1) -> Value:
        at = {a % x.rank for a in axes}
        dims = tuple(fixed(1) if i in at else d for i, d in enumerate(x.dims) if keep or i not in at)
        signed = [a % x.rank - (x.rank if self.opset >= 11 and self.chance(0.5) else 0) for a in axes]
        since = 13 if op == "ReduceSum" else 18
        more = {} if keep and self.chance(0.5) else {"keepdims": keep}
        return self.axes(op, x, signed, dims, since, **more)

    @contextmanager
    def within(self, scope: Scope) -> Iterator[Scope]:
        before, self.scope = self.scope, scope
        try:
            yield scope
        finally:
            self.scope = before

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """What an Undrawable leaves half done is no fault: its values stay, and may be used or not."""
        with suppress(Undrawable):
            yield
