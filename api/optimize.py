"""saturate_and_extract: read, saturate, extract, write back, and say what happened."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from numbers import Integral
from typing import Any, TypedDict, Unpack, overload

import onnx
import onnx_ir as ir

from .egraph.budget import Budget, LimitReached, Limits, Stop, Stopwatch
from .egraph.engine.rule import Rule, select
from .egraph.errors import CostError, EGraphError, ModelError, TargetError, UnsoundMerge
from .egraph.targets import CostModel, Roofline, Target
from .egraph.targets import target as find_target
from .fusions import enter
from .lowering.declared import by_kind, check
from .lowering.explain import Explainer
from .lowering.files import constants
from .lowering.files.functions import called, drop_unused, same_in
from .lowering.files.listed import FREE, relist, unlist
from .lowering.files.load import Loaded, Source, load, write_out
from .lowering.files.older import renew
from .lowering.model.domains import DEFAULT
from .lowering.model.names import Names
from .lowering.model.wellformed import label
from .lowering.opsets import can_raise
from .lowering.reader import CALL, Reading
from .lowering.shapes.inference import Shapes, graphs_of, infer
from .lowering.space import Search, explore
from .lowering.verify.runtime import DOING, Runtime
from .lowering.verify.verify import Verification
from .lowering.verify.verify import verify as compare
from .report import Report
from .result import Result, as_given, stamps
from .rules import ALL
from .verification import verdict

Progress = Callable[[str], None]
Dims = Mapping[str, int | Sequence[int]]
#: The largest size of a named dimension for all inputs that numbers are compared on; larger ones get one each.
_COMPARED = 64
#: Further passes over a model, of which each but the last finds something: never reached.
_PASSES = 8
#: What giving back a model takes of the time that reading took: writing and explaining it, and freeing memory.
_GIVEN = 1.3
#: The part of the time limit that a verification is left.
_VERIFIED = 0.5


class Options(TypedDict, total=False):
    """The keyword arguments of `saturate_and_extract`."""

    rules: Iterable[Rule] | None
    disable: Iterable[str]
    cost: CostModel | None
    target: str | Target
    dims: Dims | None
    limits: Limits | None
    strict: bool
    verify: bool
    custom_ops: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    progress: Progress | None


@overload
def saturate_and_extract(model: onnx.ModelProto, **options: Unpack[Options]) -> Result[onnx.ModelProto]: ...
@overload
def saturate_and_extract(model: str | os.PathLike[str] | ir.Model, **options: Unpack[Options]) -> Result[ir.Model]: ...
def saturate_and_extract(
    model: Source,
    *,
    rules: Iterable[Rule] | None = None,
    disable: Iterable[str] = (),
    cost: CostModel | None = None,
    target: str | Target = "cpu",
    dims: Dims | None = None,
    limits: Limits | None = None,
    strict: bool = False,
    verify: bool = False,
    custom_ops: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    progress: Progress | None = None,
) -> Any:
    """The cheapest model equal to `model` that the rules prove and the target runs.

    model: a path, an onnx.ModelProto or an onnx_ir.Model; it is not changed, and weights are neither copied
    nor loaded when they are external. rules: the laws to use (default: `rules.ALL`); disable: names of rules
    to leave out. cost: prices operators (default: a `Roofline` of the target's prices). target: "cpu", "cuda"
    or a Target. dims: reference sizes of symbolic dims, such as {"batch": 1, "seq": [1, 512]}. limits: what the
    call may take; at a limit the best graph so far is returned, or the model as it came, and `report.stop` says
    which limit it was and where. Only reading the model is never cut short. strict: keep the values of fully masked
    rows, and what NaN and infinities come to, too: rules that assume there are none are left out. verify: run both
    models and raise VerificationError, naming the rule, if they differ; `report.verification` says what was
    compared. custom_ops: libraries of operators for onnxruntime to load when it verifies; those that rules declare
    are computed by their numpy meaning.

    Raises ModelError (the input cannot be read, or contradicts itself), RuleError (a rule name is unknown),
    UnsoundMerge (a rule contradicts the facts), CostError, TargetError, VerificationError.
    """
    if not callable(progress or print):
        raise EGraphError(f"progress is {progress!r}; a function that takes the name of a stage is wanted")
    tell = progress or (lambda stage: None)
    dims = _sizes(dims)
    if isinstance(cost, type) or not isinstance(cost, CostModel | None):
        raise CostError(f"cost is {cost!r}; an object with a method cost(work) is wanted, such as Roofline()")
    if not isinstance(target, str | Target):
        raise TargetError(f'target is {target!r}; a name such as "cpu", or a Target, is wanted')
    if not isinstance(limits, Limits | None):
        raise EGraphError(f"limits is {limits!r}; Limits(iterations=.., tuples=.., seconds=..) is wanted")
    budget = Budget(limits or Limits())
    off = (disable,) if isinstance(disable, str) else disable
    given = [*(ALL if rules is None else rules)]
    where = find_target(target) if isinstance(target, str) else target
    run = _Run(select(given, off), cost or Roofline(where.prices), where, dims, budget, tell, strict)
    run.report.predicts = where.prices.what if cost is None else "cost"
    libraries = [custom_ops] if isinstance(custom_ops, str | os.PathLike) else custom_ops
    runtime = Runtime(by_kind(op for r in given for op in r.terms), [os.fspath(each) for each in libraries], budget)
    if verify:
        runtime.check()
        budget.kept = _VERIFIED * (budget.limits.seconds or 0.0)
    with _uncollected():
        result = run.optimize(model)
    budget.kept = 0.0
    if verify:
        with run.watch.timed("verify"):
            _verified(run, runtime, model, result)
    return result


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the collector of cycles: graph and e-graph only grow here, and each of its walks sees all of them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled and not gc.get_freeze_count():  # what was made is old by now, and no reason for a walk at once
            gc.freeze()
            gc.unfreeze()
        if enabled:
            gc.enable()


class _Run:
    """One call: its settings, and the report as it grows."""

    def __init__(
        self, rules: list[Rule], cost: CostModel, target: Target, dims: Mapping[str, list[int]], budget: Budget,
        tell: Progress, strict: bool,
    ) -> None:  # fmt: skip
        self.rules = [r for r in rules if not (strict and r.loose)]
        declared = {op for r in self.rules for op in r.terms}
        self.operators = {(domain, op) for domain, op, _ in target.ops}
        check(declared, self.operators)
        self.operators |= {(form.domain, form.kind) for op in declared for form in op.forms}
        self.cost, self.target, self.dims, self.budget, self.tell = cost, target, dims, budget, tell
        self.strict, self.watch = strict, Stopwatch()
        self.search = Search(self.rules, target, declared, budget, self.watch, tell)
        self.report = Report(times=self.watch.times)
        self.explainers: list[Explainer] = []
        self.inputs: list[ir.Value] = []  # all that the model lists, constants included
        self._beyond = False  # whether the result holds terms that no rule has seen, or may be of another opset
        self._settled = True  # whether all sizes of the model are known
        self._changed = False
        self._costs: dict[ir.Graph, int] = {}
        self._stops: dict[str, None] = {}
        self._spent = 0.0  # seconds for reading the model and inferring its shapes

    def stop(self, stop: Stop, graph: ir.Graph | None = None) -> None:
        """Enter into the report that a limit was reached; `graph` is the body it was reached in."""
        self._stops[f"{stop} in graph {graph.name!r}" if graph is not None else str(stop)] = None
        self.report.stop = "; ".join(self._stops)
        self.report.limits = sorted({*self.report.limits, stop.limit})

    def optimize(self, source: Source) -> Result[Any]:
        budget, kept = self.budget, self.budget.kept
        begin = budget.clock()
        self.tell("reading")
        with self.watch.timed("read"):
            loaded = load(source, self.operators)
        self._spent = budget.clock() - begin
        budget.kept += _GIVEN * self._spent
        try:
            return self._optimize(loaded)
        finally:
            budget.kept = kept

    def _optimize(self, loaded: Loaded) -> Result[Any]:
        model, report = loaded.model, self.report
        report.opset, report.nodes_before, report.calls = loaded.opset, _count(model), [*loaded.calls]
        imports = dict(model.graph.opset_imports)
        report.unchanged = _left_alone(loaded) or renew(model)
        if report.unchanged:
            report.nodes_after = report.nodes_before
            return as_given(report, loaded)
        report.opset = model.graph.opset_imports[DEFAULT]
        try:
            self.budget.check("reading")
            with self.watch.timed("shapes"):
                constants.lift(model)
                self.inputs = unlist(model)
            again = self._pass(model, first=True)
            # A body may learn from its optimized surroundings, rules from a constant what they cannot from the nodes
            # it was computed from, and sizes that one graph leaves open are known in another.
            more = len(list(model.graphs())) > 1 or self._beyond or not self._settled
            for _ in range(_PASSES if more else 0):
                again = again and self._pass(model, first=False)
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
            return as_given(report, loaded, self.explainers, self.budget.limits)
        report.needs = [
            f"operator set {version} of {domain or 'ai.onnx'}"
            for domain, version in sorted(model.graph.opset_imports.items()) if imports.get(domain) != version
        ]  # fmt: skip
        drop_unused(model)
        relist(model, self.inputs)
        if (model.ir_version or 0) < FREE:
            constants.sink(model)
            report.nodes_after = _count(model)
        given = ir.to_proto(model) if loaded.kind == "proto" else model
        sides, limits, path = stamps(loaded), self.budget.limits, loaded.original.path
        return Result(given, report, model, sides, self.explainers, None, limits, path)

    def _pass(self, model: ir.Model, first: bool) -> bool:
        """Optimize every graph of the model in place, bodies first; whether anything changed. The first pass
        prices the model as it came. Raises LimitReached before any graph.
        """
        report = self.report
        self.tell("inferring shapes")
        begin = self.budget.clock()
        with self.watch.timed("shapes"):
            shapes = infer(model, self.budget, believing=not self.strict)
            self._settled = self._settled and shapes.settled()
        self._spent += self.budget.clock() - begin if first else 0.0
        names, opset, changed = Names.of(model), report.opset, False
        names.values.taken.update(v.name for v in self.inputs if v.name)
        before, self._costs = self._costs, {}
        graphs = _inner_first(model.graph)
        sizes = [graph.num_nodes() + 1 for graph in graphs]
        for k, graph in enumerate(graphs):
            part = sizes[k] / sum(sizes)
            try:
                with self.budget.sharing(sizes[k] / sum(sizes[k:])):
                    try:
                        changed |= self._graph(model, graph, shapes, names, opset, first, part)
                    except (ModelError, UnsoundMerge):
                        if not shapes.assumed:
                            raise
                        shapes = infer(model, self.budget)  # what the file says is false
                        changed |= self._graph(model, graph, shapes, names, opset, first, part)
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

    def _graph(
        self, model: ir.Model, graph: ir.Graph, shapes: Shapes, names: Names, opset: int, first: bool, part: float
    ) -> bool:  # fmt: skip
        """Optimize one graph in place, which is `part` of the model; False if it was left as it is.

        Raises LimitReached, and then it was, too.
        """
        report, inner = self.report, None if graph is model.graph else graph
        space = explore(graph, shapes, opset, self.search, self._spent * part)
        if space.saturation.stop is not None:
            self.stop(space.saturation.stop, inner)
        choice = space.choose(self.cost, self.dims, partial(self._may_use, model), names, opset)
        if choice.stop is not None:
            self.stop(choice.stop, inner)
        if first:
            report.cost_before += choice.stands.cost
            report.egraph["classes"] += space.frozen.classes
            report.egraph["nodes"] += len(space.frozen.rows)
        report.extraction = "; ".join(filter(None, [choice.found.method, choice.found.message]))
        report.gap = max(report.gap, choice.found.gap)
        for key, n in (("tuples", space.saturation.tuples), ("iterations", space.saturation.iterations)):
            report.egraph[key] = max(report.egraph[key], n)
        self.explainers.append(choice.explainer)
        self._costs[graph] = choice.cost
        if not choice.better:
            return False
        with self.watch.timed("write"):
            self._beyond |= choice.beyond()
            written = choice.write(model)
            report.opset = choice.raised or report.opset
        with self.watch.timed("explain"):
            enter(report, choice.explainer, written, space.ops)
            report.assumptions = sorted({*report.assumptions, *shapes.assumed})
        return True

    def _may_use(self, model: ir.Model, reading: Reading, nodes: Collection[ir.Node], opset: int) -> bool:
        """Whether the target has the operator set, and these nodes and what they call mean the same in it."""
        if opset > self.target.opset_max or not can_raise(reading, nodes, opset):
            return False
        return all(same_in(function, opset) for function in called(model, nodes).values())


def _sizes(dims: object) -> dict[str, list[int]]:
    """Reference sizes as lists of plain numbers. Raises ModelError for what is none."""
    if not isinstance(dims, Mapping | None):
        raise ModelError(f'dims is {dims!r}; a mapping of names to sizes, such as {{"batch": 1}}, is wanted')
    found: dict[str, list[int]] = {}
    for name, sizes in (dims or {}).items():
        given = list(sizes) if isinstance(sizes, Sequence) and not isinstance(sizes, str | bytes) else [sizes]
        if not given or not all(isinstance(n, Integral) and not isinstance(n, bool) and int(n) > 0 for n in given):
            raise ModelError(f"dims[{name!r}] is {sizes!r}; a size, or a list of sizes, of at least 1 is wanted")
        found[name] = [int(n) for n in given]
    return found


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


def _verified(run: _Run, runtime: Runtime, model: Source, result: Result[Any]) -> None:
    """Compare the result with the model. Raises VerificationError naming the rule that is to blame."""
    source = os.fspath(model) if isinstance(model, os.PathLike) else model
    # Reference sizes may be large; most numbers are compared at small ones.
    small = {k: kept for k, sizes in run.dims.items() if (kept := [n for n in sizes if n <= _COMPARED])}
    large = {k: kept for k, sizes in run.dims.items() if (kept := [n for n in sizes if n > _COMPARED])}

    def compared(optimized: ir.Model) -> Verification:
        at_sizes = partial(
            compare, source, optimized, large=large, strict=run.strict, provider=run.target.provider, runtime=runtime
        )
        outcome = at_sizes(dims=small)
        if outcome.runs or outcome.mismatches or not small:
            return outcome
        free = at_sizes(dims={})  # the model does not run at these sizes
        return replace(free, unused=[*outcome.dropped[:1], *free.unused])

    def right_without(names: Iterable[str]) -> bool:
        searching = "looking for the false rule"
        run.budget.check(searching)
        run.tell(f"looking for the false rule: optimizing without {len(set(names))} rules")
        rules = select(run.rules, names)
        again = _Run(rules, run.cost, run.target, run.dims, run.budget, lambda stage: None, run.strict)
        try:
            outcome = compared(again.optimize(model)._ir)
        except EGraphError:  # the other rules alone lead elsewhere
            return False
        run.budget.check(searching)  # else what agrees may be the model as it came
        return outcome.ok

    run.tell("verifying")
    used = {k for e in run.explainers for c in e.choice for k in e.frozen.why.get(c, ())}
    used |= {k for e in run.explainers for c in e.choice for k in e.regions.candidates(e.regions.of(c))}
    names = [run.rules[k].name for k in sorted(used)]
    outcome = compared(result._ir)
    steps = (name for e in run.explainers for name in e.false_rules(run.budget))  # that change a value
    run.report.verification = verdict(outcome, names, right_without, lambda: list(dict.fromkeys(steps)))
    run.report.verified = outcome.ok
    if run.budget.timed and outcome.skipped == str(late := run.budget.late(DOING)):
        run.stop(late)


__all__ = ["Dims", "ModelError", "Progress", "Result", "saturate_and_extract"]
