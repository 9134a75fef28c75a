"""Misfits: where the left side of a law matches but for one part of it.

A near miss drops a guard; this drops a part of the pattern: a variable that is two values, an attribute, an operator
that is missing, is another one or has one more before it. Where a law would have made the part but for a guard, that
guard is what does not fit. Matched in Python, at the few classes that nothing else explains.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ..engine.frozen import Frozen, Row
from ..engine.guard import SIGNS, Guard
from ..engine.rule import Rule, Sides
from ..terms import CLASSES, LEAVES, TENSOR, Op
from ..terms.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from ..terms.expression import Expr
from .matching import Env, orders, value_of

#: What matches weighs that much, at least, besides a part of which nothing is there; one operator may weigh one more.
_ENOUGH = 4
_NONE = -2  # of the weight that may be lost: not even one more operator
_FLOATS = (FLOAT16, FLOAT32, FLOAT64, BFLOAT16)
#: Terms below what is told already that are told of as well.
_BENEATH = 6
#: Laws on the way to a part, each of which makes a part of the next.
_LAWS = 4


@dataclass(frozen=True, slots=True)
class Part:
    """What does not fit: `wanted` of the left side, where the class `at` stands, or two for a variable; an attribute is
    its name, the value wanted, and that which it has. `lost` is the weight of what of the left side is not there.
    """

    wanted: Expr
    at: tuple[int, ...]
    lost: int
    attribute: tuple[str, Any, Any] | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    """A law would make a part but for this guard, tried on the values `env`, or else but for a part of its own."""

    rule: Rule
    env: Env
    guard: Guard | None
    part: Part | None
    terms: int  # of its left side

    @property
    def key(self) -> tuple[Any, ...]:
        if self.guard is None:
            return self.part, self.rule.name
        return self.guard.says, *(self.env.get(v) for v in sorted(self.guard.uses))


@dataclass(frozen=True, slots=True)
class Misfit:
    """A law matches at class `cls` but for a part."""

    cls: int
    rule: Rule
    sides: Sides
    part: Part
    cause: Cause | None
    below: frozenset[int]  # what it is computed from, as far as the law looks


_SPENT = Part(Expr("lit", (0,)), (), 0)

Fit = tuple[Env, Part | None]


class Misfits:
    """The search in one frozen e-graph. `ops` knows every term; `rules` are those that may make a part."""

    def __init__(self, frozen: Frozen, rules: Sequence[Rule], ops: Mapping[str, Op]) -> None:
        self.frozen, self.ops = frozen, ops
        self.rows: dict[int, list[Row]] = {}
        for r in frozen.rows:
            self.rows.setdefault(r.cls, []).append(r)
        self.made: dict[str, list[tuple[Rule, Sides]]] = {}
        for rule in rules:
            for sides in rule.sides:
                self.made.setdefault(sides.rhs.head, []).append((rule, sides))
        self.heads = {cls: frozenset(r.op for r in rows) for cls, rows in self.rows.items()}
        self.bits = {op: 1 << k for k, op in enumerate(sorted({r.op for r in frozen.rows}))}
        self.edges = [(r.cls, c) for r in frozen.rows for c in r.children if c != r.cls and c in self.rows]
        self.found: dict[tuple[Any, ...], dict[tuple[Any, ...], Cause]] = {}
        self.within, self.weight = cache(self._within), cache(_weight)

    def search(
        self,
        sought: Sequence[tuple[Rule, Sides]],
        classes: Collection[int],
        told: Collection[int],
        check: Callable[[], None],
    ) -> list[Misfit]:
        """Which lose the least, of the laws that have the most; of those that overlap, one, and none that overlap with
        what is `told` already. `check` is called in between, and raises where a limit is reached.
        """
        roots: dict[str, list[int]] = {}
        for cls in sorted(c for c in classes if self.frozen.dtype.get(c) in _FLOATS):
            for op in dict.fromkeys(r.op for r in self.rows.get(cls, ())):
                roots.setdefault(op, []).append(cls)
        best: dict[int, tuple[tuple[int, int], Rule, Sides, Part]] = {}
        for rule, sides in sought:
            check()
            names, weight = {t.head: _weigh(t) for t in sides.lhs.subterms()}, self.weight(sides.lhs)
            allowed, depth = weight - max(_ENOUGH, (weight + 1) // 2), _depth(sides.lhs) + 1
            for cls in self._starts(sides.lhs, roots) if allowed > _NONE else ():
                if sides.rhs.head != sides.lhs.head and sides.rhs.head in self.heads[cls]:
                    continue  # it is one already
                there = self.within(depth)[cls]
                if sum(w for name, w in names.items() if not self.bits.get(name, 0) & there) > allowed + 1:
                    continue
                fits = list(self._root(sides.lhs, cls, {}, None, allowed))
                if not fits and sides.lhs.head not in self.heads.get(cls, ()):
                    fits = list(self._another(sides.lhs, cls, {}, allowed))
                if any(part is None for _, part in fits):
                    continue  # if it was not its guards, it is fused
                for env, part in fits:
                    assert part is not None
                    rank = (part.lost, -weight)
                    if (cls not in best or rank < best[cls][0]) and not self.unmet(sides, env):
                        best[cls] = rank, rule, sides, part
        taken, chosen = set(told), list[int]()
        beneath = set[int]().union(*(self.below(cls, _BENEATH) for cls in told))
        for cls in sorted(best, key=lambda c: (best[c][0], c)):
            below = self.below(cls, _depth(best[cls][2].lhs))
            if (
                cls not in beneath
                and taken.isdisjoint(below)
                and not any(cls in self.below(c, _depth(best[c][2].lhs)) for c in chosen)
            ):
                taken.add(cls)
                chosen.append(cls)
        return [self._misfit(cls, *best[cls][1:]) for cls in sorted(chosen)]

    def _misfit(self, cls: int, rule: Rule, sides: Sides, part: Part) -> Misfit:
        below = self.below(cls, _depth(sides.lhs) + _LAWS)
        return Misfit(cls, rule, sides, part, None if part.at == (cls,) else self._cause(part), frozenset(below))

    def below(self, cls: int, depth: int) -> set[int]:
        """A class and those that it is computed from, as far down as that."""
        found = level = {cls}
        for _ in range(depth):
            level = {c for at in level for r in self.rows.get(at, ()) if r.op not in LEAVES for c in r.children} - found
            found = found | level
        return found

    # ---- a pattern that may miss a part

    def _root(self, e: Expr, cls: int, env: Env, part: Part | None, allowed: int) -> Iterator[Fit]:
        tensors = [a for a in e.args if a.sort in CLASSES]
        for row in (r for r in self.rows.get(cls, ()) if r.op == e.head):
            for children in orders(e, row):
                if self._absent(tensors, children) <= (part is not _SPENT and allowed > _NONE):
                    values = self.ops[row.op].joined(children, row.attrs)
                    yield from self._operands(e, 0, values, cls, env, part, allowed)

    def _absent(self, parts: Sequence[Expr], classes: Sequence[int]) -> int:
        """How many terms have no operator in their class."""
        pairs = zip(parts, classes, strict=False)
        return sum(1 for a, c in pairs if a.op is not None and a.head not in self.heads.get(c, ()))

    def _operands(
        self, e: Expr, i: int, values: list[Any], cls: int, env: Env, part: Part | None, allowed: int
    ) -> Iterator[Fit]:
        if i == len(values):
            yield env, part
            return
        a, value = e.args[i], values[i]
        if a.sort in CLASSES:
            for bound, spent in self._fit(a, value, env, part, allowed):
                yield from self._operands(e, i + 1, values, cls, bound, spent, allowed)
            return
        known = env.get(a.args[0]) if a.head == "var" else value_of(a, env)
        if a.head == "var" and known is None:
            env = {**env, a.args[0]: value}
        elif known is not None and known != value:
            if part is not None:
                return
            part = Part(e, (cls,), 0, (e.op.operands[i][0] if e.op else "", known, value))
        yield from self._operands(e, i + 1, values, cls, env, part, allowed)

    def _fit(self, e: Expr, cls: int, env: Env, part: Part | None, allowed: int) -> Iterator[Fit]:
        if e.head == "var":
            known = env.get(e.args[0])
            if known is None or known == cls:
                yield {**env, e.args[0]: cls}, part
            elif part in (None, other := Part(e, (known, cls), 0)):
                yield env, other
            return
        yield from self._root(e, cls, env, part, allowed)
        if part is None and allowed > _NONE:
            yield from self._otherwise(e, cls, env, allowed)
        elif part is not None and part.wanted is e and part.at == (cls,):  # a term that occurs twice
            yield from (fit for fit in self._otherwise(e, cls, env, allowed) if fit[1] == part)

    def _otherwise(self, e: Expr, cls: int, env: Env, allowed: int) -> Iterator[Fit]:
        """The operator of e is missing, is another one, or has one more before it; or nothing of e is there."""
        terms = [a for a in e.args if a.op is not None]
        if (
            e.op is not None
            and e.op.dtype == "cast"
            and value_of(e.args[-1], env) not in (None, self.frozen.dtype.get(cls))
        ):
            return  # what stands there is of another type
        for a in terms:
            lost = self.weight(e) - self.weight(a)
            if lost <= allowed + 1:
                yield from ((bound, Part(e, (cls,), lost)) for bound, _ in self._root(a, cls, env, _SPENT, _NONE))
        children = dict.fromkeys(c for r in self.rows.get(cls, ()) if r.op not in LEAVES for c in r.children)
        for child in (c for c in children if e.head in self.heads.get(c, ())):
            yield from ((bound, Part(e, (cls,), 0)) for bound, _ in self._root(e, child, env, _SPENT, _NONE))
        if terms:
            yield from self._another(e, cls, env, allowed)
        if self.weight(e) <= allowed:
            yield env, Part(e, (cls,), self.weight(e))

    def _another(self, e: Expr, cls: int, env: Env, allowed: int) -> Iterator[Fit]:
        """All operands of e are there, and another operator."""
        tensors = [a for a in e.args if a.sort in CLASSES]
        if _weigh(e) <= allowed + 1:
            for row in self.rows.get(cls, ()):
                if row.op != e.head and row.op not in LEAVES and len(row.children) >= len(tensors):
                    for children in (o for o in orders(e, row) if not self._absent(tensors, o)):
                        yield from ((bound, Part(e, (cls,), _weigh(e))) for bound in self._all(tensors, children, env))

    def _starts(self, e: Expr, roots: Mapping[str, list[int]]) -> list[int]:
        """Classes with the outermost operator of e, or with another that binds as it does."""
        heads = [op for op in roots if op == e.head or _alike(e.op, self.ops.get(op))]
        return list(dict.fromkeys(cls for op in heads for cls in roots[op]))

    def _all(self, parts: Sequence[Expr], classes: Sequence[int], env: Env) -> Iterator[Env]:
        if not parts:
            yield env
            return
        for bound, _ in self._fit(parts[0], classes[0], env, _SPENT, _NONE):
            yield from self._all(parts[1:], classes[1:], bound)

    def _within(self, depth: int) -> dict[int, int]:
        """The operators of each class and below it, as far down as that, a bit for each."""
        if not depth:
            return {cls: sum(self.bits[op] for op in heads) for cls, heads in self.heads.items()}
        less = self.within(depth - 1)
        found = dict(less)
        for cls, c in self.edges:
            found[cls] |= less[c]
        return found

    # ---- guards

    def unmet(self, sides: Sides, env: Env) -> list[Guard]:
        """The guards that facts of these values contradict, or do not prove of elements; what cannot be told holds."""
        bound = dict(env)
        return [g for g in sides.when if not all(self._holds(fact, bound) for fact in g.facts)]

    def _holds(self, fact: Expr, env: Env) -> bool:
        if fact.head in self.frozen.truths:
            of = fact.args[0]
            return of.head != "var" or of.args[0] not in env or env[of.args[0]] in self.frozen.truths[fact.head]
        if fact.head not in SIGNS:
            return True
        sides = [a.args[0] if a.head == "DNum" else a for a in fact.args]
        values = [self._value(a, env) for a in sides]
        if None in values:
            for a, value in zip(sides, reversed(values), strict=True):
                if fact.head == "=" and a.head == "var" and a.args[0] not in env and value is not None:
                    env[a.args[0]] = value
            constants = [a.args[0].args[0] for a in sides if a.head == "fval" and a.args[0].head == "var"]
            return all(name not in env or env[name] in self.frozen.number for name in constants)
        return bool(SIGNS[fact.head](*values))

    def _value(self, e: Expr, env: Env) -> Any:
        """A number or symbol; None where it cannot be told."""
        if e.head in ("var", "lit"):
            return env.get(e.args[0]) if e.head == "var" else e.args[0]
        if e.head in ("fval", "rank", "dtype", "axes", "dim"):
            cls = env.get(e.args[0].args[0]) if e.args[0].head == "var" else None
            if e.head != "dim" or cls is None:
                known = {"fval": self.frozen.number, "dtype": self.frozen.dtype}.get(e.head, self.frozen.rank)
                return None if cls is None else known.get(cls)
            shape, at = self.frozen.shape(cls) or (), e.args[1].args[0]
            return shape[at] if isinstance(at, int) and -len(shape) <= at < 0 else None
        if e.op is not None or e.sort == "fact":
            return None
        args = [self._value(a, env) for a in e.args]
        return None if None in args else type(e)(e.head, tuple(Expr("lit", (a,)) for a in args)).value({})

    # ---- laws that would make a part

    def _cause(self, part: Part) -> Cause | None:
        if part.wanted.op is None or part.attribute is not None:
            return None
        for laws in range(_LAWS):
            for cause in self._causes(part.wanted, part.at[0], laws).values():
                if not self._vague(cause, laws):
                    return cause
        return None

    def _vague(self, cause: Cause, laws: int) -> bool:
        """The law is of one operator and far away, unless it wants what is known of elements; or it wants a number
        where there is none.
        """
        facts = () if cause.guard is None else cause.guard.facts
        numbers = [a.args[0] for f in facts for a in f.args if isinstance(a, Expr) and a.head == "fval"]
        known = all(x.head != "var" or cause.env.get(x.args[0]) in self.frozen.number for x in numbers)
        if not known:
            return True
        return bool(laws) and cause.terms == 1 and not any(f.head in self.frozen.truths for f in facts)

    def _causes(self, wanted: Expr, cls: int, laws: int) -> dict[tuple[Any, ...], Cause]:
        """The guards, each by itself, but for which laws would make the wanted operator of a class."""
        given = tuple(a.args[0] if a.head == "lit" else None for a in wanted.args)
        key = wanted.head, given, cls, laws
        if key in self.found:
            return self.found[key]
        found = self.found[key] = dict[tuple[Any, ...], Cause]()
        for rule, sides in self.made.get(wanted.head, ()):
            if sides.lhs.op is None:
                continue
            made = zip(sides.rhs.args, wanted.args, strict=True)
            if any(a.head == b.head == "lit" and a.args != b.args for a, b in made):
                continue
            for env, part in self._root(sides.lhs, cls, {}, None, _NONE):
                unmet = self.unmet(sides, env)
                if len(unmet) + (part is not None) == 1:
                    cause = Cause(rule, env, unmet[0] if unmet else None, part, len(sides.lhs.subterms()))
                    found.setdefault(cause.key, cause)
            if laws:
                for reason, cause in self._further(sides.lhs, cls, laws - 1).items():
                    found.setdefault(reason, cause)
        return found

    def _further(self, e: Expr, cls: int, laws: int) -> dict[tuple[Any, ...], Cause]:
        """As `_causes`, of what a law would make the wanted operator of: of itself, or of all its operands."""
        rows = [r for r in self.rows.get(cls, ()) if r.op == e.head]
        if not rows:
            return self._causes(e, cls, laws)
        found: dict[tuple[Any, ...], Cause] = {}
        for children in (children for row in rows for children in orders(e, row)):
            for key, cause in self._together(e, children, laws).items():
                found.setdefault(key, cause)
        return found

    def _together(self, e: Expr, children: Sequence[int], laws: int) -> dict[tuple[Any, ...], Cause]:
        """The guards but for which all operands would be there that are not."""
        shared: dict[tuple[Any, ...], Cause] | None = None
        for a, cls in zip((a for a in e.args if a.sort in CLASSES), children, strict=True):
            if a.op is not None and not any(True for _ in self._fit(a, cls, {}, _SPENT, _NONE)):
                causes = self._causes(a, cls, laws)
                shared = causes if shared is None else {k: c for k, c in shared.items() if k in causes}
                if not shared:
                    return {}
        return shared or {}


def _alike(a: Op | None, b: Op | None) -> bool:
    """Both are a sum or difference, or both a product or quotient."""
    if a is None or b is None or a.infix is None or b.infix is None:
        return False
    return a.infix[1] == b.infix[1]


def _weight(e: Expr) -> int:
    return sum(map(_weigh, e.subterms()))


def _weigh(e: Expr) -> int:
    """How much the operator of a term tells: arithmetic and layouts little, and a marker stands for several operators,
    unless many graphs hold it.
    """
    if e.op is None or e.sort != TENSOR:
        return 0
    if e.op.marker:
        return 1 if e.op.common else 3
    return 1 if e.op.infix is not None or e.op.moves or e.op.layout or e.op.dtype == "cast" else 2


def _depth(e: Expr) -> int:
    return 1 + max((_depth(a) for a in e.args if isinstance(a, Expr)), default=0)
