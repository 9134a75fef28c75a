"""A model that was saturated once, and what is taken out of it, as often as wanted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import deepcopy
from typing import Any

from .costs import Alternative
from .egraph.budget import Budget
from .egraph.errors import EGraphError
from .egraph.targets import CostModel, Target
from .lowering.files.load import Source
from .lowering.measure.works import Works
from .lowering.workload import Sizes, Workload, workloads
from .report import Report
from .result import Result
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
            verified(settings, run, self._source, result, model, wanted)
        return result

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

        name: a value, or a node, of the model that was saturated. Raises ModelError for a name that nothing has, or
        whose value is not looked at since no output needs it or it is a known number; CostError.
        """
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
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise EGraphError(f"best({k!r}): how many graphs are wanted, from 1 up")
        run, wanted = self._run(), workloads(dims)
        model = self._settings.priced(cost, run.report)
        with uncollected():
            found = run.cheapest(self._saturated, k, model, wanted)
            return [self._run(without).extract(self._saturated, model, wanted) for without in found]
