"""Extraction as a mixed-integer program, solved by HiGHS."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import coo_array, csr_array, vstack

from .problem import Choice, Option, Problem, Solution, weigh

# HiGHS has an absolute gap of 1e-6: with this largest coefficient, costs of one component that differ by less
# than 1e-12 of the dearest option are ties to it.
_OBJECTIVE_SCALE = 1e6
# Slack of the row that keeps the cost minimal while ties are settled; above the feasibility tolerance, 1e-6.
_ROW_SLACK = 1e-4
# What float arithmetic may add to the optimum without integrality, in units of the scaled objective.
_LP_ERROR = 1.0
# All subsets of a strongly connected component of up to this many classes get an acyclicity row.
_DENSE_SCC = 7
# Flow variables per option, at most: more cost more time than their tighter bound saves.
_FLOW_LIMIT = 10


class Program:
    """The mixed-integer program of one component.

    One variable per option, binary where its class has several; a class is active as the sum of its options.
    """

    def __init__(self, part: Problem) -> None:
        self.part = part
        self.options = [option for options in part.options.values() for option in options]
        self.column = {id(option): number for number, option in enumerate(self.options)}
        self.integral = [float(len(part.options[option.cls]) > 1) for option in self.options]
        self.costs = [option.weight // part.unit for option in self.options]
        self.scale = _OBJECTIVE_SCALE / max(1, max(self.costs))
        self.objective = [cost * self.scale for cost in self.costs]
        self.floor = 0.0  # of the optimum without integrality, scaled; added: by each option, at least
        self.added: list[float] = []
        self.height = {cls: place for place, cls in enumerate(part.options)}
        self.upper = [1.0] * len(self.options)
        self.entries: list[tuple[int, int, float]] = []
        self.low: list[float] = []
        self.high: list[float] = []
        # uses[c][d]: the options of class c with operand d.
        self.uses: dict[int, dict[int, list[Option]]] = {cls: {} for cls in part.options}
        for option in self.options:
            for child in sorted(option.children):
                self.uses[option.cls].setdefault(child, []).append(option)
        for cls, options in part.options.items():
            self._row(self._sum(options), float(cls in part.roots), 1.0)
            for child, users in self.uses[cls].items():
                self._row([*self._sum(users), *self._sum(part.options[child], -1.0)], -math.inf, 0.0)
        cycles: dict[int, list[int]] = {}
        for cls in part.options:
            if part.cyclic(cls):
                cycles.setdefault(part.scc[cls], []).append(cls)
        for members in cycles.values():
            self._exclude_cycles(members)
        room = _FLOW_LIMIT * len(self.options)
        for root in part.roots:
            if room > 0 and any(option.children for option in part.options[root]):
                room -= self._add_flow(root)

    def _sum(self, options: Iterable[Option], factor: float = 1.0) -> list[tuple[int, float]]:
        return [(self.column[id(option)], factor) for option in options]

    def _row(self, entries: Iterable[tuple[int, float]], low: float, high: float) -> None:
        self.entries.extend((len(self.low), column, value) for column, value in entries)
        self.low.append(low)
        self.high.append(high)

    def _exclude_cycles(self, members: list[int]) -> None:
        """If a class of a subset is active, some class of the subset is derived from outside of it.

        These rows for all subsets exclude exactly the cyclic choices. A big component has them for cycles of two
        and three classes only, as cuts, and a level per class does the rest: an operand's level is lower.
        """
        own = set(members)
        inside = {cls: sorted(self.uses[cls].keys() & own) for cls in members}
        full = len(members) <= _DENSE_SCC
        subsets = (itertools.combinations(members, size) for size in range(2, len(members) + 1))
        for subset in itertools.chain.from_iterable(subsets) if full else _short_cycles(inside):
            stuck: dict[int, list[Option]] = {}
            free: list[Option] = []
            for option in itertools.chain.from_iterable(self.part.options[cls] for cls in subset):
                inner = stuck.setdefault(option.cls, [])
                (free if option.children.isdisjoint(subset) else inner).append(option)
            for cls, options in stuck.items():
                others = [option for option in free if option.cls != cls]
                self._row([*self._sum(options), *self._sum(others, -1.0)], -math.inf, 0.0)
        if full:
            return
        span = float(len(members))
        level = {cls: self._column(span - 1.0) for cls in members}
        for cls, children in inside.items():
            for child in children:
                below = self._sum(self.uses[cls][child], -span)
                self._row([(level[cls], 1.0), (level[child], -1.0), *below], 1.0 - span, math.inf)

    def _column(self, upper: float) -> int:
        self.upper.append(upper)
        self.integral.append(0.0)
        return len(self.upper) - 1

    def _add_flow(self, root: int) -> int:
        """A unit of flow from a root down to leaves, along one operand of each chosen option; its variables.

        Any solution carries it, since the path from the root ends. The rows say little about whole solutions,
        but cut off the fractional ones that halve each of two ways and so pay half of what lies below both.
        """
        inflow: dict[int, list[tuple[int, float]]] = {root: []}
        outflow: dict[int, list[tuple[int, float]]] = {}
        pending = [root]
        while pending:
            cls = pending.pop()
            outflow[cls] = []
            for option in self.part.options[cls]:
                flow = self._column(1.0)
                self._row([(flow, 1.0), *self._sum([option], -1.0)], -math.inf, 0.0)
                outflow[cls].append((flow, 1.0))
                if option.children:
                    child = max(option.children, key=self.height.__getitem__)
                    if child not in inflow:
                        pending.append(child)
                    inflow.setdefault(child, []).append((flow, -1.0))
        for cls, flows in outflow.items():
            self._row([*flows, *inflow[cls]], float(cls == root), float(cls == root))
        return sum(map(len, outflow.values()))

    def close(self, known: Choice, deadline: float | None) -> set[int]:
        """Close the options that no choice cheaper than a known one can hold; the ids of all that are closed.

        The optimum without integrality says what taking an option would add to it at least: one that adds more
        than the gap to the known choice is in no better one (reduced-cost fixing, Dantzig, Fulkerson and Johnson
        1954). Without an answer in time nothing is said about any option.
        """
        matrix, low, high = self._matrix(), np.array(self.low), np.array(self.high)
        above, below = np.isfinite(high), np.isfinite(low)
        options: dict[str, Any] = {"presolve": False}  # it takes longer than it saves: the problem is reduced
        if deadline is not None:
            options["time_limit"] = max(0.0, deadline - time.monotonic())
        result = linprog(
            self._padded(self.objective),
            A_ub=vstack([matrix[above], -matrix[below]]),
            b_ub=np.concatenate([high[above], -low[below]]),
            bounds=np.column_stack([np.zeros(len(self.upper)), self.upper]),
            options=options,
        )
        if result.status == 0:
            self.floor = float(result.fun) - _LP_ERROR
            self.added = result.lower.marginals[: len(self.options)].tolist()
        self._close_above(known)
        return {id(option) for option, upper in zip(self.options, self.upper, strict=False) if not upper}

    def _close_above(self, known: Choice) -> None:
        self._drop(self.added, weigh(known) // self.part.unit * self.scale - self.floor)

    def solve(self, known: Choice, node_limit: int | None, deadline: float | None) -> Solution:
        """Minimize cost; then, among the cheapest, minimize the tie."""
        unit = self.part.unit
        found, dual, message = self._run(self.objective, node_limit, deadline)
        best = known if found is None or weigh(found) > weigh(known) else found
        cost = weigh(best) // unit
        if message:
            return Solution(best, min(float(cost), dual / self.scale), {message: None}, best is found)
        self._close_above(best)
        # Dearer options are out, which leaves coefficients that the solver can tell apart.
        self._drop(self.costs, cost)
        factor = _OBJECTIVE_SCALE / max(1, max(own for own in self.costs if own <= cost))
        row = [(number, own * factor) for number, own in enumerate(self.costs) if own <= cost]
        self._row(row, -math.inf, cost * factor + max(_ROW_SLACK, factor / 2))
        ties = [option.weight % unit for option in self.options]
        factor = min(1.0, _OBJECTIVE_SCALE / max(ties))
        found, _, message = self._run([tie * factor for tie in ties], node_limit, deadline)
        if found is not None and weigh(found) < weigh(best):
            best = found
        return Solution(best, float(weigh(best) // unit), {f"ties not settled: {message}": None} if message else {})

    def _drop(self, costs: Sequence[float], room: float) -> None:
        """Close the options that cost more than there is room for."""
        for column, cost in enumerate(costs):
            if cost > room:
                self.upper[column] = 0.0

    def _matrix(self) -> csr_array:
        rows, places, values = zip(*self.entries, strict=True)
        return coo_array((values, (rows, places)), shape=(len(self.low), len(self.upper))).tocsr()

    def _padded(self, objective: list[float]) -> np.ndarray:
        return np.array(objective + [0.0] * (len(self.upper) - len(objective)))

    def _run(
        self, objective: list[float], node_limit: int | None, deadline: float | None
    ) -> tuple[Choice | None, float, str]:
        """One call of HiGHS: the choice found if any, a lower bound, why it is not proven optimal if so."""
        limits: dict[str, float] = {"mip_rel_gap": 0.0}
        if node_limit is not None:
            limits["node_limit"] = node_limit
        if deadline is not None:
            limits["time_limit"] = deadline - time.monotonic()
            if limits["time_limit"] <= 0:
                return None, 0.0, "time limit reached (not reproducible)"
        result = milp(
            self._padded(objective),
            integrality=np.array(self.integral),
            bounds=Bounds(0.0, np.array(self.upper)),
            constraints=LinearConstraint(self._matrix(), np.array(self.low), np.array(self.high)),
            options=limits,
        )
        message = "" if result.status == 0 else f"HiGHS stopped early: {result.message}"
        bound = max(0.0, result.mip_dual_bound or 0.0)
        if result.x is None:
            return None, bound, message
        picked = {o.cls: o for o, value in zip(self.options, result.x, strict=False) if value > 0.5}
        return self.part.active(picked), bound, message


def _short_cycles(uses: Mapping[int, Sequence[int]]) -> list[tuple[int, ...]]:
    """The sets of two and of three classes that use each other in a circle."""
    found: dict[tuple[int, ...], None] = {}
    for a, children in uses.items():
        for b in children:
            if a in uses[b]:
                found[tuple(sorted((a, b)))] = None
            for c in uses[b]:
                if c != a and a in uses[c]:
                    found[tuple(sorted((a, b, c)))] = None
    return list(found)
