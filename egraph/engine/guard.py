"""Side conditions of laws: facts asked of terms, as values. Egglog's text is printed of them last."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from ..errors import RuleError
from ..terms import INT
from ..terms.expression import Dim, Expr, Float, Int, lift
from .fact import FACTS

SIGNS: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType({
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
})  # fmt: skip
_LEAVES = ("var", "lit")
#: Axes up to which all sizes of a tensor are one thing to compare.
RANKS = 6


class Fact(Expr):
    """A function of a term, such as its rank, or something that holds: a relation or a comparison. In guards only."""

    __slots__ = ()
    sort = "fact"

    def binds(self) -> frozenset[str]:
        """Variables that it gives a value where nothing else does."""
        if self.head not in SIGNS:
            return self.variables()
        sides = ((a, b, _inner(a)) for a, b in (self.args, self.args[::-1]) if self.head == "=")
        return frozenset(v.args[0] for a, b, v in sides if v.head == "var" and (v is not a or b.head not in _LEAVES))


@dataclass(frozen=True, slots=True)
class Guard:
    """A side condition: facts that must all hold.

    `test` asks them of arrays, may bind a free variable in `env`, and says whether they hold; `says` is for people.
    """

    facts: tuple[Fact, ...]
    test: Callable[[dict[str, Any]], bool] = field(compare=False)
    says: str
    anchors: bool = False  # a relation with few rows: a rule may start from it, with a bare variable on the left

    @property
    def uses(self) -> frozenset[str]:
        """The variables in it."""
        return frozenset().union(*(f.variables() for f in self.facts))

    @property
    def operator(self) -> str:
        """The operator of a target that it asks for, or ""."""
        return next((str(f.args[0].args[0]) for f in self.facts if f.head == "supported"), "")


def together(facts: Sequence[Fact]) -> list[Fact]:
    """The same facts, with a rank and all sizes of a tensor asked as one, which joins one row instead of five."""
    left = list(facts)
    for ranked in facts:
        if ranked.head != "=" or ranked.args[0].head != "rank" or ranked.args[1].head != "lit":
            continue
        (x,), (rank,) = ranked.args[0].args, ranked.args[1].args
        asked: dict[int, tuple[Fact, Expr]] = {}
        for fact in left:
            for size, other in (fact.args, fact.args[::-1]) if fact.head == "=" else ():
                if size.head == "dim" and size.args[0].key() == x.key() and size.args[1].head == "lit":
                    asked.setdefault(size.args[1].args[0], (fact, other))
        if 1 < rank <= RANKS and asked.keys() >= set(range(-rank, 0)):
            each = [asked[-k] for k in range(1, rank + 1)]
            one = Fact("=", (Fact("sizes", (x,)), Expr(f"sizes-{rank}", tuple(other for _, other in each))))
            spent = {id(ranked), *(id(fact) for fact, _ in each)}
            left = [*(fact for fact in left if id(fact) not in spent), one]
    return left


def relation(name: str, *operands: Expr | int, test: Callable[[dict[str, Any]], bool] | None = None) -> Guard:
    """The guard that a relation holds; `test` if it is no matter of what its operands are."""
    declared, args = FACTS[name], tuple(map(_operand, operands))

    def holds(env: dict[str, Any]) -> bool:
        return declared.holds is None or declared.holds(*(a.value(env) for a in args))

    return Guard((Fact(name, args),), test or holds, declared.says.format(*map(called, args)), declared.anchors)


def called(e: Expr) -> str:
    """An expression as calls: `dim(w, -1)`. Lists and arithmetic, and what holds them, are as egglog has them."""
    if e.head in _LEAVES:
        return str(e.args[0])
    parts = [called(a) for a in e.args]
    if not all(p.args and p.head not in ("+", "*", "/", "%") for p in e.parts()):
        return f"({' '.join([e.head, *parts])})"
    return parts[0] if e.head == "DNum" else f"{'value' if e.head == 'fval' else e.head}({', '.join(parts)})"


Operand = Expr | int | float


def _operand(x: Operand) -> Expr:
    return x if isinstance(x, Expr) else Int("lit", (x,)) if isinstance(x, int) else Float("lit", (x,))


def _inner(x: Expr) -> Expr:
    """The number that a dimension is made of; x itself if it is none such."""
    inner: Expr = x.args[0] if x.head == "DNum" else x
    return inner


def eq(x: Operand, y: Operand) -> Guard:
    """x = y. A variable that nothing else binds is bound here."""
    for a, b in ((_operand(x), _operand(y)), (_operand(y), _operand(x))):
        n = _inner(b)
        if n is not b and n.head == "*" and n.args[0].head == "var" and n.args[1].head == "lit":
            return _eq_multiple(a, n.args[0], n.args[1].args[0])
    return _compared("=", x, y)


def _eq_multiple(x: Expr, v: Expr, k: int) -> Guard:
    """dim(x) = k * v, which binds v if nothing else does: egglog needs the quotient spelled out."""
    n, by, zero = Int("var", (f"{v.args[0]}x{k}",)), lift(k, INT), lift(0, INT)
    facts = (
        Fact("=", (Dim("DNum", (n,)), x)), Fact("=", (v, Int("/", (n, by)))), Fact("=", (zero, Int("%", (n, by)))),
    )  # fmt: skip

    def test(env: dict[str, Any]) -> bool:
        size = x.value(env)
        if size is None or size % k:
            return False
        return bool(env.setdefault(v.args[0], size // k) * k == size)

    return Guard(facts, test, f"{called(x)} = {k} * {called(v)}")


def _compared(sign: str, x: Operand, y: Operand) -> Guard:
    x, y = _operand(x), _operand(y)
    sorts = [FACTS[e.head].value if e.sort == "fact" and e.head in FACTS else e.sort for e in (x, y)]
    if sorts[0] != sorts[1] and "fact" not in sorts:
        raise RuleError(
            f"{called(x)} {sign} {called(y)} compares sorts {sorts[0]} and {sorts[1]}; "
            "a size is written num(4), a value real(1.0)"
        )

    def test(env: dict[str, Any]) -> bool:
        for a, b in ((x, y), (y, x)) if sign == "=" else ():
            v = _inner(a)
            if v.head == "var" and v.args[0] not in env:
                env[v.args[0]] = b.value(env)
                return env[v.args[0]] is not None
        left, right = x.value(env), y.value(env)
        return left is not None and right is not None and bool(SIGNS[sign](left, right))

    return Guard((Fact(sign, (x, y)),), test, f"{called(x)} {sign} {called(y)}")


def ne(x: Operand, y: Operand) -> Guard:
    return _compared("!=", x, y)


def lt(x: Operand, y: Operand) -> Guard:
    return _compared("<", x, y)


def le(x: Operand, y: Operand) -> Guard:
    return _compared("<=", x, y)


def near(x: Expr, value: float, tolerance: float) -> Guard:
    """|x - value| < tolerance, for numbers the exporter rounded to the element type."""
    distance = Float("abs", (Float("-", (x, _operand(value))),))
    return replace(lt(distance, tolerance), says=f"{called(x)} within {tolerance:g} of {value:g}")


def num(n: Int | int) -> Expr:
    """The dimension that is the number n."""
    if not isinstance(n, Int | int):
        raise RuleError("num() takes an integer or an integer variable")
    return Dim("DNum", (lift(n, INT),))
