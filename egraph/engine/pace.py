"""Whether a saturation may take its next step, by what is left of the limits and by what such steps take."""

from __future__ import annotations

from ..budget import Budget, Stop

#: How far an e-graph may outgrow its limit: a step is not begun when the last of its kind would lead beyond.
SLACK = 1.2
#: An e-graph this many times smaller than its limit is not looked at after each step, but after each iteration.
_FAR = 4


class Pace:
    """`size` is the e-graph's last known number of tuples; `stop` says which limit ends the saturation, once one does.

    `rest` seconds are what follows the saturation of an e-graph that does not grow.
    """

    def __init__(self, budget: Budget, size: int, rest: float) -> None:
        self.budget, self.size = budget, size
        self.stop: Stop | None = None
        self._rest, self._first = rest, max(size, 1)
        self._growth: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self._begin = 0.0

    @property
    def close(self) -> bool:
        """Some limit may be met within an iteration."""
        return self.budget.timed or self.size * _FAR > self.budget.limits.tuples

    def fits(self, stage: str) -> bool:
        """Whether a step of a stage may begin; it begins if so."""
        tuples = self.budget.limits.tuples
        if self.size > tuples or self.size * self._growth.get(stage, 1.0) > SLACK * tuples:
            self.stop = self.budget.full("saturating")
        elif self.budget.timed:
            wanted = self._seconds.get(stage, 0.0) + self._rest * self.size / self._first
            self.stop = self.budget.late("saturating") if self.budget.left() <= wanted else None
            self._begin = self.budget.clock()
        return self.stop is None

    def took(self, stage: str, size: int) -> None:
        """A step of a stage is done, and the e-graph has this size now."""
        self._growth[stage] = max(1.0, size / max(self.size, 1))
        self.size = size
        if self.budget.timed:
            self._seconds[stage] = self.budget.clock() - self._begin

    def lost(self, size: int) -> bool:
        """Whether a step, not done yet, has passed a limit by so much that its e-graph is of no use."""
        if size > SLACK * self.budget.limits.tuples:
            self.stop, self.size = self.budget.full("saturating"), size
        elif self.budget.timed and self.budget.left() <= 0:
            self.stop = self.budget.late("saturating")
        return self.stop is not None
