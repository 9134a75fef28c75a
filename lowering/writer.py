"""Write a chosen set of terms back into its graph, each class once, in place.

Inputs, outputs, their order, names, types and dims stay; values that survive keep their names, nodes that survive keep
their names and metadata; new names never collide with any name of the model. Weights stay where they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from ..egraph.ops import INTS, LIST, NODE, TENSOR, Op
from ..egraph.saturate import Frozen, Row
from .emit import EMITTERS, constant, custom
from .reader import Reading


#: Not computed twice for two outputs that are equal; a copy is cheaper.
_DEAR = {"MatMul", "Split", "Softmax"}


@dataclass(slots=True)
class Names:
    """Every name taken in the model, graphs inside graphs included."""

    values: set[str] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, model: ir.Model) -> Names:
        names = cls()
        for graph in model.graphs():
            names.values.update(v.name for v in graph.inputs if v.name)
            names.values.update(graph.initializers)
            for node in graph:
                names.values.update(o.name for o in node.outputs if o.name)
                if node.name:
                    names.nodes.add(node.name)
        return names

    @staticmethod
    def fresh(base: str, taken: set[str]) -> str:
        name, k = base, 0
        while name in taken:
            k += 1
            name = f"{base}_{k}"
        taken.add(name)
        return name


@dataclass(frozen=True, slots=True)
class Written:
    """Which node(s) each chosen class became, for the report."""

    nodes: Mapping[int, list[ir.Node]]


class Writer:
    """The `Printer` of emit.py over one graph."""

    def __init__(
        self, reading: Reading, frozen: Frozen, choice: Mapping[int, Row], names: Names, opset: int,
        extra: Mapping[str, Op],
    ) -> None:  # fmt: skip
        self.reading, self.frozen, self.choice, self.names, self.opset, self.extra = (
            reading, frozen, choice, names, opset, extra,
        )  # fmt: skip
        self.graph = reading.graph
        self.nodes: list[ir.Node] = []
        self.made: dict[int, list[ir.Node]] = {}
        self._current = -1
        self._results: dict[int, Any] = {}
        self._constants: dict[Any, ir.Value] = {}
        self._initializers: dict[str, ir.Value] = {}
        self._node_names: set[str] = set()
        self._originals: dict[int, list[ir.Value]] = {}
        for term, values in reading.origin.items():
            self._originals.setdefault(frozen.values[term], []).extend(values)
        self._outputs: dict[int, ir.Value] = {}
        for term, out in zip(reading.terms.roots, self.graph.outputs, strict=True):
            self._outputs.setdefault(frozen.values[term], out)

    def write(self) -> Written:
        """Replace the graph's nodes and initializers. The caller has checked that `choice` is complete and acyclic."""
        roots = [self.frozen.values[t] for t in self.reading.terms.roots]
        for root in roots:
            self._emit_from(root)
        outputs = [self._output(root, old) for root, old in zip(roots, list(self.graph.outputs), strict=True)]
        graph = self.graph
        inputs = set(graph.inputs)
        kept = {n: v for n, v in graph.initializers.items() if v in inputs}
        graph.outputs.clear()
        graph.remove(list(graph), safe=False)
        graph.initializers.clear()
        for v in [*kept.values(), *self._initializers.values()]:
            if v.name not in graph.initializers:
                graph.register_initializer(v)
        graph.extend(self.nodes)
        graph.outputs.extend(outputs)
        return Written(self.made)

    # ------------------------------------------------------------------------------------------------------ traversal

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
        if row.op in ("Input", "Const"):
            return self._leaf(self.reading.payloads.values[row.attrs[0]])
        if row.op == "Absent":
            return None
        if row.op == "Cons":
            return [ins[0], *ins[1]]
        if row.op == "Nil":
            return []
        if row.op == "Out":
            return ins[0][row.attrs[0]]
        if row.op in ("Op1", "OpN"):
            return self._verbatim(row, ins[0])
        if row.op in EMITTERS:
            return EMITTERS[row.op](self, ins, row.attrs)
        op = self.extra[row.op]
        named = [n for n, s in op.operands if s not in (TENSOR, LIST, NODE)]
        attrs = tuple(list(a) if s == INTS else a for a, s in
                      zip(row.attrs, (s for _, s in op.operands if s not in (TENSOR, LIST, NODE)), strict=True))  # fmt: skip
        return custom(op.onnx, named)(self, ins, attrs)

    def _leaf(self, value: ir.Value) -> ir.Value:
        if value.is_graph_input() or value.const_value is None or value.graph not in (None, self.graph):
            return value  # an input, or a value of an outer graph
        if value.producer() is not None or value.name is None:  # a Constant node becomes an initializer
            name = value.name if value.name and not self._is_output_name(value.name) else None
            made = ir.Value(name=name or Names.fresh("constant", self.names.values), const_value=value.const_value,
                            type=ir.TensorType(value.const_value.dtype), shape=ir.Shape(value.const_value.shape))  # fmt: skip
            value = made
        elif self._is_output_name(value.name):
            value = ir.Value(name=Names.fresh("constant", self.names.values), const_value=value.const_value,
                             type=value.type, shape=value.shape)  # fmt: skip
        assert value.name is not None
        self._initializers[value.name] = value
        return value

    def _is_output_name(self, name: str) -> bool:
        return any(o.name == name for o in self._outputs.values())

    def _verbatim(self, row: Row, ins: list[ir.Value | None]) -> Any:
        payload = row.attrs[0]
        old, captured = self.reading.payloads.nodes[payload], self.reading.payloads.captured[payload]
        inputs, outer = ins[: len(old.inputs)], ins[len(old.inputs) :]
        moved = {a: b for a, b in zip(captured, outer, strict=True) if a is not b and b is not None}
        attributes = list(old.attributes.values())
        if moved:
            for a in attributes:
                for g in [a.as_graph()] if a.type == ir.AttributeType.GRAPH else (
                    a.as_graphs() if a.type == ir.AttributeType.GRAPHS else []
                ):
                    _redirect(g, moved)
        return self._node(old.op_type, inputs, attributes, old.domain, len(old.outputs), old)

    # ------------------------------------------------------------------------------------------------- what emitters use

    def node(
        self, op: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any] | None = None, *,
        domain: str = "", outputs: int = 1,
    ) -> Any:  # fmt: skip
        attrs = [ir.convenience.convert_attribute(k, v) for k, v in (attributes or {}).items()]
        return self._node(op, inputs, attrs, domain, outputs, self._survivor(op, domain))

    def _survivor(self, op: str, domain: str) -> ir.Node | None:
        """The node of the model this one continues: same class, same operator."""
        for v in self._originals.get(self._current, ()):
            n = v.producer()
            if n is not None and n.op_type == op and n.domain == domain:
                return n
        return None

    def _node(
        self, op: str, inputs: Sequence[ir.Value | None], attributes: Sequence[ir.Attr], domain: str, outputs: int,
        old: ir.Node | None,
    ) -> Any:  # fmt: skip
        made = [self._value(i if outputs > 1 else None, old) for i in range(outputs)]
        name = old.name if old is not None and old.name and old.name not in self._node_names else None
        if name is None:
            name = Names.fresh(f"{op}_{made[0].name}", self.names.nodes | self._node_names)
        self._node_names.add(name)
        self.names.nodes.add(name)
        n = ir.Node(
            domain, op, list(inputs), attributes, outputs=made, name=name,
            overload=old.overload if old is not None else "", doc_string=old.doc_string if old is not None else None,
            metadata_props=dict(old.metadata_props) if old is not None else None,
        )  # fmt: skip
        self.nodes.append(n)
        self.made.setdefault(self._current, []).append(n)
        return made if outputs > 1 else made[0]

    def _value(self, index: int | None, old: ir.Node | None) -> ir.Value:
        """The value of a new node: named after a graph output of its class, else after a value it stands for."""
        if self._again is not None:
            return _like(self._again, self._again.name)
        cls = self._current if index is None else self._out_class(index)
        out = self._outputs.get(cls) if cls is not None else None
        if out is not None and cls not in self._taken_outputs:
            self._taken_outputs.add(cls)
            return _like(out, out.name)
        if index is not None and old is not None and index < len(old.outputs) and not old.outputs[index].name:
            return ir.Value(name="")
        for v in self._originals.get(cls, ()) if cls is not None else ():
            if v.name and v.producer() is not None and v.name not in self._used and not self._is_output_name(v.name):
                self._used.add(v.name)
                return _like(v, v.name)
        name = Names.fresh("value", self.names.values)
        self._used.add(name)
        return ir.Value(name=name)

    def _out_class(self, index: int) -> int | None:
        return self._outs().get((self._current, index))

    def _outs(self) -> dict[tuple[int, int], int]:
        if self._out_rows is None:
            self._out_rows = {(r.children[0], r.attrs[0]): r.cls for r in self.frozen.rows if r.op == "Out"}
        return self._out_rows

    _again: ir.Value | None = None
    _out_rows: dict[tuple[int, int], int] | None = None

    @property
    def _taken_outputs(self) -> set[int | None]:
        return self.__dict__.setdefault("_taken", set())

    @property
    def _used(self) -> set[str]:
        return self.__dict__.setdefault("_used_names", set())

    def ints(self, values: Sequence[int]) -> ir.Value:
        return self._small(("ints", *values), list(values), 7, "axes" if len(values) == 1 else "dims")

    def scalar(self, value: float | int, dtype: int) -> ir.Value:
        return self._small(("scalar", dtype, repr(value)), value, dtype, "scalar")

    def _small(self, key: Any, values: Any, dtype: int, base: str) -> ir.Value:
        known = self._constants.get(key)
        if known is None:
            tensor = constant(values, dtype)
            known = ir.Value(name=Names.fresh(base, self.names.values), const_value=tensor,
                             type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape))  # fmt: skip
            self._constants[key] = known
            assert known.name is not None
            self._initializers[known.name] = known
        return known

    def rank(self, value: ir.Value) -> int:
        child = self.choice[self._current].children[0]
        rank = self.frozen.rank.get(child)
        return -1 if rank is None else rank

    def _output(self, cls: int, old: ir.Value) -> ir.Value:
        made = self._results[cls]
        if self._outputs[cls] is old and made.name == old.name and made.producer() is not None:
            return made  # type: ignore[no-any-return]
        if made is old:
            return old
        row = self.choice[cls]
        if made.producer() is not None and row.op in EMITTERS and row.op not in _DEAR:
            self._current = cls  # computing a value again costs no more than copying it
            self._again = old
            again = self._emit(row)
            self._again = None
            return again  # type: ignore[no-any-return]
        copy = _like(old, old.name)
        name = Names.fresh(f"Identity_{old.name}", self.names.nodes)
        self.nodes.append(ir.Node("", "Identity", [made], outputs=[copy], name=name))
        return copy


def _like(value: ir.Value, name: str | None) -> ir.Value:
    return ir.Value(name=name, type=value.type, shape=value.shape, doc_string=value.doc_string,
                    metadata_props=dict(value.metadata_props))  # fmt: skip


def _redirect(graph: ir.Graph, moved: Mapping[ir.Value, ir.Value]) -> None:
    """Point a body's uses of outer values at the values that replace them."""
    for node in graph:
        for i, v in enumerate(node.inputs):
            if v in moved:
                node.replace_input_with(i, moved[v])
        for a in node.attributes.values():
            for g in [a.as_graph()] if a.type == ir.AttributeType.GRAPH else (
                a.as_graphs() if a.type == ir.AttributeType.GRAPHS else []
            ):
                _redirect(g, moved)
    for i, v in enumerate(list(graph.outputs)):
        if v in moved:
            graph.outputs[i] = moved[v]
