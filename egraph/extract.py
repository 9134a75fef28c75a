"""Choose one e-node per e-class: the cheapest acyclic DAG that covers all roots together.

The problem is shrunk by exact reductions, then split into independent components. Small ones are searched,
the others solved as mixed-integer programs (HiGHS); a greedy choice is the upper bound, and a limit's answer.
An *option* is an e-node with the operands that still matter: the others are paid in any case.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from .errors import ExtractionError

# HiGHS has an absolute gap of 1e-6: with this largest coefficient, costs of one component that differ by less
# than 1e-12 of the dearest option are ties to it.
_OBJECTIVE_SCALE = 1e6
# Slack of the row that keeps the cost minimal while ties are settled; above the feasibility tolerance, 1e-6.
_ROW_SLACK = 1e-4
# All subsets of a strongly connected component of up to this many classes get an acyclicity row.
_DENSE_SCC = 7
# Flow variables per option, at most: more cost more time than their tighter bound saves.
_FLOW_LIMIT = 10
# Branchings after which a component is left to HiGHS, whose calls take as long as some hundred of them.
_SEARCH_LIMIT = 1000


@dataclass(frozen=True)
class ENode:
    """One e-node: its class, the classes of its operands, and its own cost in integer picoseconds (>= 0)."""

    cls: int
    children: tuple[int, ...]
    cost: int


@dataclass(frozen=True)
class Extraction:
    """A chosen DAG.

    choice maps each class that the roots reach through the choice, and no other, to an index into the nodes.
    cost is the exact sum of the chosen nodes' costs, each counted once; bound is a lower bound of any cost,
    proven up to the solver's float tolerance. method is "ilp" when search or solver answered, "greedy"
    when any part of the choice is the greedy one; message then says why, and names any limit hit.
    """

    choice: dict[int, int]
    cost: int
    bound: float
    method: str
    message: str = ""

    @property
    def gap(self) -> float:
        """The part of the cost that might be saved at most: (cost - bound) / cost, in [0, 1]."""
        return max(0.0, (self.cost - self.bound) / self.cost) if self.cost else 0.0


@dataclass(slots=True)
class _Option:
    """One way to derive a class."""

    cls: int
    node: int
    weight: int
    children: set[int]


_Choice = dict[int, _Option]


@dataclass(slots=True)
class _Problem:
    """Classes with their options, operands first; roots are classes that every solution holds.

    A weight is cost * unit + tie; the tie counts nodes first, then positions within the classes, and no sum
    of ties reaches the unit. scc numbers strongly connected components; large holds those of several classes.
    """

    options: dict[int, list[_Option]]
    roots: set[int]
    unit: int
    scc: dict[int, int] = field(default_factory=dict)
    large: set[int] = field(default_factory=set)

    def cyclic(self, cls: int) -> bool:
        return self.scc[cls] in self.large

    def active(self, choice: _Choice) -> _Choice | None:
        """The part of a choice that the roots reach, or None if it has a cycle."""
        order, acyclic = _postorder(self.roots, lambda cls: choice[cls].children)
        return {cls: choice[cls] for cls in order} if acyclic else None


def extract(
    nodes: Sequence[ENode],
    roots: Sequence[int],
    *,
    mip_node_limit: int | None = 2000,
    time_limit: float | None = None,
    exact: bool = True,
) -> Extraction:
    """The cheapest acyclic choice of one e-node per class that covers the roots; a shared class is paid once.

    Ties in cost go to fewer nodes, then to the smaller sum of positions of the chosen nodes among the nodes
    of their class, then to a fixed order: the same input gives the same choice in every run. mip_node_limit
    is the most branch-and-bound nodes of one independent component; time_limit (seconds, for the whole call)
    makes the result depend on the machine. At a limit, the better of the greedy and the solver's choice is
    returned. exact=False uses the greedy choice alone.

    Raises ExtractionError when a root has no finite term, ValueError when a cost is negative.
    """
    deadline = None if time_limit is None else time.monotonic() + time_limit
    problem = _prune(nodes, roots)
    while _reduce(problem):
        pass
    chosen: dict[int, int] = {}
    bounds: list[float] = []
    messages: dict[str, None] = {}
    method = "ilp" if exact else "greedy"
    for part in _components(problem):
        best, bound, message, solved = _solve(part, mip_node_limit, deadline, exact)
        chosen.update((cls, option.node) for cls, option in best.items())
        bounds.append(bound)
        messages.update({message: None} if message else {})
        method = method if solved else "greedy"

    order, acyclic = _postorder(roots, lambda cls: nodes[chosen[cls]].children)
    if not acyclic:
        raise ExtractionError("the extracted choice has a cycle; please report this e-graph")
    choice = {cls: chosen[cls] for cls in order}
    cost = sum(nodes[index].cost for index in choice.values())
    return Extraction(choice, cost, min(float(cost), math.fsum(bounds)), method, "; ".join(messages))


def _postorder(roots: Iterable[int], children: Callable[[int], Iterable[int]]) -> tuple[list[int], bool]:
    """The classes below the roots, operands first as far as cycles allow, and whether there is no cycle."""
    entered: set[int] = set()
    finished: dict[int, None] = {}
    acyclic = True
    pending = [(root, False) for root in sorted(roots)]
    while pending:
        cls, leaving = pending.pop()
        if leaving:
            finished[cls] = None
        elif cls not in entered:
            entered.add(cls)
            pending.append((cls, True))
            pending.extend((child, False) for child in sorted(children(cls)))
        elif cls not in finished:
            acyclic = False
    return list(finished), acyclic


def _prune(nodes: Sequence[ENode], roots: Sequence[int]) -> _Problem:
    """Keep the nodes that can stand in a finite term."""
    position: list[int] = []
    sizes: dict[int, int] = {}
    users: dict[int, list[int]] = {}
    missing: list[int] = []
    for index, node in enumerate(nodes):
        if node.cost < 0:
            raise ValueError(f"e-node {index} of e-class {node.cls} has the negative cost {node.cost}")
        position.append(sizes.get(node.cls, 0))
        sizes[node.cls] = position[-1] + 1
        missing.append(len(set(node.children)))
        for child in set(node.children):
            users.setdefault(child, []).append(index)

    grounded: dict[int, list[int]] = {}
    ready = deque(index for index, count in enumerate(missing) if not count)
    while ready:
        index = ready.popleft()
        cls = nodes[index].cls
        if cls not in grounded:
            for user in users.get(cls, ()):
                missing[user] -= 1
                if not missing[user]:
                    ready.append(user)
        grounded.setdefault(cls, []).append(index)
    for root in roots:
        if root not in grounded:
            raise ExtractionError(f"root e-class {root} has no finite term")

    per_node = 1 + sum(size - 1 for size in sizes.values())
    unit = 1 + per_node * (len(sizes) + 1)
    options = {
        cls: [
            _Option(cls, i, nodes[i].cost * unit + per_node + position[i], set(nodes[i].children))
            for i in sorted(indices)
            if cls not in nodes[i].children
        ]
        for cls, indices in grounded.items()
    }
    return _Problem(options, set(roots), unit)


def _reduce(problem: _Problem) -> bool:
    """One round of exact reductions; whether another round may find more."""
    _sort(problem)
    before = sum(map(len, problem.options.values()))
    bit = {cls: 1 << place for place, cls in enumerate(problem.options)}
    must = _required(problem, bit)
    always = 0
    for root in problem.roots:
        always |= must[root]
    required = {cls for cls in problem.options if always & bit[cls]}
    inside = dict.fromkeys(problem.scc.values(), 0)
    for cls in problem.options:
        inside[problem.scc[cls]] |= bit[cls]
    for cls, options in problem.options.items():
        problem.options[cls] = _undominated(options, must, bit, always & ~inside[problem.scc[cls]])

    # A required class is paid in any case, so an edge to it matters only where it could close a cycle.
    for cls, options in problem.options.items():
        for option in options:
            option.children -= {c for c in option.children & required if problem.scc[c] != problem.scc[cls]}
    changed = required != problem.roots or before != sum(map(len, problem.options.values()))
    problem.roots = required
    return changed


def _sort(problem: _Problem) -> None:
    """Drop what no root reaches, put operands first, and find the strongly connected components."""
    order, _ = _postorder(problem.roots, lambda cls: _operands(problem, cls))
    problem.options = {cls: problem.options[cls] for cls in order}
    problem.scc = _connected(problem, strong=True)
    problem.large = {number for number, size in Counter(problem.scc.values()).items() if size > 1}


def _connected(problem: _Problem, *, strong: bool) -> dict[int, int]:
    """The number of the component of each class."""
    place = {cls: number for number, cls in enumerate(problem.options)}
    edges = [(place[cls], place[child]) for cls in place for child in _operands(problem, cls)]
    ends = np.array(edges, dtype=np.int32).reshape(-1, 2).T
    graph = coo_array((np.ones(len(edges)), (ends[0], ends[1])), shape=(len(place), len(place)))
    labels = connected_components(graph, directed=strong, connection="strong")[1]
    return dict(zip(place, labels.tolist(), strict=True))


def _operands(problem: _Problem, cls: int) -> list[int]:
    """The classes that options of a class need, in a fixed order."""
    return sorted({child for option in problem.options[cls] for child in option.children})


def _required(problem: _Problem, bit: dict[int, int]) -> dict[int, int]:
    """For each class, the bit set of the classes that every derivation of it holds: a greatest fixpoint."""
    everything = (1 << len(bit)) - 1
    must = {cls: everything for cls in bit if problem.cyclic(cls)}
    changed = True
    while changed:
        changed = False
        for cls, options in problem.options.items():
            common = everything
            for option in options:
                common &= _union(option, must)
            common |= bit[cls]
            changed = changed or must.get(cls, common) != common
            must[cls] = common
    return must


def _union(option: _Option, sets: dict[int, int]) -> int:
    union = 0
    for child in option.children:
        union |= sets[child]
    return union


def _undominated(
    options: list[_Option], must: dict[int, int], bit: dict[int, int], outside: int
) -> list[_Option]:
    """Drop options that close a cycle in every derivation, and those that a cheaper one can replace.

    An option can replace another when each of its operands is present anyway: required below the other, or
    required everywhere and outside this class's cycles (the bit set outside).
    """
    kept: list[_Option] = []
    for option in sorted(options, key=lambda option: option.weight):
        held = _union(option, must)
        absent = ~(held | outside)
        if not held & bit[option.cls] and all(_union(other, bit) & absent for other in kept):
            kept.append(option)
    return kept


def _components(problem: _Problem) -> list[_Problem]:
    """Split into parts that share no class."""
    _sort(problem)
    parts: dict[int, _Problem] = {}
    for cls, number in _connected(problem, strong=False).items():
        part = parts.setdefault(number, _Problem({}, set(), problem.unit, problem.scc, problem.large))
        part.options[cls] = problem.options[cls]
        part.roots |= {cls} & problem.roots
    return list(parts.values())


def _solve(
    part: _Problem, node_limit: int | None, deadline: float | None, exact: bool
) -> tuple[_Choice, float, str, bool]:
    """The choice of one component, a lower bound of its cost, what stopped the solver, is it exact."""
    greedy = _greedy(part)
    if not exact:
        floor = sum(min(option.weight for option in part.options[cls]) // part.unit for cls in part.roots)
        return greedy, float(floor), "exact extraction was not asked for", False
    found = _search(part, greedy, _SEARCH_LIMIT if node_limit is None else min(_SEARCH_LIMIT, node_limit))
    if found is None:
        return _Program(part).solve(greedy, node_limit, deadline)
    return found, float(_weight(found) // part.unit), "", True


def _weight(choice: _Choice) -> int:
    return sum(option.weight for option in choice.values())


def _greedy(part: _Problem) -> _Choice:
    """For each class the option whose operands' DAGs, united, weigh least.

    Classes are settled in the order of these weights (Knuth's form of Dijkstra's algorithm), each after the
    operands of its option, so no update can close a cycle.
    """
    classes = list(part.options)
    place = {cls: number for number, cls in enumerate(classes)}
    users: dict[int, list[_Option]] = {cls: [] for cls in classes}
    choice: _Choice = {}
    held: dict[int, int] = {}
    total: dict[int, int] = {}
    heap: list[tuple[int, int, int, _Option, int]] = []

    def offer(option: _Option) -> None:
        union, weight = 0, option.weight
        for child in sorted(option.children, key=lambda child: (-total[child], child)):
            extra = held[child] & ~union
            weight += total[child] if not union else sum(choice[classes[b]].weight for b in _bits(extra))
            union |= extra
        heappush(heap, (weight, place[option.cls], option.node, option, union))

    missing = {}
    for option in itertools.chain.from_iterable(part.options.values()):
        missing[id(option)] = len(option.children)
        for child in option.children:
            users[child].append(option)
        if not option.children:
            offer(option)
    while heap:
        weight, _, _, option, union = heappop(heap)
        cls = option.cls
        if cls in choice:
            continue
        choice[cls], total[cls], held[cls] = option, weight, union | 1 << place[cls]
        for user in users[cls]:
            missing[id(user)] -= 1
            if not missing[id(user)] and user.cls not in choice:
                offer(user)
    active = part.active(choice)
    assert active is not None
    return active


def _bits(number: int) -> Iterable[int]:
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest


def _search(part: _Problem, best: _Choice, limit: int) -> _Choice | None:
    """The lightest choice, by depth-first branch and bound from a known one; None at the limit."""
    least = {cls: min(option.weight for option in part.options[cls]) for cls in part.roots}
    lightest = _weight(best)
    stack: list[tuple[_Choice, list[int], int]] = [({}, sorted(part.roots), sum(least.values()))]
    while stack:
        choice, pending, weight = stack.pop()
        while pending and weight < lightest:
            cls = pending.pop()
            if cls in choice:
                continue
            first, *others = sorted(part.options[cls], key=lambda option: option.weight)
            if others:
                limit -= 1
                if limit < 0:
                    return None
            for option in reversed(others):
                step = option.weight - least.get(cls, 0)
                stack.append(({**choice, cls: option}, [*pending, *sorted(option.children)], weight + step))
            choice[cls] = first
            pending.extend(sorted(first.children))
            weight += first.weight - least.get(cls, 0)
        if weight < lightest and part.active(choice) is not None:
            best, lightest = choice, weight
    return best


class _Program:
    """The mixed-integer program of one component.

    One variable per option, binary where its class has several; a class is active as the sum of its options.
    """

    def __init__(self, part: _Problem) -> None:
        self.part = part
        self.options = [option for options in part.options.values() for option in options]
        self.column = {id(option): number for number, option in enumerate(self.options)}
        self.integral = [float(len(part.options[option.cls]) > 1) for option in self.options]
        self.upper = [1.0] * len(self.options)
        self.entries: list[tuple[int, int, float]] = []
        self.low: list[float] = []
        self.high: list[float] = []
        # uses[c][d]: the options of class c with operand d.
        self.uses: dict[int, dict[int, list[_Option]]] = {cls: {} for cls in part.options}
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

    def _sum(self, options: Iterable[_Option], factor: float = 1.0) -> list[tuple[int, float]]:
        return [(self.column[id(option)], factor) for option in options]

    def _row(self, entries: Iterable[tuple[int, float]], low: float, high: float) -> None:
        self.entries.extend((len(self.low), column, value) for column, value in entries)
        self.low.append(low)
        self.high.append(high)

    def _exclude_cycles(self, members: list[int]) -> None:
        """If a class of a subset is active, some class of the subset is derived from outside of it.

        These rows for all subsets exclude exactly the cyclic choices. A big component has them for pairs and
        triples only, as cuts, and a level per class does the rest: an operand's level is lower.
        """
        full = len(members) <= _DENSE_SCC
        for size in range(2, len(members) + 1 if full else 4):
            for subset in itertools.combinations(members, size):
                stuck: dict[int, list[_Option]] = {}
                free: list[_Option] = []
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
        for cls, child in itertools.permutations(members, 2):
            if child in self.uses[cls]:
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
        height = {cls: place for place, cls in enumerate(self.part.options)}
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
                    child = max(option.children, key=height.__getitem__)
                    if child not in inflow:
                        pending.append(child)
                    inflow.setdefault(child, []).append((flow, -1.0))
        for cls, flows in outflow.items():
            self._row([*flows, *inflow[cls]], float(cls == root), float(cls == root))
        return sum(map(len, outflow.values()))

    def solve(
        self, greedy: _Choice, node_limit: int | None, deadline: float | None
    ) -> tuple[_Choice, float, str, bool]:
        """Minimise cost; then, among the cheapest, minimise the tie. Returns what _solve does."""
        unit = self.part.unit
        costs = [option.weight // unit for option in self.options]
        factor = 1.0 / max(1, max(costs))
        objective = [cost * factor * _OBJECTIVE_SCALE for cost in costs]
        found, dual, message = self._run(objective, node_limit, deadline)
        best = greedy if found is None or _weight(found) > _weight(greedy) else found
        cost = _weight(best) // unit
        if message:
            return best, min(float(cost), dual / factor / _OBJECTIVE_SCALE), message, best is found
        # Dearer options are out, which leaves coefficients that the solver can tell apart.
        self.upper[: len(costs)] = [float(own <= cost) for own in costs]
        factor = _OBJECTIVE_SCALE / max(1, max(own for own in costs if own <= cost))
        row = [(number, own * factor) for number, own in enumerate(costs) if own <= cost]
        self._row(row, -math.inf, cost * factor + max(_ROW_SLACK, factor / 2))
        ties = [option.weight % unit for option in self.options]
        factor = min(1.0, _OBJECTIVE_SCALE / max(ties))
        found, _, message = self._run([tie * factor for tie in ties], node_limit, deadline)
        if found is not None and _weight(found) < _weight(best):
            best = found
        return best, float(_weight(best) // unit), message and f"ties not settled: {message}", True

    def _run(
        self, objective: list[float], node_limit: int | None, deadline: float | None
    ) -> tuple[_Choice | None, float, str]:
        """One call of HiGHS: the choice found if any, a lower bound, why it is not proven optimal if so."""
        limits: dict[str, float] = {"mip_rel_gap": 0.0}
        if node_limit is not None:
            limits["node_limit"] = node_limit
        if deadline is not None:
            limits["time_limit"] = deadline - time.monotonic()
            if limits["time_limit"] <= 0:
                return None, 0.0, "time limit reached (not reproducible)"
        columns = len(self.upper)
        rows, places, values = zip(*self.entries, strict=True)
        matrix = coo_array((values, (rows, places)), shape=(len(self.low), columns)).tocsr()
        result = milp(
            np.array(objective + [0.0] * (columns - len(objective))),
            integrality=np.array(self.integral),
            bounds=Bounds(0.0, np.array(self.upper)),
            constraints=LinearConstraint(matrix, np.array(self.low), np.array(self.high)),
            options=limits,
        )
        message = "" if result.status == 0 else f"HiGHS stopped early: {result.message}"
        bound = max(0.0, result.mip_dual_bound or 0.0)
        if result.x is None:
            return None, bound, message
        picked = {o.cls: o for o, value in zip(self.options, result.x, strict=False) if value > 0.5}
        return self.part.active(picked), bound, message
