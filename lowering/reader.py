"""Read a graph into terms: what the outputs need, in normal form, with the facts of every value seeded.

Values whose elements are known numbers become constants, integer values with equal symbolic elements become one value,
and what only served to compute them is never read. Only numbers enter the term graph: names, tensors and attributes
stay in `Payloads`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from ..egraph.budget import Budget, Limits
from ..egraph.engine.fact import counted, doubled, turns, zero_or_one
from ..egraph.engine.term_graph import TermGraph, holds
from ..egraph.terms import Op
from ..egraph.terms.dtypes import NAMES, masking
from ..egraph.terms.expression import fill
from .declared import arguments, by_kind
from .model.domains import DEFAULT, schema
from .model.tensors import SMALL, content, elements, is_small
from .model.wellformed import label, understanding
from .shapes.inference import Shapes, graphs_of, inner_uses
from .spell import NEWEST_OPSET, SPELLINGS, Read, Spelling

_LONGEST = 64
#: Constants of rank 2 and more up to this many elements are looked at as masks.
_MASK = 2**16
#: Elements of the largest square constant that is: of 4,096 positions, as a buffer of all positions has them.
_SQUARE = 2**24
#: Bytes of the largest table of cos or sin: 131,072 positions, the longest context in use, of 128 floats each.
_TABLE = 131_072 * 128 * 4
_FLOATS = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.BFLOAT16}
_INTS = {ir.DataType.INT64, ir.DataType.INT32}
_BYTES = {ir.DataType.UINT8, ir.DataType.INT8}
_RANDOM = {
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli", "Dropout",
}  # fmt: skip
#: What `meta` of a node holds a value for if it calls a local function: nothing is known of what it does.
CALL = "onnx_egraph.call"
_KNOWN_DOMAINS = {DEFAULT, "ai.onnx.ml", "com.microsoft"}


@dataclass(slots=True)
class Payloads:
    """What the integers in Input, Const, Op1 and OpN terms stand for."""

    values: list[ir.Value] = field(default_factory=list)  # Input and Const
    nodes: list[ir.Node] = field(default_factory=list)  # Op1 and OpN
    captured: dict[int, list[ir.Value]] = field(default_factory=dict)  # node payload -> outer values its bodies use


@dataclass(slots=True)
class Reading:
    """A graph as terms. `origin` says which values of the model an id stands for, in topological order.

    `own_sizes` names the sizes ("$k") that depend on an axis which is one input's own, though its declared name is
    another's as well.
    """

    terms: TermGraph
    payloads: Payloads
    graph: ir.Graph
    opset: int
    origin: dict[int, list[ir.Value]]
    spelled: Mapping[ir.Node, Sequence[Spelling]]  # how each node that some output needs was read
    own_sizes: Mapping[str, str] = field(default_factory=dict)

    def captured(self, node: ir.Node) -> Sequence[ir.Value]:
        """The values that the bodies of a node use, where the node was read."""
        opaque = (s for s in self.spelled.get(node, ()) if isinstance(s, tuple) and s[0] == "Op")
        return next((s[3] for s in opaque), ())

    def where(self, term: int) -> str:
        """What of the model a term is part of, for a message."""
        whole = min((k for k in self.origin if k >= term), default=None)
        if whole is None:
            return f"graph {self.graph.name!r}"
        value = self.origin[whole][0]
        node = value.producer()
        return f"value {value.name!r}" if node is None else label(node)


def read(
    graph: ir.Graph, shapes: Shapes, opset: int, terms: Iterable[Op] = (), budget: Budget | None = None
) -> Reading:
    """The terms of `graph`. Values captured from an outer graph are its leaves.

    `terms` are those a caller declared: a node of such an operator that gives all of its operands and attributes, and
    no other, is read as one. Raises LimitReached when the `budget` has none left.
    """
    return _Reader(graph, shapes, opset, terms).read(budget or Budget(Limits()))


class _Reader:
    def __init__(self, graph: ir.Graph, shapes: Shapes, opset: int, terms: Iterable[Op]) -> None:
        self.graph, self.shapes, self.opset = graph, shapes, opset
        self._declared = by_kind(terms)
        self.terms, self.payloads = TermGraph(), Payloads()
        self.terms.ops.update({op.name: op for op in self._declared.values()})
        self.ids: dict[ir.Value, int] = {}
        self.origin: dict[int, list[ir.Value]] = {}
        self._constants: dict[Any, int] = {}
        self._nodes: dict[Any, int] = {}
        self._vectors: dict[Any, ir.Value] = {}
        self._arrays: dict[ir.Value, np.ndarray] = {}
        self._spelled: dict[ir.Node, list[Spelling]] = {}

    def read(self, budget: Budget) -> Reading:
        nodes = list(self.graph)
        live = self._live(nodes)
        for node in nodes:
            budget.check("building the e-graph")
            if node in live:
                self._node(node)
        self.terms.roots = [self._id(v) for v in self.graph.outputs]
        for symbol, (value, axis) in self.shapes.sources.items():
            dims = self.shapes.of(value).dims
            if dims is not None and (value in self.ids or value in self.graph.inputs):
                self.terms.source(symbol, self._id(value), axis - len(dims))
        self._sums()
        own_sizes = self._own_sizes()
        return Reading(self.terms, self.payloads, self.graph, self.opset, self.origin, self._spelled, own_sizes)

    def _own_sizes(self) -> dict[str, str]:
        readable = self.shapes.readable
        sharing = Counter(name.rpartition("@")[0] or name for name in readable.values())
        own = {s for s, name in readable.items() if "@" in name and sharing[name.rpartition("@")[0]] > 1}
        found: dict[str, str] = {}
        for dim, k in self.terms.symbols.items():
            symbols = self.shapes.symbols(dim)
            if symbols & own:
                found[f"${k}"] = readable.get(dim, dim)
        return found

    def _sums(self) -> None:
        """State which symbols are the sum of two others, such as past + seq, or of one and a number."""
        symbols = self.terms.symbols
        for name, number in symbols.items():
            first, rest = self.shapes.parted(name)
            if isinstance(first, str) and isinstance(rest, int) and first in symbols and rest > 0:
                self.terms.state("dimplus", number, symbols[first], rest)
            elif isinstance(first, str) and isinstance(rest, str) and {first, rest} <= symbols.keys():
                self.terms.state("dimsum", number, symbols[first], symbols[rest])

    # ------------------------------------------------------------------------------------------------ what is needed

    def _live(self, nodes: list[ir.Node]) -> set[ir.Node]:
        """Nodes an output needs once every spelling is resolved, equal integer vectors counted once."""
        for node in nodes:
            for out in node.outputs:
                self._alias(out)
        needed = {self._canonical(v) for v in self.graph.outputs}
        live: set[ir.Node] = set()
        for node in reversed(nodes):
            outputs = [o for o in node.outputs if o in needed and not self._known(o)]
            if outputs:
                live.add(node)
                needed.update(self._canonical(v) for spelling in self._spellings(node) for v in _leaves(spelling))
        return live

    def _alias(self, value: ir.Value) -> None:
        """Remember the first value, in topological order, that has these integer elements."""
        facts = self.shapes.of(value)
        if facts.elems is not None and facts.dims is not None and not self._known(value):
            self._vectors.setdefault((facts.dtype, facts.dims, facts.elems), value)

    def _canonical(self, value: ir.Value) -> ir.Value:
        """That first value; a value of an outer graph comes before all of them, and stays itself."""
        facts, producer = self.shapes.of(value), value.producer()
        if facts.elems is None or facts.dims is None or producer is None or producer.graph is not self.graph:
            return value
        return self._vectors.get((facts.dtype, facts.dims, facts.elems), value)

    def _known(self, value: ir.Value) -> bool:
        """The value is an int64 scalar or vector of known numbers, whatever computes it."""
        f = self.shapes.of(value)
        return (
            f.dtype == ir.DataType.INT64 and f.dims is not None and f.elems is not None and len(f.elems) <= _LONGEST
            and len(f.dims) <= 1 and len(f.elems) > 0 and all(isinstance(e, int) for e in f.elems)
        )  # fmt: skip

    def _spellings(self, node: ir.Node) -> list[Spelling]:
        """The ways to read a node, at least one; `("Op", node)` stands for the opaque term."""
        known = self._spelled.get(node)
        if known is None:
            kind = node.domain, node.op_type
            entry, also = SPELLINGS.get(kind), None
            operands = arguments(node, self._declared[kind]) if kind in self._declared else None
            spelled: Spelling | None = None if operands is None else (self._declared[kind].name, *operands)
            if spelled is None and entry is not None and self._understood(node) and not self._foreign(node.inputs):
                with understanding(node):
                    spelled = entry.spell(Read(node, self.opset, self.shapes))
                    also = entry.also(Read(node, self.opset, self.shapes)) if entry.also else None
            if spelled is not None and (not holds(spelled) or not self._one_type(spelled)):
                spelled = None
            opaque: Spelling = ("Op", node, [v for v in node.inputs if v is not None], self._captured(node))
            known = [opaque] if spelled is None else [s for s in (spelled, also) if s is not None]
            if spelled is not None and (entry is None or entry.both or nested(spelled)):
                known.append(opaque)
            self._spelled[node] = known
        return known

    def _understood(self, node: ir.Node) -> bool:
        """The operator's definition in this opset is one the reading table was written for."""
        if node.domain != DEFAULT or self.opset <= NEWEST_OPSET:
            return True
        definition = schema(node.op_type, self.opset)
        return definition is not None and bool(definition.since_version <= NEWEST_OPSET)

    def _foreign(self, values: Iterable[ir.Value | None]) -> bool:
        """Whether an element type is none that terms have, such as int4; onnxruntime cannot even copy some of them."""
        dtypes = (self.shapes.of(v).dtype for v in values if v is not None)
        return any(dtype is not None and dtype.value not in NAMES for dtype in dtypes)

    def _one_type(self, spelled: Spelling) -> bool:
        """Whether operands that a fused operator's term has of one type are; the operator may take several."""
        if not isinstance(spelled, tuple) or (op := self.terms.ops[spelled[0]]).role != "fused":
            return True
        named = {name: a for (name, _), a in zip(op.operands, spelled[1:], strict=True) if isinstance(a, ir.Value)}
        return len({self.shapes.of(named[name]).dtype for name in op.same if name in named}) <= 1

    def _captured(self, node: ir.Node) -> list[ir.Value]:
        """Values of this graph, or of outer ones, that the node's bodies use."""
        inside = {graph for body in graphs_of(node) for graph in (body, *body.subgraphs())}
        return [*dict.fromkeys(v for v in inner_uses(node) if v.graph not in inside)]

    # ------------------------------------------------------------------------------------------------------ the terms

    def _node(self, node: ir.Node) -> None:
        for spelling in self._spellings(node):
            if isinstance(spelling, list):
                for out, each in zip(node.outputs, spelling, strict=False):
                    if each is not None and out.name:
                        self._bind(out, self._term(each, self.ids.get(out)))
            elif isinstance(spelling, tuple) and spelling[0] in ("Split", "Op") and len(node.outputs) > 1:
                whole = self._term(spelling) if spelling[0] == "Split" else self._opaque(spelling, "OpN")
                for i, out in enumerate(node.outputs):
                    self._bind(out, self.terms.add("Out", whole, i, into=self.ids.get(out)))
            else:
                into = self.ids.get(node.outputs[0])
                if isinstance(spelling, tuple) and spelling[0] == "Op":
                    made = self._opaque(spelling, "Op1", into)
                else:
                    made = self._term(spelling, into)
                with understanding(node):
                    self._fold(node.outputs[0], spelling, made)
                self._bind(node.outputs[0], made)

    def _bind(self, value: ir.Value, term: int) -> None:
        if value in self.ids:
            return
        self.ids[value] = term
        fresh = term not in self.origin
        self.origin.setdefault(term, []).append(value)
        if fresh:
            self._seed(value, term)

    def _term(self, spelling: Any, into: int | None = None) -> int:
        if isinstance(spelling, ir.Value):
            return self._id(spelling)
        name, *operands = spelling
        args: list[Any] = []
        for a in operands:
            if isinstance(a, ir.Value) or (isinstance(a, tuple) and a and isinstance(a[0], str)):
                args.append(self._term(a))
            elif isinstance(a, list):
                args.append([self._term(x) for x in a])
            else:
                args.append(a)
        return self.terms.add(name, *args, into=into)

    def _opaque(self, spelling: tuple[Any, ...], term: str, into: int | None = None) -> int:
        _, node, _, captured = spelling
        ins = [self.terms.add("Absent") if v is None else self._id(v) for v in node.inputs]
        ins += [self._id(v) for v in captured]
        key = self._node_key(node, captured)
        payload = self._nodes.get(key)
        if payload is None:
            payload = self._nodes[key] = len(self.payloads.nodes)
            self.payloads.nodes.append(node)
            self.payloads.captured[payload] = captured
        return self.terms.add(term, payload, ins, into=into)

    def _node_key(self, node: ir.Node, captured: list[ir.Value]) -> Any:
        """Equal for nodes that compute the same from the same inputs; random or possibly stateful ones are unique."""
        training = node.op_type == "Dropout" or node.op_type in _RANDOM
        odd = CALL in node.meta or self._foreign(node.outputs)
        if captured or training or node.domain not in _KNOWN_DOMAINS or odd:
            return id(node)
        parts: list[Any] = [node.domain, node.op_type, node.overload, len(node.outputs)]
        for name, a in sorted(node.attributes.items()):
            content = _content(a)
            if content is None:
                return id(node)
            parts.append((name, a.type, content))
        return tuple(parts)

    def _id(self, value: ir.Value) -> int:
        known = self.ids.get(value)
        if known is not None:
            return known
        canonical = self._canonical(value)
        facts = self.shapes.of(value)
        if self._known(value) and facts.elems is not None:
            term = self.terms.add("Ints", facts.elems) if facts.dims else self.terms.add("Int0", facts.elems[0])
        elif canonical is not value:
            term = self._id(canonical)
        elif value.const_value is not None and not value.is_graph_input():
            term = self._constant(value)
        else:
            term = self._leaf("Input", value)
        self._bind(value, term)
        return term

    def _leaf(self, term: str, value: ir.Value) -> int:
        self.payloads.values.append(value)
        return self.terms.add(term, len(self.payloads.values) - 1)

    def _constant(self, value: ir.Value) -> int:
        tensor = value.const_value
        assert tensor is not None
        key: Any = content(tensor) if is_small(tensor) else id(value)
        term = self._constants.get(key)
        if term is None:
            term = self._constants[key] = self._leaf("Const", value)
            self.terms.state("const", term)
            if tensor.dtype in _FLOATS and len(tensor.shape) in (1, 2):
                self.terms.state("weight-number", term, term)
            self._constant_facts(tensor, term)
        return term

    def _constant_facts(self, tensor: ir.TensorProtocol, term: int) -> None:
        shape = tensor.shape.numpy()
        width = shape[-1] if shape else 0
        if tensor.dtype in _FLOATS and int(np.prod(shape, dtype=np.int64)) == 1:
            self._scalar(elements(tensor), term)
        # by its size a table of cos or sin; everything larger is a weight, and is not looked at
        elif tensor.dtype in _FLOATS and 0 < width <= 1024 and width % 2 == 0 and 0 < tensor.nbytes <= _TABLE:
            array = elements(tensor)
            for pairs, sign in ((0, 1), (1, 1), (0, -1), (1, -1)):
                if doubled(array, pairs, sign):
                    self.terms.state("doubled", term, pairs, sign)
                if turns(array, pairs, sign):
                    self.terms.state("turns", term, pairs, sign)
        if tensor.dtype in _FLOATS and 1 < np.prod(shape) <= _MASK and (same := fill(elements(tensor))) is not None:
            self.terms.state("filled", term, repr(same))
        if tensor.dtype in _FLOATS and len(shape) >= 2 and 1 < np.prod(shape) <= _MASK and shape[-2] > 1:
            rows = elements(tensor).astype(np.float64).max(axis=-1)
            if (rows > masking(tensor.dtype.itemsize)).all():
                self.terms.state("visible", term)
        if tensor.dtype in _FLOATS | _INTS | _BYTES and len(shape) >= 2:
            square = shape[-1] == shape[-2] and np.prod(shape) == shape[-1] ** 2
            if 1 < np.prod(shape) <= (_SQUARE if square else _MASK):
                self._flags(elements(tensor), term)
        if tensor.dtype == ir.DataType.BOOL and 0 < np.prod(shape) <= _MASK:
            self._truth(elements(tensor), term)
        if tensor.dtype == ir.DataType.INT64 and len(shape) == 1 and shape[0] <= 4096:
            ids = counted(elements(tensor))
            if ids is not None:
                self.terms.state("irange", term, *ids)

    def _truth(self, array: np.ndarray, term: int) -> None:
        """Facts of a tensor that has no other elements than these."""
        if array.all():
            self.terms.state("all-true", term)
        elif array.dtype == bool and not array.any():
            self.terms.state("all-false", term)
        self._flags(array, term)

    def _flags(self, array: np.ndarray, term: int) -> None:
        if array.dtype != bool and zero_or_one(array):
            self.terms.state("zero-or-one", term)

    def _scalar(self, array: np.ndarray, term: int) -> None:
        """Facts of a floating constant of one element."""
        number = float(array.astype(np.float64).reshape(-1)[0])
        if np.isfinite(number):
            self.terms.state("fval", term, repr(number))
        elif number < 0:
            self.terms.state("never", term)
        if number <= masking(array.dtype.itemsize):
            self.terms.state("lowest", term)

    def _fold(self, value: ir.Value, spelling: Any, term: int) -> None:
        """State the value of a scalar computed from constants, such as sqrt(head size)."""
        if isinstance(spelling, ir.Value) or value in self._arrays:
            return
        if spelling[0] == "Op":
            if spelling[1].op_type == "ConstantOfShape":
                self._truth(_fill(spelling[1]), term)
            array = self._filled(spelling[1])
        elif (op := self.terms.ops[spelling[0]]).folds and all(
            isinstance(a, int) or (isinstance(a, ir.Value) and self._array(a) is not None) for a in spelling[1:]
        ):
            args = [self._array(a) if isinstance(a, ir.Value) else a for a in spelling[1:]]
            whole = all(np.asarray(a).dtype.kind in "iu" for a in args)
            if op.positive and whole and np.asarray(args[1]) <= 0:
                return  # integers need not have such a quotient or power
            array = np.asarray(op.numpy(*args))  # type: ignore[misc]  # a foldable term has one
        else:
            return
        if array is not None and array.size == 1:
            self._arrays[value] = array
            if array.dtype.kind == "f":
                self.terms.state("const", term)
                self._scalar(array, term)

    def _array(self, value: ir.Value) -> np.ndarray | None:
        """A constant of one element, or None."""
        known = self._arrays.get(value)
        if known is None and value.const_value is not None and not value.is_graph_input():
            tensor = value.const_value
            if int(np.prod(tensor.shape.numpy(), dtype=np.int64)) == 1 and tensor.dtype in _FLOATS | _INTS:
                known = self._arrays[value] = np.array(elements(tensor))
        elif known is None and self._known(value):
            facts = self.shapes.of(value)
            if facts.elems is not None and len(facts.elems) == 1:
                known = np.asarray(facts.elems if facts.dims else facts.elems[0], np.int64)
        return known

    def _filled(self, node: ir.Node) -> np.ndarray | None:
        """The scalar a ConstantOfShape of a known shape of one element makes."""
        dims = self.shapes.of(node.outputs[0]).dims
        if node.op_type != "ConstantOfShape" or dims not in ((), (1,)):
            return None
        return _fill(node).reshape((1,) * len(dims))

    def _seed(self, value: ir.Value, term: int) -> None:
        facts = self.shapes.of(value)
        if facts.dtype is not None and facts.dtype.value:
            self.terms.state("dtype", term, facts.dtype.value)
        else:
            self.terms.state("axes", term, 0)
        if facts.dims is not None:
            self.terms.dims(term, facts.dims)
        if facts.elems is not None and len(facts.elems) <= _LONGEST:
            self.terms.elements(term, facts.elems)


def _content(attribute: ir.Attr) -> Any:
    """Equal for attributes that say the same; None for kinds that are told apart by their node alone."""
    kind = ir.AttributeType
    match attribute.type:
        case _ if attribute.is_ref():
            return None
        case kind.INT | kind.STRING:
            return attribute.value
        case kind.INTS | kind.STRINGS:
            return tuple(attribute.value)
        case kind.FLOAT | kind.FLOATS:  # as bits: NaN is not equal to itself, and 0.0 is to -0.0
            return np.asarray(attribute.value, np.float64).tobytes()
        case kind.TENSOR:
            t = attribute.as_tensor()
            small = t.nbytes <= SMALL and not isinstance(t, ir.StringTensor)
            return t.dtype, tuple(t.shape), t.tobytes() if small else id(t)
        case _:
            return None


def _fill(node: ir.Node) -> np.ndarray:
    """What a ConstantOfShape is filled with, as an array of one element."""
    fill = node.attributes.get("value")
    return np.zeros(1, np.float32) if fill is None else np.asarray(fill.as_tensor().numpy())


def _leaves(spelling: Any) -> Iterable[ir.Value]:
    if isinstance(spelling, ir.Value):
        yield spelling
    elif isinstance(spelling, tuple | list):
        for s in spelling:
            yield from _leaves(s)


def nested(spelling: Spelling) -> bool:
    """The spelling takes more than one node to print."""
    return isinstance(spelling, tuple) and any(
        isinstance(a, tuple) and a and isinstance(a[0], str) and a[0] != "Ints" for a in spelling[1:]
    )
