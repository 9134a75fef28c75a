"""Derivations: the chain of rules that turns the original computation into a fused operator, replayed and checked.

The replay happens in an e-graph of its own that holds the original cone only. Rules run one at a time, until
the chosen term equals the original; then every step that is not needed is dropped. After each step all terms
of the e-graph are evaluated on random inputs and compared within their classes.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..budget import Budget, LimitReached, Limits
from ..engine.assumption import ROWS_VISIBLE
from ..engine.fact import OF_SYMBOLS
from ..engine.frozen import Frozen
from ..engine.rule import Rule
from ..engine.saturate import Engine, Runs
from ..engine.term_graph import TermGraph
from ..errors import UnsoundMerge, one_line
from ..terms import CONSTANTS, LEAVES, NUMBERS, Op
from .evaluation import Evaluation, NumberSource
from .matching import instance
from .notation import Notation
from .region import Region, Regions
from .view import View

#: A proof that takes more rounds over its rules than this is given up.
_ROUNDS = 12
_DOING = "replaying the rules"
_SHARED = 1_000_000_000  # payloads of leaves start here, clear of the model's
_BELOW, _BEYOND = -1_000_000_000, 1_000_000_000  # numbers of terms that are not the model's


@dataclass(frozen=True, slots=True)
class Step:
    """One rule: the term it matched and the equal one it made. `compared` e-nodes had equal values after it.

    `error` is the largest difference among them, relative to the largest element of its value; `false` says
    which e-node has another value than its class, or is empty. Both terms are empty where the rule states
    something else than a new term.
    """

    rule: str
    law: str
    before: str
    after: str
    compared: int
    error: float
    false: str = ""


@dataclass(frozen=True, slots=True)
class Derivation:
    """The original term, the steps, the chosen term.

    `complete` is False when the rules that matched do not lead from the one to the other by themselves: `tried` are
    those, and `steps` holds none but false ones. `letters` are those of the region's leaves, in order ("" for a
    number); `where` says which values of a model they are.
    """

    original: str
    steps: tuple[Step, ...]
    result: str
    complete: bool
    letters: tuple[str, ...] = ()
    where: tuple[tuple[str, str], ...] = ()
    tried: tuple[str, ...] = ()
    stop: str = ""  # the limit that was reached before anything was derived

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(s.rule for s in self.steps)

    def text(self) -> str:
        """One line per step."""
        if self.stop:
            return f"  not replayed: {self.stop}"
        lines = [f"  {self.original}"]
        for s in self.steps:
            lines.append(f"  = by {s.rule} ({s.law})")
            if s.before:
                lines.append(f"      {s.before}  ->  {s.after}")
            agree = f"{s.compared} terms compared, relative difference {s.error:.1g}"
            lines.append(f"      FALSE: {s.false}" if s.false else f"      {agree}")
        if self.complete:
            lines.append(f"  = {self.result}")
        else:
            lines.append(f"  = {self.result}, but not by these rules alone: {', '.join(self.tried) or 'none matched'}")
        if self.where:
            lines.append(f"  where {', '.join(f'{letter} is {value}' for letter, value in self.where)}")
        return "\n".join(map(one_line, lines))


@dataclass(frozen=True, slots=True)
class ConeGraph:
    """What is to be derived: a cone as a graph of its own, and the chosen term over its leaves."""

    graph: TermGraph
    start: int
    goal: str
    leaves: dict[int, int]  # class of the result -> id in the graph


def cone_graph(regions: Regions, region: Region) -> ConeGraph:
    """The cone of a region as a term graph with the same numbers; leaves are inputs, equal ones the same input."""
    cone = regions.cone(region)
    graph, frozen = regions.graph, regions.frozen
    small = TermGraph(ops=dict(graph.ops), vectors=dict(graph.vectors), symbols=dict(graph.symbols))
    for term, spelled in cone.terms.items():
        for name, args in spelled:
            small.rows[name].append((term, *args))
    sources = {row[0] for row in graph.facts.get("source", ())}
    moved = {regions.start[v.value] for v in region.views if v.above}  # computed from the leaf, not the other way
    held = [c for c in region.leaves if c in regions.start]
    missing = {regions.start[c] for c in (*held, *region.sized)} | (sources - set(cone.terms))
    leaves = (cone.cut | missing) - set(cone.terms) - moved
    for term in sorted(leaves):
        name, args = regions.spelled(term)[0] if regions.spelled(term) else ("Input", (-1,))
        if name in CONSTANTS:
            small.rows[name].append((term, *args))
        small.rows["Input"].append((term, _SHARED + frozen.values[term]))
    for cls in held:  # computed beside the cone, and a leaf all the same
        if regions.start[cls] in cone.terms and cls != region.root:
            small.rows["Input"].append((regions.start[cls], _SHARED + cls))
    kept = set(cone.terms) | leaves | moved
    for fact, rows in graph.facts.items():
        small.facts[fact] = [r for r in rows if r[0] in kept or fact in OF_SYMBOLS]
    stated = {term for term, _ in small.facts["fval"]}
    for term in sorted(leaves):  # what rules or facts derived below the cone
        number = frozen.number.get(frozen.values[term])
        if number is not None and term not in stated:
            small.state("fval", term, repr(number))
        if (term,) not in {row[:1] for row in small.facts["len"]}:
            _elements(small, frozen, frozen.values[term], term)
        _true(small, frozen, frozen.values[term], term)
    named = {c: regions.start[c] for c in (*held, *region.sized)}
    for view in region.views:
        _moved(small, regions, view, named)
    if region.lift is not None and not region.lift.above:
        named[region.root] = _moved(small, regions, region.lift, {region.lift.value: region.start, **named})
    start = named.get(region.root, region.start)
    _merged(small, frozen)
    for at, row in enumerate(r for r in region.rows.values() if r.op == "Shape" and r.children[0] in named):
        small.rows["Shape"].append((_BEYOND + _SHARED + at, named[row.children[0]], *row.attrs))  # sizes are facts
    extra = {op.name: op for r in regions.rules for op in r.terms}
    goal = _goal(region, {**named, region.root: start}, {**graph.ops, **extra})
    return ConeGraph(small, start, goal, {c: named[c] for c in region.leaves})


def _merged(small: TermGraph, frozen: Frozen) -> None:
    """Call dimensions that the e-graph found to be equal by one name, or by their number."""
    for kind in ("dim", "elem"):
        stated, small.facts[f"{kind}-sym"] = small.facts[f"{kind}-sym"], []
        for term, at, symbol in stated:
            small.place(kind, term, at, frozen.symbols.get(symbol, f"${symbol}"))
    for fact, places in (("source", [2]), ("dimsum", [0, 1, 2]), ("dimplus", [0, 1])):
        stated, small.facts[fact] = small.facts[fact], []
        for row in stated:
            names = {i: frozen.symbols.get(row[i], f"${row[i]}") for i in places}
            if not any(isinstance(d, int) for d in names.values()):
                small.state(fact, *(int(str(names[i])[1:]) if i in names else v for i, v in enumerate(row)))


def _moved(small: TermGraph, regions: Regions, view: View, named: dict[int, int]) -> int:
    """State a view; `named` gets the numbers of the classes it names. Returns the number of its outermost term.

    Numbers lie beside those of the model, and those of operands are lower.
    """
    first = _BELOW if view.above else _BEYOND
    ids = dict(named)
    numbers = itertools.count(first + sum(len(rows) for rows in small.rows.values()))

    def new(cls: int) -> int:
        ids[cls] = next(numbers)
        return ids[cls]

    for row in view.numbers:
        small.rows["Ints"].append((new(row.cls), small.vector(row.attrs[0])))
    if view.above:
        ids.pop(view.cls, None)
        small.rows["Input"].append((new(view.cls), _SHARED + view.cls))
        named[view.cls] = ids[view.cls]
        _known(small, regions.frozen, view.cls, ids[view.cls])
    else:
        ids[view.value] = named.get(view.value, regions.start[view.value])
    for row in reversed(view.rows):
        top = regions.start[row.cls] if view.above and row.cls == view.value else new(row.cls)
        ids[row.cls] = top
        children = (ids[c] if c in ids else regions.start[c] for c in row.children)
        attrs = (small.vector(a) if isinstance(a, tuple) else a for a in row.attrs)
        small.rows[row.op].append((top, *small.ops[row.op].joined(children, attrs)))
        if top not in regions.frozen.values:
            _known(small, regions.frozen, row.cls, top)
    if not view.above:
        named[view.cls] = ids[view.cls]
    return ids[view.rows[0].cls]


def _true(small: TermGraph, frozen: Frozen, cls: int, term: int) -> None:
    """State what the e-graph proved of the elements of a class."""
    for fact, classes in frozen.truths.items():
        if cls in classes and (term,) not in small.facts[fact]:
            small.state(fact, term)


def _elements(small: TermGraph, frozen: Frozen, cls: int, term: int) -> None:
    """State the elements of a vector of sizes, or of one size, if all are known."""
    elements, shape = frozen.elements.get(cls, {}), frozen.shape(cls)
    size = shape[0] if shape else 1
    if shape is None or len(shape) > 1 or not isinstance(size, int) or sorted(elements) != list(range(size)):
        return
    small.state("len", term, len(elements))
    for at, d in elements.items():
        small.place("elem", term, at, d)


def _known(small: TermGraph, frozen: Frozen, cls: int, term: int) -> None:
    """State type, dims and more of a class of which the model has no value."""
    _true(small, frozen, cls, term)
    if cls in frozen.dtype:
        small.state("dtype", term, frozen.dtype[cls])
    shape = frozen.shape(cls)
    if shape is None:
        return
    small.state("rank", term, len(shape))
    for at, d in enumerate(shape):
        if d is not None:
            small.place("dim", term, at - len(shape), d)


def _goal(region: Region, leaves: dict[int, int], known: dict[str, Op]) -> str:
    """The chosen term as egglog facts that hold when it equals the start."""
    facts: list[str] = []
    named = {c: f"(V {t})" for c, t in leaves.items()}

    def operand(cls: int) -> str:
        return named.get(cls, f"c{cls}")

    for cls, row in region.rows.items():
        texts = known[row.op].joined(map(operand, row.children), map(_literal, row.attrs))
        facts.append(f"(= {operand(cls)} ({row.op} {' '.join(t for t in texts if t is not None)}))")
    return " ".join(reversed(facts))


def _literal(value: Any) -> str:
    """An attribute in egglog's language."""
    if isinstance(value, tuple):
        return f"(vec-of {' '.join(map(str, value))})" if value else "(vec-empty)"
    return repr(value)


class Replay:
    """An e-graph of one problem on which rules run one at a time, in the order given."""

    def __init__(self, rules: Sequence[Rule], target: Runs | None, posed: ConeGraph, budget: Budget) -> None:
        self.rules, self.posed, self.budget = rules, posed, budget
        self.engine = Engine(rules, target, budget=budget)
        self.engine.load(posed.graph)
        self.engine.facts()

    def proved(self) -> bool:
        return self.engine.holds(self.posed.goal)

    def search(self) -> list[int] | None:
        """Rules in the order in which they had something to add, up to the goal; None if it is not
        reached. Raises LimitReached.
        """
        chain: list[int] = []
        if self.proved():
            return chain
        self.engine.run("(push)")
        try:
            limits = self.budget.limits
            for _ in range(min(_ROUNDS, limits.iterations)):
                before = len(chain)
                for k in range(len(self.rules)):
                    self.budget.check(_DOING)
                    if self.engine.tuples() > limits.tuples:
                        raise LimitReached(self.budget.full(_DOING))
                    if self.engine.step(k):
                        chain.append(k)
                        if self.proved():
                            return chain
                if len(chain) == before:
                    return None
            if limits.iterations < _ROUNDS:
                raise LimitReached(self.budget.rounds(_DOING))
            return None
        finally:
            self.engine.run("(pop)")

    def reaches(self, chain: Sequence[int]) -> bool:
        """Whether these steps alone prove the goal."""
        self.engine.run("(push)")
        try:
            for k in chain:
                self.budget.check(_DOING)
                self.engine.step(k)
            return self.proved()
        finally:
            self.engine.run("(pop)")

    def shortest(self, chain: list[int]) -> list[int]:
        """The chain without what it does not need: whole rules first, then single steps, the last first."""
        for rule in sorted(set(chain), reverse=True):
            without = [k for k in chain if k != rule]
            if self.reaches(without):
                chain = without
        for i in reversed(range(len(chain))):
            without = chain[:i] + chain[i + 1 :]
            if self.reaches(without):
                chain = without
        return chain


def derive(
    regions: Regions, cls: int, target: Runs | None, inputs: NumberSource, budget: Budget | None = None, *,
    views: bool = True,
) -> Derivation:  # fmt: skip
    """How the class of a chosen fused operator came to hold it; `views` as in `Regions.of`.

    Runs the rules that matched in its region; if those do not suffice, all that matched anywhere. The
    e-graph's other equalities among leaves are taken as given. Raises UnsoundMerge if the facts contradict each
    other before any rule, LimitReached.
    """
    budget = budget or Budget(Limits())
    region = regions.of(cls, views=views)
    posed = cone_graph(regions, region)
    everywhere = regions.ordered({k for ks in regions.frozen.why.values() for k in ks})
    for numbers in dict.fromkeys([regions.candidates(region), everywhere]):  # few rules make a small e-graph
        replay = Replay([regions.rules[k] for k in numbers], target, posed, budget)
        try:
            chain = replay.search()
        except UnsoundMerge:
            break  # a rule is false, and the steps show which
        if chain is not None:
            return _checked(regions, region, replay, replay.shortest(chain), inputs)
    return _failed(regions, region, target, inputs, budget)


def _failed(regions: Regions, region: Region, target: Runs | None, inputs: NumberSource, budget: Budget) -> Derivation:
    """The two ends of a chain that is not found, and those of its steps that are false."""
    rules = [regions.rules[k] for k in regions.candidates(region)]
    replay = Replay(rules, target, cone_graph(regions, region), budget)
    found = _checked(regions, region, replay, range(len(rules)), inputs)
    false = tuple(s for s in found.steps if s.false)
    return dataclasses.replace(found, steps=false, complete=False, tried=tuple(r.name for r in rules))


def _checked(
    regions: Regions, region: Region, replay: Replay, chain: Sequence[int], inputs: NumberSource
) -> Derivation:
    """Run the chain once more, with numbers and words, up to the first step that a fact contradicts."""
    posed, engine = replay.posed, replay.engine
    visible = any(ROWS_VISIBLE in replay.rules[k].assumes for k in chain)
    evaluation = Evaluation(posed.graph, engine.extra_ops, inputs, visible=visible)
    letters = _letters(posed)
    steps: list[Step] = []
    frozen = engine.freeze()
    original = _notation(frozen, letters, engine).text(frozen.values[posed.start])
    tolerance, complete = 0.0, True
    for k in chain:
        rule = replay.rules[k]
        replay.budget.check(_DOING)
        try:
            if not engine.step(k):
                continue
        except UnsoundMerge as error:
            steps.append(Step(rule.name, rule.law, "", "", 0, 0.0, str(error)))
            complete = False
            break
        frozen = engine.freeze()
        tolerance = 1.0 if rule.contract != "exact" else tolerance
        compared, worst, false = evaluation.check(frozen, tolerance)
        notation = _notation(frozen, letters, engine)
        before, after = _matched(frozen, notation, rule, k)
        steps.append(Step(rule.name, rule.law, before, after, compared, worst, notation.row(false) if false else ""))
    names = {c: letters[t] for c, t in posed.leaves.items() if t in letters}
    printed = Notation(regions.frozen, names, {op.name: op for r in regions.rules for op in r.terms})
    for row in (*region.rows.values(), *(r for v in region.views if not v.above for r in v.rows)):
        printed.prefer(row)
    return Derivation(original, tuple(steps), printed.row(region.rows[region.root]), complete,
                      tuple(names.get(c, "") for c in posed.leaves))  # fmt: skip


def _letters(posed: ConeGraph) -> dict[int, str]:
    """Letters for the leaves that are no small constants."""
    alphabet = [*"xyzuvwabcdefgh", *(f"x{i}" for i in range(1, 500))]
    inner = {r[0] for rows in posed.graph.rows.values() for r in rows}
    used = [t for t in dict.fromkeys([*posed.leaves.values(), *sorted(inner)])]
    leaves = {r[0] for name in sorted(LEAVES) for r in posed.graph.rows.get(name, ())}
    written = {r[0] for name in sorted(NUMBERS | {"Absent"}) for r in posed.graph.rows.get(name, ())}
    return dict(zip((t for t in used if t in leaves and t not in written and t != posed.start), alphabet, strict=False))


def _notation(frozen: Frozen, letters: dict[int, str], engine: Engine) -> Notation:
    names: dict[int, str] = {}
    for term, letter in letters.items():
        names.setdefault(frozen.values[term], letter)
    return Notation(frozen, names, engine.extra_ops)


def _matched(frozen: Frozen, notation: Notation, rule: Rule, number: int) -> tuple[str, str]:
    """The left and right side of a rule as it matched, at the class where they are the smallest."""
    shown = instance(rule, number, frozen.why, notation)
    if shown is not None:
        return shown
    takes, makes = rule.roots()
    found: list[tuple[int, str, str]] = []
    for cls, by in frozen.why.items():
        if number not in by:
            continue
        rows = notation.rows.get(cls, [])
        left = [(n, r) for r in rows if r.op in takes and (n := notation.size(r)) is not None]
        right = [(n, r) for r in rows if r.op in makes and (n := notation.size(r)) is not None]
        if not left:
            continue
        size, row = min(left, key=lambda p: p[0])
        made = min((p for p in right if p[1] is not row), key=lambda p: p[0], default=None)
        found.append((size, notation.row(row), notation.row(made[1]) if made else notation.text(cls)))
    return min(found)[1:] if found else ("", "")
