"""A cost model whose prices are measured, and what it makes of those that are missing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from ...egraph.errors import CostError
from ...egraph.targets import CostModel, Roofline, Work, idle
from .nodes import as_node
from .table import Price, Table, key


@dataclass(frozen=True, slots=True)
class _Point:
    """An entry beside what the fallback predicts: logarithms of that, and of the ratio of the two."""

    key: str
    size: float
    ratio: float


def _exactly(work: Work) -> str:
    """Equal for works that differ in nothing but sizes."""
    ranks = [None if t.shape is None else len(t.shape) for t in work.ins]
    return repr((_typed(work), ranks, sorted((name, str(value)) for name, value in work.attrs.items())))


def _typed(work: Work) -> str:
    """Equal for works of one operator, element types and constants."""
    return repr((work.op, [(t.dtype, t.const) for t in work.ins]))


def _named(work: Work) -> str:
    return work.op


def _any(work: Work) -> str:
    return ""


#: By the node of a work: which entries a missing price is taken from: the first of these under which there are any.
_LEVELS: Sequence[Callable[[Work], str]] = (_exactly, _typed, _named, _any)


@dataclass(slots=True)
class Measured:
    """Prices from a table of this machine; those it lacks follow the `fallback`, corrected by the nearest entries.

    A work that the table has not costs what the fallback predicts, times measured over predicted: interpolated in size
    between entries of the same operator, types and attributes; of the same operator, if there are none; or else the
    median of the table. Views, constants and what is computed at load cost what the fallback says.

    The table's entries are taken as they are when the model is made. `cost` raises what the fallback raises.
    """

    table: Table
    fallback: CostModel = field(default_factory=Roofline)
    _prices: dict[str, int] = field(init=False, repr=False)
    _groups: list[dict[str, list[_Point]]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.table, Table):
            raise CostError(f"Measured takes a Table, such as Table.read(), not {self.table!r}")
        self._prices = {k: entry.picoseconds for k, entry in self.table.entries.items()}
        self._groups = [{} for _ in _LEVELS]
        for known, entry in sorted(self.table.entries.items()):
            point, node = self._point(known, entry), as_node(entry.work)
            for groups, group_of in zip(self._groups, _LEVELS, strict=True):
                groups.setdefault(group_of(node), []).append(point)

    def cost(self, work: Work) -> int:
        """Picoseconds."""
        if idle(work):
            return self.fallback.cost(work)
        known = self._prices.get(key(work))
        return self._inferred(work) if known is None else known

    def errors(self) -> list[float]:
        """How far off each entry would be if the table had not got it, as a part of what was measured."""
        return [
            abs(self._inferred(entry.work, known) / max(entry.picoseconds, 1) - 1)
            for known, entry in sorted(self.table.entries.items())
        ]  # fmt: skip

    def _point(self, known: str, entry: Price) -> _Point:
        predicted = max(self.fallback.cost(entry.work), 1)
        return _Point(known, math.log(predicted), math.log(max(entry.picoseconds, 1) / predicted))

    def _inferred(self, work: Work, without: str = "") -> int:
        predicted, node = self.fallback.cost(work), as_node(work)
        for groups, group_of in zip(self._groups, _LEVELS, strict=True):
            points = [p for p in groups.get(group_of(node), ()) if p.key != without]
            if points:
                between = group_of in (_exactly, _typed)
                size = math.log(max(predicted, 1))
                ratio = _between(points, size) if between else median(p.ratio for p in points)
                return round(predicted * math.exp(ratio))
        return predicted


def _between(points: Iterable[_Point], size: float) -> float:
    """The ratio at a size: on the line between its neighbors, and beyond the last ones theirs."""
    at: dict[float, list[float]] = {}
    for point in points:
        at.setdefault(point.size, []).append(point.ratio)
    sizes = sorted(at)
    return float(np.interp(size, sizes, [median(at[s]) for s in sizes]))
