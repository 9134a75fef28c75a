"""saturate_and_extract: read, saturate, extract, write back, and say what happened."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import onnx_ir as ir

from .egraph.cost import CostModel, Roofline
from .egraph.errors import Contradiction, CostError, EGraphError, ModelError, TargetError
from .egraph.explain import Derivation
from .egraph.extract import extract
from .egraph.ops import Op
from .egraph.rule import Rule, select
from .egraph.saturate import Engine, Frozen, Limits, Row
from .egraph.target import Target
from .egraph.target import target as find_target
from .lowering.emit import FUSED
from .lowering.explain import Explainer
from .lowering.load import OLDEST_OPSET, Loaded, Source, lift_constants, load
from .lowering.opsets import can_raise
from .lowering.price import RAISE, Pricer, references
from .lowering.reader import Reading, read
from .lowering.save import save
from .lowering.shapes import Shapes, graphs_of, infer
from .lowering.standing import standing
from .lowering.verify import Verification
from .lowering.verify import verify as compare
from .lowering.writer import Names, Writer, Written, sink_constants
from .report import Fused, Report
from .rules import ALL
from .rules.attention import ROWS_VISIBLE
from .verification import verdict

Progress = Callable[[str], None]
Dims = Mapping[str, int | Sequence[int]]
#: The largest size of a named dimension at which numbers are compared.
_COMPARED = 64
#: The first IR version whose initializers need not be listed among the inputs.
_FREE_CONSTANTS = 4
#: Further passes over a model, of which each but the last finds something: never reached.
_PASSES = 8
#: Terms that are printed as no node.
_QUIET = frozenset({"Input", "Const", "FConst", "Ints", "Int0", "Absent", "Cons", "Nil", "Out"})


@dataclass(frozen=True, slots=True)
class Result:
    """The optimised model, of the same kind as the input (a path gives an onnx_ir.Model), and the report."""

    model: ir.Model | onnx.ModelProto
    report: Report
    _ir: ir.Model = field(repr=False)
    _sides: frozenset[Path] = field(repr=False)  # files with weights of the model that was read
    _explainers: Sequence[Explainer] = field(default=(), repr=False)

    def __repr__(self) -> str:
        return f"Result({self.report.nodes_before} -> {self.report.nodes_after} nodes, fused: {self.report.counts()})"

    def explain(self, node: str) -> Derivation:
        """The chain of rules that made a fused node of the result (`report.fused` lists them), replayed and
        checked.

        Raises ModelError for any other name.
        """
        for explainer in self._explainers:
            if node in explainer.nodes:
                return explainer.derivation(explainer.nodes[node])
        raise ModelError(f"no fused node of the result is named {node!r}; the report lists them")

    def find(self, name: str) -> list[str]:
        """Fused nodes of the result that are named so, or that took in the original node or value of that name."""
        return [
            node for explainer in self._explainers for node, cls in explainer.nodes.items()
            if name == node or name in explainer.absorbed(cls)
        ]  # fmt: skip

    def save(self, path: str | os.PathLike[str], *, report: str | os.PathLike[str] | None = None) -> None:
        """Write the model atomically, its external data beside it; with `report`, the report there, as JSON.

        Raises OutputError, and then every file is as it was.
        """
        texts = {} if report is None else {Path(report): self.report.to_json()}
        save(self._ir, path, texts, self._sides)

    def knows(self, name: str) -> bool:
        """Whether a node or value of the model, or of the result, is named so."""
        if any(name in explainer.names() for explainer in self._explainers):
            return True
        graphs = list(self._ir.graphs())
        nodes = [node for graph in graphs for node in graph]
        values = {v.name for g in graphs for v in (*g.inputs, *g.initializers.values())}
        return name in values or any(name == n.name or name in {v.name for v in n.outputs} for n in nodes)

    def near_misses(self, progress: Progress | None = None) -> list[str]:
        """What was not fused and why, one line each; also kept in `report.missed`. Saturates once more."""
        if not self.report.missed:
            last = {e.reading.graph: e for e in self._explainers}  # of several passes over a graph
            for graph, explainer in last.items():
                if progress is not None:
                    progress(f"looking for near misses in {graph.name or 'the graph'}")
                self.report.missed += explainer.misses()
        return self.report.missed


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
    progress: Progress | None = None,
) -> Result:
    """The cheapest model equal to `model` that the rules prove and the target runs.

    model: a path, an onnx.ModelProto or an onnx_ir.Model; it is not changed, and weights are neither copied
    nor loaded when they are external. rules: the laws to use (default: `rules.ALL`); disable: names of rules
    to leave out. cost: prices operators (default `Roofline`). target: "cpu", "cuda" or a Target. dims:
    reference sizes of symbolic dims, such as {"batch": 1, "seq": [1, 512]}. limits: when to stop saturating;
    the best graph so far is returned. strict: keep the values of fully masked rows, too: rules that assume
    there is none are left out. verify: run both models and raise VerificationError, naming the rule, if they
    differ; `report.verification` says what was compared.

    Raises ModelError (the input cannot be read, or contradicts itself), RuleError (a rule name is unknown),
    UnsoundMerge (a rule contradicts the facts), CostError, TargetError, VerificationError.
    """
    tell = progress or (lambda stage: None)
    for name, sizes in (dims or {}).items():
        if not all(isinstance(n, int) and n > 0 for n in (sizes if isinstance(sizes, list | tuple) else [sizes])):
            raise ModelError(f"dims[{name!r}] is {sizes!r}; a size, or a list of sizes, of at least 1 is wanted")
    if isinstance(cost, type) or not isinstance(cost, CostModel | None):
        raise CostError(f"cost is {cost!r}; an object with a method cost(work) is wanted, such as Roofline()")
    if not isinstance(target, str | Target):
        raise TargetError(f"target is {target!r}; a name such as \"cpu\", or a Target, is wanted")
    if not isinstance(limits, Limits | None):
        raise EGraphError(f"limits is {limits!r}; Limits(iterations=.., tuples=.., seconds=..) is wanted")
    off = (disable,) if isinstance(disable, str) else disable
    run = _Run(
        select(ALL if rules is None else rules, off), cost or Roofline(),
        find_target(target) if isinstance(target, str) else target, dims, limits or Limits(), tell, strict,
    )  # fmt: skip
    with _uncollected():
        result = run.optimise(model)
    if verify:
        with run.timed("verify"):
            _verified(run, model, result)
    return result


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the collector of cycles: graph and e-graph only grow here, and each of its walks sees all of them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Run:
    """One call: its settings, and the report as it grows."""

    def __init__(
        self, rules: list[Rule], cost: CostModel, target: Target, dims: Dims | None, limits: Limits, tell: Progress,
        strict: bool,
    ) -> None:  # fmt: skip
        self.rules = [r for r in rules if not strict or ROWS_VISIBLE not in r.assumes]
        self.declared = {op for r in self.rules for op in r.terms()}
        self.cost, self.target, self.dims, self.limits, self.tell = cost, target, dims, limits, tell
        self.strict = strict
        self.report = Report()
        self.explainers: list[Explainer] = []
        self._computed = False  # whether the result holds constants that were nodes
        self._settled = True  # whether all sizes of the model are known

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        begin = time.process_time()
        yield
        self.report.times[stage] = self.report.times.get(stage, 0.0) + time.process_time() - begin

    def optimise(self, source: Source) -> Result:
        self.tell("reading")
        with self.timed("read"):
            loaded = load(source)
        model, report = loaded.model, self.report
        report.opset, report.nodes_before = loaded.opset, _count(model)
        imports = dict(model.graph.opset_imports)
        report.unchanged = _left_alone(loaded)
        if report.unchanged:
            report.nodes_after = report.nodes_before
            return self._result(model, loaded)
        with self.timed("shapes"):
            lift_constants(model)
        changed = again = self._pass(model, first=True)
        # A body may learn from its optimised surroundings, rules from a constant what they cannot from the nodes it
        # was computed from, and sizes that one graph leaves open are known in another.
        more = len(list(model.graphs())) > 1 or self._computed or not self._settled
        for _ in range(_PASSES if more else 0):
            again = again and self._pass(model, first=False)
        report.nodes_after = _count(model)
        left = {node.name for node in model.graph.all_nodes()}
        report.fused = [f for f in report.fused if f.node in left]  # a later pass may take in what an earlier one made
        report.needs = [
            f"operator set {version} of {domain or 'ai.onnx'}"
            for domain, version in sorted(model.graph.opset_imports.items()) if imports.get(domain) != version
        ]  # fmt: skip
        if not changed:
            report.unchanged = "no rule leads to a cheaper graph"
            report.nodes_after = report.nodes_before
            model = load(source).model  # as it was, its Constant nodes included
        elif (model.ir_version or 0) < _FREE_CONSTANTS:
            sink_constants(model)
            report.nodes_after = _count(model)
        return self._result(model, loaded)

    def _pass(self, model: ir.Model, first: bool) -> bool:
        """Optimise every graph of the model in place, bodies first; whether anything changed. The first pass
        prices the model as it came.
        """
        self.tell("inferring shapes")
        with self.timed("shapes"):
            shapes = infer(model)
            self._settled = self._settled and shapes.settled()
        names, self.report.cost_after = Names.of(model), 0
        opset = self.report.opset
        changed = [self._graph(model, graph, shapes, names, opset, first) for graph in _inner_first(model.graph)]
        return any(changed)

    def _result(self, model: ir.Model, loaded: Loaded) -> Result:
        given = ir.to_proto(model) if loaded.kind == "proto" else model
        return Result(given, self.report, model, loaded.sides, self.explainers)

    def _graph(
        self, model: ir.Model, graph: ir.Graph, shapes: Shapes, names: Names, opset: int, first: bool
    ) -> bool:  # fmt: skip
        """Optimise one graph in place; False if it was left as it is."""
        report = self.report
        self.tell("building the e-graph")
        with self.timed("encode"):
            reading = read(graph, shapes, opset, self.declared)
            engine = Engine(self.rules, self.target, present=reading.terms.rows)
            engine.load(reading.terms)
        with self.timed("saturate"):
            try:
                saturation = engine.saturate(self.limits, self.tell)
            except Contradiction as error:
                raise ModelError(f"{reading.where(error.term)}: {error}; correct the sizes or the values") from error
        self.tell("extracting")
        with self.timed("freeze"):
            frozen = engine.freeze()
        with self.timed("price"):
            pricer = Pricer(
                frozen, reading, shapes, self.cost, references(shapes, self.dims), engine.extra_ops,
                lambda wanted: wanted <= self.target.opset_max and can_raise(reading, wanted),
            )  # fmt: skip
            nodes, rows = pricer.enodes()
        with self.timed("extract"):
            roots = list(dict.fromkeys(frozen.values[t] for t in reading.terms.roots))
            found = extract(nodes, roots)
        choice = {c: r for c, k in found.choice.items() if (r := rows[k]) is not None}
        wanted = max((pricer.needs(r) for r in choice.values()), default=0)
        writer = Writer(reading, frozen, choice, names, max(opset, wanted), engine.extra_ops)
        copies = writer.copies()
        with self.timed("price"):
            stands = Bill(*standing(graph, pricer))
            printed = Bill(
                found.cost + sum(pricer.cost_of_copy(c) if r is None else pricer.cost(r) for c, r in copies),
                sum(r.op not in _QUIET for r in choice.values()) + len(copies),
            )  # fmt: skip
        if first:
            report.cost_before += stands.cost
            for key, n in (("tuples", saturation.tuples), ("classes", frozen.classes), ("nodes", len(frozen.rows))):
                report.egraph[key] += n
        report.extraction = "; ".join(filter(None, [found.method, found.message]))
        report.gap = max(report.gap, found.gap)
        report.egraph["iterations"] = max(report.egraph["iterations"], saturation.iterations)
        if not saturation.complete:
            report.stop = saturation.stop
        old = set(_read_rows(frozen, reading))
        proven = pricer.proven(choice)
        explainer = Explainer(reading, shapes, frozen, proven, self.rules, self.target, self.limits, old)
        self.explainers.append(explainer)
        if not _better(printed, stands):
            report.cost_after += stands.cost
            return False
        report.cost_after += printed.cost - (RAISE if wanted > opset else 0)
        with self.timed("write"):
            self._computed |= pricer.computed(choice)
            written = writer.write()
            if wanted > opset:
                model.graph.opset_imports[""] = report.opset = wanted
            for node in graph:
                if node.domain and node.domain not in model.graph.opset_imports:
                    model.graph.opset_imports[node.domain] = 1
        with self.timed("explain"):
            self._explain(explainer, written, old, engine.extra_ops)
        return True

    def _explain(
        self, explainer: Explainer, written: Written, old: set[Row], extra: Mapping[str, Op]
    ) -> None:
        """Enter each new fused operator of a written graph into the report, with the rules that led to it."""
        assumed = set(self.report.assumptions)
        assumes = {r.name: r.assumes for r in self.rules}
        merging = {k for k, r in enumerate(self.rules) if not r.roots()[1]}  # their product is an operand
        for c, r in explainer.choice.items():
            if r in old:
                silent = explainer.frozen.why.get(c, set()) & merging
                assumed.update(a for k in silent for a in self.rules[k].assumes)
                continue
            by = explainer.rules_of(c)
            assumed.update(a for name in by for a in assumes[name])
            if r.op not in FUSED and r.op not in extra:
                continue
            for n in written.nodes.get(c, ()):
                explainer.values.setdefault(c, n.outputs[0].name or "")
                explainer.nodes[n.name or ""] = c
                graph = explainer.reading.graph.name or ""
                spelled = f"{n.domain}::{n.op_type}" if n.domain else n.op_type
                self.report.fused.append(Fused(n.name or "", FUSED.get(r.op, n.op_type), graph, by, spelled))
        self.report.assumptions = sorted(assumed)


def _left_alone(loaded: Loaded) -> str:
    """Why a model is not optimised at all, or nothing."""
    if loaded.opset < OLDEST_OPSET:
        return f"opset {loaded.opset} is older than {OLDEST_OPSET}; convert the model first"
    for node in loaded.model.graph.all_nodes():
        # without outputs nothing says when it must run, and what it is there for is unknown
        if not any(o.name != "" for o in node.outputs):
            return f"node {node.name!r} ({node.op_type}) has no outputs, so it is there for what else it does"
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


@dataclass(frozen=True, slots=True, order=True)
class Bill:
    """What a graph costs: predicted picoseconds, then nodes."""

    cost: int
    nodes: int


def _better(printed: Bill, stands: Bill) -> bool:
    """Whether a graph is worth writing. An equal one is not: the names and the order of a file are its author's."""
    return printed < stands


def _read_rows(frozen: Frozen, reading: Reading) -> Iterator[Row]:
    """The e-nodes the reader made, as they stand after saturation."""
    terms = reading.terms
    vectors = {k: v for v, k in terms.vectors.items()}
    for name, rows in terms.rows.items():
        op = terms.ops[name]
        for out, *args in rows:
            pairs = list(zip(op.sorts, args, strict=True))
            children = tuple(frozen.cell(s, a) for s, a in pairs if s in ("T", "TL", "Nd"))
            attrs = tuple(
                vectors[a] if s == "IV" else float(a) if s == "f64" else a
                for s, a in pairs if s not in ("T", "TL", "Nd")
            )  # fmt: skip
            yield Row(frozen.cell(op.out, out), name, children, attrs)


def _verified(run: _Run, model: Source, result: Result) -> None:
    """Compare the result with the model. Raises VerificationError naming the rule that is to blame."""
    source = os.fspath(model) if isinstance(model, os.PathLike) else model
    # Reference sizes may be large; numbers are compared at small ones.
    given = {k: [v] if isinstance(v, int) else list(v) for k, v in (run.dims or {}).items()}
    small = {k: kept for k, sizes in given.items() if (kept := [n for n in sizes if n <= _COMPARED])}

    def compared(optimised: ir.Model) -> Verification:
        return compare(source, optimised, dims=small, strict=run.strict, provider=run.target.provider)

    def right_without(names: Iterable[str]) -> bool:
        run.tell(f"looking for the false rule: optimising without {len(set(names))} rules")
        again = _Run(
            select(run.rules, names),
            run.cost,
            run.target,
            run.dims,
            run.limits,
            lambda stage: None,
            run.strict,
        )
        try:
            outcome = compared(again.optimise(model)._ir)
        except EGraphError:  # the other rules alone lead elsewhere
            return False
        return outcome.ok

    run.tell("verifying")
    used = {k for e in run.explainers for c in e.choice for k in e.frozen.why.get(c, ())}
    used |= {k for e in run.explainers for c in e.choice for k in e.regions.candidates(e.regions.of(c))}
    names = [run.rules[k].name for k in sorted(used)]
    outcome = compared(result._ir)
    run.report.verification = verdict(outcome, names, right_without, lambda: _suspects(run))
    run.report.verified = outcome.ok


def _suspects(run: _Run) -> list[str]:
    """Rules whose step in some derivation changes a value."""
    found: dict[str, None] = {}
    for explainer in run.explainers:
        for name in explainer.false_rules():
            found[name] = None
    return list(found)


__all__ = ["Dims", "ModelError", "Progress", "Result", "saturate_and_extract"]
