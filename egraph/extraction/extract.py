"""Choose one e-node per e-class: the cheapest acyclic DAG that covers all roots together.

The problem is shrunk by exact reductions, then split into independent components. Small ones are searched. Of
the others, options too dear for any better choice than the greedy one are closed, and what is left is shrunk again;
where that closes none, a mixed-integer program is solved (HiGHS). At a limit the greedy choice is the answer.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from ..errors import ExtractionError
from .milp import Program
from .problem import Choice, ENode, Option, Problem, Solution, components, postorder, prune, reduce, united, weigh

# Branchings after which a component is left to HiGHS, whose calls take as long as some hundred of them.
_SEARCH_LIMIT = 1000
# A whole choice that turns out to have a cycle costs as much time as so many branchings.
_CYCLE = 20
# The part of its options that a component must lose to be looked at again rather than handed to HiGHS.
_WORTH = 0.02


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
    problem = prune(nodes, roots)
    while reduce(problem):
        pass
    found = _solve(problem, mip_node_limit, deadline, exact)
    order, acyclic = postorder(roots, lambda cls: nodes[found.choice[cls].node].children)
    if not acyclic:
        raise ExtractionError("the extracted choice has a cycle; please report this e-graph")
    choice = {cls: found.choice[cls].node for cls in order}
    cost = sum(nodes[index].cost for index in choice.values())
    method = "ilp" if found.exact else "greedy"
    return Extraction(choice, cost, min(float(cost), found.bound), method, "; ".join(found.messages))


def _solve(problem: Problem, node_limit: int | None, deadline: float | None, exact: bool) -> Solution:
    return united(_solve_component(part, node_limit, deadline, exact) for part in components(problem))


def _solve_component(part: Problem, node_limit: int | None, deadline: float | None, exact: bool) -> Solution:
    if exact and len(part.options) == 1:
        [(cls, options)] = part.options.items()
        best = min(options, key=lambda option: option.weight)
        return Solution({cls: best}, float(best.weight // part.unit))
    greedy = _greedy(part)
    if not exact:
        floor = sum(min(option.weight for option in part.options[cls]) // part.unit for cls in part.roots)
        return Solution(greedy, float(floor), {"exact extraction was not asked for": None}, False)
    found = _search(part, greedy, _SEARCH_LIMIT if node_limit is None else min(_SEARCH_LIMIT, node_limit))
    if found is not None:
        return Solution(found, float(weigh(found) // part.unit))
    program = Program(part)
    closed = program.close(greedy, deadline)
    left = part.without(closed)
    while closed and reduce(left):
        pass
    if left.size > (1 - _WORTH) * part.size:
        return program.solve(greedy, node_limit, deadline)
    # More of it may be required now, which parts the problem and lifts the next bound.
    inner = _solve(left, node_limit, deadline, exact)
    choice = min(inner.choice, greedy, key=weigh)
    return Solution(choice, min(inner.bound, float(weigh(choice) // part.unit)), inner.messages, inner.exact)


def _greedy(part: Problem) -> Choice:
    """For each class the option whose operands' DAGs, united, weigh least.

    Classes are settled in the order of these weights (Knuth's form of Dijkstra's algorithm), each after the
    operands of its option, so no update can close a cycle.
    """
    classes = list(part.options)
    place = {cls: number for number, cls in enumerate(classes)}
    users: dict[int, list[Option]] = {cls: [] for cls in classes}
    choice: Choice = {}
    held: dict[int, int] = {}
    total: dict[int, int] = {}
    heap: list[tuple[int, int, int, Option, int]] = []

    def offer(option: Option) -> None:
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


def _search(part: Problem, best: Choice, limit: int) -> Choice | None:
    """The lightest choice, by depth-first branch and bound from a known one; None at the limit."""
    least = {cls: min(option.weight for option in part.options[cls]) for cls in part.roots}
    lightest = weigh(best)
    knotted = [cls for cls in part.options if part.cyclic(cls)]  # elsewhere no choice can have a cycle

    def acyclic(choice: Choice) -> bool:
        chosen = [cls for cls in knotted if cls in choice]
        return postorder(chosen, lambda cls: [c for c in choice[cls].children if part.scc[c] == part.scc[cls]])[1]

    stack: list[tuple[Choice, list[int], int]] = [({}, sorted(part.roots), sum(least.values()))]
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
        if weight < lightest and acyclic(choice):
            best, lightest = choice, weight
        elif weight < lightest:
            limit -= _CYCLE  # a component full of cheap cycles is the solver's
    return best
