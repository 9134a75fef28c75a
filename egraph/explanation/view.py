"""Values of a result that the original holds in another layout: `value = transpose(reshape(x))`, or the other way.

A rule that fuses an operator often moves an axis as well, so that what it makes equals no original value. One or
two terms of the e-graph that move axes and nothing else lead from there to one that does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ..engine.frozen import Frozen, Row
from ..terms import LAYOUT

#: Terms between a class and its original value, at most.
_STEPS = 3


@dataclass(frozen=True, slots=True)
class View:
    """How the class `cls` and the class `value` of an original value are each other's layout.

    `rows` are e-nodes, outermost first: of `value` down to `cls` if `above`, else of `cls` down to `value`. `numbers`
    are the vectors their shapes are given by.
    """

    cls: int
    value: int
    above: bool
    rows: tuple[Row, ...]
    numbers: tuple[Row, ...]

    @property
    def classes(self) -> tuple[int, ...]:
        """All classes of tensors that it goes through, both ends included."""
        return (*(r.cls for r in self.rows), self.rows[-1].children[0])


class Views:
    """Looks for views in a frozen e-graph; `values` are the classes that hold an original value."""

    def __init__(self, frozen: Frozen, values: Collection[int]) -> None:
        self._values = values
        self._down: dict[int, list[Row]] = {}  # class -> its terms of a layout
        self._up: dict[int, list[Row]] = {}  # class -> terms of a layout that take it
        self._numbers: dict[int, Row] = {}
        for r in frozen.rows:
            if r.op in LAYOUT:
                self._down.setdefault(r.cls, []).append(r)
                self._up.setdefault(r.children[0], []).append(r)
            elif r.op == "Ints":
                self._numbers[r.cls] = r

    def of(self, cls: int) -> Iterator[View]:
        """The views of a class, the shortest first, in a fixed order."""
        for above in (True, False):
            level: list[tuple[int, tuple[Row, ...]]] = [(cls, ())]
            seen = {cls}
            for _ in range(_STEPS):
                further: list[tuple[int, tuple[Row, ...]]] = []
                for at, path in level:
                    near = self._up.get(at, ()) if above else self._down.get(at, ())
                    for row in sorted(near, key=lambda r: (r.op, r.attrs, r.cls, r.children)):
                        end = row.cls if above else row.children[0]
                        if end in seen or self._shapes(row) is None:
                            continue
                        seen.add(end)
                        further.append((end, (row, *path) if above else (*path, row)))
                for end, path in further:
                    if end in self._values:
                        numbers = {r.cls: r for row in path for r in self._shapes(row) or ()}
                        yield View(cls, end, above, path, tuple(numbers.values()))
                level = [f for f in further if f[0] not in self._values]

    def _shapes(self, row: Row) -> list[Row] | None:
        """The vectors a term takes beside its first operand; None if one is neither a value nor numbers."""
        others = [c for c in row.children[1:] if c not in self._values]
        return [self._numbers[c] for c in others] if all(c in self._numbers for c in others) else None
