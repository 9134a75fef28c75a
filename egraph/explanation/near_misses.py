"""Near misses: rules of the fusion stages that would match if one guard were dropped, and where a pattern stopped.

Asked for on demand: the rules run once more over a saturated e-graph, each without one of its guards, and
only record what they match.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ..budget import Budget, Limits
from ..engine.frozen import Frozen
from ..engine.guard import Fact, Guard
from ..engine.rule import Rule, Sides
from ..engine.saturate import Engine
from ..terms import FLOAT, INT, LAYOUT, OPS, TENSOR, Op
from ..terms.dtypes import NAMES
from .matching import show
from .misfits import Misfit, Misfits, Part
from .notation import Notation, attribute

#: Stages whose rules make fused operators.
FUSING = ("fuse", "target")
#: Markers that many graphs hold without any fused operator in sight.
_COMMON = frozenset(op.name for op in OPS.values() if op.common)
#: Terms between a marker and what is fused from it, at most.
_LAYOUTS = 3
#: Operators of a law that tells of itself.
_LARGE = 4
_DOING = "looking for near misses"
_NONE = Op("", (), None)


@dataclass(frozen=True, slots=True)
class Called:
    """What people call symbolic dimensions ("$k") and the values of classes."""

    sizes: Mapping[str, str]
    values: Mapping[int, str]


_UNNAMED = Called(MappingProxyType({}), MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Miss:
    """Rule `rule` matches at class `cls` but for one guard. `needs` is the guard, `found` the facts it was tried on. Or
    they are a part of its left side, and what stands there; then it tells of what is `below`, too.
    """

    cls: int
    rule: str
    law: str
    makes: str
    needs: str
    found: str
    below: frozenset[int] = frozenset()

    def __str__(self) -> str:
        return f"{self.rule} ({self.law}) needs {self.needs}: {self.found}"


def near_misses(
    engine: Engine, frozen: Frozen, live: Collection[int], inner: Collection[int] = (), *, complete: bool = True,
    budget: Budget | None = None, names: Called = _UNNAMED, told: Collection[int] = (),
) -> list[Miss]:  # fmt: skip
    """What almost matched at the classes `live`, one miss per class and rule, in a fixed order: but for a guard, or
    else but for a part of its left side.

    At the classes `inner` something is fused already: there only rules that would take in several stages count, and
    such a rule may lack, besides one guard, an operator for the element type. `frozen` is the e-graph of `engine`
    before this call, which adds relations to it but no terms and no equalities. Without `complete` the e-graph is one
    whose saturation was stopped, and a rule may not have run where all its guards hold. Of the classes `told`
    something is said elsewhere. Raises LimitReached when the `budget` has no time left.
    """
    budget = budget or Budget(Limits())
    engine.run("(ruleset nearmiss)")
    present = {r.op for r in frozen.rows}
    runs = engine.runs
    tried: dict[str, _Try] = {}
    whole: dict[str, int] = {}
    for number, rule in enumerate(engine.rules):
        budget.check(_DOING)
        for s, sides in enumerate(rule.sides):
            terms = {t.op for t in sides.lhs.subterms() if t.op is not None}
            if not _makes_progress(rule, sides) or not present.issuperset(op.name for op in terms):
                continue
            asked = [g for g, guard in enumerate(sides.when) if guard.operator]
            if runs is not None and not runs.issuperset(sides.asks):
                continue  # the target has no such operator for any type
            wide = rule.stage == "target" and len({op.name for op in terms if op.marker}) > 1
            wanted = [[g] for g in range(len(sides.when))]
            wanted += [[g, a] for a in asked for g in range(len(sides.when)) if wide and g != a]
            for n, dropped in enumerate(wanted):
                relation = f"miss-{number}-{s}-{n}"
                declared = _declare(engine, relation, rule, sides, dropped)
                if declared is not None:
                    tried[relation] = _Try(number, sides, [sides.when[g] for g in dropped], *declared, wide)
            if not complete:
                relation = f"full-{number}-{s}"
                if _declare(engine, relation, rule, sides, []) is not None:
                    whole[relation] = number
    budget.check(_DOING)
    engine.run("(run nearmiss 1)")
    budget.check(_DOING)
    functions = engine.egraph.freeze().functions
    matched = {(frozen.class_of(row.inputs[0]), number) for r, number in whole.items() for row in functions[r].rows}
    made = [rule.asks or rule.roots()[1] for rule in engine.rules]  # operators of the target, or else outermost terms
    fired = {c: {m for k in by for m in made[k]} for c, by in frozen.why.items()}
    found: dict[tuple[int, int], Miss] = {}
    for relation in sorted(tried, key=lambda r: (not tried[r].alone, len(tried[r].guards))):
        t = tried[relation]
        rule = engine.rules[t.number]
        root, makes = t.sides.lhs.head, _made(t.sides)
        done = set() if makes == root else {c for c, made in fired.items() if makes in made}
        for row in sorted((_read(engine, frozen, t.columns, r) for r in functions[relation].rows), key=repr):
            cls, values = row
            key = (cls, t.number)
            if key in found or key in matched or cls in done or t.number in frozen.why.get(cls, ()):
                continue
            if cls in live or (t.wide and cls in inner and t.alone and cls not in {m.cls for m in found.values()}):
                needs = " and ".join(g.says for g in t.guards)
                said = _found(frozen, t.columns, values, names)
                found[key] = Miss(cls, rule.name, rule.law, makes, needs, said)
    missed = [found[key] for key in sorted(found)]
    if complete:
        missed += _misfits(engine, frozen, live, {*told, *(m.cls for m in missed)}, names, budget)
    return missed


def _misfits(
    engine: Engine, frozen: Frozen, live: Collection[int], told: Collection[int], names: Called, budget: Budget
) -> list[Miss]:
    """What matched but for a part, at classes of which no guard tells why."""
    rules = [(r, s) for r in engine.rules for s in r.sides if _makes_progress(r, s) or _tells(r, s)]
    sought = [(r, s) for r, s in rules if engine.runs is None or engine.runs.issuperset(s.asks)]
    found = Misfits(frozen, engine.rules, {**OPS, **engine.extra_ops}).search(
        sought, live, told, lambda: budget.check(_DOING)
    )
    if not found:
        return []
    notation = Notation(frozen, names.values, engine.extra_ops)
    return [Miss(m.cls, m.rule.name, m.rule.law, _made(m.sides), *_said(m, notation, names), m.below) for m in found]


def _said(misfit: Misfit, notation: Notation, names: Called) -> tuple[str, str]:
    """What a law needs, and what is there."""
    needs, found = _part(misfit.part, notation, names)
    cause = misfit.cause
    if cause is None:
        return needs, found
    by = f"{needs}, to which {cause.rule.name} ({cause.rule.law}) leads"
    if cause.part is not None:
        needs, found = _part(cause.part, notation, names)
        return f"{by} from {needs}", found
    assert cause.guard is not None
    frozen, sorts = notation.frozen, cause.rule.variables
    columns = [(v, sorts[v]) for v in sorted(cause.guard.uses) if v in cause.env and v in sorts]
    return f"{by} if {cause.guard.says}", _found(frozen, columns, [cause.env[v] for v, _ in columns], names)


def _part(part: Part, notation: Notation, names: Called) -> tuple[str, str]:
    """A part that is wanted, and what is there."""
    stand = [
        describe(notation.frozen, cls, names) + ("" if cls in names.values else f" {notation.text(cls)}")
        for cls in part.at
    ]
    if part.attribute is not None:
        name, wanted, has = part.attribute
        return f"{part.wanted.head} with {name} {attribute(wanted)}", f"that of {stand[0]} is {attribute(has)}"
    if part.wanted.head == "var":
        return f"one {part.wanted.args[0]}", f"it is {' and '.join(stand)}"
    return show(part.wanted, {}, notation), f"there is {stand[0]}"


@dataclass(frozen=True, slots=True)
class _Try:
    """A law without some guards; `alone` if nothing else had to go, `wide` if it takes in several stages."""

    number: int
    sides: Sides
    guards: list[Guard]
    columns: list[tuple[str, str]]
    alone: bool
    wide: bool


def _declare(
    engine: Engine, relation: str, rule: Rule, sides: Sides, dropped: Sequence[int]
) -> tuple[list[tuple[str, str]], bool] | None:
    """Have a relation record where a law matches without some guards, with the variables that those use; (its columns,
    did nothing else go).

    Guards and arithmetic that need a variable which only a dropped guard binds go as well. None if the left side is a
    bare variable, which would match everything.
    """
    pattern, sorts = sides.pattern, rule.variables
    if not pattern.atoms:
        return None
    facts, bound = list(pattern.atoms), set[str]().union(*(f.variables() for f in pattern.atoms))
    kept = (f for i, g in enumerate(sides.when) if i not in dropped for f in g.facts)
    waiting: list[Fact] = [*map(pattern.named, kept), *pattern.sums]
    while (fact := next((f for f in waiting if f.variables() - f.binds() <= bound), None)) is not None:
        facts.append(fact)
        waiting.remove(fact)
        bound |= fact.variables()
    used = bound & {v for g in dropped for v in sides.when[g].uses}
    columns = [(n, sorts[n]) for n in sorted(used) if sorts.get(n) in (TENSOR, INT, FLOAT)]
    names = " ".join([pattern.root.text(), *(name for name, _ in columns)])
    engine.run(f"(relation {relation} ({' '.join(['T', *(sort for _, sort in columns)])}))")
    engine.run(f"(rule ({' '.join(f.text() for f in facts)}) (({relation} {names})) :ruleset nearmiss)")
    return columns, not waiting


def _made(sides: Sides) -> str:
    """The operator of a target that a law asks for, or else the outermost one on its right."""
    asked = [g.operator for g in sides.when if g.operator]
    return asked[0] if asked else "" if sides.rhs.op is None else sides.rhs.head


def _makes_progress(rule: Rule, sides: Sides) -> bool:
    """The law makes a fused operator or a marker on the way to one, of more than one operator: any product would be
    near to being one with a certain matrix.
    """
    made = sides.rhs.op
    if made is None or made.name in _COMMON or sum(t.op is not None for t in sides.lhs.subterms()) < 2:
        return False
    return rule.stage in FUSING or (rule.stage == "marker" and made.marker)


def _tells(rule: Rule, sides: Sides) -> bool:
    """The law has so large a left side that there is hardly anything else that looks like it."""
    made = sides.rhs.op
    if rule.stage != "marker" or made is None or made.name in _COMMON or made.name in sides.takes:
        return False
    return len(sides.lhs.subterms()) >= _LARGE


def _read(engine: Engine, frozen: Frozen, columns: Sequence[tuple[str, str]], row: Any) -> tuple[int, list[Any]]:
    egraph = engine.egraph
    read: dict[str, Callable[[Any], Any]]
    read = {INT: egraph.value_to_i64, FLOAT: egraph.value_to_f64, TENSOR: frozen.class_of}
    values = [read[sort](v) for (_, sort), v in zip(columns, row.inputs[1:], strict=True)]
    return frozen.class_of(row.inputs[0]), values


def _found(frozen: Frozen, columns: Sequence[tuple[str, str]], values: Sequence[Any], names: Called) -> str:
    """The facts of what a guard looked at, such as `w is float32[64]`."""
    return ", ".join(
        f"{name} is {describe(frozen, value, names) if sort == TENSOR else value}"
        for (name, sort), value in zip(columns, values, strict=True)
    )


def describe(frozen: Frozen, cls: int, names: Called) -> str:
    """Type, shape, the value of a constant of one element, and what people call a class."""
    shape = frozen.shape(cls)
    sizes = ("?" if d is None else names.sizes.get(d, d) if isinstance(d, str) else str(d) for d in shape or ())
    dims = "[rank unknown]" if shape is None else f"[{', '.join(sizes)}]"
    number = "" if cls not in frozen.number else f" {frozen.number[cls]:g}"
    name = f" ({names.values[cls]})" if cls in names.values else ""
    return NAMES.get(frozen.dtype.get(cls, 0), "unknown type") + dims + number + name


@dataclass(frozen=True, slots=True)
class DeadEnd:
    """A pattern that got as far as the marker `marker` at class `cls`; `laws` are those that take it further."""

    cls: int
    marker: str
    laws: tuple[str, ...]

    def __str__(self) -> str:
        return f"got as far as {self.marker}, and none of these matched: {'; '.join(self.laws)}"


def stopped(engine: Engine, frozen: Frozen, live: Collection[int], missed: Sequence[Miss]) -> list[DeadEnd]:
    """Where, among the classes `live`, a pattern reached a stage marker that no rule took any further.

    Markers which a rule of `missed` would have taken are explained by it. A rule that makes another marker has
    not fused anything yet, and what is fused may be in another layout.
    """
    told = {m.rule for m in missed}
    takers: dict[str, list[Rule]] = {}
    for rule in engine.rules:
        if rule.stage in FUSING and not rule.egglog:
            taken = {n for takes, _ in rule.takes_and_makes for n in takes}
            for marker in sorted(n for n in taken if n in OPS and OPS[n].marker):
                takers.setdefault(marker, []).append(rule)
    below = frozenset[int]().union(*(m.below for m in missed))
    live = set(live) - below
    used = {c for r in frozen.rows if OPS.get(r.op, _NONE).marker for c in r.children if c != r.cls}
    rows = {(r.cls, r.op) for r in frozen.rows if r.op in takers and r.op not in _COMMON}
    fusing = {k for k, rule in enumerate(engine.rules) if rule.stage in FUSING and rule.asks}
    fused = {c for c, by in frozen.why.items() if by & fusing}
    moved = [r for r in frozen.rows if r.op in LAYOUT]
    for _ in range(_LAYOUTS):
        fused |= {r.cls for r in moved if r.children[0] in fused} | {r.children[0] for r in moved if r.cls in fused}
    untold = {m for m, rules in takers.items() if not any(r.name in told for r in rules)}
    users: dict[int, set[int]] = {}
    for r in frozen.rows:
        for c in r.children:
            users.setdefault(c, set()).add(r.cls)
    numbers = {rule.name: k for k, rule in enumerate(engine.rules)}

    def led(cls: int, marker: str) -> bool:
        """Whether a rule that takes the marker and fuses matched a little above."""
        by = {numbers[r.name] for r in takers[marker]} & fusing
        level = {cls}
        for _ in range(_LAYOUTS):
            level = set[int]().union(*(users.get(c, ()) for c in level))
            if any(by & frozen.why.get(c, set()) for c in level):
                return True
        return False

    stops = [
        (cls, marker)
        for cls, marker in sorted(rows)
        if marker in untold and cls in live and cls not in used and cls not in fused and not led(cls, marker)
    ]
    at = {marker: {c for c, m in stops if m == marker} for _, marker in stops}
    further = {(c, m) for r in frozen.rows for m in at if r.cls in at[m] for c in r.children if c != r.cls}

    def told_of(r: Rule) -> str:
        lacking = sorted(r.asks - engine.runs) if engine.runs is not None else []
        return f"{r.name} ({r.law})" + (f", and the target has no {' or '.join(lacking)}" if lacking else "")

    return [
        DeadEnd(cls, marker, tuple(map(told_of, takers[marker])))
        for cls, marker in stops
        if (cls, marker) not in further
    ]
