"""A model of one operator, many times in a row, as the writer would write each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ...egraph.targets import Work
from ...egraph.terms import CLASSES, LIST, SILENT
from ...egraph.terms.dtypes import CODES, FLOAT32, INT64
from ..emit import constant, emit
from .nodes import term
from .operands import Array, NoRoom, Unfit, operand

_IR_VERSION = 10
#: Bytes of the largest tensor that lies in the model.
_INLINE = 1024
#: Bytes that an operator may take where the system does not say what is free.
_ROOM = 1 << 30
_GRAPHS = (ir.Graph, ir.Function)


@dataclass(slots=True)
class Single:
    """The operator of a work in an operator set. Raises Unfit where it cannot stand alone."""

    work: Work
    opset: int
    operands: list[Array | None] = field(init=False)

    def __post_init__(self) -> None:
        if self.work.op in SILENT or any(_is_graph(v) for v in self.work.attrs.values()):
            raise Unfit("it has a body" if self.work.op not in SILENT else "it is no operator")
        needed = sum(t.size * t.width for t in (*self.work.ins, *self.work.outs))
        if needed > _room():
            raise NoRoom(f"its operands and results take {needed >> 20} MiB")
        self.operands = [operand(self.work, i) if t.dtype else None for i, t in enumerate(self.work.ins)]
        op = term(self.work)
        self.opset = max(self.opset, 1 if op is None else op.oldest)

    def chain(self, count: int, copies: Sequence[int], results: Sequence[int] = (), prefix: str = "") -> Chain:
        """The operator `count` times, with so many copies of each operand, that take turns; of `count` 0 nothing but
        operands. Of each result so many places take turns, too, as outputs; of 0 places it is none. All names begin
        with the prefix. Raises Unfit where the rank of a result is unknown.
        """
        if any(t.shape is None for t in self.work.outs):
            raise Unfit("the rank of a result is unknown")
        work, printer = self.work, _Printer(self.opset, prefix)
        names: list[list[str]] = []
        chain = Chain(prefix)
        graph = chain.model.graph
        for i, (t, array) in enumerate(zip(work.ins, self.operands, strict=True)):
            own = [f"{prefix}operand_{i}_{k}" for k in range(0 if array is None else copies[i])]
            names.append(own)
            for k, name in enumerate(own):
                if array is None or (t.const and not count):
                    continue
                if not t.const:
                    chain.fed[name] = array.copy()
                    _declare(graph.input.add(), name, CODES[t.dtype], array.ndim)
                elif array.nbytes > _INLINE:
                    chain.stored[name] = _told_apart(array, k)
                    graph.initializer.append(_outside(name, array, CODES[t.dtype]))
                else:
                    graph.initializer.append(ir.to_proto(ir.tensor(array, ir.DataType(CODES[t.dtype]), name=name)))
        first = next(iter(chain.fed), "")
        if not first:
            first = f"{prefix}probe"
            chain.fed[first] = np.zeros(1, np.float32)
            _declare(graph.input.add(), first, FLOAT32, 1)
        chain.give(first, chain.fed[first].ndim)
        values = [ir.Value(name=own[0]) if own else None for i, own in enumerate(names)]
        made = _one(printer, work, values) if count else []
        graph.initializer.extend(ir.to_proto(v.const_value) for v in printer.initializers if v.const_value is not None)
        nodes = [ir.to_proto(node) for node in printer.nodes]
        turning = {own[0]: own for own in names if len(own) > 1}
        for k in range(count):
            for pattern in nodes:
                node = graph.node.add()
                node.CopyFrom(pattern)
                node.name = f"{pattern.name}_{k}"
                for side in (node.input, node.output):
                    for j, name in enumerate(side):
                        own = turning.get(name, [])
                        side[j] = own[k % len(own)] if own else f"{name}_{k}" if side is node.output else name
            for value, t in zip(made, work.outs, strict=False):
                chain.give(f"{value.name}_{k}", len(t.shape or ()))
        for value, t, places in zip(made, work.outs, results, strict=False):
            for place in range(min(places, count)):
                taken = [f"{value.name}_{k}" for k in range(place, count, places)]
                chain.taken.append((taken, np.zeros(t.shape or (), ir.DataType(CODES[t.dtype]).numpy())))
                for name in taken:
                    _declare(graph.output.add(), name, CODES[t.dtype], len(t.shape or ()))
        domains = {node.domain: 1 for node in printer.nodes if node.domain}
        for domain, version in ({"": self.opset} | domains).items():
            chain.model.opset_import.add(domain=domain, version=version)
        return chain


def _room() -> int:
    """Bytes that an operator may take: a fourth of what is free, since a session copies weights as it packs them."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
    except (AttributeError, ValueError, OSError):
        return _ROOM


class Chain:
    """A model with an operator many times. Each result is given to a Shape, whose result the model gives.

    `fed` are the inputs and `stored` the initializers that the model leaves out, by name. `results` are the outputs, of
    which the first is of an operand, each with its length; `taken` further ones, which share a place of memory.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self.fed: dict[str, Array] = {}
        self.stored: dict[str, Array] = {}
        self.results: dict[str, int] = {}
        self.taken: list[tuple[list[str], Array]] = []
        self.model = onnx.ModelProto(ir_version=_IR_VERSION)
        self.model.graph.name = "single"

    def give(self, value: str, rank: int) -> None:
        """Give the sizes of a value."""
        graph, name = self.model.graph, f"{self._prefix}size_{len(self.results)}"
        self.results[name] = rank
        graph.node.add(op_type="Shape", input=[value], output=[name], name=name)
        _declare(graph.output.add(), name, INT64, 1)


def _told_apart(array: Array, k: int) -> Array:
    """A copy in memory of its own that differs from others in an element, if it is a weight: onnxruntime keeps packed
    weights once that have the same elements.
    """
    made = array.copy()
    if made.dtype.kind not in "iub":
        made.flat[0] = (256 + k) / 1024
    elif made.dtype.itemsize == 1 and made.dtype.kind != "b":
        made.flat[0] = k
    return made


def mixed(chains: Sequence[Chain], count: int) -> Chain:
    """Chains of `count` operators with names of their own as one, in which the operators take turns."""
    made = Chain()
    graph = made.model.graph
    for chain in chains:
        made.fed |= chain.fed
        made.stored |= chain.stored
        made.results |= chain.results
        graph.input.extend(chain.model.graph.input)
        graph.initializer.extend(chain.model.graph.initializer)
        graph.output.extend(chain.model.graph.output)
        graph.node.append(chain.model.graph.node[0])
    for k in range(count):
        for chain in chains:
            nodes = chain.model.graph.node
            each = (len(nodes) - 1) // count
            graph.node.extend(nodes[1 + k * each : 1 + (k + 1) * each])
    made.model.opset_import.extend(chains[0].model.opset_import)
    return made


def _declare(info: onnx.ValueInfoProto, name: str, dtype: int, rank: int) -> None:
    """Of open sizes, as a model has them."""
    info.name = name
    info.type.tensor_type.elem_type = dtype
    shape = info.type.tensor_type.shape  # there is one, even if it has no axes
    shape.SetInParent()
    for _ in range(rank):
        shape.dim.add()


def _outside(name: str, array: Array, dtype: int) -> onnx.TensorProto:
    """A tensor whose elements are handed over apart."""
    tensor = onnx.TensorProto(name=name, data_type=dtype, dims=array.shape, data_location=onnx.TensorProto.EXTERNAL)
    for field_name, value in (("location", "-"), ("offset", "0"), ("length", str(array.nbytes))):
        tensor.external_data.add(key=field_name, value=value)
    return tensor


def _one(printer: _Printer, work: Work, values: Sequence[ir.Value | None]) -> list[ir.Value]:
    """One node of the work; its results."""
    op = term(work)
    if op is not None:
        sorts = [sort for sort in op.sorts if sort in CLASSES]
        spare = len(values) - sum(sort != LIST for sort in sorts)
        rest, ins = list(values), list[Any]()
        for sort in sorts:
            taken = [rest.pop(0) for _ in range(spare if sort == LIST else 1)]
            ins.append(taken if sort == LIST else taken[0])
        attrs = [_value(work.attrs[name]) for name, _ in op.attributes]
        made = emit(op, printer, ins, attrs)
    else:
        domain, _, op_type = work.op.rpartition("::")
        inputs = list(values)
        while inputs and inputs[-1] is None:
            inputs.pop()
        attributes = {name: value for name, value in work.attrs.items()}
        made = printer.node(op_type, inputs, attributes, domain=domain, outputs=len(work.outs))
    return made if isinstance(made, list) else [made]


def _value(attribute: object) -> object:
    return tuple(attribute) if isinstance(attribute, list) else attribute


def _is_graph(value: object) -> bool:
    return isinstance(value, _GRAPHS) or (isinstance(value, Sequence) and any(isinstance(v, _GRAPHS) for v in value))


class _Printer:
    """The `Printer` of emit.py."""

    def __init__(self, opset: int, prefix: str) -> None:
        self.opset, self._prefix = opset, prefix
        self.nodes: list[ir.Node] = []
        self.initializers: list[ir.Value] = []
        self._numbers: dict[Any, ir.Value] = {}

    def node(
        self, op: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any] | None = None, *,
        domain: str = "", outputs: int = 1, sparing: bool = False,
    ) -> Any:  # fmt: skip
        number, outputs = len(self.nodes), 1 if sparing else outputs
        made = [ir.Value(name=f"{self._prefix}value_{number}_{k}") for k in range(outputs)]
        attrs = [ir.convenience.convert_attribute(k, v) for k, v in (attributes or {}).items()]
        self.nodes.append(ir.Node(domain, op, list(inputs), attrs, outputs=made, name=f"{self._prefix}node_{number}"))
        return made if outputs > 1 else made[0]

    def ints(self, values: Sequence[int]) -> ir.Value:
        return self._number(list(values), INT64)

    def scalar(self, value: float | int, dtype: int) -> ir.Value:
        return self._number(value, dtype)

    def rank(self, value: ir.Value) -> int:
        return len(value.shape or ())

    def _number(self, values: Any, dtype: int) -> ir.Value:
        known = repr((values, dtype))
        if known not in self._numbers:
            tensor = constant(values, dtype)
            name = f"{self._prefix}number_{len(self._numbers)}"
            tensor.name = name
            self._numbers[known] = ir.Value(
                name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
            )
            self.initializers.append(self._numbers[known])
        return self._numbers[known]
