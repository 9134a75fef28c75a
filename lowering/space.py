"""One graph of a model as a saturated e-graph, and the cheapest graph in it.

A `GraphSpace` is saturated once; what is chosen from it depends on a cost model and on reference sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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
from ..egraph.extraction.problem import ENode
from ..egraph.targets import CostModel, Target
from ..egraph.terms import CLASSES, FLOAT, INTS, LEAVES, OPAQUE, SILENT, Op
from ..egraph.terms.dtypes import INT64
from .explain import Explainer
from .model.domains import DEFAULT, as_read
from .model.names import Names
from .offers import MayUse, Offers
from .price import Pricer
from .reader import Reading, read
from .shapes.inference import Shapes
from .twin import Twin
from .workload import Workload
from .writer import Writer

#: What freezing, pricing and a quick extraction take of the time that reading, shapes and terms took.
_REST = 0.8


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
class GraphSpace:
    """A graph, its reading, and the e-graph that the rules made of it. `rest` are the seconds that choosing takes.

    What is on offer at the last workloads is kept: another cost model asks only for prices.
    """

    reading: Reading
    shapes: Shapes
    saturation: Saturation
    frozen: Frozen
    ops: Mapping[str, Op]  # terms that callers declare
    rest: float
    kept: dict[tuple[Any, ...], Offers] = field(default_factory=dict)

    def priced(
        self, search: Search, cost: CostModel, workloads: Sequence[Workload], may_use: MayUse
    ) -> Priced:  # fmt: skip
        """What each e-node costs. Raises LimitReached, CostError."""
        search.tell("extracting")
        with search.watch.timed("price"):
            offers = self._offers(workloads, may_use, search.budget)
            pricer = Pricer(offers, cost)
            nodes = pricer.enodes(search.budget)
            stands = Bill(sum(map(pricer.cost_of_node, self.reading.graph)), self.reading.graph.num_nodes())
        return Priced(self, offers, pricer, nodes, stands, may_use)

    def _offers(self, workloads: Sequence[Workload], may_use: MayUse, budget: Budget) -> Offers:
        key = tuple((*w.dims.items(), w.weight, w.batch, w.new, w.past) for w in workloads)
        offers = self.kept.get(key)
        if offers is None:
            offers = Offers(self.frozen, self.reading, self.shapes, workloads, self.ops, may_use, budget)
            self.kept.clear()
            self.kept[key] = offers
        return offers

    def class_of(self, name: str) -> int | None:
        """The e-class of a value of the graph, or of the first output of a node, by its name."""
        for term, values in self.reading.origin.items():
            for value in values:
                node = value.producer()
                if name in (value.name, node.name if node is not None and node.outputs[0] is value else None):
                    return self.frozen.values[term]
        return None

    def name_of(self, cls: int) -> str:
        """What the graph calls a value of a class, or nothing."""
        return next(
            (v.name for t, vs in self.reading.origin.items() if self.frozen.values[t] == cls for v in vs if v.name), ""
        )

    def title(self, row: Row) -> str:
        """What a row that is printed as no node of its own is: an input, a constant, or an output of a node."""
        if row.op == "Out":
            return f"output {row.attrs[0]} of a node"
        return "a value of the model" if row.op in LEAVES else "a constant"


@dataclass(frozen=True, slots=True)
class Priced:
    """A space, what is on offer in it, and what that costs: `nodes` are the offers with their prices."""

    space: GraphSpace
    offers: Offers
    pricer: Pricer
    nodes: Sequence[ENode]
    stands: Bill
    may_use: MayUse

    def row(self, place: int) -> Row | None:
        """What a node prints; None for the price of a newer operator set."""
        return self.offers.offers[place].row

    def costs(self) -> Iterator[tuple[ir.Node, tuple[int, ...]]]:
        """The nodes of the graph that was read, as they stand, and what each costs at each workload."""
        for node in self.space.reading.graph:
            yield node, self.pricer.costs_of_node(node)

    def members(self, cls: int) -> list[int]:
        """The e-nodes of a class that may be printed, as places in `nodes`."""
        return [k for k, offer in enumerate(self.offers.offers) if offer.row is not None and offer.cls == cls]

    def kind(self, row: Row) -> str:
        """What operator a row is printed as."""
        return "" if row.op in SILENT else self.offers.kind(row)[0]

    def cheapest(self, budget: Budget, without: Collection[str] = (), member: int | None = None) -> Extraction:
        """The cheapest graph without some kinds of operator, or of all that compute a `member` by that e-node.

        Raises ExtractionError where there is none.
        """
        frozen, roots = self.space.frozen, self.space.reading.terms.roots
        wanted = list(dict.fromkeys(frozen.values[t] for t in roots))
        kept = [*range(len(self.nodes))]
        if without or member is not None:
            cls = None if member is None else self.nodes[member].cls
            wanted = [*dict.fromkeys([*wanted, *([] if cls is None else [cls])])]
            kept = [
                k for k, offer in enumerate(self.offers.offers)
                if (offer.cls != cls or k == member) and (offer.row is None or self.kind(offer.row) not in without)
            ]  # fmt: skip
        limit = max(0.0, budget.left()) if budget.timed else None
        found = extract([self.nodes[k] for k in kept], wanted, time_limit=limit)
        return replace(found, choice={c: kept[k] for c, k in found.choice.items()})

    def chosen(self, found: Extraction) -> dict[int, Row]:
        """What is printed of each class."""
        return {c: r for c, k in found.choice.items() if (r := self.row(k)) is not None}

    def choice(self, found: Extraction, search: Search, names: Names, opset: int, twin: Twin) -> Choice:
        """The graph that was found, to be written into the twin of the one that was read."""
        space, offers, pricer, budget = self.space, self.offers, self.pricer, search.budget
        rows = self.chosen(found)
        wanted = max((offers.needs(r) for r in rows.values()), default=0)
        writer = Writer(offers.reading, space.frozen, rows, names, max(opset, wanted), space.ops, twin, offers.stored)
        copies = writer.copies()
        with search.watch.timed("price"):
            printed = Bill(
                found.cost + sum(pricer.cost_of_copy(c) if r is None else pricer.cost(r) for c, r in copies),
                sum(r.op not in SILENT for r in rows.values()) + len(copies),
            )  # fmt: skip
        late = bool(found.message) and budget.timed and budget.left() <= 0
        stop = budget.late("extracting") if late else None
        old = set(_read_rows(space.frozen, space.reading))
        explainer = Explainer(
            writer.reading, space.shapes, space.frozen, offers.proven(rows), search.rules, search.target,
            budget.limits, old,
        )  # fmt: skip
        return Choice(self, rows, found, printed, opset, wanted, writer, explainer, stop)


@dataclass(frozen=True, slots=True)
class Choice:
    """A graph of a space, beside the one that `stands` in the file. `stop` is the limit that was reached."""

    priced: Priced
    rows: Mapping[int, Row]
    found: Extraction
    printed: Bill
    opset: int
    wanted: int  # the operator set that it needs
    writer: Writer
    explainer: Explainer
    stop: Stop | None

    @property
    def stands(self) -> Bill:
        return self.priced.stands

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
        """What it costs once it is written."""
        return self.printed.cost - (self.priced.pricer.raising if self.raised else 0)

    def beyond(self) -> bool:
        """Whether it holds terms that no rule has seen, integers computed at run time of which the file had no value,
        so that nothing is known of their elements, or may be of another operator set than was tried.
        """
        reading, offers, frozen = self.explainer.reading, self.priced.offers, self.priced.space.frozen
        kept = [reading.payloads.nodes[r.attrs[0]] for r in self.rows.values() if r.op in OPAQUE]
        known = {frozen.values[term] for term in reading.origin} | offers.const
        return (
            offers.beyond(self.rows)
            or any(frozen.dtype.get(c) == INT64 and c not in known for c in self.rows)
            or any(self.priced.may_use(reading, kept, opset) for opset in offers.refused)
        )

    def costs(self, written: Mapping[int, Sequence[ir.Node]] | None) -> Iterator[tuple[ir.Node, tuple[int, ...]]]:
        """The nodes that were `written` for each class, or as they stand, and what each costs at each workload."""
        pricer = self.priced.pricer
        if written is None:
            yield from self.priced.costs()
            return
        again = {node for *_, nodes in self.writer.copied for node in nodes}
        whole = dict[ir.Node, tuple[int, ...]]()  # a term is priced as the one node that it is printed as, the last
        for cls, nodes in written.items():
            own = [node for node in nodes if node not in again]
            if own and cls in self.rows:
                whole[own[-1]] = pricer.costs(self.rows[cls])
        for cls, row, nodes in self.writer.copied:
            whole[nodes[-1]] = pricer.costs_of_copy(cls) if row is None else pricer.costs(row)
        for node in self.writer.nodes:
            yield node, whole.get(node, pricer.nothing)

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


def explore(graph: ir.Graph, shapes: Shapes, opset: int, search: Search, spent: float) -> GraphSpace:
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
    return GraphSpace(reading, shapes, saturation, frozen, engine.extra_ops, rest)


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
