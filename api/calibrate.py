"""calibrate: measure on this machine what the operators take that a model may be made of."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from numbers import Real

from .egraph.errors import EGraphError, TargetError
from .egraph.targets import Roofline, Target
from .egraph.targets import target as find_target
from .lowering.files.load import Source
from .lowering.files.save import Named
from .lowering.measure.calibration import Calibration
from .lowering.measure.table import Table
from .lowering.measure.works import Works
from .lowering.workload import Sizes, workloads
from .optimize import saturate
from .space import Space

#: Seconds of measuring at least, so that a table of use comes out whatever the limit.
_LEAST = 1.0


def calibrate(
    models: Source | Space | Iterable[Source | Space],
    *,
    dims: Sizes = None,
    target: str | Target = "cpu",
    table: Table | Named | None = None,
    seconds: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Table:
    """A table with what the operators take on this machine that the e-graph of a model holds.

    models: a model, as `saturate_and_extract` takes it, or a `Space`, or several. dims: sizes of symbolic dimensions,
    or workloads. table: one to add to, or its file; by default that of this machine in the user's folder of caches.
    What is in it is not measured again, so that a calibration that was cut off goes on where it stopped. seconds: the
    time for all of it, of which reading and saturating models is not cut short; without, all is measured but what is
    predicted to be less than a hundredth of each workload. progress is called with what is being done.

    Each operator is run alone, on one thread, many times in a row, without onnxruntime's own optimizations, weights
    and large operands cold; CPU time counts. What onnxruntime does not run so is left to be predicted, and
    `table.refused` says why. Raises TableError, TargetError for a target of another provider, ModelError, OutputError.
    """
    begin = time.monotonic()
    tell = progress or (lambda stage: None)
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, Real) or not seconds > 0):
        raise EGraphError(f"seconds is {seconds!r}; a time above 0 is wanted")
    where = find_target(target)
    filled = table if isinstance(table, Table) else Table.open(table)
    filled.make_room()  # better said before the work than after it
    several = isinstance(models, Iterable) and not isinstance(models, str)
    given: Sequence[Source | Space] = list(models) if several else [models]  # type: ignore[list-item, arg-type]
    fallback = Roofline(where.prices)
    works = Works(fallback)
    for model in given:
        target_of_it = model.target if isinstance(model, Space) else where
        if target_of_it.provider != filled.machine.provider:
            raise TargetError(
                f"target {target_of_it.name} runs on {target_of_it.provider}, and only what runs on"
                f" {filled.machine.provider} is measured"
            )
        space = model if isinstance(model, Space) else saturate(model, target=where, progress=tell)
        space.works(works, fallback, workloads(dims))
    left = None if seconds is None else max(seconds - (time.monotonic() - begin), _LEAST)
    Calibration(filled, tell).fill(works, left)
    return filled
