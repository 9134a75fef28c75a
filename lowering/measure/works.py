"""Which works are worth measuring: those that the e-nodes of a model come to, the dearest first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ...egraph.targets import CostModel, Work, idle
from ..space import Priced
from .table import key

#: The part of what a model's works are predicted to take at a workload that may be left unmeasured.
LEFT = 0.01


@dataclass(slots=True)
class Wanted:
    """A work, the operator set of a model that has it, what one is predicted to take in picoseconds, and how many there
    are at each workload of each model: by model and place of the workload.
    """

    work: Work
    opset: int
    predicted: int
    counts: dict[tuple[int, int], int] = field(default_factory=dict)


class Works:
    """The works of several models, each once."""

    def __init__(self, fallback: CostModel) -> None:
        self._fallback = fallback
        self._found: dict[str, Wanted] = {}
        self._models = 0

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Wanted]:
        return iter(self._found.values())

    def add(self, spaces: Iterable[Priced], opset: int) -> None:
        """Enter those of a model, which is in this operator set."""
        for space in spaces:
            for works, needed in asked(space):
                for k, work in enumerate(works):
                    if not idle(work):
                        self._enter(work, max(opset, needed), (self._models, k))
        self._models += 1

    def _enter(self, work: Work, opset: int, column: tuple[int, int]) -> None:
        wanted = self._found.get(name := key(work))
        if wanted is None:
            wanted = self._found[name] = Wanted(work, opset, self._fallback.cost(work))
        wanted.counts[column] = wanted.counts.get(column, 0) + 1

    def ordered(self) -> list[Wanted]:
        """Those to measure, by their greatest part of a workload: until what is left is less than `LEFT` of each."""
        left: dict[tuple[int, int], float] = {}
        for w in self:
            for column, count in w.counts.items():
                left[column] = left.get(column, 0.0) + count * w.predicted
        enough = {column: LEFT * total for column, total in left.items()}
        totals = {column: max(total, 1.0) for column, total in left.items()}
        shares = [(max(n * w.predicted / totals[c] for c, n in w.counts.items()), w) for w in self]
        found: list[Wanted] = []
        for _, w in sorted(shares, key=lambda pair: -pair[0]):
            if any(left[column] > enough[column] for column in w.counts):
                found.append(w)
                for column, count in w.counts.items():
                    left[column] -= count * w.predicted
        return found


def asked(space: Priced) -> Iterator[tuple[Sequence[Work], int]]:
    """What a cost model is asked of a space, at each workload, and the operator set that it needs: of each e-node that
    may be printed, and of each node of the graph as it stands.
    """
    for offer in space.offers.offers:
        if offer.row is not None:
            yield offer.asked.works, space.offers.needs(offer.row)
    for questions in space.offers.nodes.values():
        for question in questions:
            yield question.works, 0
