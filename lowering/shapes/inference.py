"""Symbolic facts of every value of a model: dtype, sizes, and the contents of small integer tensors.

Nothing declared inside the model is believed where it can be computed, and two sizes count as equal only when
that is provable; what is believed beyond that, if a caller allows it, is in `belief`. Taken on trust are:

* Float inputs that share a dimension name share its value, as do all axes but the first of integer and bool
  inputs. That first axis is its input's own: callers feed position ids of shape (1, S) with a batch of 4. It is not
  where it is the only one and its name says that it is no batch: inputs of more axes have the name, and not first.
* Every node of the main graph that an output depends on executes. What it demands of its operands therefore
  holds: the other axes of a Concat agree (onnxruntime lets an empty operand differ), and the inner axes of a
  MatMul and the element counts of a Reshape.
* What a window is moved over (by a Conv, by a pooling) has room for one window, so that the result is not empty.
* A Reshape to a size of an input that is 0 copies an axis instead; this is left out, as all is then empty.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import zip_longest
from types import MappingProxyType

import onnx_ir as ir

from ...egraph.budget import Budget, Limits
from ...egraph.engine.assumption import Assumption
from ..model.domains import DEFAULT, RUNTIME
from ..model.wellformed import understanding
from .belief import Belief, Namesakes
from .contrib import LIKE
from .contrib import TABLE as CONTRIB
from .dims import Dim, Dims
from .equations import Equations
from .library import library
from .moves import TABLE as MOVES
from .values import DISCRETE, MAX_ELEMENTS, Contents, Known, Operation, Outputs, contents_of, pack
from .values import TABLE as VALUES
from .weights import TABLE as WEIGHTS

SAFE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
# Operators that move a window, by their names in any domain, and how often it fits at least: onnxruntime refuses a
# convolution of something shorter, and gives nothing for a pool that is one step short
WINDOWS: Mapping[str, int] = MappingProxyType(
    dict.fromkeys("Conv ConvInteger QLinearConv FusedConv ConvTranspose".split(), 1)
    | dict.fromkeys("MaxPool AveragePool LpPool QLinearAveragePool".split(), 0)
)
# How often an inference starts again from what the last one proved and believed
MAX_ROUNDS = 4
# Rounds of weakening what a loop keeps unchanged before nothing is assumed to be
LOOP_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class ValueFacts:
    """What is certain of one value.

    ``dims`` is None when the rank is unknown. A ``str`` size is a canonical expression: equal strings are
    equal sizes, unequal ones may be equal too. ``elems`` holds the contents, row-major, of an integer or
    boolean tensor of rank 0 or 1 with at most 64 elements (True is 1), None otherwise.
    """

    dtype: ir.DataType | None
    dims: tuple[Dim, ...] | None
    elems: tuple[Dim, ...] | None


UNKNOWN = ValueFacts(None, None, None)


@dataclass(frozen=True, slots=True, eq=False)
class Shapes:
    """The facts of one model.

    ``sources`` maps a symbol to the main graph's input and axis that carry exactly it; ``readable`` maps
    every symbol that stands for a declared name to that name, with ``@input`` where it is one input's own; ``named``
    maps a name that inputs declare to the sizes it stands for there. ``assumed`` is what was believed unproved, and
    ``shared`` names integer inputs whose first axis is believed to have the size of its name.
    """

    _facts: Mapping[ir.Value, ValueFacts]
    sources: Mapping[str, tuple[ir.Value, int]]
    named: Mapping[str, AbstractSet[Dim]]
    _whole: AbstractSet[str]
    readable: Mapping[str, str]
    _dims: Dims
    assumed: tuple[Assumption, ...]
    shared: AbstractSet[str]

    def of(self, value: ir.Value) -> ValueFacts:
        """The facts of a value of the model, its subgraphs included. Raises KeyError for a value of another
        model.
        """
        return self._facts[value]

    def symbols(self, dim: Dim) -> frozenset[str]:
        """The symbols a size or element is built from."""
        return frozenset(self._dims.symbols(dim))

    def parted(self, dim: Dim) -> tuple[Dim, Dim]:
        """The first term of a size or element that is a sum, and the rest; 0 if there is no other."""
        return self._dims.parted(dim)

    def settled(self) -> bool:
        """Whether every size is known as arithmetic on sizes of the graph inputs.

        If not, another graph that computes the same may say more.
        """
        if any(f.dims is None for f in self._facts.values()):
            return False
        dims = {d for f in self._facts.values() for d in f.dims or () if isinstance(d, str)}
        return all("broadcast(" not in d and self.symbols(d) <= self.sources.keys() for d in dims)

    def product(self, dims: Iterable[Dim]) -> Dim:
        """The product of sizes or elements."""
        return self._dims.mul(*dims)

    def sizes(self) -> set[Dim]:
        """Every size that some value has."""
        return {d for f in self._facts.values() for d in f.dims or ()}

    def positive(self, dim: Dim) -> bool:
        """Whether a size or element is at least 1 wherever no integer or boolean graph input is empty.

        Floating inputs may be: a cache of the past is, in the first step.
        """
        return self._dims.nonnegative(dim) and self._dims.stays(dim, self._whole)

    def evaluate(self, dim: Dim, values: Mapping[str, int]) -> int:
        """The number a size or element is for these values of its symbols.

        Raises KeyError for a symbol without a value, ValueError where the values do not broadcast.
        """
        return self._dims.evaluate(dim, values)


def infer(model: ir.Model, budget: Budget | None = None, *, believing: bool = False) -> Shapes:
    """The facts of every value of ``model``, which is left unchanged. Its functions are expected to be
    inlined.

    Weights are not read. A node that cannot be understood leaves its outputs unknown. ``believing``: where sizes stay
    open, what the file says of them is believed, and named in ``Shapes.assumed``. Raises LimitReached when the
    `budget` has none left.
    """
    belief = Belief()
    run = Inference(model, budget, belief)
    shapes = run.infer()
    for _ in range(MAX_ROUNDS):
        belief = run.more(shapes, believing)
        if belief == run.belief:
            break
        again = Inference(model, budget, belief)
        found = again.infer()
        if again.contradicts():  # then what is declared is false
            break
        run, shapes = again, found
    return shapes


class Inference:
    """One run over one model."""

    def __init__(self, model: ir.Model, budget: Budget | None = None, belief: Belief | None = None) -> None:
        self._model, self._budget, self.belief = model, budget or Budget(Limits()), belief or Belief()
        self._opsets = dict(model.opset_imports)
        self._dims = Dims(self.belief.bounds)
        self._proven = Equations()
        self._known: dict[ir.Value, Known] = {}
        self._readable: dict[str, str] = {}
        self._names: dict[tuple[str, str | None], str] = {}
        self._vectors: set[tuple[str, str]] = set()
        # values with a size that only their declaration tells: those that have it from there, or could
        self._declared: list[str] = []

    def infer(self) -> Shapes:
        """What this run finds."""
        self.graph_inputs()
        self.graph(self._model.graph, live_nodes(self._model.graph))
        return self.result()

    def more(self, shapes: Shapes, believing: bool) -> Belief:
        """What to start from again, the same as before if that leads no further."""
        belief, settled = self.belief, shapes.settled()
        bounds = belief.bounds if settled else self._dims.bounds()
        if not believing:
            return Belief(bounds=bounds)
        owners = {symbol: name for name, symbol in self._names.items()}
        namesakes = Namesakes(self._dims, owners, frozenset(self._vectors))
        shared = belief.shared.union(namesakes.meant_equal(shapes.sizes()))
        declared = belief.declared or (shared == belief.shared and not settled and bool(self._declared))
        return Belief(shared, declared, bounds)

    def contradicts(self) -> bool:
        """Whether nodes demand that two different numbers are equal."""
        pairs = (map(self._dims.resolve, pair) for pair in self._proven.equal)
        return self.belief.declared and any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)

    # ---- inputs and constants

    def graph_inputs(self) -> None:
        shapes = [[str(size) for size in v.shape or ()] for v in self._model.graph.inputs]
        later = {name for s in shapes for name in s[1:]}
        lengths = later - {s[0] for s in shapes if len(s) > 1}
        for value in self._model.graph.inputs:
            dims: list[Dim] = []
            for axis, size in enumerate(value.shape if value.shape is not None else ()):
                name = size if isinstance(size, int) else size.value
                if isinstance(name, str) and name:
                    pair = name, value.name or ""
                    shared = axis > 0 or value.dtype not in DISCRETE or pair in self.belief.shared
                    vector = value.shape is not None and len(value.shape) == 1
                    owner = None if shared or (vector and name in lengths) else value.name
                    self._vectors.update([pair] if owner is not None and vector and name in later else [])
                    dims.append(self._symbol(name, owner))
                else:
                    dims.append(name if isinstance(name, int) and name >= 0 else self._dims.fresh())
                if isinstance(dims[-1], str):
                    self._dims.feed(dims[-1])
            shaped = value.shape is not None and is_tensor(value)
            self._record(value, Known(tensor_dtype(value), tuple(dims) if shaped else None))

    def _symbol(self, name: str, owner: str | None) -> str:
        """The symbol for a declared name; with ``owner``, one of that input alone."""
        known = self._names.get((name, owner))
        if known is None:
            number = len(self._names)
            plain = name if SAFE_NAME.fullmatch(name) else f"@{number}"
            if owner is not None:
                plain = f"{plain}@{owner if SAFE_NAME.fullmatch(owner) else number}"
            known = self._names[name, owner] = self._dims.symbol(plain)
            self._readable[known] = name if owner is None else f"{name}@{owner}"
        return known

    def _initializer(self, value: ir.Value) -> None:
        tensor = value.const_value
        if value in self._known or tensor is None:
            return
        dims = tuple(int(size) for size in tensor.shape.numpy())
        self._record(value, Known(tensor.dtype, dims, contents_of(tensor)))

    # ---- nodes

    def graph(self, graph: ir.Graph, live: Callable[[ir.Node], bool]) -> None:
        """Infer every node in order; ``live`` tells which are certain to execute."""
        for value in graph.initializers.values():
            self._initializer(value)
        for node in graph:
            self._budget.check("inferring shapes")
            self._node(node, live(node))

    def _node(self, node: ir.Node, live: bool) -> None:
        before = self._dims.count
        given = [None if value is None else self._known.get(value, Known()) for value in node.inputs]
        view = Operation(node, given, self._opsets.get(node.domain, 1), self._dims)
        outputs: Outputs = None
        with understanding(node):
            if any(attribute.type in GRAPH_TYPES for attribute in node.attributes.values()):
                outputs = self._control_flow(node, view)
            else:
                tables = {DEFAULT: (VALUES, MOVES), RUNTIME: (CONTRIB,)}.get(node.domain, ())
                function = next((table[node.op_type] for table in tables if node.op_type in table), None)
                outputs = None if function is None else function(view)
                if outputs is None:
                    outputs = library(view, self._opsets)
                kind = node.domain, node.op_type
                if (prove := WEIGHTS.get(LIKE.get(kind[1], kind) if kind[0] == RUNTIME else kind)) is not None:
                    prove(view)
        if live:
            self._proven.extend(view.proves)
        if live and node.op_type in WINDOWS:
            for size in (size for found in outputs or [] if found is not None for size in found.dims or ()):
                self._dims.mark_length(size, WINDOWS[node.op_type])
        for value, found in zip_longest(node.outputs, (outputs or [])[: len(node.outputs)]):
            self._record(value, self._with_declared(value, found or Known(), before))

    def _with_declared(self, value: ir.Value, found: Known, before: int) -> Known:
        """Fill in from the declared type what inference left open entirely; rank and sizes only if they are believed.
        Sizes that were there when there were ``before`` are others' already.
        """
        dtype, dims = tensor_dtype(value) if found.dtype is None else found.dtype, found.dims
        told = [declared_size(size) for size in value.shape or ()] if is_tensor(value) else []
        if dims is None and told:
            dims = self._unknown(len(told))
        taken = [
            (old, size)
            for old, size in zip(dims or (), told, strict=False)
            if size is not None and len(told) == len(dims or ()) and self._dims.is_later(old, before)
        ]
        if found.dims is None or taken:
            self._declared += [value.name or ""] if told else []
        if not self.belief.declared:
            return Known(dtype, found.dims, found.contents)
        for old, size in taken:
            self._dims.equate(old, size if isinstance(size, int) else self._symbol(size, None))
        return Known(dtype, None if dims is None else tuple(map(self._dims.resolve, dims)), found.contents)

    def _record(self, value: ir.Value, found: Known) -> None:
        if found.dims is not None and any(isinstance(size, int) and size < 0 for size in found.dims):
            # no tensor is like that: the node cannot run
            found = Known(found.dtype, self._unknown(len(found.dims)))
        if found.contents is None and found.dtype in DISCRETE and found.dims is not None:
            extents = [size for size in found.dims if isinstance(size, int) and size <= MAX_ELEMENTS]
            if len(extents) == len(found.dims) and (count := math.prod(extents)) <= MAX_ELEMENTS:
                unknown = [self._dims.wild() for _ in range(count)]
                found = Known(found.dtype, found.dims, pack(unknown, extents))
        self._known[value] = found

    # ---- control flow

    def _control_flow(self, node: ir.Node, view: Operation) -> Outputs:
        if node.domain == DEFAULT and node.op_type == "If":
            return self._if(node, view)
        if node.domain == DEFAULT and node.op_type == "Loop":
            return self._loop(node)
        if node.domain == DEFAULT and node.op_type == "Scan" and view.opset >= 9:
            return self._scan(node)
        for body in graphs_of(node):
            self._body(body, [Known(tensor_dtype(value)) for value in body.inputs])
        return None

    def _body(self, body: ir.Graph, inputs: list[Known]) -> list[Known]:
        for value, found in zip_longest(body.inputs, inputs[: len(body.inputs)]):
            self._record(value, found or Known(tensor_dtype(value)))
        self.graph(body, lambda node: False)
        return [self._known.get(value, Known()) for value in body.outputs]

    def _if(self, node: ir.Node, view: Operation) -> Outputs:
        branches = [node.attributes[name].as_graph() for name in ("then_branch", "else_branch")]
        results = [self._body(branch, []) for branch in branches]
        taken = view[0].contents
        if taken is not None and taken.size == 1 and isinstance(choice := taken.ravel()[0], int):
            return results[0 if choice else 1]
        return [self._either(a, b) for a, b in zip(*results, strict=False)]

    def _either(self, a: Known, b: Known) -> Known:
        dtype = a.dtype if a.dtype == b.dtype else None
        dims = self._agreeing(a.dims, b.dims)
        contents: Contents | None = None
        if a.contents is not None and b.contents is not None and a.dims == b.dims and dtype is not None:
            pairs = zip(a.contents.ravel(), b.contents.ravel(), strict=True)
            contents = pack([x if x == y else self._dims.wild() for x, y in pairs], a.contents.shape)
        return Known(dtype, dims, contents)

    def _agreeing(self, a: tuple[Dim, ...] | None, b: tuple[Dim, ...] | None) -> tuple[Dim, ...] | None:
        """Sizes both share; a fresh symbol where they differ."""
        if a is None or b is None or len(a) != len(b):
            return None
        return tuple(x if x == y else self._dims.fresh() for x, y in zip(a, b, strict=True))

    def _loop(self, node: ir.Node) -> Outputs:
        body = node.attributes["body"].as_graph()
        carried = [Known() if value is None else self._known.get(value, Known()) for value in node.inputs[2:]]
        counter, condition = (
            Known(dtype, () if value.shape is not None and len(value.shape) == 0 else None)
            for value, dtype in zip(body.inputs, (ir.DataType.INT64, ir.DataType.BOOL), strict=False)
        )
        return self._settle(body, [counter, condition], carried, [], first_output=1)

    def _scan(self, node: ir.Node) -> Outputs:
        body = node.attributes["body"].as_graph()
        count = node.attributes["num_scan_inputs"].as_int()
        given = [Known() if value is None else self._known.get(value, Known()) for value in node.inputs]
        carried, scanned = given[: len(given) - count], given[len(given) - count :]
        axes = node.attributes.get_ints("scan_input_axes") or (0,) * count
        slices = []
        for each, axis in zip(scanned, axes, strict=True):
            dims = each.dims
            if dims is not None and -len(dims) <= axis < len(dims):
                axis %= len(dims)
                slices.append(Known(each.dtype, dims[:axis] + dims[axis + 1 :]))
            else:
                slices.append(Known(each.dtype))
        return self._settle(body, [], carried, slices, first_output=0)

    def _settle(
        self, body: ir.Graph, before: list[Known], carried: list[Known], after: list[Known], first_output: int
    ) -> list[Known]:
        """The carried values and the scan outputs. Assumes that the carried shapes stay as they start, and drops what
        an iteration changes until nothing does.
        """
        # one entry a carried value: None if its rank may change, else which axes are still assumed to stay
        stays = [None if each.dims is None else [True] * len(each.dims) for each in carried]
        for attempt in range(LOOP_ROUNDS):
            if attempt == LOOP_ROUNDS - 1:
                stays = [None] * len(stays)
            states = [self._state(each, axes) for each, axes in zip(carried, stays, strict=True)]
            results = self._body(body, [*before, *states, *after])
            ends = results[first_output : first_output + len(states)]
            settled = True
            for place, (state, end) in enumerate(zip(states, ends, strict=False)):
                axes = stays[place]
                if axes is None or state.dims is None:
                    continue
                if end.dims is None or len(end.dims) != len(axes):
                    stays[place] = None
                    settled = False
                    continue
                for axis, (start, stop) in enumerate(zip(state.dims, end.dims, strict=True)):
                    if axes[axis] and start != stop:
                        axes[axis] = settled = False
            if settled:
                break
        states = [self._state(each, axes) for each, axes in zip(carried, stays, strict=True)]
        # After no iteration at all onnxruntime takes a scan output's sizes from the body's declaration
        rest = results[first_output + len(states) :]
        scans = [Known(each.dtype, None if each.dims is None else self._unknown(1 + len(each.dims))) for each in rest]
        return [*states, *scans]

    def _state(self, start: Known, stays: list[bool] | None) -> Known:
        """A carried value in some iteration, or after the last: the sizes that vary are new symbols each
        time.
        """
        if stays is None or start.dims is None:
            return Known(start.dtype)
        kept = zip(start.dims, stays, strict=True)
        return Known(start.dtype, tuple(size if stay else self._dims.fresh() for size, stay in kept))

    def _unknown(self, rank: int) -> tuple[Dim, ...]:
        return tuple(self._dims.fresh() for _ in range(rank))

    # ---- the result

    def result(self) -> Shapes:
        self._proven.solve(self._dims)
        resolve = self._dims.resolve
        facts: dict[ir.Value, ValueFacts] = {}
        for value, found in self._known.items():
            dims = None if found.dims is None else tuple(map(resolve, found.dims))
            small = found.contents is not None and found.contents.ndim <= 1 and found.dtype in DISCRETE
            elems = tuple(map(resolve, found.contents.ravel())) if small and found.contents is not None else None
            facts[value] = ValueFacts(found.dtype, dims, elems)
        for graph in (self._model.graph, *self._model.graph.subgraphs()):
            for value in (*graph.inputs, *graph.initializers.values(), *graph.outputs):
                facts.setdefault(value, UNKNOWN)
        sources: dict[str, tuple[ir.Value, int]] = {}
        named: dict[str, set[Dim]] = {}
        whole: set[str] = set()
        for value in self._model.graph.inputs:
            for axis, size in enumerate(facts[value].dims or ()):
                if value.shape is not None and isinstance(declared := value.shape[axis], ir.SymbolicDim):
                    named.setdefault(declared.value or "", set()).add(size)
                if self._dims.is_symbol(size):
                    sources.setdefault(str(size), (value, axis))
                    whole.update([str(size)] if facts[value].dtype in DISCRETE else [])
        assumed = self.belief.assumptions(self._declared if self.belief.declared else ())
        shared = {owner for _, owner in self.belief.shared}
        return Shapes(facts, sources, named, whole, self._readable, self._dims, assumed, shared)


GRAPH_TYPES = frozenset({ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS})


def graphs_of(node: ir.Node) -> Iterator[ir.Graph]:
    """The subgraphs of a node."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def inner_uses(node: ir.Node) -> Iterator[ir.Value]:
    """The values that the bodies of a node use, or give as they are, wherever they are made."""
    for body in graphs_of(node):
        for inner in body:
            yield from (value for value in inner.inputs if value is not None)
            yield from inner_uses(inner)
        yield from body.outputs


def is_tensor(value: ir.Value) -> bool:
    """False for a sequence or an optional, whose declared dtype and shape are its elements'."""
    return value.type is None or isinstance(value.type, ir.TensorType)


def declared_size(size: int | ir.SymbolicDim) -> int | str | None:
    """A number or a name, None where nothing is declared."""
    if isinstance(size, int):
        return size if size >= 0 else None
    return size.value or None


def tensor_dtype(value: ir.Value) -> ir.DataType | None:
    return value.dtype if is_tensor(value) else None


def live_nodes(graph: ir.Graph) -> Callable[[ir.Node], bool]:
    """Which nodes a run cannot leave out: those a graph output depends on."""
    needed: set[ir.Value] = set(graph.outputs)
    nodes: set[ir.Node] = set()
    for node in reversed(graph):
        if needed.isdisjoint(node.outputs):
            continue
        nodes.add(node)
        needed.update(value for value in (*node.inputs, *inner_uses(node)) if value is not None)
    return nodes.__contains__
