"""Naming a false rule: two different facts met in one class, and egglog says neither where nor by which rule.

The saturation is repeated in a fresh e-graph with one rule at a time until the conflict shows. In another one, stopped
just before, that rule only records what it would equate, and the pair whose facts differ is the answer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from ..budget import Budget, LimitReached, Limits
from ..engine.frozen import Frozen
from ..engine.rule import STAGES, Rule
from ..engine.saturate import Engine, Runs, Saturation
from ..engine.term_graph import TermGraph
from ..errors import Contradiction, UnsoundMerge
from ..terms import LEAVES
from ..terms.dtypes import NAMES
from .notation import Notation


def saturate(
    engine: Engine, limits: Limits | Budget, progress: Callable[[str], None] | None = None, rest: float = 0.0
) -> Saturation:
    """`engine.saturate`, with an error that names the false rule where facts contradict each other.

    Raises UnsoundMerge, or Contradiction if the model's own facts do.
    """
    try:
        return engine.saturate(limits, progress, rest)
    except UnsoundMerge as error:
        if engine.graph is None:
            raise
        budget = limits if isinstance(limits, Budget) else Budget(limits)
        raise blame(engine.rules, engine.target, engine.graph, budget, str(error)) from error


def blame(
    rules: Sequence[Rule], target: Runs | None, graph: TermGraph, budget: Budget, reason: str
) -> UnsoundMerge:  # fmt: skip
    """An error that names the rule, the two terms it equates and the facts that differ; `reason` is egglog's own.

    Where no rule is needed, a Contradiction.
    """
    try:
        done, number = _until_conflict(rules, target, graph, budget)
    except LimitReached as reached:
        return UnsoundMerge(f"facts contradict each other, by a rule that is not known: {reached} ({reason})")
    if number is None:
        return UnsoundMerge(f"facts contradict each other, but not when the rules run one by one ({reason})")
    if number < 0:
        said = f"the facts of the model contradict each other before any rule has run ({reason})"
        return Contradiction(said, _first_conflict(graph))
    return UnsoundMerge(_describe(rules, target, graph, done, number, reason))


def _first_conflict(graph: TermGraph) -> int:
    """The first term, in the order they were made, with which the graph so far has contradictory facts."""

    def contradicts(last: int) -> bool:
        engine = Engine([], None)
        try:
            engine.load(graph.until(last))
            engine.facts()
        except UnsoundMerge:
            return True
        return False

    return bisect_left(range(graph.size), True, key=contradicts)


def _until_conflict(
    rules: Sequence[Rule], target: Runs | None, graph: TermGraph, budget: Budget
) -> tuple[list[int], int | None]:
    """(rules run before, the number of the one that meets the conflict; -1 if none is needed, None if none
    does). Raises LimitReached.
    """
    engine, done = Engine(rules, target), list[int]()
    engine.load(graph)
    order = sorted(range(len(rules)), key=lambda k: (STAGES.index(rules[k].stage), k))
    number = -1
    try:
        engine.facts()
        for _ in range(budget.limits.iterations):
            updated = False
            for number in order:
                budget.check("looking for the false rule")
                if engine.step(number):
                    done.append(number)
                    updated = True
            if not updated or engine.tuples() > budget.limits.tuples:
                return done, None
    except UnsoundMerge:
        return done, number
    return done, None


def _describe(
    rules: Sequence[Rule], target: Runs | None, graph: TermGraph, done: Sequence[int], number: int, reason: str
) -> str:
    rule = rules[number]
    engine = Engine(rules, target)
    engine.load(graph)
    engine.facts()
    for k in done:
        engine.step(k)
    engine.run("(ruleset record)\n(relation equates (T T))")
    engine.run(rule.text("record", relation="equates"))
    head = f"rule {rule.name} is false ({rule.law})"
    try:
        engine.run("(run-schedule (seq (run record) (saturate (run facts))))")
    except Exception as error:  # the rule's own right side contradicts itself
        return f"{head}: its right side has contradictory facts ({' '.join(str(error).split())})"
    frozen = engine.freeze()
    pairs = engine.pairs("equates", frozen)
    letters = _letters(graph, frozen)
    notation = Notation(frozen, letters, engine.extra_ops)
    for left, right in sorted(pairs):
        for fact, a, b in _differences(frozen, left, right):
            return f"{head}: it equates {notation.text(left)} and {notation.text(right)} ({fact} {a} and {b})"
    some = next((f"{notation.text(a)} and {notation.text(b)}" for a, b in sorted(pairs) if a != b), "its sides")
    who = f"rule {rule.name} ({rule.law}), or one before it, is false"
    return f"{who}: contradictory facts follow when it equates {some} ({reason})"


def _differences(frozen: Frozen, a: int, b: int) -> list[tuple[str, str, str]]:
    """Facts both classes have that are not the same."""
    found: list[tuple[str, str, str]] = []

    def compare(fact: str, x: object, y: object) -> None:
        if x is not None and y is not None and x != y:
            found.append((fact, str(x), str(y)))

    compare("dtype", NAMES.get(frozen.dtype.get(a, 0)), NAMES.get(frozen.dtype.get(b, 0)))
    compare("rank", frozen.rank.get(a), frozen.rank.get(b))
    compare("value", frozen.number.get(a), frozen.number.get(b))
    left, right = frozen.shape(a) or (), frozen.shape(b) or ()
    for i in range(1, min(len(left), len(right)) + 1):
        if isinstance(left[-i], int) and isinstance(right[-i], int):
            compare(f"dim {-i}:", left[-i], right[-i])
    return found


def _letters(graph: TermGraph, frozen: Frozen) -> dict[int, str]:
    """x1, x2, ... for the inputs and constants, in the order of their numbers."""
    leaves = sorted({r[0] for name in sorted(LEAVES) for r in graph.rows.get(name, ())})
    letters: dict[int, str] = {}
    for i, term in enumerate(leaves):
        letters.setdefault(frozen.values[term], f"x{i}")
    return letters
