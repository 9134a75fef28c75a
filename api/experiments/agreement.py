"""How far what a cost model says agrees with what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, median

from .finding import Finding

#: Graphs whose speeds are no further apart than this are not ordered by what is measured.
APART = 0.05


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of one cost model: how far off it is, in the median over graphs, as a part of what was measured; of the `pairs`
    of graphs of one model, target and workload whose speeds are more than 5 % apart, the part that it orders rightly;
    and Spearman's rank correlation of predicted with measured time among such graphs, in the mean over models, targets
    and workloads. None where nothing says.
    """

    cost: str
    graphs: int
    error: float | None
    pairs: int
    ordered: float | None
    correlation: float | None


def agreements(rows: Iterable[Finding]) -> list[Agreement]:
    """One for each cost model, of the rows that were measured."""
    by_cost: dict[str, list[Finding]] = {}
    for row in rows:
        by_cost.setdefault(row.cost, []).append(row)
    return [_agreement(cost, [row for row in of_it if row.measured]) for cost, of_it in by_cost.items()]


def groups(rows: Iterable[Finding]) -> dict[tuple[str, str, str], list[Finding]]:
    """Rows whose times may be compared: of one model, target and workload."""
    found: dict[tuple[str, str, str], list[Finding]] = {}
    for row in rows:
        found.setdefault((row.model, row.target, row.workload), []).append(row)
    return found


def _agreement(cost: str, rows: Sequence[Finding]) -> Agreement:
    alike = groups(rows).values()
    errors = [abs(row.predicted / row.measured - 1) for row in rows if row.measured]
    right = [
        (a.predicted < b.predicted) if _time(a) < _time(b) else (a.predicted > b.predicted)
        for group in alike for a, b in combinations(group, 2)
        if max(_time(a), _time(b)) > (1 + APART) * min(_time(a), _time(b))
    ]  # fmt: skip
    found = [spearman([row.predicted for row in group], [_time(row) for row in group]) for group in alike]
    correlations = [value for value in found if value is not None]
    return Agreement(
        cost, len(rows), median(errors) if errors else None, len(right), fmean(right) if right else None,
        fmean(correlations) if correlations else None,
    )  # fmt: skip


def _time(row: Finding) -> float:
    """Measured time by that of the input, round by round, which drifts less than seconds do."""
    return 1 / row.speed if row.speed else math.inf


def spearman(left: Sequence[float], right: Sequence[float]) -> float | None:
    """The rank correlation of two equally long sequences; None where one of them is constant."""
    from scipy.stats import spearmanr  # takes long to import, and no model is optimized by it

    return float(spearmanr(left, right).statistic) if min(len({*left}), len({*right})) > 1 else None
