"""Load a term graph into egglog and saturate it with rules under limits of iterations, size and time."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .budget import Budget, Limits
from .dtypes import NAMES
from .errors import RuleError, UnsoundMerge
from .facts import MADE_BY_FACTS, prelude
from .graph import TRUTHS, TermGraph
from .pace import Pace
from .rule import STAGES, Rule
from .targets import MS, Target
from .terms import CLASSES, Op

#: Seconds that importing egglog takes, about.
_IMPORT = 0.2


@dataclass(slots=True)
class Saturation:
    """What happened: why it stopped, how large the e-graph got, how often each rule matched."""

    stop: str
    iterations: int
    tuples: int
    matches: dict[str, int] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return self.stop == "saturated"


class Engine:
    """One e-graph. Create, `load` a graph, `saturate`, then read it with `freeze`.

    `apart` gives each rule a ruleset of its own, for `step`; such an e-graph is not saturated. `present` are the
    terms of the graph that will be loaded: what can never match there is left out, as most of what a run costs
    is asking every rule, every time, whether anything is new. An engine that is `kept` is made for several graphs, one
    after the other: `begin` comes before each, and `end` after it.

    Raises LimitReached when the `budget` has none left before the e-graph is made.
    """

    def __init__(
        self, rules: Sequence[Rule], target: Target | None = None, *, apart: bool = False,
        present: Iterable[str] | None = None, budget: Budget | None = None, kept: bool = False,
    ) -> None:  # fmt: skip
        budget = budget or Budget(Limits())
        budget.check("building the e-graph", 0.0 if "egglog.bindings" in sys.modules else _IMPORT)
        from egglog import bindings  # paid only when a graph is optimised

        self._b = bindings
        self.rules = list(rules)
        self.target = target
        self._graph: TermGraph | None = None
        self.egraph = bindings.EGraph()
        extra = sorted({op for r in rules for op in r.terms}, key=lambda op: op.name)
        self.extra_ops = {op.name: op for op in extra}
        self.reached = None if present is None else reachable(self.rules, present)
        self.run(prelude(extra, self.reached))
        legal = {*(target.legal if target else ()), *(pair for op in extra for pair in _legal(op, target))}
        self._runs = {name for name, _ in legal} if target else None
        for stage in STAGES:
            self.run(f"(ruleset {stage})")
        for number, r in enumerate(self.rules):
            budget.check("building the e-graph")
            if apart:
                self.run(f"(ruleset only-{number})")
            text = r.text(
                f"only-{number}" if apart else r.stage, mark=f"(why $root {number})",
                readings=r.within(self.reached, self._runs),
            )  # fmt: skip
            try:
                self.run(text)
            except bindings.EggSmolError as error:
                raise RuleError(f"rule {r.name}: {' '.join(str(error).split())}") from error
        self.run("\n".join(f'(supported "{name}" {code})' for name, code in sorted(legal)))
        if not kept:
            self._name_vectors(self.reached)

    def _name_vectors(self, reached: frozenset[str] | None) -> None:
        """State the vectors that the rules name which can match."""
        vectors: set[str] = set()
        for r in self.rules:
            if any(r.vectors):
                readings = [0] if r.egglog else r.within(reached, self._runs)
                vectors.update(*(r.vectors[i] for i in readings))
        self.run("\n".join(f'(set (vector "{v}") (vec-of {v}))' for v in sorted(vectors)))

    def serves(self, present: Iterable[str]) -> bool:
        """Whether it was made for graphs of these terms."""
        return self.reached is None or self.reached.issuperset(present)

    def begin(self, present: Iterable[str]) -> None:
        """Start on a graph of the terms `present`, for which the engine was made."""
        self.run("(push)")
        self._name_vectors(reachable(self.rules, present))

    def end(self) -> None:
        """Forget all since `begin`; the rules stay."""
        self.run("(pop)")
        self._graph = None

    def run(self, text: str) -> list[Any]:
        """Run egglog commands, line by line: spans of a whole program cost quadratic time in egglog 13."""
        commands: list[Any] = []
        for line in text.splitlines():
            if line.strip():
                commands += self.egraph.parse_program(line)
        return list(self.egraph.run_program(*commands))

    def load(self, graph: TermGraph) -> None:
        self._graph = graph
        with tempfile.TemporaryDirectory() as folder:
            self.run("\n".join(graph.lowering(folder)))
            self.run("(run lower 1)")

    def tuples(self) -> int:
        span = self._b.RustSpan("", 0, 0)
        sizes: Any = self.egraph.run_program(self._b.PrintSize(span, None))[0]
        return sum(int(n) for _, n in sizes.sizes)

    def pairs(self, relation: str, frozen: Frozen) -> list[tuple[int, int]]:
        """The rows of a relation of two tensors, as classes of `frozen`, which was made after them."""
        rows = self.egraph.freeze().functions[relation].rows
        return [(frozen.class_of(r.inputs[0]), frozen.class_of(r.inputs[1])) for r in rows]

    def _schedule(self, schedule: str, matches: dict[str, int]) -> bool:
        updated = False
        for out in self.run(f"(run-schedule {schedule})"):
            if isinstance(out, self._b.RunScheduleOutput):
                updated |= out.report.updated
                for name, n in out.report.num_matches_per_rule.items():
                    matches[name] = matches.get(name, 0) + n
        return updated

    def _derive(self, matches: dict[str, int], pace: Pace) -> None:
        """All facts of what the e-graph holds, or those that a limit leaves room for."""
        if not pace.close:
            self._schedule("(saturate (run facts))", matches)
            return
        while self._schedule("(run facts)", matches):  # the same, but asked on the way
            if pace.lost(self.tuples()):
                return

    def _stages(self, stages: Sequence[str], matches: dict[str, int], pace: Pace) -> bool:
        """One step of each stage, and the facts of what it made; whether anything changed."""
        changed = False
        for stage in stages:
            watched = pace.close
            if watched and not pace.fits(stage):
                break
            if self._schedule(f"(run {stage})", matches):
                self._derive(matches, pace)
                changed = True
            if pace.stop:
                break
            if watched:
                pace.took(stage, self.tuples())
        return changed

    def saturate(
        self, limits: Limits | Budget, progress: Callable[[str], None] | None = None, rest: float = 0.0
    ) -> Saturation:
        """Run the early stages (normal forms, markers) until nothing changes, then the late ones, and again, until
        nothing changes at all or a limit is met. Raises UnsoundMerge naming the false rule.

        A Budget is that of the call this is a part of, and `rest` the seconds that the call takes afterwards for an
        e-graph of this size. A single step may lead beyond a limit: then `tuples` is more than SLACK times the limit,
        or no time is left, and facts may be missing.
        """
        matches: dict[str, int] = {}
        budget = limits if isinstance(limits, Budget) else Budget(limits)
        pace = Pace(budget, self.tuples(), rest)
        early, late = ([s for s in half if any(r.stage == s for r in self.rules)] for half in (STAGES[:2], STAGES[2:]))
        try:
            self._derive(matches, pace)
            pace.size = self.tuples()
            if pace.stop:
                return Saturation(pace.stop, 0, pace.size, matches)
            for i in range(1, budget.limits.iterations + 1):
                updated = self._stages(early, matches, pace) or (not pace.stop and self._stages(late, matches, pace))
                pace.size = self.tuples()
                if progress:
                    progress(f"saturating: iteration {i}, {pace.size:,} tuples")
                if pace.stop:
                    return Saturation(pace.stop, i if updated else i - 1, pace.size, matches)
                if not updated:
                    return Saturation("saturated", i, pace.size, matches)
                if pace.size > budget.limits.tuples:
                    return Saturation(budget.full("saturating"), i, pace.size, matches)
            rounds = budget.limits.iterations
            return Saturation(f"iteration limit {rounds}", rounds, pace.size, matches)
        except self._b.EggSmolError as error:
            from .conflict import blame

            reason = str(error).splitlines()[0]
            if self._graph is None:
                raise UnsoundMerge(reason) from error
            raise blame(self.rules, self.target, self._graph, budget, reason) from error

    def facts(self) -> None:
        """Derive all facts. Raises UnsoundMerge if the facts seeded contradict each other."""
        try:
            self._schedule("(saturate (run facts))", {})
        except self._b.EggSmolError as error:
            raise UnsoundMerge(str(error).splitlines()[0]) from error

    def step(self, number: int) -> bool:
        """Run one rule of an e-graph made `apart`, wherever it matches, then the facts; False if nothing is
        new.
        """
        try:
            return self._schedule(f"(seq (run only-{number}) (saturate (run facts)))", {})
        except self._b.EggSmolError as error:
            raise UnsoundMerge(str(error).splitlines()[0]) from error

    def holds(self, facts: str) -> bool:
        """Whether a conjunction of egglog facts has a match."""
        try:
            self.run(f"(check {facts})")
        except self._b.EggSmolError:
            return False
        return True

    def freeze(self) -> Frozen:
        return Frozen(self.egraph)


def reachable(rules: Sequence[Rule], present: Iterable[str]) -> frozenset[str]:
    """The terms that a graph of the terms `present` can come to hold by these rules, and by the laws of facts."""
    reached = {*present, *MADE_BY_FACTS}
    readings = [reading for r in rules for reading in r.takes_and_makes]
    while True:
        waiting = [(takes, makes) for takes, makes in readings if not takes <= reached]
        for takes, makes in readings:
            if takes <= reached:
                reached |= makes
        if len(waiting) == len(readings):
            return frozenset(reached)
        readings = waiting


def _legal(op: Op, target: Target | None) -> list[tuple[str, int]]:
    """Where a term declared by a caller runs: as the target says; for every type if it has no such operator.

    A domain of the caller's own is unknown to any target, and who declares an operator knows that it runs.
    """
    domain, kind = op.forms[-1].domain, op.forms[-1].kind
    known = {code for code, name in NAMES.items() if target is not None and target.supports(domain, kind, name)}
    foreign = domain not in ("", MS)
    return [] if op.marker else [(op.name, code) for code in sorted(known or (NAMES if foreign else ()))]


@dataclass(frozen=True, slots=True)
class Row:
    """An e-node: class, constructor, operand classes (tensors, lists and nodes) and attributes in operand
    order.
    """

    cls: int
    op: str
    children: tuple[int, ...]
    attrs: tuple[Any, ...]


class Frozen:
    """The e-graph as plain Python data. Classes of tensors, lists and nodes share one numbering."""

    def __init__(self, egraph: Any) -> None:
        functions = egraph.freeze().functions
        self.rows: list[Row] = []
        self._numbers: dict[tuple[str, Any], int] = {}
        number = self._number
        vectors: dict[Any, tuple[int, ...]] = {}

        def vector(v: Any) -> tuple[int, ...]:
            if v not in vectors:
                vectors[v] = tuple(egraph.value_to_i64(x) for x in egraph.value_to_vec(v))
            return vectors[v]

        read: dict[str, Callable[[Any], Any]] = {
            "i64": egraph.value_to_i64, "f64": egraph.value_to_f64, "IV": vector,
            "String": egraph.value_to_string,
        }  # fmt: skip
        skip = {"V", "VL", "VN", "spread", "dim", "elem", "iv", "DNum", "DSym"}
        for name, f in functions.items():
            if f.output_sort not in CLASSES or name in skip:
                continue
            sorts = f.input_sorts
            for r in f.rows:
                if r.subsumed:
                    continue
                children, attrs = [], []
                for s, v in zip(sorts, r.inputs, strict=True):
                    if s in CLASSES:
                        children.append(number(s, v))
                    elif s != "Dim":
                        attrs.append(read[s](v))
                self.rows.append(Row(number(f.output_sort, r.output), name, tuple(children), tuple(attrs)))
        self.values = {egraph.value_to_i64(r.inputs[0]): number("T", r.output) for r in functions["V"].rows}
        self._cells = {
            (sort, egraph.value_to_i64(r.inputs[0])): number(sort, r.output)
            for name, sort in (("V", "T"), ("VL", "TL"), ("VN", "Nd")) for r in functions[name].rows
        }  # fmt: skip
        known: dict[Any, int | str] = {r.output: f"${egraph.value_to_i64(r.inputs[0])}" for r in functions["DSym"].rows}
        known.update({r.output: egraph.value_to_i64(r.inputs[0]) for r in functions["DNum"].rows})
        self.symbols = {egraph.value_to_i64(r.inputs[0]): known[r.output] for r in functions["DSym"].rows}
        self.dtype = {number("T", r.inputs[0]): egraph.value_to_i64(r.output) for r in functions["dtype"].rows}
        self.rank = {number("T", r.inputs[0]): egraph.value_to_i64(r.output) for r in functions["rank"].rows}
        self.number = {number("T", r.inputs[0]): egraph.value_to_f64(r.output) for r in functions["fval"].rows}
        self.truths = {
            fact: {number("T", r.inputs[0]) for r in functions[relation].rows} for fact, relation in TRUTHS.items()
        }
        self._dims: dict[int, dict[int, int | str]] = {}
        for r in functions["dim"].rows:
            if r.output in known:
                at = self._dims.setdefault(number("T", r.inputs[0]), {})
                at[egraph.value_to_i64(r.inputs[1])] = known[r.output]
        self.elements: dict[int, dict[int, int | str]] = {}
        for r in functions["elem"].rows:
            if r.output in known:
                at = self.elements.setdefault(number("T", r.inputs[0]), {})
                at[egraph.value_to_i64(r.inputs[1])] = known[r.output]
        self.why: dict[int, set[int]] = {}
        for r in functions["why"].rows:
            self.why.setdefault(number("T", r.inputs[0]), set()).add(egraph.value_to_i64(r.inputs[1]))

    def cell(self, sort: str, number: int) -> int:
        """The class of a tensor, list or node by its number in the loaded graph."""
        return self._cells[sort, number]

    def class_of(self, value: Any, sort: str = "T") -> int:
        """The class of a value of egglog's own."""
        return self._number(sort, value)

    def _number(self, sort: str, value: Any) -> int:
        return self._numbers.setdefault((sort, value), len(self._numbers))

    @property
    def classes(self) -> int:
        return len(self._numbers)

    def shape(self, cls: int) -> tuple[int | str | None, ...] | None:
        """Dimensions of a tensor class: numbers, symbols ("$k", k as numbered by the graph) or None where
        unknown.
        """
        rank = self.rank.get(cls)
        if rank is None:
            return None
        dims = self._dims.get(cls, {})
        return tuple(dims.get(i - rank) for i in range(rank))
