"""A model that was saturated once, and what is taken out of it, as often as wanted."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from copy import deepcopy
from typing import Any

from .costs import Alternative, CostTable
from .egraph.budget import Budget
from .egraph.errors import EGraphError, ModelError
from .egraph.targets import CostModel, Target
from .lowering.files.load import Source
from .lowering.measure.works import Works
from .lowering.workload import Sizes, Workload, workloads
from .report import Report
from .result import Result, as_given
from .run import Run, Saturated
from .settings import Settings, uncollected
from .verification import verified


class Space:
    """All that the rules prove equal to a model; `saturate` makes one.

    `report` says what is known before anything is taken out: the e-graph, limits that were reached, calls that were
    not looked into. The limits hold anew for each call of a method.
    """

    def __init__(self, settings: Settings, saturated: Saturated, source: Source) -> None:
        self._settings, self._saturated, self._source = settings, saturated, source

    @property
    def report(self) -> Report:
        return deepcopy(self._saturated.report)

    def __repr__(self) -> str:
        counts = self._saturated.report.egraph
        return f"Space({counts['tuples']:,} tuples after {counts['iterations']} iterations)"

    def extract(self, *, cost: CostModel | None = None, dims: Sizes = None, verify: bool = False) -> Result[Any]:
        """The cheapest model in it, of the same kind as the one that was saturated; as `saturate_and_extract`.

        cost: prices operators. dims: sizes of symbolic dimensions, or workloads. verify: compare its numbers with those
        of the model. Nothing is saturated again, but for graphs inside nodes and sizes left open, which may be
        looked at once more. Raises CostError, ModelError for a dimension that no input has, VerificationError.
        """
        settings, wanted = self._settings, workloads(dims)
        run = self._run()
        model = settings.priced(cost, run.report)
        with uncollected():
            result = run.extract(self._saturated, model, wanted)
        if verify:
            self.verify(run, result, cost, wanted)
        return result

    def unchanged(self, why: str) -> Result[Any]:
        """The model as it was given, and in its report why."""
        report = self.report
        report.unchanged, report.nodes_after = why, report.nodes_before
        return as_given(report, self._saturated.loaded)

    def costs(self, *, cost: CostModel | None = None, dims: Sizes = None) -> CostTable:
        """What the nodes of the model that was saturated are predicted to cost as they stand.

        Raises ModelError for a dimension that no input has, and for a model, or a graph of it, that was not looked into
        (the message says why); CostError.
        """
        run = self._run()
        with uncollected():
            return run.costs(self._saturated, self._settings.priced(cost, run.report), workloads(dims))

    def works(self, works: Works, cost: CostModel, wanted: Sequence[Workload]) -> None:
        """Enter what operators its e-nodes come to, for `calibrate`. Raises ModelError, CostError."""
        with uncollected():
            self._run().works(self._saturated, works, cost, wanted)

    @property
    def target(self) -> Target:
        """Where the model will run."""
        return self._settings.target

    def _run(self, without: Collection[str] = ()) -> Run:
        return self._settings.run(Budget(self._settings.limits), self.report, without)

    def alternatives(
        self, name: str, *, cost: CostModel | None = None, dims: Sizes = None
    ) -> list[Alternative]:  # fmt: skip
        """All ways to compute a value of the model, the best first: the members of its e-class.

        name: a value, or a node, of the model that was saturated, or a fused node of what `extract` gives. Raises
        ModelError for a name that nothing has, or whose value is not looked at since no output needs it or it is a
        known number; CostError.
        """
        if not isinstance(name, str) or not name:  # nodes may have no name
            raise ModelError(f"{name!r} is no name of a value or a node; a text is wanted")
        run, wanted = self._run(), workloads(dims)
        model = self._settings.priced(cost, run.report)
        with uncollected():
            return run.alternatives(self._saturated, name, model, wanted)

    def best(self, k: int, *, cost: CostModel | None = None, dims: Sizes = None) -> list[Result[Any]]:
        """The k cheapest graphs that differ in the kinds of operator they hold, the cheapest first; fewer if there are
        no more.

        Each is the cheapest of all graphs that do without some kinds of operator which a cheaper one of the list holds.
        The first is that of `extract`. Raises CostError, ModelError.
        """
        return [result for _, result in self.runs(k, cost, workloads(dims))]

    def runs(self, k: int, cost: CostModel | None, wanted: Sequence[Workload]) -> list[tuple[Run, Result[Any]]]:
        """The same, each with the call that made it."""
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise EGraphError(f"best({k!r}): how many graphs are wanted, from 1 up")
        first = self._run()
        model = self._settings.priced(cost, first.report)
        with uncollected():
            calls = [self._run(without) for without in first.cheapest(self._saturated, k, model, wanted)]
            for run in calls:
                run.report.predicts = first.report.predicts
            found = [(run, run.extract(self._saturated, model, wanted)) for run in calls]
        drawn: dict[Hashable, tuple[Run, Result[Any]]] = {}
        for run, result in found:  # what differs before it is written may be one once a later pass has seen it
            drawn.setdefault(result.drawn(), (run, result))
        return [*drawn.values()]

    def verify(self, run: Run, result: Result[Any], cost: CostModel | None, wanted: Sequence[Workload]) -> None:
        """Compare the numbers of a result with those of the model. Raises VerificationError."""
        verified(self._settings, run, self._source, result, self._settings.priced(cost, Report()), wanted)
