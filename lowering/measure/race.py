"""How fast models run, compared: all of them in turn, on the same inputs, in sessions made in several orders.

What is compared is CPU time, as the median over rounds of the ratio to the first model, so that what slows the machine
for a while slows all alike. In which order sessions are made moves a model by many percent (where its weights come to
lie), hence several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Protocol, TypeVar

from ...egraph.budget import Budget
from ...egraph.errors import EGraphError, ModelError
from ..verify.feeds import Feed, Feeder, Given, Model, read_model
from ..verify.session import reason
from ..workload import Workload

#: CPU seconds that one reading of the clock spans at least: it ticks in microseconds, and a run has a beginning.
_SPAN = 0.02
#: Orders in which the sessions are made.
_ORDERS = 3
#: Rounds after which an order is given up at the latest, and before which nothing is decided.
_ROUNDS, _FEWEST = 40, 8

_T = TypeVar("_T")


class Timed(Protocol):
    """A loaded model that runs."""

    def seconds(self, feed: Mapping[str, Given], count: int) -> float:
        """CPU seconds of so many runs."""
        ...


@dataclass(frozen=True, slots=True)
class Interval:
    """A median, and where it lies with a probability of 95 % or more; both bounds are infinite for too few numbers."""

    value: float
    low: float
    high: float

    @property
    def off(self) -> float:
        """How far from 1 it may be, as it is for a model beside itself: noise."""
        return max(abs(self.low - 1), abs(self.high - 1))

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Interval:
        """By order statistics: how many of n numbers lie below their median is binomial, whatever they are."""
        ordered, n = sorted(numbers), len(numbers)
        if not n:
            return cls(math.nan, -math.inf, math.inf)
        rank, below = 0, 0.5**n
        while below * 2 <= 0.05:
            rank += 1
            below += math.comb(n, rank) * 0.5**n
        bounds = (ordered[rank - 1], ordered[n - rank]) if rank else (-math.inf, math.inf)
        return cls(median(ordered), *bounds)


@dataclass(slots=True)
class Standing:
    """What is known of a model: for each round, its seconds at each workload, and those of the first model."""

    name: str
    rounds: list[tuple[tuple[float, ...], tuple[float, ...]]] = field(default_factory=list)

    def speed(self, weights: Sequence[float]) -> Interval:
        """How many times as fast as the first model it is, over all workloads."""
        return Interval.of([_sum(first, weights) / _sum(own, weights) for own, first in self.rounds])

    def speed_at(self, k: int) -> Interval:
        """The same at one workload."""
        return Interval.of([first[k] / own[k] for own, first in self.rounds])

    def seconds_at(self, k: int) -> float:
        return median(own[k] for own, _ in self.rounds) if self.rounds else math.nan


def _sum(seconds: Sequence[float], weights: Sequence[float]) -> float:
    return sum(s * w for s, w in zip(seconds, weights, strict=True))


def feeds_at(model: Model, workloads: Iterable[Workload]) -> list[Feed]:
    """Inputs of a model at each workload. Raises ModelError where there are none."""
    read, found = read_model(model), list[Feed]()
    for workload in workloads:
        feeder = Feeder(read, 0, {name: [size] for name, size in workload.dims.items()})
        feeds = list(feeder.sized(workload.batch, workload.new, workload.past))
        if not feeds or isinstance(feeds[0], str):
            why = f": {feeds[0]}" if feeds else ""
            raise ModelError(f"workload {workload.name!r}: no inputs of the model have such sizes{why}")
        found.append(feeds[0])
    return found


def race(
    entries: Mapping[str, Callable[[], Timed]], feeds: Sequence[Feed], weights: Sequence[float], budget: Budget,
    tell: Callable[[str], None], margin: float, *, drop: bool = True,
) -> list[Standing]:  # fmt: skip
    """Run models in turn until the interval of each is known to within a `margin`, or shows that it is slower than
    another (with `drop` it runs no more), or no time is left. The first is what the others are compared with.

    Raises ModelError where onnxruntime does not load or run one.
    """
    standings = {name: Standing(name) for name in entries}
    first = next(iter(entries))
    running = list(entries)
    for order in range(_ORDERS):
        if budget.left() <= 0 or (order and len(running) < 2):
            break
        made = _rotated(running, order)
        with budget.sharing(1 / (_ORDERS - order)):
            sessions = {name: _said(name, entries[name]) for name in made}
            counts = [_said(first, partial(_count, sessions[first], feed)) for feed in feeds]
            for turn in range(_ROUNDS):
                if budget.left() <= 0 and turn:
                    break
                tell(f"timing: order {order + 1} of {_ORDERS}, round {turn + 1}, {len(made)} models")
                seconds = {
                    name: tuple(
                        _said(name, partial(sessions[name].seconds, f.inputs, n)) / n
                        for f, n in zip(feeds, counts, strict=True)
                    )
                    for name in _rotated(made, turn)
                }
                for name in made:
                    standings[name].rounds.append((seconds[name], seconds[first]))
                speeds = {name: standings[name].speed(weights) for name in made}
                best = max(speed.low for speed in speeds.values())
                running = [n for n in entries if n in speeds and (n == first or not drop or speeds[n].high >= best)]
                if turn + 1 >= _FEWEST and all(speeds[n].high - speeds[n].low <= margin for n in running):
                    break
        del sessions
    return list(standings.values())


def _said(name: str, what: Callable[[], _T]) -> _T:
    try:
        return what()
    except EGraphError:
        raise
    except Exception as error:  # onnxruntime's exceptions share no base of their own
        raise ModelError(f"{name} cannot be timed: {reason(error)}") from error


def _rotated(names: Sequence[str], by: int) -> list[str]:
    k = by % len(names)
    return [*names[k:], *names[:k]]


def _count(model: Timed, feed: Feed) -> int:
    """Runs that take long enough to be timed."""
    model.seconds(feed.inputs, 1)  # the first makes what later ones use again
    count = 1
    while count < 1024 and (taken := model.seconds(feed.inputs, count)) < _SPAN:
        count = max(count + 1, min(count * 4, math.ceil(count * _SPAN / max(taken, 1e-6))))
    return count
