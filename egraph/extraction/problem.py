"""What extraction chooses from, made small: pruned, shrunk by exact reductions, split into components.

An *option* is an e-node with the operands that still matter: the others are paid in any case.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ..errors import ExtractionError


@dataclass(frozen=True)
class ENode:
    """One e-node: its class, the classes of its operands, and its own cost in integer picoseconds (>= 0)."""

    cls: int
    children: tuple[int, ...]
    cost: int


@dataclass(slots=True)
class Option:
    """One way to derive a class."""

    cls: int
    node: int
    weight: int
    children: set[int]


Choice = dict[int, Option]


@dataclass(slots=True)
class Problem:
    """Classes with their options, operands first; roots are classes that every solution holds.

    A weight is cost * unit + tie; the tie counts nodes first, then positions within the classes, and no sum
    of ties reaches the unit. scc numbers strongly connected components; large holds those of several classes.
    """

    options: dict[int, list[Option]]
    roots: set[int]
    unit: int
    scc: dict[int, int] = field(default_factory=dict)
    large: set[int] = field(default_factory=set)

    def cyclic(self, cls: int) -> bool:
        return self.scc[cls] in self.large

    def active(self, choice: Choice) -> Choice | None:
        """The part of a choice that the roots reach, or None if it has a cycle."""
        order, acyclic = postorder(self.roots, lambda cls: choice[cls].children)
        return {cls: choice[cls] for cls in order} if acyclic else None

    @property
    def size(self) -> int:
        return sum(map(len, self.options.values()))

    def without(self, closed: Container[int]) -> Problem:
        """A copy that lacks some options, told by their ids."""
        left = {
            cls: [replace(option, children=set(option.children)) for option in options if id(option) not in closed]
            for cls, options in self.options.items()
        }
        return Problem(left, set(self.roots), self.unit)


@dataclass(frozen=True, slots=True)
class Solution:
    """A choice, a lower bound of the cost of any, what stopped the solver, and whether the choice is exact."""

    choice: Choice
    bound: float
    messages: dict[str, None] = field(default_factory=dict)
    exact: bool = True


def united(parts: Iterable[Solution]) -> Solution:
    """The solution of a problem by those of its components."""
    choice: Choice = {}
    bounds: list[float] = []
    messages: dict[str, None] = {}
    exact = True
    for part in parts:
        choice.update(part.choice)
        bounds.append(part.bound)
        messages.update(part.messages)
        exact = exact and part.exact
    return Solution(choice, math.fsum(bounds), messages, exact)


def weigh(choice: Choice) -> int:
    return sum(option.weight for option in choice.values())


def postorder(roots: Iterable[int], children: Callable[[int], Iterable[int]]) -> tuple[list[int], bool]:
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


def prune(nodes: Sequence[ENode], roots: Sequence[int]) -> Problem:
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
            Option(cls, i, nodes[i].cost * unit + per_node + position[i], set(nodes[i].children))
            for i in sorted(indices)
            if cls not in nodes[i].children
        ]
        for cls, indices in grounded.items()
    }
    _unbundle(options, users, set(roots))
    return Problem(options, set(roots), unit)


def _unbundle(options: dict[int, list[Option]], users: dict[int, list[int]], roots: set[int]) -> None:
    """Drop what gives several classes at once where other options of all of them cost no more together.

    These take its operands alone, or besides such classes whose option takes nothing else. They can take its place in
    any choice: a class of that kind that is chosen already stays as it is, unless it needs what is replaced.
    """
    by_node = {option.node: option for found in options.values() for option in found}
    for cls, found in options.items():
        if len(found) != 1 or len(users.get(cls, ())) < 2 or cls in roots:
            continue
        [whole] = found
        taken = [by_node[k] for k in users[cls] if k in by_node]
        if any(len(user.children) > 1 for user in taken):
            continue
        apart = {user.cls: [o for o in options[user.cls] if o.node != user.node] for user in taken}
        plain = {c: [o for o in others if o.children <= whole.children] for c, others in apart.items()}
        below = whole.children | {c for c, others in plain.items() if others}
        near = [plain[c] or [o for o in others if o.children <= below] for c, others in apart.items()]
        weights = [min((option.weight for option in each), default=math.inf) for each in near]
        if len(near) == len(taken) and sum(weights) <= whole.weight:
            for user in taken:
                options[user.cls].remove(user)


def reduce(problem: Problem) -> bool:
    """One round of exact reductions; whether another round may find more."""
    _sort(problem)
    before = problem.size
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
    changed = required != problem.roots or before != problem.size
    problem.roots = required
    return changed


def _sort(problem: Problem) -> dict[int, list[int]]:
    """Drop what no root reaches, put operands first, and find the strongly connected components; the operands that
    options of each class need.
    """
    operands: dict[int, list[int]] = {}

    def below(cls: int) -> list[int]:
        operands[cls] = list({child: None for option in problem.options[cls] for child in option.children})
        return operands[cls]

    order, _ = postorder(problem.roots, below)
    problem.options = {cls: problem.options[cls] for cls in order}
    problem.scc = _connected(order, operands, strong=True)
    problem.large = {number for number, size in Counter(problem.scc.values()).items() if size > 1}
    return operands


def _connected(order: Iterable[int], operands: Mapping[int, list[int]], *, strong: bool) -> dict[int, int]:
    """The number of the component of each class."""
    place = {cls: number for number, cls in enumerate(order)}
    starts = [place[cls] for cls in place for _ in operands[cls]]
    ends = [place[child] for cls in place for child in operands[cls]]
    graph = coo_array((np.ones(len(ends)), (starts, ends)), shape=(len(place), len(place)))
    labels = connected_components(graph, directed=strong, connection="strong")[1]
    return dict(zip(place, labels.tolist(), strict=True))


def _required(problem: Problem, bit: dict[int, int]) -> dict[int, int]:
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


def _union(option: Option, sets: dict[int, int]) -> int:
    union = 0
    for child in option.children:
        union |= sets[child]
    return union


def _undominated(options: list[Option], must: dict[int, int], bit: dict[int, int], outside: int) -> list[Option]:
    """Drop options that close a cycle in every derivation, and those that a cheaper one can replace.

    An option can replace another when each of its operands is present anyway: required below the other, or
    required everywhere and outside this class's cycles (the bit set outside).
    """
    kept: list[Option] = []
    for option in sorted(options, key=lambda option: option.weight):
        held = _union(option, must)
        absent = ~(held | outside)
        if not held & bit[option.cls] and all(_union(other, bit) & absent for other in kept):
            kept.append(option)
    return kept


def components(problem: Problem) -> list[Problem]:
    """Split into parts that share no class."""
    operands = _sort(problem)
    parts: dict[int, Problem] = {}
    for cls, number in _connected(problem.options, operands, strong=False).items():
        part = parts.setdefault(number, Problem({}, set(), problem.unit, problem.scc, problem.large))
        part.options[cls] = problem.options[cls]
        part.roots |= {cls} & problem.roots
    return list(parts.values())
