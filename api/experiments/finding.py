"""One finding: what a cost model says of a graph at a workload, and what is so."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Finding:
    """A graph of a model, at a workload, and a cost model.

    `graph` is "input" or a number by which the graphs of a model and target are told apart; `rank` says that it is the
    cheapest graph for this cost model (1), or one of the next, 0 that it is none of them. `predicted` are 10^-12 of its
    costs: seconds, if the model counts picoseconds. `measured` are CPU seconds of one run, and `speed` how many times
    as fast as the input that is, from `low` to `high` with a probability of 95 %; `noise` is how far the input is
    from itself, all None where the target does not run here or, of the bounds, for too few runs. `nodes` and
    `operators` are those of the graph; `machine` says where it ran.
    """

    model: str
    target: str
    workload: str
    graph: str
    cost: str
    rank: int
    predicted: float
    measured: float | None
    speed: float | None
    low: float | None
    high: float | None
    noise: float | None
    nodes: int
    operators: str
    machine: str

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Finding:
        """From JSON."""
        return cls(**data)

    def plain(self) -> dict[str, Any]:
        return asdict(self)


#: The columns, in their order.
COLUMNS = tuple(f.name for f in fields(Finding))


def as_csv(rows: Iterable[Finding]) -> str:
    """A line of names, and one for each row; what is not known is empty."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.plain() for row in rows)
    return text.getvalue()
