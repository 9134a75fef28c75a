"""Fill a table with what works take, the dearest first, so that it can be stopped and taken up again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ...egraph.targets import Work
from .bench import Bench
from .operands import NoRoom, Unfit
from .table import Table
from .works import Works

#: Seconds after which what was measured is written.
_OFTEN = 2.0
#: How many times what a work is predicted to take it may take to measure it, chains and copies included.
_TIMES = 60
#: Seconds that it may take to measure what any node takes.
_NODE = 5.0


class Measure(Protocol):
    """What times works: `Bench`."""

    @property
    def reference(self) -> float: ...
    def seconds(self, work: Work, opset: int, predicted: float) -> float: ...
    def node(self) -> float: ...


@dataclass(slots=True)
class Calibration:
    """One filling of a table. `bench` makes what times works, from the table's reference; `clock` gives wall time."""

    table: Table
    tell: Callable[[str], None] = lambda stage: None
    bench: Callable[[float], Measure] = Bench
    clock: Callable[[], float] = field(default=time.monotonic)

    def fill(self, works: Works, seconds: float | None = None) -> None:
        """Measure those that the table lacks, until what is left is small or the time is over.

        The table is written every few seconds, and at the end, however that comes. Raises OutputError.
        """
        table, begin = self.table, self.clock()
        missing = [w for w in works.ordered() if not table.knows(w.work)]
        self.tell(f"{len(works)} works, {len(missing)} to measure")
        measure, saved, before = None, begin, len(table.entries)
        try:
            for number, w in enumerate(missing):
                now = self.clock()
                predicted = w.predicted / 1e12
                if seconds is not None and now - begin + _TIMES * predicted > seconds:
                    if now - begin > seconds:
                        break
                    continue  # a shorter one may still fit
                self.tell(f"measuring {number + 1} of {len(missing)}: {w.work.op}")
                measure = measure or self.bench(table.reference)
                table.reference = measure.reference
                try:
                    table.add(w.work, round(1e12 * measure.seconds(w.work, w.opset, predicted)))
                except NoRoom:
                    continue  # the next calibration may have it
                except Unfit as error:
                    table.refuse(w.work, str(error))
                if self.clock() - saved > _OFTEN:
                    table.save()
                    saved = self.clock()
            if not table.node and (seconds is None or self.clock() - begin + _NODE < seconds):
                measure = measure or self.bench(table.reference)
                table.node = max(round(1e12 * measure.node()), 1)
        finally:
            table.added = len(table.entries) - before
            table.left = sum(w.work not in table for w in works)
            table.unfit = sum(w.work not in table and table.knows(w.work) for w in works)
            table.save()
