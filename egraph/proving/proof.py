"""A rule proved for every size: both sides are computed on symbols, along every path, and are one normal form."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ..engine.fact import FACTS
from ..engine.rule import Rule, Sides
from ..terms import FLOAT, INT, INTS, LIST, TENSOR, IllFormed
from ..terms.dtypes import BOOL
from ..terms.expression import Expr
from .array import KINDS, Real, SymbolicArray, of_kind
from .meaning import applied, element
from .normal import Exact, Field, placed
from .path import Condition, NoCase, Path, Size, Unproved
from .polynomial import Polynomial, constant
from .value import Value, number

#: Axes of an operand, lengths of a list and of a vector of numbers, up to which a rule is proved.
RANK, LIST_LENGTH, VECTOR_LENGTH = 5, 3, 6
#: Operands that may be absent.
_OPTIONAL = frozenset(("mask", "b", "bias", "q_weight", "k_weight"))
#: Facts that say nothing of values: what a target runs, what is stored, which symbol stands for a size.
_SILENT = frozenset(("supported", "sized", "const", "weights-of", "biases-of"))


class Absent(IllFormed):
    """A guard asks for what is not there."""


@dataclass(frozen=True)
class Proof:
    """`verdict` is "proved", "unproved" or "vacuous" (no case within the bounds); `why` names what is not shown."""

    verdict: str
    why: str = ""
    cases: int = 0  # in which both sides were compared
    seconds: float = 0.0


class Variable(SymbolicArray):
    """An operand: any tensor. Its rank is decided when it is asked for."""

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(path, (), lambda index: Value("at", name, index), path.integer(f"type of {name}"))
        self.name = name
        self._ranked = False

    @property
    def shape(self) -> tuple[Size, ...]:
        if not self._ranked:
            self._ranked = True
            rank = self.path.choose(RANK + 1)
            self._shape = tuple(self.path.size(f"{self.name}.{k}") for k in range(rank))
        return self._shape

    def of_rank(self, rank: int) -> bool:
        if not self._ranked and not self.path.proving and rank <= RANK:
            self._ranked = True  # on the left, paths of other ranks would end here
            self._shape = tuple(self.path.size(f"{self.name}.{k}") for k in range(rank))
        return self.ndim == rank


class Case:
    """One path of one reading: the operands, what guards say of them, and both sides."""

    def __init__(self, rule: Rule, sides: Sides, path: Path) -> None:
        self.rule, self.sides, self.path = rule, sides, path
        self.bound: dict[str, Any] = {}
        self._seen: dict[Any, Any] = {}
        self._compared = 0
        terms = [(t.op, t.args) for t in sides.lhs.subterms() if t.op is not None]
        operands = [(name, a) for op, args in terms for (name, _), a in zip(op.operands, args, strict=True)]
        self._optional = {a.args[0] for name, a in operands if name in _OPTIONAL and a.head == "var"}

    # ------------------------------------------------------------------------------------------------ operands

    def variable(self, name: str, sort: str) -> Any:
        """An operand that no guard has bound: anything of its sort."""
        if name not in self.bound:
            self.bound[name] = self._anything(name, sort)
        return self.bound[name]

    def _anything(self, name: str, sort: str) -> Any:
        path = self.path
        if sort == TENSOR:
            return None if name in self._optional and path.choose(2) else Variable(path, name)
        if sort == LIST:
            return [Variable(path, f"{name}{k}") for k in range(path.choose(LIST_LENGTH + 1))]
        if sort == INT:
            return path.integer(name)
        if sort == INTS:
            return tuple(path.integer(f"{name}{k}") for k in range(1 + path.choose(VECTOR_LENGTH)))
        if sort == FLOAT:
            return Real(path, Value("real", name))
        raise Unproved(f"an operand of sort {sort}")

    def value(self, e: Expr) -> Any:
        if e.head == "lit":
            return e.args[0]  # 0 and 0.0 are one key
        key = e.key()
        if key not in self._seen:
            self._seen[key] = self._computed(e)
        return self._seen[key]

    def _computed(self, e: Expr) -> Any:
        if e.head == "var":
            return self.variable(e.args[0], e.sort)
        args = [self.value(a) for a in e.args]
        if e.op is not None:
            return applied(self.path, e.op, args)
        known = _FUNCTIONS.get(e.head)
        if known is None:
            raise Unproved(f"{e.head} cannot be asked of symbols")
        if args[0] is None:
            raise Absent(f"{e.head} of an absent operand")
        return known(*args)

    def __str__(self) -> str:
        said = ((k, list(v.shape) if isinstance(v, SymbolicArray) else f" = {v}") for k, v in self.bound.items())
        return ", ".join(f"{k}{v}" for k, v in said)

    # -------------------------------------------------------------------------------------------------- guards

    def assume(self, fact: Expr) -> None:
        """Take a fact for granted. Raises IllFormed where it does not hold on this path."""
        if fact.head in _SILENT or any(p.head == "DSym" for p in fact.parts()):
            return
        if fact.head == "=":
            self._equal(*fact.args)
        elif fact.head in _SIGNS:
            a, b = (self.value(x) for x in fact.args)
            if any(isinstance(x, Real) for x in (a, b)):
                self._real(fact.head, a, b)
            elif not _SIGNS[fact.head](a, b):
                raise Absent(f"not {fact.head}")
        elif fact.head in _WITNESSES:
            _WITNESSES[fact.head](self, *(self.value(a) for a in fact.args))
        else:
            holds = FACTS[fact.head].holds if fact.head in FACTS else None
            if holds is None:
                raise Unproved(f"the fact {fact.head} is not known on symbols")
            try:
                true = holds(*(self.value(a) for a in fact.args))
            except IndexError:
                true = False
            except (TypeError, AttributeError) as error:
                raise Unproved(f"the fact {fact.head} cannot be asked of symbols: {error}") from error
            if not true:
                raise Absent(f"not {fact.head}")

    def _equal(self, a: Expr, b: Expr) -> None:
        for x, y in ((a, b), (b, a)):
            inner = x.args[0] if x.head == "DNum" else x
            if inner.head == "var" and inner.args[0] not in self.bound:
                self.bound[inner.args[0]] = self.value(y)
                return
        if a.head == "rank" and b.head == "lit" and isinstance(x := self.value(a.args[0]), SymbolicArray):
            if not x.of_rank(b.args[0]):
                raise Absent("another rank")
            return
        x, y = self.value(a), self.value(b)
        if any(isinstance(v, Real) for v in (x, y)):
            self._real("=", x, y)
        elif isinstance(x, tuple) and isinstance(y, tuple):
            if len(x) != len(y) or not all(i == j for i, j in zip(x, y, strict=True)):
                raise Absent("other sizes")
        elif x != y:
            raise Absent("not equal")

    def _real(self, sign: str, a: Any, b: Any) -> None:
        """What a guard says of a number: its value, or no more than that it holds."""
        values = [x.value if isinstance(x, Real) else number(float(x)) for x in (a, b)]
        if sign != "=":
            if sign == "<" and values[0].kind == "absolute" and values[0].args[0].kind == "subtract":
                values = list(values[0].args[0].args)  # near a number is that number
                if values[0].kind == "multiply":
                    factors = values[0].args if values[0].args[0].kind == "real" else values[0].args[::-1]
                    values = [factors[0], Value("divide", values[1], factors[1])]
            else:
                self.path.assume(Condition(self.path, "opaque", (sign, *values)))
                if sign == "!=" and values[1] == number(0.0):
                    self.path.assume(Condition(self.path, "opaque", ("nonzero", values[0])))
                return
        for x, y in (values, values[::-1]):
            if x.kind in ("at", "real") and x not in self.path.held:
                self.path.held[x] = y
                return
        self.path.assume(Condition(self.path, "opaque", ("=", *values)))

    # ------------------------------------------------------------------------------------------------ the sides

    def compare(self) -> None:
        """Both sides. Raises IllFormed where the left one does not exist here, Unproved where they may differ."""
        for g in self.sides.when:
            for fact in g.facts:
                self.assume(fact)
        left = self.value(self.sides.lhs)
        given = [(self.value(a), b) for a, b in self.sides.states]
        self.path.proving = True
        try:
            right = self.value(self.sides.rhs)
            others = [(a, self.value(b)) for a, b in given]
        except IllFormed as error:
            raise Unproved(f"the right side cannot be computed: {error}") from error
        for a, b in ((left, right), *others):
            self._same(a, b)

    def _same(self, a: Any, b: Any) -> None:
        if isinstance(a, list):
            if len(a) != len(b):
                raise Unproved("lists of other lengths")
            for x, y in zip(a, b, strict=True):
                self._same(x, y)
            return
        if not isinstance(a, SymbolicArray):
            if a != b:
                raise Unproved(f"{a} and {b}")
            return
        if a.ndim != b.ndim:
            raise Unproved(f"ranks {a.ndim} and {b.ndim}")
        for k in range(a.ndim):
            self._until(lambda k=k: a.sizes[k] == b.sizes[k] or self.path.same(a.sizes[k], b.sizes[k]),  # type: ignore[misc]
                        lambda k=k: f"size {k}: {a.sizes[k]} and {b.sizes[k]}")  # type: ignore[misc]  # fmt: skip
        if a.code is None or b.code is None or not self.path.same(a.code.value, b.code.value):
            raise Unproved(f"element types {a.code} and {b.code}")
        self._compared += 1  # what is decided of one index says nothing of another tensor's
        index = tuple(self.path.index(f"i{self._compared}.{k}", size) for k, size in enumerate(a.sizes))
        x = a.at(index)
        try:
            y = b.at(index)
        except IllFormed as error:
            raise Unproved(f"an element of the right side cannot be computed: {error}") from error
        form: Any = Exact if self.rule.contract == "exact" else Field

        def agree() -> bool:
            held = {placed(self.path, k) if k.kind == "at" else k: v for k, v in self.path.held.items()}
            normal = form(self.path, held)
            return bool(normal.of(x) == normal.of(y))

        self._until(agree, lambda: f"{x} and {y}")

    def _until(self, agree: Callable[[], bool], told: Callable[[], str]) -> None:
        """That two agree, in each case of what is not decided of sizes that are broadcast."""
        while not agree():
            if not self.path.refine():
                raise Unproved(told())


def _is(x: SymbolicArray, kind: str) -> bool:
    """Whether the elements of an operand are of numpy's kind of that letter."""
    assert x.code is not None
    return of_kind(x.code, KINDS[kind])


def _alone(x: SymbolicArray) -> None:
    if any(s != 1 for s in x.shape):
        raise Absent("several elements")


def _sized(x: Any, axis: Any) -> Size:
    return x.shape[x.path.axis(axis, x.ndim)]  # type: ignore[no-any-return]


def _element(x: SymbolicArray, k: Any) -> Size:
    if x.ndim > 1 or not _is(x, "i"):
        raise Absent("no integer vector")
    if x.ndim and not x.shape[0] > k:
        raise Absent(f"no element {k}")
    return element(x, k)


def _length(x: SymbolicArray) -> Size:
    if x.ndim > 1 or not _is(x, "i"):
        raise Absent("no integer vector")
    return x.size


def _one_number(x: SymbolicArray) -> Real:
    _alone(x)
    if not _is(x, "f"):
        raise Absent("no floating number")
    return Real(x.path, x.at((constant(0),) * x.ndim))


def _filled(x: Variable) -> Real:
    """The number that every element of x is."""
    if not _is(x, "f"):
        raise Absent("no floating numbers")
    held = Value("at", f"each of {x.name}", ())
    x.at = lambda index: held
    return Real(x.path, held)


def _tuple_at(v: Any, k: Any) -> Any:
    place = operator.index(k)
    if not -len(v) <= place < len(v):
        raise Absent(f"no element {place}")
    return v[place]


_FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "+": operator.add, "-": operator.sub, "*": operator.mul, "%": operator.mod, "DNum": lambda n: n,
    "/": lambda a, b: a / b if isinstance(a, Real | float) or isinstance(b, Real | float) else a // b,
    "abs": lambda a: Real(a.path, Value("absolute", a.value)) if isinstance(a, Real) else abs(a),
    "to-f64": lambda n: Real(n.path, Value("integer", n.value)) if isinstance(n, Size) else float(n),
    "min": lambda a, b: a if a <= b else b, "max": lambda a, b: a if a >= b else b,
    "vec-of": lambda *a: tuple(a), "vec-empty": lambda: (), "vec-get": _tuple_at, "vec-length": len,
    "rank": lambda x: x.ndim, "axes": lambda x: x.ndim, "dtype": lambda x: x.code, "len": _length,
    "fval": _one_number, "filled": _filled, "dim": _sized, "elem": _element, "sizes": lambda x: x.shape,
    "item-of": lambda xs, k: xs[operator.index(k)],
})  # fmt: skip
_SIGNS: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType({
    "<": operator.lt, "<=": operator.le, "!=": operator.ne,
})  # fmt: skip


# ---------------------------------------------------------------------------------------------- facts of all elements


def _pairs_alike(case: Case, x: Variable, pairs: Any, sign: Any) -> None:
    """x is pairs of a tensor and itself, the first of each with a sign."""
    half = case.path.size(f"pairs of {x.name}")
    if not x.ndim or x.shape[-1] != half * 2:
        raise Absent("no pairs")
    before = x.at
    interleaved, negated = pairs != 0, sign < 0

    def at(index: tuple[Polynomial, ...]) -> Value:
        if interleaved:
            place, odd = case.path.divided(index[-1], constant(2))
            first = Size(case.path, odd) == 0
            own = place * constant(2) + constant(1)
        else:
            first = Size(case.path, index[-1]) < half
            own = index[-1] + half.value if first else index[-1]
        value = before((*index[:-1], case.path.normal(own)))
        return Value("negative", value) if first and negated else value

    x.at = at


def _counted(case: Case, x: Variable, start: Any, end: Any, step: Any) -> None:
    """x is start, start + step, ... below end."""
    if x.ndim != 1 or start < 0 or step < 1 or (x.shape[0] - 1) * step + start + 1 != end or x.shape[0] < 2:
        raise Absent("no range")
    first, by = (case.path.number(0) + n for n in (start, step))
    x.largest = first + by * (x.shape[0] - 1)
    x.at = lambda index: Value("integer", case.path.normal(first.value + by.value * index[0]))


def _truth(word: bool) -> Callable[[Case, Variable], None]:
    def assume(case: Case, x: Variable) -> None:
        if x.code != BOOL:
            raise Absent("no truths")
        x.at = lambda index: number(word)

    return assume


_WITNESSES: Mapping[str, Callable[..., None]] = MappingProxyType({
    "doubled": _pairs_alike, "irange": _counted, "all-true": _truth(True), "all-false": _truth(False),
    "lowest": lambda case, x: _hides(x), "never": lambda case, x: _hides(x),
    "zero-or-more": lambda case, x: _no_negative(x), "zero-or-one": lambda case, x: _zero_or_one(x),
    "floating": lambda case, code: _holds(of_kind(code, KINDS["f"])),
})  # fmt: skip


def _hides(x: Variable) -> None:
    """x is so low a number that it is -inf beside others."""
    _alone(x)
    if not _is(x, "f"):
        raise Absent("no floating number")
    x.at = lambda index: number(-math.inf)


def _no_negative(x: Variable) -> None:
    if not _is(x, "f"):
        raise Absent("no floats")
    x.path.assume(Condition(x.path, "opaque", ("zero or more", x.name)))


def _zero_or_one(x: Variable) -> None:
    """x is truths as numbers."""
    name, path, code = f"truth of {x.name}", x.path, x.code
    assert code is not None
    x.at = lambda index: Value("cast", path.normal(code.value), constant(BOOL), Value("at", name, index))


def _holds(true: bool) -> None:
    if not true:
        raise Absent("another element type")


# ---------------------------------------------------------------------------------------------------------- the search


def cases(rule: Rule, sides: Sides, deadline: float) -> Iterator[str]:
    """For each path on which both sides exist "", or why they are not shown to be equal there."""
    waiting: list[list[tuple[int, bool]]] = [[]]
    answers: dict[Any, bool] = {}
    while waiting:
        if time.monotonic() > deadline:
            yield "time is up"
            return
        path = Path(waiting.pop(), deadline, answers)
        try:
            case = Case(rule, sides, path)
            case.compare()
            found: str | None = ""
        except (IllFormed, NoCase):
            found = None
        except RecursionError:
            found = "too deep"
        except Unproved as error:
            found = f"{error}   [{case}]" if path.possible() else None
        waiting += path.others
        if found is not None:
            yield found


def prove(rule: Rule, seconds: float = 60) -> Proof:
    """Whether the sides of a rule are equal for all operands up to the bounds above, whatever their sizes."""
    begin, count = time.monotonic(), 0
    for number_, sides in enumerate(rule.sides):
        for problem in cases(rule, sides, begin + seconds):
            if problem:
                return Proof("unproved", f"reading {number_}: {problem}", count, time.monotonic() - begin)
            count += 1
    return Proof("proved" if count else "vacuous", "", count, time.monotonic() - begin)
