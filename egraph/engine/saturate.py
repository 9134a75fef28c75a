"""Load a term graph into egglog and saturate it with rules under limits of iterations, size and time."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..budget import Budget, Limits, Stop
from ..errors import RuleError, UnsoundMerge
from ..terms import Op
from .facts import MADE_BY_FACTS, prelude
from .frozen import Frozen
from .pace import Pace
from .rule import STAGES, Rule
from .term_graph import TermGraph

#: Steps of the early stages, which a long chain may keep busy, before the late ones have a turn all the same.
_PATIENCE = 24
#: Seconds that importing egglog takes, about.
_IMPORT = 0.2


@dataclass(slots=True)
class Saturation:
    """What happened: which limit stopped it, if one did, how large the e-graph got, how often each rule matched."""

    stop: Stop | None
    iterations: int
    tuples: int
    matches: dict[str, int] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return self.stop is None


class Runs(Protocol):
    """What an e-graph asks of a target."""

    def runs(self, declared: Iterable[Op] = ()) -> frozenset[tuple[str, int]]: ...


class Engine:
    """One e-graph. Create, `load` a graph, `saturate`, then read it with `freeze`.

    `present` are the terms of the graph that will be loaded: what can never match there is left out, as most of what a
    run costs is asking every rule, every time, whether anything is new. An engine that is `kept` is made for several
    graphs, one after the other: `begin` comes before each, and `end` after it.

    Each rule is a ruleset of its own, and a step of a stage runs one after the other: each sees what the ones before it
    have made and merged, so that half as many joins are made of rows that are gone a moment later.

    Raises LimitReached when the `budget` has none left before the e-graph is made.
    """

    def __init__(
        self, rules: Sequence[Rule], target: Runs | None = None, *, present: Iterable[str] | None = None,
        budget: Budget | None = None, kept: bool = False,
    ) -> None:  # fmt: skip
        budget = budget or Budget(Limits())
        budget.check("building the e-graph", 0.0 if "egglog.bindings" in sys.modules else _IMPORT)
        from egglog import bindings  # paid only when a graph is optimized

        self._b = bindings
        self.rules = list(rules)
        self.target = target
        self.graph: TermGraph | None = None
        self.egraph = bindings.EGraph()
        extra = sorted({op for r in rules for op in r.terms}, key=lambda op: op.name)
        self.extra_ops = {op.name: op for op in extra}
        self.reached = None if present is None else reachable(self.rules, present)
        self.run(prelude(extra, self.reached))
        legal = target.runs(extra) if target else frozenset()
        # terms that the target has for some type; None if any may be written
        self.runs = {name for name, _ in legal} if target else None
        self._rulesets: dict[str, list[str]] = {stage: [] for stage in STAGES}
        self._steps = list[str]()
        for number, r in enumerate(self.rules):
            budget.check("building the e-graph")
            text = r.text(f"only-{number}", mark=f"(why $root {number})", readings=r.within(self.reached, self.runs))
            sets = {f"only-{number}": r.stage, **{f"only-{number}-{stage}": stage for stage in r.named}}
            for name, stage in sets.items() if text else ():
                self._rulesets[stage].append(f"(run {name})")
            self._steps.append(" ".join(f"(run {name})" for name in sets))
            try:
                self.run("\n".join([*(f"(ruleset {name})" for name in sets), text]))
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
                readings = [0] if r.egglog else r.within(reached, self.runs)
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
        self.graph = None

    def run(self, text: str) -> list[Any]:
        """Run egglog commands, line by line: spans of a whole program cost quadratic time in egglog 13."""
        commands: list[Any] = []
        for line in text.splitlines():
            if line.strip():
                commands += self.egraph.parse_program(line)
        return list(self.egraph.run_program(*commands))

    def load(self, graph: TermGraph) -> None:
        self.graph = graph
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
        """Whether it changed anything. Raises UnsoundMerge where facts contradict each other."""
        updated = False
        try:
            outputs = self.run(f"(run-schedule {schedule})")
        except self._b.EggSmolError as error:
            raise UnsoundMerge(str(error).splitlines()[0]) from error
        for out in outputs:
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
            if self._schedule(f"(seq {' '.join(self._rulesets[stage])})", matches):
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
        """Run the early stages (normal forms, markers) until nothing changes, or for some time, then the late ones, and
        again, until nothing changes at all or a limit is met. Raises UnsoundMerge where facts contradict each other.

        A Budget is that of the call this is a part of, and `rest` the seconds that the call takes afterwards for an
        e-graph of this size. A single step may lead beyond a limit: then `tuples` is more than SLACK times the limit,
        or no time is left, and facts may be missing.
        """
        matches: dict[str, int] = {}
        budget = limits if isinstance(limits, Budget) else Budget(limits)
        pace = Pace(budget, self.tuples(), rest)
        early, late = ([stage for stage in half if self._rulesets[stage]] for half in (STAGES[:2], STAGES[2:]))
        self._derive(matches, pace)
        pace.size, waited = self.tuples(), 0
        if pace.stop:
            return Saturation(pace.stop, 0, pace.size, matches)
        for i in range(1, budget.limits.iterations + 1):
            updated = self._stages(early, matches, pace)
            waited = waited + 1 if updated else _PATIENCE
            if waited >= _PATIENCE and not pace.stop:
                updated, waited = self._stages(late, matches, pace) or updated, 0
            pace.size = self.tuples()
            if progress:
                progress(f"saturating: iteration {i}, {pace.size:,} tuples")
            if pace.stop:
                return Saturation(pace.stop, i if updated else i - 1, pace.size, matches)
            if not updated:
                return Saturation(None, i, pace.size, matches)
            if pace.size > budget.limits.tuples:
                return Saturation(budget.full("saturating"), i, pace.size, matches)
        return Saturation(budget.rounds(), budget.limits.iterations, pace.size, matches)

    def facts(self) -> None:
        """Derive all facts. Raises UnsoundMerge if the facts seeded contradict each other."""
        self._schedule("(saturate (run facts))", {})

    def step(self, number: int) -> bool:
        """Run one rule, wherever it matches, then the facts; False if nothing is new."""
        return self._schedule(f"(seq {self._steps[number]} (saturate (run facts)))", {})

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
