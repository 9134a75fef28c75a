"""One call: a model read and saturated, the cheapest graphs chosen and written, and the report as it grows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import chain
from typing import Any

import onnx_ir as ir

from .costs import Alternative, CostTable, standing, table
from .egraph.budget import Budget, LimitReached, Stop, Stopwatch
from .egraph.engine.rule import Rule
from .egraph.errors import ExtractionError, ModelError, UnsoundMerge
from .egraph.targets import CostModel, Target
from .fusions import enter
from .lowering.declared import check
from .lowering.explain import Explainer
from .lowering.files import constants
from .lowering.files.apart import take_apart
from .lowering.files.functions import called, drop_unused, same_in
from .lowering.files.listed import FREE, relist, unlist
from .lowering.files.load import Loaded, Source, load, write_out
from .lowering.files.older import renew
from .lowering.measure.works import Works
from .lowering.model.domains import DEFAULT
from .lowering.model.names import Names
from .lowering.model.wellformed import label
from .lowering.opsets import can_raise
from .lowering.reader import CALL, Reading
from .lowering.shapes.inference import Shapes, graphs_of, infer
from .lowering.space import Choice, GraphSpace, Priced, Search, explore
from .lowering.twin import Twin, copied
from .lowering.workload import Workload
from .lowering.workload import check as check_sizes
from .report import Report
from .result import Result, as_given, stamps

Progress = Callable[[str], None]
#: Graphs, each with what it may become; None where a limit was reached.
Spaces = Sequence[tuple[ir.Graph, GraphSpace | None]]
#: Further passes over a model, of which each but the last finds something: never reached.
_PASSES = 8
#: What giving back a model takes of the time that reading took: writing and explaining it, and freeing memory.
_GIVEN = 1.3


@dataclass(frozen=True, slots=True)
class Saturated:
    """A model as it was read, and the space of each of its graphs, bodies first; nothing of it changes any more.

    `report` says what is known so far, `inputs` are all that the model lists, constants included.
    """

    loaded: Loaded
    imports: Mapping[str, int]  # operator sets, as the file has them
    report: Report
    spent: float  # seconds for reading the model and inferring its shapes
    shapes: Shapes | None = None
    inputs: Sequence[ir.Value] = ()
    spaces: Spaces = ()


class Run:
    """One call: its settings, and the report as it grows."""

    def __init__(
        self, rules: Sequence[Rule], target: Target, budget: Budget, tell: Progress, strict: bool,
        report: Report | None = None, without: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.rules = [r for r in rules if not (strict and r.loose)]
        declared = {op for r in self.rules for op in r.terms}
        self.operators = {(domain, op) for domain, op, _ in target.ops}
        check(declared, self.operators)
        self.operators |= {(form.domain, form.kind) for op in declared for form in op.forms}
        self.target, self.budget, self.tell, self.strict, self.without = target, budget, tell, strict, without
        self.report = report or Report()
        self.watch = Stopwatch(self.report.times)
        self.search = Search(self.rules, target, declared, budget, self.watch, tell)
        self.explainers: list[Explainer] = []
        self._beyond = False  # whether the result holds terms that no rule has seen, or may be of another opset
        self._settled = True  # whether all sizes of the model are known
        self._changed = False
        self._costs: dict[ir.Graph, int] = {}
        # what was chosen for each graph last, and the nodes of each class, if it was written
        self._choices: dict[ir.Graph, tuple[Choice, Mapping[int, Sequence[ir.Node]] | None]] = {}
        self._stops: dict[str, None] = dict.fromkeys([self.report.stop] if self.report.limits else [])
        self._spent = 0.0

    def stop(self, stop: Stop, graph: ir.Graph | None = None) -> None:
        """Enter into the report that a limit was reached; `graph` is the body it was reached in."""
        self._stops[f"{stop} in graph {graph.name!r}" if graph is not None else str(stop)] = None
        self.report.stop = "; ".join(self._stops)
        self.report.limits = sorted({*self.report.limits, stop.limit})

    # ---- saturation

    def saturate(self, source: Source) -> Saturated:
        """Read a model and saturate each of its graphs. Raises ModelError, RuleError, UnsoundMerge."""
        budget, kept = self.budget, self.budget.kept
        begin = budget.clock()
        self.tell("reading")
        with self.watch.timed("read"):
            loaded = load(source, self.operators)
        self._spent = budget.clock() - begin
        budget.kept += _GIVEN * self._spent
        try:
            return self._saturate(loaded)
        finally:
            budget.kept = kept

    def _saturate(self, loaded: Loaded) -> Saturated:
        model, report = loaded.model, self.report
        report.opset, report.nodes_before, report.calls = loaded.opset, _count(model), [*loaded.calls]
        imports = dict(model.graph.opset_imports)
        report.unchanged = _left_alone(loaded) or renew(model)
        inputs: list[ir.Value] = []
        shapes: Shapes | None = None
        spaces: Spaces = ()
        if not report.unchanged:
            report.opset = model.graph.opset_imports[DEFAULT]
            try:
                self.budget.check("reading")
                with self.watch.timed("shapes"):
                    constants.lift(model)
                    inputs = unlist(model)
                begin = self.budget.clock()
                shapes = self._infer(model)
                self._spent += self.budget.clock() - begin
                shapes, spaces = self._spaces(model, shapes)
            except LimitReached as reached:
                self.stop(reached.stop)
        return Saturated(loaded, imports, report, self._spent, shapes, inputs, spaces)

    def _spaces(self, model: ir.Model, shapes: Shapes) -> tuple[Shapes, Spaces]:
        """The space of every graph of the model, bodies first, and the shapes that they go by."""
        graphs, kept = _inner_first(model.graph), self.budget.kept
        sizes = [graph.num_nodes() + 1 for graph in graphs]
        found: list[tuple[ir.Graph, GraphSpace | None]] = []
        for k, graph in enumerate(graphs):
            space = None
            try:
                with self.budget.sharing(sizes[k] / sum(sizes[k:])):
                    space, shapes = self._explored(model, graph, shapes, sizes[k] / sum(sizes))
            except LimitReached as reached:
                self.stop(reached.stop, None if graph is model.graph else graph)
            found.append((graph, space))
            self.budget.kept += space.rest if space is not None else 0.0
        self.budget.kept = kept
        return shapes, found

    def _infer(self, model: ir.Model) -> Shapes:
        """Raises LimitReached."""
        self.tell("inferring shapes")
        with self.watch.timed("shapes"):
            return infer(model, self.budget, believing=not self.strict)

    def _explored(self, model: ir.Model, graph: ir.Graph, shapes: Shapes, part: float) -> tuple[GraphSpace, Shapes]:
        """The space of a graph, which is `part` of the model, and the shapes that it goes by. Raises LimitReached."""
        try:
            space = explore(graph, shapes, self.report.opset, self.search, self._spent * part)
        except (ModelError, UnsoundMerge):
            if not shapes.assumed:
                raise
            shapes = infer(model, self.budget)  # what the file says is false
            space = explore(graph, shapes, self.report.opset, self.search, self._spent * part)
        if space.saturation.stop is not None:
            self.stop(space.saturation.stop, None if graph is model.graph else graph)
        counts = self.report.egraph
        for key, n in (("tuples", space.saturation.tuples), ("iterations", space.saturation.iterations)):
            counts[key] = max(counts[key], n)
        return space, shapes

    # ---- extraction

    def extract(
        self, saturated: Saturated, cost: CostModel, workloads: Sequence[Workload], *, once: bool = False
    ) -> Result[Any]:
        """The cheapest model. With `once` it is written into the model that was read, which is of no use after that.

        Raises CostError, and ModelError for a dimension that no input has.
        """
        budget, kept = self.budget, self.budget.kept
        self._spent = saturated.spent
        budget.kept += _GIVEN * self._spent
        try:
            return self._extract(saturated, cost, workloads, once)
        finally:
            budget.kept = kept

    def _extract(self, saturated: Saturated, cost: CostModel, workloads: Sequence[Workload], once: bool) -> Result[Any]:
        report, loaded = self.report, saturated.loaded
        if report.unchanged:
            report.nodes_after = report.nodes_before
            return as_given(report, loaded)
        shapes = saturated.shapes
        twin = Twin(loaded.model)
        inputs: list[ir.Value] = [*saturated.inputs]
        if shapes is not None:
            check_sizes(shapes, workloads)
            report.workloads = [workload.name for workload in workloads]
            with self.watch.timed("write"):
                twin = twin if once else copied(loaded.model, whole=len(saturated.spaces) > 1)
                inputs = [twin.value(v) for v in inputs]
        model = twin.model
        choosing = partial(self._chosen, cost=cost, workloads=workloads, inputs=inputs)
        try:
            again = shapes is not None and choosing(twin, shapes, saturated.spaces, first=True)
            # A body may learn from its optimized surroundings, rules from a constant what they cannot from the nodes
            # it was computed from, and sizes that one graph leaves open are known in another.
            more = len(saturated.spaces) > 1 or self._beyond or not self._settled
            for _ in range(_PASSES if more else 0):
                if again:
                    shapes, spaces = self._spaces(model, self._infer(model))
                    again = choosing(Twin(model), shapes, spaces, first=False)
        except LimitReached as reached:
            self.stop(reached.stop)
        left = _inner_first(model.graph)  # bodies of a node that was dropped cost nothing
        if all(graph in self._costs for graph in left):
            report.cost_after = sum(self._costs[graph] for graph in left)
        else:
            report.cost_before = 0  # some graph was not priced
        report.nodes_after = _count(model)
        names = {node.name for node in model.graph.all_nodes()}
        report.fused = [f for f in report.fused if f.node in names]  # a later pass may take in what an earlier one made
        if not self._changed:
            limit = f"nothing cheaper was found before a limit was reached: {report.stop}"
            report.unchanged = limit if self._stops else "no rule leads to a cheaper graph"
            report.nodes_after = report.nodes_before
            return as_given(report, loaded, self.explainers, self.budget.limits, self._table())
        report.needs = [
            f"operator set {version} of {domain or 'ai.onnx'}"
            for domain, version in sorted(model.graph.opset_imports.items()) if saturated.imports.get(domain) != version
        ]  # fmt: skip
        drop_unused(model)
        relist(model, inputs)
        old = (model.ir_version or 0) < FREE
        if old or loaded.kind == "proto":  # which hold what is in memory alone
            take_apart(model)
        if old:
            constants.sink(model)
        report.nodes_after = _count(model)
        given = ir.to_proto(model) if loaded.kind == "proto" else model
        sides, limits, path = stamps(loaded), self.budget.limits, loaded.original.path
        return Result(given, report, model, sides, self.explainers, None, limits, path, self._table())

    def _table(self) -> Callable[[], CostTable]:
        """The costs of the nodes of the result, to be made when they are asked for."""
        return partial(table, self.report.workloads, [*self._choices.items()])

    def _chosen(
        self, twin: Twin, shapes: Shapes, spaces: Spaces, *, cost: CostModel, workloads: Sequence[Workload],
        inputs: Iterable[ir.Value], first: bool,
    ) -> bool:  # fmt: skip
        """Write the cheapest graph of each space into the twin of the model it was read from; whether anything
        changed. The `first` time prices the model as it came.
        """
        model, report = twin.model, self.report
        self._settled = self._settled and shapes.settled()
        names, opset, changed = Names.of(model), report.opset, False
        names.values.taken.update(v.name for v in inputs if v.name)
        before, self._costs = self._costs, {}
        for old, space in spaces:
            graph = twin.graph(old)
            if space is not None:
                try:
                    changed |= self._written(twin, space, cost, workloads, names, opset, first)
                except LimitReached as reached:
                    self.stop(reached.stop, None if graph is model.graph else graph)
            if graph not in self._costs and graph in before:
                self._costs[graph] = before[graph]
        self._changed |= changed
        if report.opset > opset and model.functions:
            drop_unused(model)
            if (calls := write_out(model, self.operators)) is not None:
                report.calls, self._beyond = [*calls], True
        return changed

    def _written(
        self, twin: Twin, space: GraphSpace, cost: CostModel, workloads: Sequence[Workload], names: Names, opset: int,
        first: bool,
    ) -> bool:  # fmt: skip
        """Write the cheapest graph of a space; False if its graph was left as it is.

        Raises LimitReached, and then it was, too.
        """
        report, model, graph = self.report, twin.model, twin.graph(space.reading.graph)
        priced = space.priced(self.search, cost, workloads, partial(self._may_use, model))
        with self.watch.timed("extract"):
            found = priced.cheapest(self.budget, self.without)
        choice = priced.choice(found, self.search, names, opset, twin)
        if choice.stop is not None:
            self.stop(choice.stop, None if graph is model.graph else graph)
        if first:
            report.cost_before += choice.stands.cost
            report.egraph["classes"] += space.frozen.classes
            report.egraph["nodes"] += len(space.frozen.rows)
        report.extraction = "; ".join(filter(None, [choice.found.method, choice.found.message]))
        report.gap = max(report.gap, choice.found.gap)
        self.explainers.append(choice.explainer)
        self._costs[graph], self._choices[graph] = choice.stands.cost, (choice, None)
        if not choice.better and not (first and self.without):
            return False
        with self.watch.timed("write"):
            self._beyond |= choice.beyond()
            written = choice.write(model)
            self._costs[graph], self._choices[graph] = choice.cost, (choice, written)
            report.opset = choice.raised or report.opset
        with self.watch.timed("explain"):
            enter(report, choice.explainer, written, space.ops)
            report.assumptions = sorted({*report.assumptions, *space.shapes.assumed})
        return True

    # ---- what else there is

    def _priced(self, saturated: Saturated, cost: CostModel, workloads: Sequence[Workload]) -> list[Priced]:
        """The spaces with their prices. Raises ModelError, CostError, LimitReached."""
        if saturated.shapes is not None:
            check_sizes(saturated.shapes, workloads)
        may_use = partial(self._may_use, saturated.loaded.model)
        return [s.priced(self.search, cost, workloads, may_use) for _, s in saturated.spaces if s is not None]

    def costs(self, saturated: Saturated, cost: CostModel, workloads: Sequence[Workload]) -> CostTable:
        """What the nodes of the model cost as they stand. Raises ModelError where some graph of it was not looked into,
        or there is no time; CostError.
        """
        report, why = saturated.report, ""
        if not saturated.spaces or any(space is None for _, space in saturated.spaces):
            why = report.unchanged or report.stop
        try:
            if not why:
                return standing([w.name for w in workloads], self._priced(saturated, cost, workloads))
        except LimitReached as reached:
            why = str(reached.stop)
        raise ModelError(f"what the model costs cannot be told: {why}")

    def alternatives(
        self, saturated: Saturated, name: str, cost: CostModel, workloads: Sequence[Workload]
    ) -> list[Alternative]:  # fmt: skip
        """The members of the e-class of a value, or of the first output of a node, the best first."""
        spaces = self._priced(saturated, cost, workloads)
        for space in spaces:
            cls = space.space.class_of(name)
            if cls is not None:
                return self._members(space, cls)
        self._extract(saturated, cost, workloads, once=False)
        for explainer in self.explainers:  # a fused node of the cheapest graph has a name that the model has not
            for space in spaces:
                if name in explainer.nodes and explainer.frozen is space.space.frozen:
                    return self._members(space, explainer.nodes[name])
        missing = any(space is None for _, space in saturated.spaces) or not saturated.spaces
        limit = f"a limit was reached: {saturated.report.stop}" if missing and saturated.report.limits else ""
        where = (
            saturated.report.unchanged or limit or "no output needs it, it is a known number, or nothing is named so"
        )
        raise ModelError(f"there is no e-class of {name!r}: {where}")

    def _members(self, space: Priced, cls: int) -> list[Alternative]:
        best, found = space.cheapest(self.budget), list[Alternative]()
        for k in space.members(cls):
            row, more = space.row(k), None
            with suppress(ExtractionError):
                more = space.cheapest(self.budget, member=k).cost - best.cost
            if row is not None:
                op = space.kind(row) or space.space.title(row)
                operands = tuple(map(space.space.name_of, row.children))
                found.append(Alternative(op, operands, space.pricer.costs(row), more, best.choice.get(cls) == k))
        return sorted(found, key=lambda a: (not a.chosen, a.more is None, a.more or 0))

    def cheapest(
        self, saturated: Saturated, k: int, cost: CostModel, workloads: Sequence[Workload]
    ) -> list[frozenset[str]]:  # fmt: skip
        """The kinds of operator that the k cheapest graphs do without, each a graph with other kinds than the others.

        A search by cost: what follows a graph is the cheapest one without one of its kinds, for each of them.
        """
        spaces = self._priced(saturated, cost, workloads)
        found: dict[frozenset[str], frozenset[str]] = {}  # kinds of a graph -> what it does without
        tried: set[frozenset[str]] = set()
        waiting: list[tuple[int, list[str], frozenset[str]]] = []

        def offer(without: frozenset[str]) -> None:
            if without in tried:
                return
            tried.add(without)
            with suppress(ExtractionError):
                each = [space.cheapest(self.budget, without) for space in spaces]
                kinds = {space.kind(r) for space, e in zip(spaces, each, strict=True) for r in space.chosen(e).values()}
                heappush(waiting, (sum(e.cost for e in each), sorted(kinds - {""}), without))

        offer(frozenset())
        while waiting and len(found) < k:
            _, kinds, without = heappop(waiting)
            if found.setdefault(frozenset(kinds), without) is without and len(found) < k:
                for kind in kinds:
                    offer(without | {kind})
        return list(found.values())

    def works(self, saturated: Saturated, works: Works, cost: CostModel, workloads: Sequence[Workload]) -> None:
        """Enter what operators the e-nodes of a model come to. Raises ModelError, CostError, LimitReached."""
        works.add(self._priced(saturated, cost, workloads), saturated.report.opset)

    def _may_use(self, model: ir.Model, reading: Reading, nodes: Collection[ir.Node], opset: int) -> bool:
        """Whether the target has the operator set, and these nodes and what they call mean the same in it."""
        if opset > self.target.opset_max or not can_raise(reading, nodes, opset):
            return False
        return all(same_in(function, opset) for function in called(model, nodes).values())


def _left_alone(loaded: Loaded) -> str:
    """Why a model is not optimized at all, or nothing."""
    if not loaded.opset:
        return "no operator set of the default domain is imported, and onnxruntime takes its newest; import one"
    functions = loaded.model.functions.values()
    for node in chain(loaded.model.graph.all_nodes(), *(function.all_nodes() for function in functions)):
        if node.domain == DEFAULT and CALL in node.meta:
            return f"{label(node)} calls a function of the default domain; {loaded.calls[0]}"
        # without outputs nothing says when it must run, and what it is there for is unknown
        if not any(o.name != "" for o in node.outputs):
            return f"{label(node)} has no outputs, so it is there for what else it does"
    return ""


def _count(model: ir.Model) -> int:
    return sum(g.num_nodes() for g in model.graphs())


def _inner_first(graph: ir.Graph) -> list[ir.Graph]:
    """The graph's bodies, innermost first, then the graph itself."""
    found: list[ir.Graph] = []
    for node in graph:
        for body in graphs_of(node):
            found += _inner_first(body)
    return [*found, graph]
