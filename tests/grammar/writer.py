"""Nodes of one spelling as they are written, and the decisions that every formula has in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from grammar.choices import Drawing
from grammar.noise import disturb
from onnx import helper as h
from onnx import numpy_helper as nh

Arrays = dict[str, np.ndarray]
Sizes = dict[str, int]
F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
OPSETS = ("17", "13", "14", "15", "16", "18", "19", "20", "21", "22", "23")


@dataclass
class Input:
    """An input: sizes are numbers or symbols; `make` gives its values for sizes of the symbols."""

    name: str
    dims: tuple[int | str, ...]
    kind: np.dtype[Any]
    make: Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


@dataclass
class Spelling:
    """A formula spelled out. `reference` computes the outputs in float64 from the feeds, by names without prefix."""

    graph: onnx.GraphProto
    opset: int
    prefix: str
    inputs: list[Input]
    sizes: list[Sizes]
    reference: Callable[[Arrays], list[np.ndarray]]
    expected: Counter[str]
    length: int  # of the longest sum
    drawing: Drawing

    @property
    def kind(self) -> np.dtype[Any]:
        return np.dtype(self.drawing.chosen["dtype"])

    def feeds(self, case: int) -> Arrays:
        rng = np.random.default_rng([case, 11])
        sizes = self.sizes[case]
        shapes = [tuple(d if isinstance(d, int) else sizes[d] for d in i.dims) for i in self.inputs]
        return {i.name: i.make(rng, s).astype(i.kind) for i, s in zip(self.inputs, shapes, strict=True)}


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape)


def kept(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Booleans; the first of a row is true, so that no row hides all."""
    found = rng.random(shape) < 0.7
    found[..., 0] = True
    return found


class Writer:
    """Writes one spelling. `kind` is the element type in which numbers are written now, `element` that of the inputs.

    `sizes` are three sets of sizes of the symbols; the second has a batch and a length of 1.
    """

    def __init__(self, draw: Drawing, prefix: str, sizes: Sequence[Sizes], kinds: Sequence[str] = ()) -> None:
        self.draw, self.prefix = draw, prefix
        self.opset = int(draw.choice("opset", OPSETS))
        self.kind = np.dtype(draw.choice("dtype", kinds or ("float32", "float16", "float64")))
        self.element = self.kind
        these = draw.choice("sizes", ("symbolic", "fixed", "fixed to 1"))
        self.fixed = these != "symbolic"
        self.sizes = list({"fixed": sizes[2:], "fixed to 1": sizes[1:2]}.get(these, sizes))
        self.inputs: list[Input] = []
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.rng = np.random.default_rng(5)
        self._count = 0

    # ---- values

    def _name(self, stem: str) -> str:
        self._count += 1
        return f"{self.prefix}{stem}{self._count}"

    def op(self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        made = [self._name(kind[0].lower()) for _ in range(outputs)]
        self.nodes.append(h.make_node(kind, list(inputs), made, domain=domain, **attributes))
        self.nodes[-1].name = f"node {made[0]}"
        return made[0] if outputs == 1 else made

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """w.Mul(a, b) is w.op("Mul", a, b)."""
        if not name[0].isupper():
            raise AttributeError(name)
        return lambda *inputs, **more: self.op(name, *inputs, **more)

    def const(self, array: Any, kind: Any = None) -> str:
        name = self._name("c")
        self.constants.append(nh.from_array(np.asarray(array, kind or self.kind), name))
        return name

    def num(self, x: float, kind: Any = None) -> str:
        shape = () if self.draw.choice("scalars", ("rank 0", "rank 1")) == "rank 0" else (1,)
        return self.const(np.full(shape, x), kind)

    def ints(self, *numbers: int) -> str:
        return self.const(list(numbers), np.int64)

    def int(self, number: int) -> str:
        return self.const(number, np.int64)

    def weights(self, *shape: int, low: float = -1.0, high: float = 1.0) -> np.ndarray:
        """Numbers of a constant, as the element type has them."""
        return self.rng.uniform(low, high, shape).astype(self.element)

    def input(self, name: str, *dims: int | str, kind: Any = None, make: Any = normal) -> str:
        self.inputs.append(Input(name, dims, np.dtype(kind or self.element), make))
        return self.prefix + name

    def output(self, value: str, rank: int, kind: Any = None) -> None:
        name = f"{self.prefix}out{len(self.outputs)}"
        self.nodes.append(h.make_node("Identity", [value], [name], name=f"node {name}"))
        element = h.np_dtype_to_tensor_dtype(np.dtype(kind or self.element))
        self.outputs.append(h.make_tensor_value_info(name, element, [None] * rank))

    @contextmanager
    def computing(self, kind: Any) -> Iterator[None]:
        before, self.kind = self.kind, np.dtype(kind)
        try:
            yield
        finally:
            self.kind = before

    # ---- decisions in common

    def negative(self, x: str) -> str:
        match self.draw.choice("negative", ("Neg", "0 - x", "x * -1", "x / -1")):
            case "0 - x":
                return self.Sub(self.num(0), x)
            case "x * -1":
                return self.Mul(x, self.num(-1))
            case "x / -1":
                return self.Div(x, self.num(-1))
        return self.Neg(x)

    def add(self, x: str, y: str) -> str:
        return self._commuting("Add", x, y)

    def mul(self, x: str, y: str) -> str:
        return self._commuting("Mul", x, y)

    def _commuting(self, op: str, x: str, y: str) -> str:
        order = self.draw.choice("operands", ("as read", "turned"))
        return self.op(op, x, y) if order == "as read" else self.op(op, y, x)

    def cast(self, x: str, kind: Any) -> str:
        how = self.draw.choice("cast", ("Cast", "CastLike")) if self.opset >= 15 else "Cast"
        if how == "CastLike":
            return self.CastLike(x, self.const(np.zeros(1), kind))
        return self.Cast(x, to=h.np_dtype_to_tensor_dtype(np.dtype(kind)))

    # ---- what has other operands in other opsets

    def unsqueeze(self, x: str, *axes: int) -> str:
        if len(axes) > 1 and self.draw.choice("unsqueezes", ("at once", "stacked")) == "stacked" and min(axes) >= 0:
            for axis in sorted(axes):
                x = self.Unsqueeze(x, self.ints(axis))
            return x
        return self.Unsqueeze(x, self.ints(*axes))

    def squeeze(self, x: str, *axes: int) -> str:
        return self.Squeeze(x, self.ints(*axes))

    def reduce(self, op: str, x: str, axis: int, keep: bool = True) -> str:
        if op == "ReduceSum" or self.opset >= 18:
            return self.op(op, x, self.ints(axis), keepdims=int(keep))
        return self.op(op, x, axes=[axis], keepdims=int(keep))

    def split(self, x: str, axis: int, *sizes: int) -> list[str]:
        if len(set(sizes)) == 1 and self.opset >= 18 and self.draw.choice("split", ("sizes", "number")) == "number":
            return list(self.op("Split", x, outputs=len(sizes), axis=axis, num_outputs=len(sizes)))
        return list(self.op("Split", x, self.ints(*sizes), outputs=len(sizes), axis=axis))

    def slice(self, x: str, axis: int, start: int, end: int, step: int = 1) -> str:
        more = (self.ints(step),) if step != 1 else ()
        return self.Slice(x, self.ints(start), self.ints(end), self.ints(axis), *more)

    # ---- sizes

    def size(self, x: str, axis: int, rank: int) -> str:
        """The size of an axis as a vector of one element."""
        options = ("Gather", "Slice", "scalar Gather") + (("Shape of an axis",) if self.opset >= 15 else ())
        match self.draw.choice("size", options):
            case "Slice":
                return self.Slice(self.Shape(x), self.ints(axis), self.ints(axis + 1))
            case "scalar Gather":
                return self.unsqueeze(self.Gather(self.Shape(x), self.int(axis), axis=0), 0)
            case "Shape of an axis":
                return self.Shape(x, start=axis, end=axis + 1)
        return self.Gather(self.Shape(x), self.ints(axis), axis=0)

    def reshape(self, x: str, *dims: int | tuple[str, int, int]) -> str:
        """Sizes are numbers, -1 and 0 as in the operator, or those of another value: (its name, axis, rank)."""
        how = self.draw.choice("targets", ("constant", "run time"))
        numbers = [d if isinstance(d, int) else None for d in dims]
        if how == "constant" and numbers.count(None) <= 1 and -1 not in numbers:
            numbers = [-1 if n is None else n for n in numbers]
        if None not in numbers and (how == "constant" or all(isinstance(d, int) for d in dims)):
            return self.Reshape(x, self.ints(*numbers))
        return self.Reshape(x, self.vector(*dims))

    def vector(self, *dims: int | tuple[str, int, int]) -> str:
        return self.Concat(*(self.ints(d) if isinstance(d, int) else self.size(*d) for d in dims), axis=0)

    # ---- the whole

    def finish(
        self, reference: Callable[[Arrays], list[np.ndarray]], expected: Mapping[str, int], length: int
    ) -> Spelling:
        constants, nodes = self._constants()
        one = self.sizes[0]
        infos = [
            h.make_tensor_value_info(
                self.prefix + i.name, h.np_dtype_to_tensor_dtype(i.kind),
                [d if isinstance(d, int) else one[d] if self.fixed else self.prefix + d for d in i.dims],
            )
            for i in self.inputs
        ]  # fmt: skip
        graph = h.make_graph([*nodes, *self.nodes], "spelling", infos, self.outputs, constants)
        disturb(graph, self.opset, self.draw, self.prefix)
        return Spelling(
            graph, self.opset, self.prefix, self.inputs, self.sizes, reference, Counter(expected), length, self.draw
        )  # fmt: skip

    def _constants(self) -> tuple[list[onnx.TensorProto], list[onnx.NodeProto]]:
        how = self.draw.choice("constants", ("initializers", "nodes", "every other a node"))
        as_node = [how == "nodes" or (how != "initializers" and k % 2 == 1) for k in range(len(self.constants))]
        pairs = list(zip(self.constants, as_node, strict=True))
        nodes = [h.make_node("Constant", [], [t.name], value=t) for t, n in pairs if n]
        return [t for t, n in pairs if not n], nodes
