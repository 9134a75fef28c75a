"""Rules made false on purpose: each guard dropped, signs, operands, axes and numbers of the right side
changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from onnx_egraph.egraph.engine.guard import Guard, called
from onnx_egraph.egraph.engine.rule import Rule, Sides
from onnx_egraph.egraph.terms import FLOAT, INT, INTS, OPS, TENSOR
from onnx_egraph.egraph.terms.expression import Expr, lift


@dataclass(frozen=True)
class Mutant:
    """A changed rule, the one it was made of, and what was changed."""

    original: Rule
    change: str
    rule: Rule

    @property
    def guard(self) -> bool:
        """Whether a guard is dropped."""
        return self.change.startswith("without ")

    @property
    def id(self) -> str:
        return f"{self.original.name}-{self.change}"


def dropped_guards(rule: Rule) -> Iterator[Mutant]:
    """Each guard dropped, in all readings that have it."""
    for says in dict.fromkeys(_general(g) for s in rule.sides for g in s.when):
        sides = tuple(replace(s, when=tuple(g for g in s.when if _general(g) != says)) for s in rule.sides)
        yield Mutant(rule, f"without {says}", replace(rule, sides=sides))


def _general(g: Guard) -> str:
    """What a guard says, with n for the rank of the reading."""
    fact = g.facts[0]
    if fact.head in ("=", "<=") and fact.args[0].head in ("rank", "vec-length", "len") and fact.args[1].head == "lit":
        return f"{called(fact.args[0])} {fact.head} n"
    return g.says


def changed_sides(rule: Rule) -> Iterator[Mutant]:
    """One change of the right side at a time, in every reading alike."""
    seen = set()
    for name, change in CHANGES.items():
        for k in range(8):
            sides = tuple(_changed(s, change, k) for s in rule.sides)
            kept = [new.rhs for new, old in zip(sides, rule.sides, strict=True) if new.rhs.key() != old.rhs.key()]
            if not kept:
                break
            key = tuple(s.rhs.key() for s in sides)
            if key not in seen:
                seen.add(key)
                yield Mutant(rule, f"{name} {k}" if k else name, replace(rule, sides=sides))
    sides = tuple(replace(s, rhs=_negated(s.rhs)) for s in rule.sides)
    yield Mutant(rule, "negated", replace(rule, sides=sides))


Change = Callable[[Expr], Expr | None]


def _changed(s: Sides, change: Change, k: int) -> Sides:
    """`change` applied to the k-th subterm of the right side that it applies to."""
    left = [k]

    def visit(e: Any) -> Any:
        if not isinstance(e, Expr) or e.head in ("var", "lit") or e.op is None:
            return e
        new = change(e)
        if new is not None:
            left[0] -= 1
            if left[0] == -1:
                return new
        return _with(e, [visit(a) for a in e.args])

    return replace(s, rhs=visit(s.rhs))


def _with(e: Expr, args: list[Any]) -> Expr:
    return type(e)(e.head, tuple(args), e.op)


def _negated(e: Expr) -> Expr:
    return type(e)("Neg", (e,), OPS["Neg"])


def _drop_neg(e: Expr) -> Expr | None:
    return e.args[0] if e.head == "Neg" else None


def _flip_sum(e: Expr) -> Expr | None:
    other = {"Add": "Sub", "Sub": "Add"}.get(e.head)
    return type(e)(other, e.args, OPS[other]) if other else None


def _swap_factors(e: Expr) -> Expr | None:
    other = {"Mul": "Div", "Div": "Mul"}.get(e.head)
    return type(e)(other, e.args, OPS[other]) if other else None


def _named(e: Expr, wanted: Callable[[str], bool], sort: str, change: Callable[[Any], Any]) -> Expr | None:
    if e.op is None:
        return None
    for i, (name, s) in enumerate(e.op.operands):
        if s == sort and wanted(name):
            args = list(e.args)
            args[i] = change(args[i])
            return _with(e, args)
    return None


def _swap_cos_sin(e: Expr) -> Expr | None:
    names = [n for n, _ in e.op.operands] if e.op is not None else []
    if "cos" not in names or "sin" not in names:
        return None
    i, j, args = names.index("cos"), names.index("sin"), list(e.args)
    args[i], args[j] = args[j], args[i]
    return _with(e, args)


def _swap_operands(e: Expr) -> Expr | None:
    """The first two operands of an operator that is not commutative."""
    if e.op is None or e.op.commutative or e.op.sorts[:2] != (TENSOR, TENSOR):
        return None
    return _with(e, [e.args[1], e.args[0], *e.args[2:]])


def _pairs(a: Any) -> Any:
    """0 for 1 and 1 for 0."""
    return lift(1, INT) - a


CHANGES: dict[str, Change] = {
    "sign dropped": _drop_neg,
    "plus for minus": _flip_sum,
    "times for divided": _swap_factors,
    "cos and sin swapped": _swap_cos_sin,
    "operands swapped": _swap_operands,
    "another number": lambda e: _named(e, lambda n: True, FLOAT, lambda a: a * 1.5 + 0.25),
    "another axis": lambda e: _named(e, lambda n: n == "axis", INT, lambda a: a - 1),
    "the next axis": lambda e: _named(e, lambda n: n == "axis", INT, lambda a: a + 1),
    "other pairs": lambda e: _named(e, lambda n: n == "pairs", INT, _pairs),
    "start moved": lambda e: _named(e, lambda n: n == "start", INT, lambda a: a + 1),
    "end moved": lambda e: _named(e, lambda n: n == "end", INT, lambda a: a - 1),
    "another type": lambda e: _named(e, lambda n: n == "to", INT, _typed),
    "perm reversed": lambda e: _named(e, lambda n: n == "perm", INTS, _reversed),
}


def _typed(to: Expr) -> Expr:
    """Booleans, or floats where it is booleans."""
    return lift(1, INT) * (1 if to.args == (9,) else 9) + to * 0


def _reversed(perm: Expr) -> Expr:
    if perm.head != "vec-of":
        return perm
    return type(perm)("vec-of", tuple(reversed(perm.args)))
