"""A cost model whose prices are measured, and what it makes of those that are missing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median

from ...egraph.errors import CostError
from ...egraph.targets import CostModel, Roofline, Work, idle, is_view
from .nodes import as_node
from .table import Table, key

#: How far entries are from a work that differs in more than sizes: in attributes or ranks, or in types or constants.
_OTHER_ATTRIBUTES, _OTHER_TYPES = 0.3, 1.0
#: What distances weigh: of sizes, and of what is predicted for a byte, in which products of few rows and many differ.
_SIZE, _DENSITY = 0.3, 3.0
#: Entries this near count as the work itself.
_NEAR = 0.01


@dataclass(frozen=True, slots=True)
class _Point:
    """A work beside what the fallback predicts, in logarithms: of that, of that for a byte, of measured over predicted.

    `typed` and `exactly` are equal for works of the same element types and constants, and of the same attributes and
    ranks, too.
    """

    key: str
    op: str
    typed: str
    exactly: str
    size: float
    density: float
    ratio: float

    def distance(self, other: _Point) -> float:
        """The square of it."""
        apart = (
            _OTHER_TYPES if self.typed != other.typed else 0.0 if self.exactly == other.exactly else _OTHER_ATTRIBUTES
        )
        return apart + _SIZE * (self.size - other.size) ** 2 + _DENSITY * (self.density - other.density) ** 2


@dataclass(slots=True)
class Measured:
    """Prices from a table of this machine; those it lacks follow the `fallback`, corrected by the nearest entries.

    A work that the table has not costs what the fallback predicts, times measured over predicted: of the entries of the
    same operator, the nearer in size, attributes and types the more they count; of all, the median, where the table has
    none of it. Views, constants and what is computed at load cost what the fallback says. Each node, views included,
    costs what the table says an operator takes more among others.

    The table's entries are taken as they are when the model is made. `cost` raises what the fallback raises.
    """

    table: Table
    fallback: CostModel = field(default_factory=Roofline)
    _prices: dict[str, int] = field(init=False, repr=False)
    _node: int = field(init=False, repr=False)
    _points: dict[str, list[_Point]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.table, Table):
            raise CostError(f"Measured takes a Table, such as Table.read(), not {self.table!r}")
        self._prices = {k: entry.picoseconds for k, entry in self.table.entries.items()}
        self._points, self._node = {}, self.table.node
        for known, entry in sorted(self.table.entries.items()):
            point = self._point(known, entry.work, entry.picoseconds)
            self._points.setdefault(point.op, []).append(point)

    def cost(self, work: Work) -> int:
        """Picoseconds."""
        if idle(work):
            return self.fallback.cost(work) + (self._node if is_view(work) else 0)
        name = key(work)
        known = self._prices.get(name)
        return self._node + (self._inferred(name, work) if known is None else known)

    def errors(self) -> list[float]:
        """How far off each entry would be if the table had not got it, as a part of what was measured."""
        return [
            abs(self._inferred(known, entry.work) / max(entry.picoseconds, 1) - 1)
            for known, entry in sorted(self.table.entries.items())
        ]  # fmt: skip

    def _point(self, name: str, work: Work, measured: int = 1) -> _Point:
        node, predicted = as_node(work), max(self.fallback.cost(work), 1)
        moved = max(sum(t.size * t.width for t in (*work.ins, *work.outs)), 1)
        typed = repr([(t.dtype, t.const, t.outer) for t in node.ins])
        ranks = [None if t.shape is None else len(t.shape) for t in node.ins]
        exactly = repr((typed, ranks, sorted((name, str(value)) for name, value in node.attrs.items())))
        ratio = math.log(max(measured, 1) / predicted)
        return _Point(name, node.op, typed, exactly, math.log(predicted), math.log(predicted / moved), ratio)

    def _inferred(self, name: str, work: Work) -> int:
        """What the entries under other names say of a work."""
        wanted = self._point(name, work)
        near = [point for point in self._points.get(wanted.op, ()) if point.key != name]
        if near:
            weights = [(_NEAR + wanted.distance(point)) ** -2 for point in near]
            ratio = sum(w * p.ratio for w, p in zip(weights, near, strict=True)) / sum(weights)
        else:
            ratio = median([p.ratio for points in self._points.values() for p in points if p.key != name] or [0.0])
        return round(self.fallback.cost(work) * math.exp(ratio))
