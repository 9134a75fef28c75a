"""The arguments of a call, checked."""

from __future__ import annotations

import gc
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from .egraph.budget import Budget, Limits
from .egraph.engine.rule import Rule, select
from .egraph.errors import CostError, EGraphError
from .egraph.targets import CostModel, Roofline, Target
from .egraph.targets import target as find_target
from .lowering.declared import by_kind
from .lowering.measure.measured import Measured
from .lowering.verify.runtime import Runtime
from .report import Report
from .rules import ALL
from .run import Progress, Run

Libraries = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True)
class Settings:
    """How a model is saturated, whatever is taken out of it afterwards. `given` are all rules, the disabled too."""

    given: Sequence[Rule]
    rules: Sequence[Rule]
    target: Target
    limits: Limits
    strict: bool
    libraries: Sequence[str] = ()
    tell: Progress = field(default=lambda stage: None)

    @classmethod
    def of(
        cls, rules: Iterable[Rule] | None, disable: Iterable[str], target: str | Target, limits: Limits | None,
        strict: bool, custom_ops: Libraries, progress: Progress | None,
    ) -> Settings:  # fmt: skip
        """Raises EGraphError, TargetError, RuleError for arguments that are of no use."""
        if not callable(progress or print):
            raise EGraphError(f"progress is {progress!r}; a function that takes the name of a stage is wanted")
        if not isinstance(limits, Limits | None):
            raise EGraphError(f"limits is {limits!r}; Limits(iterations=.., tuples=.., seconds=..) is wanted")
        off = (disable,) if isinstance(disable, str) else disable
        given = [*(ALL if rules is None else rules)]
        where = find_target(target)
        return cls(
            given, select(given, off), where, limits or Limits(), strict, libraries_of(custom_ops),
            progress or (lambda stage: None),
        )  # fmt: skip

    def run(self, budget: Budget, report: Report | None = None, without: Collection[str] = ()) -> Run:
        return Run(self.rules, self.target, budget, self.tell, self.strict, report, without)

    def runtime(self, budget: Budget) -> Runtime:
        """What compares numbers."""
        return Runtime(by_kind(op for r in self.given for op in r.terms), self.libraries, budget)

    def priced(self, cost: CostModel | None, report: Report) -> CostModel:
        """The cost model, or that of the target's prices; the report says what it predicts. Raises CostError."""
        if isinstance(cost, type) or not isinstance(cost, CostModel | None):
            raise CostError(f"cost is {cost!r}; an object with a method cost(work) is wanted, such as Roofline()")
        if isinstance(cost, Measured) and cost.table.machine.provider != self.target.provider:
            raise CostError(
                f"target {self.target.name!r} runs on {self.target.provider}, and the prices of {cost.table.path} are"
                f" of {cost.table.machine.provider}; take those of the target"
            )
        measured = f"measured {self.target.prices.what}" if isinstance(cost, Measured) else "cost"
        report.predicts = self.target.prices.what if cost is None else measured
        return cost or Roofline(self.target.prices)


def libraries_of(given: Libraries) -> list[str]:
    """The files of one library of operators, or of several."""
    return [os.fspath(each) for each in ([given] if isinstance(given, str | os.PathLike) else given)]


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the collector of cycles: graph and e-graph only grow here, and each of its walks sees all of them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
