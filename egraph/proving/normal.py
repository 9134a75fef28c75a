"""Normal forms of elements: two that are equal as a contract promises have one.

`exact`: what IEEE 754 and integers that wrap around keep to the bit: operands of sums and products change places, signs
move through products and quotients, x - y is x + -y. The others compute as the real numbers do: sums of products of
powers, exponentials of sums as products, what does not depend on the index of a sum in front of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from math import isinf, isnan
from typing import Any

from ..terms.dtypes import BFLOAT16, BOOL, FLOAT16, FLOAT32, FLOAT64, INT32, INT64, STRING
from .array import KINDS, of_kind
from .path import Condition, Path, Size, symbols
from .polynomial import Polynomial, symbol
from .value import REDUCTIONS, Value, number

_COMMUTE = frozenset(("add", "multiply", "maximum", "minimum", "equal", "not_equal", "logical_and", "logical_or"))
#: Types, each with those that hold all of its numbers.
_HELD: Mapping[int, tuple[int, ...]] = {
    FLOAT16: (FLOAT32, FLOAT64), BFLOAT16: (FLOAT32, FLOAT64), FLOAT32: (FLOAT64,), INT32: (INT64, FLOAT64),
}  # fmt: skip


def placed(path: Path, v: Value) -> Value:
    """An element of an operand, with what is known of its index."""
    return Value("at", v.args[0], tuple(path.normal(p) for p in v.args[1]))


class Exact:
    """Normal forms of the contract `exact`."""

    def __init__(self, path: Path, known: Mapping[Value, Value]) -> None:
        self.path, self.known = path, known

    def of(self, v: Value) -> Value:
        sign, core = self._signed(v)
        return Value("negative", core) if sign < 0 else core

    def _signed(self, v: Value) -> tuple[int, Value]:
        """(sign, value) of which the sign stands in front."""
        kind, args = v.kind, v.args
        if kind == "at":
            here = placed(self.path, v)
            return self._signed(self.known[here]) if here in self.known else (1, here)
        if kind == "real":
            return self._signed(self.known[v]) if v in self.known else (1, v)
        if kind == "number":
            x = args[0]
            if isinstance(x, bool):
                return 1, v
            return (-1, number(-float(x))) if not isinstance(x, bool) and x < 0 else (1, number(float(x)))
        if kind == "integer":
            p = self.path.normal(args[0])
            return (1, number(float(p.number))) if p.number is not None and p.number >= 0 else (1, Value(kind, p))
        if kind == "negative":
            sign, core = self._signed(args[0])
            return -sign, core
        if kind in ("sin", "tanh", "erf", "cos"):  # odd or even to the bit, in every implementation
            sign, core = self._signed(args[0])
            return (1 if kind == "cos" else sign), Value(kind, core)
        if kind in ("multiply", "divide"):
            return self._product(kind, *map(self._signed, args))
        if kind == "subtract":
            sign, core = self._signed(args[1])
            other = core if sign < 0 else Value("negative", core)
            return 1, self._sorted("add", [self.of(args[0]), other])
        if kind == "cast":
            return self._cast(*args)
        if kind in REDUCTIONS:
            inner = self.of(args[2])
            for name, n in self.path.parts.get(args[1], ((args[1], args[0]),))[::-1]:
                inner = Value(kind, self.path.normal(n), name, inner)
            return 1, inner
        parts = [self.of(a) if isinstance(a, Value) else a for a in args]
        if kind == "add":
            for x, y in (parts, parts[::-1]):
                if y == number(0.0) and self._no_negative(x):
                    return 1, x
        if kind == "where" and parts[0].kind == "number":
            return self._signed(parts[1] if parts[0].args[0] else parts[2])
        if kind == "where" and all(p.kind == "number" and isinstance(p.args[0], bool) for p in parts[1:]):
            truth = parts[0] if parts[1].args[0] else Value("logical_not", parts[0])
            return 1, parts[1] if parts[1].args[0] == parts[2].args[0] else truth
        if kind in ("equal", "not_equal") and parts[1].kind == "number" and isinstance(parts[1].args[0], bool):
            same = parts[1].args[0] == (kind == "equal")
            return self._signed(parts[0] if same else Value("logical_not", parts[0]))
        if kind == "maximum":
            for x, y in (parts, parts[::-1]):
                if y.kind == "number" and not y.args[0] and self._no_negative(x):
                    return 1, x
        if kind in ("logical_and", "logical_or"):
            return 1, self._joined(kind, parts)
        if kind == "logical_not" and parts[0].kind == "logical_not":
            return 1, parts[0].args[0]
        return 1, self._sorted(kind, parts)

    def _product(self, kind: str, a: tuple[int, Value], b: tuple[int, Value]) -> tuple[int, Value]:
        one = number(1.0)
        sign, x, y = a[0] * b[0], a[1], b[1]
        if y == one:
            return sign, x
        if kind == "multiply":
            return sign, y if x == one else self._sorted(kind, [x, y])
        return sign, Value("reciprocal", y) if x == one else Value(kind, x, y)

    def _no_negative(self, v: Value) -> bool:
        """Whether it is not below 0, and no -0."""
        if (v.kind == "multiply" and v.args[0] == v.args[1]) or v.kind in ("exp", "absolute"):
            return True
        if v.kind in (*REDUCTIONS, "cast"):
            return self._no_negative(v.args[2])
        if v.kind in ("sqrt", "divide"):
            return self._no_negative(v.args[0])
        return v.kind == "at" and self.path.known(Condition(self.path, "opaque", ("zero or more", v.args[0]))) is True

    @staticmethod
    def _sorted(kind: str, parts: list[Any]) -> Value:
        return Value(kind, *(sorted(parts, key=repr) if kind in _COMMUTE else parts))

    @staticmethod
    def _joined(kind: str, parts: list[Value]) -> Value:
        """A conjunction or disjunction, without what changes nothing."""
        idle = float(kind == "logical_and")
        left = [p for p in parts if p != number(idle)]
        return Exact._sorted(kind, left) if len(left) > 1 else left[0] if left else number(idle)

    def _cast(self, to: Polynomial, before: Polynomial, v: Value) -> tuple[int, Value]:
        to, before = self.path.normal(to), self.path.normal(before)
        sign, core = self._signed(v)
        if to == before:
            return sign, core
        while core.kind == "cast" and core.args[1].number in _HELD and before.number in _HELD[core.args[1].number]:
            if sign < 0:
                break
            before, core = core.args[1], core.args[2]  # what was widened is as it was
        while core.kind == "cast" and core.args[1].number == BOOL and before.number != STRING:
            if Size(self.path, before) == STRING:
                break
            before, core = core.args[1], core.args[2]  # a truth is one as any number
        if to == before:
            return sign, core
        if core.kind == "number" and sign > 0 and core.args[0] in (0.0, 1.0):
            return 1, number(bool(core.args[0])) if to.number == BOOL else core
        if to.number == BOOL and self.path.known(Condition(self.path, "opaque", ("nonzero", core))):
            return 1, number(True)
        if core.kind == "where" and sign > 0:
            c, a, b = core.args
            return self._signed(Value("where", c, *(Value("cast", to, before, x) for x in (a, b))))
        floats = all(of_kind(Size(self.path, p), KINDS["f"]) for p in (to, before)) if sign < 0 else True
        whole = Value("cast", to, before, core if floats else Value("negative", core))
        return (sign if floats else 1), whole


#: Irrational numbers of formulas, each with what it is the root of.
_ROOTS = (
    (math.sqrt(2), (((), Fraction(2)),)), (math.sqrt(2 / math.pi), ((((("2/pi",), 1),), Fraction(1)),)),
)  # fmt: skip
Sum = dict[tuple[tuple[Any, int], ...], Fraction]  # products of powers of generators, with their multiples


class Field:
    """Normal forms of the other contracts: polynomials in generators that may stand in a denominator."""

    def __init__(self, path: Path, known: Mapping[Value, Value]) -> None:
        self.path, self.known = path, known

    def of(self, v: Value) -> tuple[Any, ...]:
        return _frozen(self.sum(v))

    def sum(self, v: Value) -> Sum:
        kind, args = v.kind, v.args
        if kind == "at":
            here = placed(self.path, v)
            return self.sum(self.known[here]) if here in self.known else _power(here)
        if kind == "real":
            return self.sum(self.known[v]) if v in self.known else _power(v)
        if kind == "number":
            return _constant(args[0])
        if kind == "integer":
            return self._sizes(args[0])
        if kind == "cast":
            return self._cast(self.path.normal(args[0]), self.path.normal(args[1]), args[2])
        if kind in REDUCTIONS:
            total = self.sum(args[2])
            for name, n in self.path.parts.get(args[1], ((args[1], args[0]),))[::-1]:
                total = self._over(kind, self.path.normal(n), name, total)
            return total
        if kind == "where":
            return self._chosen(self._truth(args[0]), *map(self.sum, args[1:]))
        parts = [self.sum(a) for a in args]
        made = getattr(self, f"_{kind}", None)
        return made(*parts) if made is not None else self._opaque(kind, parts)

    def _cast(self, to: Polynomial, before: Polynomial, v: Value) -> Sum:
        """What becomes a float keeps its value, as does a truth; a whole number does as an integer."""
        if to.number == BOOL and v.kind == "cast" and self.path.normal(v.args[1]).number == BOOL:
            return self.sum(v.args[2])
        inner = self._truth(v) if before.number == BOOL else self.sum(v)
        whole = inner.keys() <= {()} and inner.get((), Fraction(0)).denominator == 1
        if to.number != BOOL and (whole or before.number == BOOL or of_kind(Size(self.path, to), KINDS["f"])):
            return inner
        return _power(("cast", to, before, _frozen(inner)))

    def _truth(self, v: Value) -> Sum:
        """A truth as 0 or 1: its square is itself."""
        if v.kind in ("equal", "not_equal") and v.args[1].kind == "number" and isinstance(v.args[1].args[0], bool):
            same = v.args[1].args[0] == (v.kind == "equal")
            return self._truth(v.args[0]) if same else self._not(self._truth(v.args[0]))
        if v.kind == "logical_not":
            return self._not(self._truth(v.args[0]))
        if v.kind == "number":
            return _constant(bool(v.args[0]))
        return _power(("truth", self.of(v)))

    @staticmethod
    def _not(a: Sum) -> Sum:
        return _added(_constant(1), _times(a, Fraction(-1)))

    def _opaque(self, kind: str, parts: list[Sum]) -> Sum:
        frozen = [_frozen(p) for p in parts]
        return _power((kind, *(sorted(frozen, key=repr) if kind in _COMMUTE else frozen)))

    def _sizes(self, p: Polynomial) -> Sum:
        total: Sum = {}
        for m, k in self.path.normal(p).terms.items():
            product = _constant(k)
            for s in m:
                product = self._multiply(product, _power(("size", s)))
            total = _added(total, product)
        return total

    def _add(self, a: Sum, b: Sum) -> Sum:
        """A number beside -inf is nothing, and what is added to a choice is added to both."""
        for x, y in ((a, b), (b, a)):
            if x == _LOWEST:
                return x
            if (choice := _choice(x)) is not None and not _choice(y):
                c, p, q = choice
                return self._chosen(c, self._add(p, y), self._add(q, y))
        return _added(a, b)

    def _subtract(self, a: Sum, b: Sum) -> Sum:
        return self._add(a, _times(b, Fraction(-1)))

    def _negative(self, a: Sum) -> Sum:
        return _times(a, Fraction(-1))

    def _multiply(self, a: Sum, b: Sum) -> Sum:
        total: Sum = {}
        for m, k in a.items():
            for n, j in b.items():
                total = _added(total, self._powers({**dict(m)}, dict(n), k * j))
        return total

    def _powers(self, powers: dict[Any, int], more: dict[Any, int], k: Fraction) -> Sum:
        """A product of powers; the square of a root is what it is the root of."""
        for g, e in more.items():
            powers[g] = powers.get(g, 0) + e
        extra: Sum = {(): k}
        for g, e in list(powers.items()):
            if isinstance(g, tuple) and g[0] == "truth" and e > 0:
                powers[g] = 1
            if isinstance(g, tuple) and g[0] == "root" and abs(e) > 1:
                inner = dict(g[1])
                by = inner if e > 0 else self._reciprocal(inner)
                for _ in range(abs(e) // 2):
                    extra = self._multiply(extra, by)
                powers[g] = (abs(e) % 2) * (1 if e > 0 else -1)
        rest = tuple(sorted(((g, e) for g, e in powers.items() if e), key=repr))
        if extra == {(): k}:
            return {rest: k}
        return self._multiply({rest: Fraction(1)}, extra)

    def _reciprocal(self, a: Sum) -> Sum:
        if len(a) == 1:
            [(m, k)] = a.items()
            return {tuple((g, -e) for g, e in m): 1 / k}
        if not a:
            return _power(("over zero",))
        lead = a[min(a, key=repr)]
        return _times(_power(("one over", _frozen(_times(a, 1 / lead)))), 1 / lead)

    def _divide(self, a: Sum, b: Sum) -> Sum:
        return self._multiply(a, self._reciprocal(b))

    def _sqrt(self, a: Sum) -> Sum:
        [(m, k)] = a.items() if len(a) == 1 else [((), Fraction(0))]
        if k == 1 and len(m) == 1 and m[0][1] == -1:  # of 1/g, that of g
            return self._reciprocal(self._sqrt(_power(m[0][0])))
        return a if a == {(): Fraction(1)} else _power(("root", _frozen(a)))

    def _square(self, a: Sum) -> Sum:
        return self._multiply(a, a)

    def _power(self, a: Sum, b: Sum) -> Sum:
        if b.keys() <= {()}:
            e = b.get((), Fraction(0))
            if e.denominator == 1 and 0 <= e <= 4:
                whole: Sum = {(): Fraction(1)}
                for _ in range(int(e)):
                    whole = self._multiply(whole, a)
                return whole
            if e == Fraction(1, 2):
                return self._sqrt(a)
            if e == Fraction(-1, 2):
                return self._reciprocal(self._sqrt(a))
        return self._opaque("power", [a, b])

    _float_power = _power

    def _exp(self, a: Sum) -> Sum:
        if a == _LOWEST:
            return {}
        if (choice := _choice(a)) is not None:
            return self._chosen(choice[0], self._exp(choice[1]), self._exp(choice[2]))
        whole: Sum = {(): Fraction(1)}
        for m, k in a.items():
            unit = _power(("exp", _frozen({m: Fraction(1)} if k.denominator == 1 else {m: abs(k)})))
            times = k.numerator if k.denominator == 1 else (1 if k > 0 else -1)
            whole = self._multiply(whole, {tuple((g, e * times) for g, e in next(iter(unit))): Fraction(1)})
        return whole

    def _odd(self, kind: str, a: Sum) -> Sum:
        if a and a[min(a, key=repr)] < 0:
            return _times(self._opaque(kind, [_times(a, Fraction(-1))]), Fraction(-1))
        return self._opaque(kind, [a]) if a else {}

    def _tanh(self, a: Sum) -> Sum:
        return self._odd("tanh", a)

    def _erf(self, a: Sum) -> Sum:
        return self._odd("erf", a)

    def _sin(self, a: Sum) -> Sum:
        return self._odd("sin", a)

    def _cos(self, a: Sum) -> Sum:
        even = a and a[min(a, key=repr)] < 0
        return self._opaque("cos", [_times(a, Fraction(-1)) if even else a])

    def _chosen(self, c: Sum, a: Sum, b: Sum) -> Sum:
        """c*a + (1-c)*b, but of infinities, of which 0 times makes NaN."""
        if c.keys() <= {()}:
            return a if c else b
        if a == b:
            return a
        if any(isinstance(g, tuple) and g[0] == "far" for part in (a, b) for m in part for g, _ in m):
            return self._opaque("where", [c, a, b])
        return _added(self._multiply(c, a), self._multiply(self._not(c), b))

    def _over(self, kind: str, n: Polynomial, name: str, body: Sum) -> Sum:
        """A sum over an index, with what does not depend on it in front."""
        if kind != "sum":
            return _power((kind, n, name, _frozen(body)))
        total: Sum = {}
        for m, k in body.items():
            inside = tuple((g, e) for g, e in m if self._depends(g, name))
            outside = tuple((g, e) for g, e in m if not self._depends(g, name))
            over = _power(self._named("sum", n, name, inside)) if inside else self._sizes(n)
            total = _added(total, self._multiply({outside: k}, over))
        return total

    def _named(self, kind: str, n: Polynomial, name: str, inside: Any) -> tuple[Any, ...]:
        """A sum, whose index is named by how many sums are inside, unless other symbols are made of it."""
        if any(self.path.depends(Polynomial({(s,): 1}), name) and s != name for s in symbols((inside, n))):
            return (kind, n, name, inside)
        by = f"{kind} of height {_height(inside)}"
        return (kind, n, by, _renamed(inside, {name: symbol(by)}))

    def _depends(self, g: Any, name: str) -> bool:
        if isinstance(g, Polynomial):
            return self.path.depends(g, name)
        if isinstance(g, Value):
            return any(self._depends(a, name) for a in g.args)
        if isinstance(g, tuple):
            if g and g[0] in REDUCTIONS and len(g) == 4 and g[2] == name:
                return False  # its own index of that name
            if g[:1] == ("size",):
                return self.path.depends(Polynomial({(g[1],): 1}), name)
            return any(self._depends(a, name) for a in g)
        return False


def _height(g: Any) -> int:
    """How many sums stand in one another."""
    if isinstance(g, Value):
        return max(map(_height, g.args), default=0)
    if not isinstance(g, tuple):
        return 0
    return max(map(_height, g), default=0) + (len(g) == 4 and g[0] in REDUCTIONS)


def _renamed(g: Any, names: Mapping[str, Polynomial]) -> Any:
    if isinstance(g, Polynomial):
        return g.put(names)
    if isinstance(g, Value):
        return Value(g.kind, *(_renamed(a, names) for a in g.args))
    return tuple(_renamed(a, names) for a in g) if isinstance(g, tuple) else g


def _choice(a: Sum) -> tuple[Sum, Sum, Sum] | None:
    """Condition and both values of a sum that is nothing but one choice."""
    [(m, k)] = a.items() if len(a) == 1 else [((), Fraction(0))]
    g = m[0][0] if k == 1 and len(m) == 1 and m[0][1] == 1 else ()
    return (dict(g[1]), dict(g[2]), dict(g[3])) if isinstance(g, tuple) and g[:1] == ("where",) else None


def _constant(value: Any) -> Sum:
    """A number; of the roots in formulas, the root that it is as near to as its type has one."""
    x = float(value)
    if isinf(x) or isnan(x):
        return _power(("far", repr(x)))
    for root, base in _ROOTS:
        times = Fraction(x / root).limit_denominator(16)
        if times and abs(float(times) * root / x - 1) < 1e-14:
            return {((("root", base), 1),): times}
    return {(): Fraction(x)} if x else {}


def _power(g: Any) -> Sum:
    return {((g, 1),): Fraction(1)}


#: -inf, which hides a score.
_LOWEST: Sum = _power(("far", "-inf"))


def _frozen(a: Sum) -> tuple[Any, ...]:
    return tuple(sorted(a.items(), key=repr))


def _added(a: Sum, b: Sum) -> Sum:
    total = dict(a)
    for m, k in b.items():
        total[m] = total.get(m, Fraction(0)) + k
        if not total[m]:
            del total[m]
    return total


def _times(a: Sum, k: Fraction) -> Sum:
    return {m: v * k for m, v in a.items()} if k else {}
