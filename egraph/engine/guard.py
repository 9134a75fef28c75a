"""Side conditions of laws: facts asked of terms, as values. Egglog's text is printed of them last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..errors import RuleError
from ..terms import INT
from ..terms.expression import Dim, Expr, Float, Int, lift

_COMPARISONS = ("=", "!=", "<", "<=")
_SIGNS = ("+", "*", "/", "%")


class Fact(Expr):
    """A function of a term, such as its rank, or something that holds: a relation or a comparison. In guards only."""

    __slots__ = ()

    @property
    def sort(self) -> str:
        return "fact"

    def binds(self) -> frozenset[str]:
        """Variables that it gives a value where nothing else does."""
        if self.head not in _COMPARISONS:
            return self.variables()
        pairs = (self.args, self.args[::-1]) if self.head == "=" else ()
        return frozenset(
            v.args[0] for a, b in pairs
            if (v := _inner(a)).head == "var" and (v is not a or b.head not in ("var", "lit"))
        )  # fmt: skip


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


def relation(
    name: str, *operands: Expr | str | int, test: Callable[[dict[str, Any]], bool], says: str, anchors: bool = False
) -> Guard:  # fmt: skip
    """The guard that a relation holds; `says` has {0}, {1}, ... for its operands."""
    args = tuple(x if isinstance(x, Expr) else Expr("lit", (x,)) for x in operands)
    return Guard((Fact(name, args),), test, says.format(*map(called, args)), anchors)


def called(e: Expr) -> str:
    """An expression as calls: `dim(w, -1)`. Lists and arithmetic, and what holds them, are as egglog has them."""
    if e.head in ("var", "lit"):
        return str(e.args[0])
    parts = [called(a) for a in e.args]
    if not all(p.args and p.head not in _SIGNS for p in e.parts()):
        return f"({' '.join([e.head, *parts])})"
    return parts[0] if e.head == "DNum" else f"{'value' if e.head == 'fval' else e.head}({', '.join(parts)})"


# --------------------------------------------------------------------------------------------------------- comparisons


Operand = Expr | int | float


def _operand(x: Operand) -> Expr:
    return x if isinstance(x, Expr) else Int("lit", (x,)) if isinstance(x, int) else Float("lit", (x,))


def _inner(x: Expr) -> Expr:
    """The number that a dimension is made of; x itself if it is none such."""
    inner: Expr = x.args[0] if x.head == "DNum" else x
    return inner


def eq(x: Operand, y: Operand) -> Guard:
    """x = y. A variable that nothing else binds is bound here."""
    x, y = _operand(x), _operand(y)
    for a, b in ((x, y), (y, x)):
        n = _inner(b)
        if n is not b and n.head == "*" and n.args[0].head == "var" and n.args[1].head == "lit":
            return _eq_multiple(a, n.args[0], n.args[1].args[0])

    def test(env: dict[str, Any]) -> bool:
        for a, b in ((x, y), (y, x)):
            v = _inner(a)
            if v.head == "var" and v.args[0] not in env:
                env[v.args[0]] = b.value(env)
                return env[v.args[0]] is not None
        left, right = x.value(env), y.value(env)
        return left is not None and bool(left == right)

    return Guard((Fact("=", (x, y)),), test, f"{called(x)} = {called(y)}")


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


def _compare(op: str, x: Operand, y: Operand, holds: Callable[[Any, Any], bool]) -> Guard:
    x, y = _operand(x), _operand(y)

    def test(env: dict[str, Any]) -> bool:
        left, right = x.value(env), y.value(env)
        return left is not None and right is not None and holds(left, right)

    return Guard((Fact(op, (x, y)),), test, f"{called(x)} {op} {called(y)}")


def ne(x: Operand, y: Operand) -> Guard:
    return _compare("!=", x, y, lambda a, b: bool(a != b))


def lt(x: Operand, y: Operand) -> Guard:
    return _compare("<", x, y, lambda a, b: bool(a < b))


def le(x: Operand, y: Operand) -> Guard:
    return _compare("<=", x, y, lambda a, b: bool(a <= b))


def near(x: Expr, value: float, tolerance: float) -> Guard:
    """|x - value| < tolerance, for numbers the exporter rounded to the element type."""
    distance = Float("abs", (Float("-", (x, _operand(value))),))
    fact = Fact("<", (distance, _operand(tolerance)))
    says = f"{called(x)} within {tolerance:g} of {value:g}"
    return Guard((fact,), lambda env: abs(x.value(env) - value) < tolerance, says)


def num(n: Int | int) -> Expr:
    """The dimension that is the number n."""
    if not isinstance(n, Int | int):
        raise RuleError("num() takes an integer or an integer variable")
    return Dim("DNum", (lift(n, INT),))


__all__ = ["Fact", "Guard", "Operand", "called", "eq", "le", "lt", "ne", "near", "num", "relation"]
