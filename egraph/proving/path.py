"""One path through a computation on symbols: what is decided on the way, and what that says of sizes and indices.

Code that computes on numbers runs on symbols as it is. Where it asks for what is not known, whether one size is another
or how many axes a tensor has, the path takes one answer and assumes it, and the others are left for paths of their own
(symbolic execution; King, CACM 1976). All of them together are every case there is.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import RuleError
from ..terms import IllFormed
from .polynomial import Monomial, Polynomial, constant, symbol, without
from .value import Value

#: Steps of the solver for one question: of steps, unlike of time, an answer depends on nothing else.
PATIENCE = 200_000
#: Integers among which one that Python needs is searched, such as the axis of a slice or an element type.
WINDOW = range(-8, 24)
#: Assumptions after which a path is given up.
LONGEST = 2000


#: p >= 0 ("least") or p = 0 ("zero"), or the contrary.
Fact = tuple[str, Polynomial, bool]


def solver_package() -> Any:
    """z3. Raises RuleError where it is not installed."""
    try:
        import z3
    except ImportError as error:
        raise RuleError("proofs need the solver z3: pip install 'onnx-egraph[prove]'") from error
    return z3


class Unproved(Exception):
    """What is asked cannot be told."""


class Impossible(IllFormed):
    """No operator takes its operands so."""


class NoCase(Exception):
    """What the path assumes contradicts itself: there is no such case."""


@dataclass(frozen=True, slots=True)
class Condition:
    """p >= 0, p = 0 or an opaque truth, or the contrary. As a boolean it is decided."""

    path: Path
    kind: str  # "least", "zero" or "opaque"
    of: Any  # a polynomial, or what tells an opaque truth from others
    holds: bool = True

    def __invert__(self) -> Condition:
        return Condition(self.path, self.kind, self.of, not self.holds)

    def __bool__(self) -> bool:
        return self.path.decide(self)

    def __index__(self) -> int:
        return int(bool(self))


class Size:
    """An integer that may not be known: a size, an index, an attribute."""

    __slots__ = ("path", "value")
    __hash__ = None  # type: ignore[assignment]  # equal ones may not be known to be equal

    def __init__(self, path: Path, value: Polynomial) -> None:
        self.path, self.value = path, path.normal(value)

    def _of(self, other: Any) -> Polynomial | None:
        if isinstance(other, Size):
            return other.value
        return constant(int(other)) if isinstance(other, int) or hasattr(other, "__index__") else None

    def _combined(self, other: Any, f: Callable[[Polynomial, Polynomial], Polynomial]) -> Any:
        p = self._of(other)
        return NotImplemented if p is None else Size(self.path, f(self.path.normal(self.value), self.path.normal(p)))

    def __add__(self, other: Any) -> Any:
        return self._combined(other, lambda a, b: a + b)

    def __sub__(self, other: Any) -> Any:
        return self._combined(other, lambda a, b: a - b)

    def __rsub__(self, other: Any) -> Any:
        return self._combined(other, lambda a, b: b - a)

    def __mul__(self, other: Any) -> Any:
        return self._combined(other, lambda a, b: a * b)

    def __floordiv__(self, other: Any) -> Any:
        return self._combined(other, lambda a, b: self.path.divided(a, b)[0])

    def __mod__(self, other: Any) -> Any:
        return self._combined(other, lambda a, b: self.path.divided(a, b)[1])

    def __neg__(self) -> Size:
        return Size(self.path, -self.value)

    __radd__, __rmul__ = __add__, __mul__

    def _asked(self, other: Any, kind: str, f: Callable[[Polynomial, Polynomial], Polynomial]) -> Any:
        p = self._of(other)
        return NotImplemented if p is None else Condition(self.path, kind, f(self.value, p))

    def __eq__(self, other: object) -> Any:
        return self._asked(other, "zero", lambda a, b: a - b)

    def __ne__(self, other: object) -> Any:
        asked = self._asked(other, "zero", lambda a, b: a - b)
        return asked if asked is NotImplemented else ~asked

    def __le__(self, other: Any) -> Any:
        return self._asked(other, "least", lambda a, b: b - a)

    def __lt__(self, other: Any) -> Any:
        return self._asked(other, "least", lambda a, b: b - a - constant(1))

    def __ge__(self, other: Any) -> Any:
        return self._asked(other, "least", lambda a, b: a - b)

    def __gt__(self, other: Any) -> Any:
        return self._asked(other, "least", lambda a, b: a - b - constant(1))

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __index__(self) -> int:
        """The number it is, one path for each. Raises Unproved where it may be any."""
        known = self.path.normal(self.value).number
        if known is not None:
            return known
        for k in WINDOW:
            if self == k:
                return k
        raise Unproved(f"{self.value} may be any number")

    __int__ = __index__

    def __repr__(self) -> str:
        return str(self.path.normal(self.value))


def symbols(key: Any) -> Iterable[str]:
    """Every symbol in what tells a symbol from others."""
    if isinstance(key, Polynomial):
        yield from key.symbols
    elif isinstance(key, tuple):
        for part in key:
            yield from symbols(part)
    elif hasattr(key, "args"):
        yield from symbols(key.args)


class Path:
    """`decisions` are those to begin with; `others` are prefixes of the paths that are left, once this one is done.

    A decision is what was answered, and whether that was a choice; what is known is noted, too, as asking takes time.
    """

    def __init__(
        self, decisions: Sequence[tuple[int, bool]] = (), deadline: float = math.inf,
        answers: dict[Any, bool] | None = None,
    ) -> None:  # fmt: skip
        self.answers = {} if answers is None else answers  # of the solver, shared by the paths of a rule
        self.deadline = deadline  # of the monotonic clock
        self.decisions, self.others = list(decisions), list[list[tuple[int, bool]]]()
        self.proving = False  # whether the left side exists, so that the right one must
        self._taken = 0
        self._values: dict[str, Polynomial] = {}  # symbols that others stand for
        self._products: list[tuple[Monomial, Polynomial]] = []  # products that others stand for
        self._least: dict[str, int] = {}
        self._below: dict[str, Polynomial] = {}
        self._projections: dict[str, tuple[Polynomial, Polynomial, Polynomial]] = {}
        self._joined: dict[frozenset[Polynomial], str] = {}
        self._truths: dict[Any, bool] = {}
        self.held: dict[Value, Value] = {}  # what elements are, where guards tell
        self._assumed: list[Fact] = []
        self._named: dict[Any, Polynomial] = {}
        self._same_named: list[tuple[Polynomial, Polynomial]] = []
        self._made_of: dict[str, frozenset[str]] = {}
        self._depth = 0
        self._bound: set[str] = set()  # indices of sums, of which nothing can be decided
        self.parts: dict[str, tuple[tuple[str, Polynomial], ...]] = {}  # of such an index, outer first
        self._told_of = set[str]()  # symbols of which more is known than their bounds

    # ------------------------------------------------------------------------------------------------ symbols

    def number(self, value: int) -> Size:
        return Size(self, constant(value))

    def size(self, name: str) -> Size:
        """The symbol of a size, 1 or more."""
        self._least.setdefault(name, 1)
        return Size(self, symbol(name))

    def integer(self, name: str) -> Size:
        """The symbol of any integer."""
        return Size(self, symbol(name))

    def index(self, name: str, size: Polynomial) -> Polynomial:
        """An index below a size."""
        size = self.normal(size)
        if size == constant(1):
            return constant(0)
        self._least[name], self._below[name] = 0, size
        return self.normal(symbol(name))

    def is_one_of(self, code: Polynomial, codes: Sequence[int]) -> bool:
        """Whether an element type is one of these, which is one decision."""
        p = self.normal(code)
        if p.number is not None:
            return p.number in codes
        for (_, of, others), truth in [(k, t) for k, t in self._truths.items() if k[0] == "kind"]:
            if of == p and truth and (set(others) <= set(codes) or not set(others) & set(codes)):
                return set(others) <= set(codes)
            if of == p and not truth and set(codes) <= set(others):
                return False
        return bool(Condition(self, "opaque", ("kind", p, tuple(codes))))

    def axis(self, axis: Any, rank: int) -> int:
        """An axis from the front; the axes of terms are counted from the end. Raises Impossible if there is none."""
        if isinstance(axis, Size):
            known = self.normal(axis.value).number
            if known is None:
                self._given("an axis")
                known = -1 - self.choose(rank) if rank else 0
                self.equate(axis.value - constant(known))
            if known >= 0:
                raise Impossible(f"axis {known} is not counted from the end")
            axis = known
        if not -rank <= axis < rank:
            raise Impossible(f"axis {axis} of rank {rank}")
        return int(axis) % rank

    def _given(self, what: str) -> None:
        """Raises Unproved for what the right side alone asks for: it may be what that side cannot take."""
        if self.proving:
            raise Unproved(f"{what} that the left side does not tell")

    def among(self, value: Any, options: Sequence[int]) -> int:
        """The number that an integer is, which is one of these. Raises Impossible if it is none."""
        known = self.normal(value.value).number if isinstance(value, Size) else int(value)
        if known is None:
            self._given("a permutation")
            known = options[self.choose(len(options))]
            self.equate(value.value - constant(known))
        if known not in options:
            raise Impossible(f"{known} is not one of {options}")
        return known

    def length(self, size: Size, longest: int) -> int:
        """The number that the length of a list is, up to a bound."""
        known = self.normal(size.value).number
        if known is None:
            self._given("the length of a vector")
            known = 1 + self.choose(longest)
            self.equate(size.value - constant(known))
        return known

    def named(self, key: Any, make: Callable[[str], Polynomial]) -> Polynomial:
        """The symbol for a key, made when it is first asked for."""
        if key not in self._named:
            name = f"#{len(self._named)}"
            self._made_of[name] = frozenset(t for s in symbols(key) for t in (s, *self._made_of.get(s, ())))
            self._named[key] = make(name)
        return self._named[key]

    def depends(self, p: Polynomial, name: str) -> bool:
        """Whether a polynomial says anything of a symbol."""
        return any(s == name or name in self._made_of.get(s, ()) for s in p.symbols)

    def deeper(self, kind: str, size: Polynomial) -> str:
        """The name of the index of a sum that is being written, by its size and the number of those around it: what is
        known of it holds for any other of that name.
        """
        self._depth += 1
        name = f"{kind} {self._depth} below {size}"
        self._bound.add(name)
        return name

    def shallower(self) -> None:
        self._depth -= 1

    def normal(self, p: Polynomial) -> Polynomial:
        """The polynomial with what is known put in."""
        p = p.put(self._values)
        for lead, rest in self._products:
            for _ in range(8):
                found = [(m, part, k) for m, k in p.terms.items() if (part := without(m, lead)) is not None]
                if not found:
                    break
                for m, part, k in found:
                    p = p - Polynomial({m: k}) + Polynomial({part: k}) * rest
        return p

    # ------------------------------------------------------------------------------------------------ decisions

    def choose(self, options: int) -> int:
        """One of so many options; the others are left for other paths."""
        if self._taken == len(self.decisions):
            self.others += [[*self.decisions, (k, True)] for k in range(1, options)]
            self.decisions.append((0, True))
        self._taken += 1
        if self._taken > LONGEST:
            raise Unproved("no end of decisions")
        return self.decisions[self._taken - 1][0]

    def decide(self, asked: Condition) -> bool:
        """Whether a condition holds; where nothing says, both are tried."""
        if self._taken < len(self.decisions):
            answer, chosen = self.decisions[self._taken]
            known = None if chosen else bool(answer)
        else:
            known = self.known(asked)
            if known is not None:
                self.decisions.append((known, False))
        summed = asked.kind != "opaque" and any(self.depends(self.normal(asked.of), name) for name in self._bound)
        if known is None:
            if summed:
                raise Unproved("a sum whose parts differ")
            known = not self.choose(2)
            self.assume(asked if known else ~asked)
        else:
            self._taken += 1
            if asked.kind == "zero" and known == asked.holds and not summed:
                self.equate(asked.of)  # what the solver knows, normal forms are to know
        return known

    def known(self, asked: Condition) -> bool | None:
        """Whether a condition holds, if what is assumed tells. Raises Unproved when time is up."""
        if time.monotonic() > self.deadline:
            raise Unproved("time is up")
        if asked.kind == "opaque":
            truth = self._truths.get(asked.of)
            return None if truth is None else truth == asked.holds
        p = self.normal(asked.of)
        if asked.kind == "least":
            found = self._told(lambda: self.at_least_zero(p), lambda: self.at_least_zero(-p - constant(1)))
        elif p.number is not None:
            found = not p.number
        else:
            apart = any(self._by_bounds(q - constant(1)) for q in (p, -p))
            found = self._told(lambda: self._excludes("zero", p, False), lambda: apart or self._excludes("zero", p))
        return None if found is None else found == asked.holds

    @staticmethod
    def _told(yes: Callable[[], bool], no: Callable[[], bool]) -> bool | None:
        return True if yes() else False if no() else None

    def at_least_zero(self, p: Polynomial) -> bool:
        """Whether p >= 0 is known."""
        p = self.normal(p)
        if p.number is not None:
            return p.number >= 0
        return self._by_bounds(p) or self._excludes("least", p, False)

    def same(self, a: Polynomial, b: Polynomial) -> bool:
        """Whether two are known to be equal; nothing is decided."""
        return self.known(Condition(self, "zero", a - b)) is True

    def _by_bounds(self, p: Polynomial, depth: int = 0) -> bool:
        """Whether p >= 0 by the bounds of its symbols: at both ends of an index on which it depends linearly."""
        if self._no_negative(p):
            return True
        told = [self.normal(q) for kind, q, holds in self._assumed if kind == "least" and holds]
        if any(self._no_negative(p - q) for q in told if not q.symbols.isdisjoint(p.symbols)):
            return True
        for s in sorted(p.symbols & self._below.keys()) if depth < 4 else ():
            parts = p.of(s)
            if parts is not None:
                at_last = parts[0] + parts[1] * (self.normal(self._below[s]) - constant(1))
                if s not in at_last.symbols and all(
                    self._by_bounds(self.normal(end), depth + 1) for end in (parts[0], at_last)
                ):
                    return True
        return False

    def _no_negative(self, p: Polynomial) -> bool:
        """Whether no part of p is negative where each symbol is what it is at least, or more."""
        shifted = p.put({s: symbol(s) + constant(self._least[s]) for s in p.symbols if self._least.get(s)})
        return all(k >= 0 and all(self._least.get(s, -1) >= 0 for s in m) for m, k in shifted.terms.items())

    # ---------------------------------------------------------------------------------------------- assumptions

    def assume(self, asked: Condition) -> None:
        """Take a condition for granted. Raises NoCase where that contradicts what is known."""
        if asked.kind == "opaque":
            self._truths[asked.of] = asked.holds
        elif asked.kind == "least":
            p = self.normal(asked.of if asked.holds else -asked.of - constant(1))
            if self._by_bounds(-p):
                self.equate(p)
            elif not self._bounds(p):
                self._note("least", p, True)
        elif asked.kind == "zero" and asked.holds:
            self.equate(asked.of)
        else:
            self._note(asked.kind, self.normal(asked.of), asked.holds)

    def _bounds(self, p: Polynomial) -> bool:
        """Whether p >= 0 is a bound of one symbol, which is then kept as such."""
        rest, product = p.terms.get((), 0), [(m, k) for m, k in p.terms.items() if m]
        if len(product) == 1 and product[0][1] > 0:
            m, k = product[0]
            if len(m) == 1:
                self._raise(m[0], -(rest // k))
                return True
            if rest < 0 and all(self._least.get(s, -1) >= 0 for s in m):
                for s in m:
                    self._raise(s, 1)
                return rest == -1
        for s, k in p.linear():
            below = p + symbol(s) + constant(1)
            if (
                k == -1
                and self._least.get(s) == 0
                and (s not in self._below or self._by_bounds(self.normal(self._below[s]) - below))
            ):
                self._below[s] = below
                first = self.normal(below - constant(1))
                if not self._by_bounds(first) and not self._bounds(first):
                    self._note("least", first, True)
                return True
        return False

    def _raise(self, name: str, least: int) -> None:
        self._least[name] = max(self._least.get(name, least), least)
        below = self._below.get(name) if name not in self._values and name not in self._bound else None
        if below is not None and self.normal(below) == constant(self._least[name] + 1):
            self._put(name, constant(self._least[name]))

    def _note(self, kind: str, p: Polynomial, holds: bool) -> None:
        self._assumed.append((kind, p, holds))
        self._told_of |= p.symbols

    def equate(self, p: Polynomial) -> None:
        """Take p = 0 for granted."""
        p = self._reduced(self.normal(p))
        if not p.terms:
            return
        if p.number is not None:
            raise NoCase(f"{p} = 0")
        found = sorted((self._rank(s), s, k) for s, k in p.linear() if abs(k) == 1 and s not in self._bound)
        if found:
            _, name, k = found[0]
            value = (symbol(name) * constant(k) - p) * constant(k)
            self._put(name, value)
        elif self._one(p):
            for s in sorted(p.symbols):
                self._put(s, constant(1))
        else:
            lead, k = max(p.terms.items(), key=lambda term: (sum(s[0] == "#" for s in term[0]), len(term[0]), term[0]))
            if abs(k) == 1:
                self._products.append((lead, (Polynomial({lead: k}) - p) * constant(k)))
            self._note("zero", p, True)
        self._settle()

    def _one(self, p: Polynomial) -> bool:
        """Whether p = 0 says that a product of sizes is 1."""
        product = [(m, k) for m, k in p.terms.items() if m]
        return len(product) == 1 and p.terms.get((), 0) == -product[0][1] and self._positive(product[0][0])

    def _positive(self, m: Iterable[str]) -> bool:
        return all(self._least.get(s, 0) > 0 for s in m)

    def _reduced(self, p: Polynomial) -> Polynomial:
        """p without factors that are not 0."""
        for s in sorted(p.symbols):
            while self._positive(s_ := (s,)) and p.terms and all(s in m for m in p.terms):
                p = Polynomial({without(m, s_) or (): k for m, k in p.terms.items()})
        common = math.gcd(*p.terms.values()) if p.terms else 1
        return Polynomial({m: k // common for m, k in p.terms.items()})

    def _rank(self, name: str) -> tuple[bool, bool, bool]:
        """Which symbol another expression stands for first: one made on the way, then an attribute, then a size."""
        return name in self._below, not name.startswith("#"), name in self._least

    def _put(self, name: str, value: Polynomial) -> None:
        """Let an expression stand for a symbol, which keeps its bounds."""
        least, below = self._least.get(name), self._below.get(name)
        self._values = {s: v.put({name: value}) for s, v in self._values.items()}
        self._values[name] = value
        self._rename(name)
        if name in self._told_of:
            self._told_of |= value.symbols
        for bound in ([value - constant(least)] if least is not None else []) + (
            [below - value - constant(1)] if below is not None else []
        ):
            p = self.normal(bound)
            if p.number is not None and p.number < 0:
                raise NoCase(f"{name} = {value}")
            if p.number is None and not self._by_bounds(p) and not self._bounds(p):
                self._note("least", p, True)

    def _rename(self, name: str) -> None:
        """Tell symbols apart by what their keys are now; two of one key are one."""
        changed = [key for key in self._named if name in symbols(key)]
        for key in [key for key in self._truths if name in symbols(key)]:
            truth, now = self._truths.pop(key), self._renewed(key)
            typed = now[1].number if now[0] == "kind" else None
            if (typed is not None and (typed in now[2]) != truth) or self._truths.setdefault(now, truth) != truth:
                raise NoCase(f"{now} holds and does not")
        for key in changed:
            value, now = self._named.pop(key), self._renewed(key)
            other = self._named.setdefault(now, value)
            if other != value:
                self._same_named.append((other, value))

    def _renewed(self, key: Any) -> Any:
        if isinstance(key, Polynomial):
            return self.normal(key)
        if isinstance(key, tuple):
            return tuple(map(self._renewed, key))
        return type(key)(key.kind, *map(self._renewed, key.args)) if hasattr(key, "kind") else key

    def _settle(self) -> None:
        """Follow what equal sizes say: of products, and of indices, as below 1 there is 0 alone."""
        stale = [(m, rest) for m, rest in self._products if not self._values.keys().isdisjoint((*m, *rest.symbols))]
        self._products = [product for product in self._products if product not in stale]
        for m, rest in stale:
            self.equate(Polynomial({m: 1}) - rest)
        for kind, p, holds in list(self._assumed):
            if not p.symbols.isdisjoint(self._values):
                now = self.normal(p)
                if now.number is not None and (now.number >= 0 if kind == "least" else not now.number) != holds:
                    raise NoCase(f"{p} contradicts what is known")
                if kind == "least" and holds:
                    self._bounds(now)
        while self._same_named:
            a, b = self._same_named.pop()
            self.equate(a - b)
        for members, name in self._joined.items():
            sizes = {self.normal(m) for m in members} - {constant(1)}
            if name not in self._values and len(sizes) < 2:
                self._put(name, sizes.pop() if sizes else constant(1))
        for s, below in list(self._below.items()):
            if s not in self._values and self.normal(below) == constant(self._least[s] + 1):
                self._put(s, constant(self._least[s]))
        seen: dict[tuple[Polynomial, Polynomial], str] = {}
        for s, (i, size, full) in self._projections.items():
            if s in self._values:
                continue
            key = (self.normal(i), self.normal(size))
            if key[1] == self.normal(full):
                self._put(s, key[0])
            elif seen.setdefault(key, s) != s:
                self._put(s, symbol(seen[key]))

    # ------------------------------------------------------------------------------------------------ the solver

    def possible(self) -> bool:
        """Whether what is assumed does not contradict itself, as far as the solver sees."""
        told = [p for _, p, _ in self._assumed] + [m for members in self._joined for m in members]
        return not self._refuted([], frozenset(s for p in told for s in self.normal(p).symbols))

    def _excludes(self, kind: str, p: Polynomial, holds: bool = True) -> bool:
        """Whether a condition contradicts what is assumed."""
        p = self.normal(p)
        if p.symbols.isdisjoint(self._told_of):
            return False  # bounds have told what they can
        return self._refuted([(kind, p, holds)], p.symbols)

    def _refuted(self, conditions: Sequence[Fact], about: frozenset[str]) -> bool:
        """Whether these cannot all hold besides what is assumed of symbols that have to do with some."""
        facts: list[tuple[frozenset[str], list[list[Fact]]]] = [  # each a conjunction of disjunctions
            (q.symbols, [[(kind, q, holds)]])
            for kind, q, holds in ((kind, self.normal(p), holds) for kind, p, holds in self._assumed)
        ]
        for members, name in self._joined.items():
            joined, sizes = self.normal(symbol(name)), [self.normal(m) for m in members]
            each: list[list[Fact]] = [[("zero", m - constant(1), True), ("zero", joined - m, True)] for m in sizes]
            own = joined.symbols.union(*(m.symbols for m in sizes))
            facts.append((own, [[("zero", joined - m, True) for m in sizes], *each]))
        bounds = {
            s: self.normal(p) - symbol(s) - constant(1) for s, p in self._below.items() if s not in self._values
        }  # fmt: skip
        chosen: list[list[Fact]] = [[c] for c in conditions]
        while True:
            more = [fact for fact in facts if not fact[0].isdisjoint(about)]
            near = {s: p for s, p in bounds.items() if s in about}
            if not more and not near:
                break
            facts = [fact for fact in facts if fact not in more]
            bounds = {s: p for s, p in bounds.items() if s not in near}
            chosen += [part for _, parts in more for part in parts] + [[("least", p, True)] for p in near.values()]
            about = about.union(*(own for own, _ in more), *(p.symbols for p in near.values()))
        key = tuple(tuple(part) for part in chosen)
        least = tuple(sorted((s, k) for s, k in self._least.items() if s in about))
        if (key, least) not in self.answers:
            self.answers[key, least] = self._unsatisfiable(chosen)
        return self.answers[key, least]

    def _unsatisfiable(self, parts: Sequence[Sequence[Fact]]) -> bool:
        """Whether no numbers satisfy one of each; products of symbols are taken for numbers of their own."""
        z3 = solver_package()
        solver, numbers = z3.SolverFor("QF_LIA"), dict[Monomial, Any]()
        solver.set("rlimit", PATIENCE)

        def value(m: Monomial) -> Any:
            if m not in numbers:
                numbers[m] = v = z3.Int("*".join(m))
                least = [self._least.get(s) for s in m]
                if all(k is not None for k in least) and (len(m) == 1 or min(k or 0 for k in least) >= 0):
                    solver.add(v >= math.prod(k or 0 for k in least))
                if len(m) > 1 and self._positive(m):
                    for s in set(m):
                        solver.add(v >= value(without(m, (s,)) or ()))
            return numbers[m]

        def formula(kind: str, p: Polynomial, holds: bool) -> Any:
            terms = [k * value(m) if m else z3.IntVal(k) for m, k in p.terms.items()]
            total = terms[0] if len(terms) == 1 else z3.Sum(terms) if terms else z3.IntVal(0)
            asked = total >= 0 if kind == "least" else total == 0
            return asked if holds else z3.Not(asked)

        for part in parts:
            formulas = [formula(*fact) for fact in part]
            solver.add(formulas[0] if len(formulas) == 1 else z3.Or(formulas))
        return bool(solver.check() == z3.unsat)

    # ------------------------------------------------------------------------------------------ sizes and indices

    def joined(self, a: Polynomial, b: Polynomial) -> Polynomial:
        """The size to which two are broadcast. That they fit is given on the left, and to be known on the right."""
        a, b = self.normal(a), self.normal(b)
        one = constant(1)
        if a == b or b == one:
            return a
        if a == one:
            return b
        larger = [p for p in (a, b) if self._by_bounds(p - constant(2))]
        members = frozenset().union(*(self._members(p) for p in (a, b)))
        if len(larger) == 2:
            if not Condition(self, "zero", a - b):
                raise Impossible(f"{a} and {b} are broadcast")
            return self.normal(a)
        if self.proving and not self._fit(a, b):
            if self.refine():
                return self.joined(a, b)
            raise Unproved(f"{a} and {b} need not be broadcast")
        if members not in self._joined:
            name = self._joined[members] = f"#max{len(self._joined)}"
            self._least[name] = 1
            self._told_of |= {name}.union(*(m.symbols for m in members))
        return self.normal(symbol(self._joined[members]))

    def _members(self, p: Polynomial) -> frozenset[Polynomial]:
        return next((m for m, name in self._joined.items() if self.normal(symbol(name)) == p), frozenset((p,)))

    def _fit(self, a: Polynomial, b: Polynomial) -> bool:
        asked = [a - b, a - constant(1), b - constant(1)]
        return self._refuted([("zero", p, False) for p in asked], a.symbols | b.symbols)

    def refine(self) -> bool:
        """Follow what was passed over: of sizes that are broadcast, or copied, or given; and where nothing follows,
        decide such a question. False if there is none.
        """
        joins = [
            sorted({self.normal(m) for m in members} - {constant(1)}, key=str)
            for members, name in list(self._joined.items()) if name not in self._values
        ]  # fmt: skip
        for sizes in joins:
            larger = [p for p in sizes if self.at_least_zero(p - constant(2))]
            same = [a - b for a, b in itertools.combinations(sizes, 2) if self.same(a, b)]
            same += [p - constant(1) for p in sizes if self.same(p, constant(1))]
            same += [larger[0] - larger[1]] if len(larger) > 1 else []
            if same:
                self.equate(same[0])
                return True
        if self._given_sizes():
            return True
        for sizes in joins[::-1]:
            differences = [a - b for a, b in itertools.combinations(sizes, 2)]
            for p in [*differences, *(size - constant(1) for size in sizes)]:
                asked = Condition(self, "zero", p)
                if self.known(asked) is None:
                    return bool(asked) or True
        return False

    def _given_sizes(self) -> bool:
        """Follow what the target of a reshape says."""
        for key, value in list(self._named.items()):
            if key[0] not in ("copied", "reshaped") or not value.symbol or self.normal(value) != value:
                continue
            if key[0] == "copied":
                copied = bool(Condition(self, "zero", key[1]))
                self.equate(value - (key[2] if copied else key[1]))
                return True
            asked = key[2][key[1]]
            if asked.number != -1 and all(p.number == -1 or self.at_least_zero(p - constant(1)) for p in key[2]):
                self.equate(value - asked)
                return True
        return False

    def projected(self, i: Polynomial, full: Polynomial, size: Polynomial) -> Polynomial:
        """The index into an operand of a size that is broadcast to a full one, where the result's index is i."""
        i, full, size = self.normal(i), self.normal(full), self.normal(size)
        if size == constant(1) or not i.terms:
            return constant(0)
        if size == full:
            return i
        if i.symbol in self._projections and self.normal(self._projections[i.symbol][1]) == full:
            i, _, full = self._projections[i.symbol]  # what is broadcast twice is broadcast once
            return self.projected(i, full, size)

        def make(name: str) -> Polynomial:
            self._least[name], self._below[name] = 0, size
            self._projections[name] = (i, size, full)
            return symbol(name)

        return self.normal(self.named(("project", i, size), make))

    def divided(self, p: Polynomial, by: Polynomial) -> tuple[Polynomial, Polynomial]:
        """Quotient and remainder, 0 <= remainder < by."""
        p, by = self.normal(p), self.normal(by)
        if by == constant(1):
            return p, constant(0)
        if not Condition(self, "least", by - constant(1)):
            raise Unproved(f"a division by {by}, which may be below 1")
        quotient, rest = Polynomial({}), p
        whole = p.over(by)
        if whole is not None:
            return whole, constant(0)
        lead, k = by.leading
        for m, j in sorted(p.terms.items(), key=lambda term: (-len(term[0]), term[0])):
            part = without(m, lead)
            if part is not None and rest.terms.get(m) == j and j // k:
                quotient = quotient + Polynomial({part: j // k})
                rest = rest - Polynomial({part: j // k}) * by
        for more in (0, 1, -1):
            left = rest - by * constant(more)
            if self.at_least_zero(left) and self.at_least_zero(by - left - constant(1)):
                return quotient + constant(more), left
        if self._split(rest, by):
            return self.divided(p, by)
        summed = any(self.depends(p, name) for name in self._bound)
        if by.number is not None and 1 < by.number <= 8 and not p.symbols & self._below.keys() and not summed:
            return self._by_number(p, by.number)
        q, r = (self.named((what, p, by), self._part(what, by)) for what in ("quotient", "remainder"))
        if ("divided", p, by) not in self._named:
            self._named["divided", p, by] = q
            if q.symbol and self.at_least_zero(p):
                self._raise(q.symbol, 0)
            if r.symbol and r.symbol not in self._values:
                self._put(r.symbol, self.normal(p - q * by))
                self._settle()
            else:
                self.equate(q * by + r - p)
        return self.normal(q), self.normal(r)

    def _part(self, what: str, by: Polynomial) -> Callable[[str], Polynomial]:
        def make(name: str) -> Polynomial:
            if what == "remainder":
                self._least[name], self._below[name] = 0, by
            return symbol(name)

        return make

    def _by_number(self, p: Polynomial, by: int) -> tuple[Polynomial, Polynomial]:
        remainder = self.choose(by)
        q = self.named(("quotient", p, by), symbol)
        if q.symbol and self.at_least_zero(p):
            self._raise(q.symbol, int(not remainder and self.at_least_zero(p - constant(1))))
        self.equate(q * constant(by) + constant(remainder) - p)
        return self.normal(q), constant(remainder)

    def _split(self, rest: Polynomial, by: Polynomial) -> bool:
        """Make two indices of one below a size that is divided, if `rest` has such."""
        for m, k in rest.terms.items():
            for s in m:
                if s in self._below and s not in self._projections and k > 0:
                    inner = by.over(Polynomial({without(m, (s,)) or (): k}))
                    size = self.normal(self._below[s])
                    outer = size.over(inner) if inner is not None and inner not in (constant(1), size) else None
                    if inner is not None and outer is not None:
                        first, second = f"{s}'", f'{s}"'
                        self._least |= {first: 0, second: 0}
                        self._below |= {first: outer, second: inner}
                        for name in {s} & self._bound:
                            self._bound |= {first, second}
                            self.parts[name] = ((first, outer), (second, inner))
                        self._put(s, symbol(first) * inner + symbol(second))
                        return True
        return False
