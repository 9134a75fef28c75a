"""What the classes of a frozen e-graph may be printed as, and what a cost model is asked of it at each workload."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import onnx_ir as ir

from ..egraph.budget import Budget
from ..egraph.engine.frozen import Frozen, Row, settled
from ..egraph.targets import ABSENT, TensorType, Work
from ..egraph.terms import CLASSES, CONSTANTS, LIST, NODE, OPAQUE, OPS, SILENT, Op, names
from ..egraph.terms.dtypes import INT64, NAMES
from .emit import PART_OF_SHAPE
from .folding import Folding
from .model.operators import full_name
from .model.tensors import content, is_small
from .packing import Packing
from .reader import Reading, nested
from .shapes.inference import Shapes
from .spell import Read
from .workload import Workload, at

#: What is known when the model is loaded, whatever else is.
_CONSTANT = CONSTANTS | {"Nil"}
_LISTS = names("list")
_SPARING = frozenset(form.name for op in OPS.values() for form in op.forms if form.sparing)

#: Whether a model may be raised to an operator set if these nodes of its graph are kept as they are.
MayUse = Callable[[Reading, Collection[ir.Node], int], bool]
#: A tensor at each of the workloads.
_Seen = tuple[TensorType, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What decides a price: an operator with its operands, results and attributes, at each workload.

    There is one of each, so that layers ask the same; none for what is no operator, which costs nothing.
    """

    works: tuple[Work, ...]


@dataclass(frozen=True, slots=True)
class Offer:
    """A row that may be printed (None: a newer operator set), what it needs, and what its price is asked by."""

    row: Row | None
    cls: int
    children: tuple[int, ...]
    asked: Question


class Offers:
    """What the classes may be printed as: rows of the e-graph, constants, and rows in place of others.

    Rows no file can hold are not among them. What stands for one node is asked as that node would be when read again.
    It goes by the sizes of the workloads, and by no cost model. Raises LimitReached.
    """

    def __init__(
        self, frozen: Frozen, reading: Reading, shapes: Shapes, workloads: Sequence[Workload],
        extra: Mapping[str, Op], may_use: MayUse, budget: Budget,
    ) -> None:  # fmt: skip
        payloads = replace(reading.payloads, values=[*reading.payloads.values])  # constants are added to them
        reading = replace(reading, payloads=payloads)
        self.frozen, self.reading, self.shapes, self.workloads = frozen, reading, shapes, workloads
        self._points = [at(shapes, workload) for workload in workloads]
        self.ops = {**reading.terms.ops, **extra}
        self.refused: set[int] = set()  # operator sets that some nodes have no part in
        self._may_use = may_use
        self._names = {f"${k}": name for name, k in reading.terms.symbols.items()}
        self._sizes: dict[tuple[str, int], int] = {}
        self._tensors: dict[int, _Seen] = {}
        self._values: dict[ir.Value, _Seen] = {}
        self._questions: dict[tuple[Any, ...], Question] = {}
        self._nothing = Question(())
        self._left_out: _Seen = (ABSENT,) * len(workloads)
        self._outs: dict[int, dict[int, int]] = {}
        for r in frozen.rows:
            if r.op == "Out":
                self._outs.setdefault(r.children[0], {})[r.attrs[0]] = r.cls
        self._cells = {r.cls: r.children for r in frozen.rows if r.op in _LISTS}
        self._absent = {r.cls for r in frozen.rows if r.op == "Absent"}
        self._classes = {v: frozen.values[t] for t, values in reading.origin.items() for v in values}
        self.const = self._constants()
        whole = bool(reading.graph.opset_imports)  # not the body of a node
        given = [v for v in reading.payloads.values if whole and v.is_graph_input()]
        self._given = {self._classes[v] for v in given if v in self._classes}
        self._taken = {frozen.values[t] for t in reading.terms.roots if whole}
        self._folding = Folding(frozen, reading.payloads, self.ops)
        self._packing = Packing(frozen, reading, self.ops)
        self.raised = frozen.classes  # the class that stands for a newer opset
        self._wholes = {r.children[0]: r.cls for r in frozen.rows if r.op == "Shape" and self._whole(r)}
        self._ranks: dict[int, int] = {}  # of tensors whose shapes are classes of ours
        self._behind: dict[Row, Row] = {}  # a row that is printed in place of one of the e-graph
        self._stored: dict[Row, Row] = {}  # the same for weights that are stored side by side
        self._at_load: set[ir.Value] = set()
        for node in reading.graph:
            if self._loads(node, reading.captured(node)):
                self._at_load.update(node.outputs)
        self.offers = list(self._offered(budget))
        self.nodes = {node: self._asked_of_node(node) for node in reading.graph}

    # ---- what may be printed

    def _offered(self, budget: Budget) -> Iterator[Offer]:
        for r in self.frozen.rows:
            budget.check("extracting")
            if self.ops[r.op].marker or (self.ops[r.op].role == "fused" and self._empty(r)):
                continue
            wanted = self.needs(r)
            if wanted <= self.reading.opset:
                yield self._offer(r)
            elif self._fits(wanted):
                yield self._offer(r, self.raised)
            if r.op == "Shape" and wanted > self.reading.opset:
                yield from map(self._offer, self._part_of_shape(r))
        values = self.reading.payloads.values
        for c, array in self._folding.constants().items():
            values.append(ir.Value(const_value=ir.tensor(array)))
            constant = Row(c, "Const", (), (len(values) - 1,))
            self._behind[constant] = self._folding.rows.get(c, constant)
            yield self._offer(constant)
        for c, tensor in self._packing.tensors.items():
            values.append(ir.Value(const_value=tensor))
            stored = Row(c, "Const", (), (len(values) - 1,))
            self._stored[stored] = self._packing.rows[c]
            yield self._offer(stored)
        yield Offer(None, self.raised, (), self._nothing)

    def _fits(self, opset: int) -> bool:
        possible = self._may_use(self.reading, self.reading.payloads.nodes, opset)
        self.refused.update([] if possible else [opset])
        return possible

    def _offer(self, r: Row, *more: int) -> Offer:
        return Offer(r, r.cls, (*r.children, *more), self.asked(r))

    def _empty(self, r: Row) -> bool:
        """Whether an operand has no elements, which not every kernel of a fused operator takes."""
        return any(0 in (self.frozen.shape(c) or ()) for c in self._operands(r))

    def needs(self, r: Row) -> int:
        """The oldest opset in which there is a node for the row."""
        return self.ops[r.op].oldest if r.op != "Shape" or self._whole(r) else PART_OF_SHAPE

    def proven(self, choice: Mapping[int, Row]) -> dict[int, Row]:
        """The rows of the e-graph that a choice of printed ones stands for."""
        found: dict[int, Row] = {}
        waiting = [self._behind.get(r) or self._stored.get(r, r) for c, r in choice.items() if c < self.raised]
        inner = self._folding.rows | self._packing.rows
        while waiting:
            r = waiting.pop()
            if r.cls not in found:
                found[r.cls] = r
                waiting += [inner[c] for c in r.children if c not in choice and c in inner]
        return {c: found[c] for c in (*(c for c in choice if c in found), *sorted(found.keys() - choice.keys()))}

    @cached_property
    def stored(self) -> Mapping[Any, ir.Value]:
        """Small constants that the graph holds already, by content."""
        found: dict[Any, ir.Value] = {}
        for value in self.reading.graph.initializers.values():
            tensor = value.const_value
            if not (tensor is None or value.is_graph_input() or value.is_graph_output()) and is_small(tensor):
                found.setdefault(content(tensor), value)
        return found

    def beyond(self, choice: Mapping[int, Row]) -> bool:
        """Whether a choice of printed rows holds some that no rule has seen: constants, parts of shapes, nodes of
        which only the first output is left. Asked before it is written.
        """
        if any(r in self._behind for r in choice.values()):
            return True
        more = {r.children[0] for r in choice.values() if r.op == "Out" and r.attrs[0]}
        single = [
            self.reading.payloads.nodes[r.attrs[0]] for r in choice.values() if r.op == "OpN" and r.cls not in more
        ]
        return not all(Read(node, self.reading.opset, self.shapes).only_first_output() for node in single)

    def _whole(self, r: Row) -> bool:
        return bool(r.attrs == (-self.frozen.rank.get(r.children[0], 0), 0))

    def _part_of_shape(self, r: Row) -> Iterator[Row]:
        """Some sizes of a tensor as a slice of all, in opsets whose Shape gives all."""
        [x] = r.children
        rank = self.frozen.rank.get(x)
        if rank is None:
            return
        if x not in self._wholes:
            self._wholes[x] = self.raised + 1 + len(self._ranks)
            self._ranks[self._wholes[x]] = rank
            yield Row(self._wholes[x], "Shape", (x,), (-rank, 0))
        first, last = r.attrs
        part = Row(r.cls, "SliceC", (self._wholes[x],), (-1, first + rank, last + rank, 1))
        self._behind[part] = r
        yield part

    # ---- what decides a price

    def asked(self, r: Row) -> Question:
        """What the price of a row depends on."""
        if r.op in SILENT:
            return self._nothing
        name, attrs = self.kind(r)
        folds = all(c in self.const for c in r.children) and self._deterministic(r) and r not in self._packing.copies
        return self._question(name, [self._tensor(c) for c in self._operands(r)], self._results(r), folds, attrs)

    def asked_of_copy(self, c: int) -> Question:
        """The same of an Identity of a class."""
        return self._question("Identity", [self._tensor(c)], [self._tensor(c)], c in self.const, {})

    def _asked_of_node(self, node: ir.Node) -> list[Question]:
        """The same of a node of the graph as it stands there, for each of the operators whose price it may have.

        One that is read as one term, printed as the same operator, has the term's prices, so that a graph that was
        written costs what was predicted for it; another those of a term that no rule looks into.
        """
        terms = [spelling for spelling in self.reading.spelled.get(node, ()) if isinstance(spelling, tuple)]
        outs = [
            _outer(self._value(v), self._classes.get(v) in self._taken)
            for v in (node.outputs[:1] if full_name(node) in _SPARING else node.outputs)
        ]
        found = [self._asked_of_term(term, outs) for term in terms if _one(node, term)]
        if not found or any(term[0] == "Op" for term in terms):
            captured = self.reading.captured(node)
            ins = [self._left_out if v is None else self._value(v) for v in (*node.inputs, *captured)]
            found.append(self._question(full_name(node), ins, outs, self._loads(node, captured), _attributes(node)))
        return found

    def _asked_of_term(self, spelling: tuple[Any, ...], outs: Sequence[_Seen]) -> Question:
        op = self.ops[spelling[0]]
        operands, attributes = op.parted(spelling[1:])
        attrs = op.constants | {name: a for (name, _), a in zip(op.attributes, attributes, strict=True)}
        ins = [v for a in operands for v in (a if isinstance(a, list) else [a])]
        folded = all(not isinstance(v, ir.Value) or self._loaded(v) for v in ins)
        return self._question(op.name, [self._operand(v) for v in ins], outs, folded, attrs)

    def _question(
        self, name: str, ins: Sequence[_Seen], outs: Sequence[_Seen], folded: bool, attrs: Mapping[str, Any]
    ) -> Question:
        """`folded` says that the results are known at load."""
        key = name, (*ins,), (*outs,), folded, (*attrs.items(),)
        try:
            known = self._questions.get(key)
        except TypeError:  # an attribute of a caller's operator that has no hash
            return Question(self._works(name, ins, outs, folded, attrs))
        if known is None:
            known = self._questions.setdefault(key, Question(self._works(name, ins, outs, folded, attrs)))
        return known

    def _works(
        self, name: str, ins: Sequence[_Seen], outs: Sequence[_Seen], folded: bool, attrs: Mapping[str, Any]
    ) -> tuple[Work, ...]:
        outs = [t if t[0].const == folded else tuple(replace(x, const=folded) for x in t) for t in outs]
        return tuple(
            Work(name, tuple([t[k] for t in ins]), tuple([t[k] for t in outs]), attrs)
            for k in range(len(self.workloads))
        )

    def kind(self, r: Row) -> tuple[str, dict[str, Any]]:
        """What a cost model is told of a row: operator and attributes."""
        if r.op in OPAQUE:
            node = self.reading.payloads.nodes[r.attrs[0]]
            return full_name(node), _attributes(node)
        op = self.ops[r.op]
        return op.plain or r.op, op.constants | dict(zip((n for n, _ in op.attributes), r.attrs, strict=True))

    def _operands(self, r: Row) -> list[int]:
        ins: list[int] = []
        for c, s in zip(r.children, (s for s in self.ops[r.op].sorts if s in CLASSES), strict=True):
            ins += self._items(c) if s == LIST else [c]
        return ins

    def _results(self, r: Row) -> list[_Seen]:
        if self.ops[r.op].out != NODE:
            return [self._result(r.cls)]
        outs = self._outs.get(r.cls, {})
        if not r.attrs or not isinstance(r.attrs[-1], tuple):
            made = sorted(outs.items())[:1] if self._spares(r) else sorted(outs.items())
            return [self._result(c) for _, c in made]
        axis, sizes = (-1, *r.attrs)[-2:]
        whole = _outer(self._tensor(r.children[0]), False)
        return [self._result(outs[i]) if i in outs else _cut(whole, axis, n) for i, n in enumerate(sizes)]

    def _spares(self, r: Row) -> bool:
        """Whether it leaves out results that nobody takes. What it costs is asked of the first alone."""
        name = full_name(self.reading.payloads.nodes[r.attrs[0]]) if r.op in OPAQUE else self.ops[r.op].forms[-1].name
        return name in _SPARING

    def _result(self, c: int) -> _Seen:
        return _outer(self._tensor(c), c in self._taken)

    def _items(self, cell: int) -> list[int]:
        items = []
        while children := self._cells[cell]:
            items.append(children[0])
            cell = children[1]
        return items

    def _tensor(self, c: int) -> _Seen:
        known = self._tensors.get(c)
        if known is None:
            dtype, shape = self.frozen.dtype.get(c), self.frozen.shape(c)
            if dtype is None and c in self._absent:
                known = self._left_out
            elif c in self._ranks:
                known = self._seen(INT64, [self._ranks[c]], False)
            else:
                names = None if shape is None else [self._names[d] if isinstance(d, str) else d for d in shape]
                known = _outer(self._seen(dtype or 0, names, c in self.const), c in self._given)
            self._tensors[c] = known
        return known

    def _value(self, value: ir.Value) -> _Seen:
        """A value of the graph, by the facts of its class if it has one."""
        known = self._values.get(value)
        if known is None:
            c, facts = self._classes.get(value), self.shapes.of(value)
            code = 0 if facts.dtype is None else facts.dtype.value
            known = self._seen(code, facts.dims, self._loaded(value)) if c is None else self._tensor(c)
            self._values[value] = known
        return known

    def _operand(self, operand: Any) -> _Seen:
        """An operand of a spelling: a value, a vector of numbers, or nothing."""
        if isinstance(operand, ir.Value):
            return self._value(operand)
        return self._seen(INT64, [len(operand[1])], True) if operand[0] == "Ints" else self._left_out

    def _seen(self, dtype: int, dims: Sequence[int | str | None] | None, const: bool) -> _Seen:
        shapes = (
            None if dims is None else tuple(self._size(d, k, i) for i, d in enumerate(dims))
            for k in range(len(self.workloads))
        )  # fmt: skip
        return tuple(TensorType(NAMES.get(dtype, "float32"), shape, const) for shape in shapes)

    def _size(self, dim: int | str | None, k: int, axis: int) -> int:
        if isinstance(dim, int):
            return max(dim, 0)
        if dim is None:
            workload = self.workloads[k]  # unknown: taken for a batch in front, for a length elsewhere
            return workload.new if axis else workload.batch
        known = self._sizes.get((dim, k))
        if known is None:
            values = {s: self._points[k].get(s, self.workloads[k].new) for s in self.shapes.symbols(dim)}
            try:
                known = max(self.shapes.evaluate(dim, values), 0)
            except ValueError:
                known = self.workloads[k].new
            self._sizes[dim, k] = known
        return known

    # ---- what onnxruntime computes at load

    def _constants(self) -> set[int]:
        """Classes some member of which is computed from constants alone."""
        computed = (r for r in self.frozen.rows if r.op in _CONSTANT or (r.children and not self.ops[r.op].marker))
        return {*settled(computed, self._deterministic)}

    def _deterministic(self, r: Row) -> bool:
        return r.op not in OPAQUE or _deterministic(self.reading.payloads.nodes[r.attrs[0]])

    def _loaded(self, value: ir.Value | None) -> bool:
        """Whether a value of the graph, as it is computed there, is known at load."""
        if value is None or value in self._at_load:
            return True
        return value.const_value is not None and not value.is_graph_input()

    def _loads(self, node: ir.Node, captured: Iterable[ir.Value] = ()) -> bool:
        return _deterministic(node) and all(self._loaded(v) for v in (*node.inputs, *captured))


def _outer(tensor: _Seen, outer: bool) -> _Seen:
    """The same as an input or output of the model, or as none."""
    return tensor if tensor[0].outer == outer else tuple(replace(t, outer=outer) for t in tensor)


def _cut(whole: _Seen, axis: int, size: int) -> _Seen:
    """A tensor with another size at an axis."""
    return tuple(
        t if t.shape is None else replace(t, shape=(*t.shape[:axis], size, *t.shape[axis:][1:])) for t in whole
    )


def _one(node: ir.Node, spelling: tuple[Any, ...]) -> bool:
    """Whether the spelling is one term, printed as the operator that the node is."""
    name = spelling[0]
    same = name not in OPS or (node.domain, node.op_type) in {(f.domain, f.kind) for f in OPS[name].forms}
    return name != "Op" and same and not nested(spelling)


def _attributes(node: ir.Node) -> dict[str, Any]:
    return {a.name: a.value for a in node.attributes.values() if not a.is_ref()}


def _deterministic(node: ir.Node) -> bool:
    return "Random" not in node.op_type and node.op_type not in ("Multinomial", "Bernoulli", "Dropout")
