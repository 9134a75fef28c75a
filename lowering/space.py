"""One graph of a model as a saturated e-graph, and the cheapest graph in it.

A `Space` is saturated once; what is chosen from it depends on a cost model and on reference sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ..egraph.budget import Budget, LimitReached, Stop, Stopwatch
from ..egraph.engine.engines import ENGINES
from ..egraph.engine.frozen import Frozen, Row
from ..egraph.engine.pace import SLACK
from ..egraph.engine.rule import Rule
from ..egraph.engine.saturate import Saturation
from ..egraph.errors import Contradiction, ModelError
from ..egraph.explanation.conflict import saturate
from ..egraph.extraction.extract import Extraction, extract
from ..egraph.targets import CostModel, Target
from ..egraph.terms import CLASSES, FLOAT, INTS, OPAQUE, SILENT, Op
from ..egraph.terms.dtypes import INT64
from .explain import Explainer
from .model.domains import DEFAULT, as_read
from .model.names import Names
from .price import RAISE, Pricer, references
from .reader import Reading, read
from .shapes.inference import Shapes
from .writer import Writer

#: What freezing, pricing and a quick extraction take of the time that reading, shapes and terms took.
_REST = 0.8


#: Whether a model may be raised to an operator set if these nodes of its graph are kept as they are.
MayUse = Callable[[Reading, Collection[ir.Node], int], bool]


@dataclass(frozen=True, slots=True)
class Search:
    """How a call searches: the laws, the runtime, and what it may take. `declared` are terms of the caller."""

    rules: Sequence[Rule]
    target: Target
    declared: Collection[Op]
    budget: Budget
    watch: Stopwatch
    tell: Callable[[str], None]


@dataclass(frozen=True, slots=True, order=True)
class Bill:
    """What a graph costs: predicted picoseconds, then nodes."""

    cost: int
    nodes: int


@dataclass(frozen=True, slots=True)
class Space:
    """A graph, its reading, and the e-graph that the rules made of it."""

    search: Search
    reading: Reading
    shapes: Shapes
    saturation: Saturation
    frozen: Frozen
    ops: Mapping[str, Op]  # terms that callers declare

    def choose(
        self, cost: CostModel, dims: Mapping[str, Sequence[int]], may_use: MayUse,
        names: Names, opset: int,
    ) -> Choice:  # fmt: skip
        """The cheapest graph of the space.

        Raises LimitReached, CostError, and ModelError for a name in `dims` that no input has.
        """
        search, budget, watch = self.search, self.search.budget, self.search.watch
        refused: set[int] = set()

        def fits(wanted: int) -> bool:
            possible = may_use(self.reading, self.reading.payloads.nodes, wanted)
            refused.update([] if possible else [wanted])
            return possible

        search.tell("extracting")
        with watch.timed("price"):
            pricer = Pricer(
                self.frozen, self.reading, self.shapes, cost, references(self.shapes, dims), self.ops, fits
            )  # fmt: skip
            nodes, rows = pricer.enodes(budget)
        with watch.timed("extract"):
            roots = list(dict.fromkeys(self.frozen.values[t] for t in self.reading.terms.roots))
            found = extract(nodes, roots, time_limit=max(0.0, budget.left()) if budget.timed else None)
        rows_of = {c: r for c, k in found.choice.items() if (r := rows[k]) is not None}
        wanted = max((pricer.needs(r) for r in rows_of.values()), default=0)
        writer = Writer(self.reading, self.frozen, rows_of, names, max(opset, wanted), self.ops)
        copies = writer.copies()
        with watch.timed("price"):
            stands = Bill(sum(map(pricer.cost_of_node, self.reading.graph)), self.reading.graph.num_nodes())
            printed = Bill(
                found.cost + sum(pricer.cost_of_copy(c) if r is None else pricer.cost(r) for c, r in copies),
                sum(r.op not in SILENT for r in rows_of.values()) + len(copies),
            )  # fmt: skip
        late = bool(found.message) and budget.timed and budget.left() <= 0
        stop = budget.late("extracting") if late else None
        old = set(_read_rows(self.frozen, self.reading))
        explainer = Explainer(
            self.reading, self.shapes, self.frozen, pricer.proven(rows_of), search.rules, search.target,
            budget.limits, old,
        )  # fmt: skip
        return Choice(rows_of, found, stands, printed, opset, wanted, refused, may_use, pricer, writer, explainer, stop)


@dataclass(frozen=True, slots=True)
class Choice:
    """The cheapest graph of a space, beside the one that `stands` in the file. `stop` is the limit that was reached."""

    rows: Mapping[int, Row]
    found: Extraction
    stands: Bill
    printed: Bill
    opset: int
    wanted: int  # the operator set that it needs
    refused: Collection[int]  # operator sets that some nodes have no part in
    may_use: MayUse
    pricer: Pricer
    writer: Writer
    explainer: Explainer
    stop: Stop | None

    @property
    def better(self) -> bool:
        """Whether it is worth writing. An equal one is not: the names and the order of a file are its author's."""
        return self.printed < self.stands

    @property
    def raised(self) -> int:
        """The operator set that it raises the model to, or 0."""
        return self.wanted if self.wanted > self.opset else 0

    @property
    def cost(self) -> int:
        """What the graph costs from now on."""
        if not self.better:
            return self.stands.cost
        return self.printed.cost - (RAISE if self.raised else 0)

    def beyond(self) -> bool:
        """Whether it holds terms that no rule has seen, integers computed at run time of which the file had no value,
        so that nothing is known of their elements, or may be of another operator set than was tried.
        """
        reading, frozen = self.explainer.reading, self.pricer.frozen
        kept = [reading.payloads.nodes[r.attrs[0]] for r in self.rows.values() if r.op in OPAQUE]
        known = {frozen.values[term] for term in reading.origin} | self.pricer.const
        return (
            self.pricer.beyond(self.rows)
            or any(frozen.dtype.get(c) == INT64 and c not in known for c in self.rows)
            or any(self.may_use(reading, kept, opset) for opset in self.refused)
        )

    def write(self, model: ir.Model) -> Mapping[int, list[ir.Node]]:
        """Put it in the place of the graph; the nodes that each class became."""
        written = self.writer.write(body=self.writer.graph is not model.graph)
        imports = model.graph.opset_imports
        if self.raised:
            imports[DEFAULT] = self.raised
        for node in self.explainer.reading.graph:
            if node.domain and as_read(imports.get(node.domain, 0)) < 1:  # none, or none that there is
                imports[node.domain] = 1
        return written


def explore(graph: ir.Graph, shapes: Shapes, opset: int, search: Search, spent: float) -> Space:
    """The space of a graph.

    `spent` are the seconds that reading it and inferring its shapes took: what follows takes in proportion. Raises
    LimitReached, and ModelError where the facts of the graph contradict each other.
    """
    budget, watch = search.budget, search.watch
    search.tell("building the e-graph")
    begin = budget.clock()
    with watch.timed("encode"):
        reading = read(graph, shapes, opset, search.declared, budget)
        rest = _REST * (spent + budget.clock() - begin) if budget.timed else 0.0
        if reading.terms.tuples() > budget.limits.tuples:
            raise LimitReached(budget.full("building the e-graph"))
        with budget.step("building the e-graph", "engine"):
            engine = ENGINES.take(search.rules, search.target, reading.terms.rows, budget)
            engine.load(reading.terms)
    with watch.timed("saturate"):
        try:
            saturation = saturate(engine, budget, search.tell, rest)
        except Contradiction as error:
            raise ModelError(f"{reading.where(error.term)}: {error}; correct the sizes or the values") from error
    if saturation.stop is not None and saturation.tuples > SLACK * budget.limits.tuples:
        raise LimitReached(saturation.stop)  # what comes next would take as much memory again
    # before the first step there is no better graph, and later only if there is time to find it
    budget.check("saturating", 0.0 if saturation.iterations else rest)
    with watch.timed("freeze"):
        frozen = engine.freeze()
        if saturation.complete:
            ENGINES.keep(engine)
    return Space(search, reading, shapes, saturation, frozen, engine.extra_ops)


def _read_rows(frozen: Frozen, reading: Reading) -> Iterator[Row]:
    """The e-nodes the reader made, as they stand after saturation."""
    terms = reading.terms
    vectors = {k: v for v, k in terms.vectors.items()}
    for name, rows in terms.rows.items():
        op = terms.ops[name]
        for out, *args in rows:
            children, attrs = op.parted([
                frozen.cell(s, a) if s in CLASSES else vectors[a] if s == INTS else float(a) if s == FLOAT else a
                for a, s in op.with_sorts(args)
            ])  # fmt: skip
            yield Row(frozen.cell(op.out, out), name, tuple(children), tuple(attrs))
