"""One model of an experiment: its graphs, what each cost model says of them, and what they take."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ..egraph.budget import Budget, Limits
from ..egraph.targets import CostModel, Target
from ..egraph.targets import target as find_target
from ..lowering.measure.machine import Machine
from ..lowering.measure.race import Standing, Timed, feeds_at, race
from ..lowering.model.operators import full_name
from ..lowering.verify.feeds import read_model
from ..lowering.verify.session import CPU, Session, Source, source_of
from ..optimize import saturate
from .experiment import Experiment
from .finding import Finding

_INPUT, _AGAIN = "input", "input again"
#: To which part of a ratio it is known before timing ends.
_MARGIN = 0.01


@dataclass(frozen=True, slots=True)
class Task:
    """A model of an experiment."""

    experiment: Experiment
    model: str

    def run(self, tell: Callable[[str], None]) -> list[Finding]:
        """Raises EGraphError and its kinds."""
        rows = list[Finding]()
        for name in self.experiment.targets:
            where = find_target(name)
            folder = self.experiment.path("")
            costs = {c.name: c.load(where, folder) for c in self.experiment.named}
            graphs = self._graphs(where, costs, tell)
            runs = where.provider == CPU
            standings = self._timed(graphs, tell) if runs else {}
            for graph in graphs:
                tell(f"pricing {graph.name} for {name}")
                rows += self._rows(graph, where, costs, standings)
        return rows

    def _graphs(self, where: Target, costs: Mapping[str, CostModel], tell: Callable[[str], None]) -> list[_Graph]:
        """The model, and the best graphs of each cost model, each once."""
        path = str(self.experiment.path(self.model))
        read = read_model(path)
        given: Hashable = ""
        found = {given: _Graph(_INPUT, path, read, source_of(path, read))}
        space = saturate(path, target=where, progress=tell)
        for name, cost in costs.items():
            best = space.best(self.experiment.best, cost=cost, dims=self.experiment.workloads)
            for rank, result in enumerate(best, 1):
                key = given if result.report.unchanged else result.drawn()
                if key not in found:
                    source = source_of(result._ir, result._ir)
                    found[key] = _Graph(f"graph {len(found)}", result._ir, result._ir, source)
                found[key].ranks.setdefault(name, rank)
        return list(found.values())

    def _timed(self, graphs: Sequence[_Graph], tell: Callable[[str], None]) -> dict[str, Standing]:
        """What the graphs take on this machine. Raises ModelError where one does not run."""
        seconds, wanted = self.experiment.seconds, self.experiment.workloads
        tell(f"timing {len(graphs)} models, for {seconds:g} s at most")
        entries: dict[str, Callable[[], Timed]] = {_INPUT: graphs[0].session, _AGAIN: graphs[0].session}
        entries |= {graph.name: graph.session for graph in graphs}
        feeds = feeds_at(str(self.experiment.path(self.model)), wanted)
        budget = Budget(Limits(seconds=seconds))
        return {s.name: s for s in race(entries, feeds, [w.weight for w in wanted], budget, tell, _MARGIN, drop=False)}

    def _rows(
        self, graph: _Graph, where: Target, costs: Mapping[str, CostModel], standings: Mapping[str, Standing]
    ) -> list[Finding]:
        """What each cost model says of a graph, which is priced as it stands in a file, whoever chose it."""
        wanted = self.experiment.workloads
        bare = saturate(graph.model, rules=[], target=where)
        kinds = Counter(map(full_name, graph.read.graph.all_nodes()))
        operators = ", ".join(f"{op} {n}" for op, n in sorted(kinds.items(), key=lambda kind: (-kind[1], kind[0])))
        machine = Machine.this()
        rows = list[Finding]()
        for name, cost in costs.items():
            table = bare.costs(cost=cost, dims=wanted)
            for k, workload in enumerate(wanted):
                predicted = 1e-12 * sum(row.costs[k] for row in table)
                measured = speed = low = high = noise = None
                if graph.name in standings:
                    standing, off = standings[graph.name], standings[_AGAIN].speed_at(k).off
                    at = standing.speed_at(k)
                    numbers = (standing.seconds_at(k), at.value, at.low, at.high, off)
                    measured, speed, low, high, noise = map(_known, numbers)
                rows.append(Finding(
                    self.model, where.name, workload.name, graph.name, name, graph.ranks.get(name, 0), predicted,
                    measured, speed, low, high, noise, kinds.total(), operators,
                    f"{machine.processor}; onnxruntime {machine.onnxruntime}",
                ))  # fmt: skip
        return rows


@dataclass(frozen=True, slots=True)
class _Graph:
    """A graph to be compared; `ranks` are its places among the best of the cost models that chose it."""

    name: str
    model: str | ir.Model
    read: ir.Model
    source: Source
    ranks: dict[str, int] = field(default_factory=dict)

    def session(self) -> Timed:
        return Session(self.source, optimize=True, threads=1)


def _known(number: float) -> float | None:
    return number if math.isfinite(number) else None
