"""Write a chosen set of terms back into its graph, or its twin, each class once.

Inputs, outputs, their order, names, types and dims stay; values that survive keep their names, nodes that survive keep
their names and metadata; new names never collide with any name of the model. Weights stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from ..egraph.engine.frozen import Frozen, Row
from ..egraph.terms import CONSTANTS, LEAVES, OPS, Op
from .emit import constant, emit
from .model.names import Names
from .model.tensors import Joined, content, initializer, like
from .reader import Reading
from .shapes.inference import graphs_of
from .twin import Twin


@dataclass(frozen=True, slots=True, eq=False)
class _Cell:
    """A list of operands, shared among the lists that end so; the empty one has no `rest`."""

    first: ir.Value | None
    rest: _Cell | None

    def items(self) -> Iterator[ir.Value | None]:
        cell = self
        while cell.rest is not None:
            yield cell.first
            cell = cell.rest


class Writer:
    """The `Printer` of emit.py over one graph.

    `stored` are constants that the graph holds already, by content: they are used again under their names.
    """

    def __init__(
        self, reading: Reading, frozen: Frozen, choice: Mapping[int, Row], names: Names, opset: int,
        extra: Mapping[str, Op], twin: Twin, stored: Mapping[Any, ir.Value],
    ) -> None:  # fmt: skip
        self.frozen, self.choice, self.names, self.opset, self.extra = frozen, choice, names, opset, extra
        self.twin, self.reading, self._read = twin, twin.reading(reading), [*reading.graph.outputs]
        self.graph = self.reading.graph
        self.nodes: list[ir.Node] = []
        self.made: dict[int, list[ir.Node]] = {}
        # what is printed once more for an output of its own name: class, row or None for an Identity, nodes
        self.copied: list[tuple[int, Row | None, list[ir.Node]]] = []
        self._current = -1
        self._body = False
        self._results: dict[int, Any] = {}
        self._constants = {key: twin.value(value) for key, value in stored.items()}
        self._initializers: dict[str, ir.Value] = {}
        self._node_names: set[str] = set()
        # the output a value is computed a second time for, as it was and as it will be
        self._again: tuple[ir.Value, ir.Value] | None = None
        self._taken: set[int | None] = set()  # classes whose graph output has its node
        self._used = {o.name for o in self._read}  # names of values that are not to be used again
        self._out_rows = {(r.children[0], r.attrs[0]): r.cls for r in frozen.rows if r.op == "Out"}
        self._originals: dict[int, list[ir.Value]] = {}
        for term, values in self.reading.origin.items():
            self._originals.setdefault(frozen.values[term], []).extend(values)
        self._outputs: dict[int, ir.Value] = {}
        for term, out in zip(reading.terms.roots, self._read, strict=True):
            self._outputs.setdefault(frozen.values[term], out)

    def write(self, body: bool = False) -> Mapping[int, list[ir.Node]]:
        """Replace the nodes and initializers of the twin's graph, which may be a node's `body`; what each class became.

        `choice` is complete and acyclic: the caller checks.
        """
        self._body = body
        roots = [self.frozen.values[t] for t in self.reading.terms.roots]
        for root in roots:
            self._emit_from(root)
        named = dict(zip(self._read, roots, strict=True))  # one may be listed twice
        made = {old: self._output(root, old) for old, root in named.items()}
        graph = self.graph
        outputs = [made[old] for old in self._read]
        inputs = set(graph.inputs)
        kept = {n: v for n, v in graph.initializers.items() if v in inputs}
        graph.outputs.clear()
        replaced = list(graph)
        graph.remove(replaced, safe=False)
        for n in replaced:  # else the values that stay would count them among their uses
            for i in range(len(n.inputs)):
                n.replace_input_with(i, None)
        graph.initializers.clear()
        for v in [*kept.values(), *self._initializers.values()]:
            if v.name not in graph.initializers:
                graph.register_initializer(v)
        graph.extend(self.nodes)
        graph.outputs.extend(outputs)
        return self.made

    # ---- traversal

    def _emit_from(self, root: int) -> None:
        stack = [root]
        while stack:
            c = stack[-1]
            if c in self._results:
                stack.pop()
                continue
            waiting = [x for x in self.choice[c].children if x not in self._results]
            if waiting:
                stack += reversed(waiting)
                continue
            stack.pop()
            self._current = c
            self._results[c] = self._emit(self.choice[c])

    def _emit(self, row: Row) -> Any:
        ins = [self._results[c] for c in row.children]
        if row.op == "Cons":
            return _Cell(*ins)
        if row.op == "Nil":
            return _Cell(None, None)
        ins = [list(x.items()) if isinstance(x, _Cell) else x for x in ins]
        if row.op in LEAVES:
            return self._leaf(self.reading.payloads.values[row.attrs[0]])
        if row.op == "Absent":
            return None
        if row.op == "Out":
            return ins[0][row.attrs[0]]
        op = self.extra.get(row.op) or OPS[row.op]
        return self._verbatim(row, ins[0]) if op.role == "opaque" else emit(op, self, ins, row.attrs)

    def _leaf(self, value: ir.Value) -> ir.Value:
        """An input, a value of an outer graph, or an initializer of this one."""
        if value.is_graph_input() or value.const_value is None or value.graph not in (None, self.graph):
            return value
        if value.name is None:
            assert value.const_value is not None
            value = self._constant(value.const_value, "constant")
        assert value.name is not None
        self._initializers[value.name] = value
        return value

    def _verbatim(self, row: Row, ins: list[ir.Value | None]) -> Any:
        payload = row.attrs[0]
        old, captured = self.reading.payloads.nodes[payload], self.reading.payloads.captured[payload]
        # nodes that compute the same share a payload, even if only one of them has trailing operands
        count = len(ins) - len(captured)
        inputs, outer = ins[:count], ins[count:]
        moved = {a: b for a, b in zip(captured, outer, strict=True) if a is not b and b is not None}
        attributes = list(old.attributes.values())
        if moved:
            for body in graphs_of(old):
                _redirect(body, moved)
        survivor = self._survivor(old.op_type, old.domain, len(old.outputs)) or old
        return self._node(old.op_type, inputs, attributes, old.domain, len(old.outputs), survivor)

    # ---- what emitters use

    def node(
        self, op: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any] | None = None, *,
        domain: str = "", outputs: int = 1, sparing: bool = False,
    ) -> Any:  # fmt: skip
        """A new node; its value is that of the current class."""
        attrs = [ir.convenience.convert_attribute(k, v) for k, v in (attributes or {}).items()]
        return self._node(op, inputs, attrs, domain, outputs, self._survivor(op, domain, outputs), sparing)

    def _survivor(self, op: str, domain: str, outputs: int) -> ir.Node | None:
        """The node of the model this one continues: same class, same operator."""
        if self._again is not None:
            n = self._again[0].producer()
            return n if n is not None and n.op_type == op and n.domain == domain else None
        cls = self._current if outputs == 1 else self._out_class(0)
        for v in self._originals.get(cls, ()) if cls is not None else ():
            n = v.producer()
            if n is not None and n.op_type == op and n.domain == domain:
                return n
        return None

    def _node(
        self, op: str, inputs: Sequence[ir.Value | None], attributes: Sequence[ir.Attr], domain: str,
        outputs: int, old: ir.Node | None, sparing: bool = False,
    ) -> Any:  # fmt: skip
        taken = [i for i in range(outputs) if not sparing or self._takes(i)]
        made = [
            self._value(i if outputs > 1 else None, old) if i in taken else ir.Value(name="")
            for i in range(taken[-1] + 1)
        ]
        self._add(op, inputs, attributes, domain, made, old)
        return made if outputs > 1 else made[0]

    def _add(
        self, op: str, inputs: Sequence[ir.Value | None], attributes: Sequence[ir.Attr], domain: str,
        made: list[ir.Value], old: ir.Node | None,
    ) -> None:  # fmt: skip
        name = old.name if old is not None and old.name and old.name not in self._node_names else None
        if name is None:
            name = self.names.nodes.fresh(f"{op}_{made[0].name}")
        self._node_names.add(name)
        n = ir.Node(domain, op, list(inputs), attributes, outputs=made, name=name)
        if old is not None:
            n.overload, n.doc_string = old.overload, old.doc_string
            n.metadata_props.update(old.metadata_props)
            n.meta.update(old.meta)
        self.nodes.append(n)
        self.made.setdefault(self._current, []).append(n)

    def _value(self, index: int | None, old: ir.Node | None) -> ir.Value:
        """The value of a new node, named after a graph output of its class, or a value it stands for."""
        if self._again is not None and index is None:
            return self._again[1]
        cls = self._current if index is None else self._out_class(index)
        out = self._outputs.get(cls) if cls is not None else None
        given = index is None or self._takes(index)
        if out is not None and cls is not None and given and cls not in self._taken:
            self._taken.add(cls)
            return self._ranked(like(out, out.name), cls)
        if index is not None and old is not None and index < len(old.outputs) and not old.outputs[index].name:
            return ir.Value(name="")
        for v in self._originals.get(cls, ()) if cls is not None else ():
            if v.name and v.producer() is not None and v.name not in self._used:
                self._used.add(v.name)
                return self._sized(like(v, v.name), cls)
        return self._sized(ir.Value(name=self.names.values.fresh("value")), cls)

    def _ranked(self, output: ir.Value, cls: int) -> ir.Value:
        """Give an output of a body the rank that an equal value declares.

        Scan wants one of each output, and finds it by way of values that may be gone from the body.
        """
        if self._body and output.shape is None:
            ranks = (len(v.shape) for v in self._originals.get(cls, ()) if v.shape is not None)
            rank = next(ranks, self.frozen.rank.get(cls))
            output.shape = None if rank is None else ir.Shape([None] * rank)
        return output

    def _sized(self, value: ir.Value, cls: int | None) -> ir.Value:
        """Declare the sizes that equal a declared one by name only.

        onnxruntime goes by the names when it lets two values share a buffer, and fails where their sizes differ
        after all: position ids may have one row for a whole batch. Sizes left open here it infers as ever.
        """
        dims = self.frozen.shape(cls) if cls is not None else None
        own = self.reading.own_sizes
        dtype = self.frozen.dtype.get(cls) if cls is not None else None
        if dims is None or not any(d in own for d in dims):
            return value
        if value.dtype is None and dtype is not None:
            value.type = ir.TensorType(ir.DataType(dtype))
        if isinstance(value.type, ir.TensorType):
            known = value.shape if value.shape is not None and len(value.shape) == len(dims) else [None] * len(dims)
            value.shape = ir.Shape([own.get(str(d), k) for d, k in zip(dims, known, strict=True)])
        return value

    def _takes(self, index: int) -> bool:
        """Whether the result takes that output of the current class, which is a node."""
        cls = self._out_class(index)
        row = None if cls is None else self.choice.get(cls)
        return row is not None and row.op == "Out" and row.children[0] == self._current

    def _out_class(self, index: int) -> int | None:
        return self._out_rows.get((self._current, index))

    def ints(self, values: Sequence[int]) -> ir.Value:
        return self._small(list(values), 7, "axes" if len(values) == 1 else "dims")

    def scalar(self, value: float | int, dtype: int) -> ir.Value:
        return self._small(value, dtype, "scalar")

    def _small(self, values: Any, dtype: int, base: str) -> ir.Value:
        known = self._constant(constant(values, dtype), base)
        assert known.name is not None
        self._initializers[known.name] = known
        return known

    def _constant(self, tensor: ir.TensorProtocol, base: str) -> ir.Value:
        """An initializer of these elements: one the graph holds already, or a new one."""
        if isinstance(tensor, Joined):  # not put together to be looked at
            return initializer(tensor, self.names.values.fresh("weight"))
        known = self._constants.get(content(tensor))
        if known is None:
            name = self.names.values.fresh(base)
            known = self._constants[content(tensor)] = initializer(tensor, name)
        return known

    def rank(self, value: ir.Value) -> int:
        known: int = self.frozen.rank.get(self.choice[self._current].children[0], -1)
        return known

    def copies(self) -> list[tuple[int, Row | None]]:
        """Classes printed once more for an output of its own name: by their row, or as an Identity (None)."""
        seen: dict[int, ir.Value] = {}
        found: list[tuple[int, Row | None]] = []
        for old, term in dict(zip(self._read, self.reading.terms.roots, strict=True)).items():
            cls = self.frozen.values[term]
            row = self.choice[cls]
            if row.op in LEAVES | CONSTANTS:
                value = self.reading.payloads.values[row.attrs[0]] if row.op in LEAVES else None
                if value is self.twin.value(old) or _is_constant(old):
                    continue
            elif seen.setdefault(cls, old) is old:
                continue
            found.append((cls, row if self._twice(row, old) else None))
        return found

    def _twice(self, row: Row, old: ir.Value) -> bool:
        """Whether a copy is computed like the first: one pass over the operands costs no more than copying."""
        op = OPS.get(row.op)
        if op is None or not op.forms or op.name == "Softmax" or _is_identity(old.producer()):
            return False
        return op.shape in ("same", "broadcast")

    def _output(self, cls: int, old: ir.Value) -> ir.Value:
        made: ir.Value = self._results[cls]
        if self._outputs[cls] is old and made.name == old.name and made.producer() is not None:
            return made
        kept = self.twin.value(old)
        if made is kept:
            return kept
        if _is_constant(old):
            assert kept.name is not None
            self._initializers[kept.name] = kept
            return kept
        copy, producer, row = self._ranked(like(old, old.name), cls), old.producer(), self.choice[cls]
        first = len(self.nodes)
        if self._twice(row, old):
            self._current, self._again = cls, (old, copy)
            self._emit(row)
            self._again = None
            self.copied.append((cls, row, self.nodes[first:]))
            return copy
        self._current = -1  # of no class: a report must not count it
        self._add("Identity", [made], [], "", [copy], producer if _is_identity(producer) else None)
        self.copied.append((cls, None, self.nodes[first:]))
        return copy


def _is_constant(output: ir.Value) -> bool:
    """A graph output that is an initializer, and stays one."""
    stored = output.producer() is None and output.const_value is not None
    return stored and not output.is_graph_input() and bool(output.name)


def _is_identity(node: ir.Node | None) -> bool:
    return node is not None and node.op_type == "Identity" and node.domain == ""


def _redirect(graph: ir.Graph, moved: Mapping[ir.Value, ir.Value]) -> None:
    """Point a body's uses of outer values at the values that replace them."""
    for node in graph:
        for i, v in enumerate(node.inputs):
            if v is not None and v in moved:
                node.replace_input_with(i, moved[v])
        for body in graphs_of(node):
            _redirect(body, moved)
    for i, v in enumerate(list(graph.outputs)):
        if v in moved:
            graph.outputs[i] = moved[v]
