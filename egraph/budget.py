"""What a call may take: limits of iterations, size and time, and how much of the time is left."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from .errors import EGraphError


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop.

    `iterations` are rounds of one saturation, `tuples` the size of one e-graph: a model with graphs inside its nodes
    has one of each for every graph. Both are deterministic. `seconds` are wall time for all that a call does, modules
    it is the first to import included; what fits depends on the machine, so such a result is not reproducible.

    Raises EGraphError for a limit that is no number, or below 0.
    """

    iterations: int = 40
    tuples: int = 2_000_000
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name, kind in (("iterations", int), ("tuples", int), ("seconds", int | float | None)):
            value = getattr(self, name)
            if not isinstance(value, kind) or isinstance(value, bool) or (value is not None and not value >= 0):
                raise EGraphError(f"Limits({name}={value!r}): a number from 0 up is wanted")


class Limit(StrEnum):
    """What a call may be stopped by."""

    ITERATIONS = "iterations"
    TUPLES = "tuples"
    SECONDS = "seconds"


@dataclass(frozen=True, slots=True)
class Stop:
    """Which limit was reached, and what a report says of it."""

    limit: Limit
    text: str

    def __str__(self) -> str:
        return self.text


class LimitReached(BaseException):
    """A limit is reached, and what was under way is given up. Never leaves a call: it returns what it has by then.

    No Exception, since those say that a node, a rule or a runtime has failed, and are caught for that.
    """

    def __init__(self, stop: Stop) -> None:
        super().__init__(stop.text)
        self.stop = stop


class Budget:
    """The limits of one call, from the moment it begins.

    `kept` seconds are for what has to be done at the end, whatever happens: they do not count as left.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits, self.clock, self.kept = limits, clock, 0.0
        self._begin = clock() if limits.seconds is not None else 0.0
        self._longest: dict[str, float] = {}

    @property
    def timed(self) -> bool:
        return self.limits.seconds is not None

    def left(self) -> float:
        """Seconds that may still be spent."""
        if self.limits.seconds is None:
            return math.inf
        return self.limits.seconds - self.kept - (self.clock() - self._begin)

    def late(self, doing: str) -> Stop:
        return Stop(Limit.SECONDS, f"time limit {self.limits.seconds:g} s (not reproducible) while {doing}")

    def full(self, doing: str) -> Stop:
        return Stop(Limit.TUPLES, f"tuple limit {self.limits.tuples:,} while {doing}")

    def rounds(self, doing: str = "") -> Stop:
        return Stop(
            Limit.ITERATIONS, f"iteration limit {self.limits.iterations}" + (f" while {doing}" if doing else "")
        )

    def check(self, doing: str, ahead: float = 0.0) -> None:
        """Raises LimitReached unless more than `ahead` seconds are left for what comes next."""
        if self.limits.seconds is not None and self.left() <= ahead:
            raise LimitReached(self.late(doing))

    @contextmanager
    def sharing(self, share: float) -> Iterator[None]:
        """Leave this part of what is left to what is done now, and keep the rest for what comes after it."""
        others = max(0.0, self.left()) * (1 - share) if self.timed else 0.0
        self.kept += others
        try:
            yield
        finally:
            self.kept -= others

    @contextmanager
    def step(self, doing: str, kind: str) -> Iterator[None]:
        """Something that cannot be interrupted. Raises LimitReached if the longest of its kind so far does not fit."""
        self.check(doing, self._longest.get(kind, 0.0))
        begin = self.clock()
        yield
        self._longest[kind] = max(self._longest.get(kind, 0.0), self.clock() - begin)


class Stopwatch:
    """CPU seconds by stage, added to `times`."""

    def __init__(self, times: dict[str, float]) -> None:
        self.times = times

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        begin = time.process_time()
        try:
            yield
        finally:
            self.times[stage] = self.times.get(stage, 0.0) + time.process_time() - begin
