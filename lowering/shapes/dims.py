"""Exact arithmetic on symbolic sizes: integer polynomials over atoms, printed in one canonical spelling.

A size is an ``int`` or a ``str``; two sizes are provably equal when they compare equal. An atom is a symbol
or a call (``floordiv``, ``truncdiv``, ``max``, ``min``, ``broadcast``) of sizes. Symbols stand for any integer >= 0,
zero included, unless they were made ``signed`` or are known to be at least some number. A length is an expression that
is at least 1 though its terms do not say so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import partial, reduce
from typing import TypeAlias

Dim: TypeAlias = int | str
Monomial: TypeAlias = tuple[str, ...]
Terms: TypeAlias = dict[Monomial, int]

# What is larger is given up as unknown: no shape in practice comes near, and a hostile model must not
# explode.
MAX_TERMS = 64
MAX_DEGREE = 16
MAX_COUNT = 2**64
MAX_TEXT = 2000


class Dims:
    """One run's sizes: their structure, the symbols made so far and the equations found."""

    def __init__(self, least: Mapping[str, int] | None = None) -> None:
        """`least`: what symbols are known to be at least."""
        self._terms: dict[str, Terms] = {}
        self._calls: dict[str, tuple[str, tuple[Dim, ...]]] = {}
        self._signed: set[str] = set()
        self._fed: set[str] = set()
        self._wild: set[str] = set()
        self._lengths: dict[str, int] = {}  # sizes of windows' results, and what they are at least
        self._least = dict(least or {})
        self._memo: dict[tuple[object, ...], Dim] = {}
        self._nonzero: set[str] = set()
        self._equal: dict[str, Dim] = {}
        self._resolved: dict[str, Dim] = {}
        self._count = 0

    # ---- symbols

    def symbol(self, name: str) -> str:
        """The size named ``name``, which must be free of blanks, operators and parentheses."""
        self._terms.setdefault(name, {(name,): 1})
        return name

    def fresh(self) -> str:
        """A size equal to no other."""
        self._count += 1
        return self.symbol(f"?{self._count}")

    def wild(self) -> str:
        """An integer equal to no other that is no size: it may be negative, and arithmetic with it may wrap around."""
        name = self.fresh()
        self._signed.add(name)
        self._wild.add(name)
        return name

    def opaque(self, *key: object) -> str:
        """A `wild` integer that is a function of ``key``: the same key gives the same symbol."""
        known = self._memo.get(("opaque", *key))
        if known is None:
            known = self._memo["opaque", *key] = self.wild()
        assert isinstance(known, str)
        return known

    def is_symbol(self, dim: Dim) -> bool:
        """Whether ``dim`` is one bare symbol."""
        return isinstance(dim, str) and dim not in self._calls and self._terms[dim] == {(dim,): 1}

    def symbols(self, dim: Dim) -> set[str]:
        """Every symbol ``dim`` is built from, those inside calls included."""
        return {atom for atom in self._atoms(dim) if atom not in self._calls}

    def _atoms(self, dim: Dim) -> set[str]:
        found: set[str] = set()
        pending = [dim]
        while pending:
            for monomial in self._of(pending.pop()):
                for atom in monomial:
                    if atom not in found:
                        found.add(atom)
                        pending.extend(self._calls[atom][1] if atom in self._calls else ())
        return found

    def calls(self, dims: Iterable[Dim]) -> Iterator[tuple[str, tuple[Dim, ...]]]:
        """Every call in ``dims`` and its operands, those inside others included."""
        for atom in sorted(set().union(*map(self._atoms, dims)) & self._calls.keys()):
            yield self._calls[atom]

    def factors(self, dim: Dim) -> AbstractSet[str]:
        """The atoms that ``dim`` is a multiple of."""
        return set.intersection(*map(set, self._of(dim))) if isinstance(dim, str) else set()

    def stretched(self, atom: str) -> tuple[str, ...]:
        """The sizes that ``atom`` is broadcast from, none if it is no broadcast."""
        function, arguments = self._calls.get(atom, ("", ()))
        return tuple(map(str, arguments)) if function == "broadcast" else ()

    @property
    def count(self) -> int:
        """How many sizes equal to no other there are; `is_later` tells which came after that."""
        return self._count

    def is_later(self, dim: Dim, count: int) -> bool:
        """Whether ``dim`` is one of those that were made when there were ``count`` already."""
        return isinstance(dim, str) and self.is_symbol(dim) and dim[0] == "?" and int(dim[1:]) > count

    # ---- arithmetic

    def add(self, *dims: Dim) -> Dim:
        return reduce(partial(self._binary, "add"), (0, *dims))

    def sub(self, a: Dim, b: Dim) -> Dim:
        return self._binary("sub", a, b)

    def mul(self, *dims: Dim) -> Dim:
        return reduce(partial(self._binary, "mul"), (1, *dims))

    def floordiv(self, a: Dim, b: Dim) -> Dim:
        """``a`` divided by ``b``, rounded down. ``b`` is taken to be positive: a caller whose ``b`` can be
        zero has no result at all there.
        """
        return self._binary("floordiv", a, b)

    def truncdiv(self, a: Dim, b: int) -> Dim:
        """``a`` divided by ``b`` > 0, rounded towards 0."""
        if isinstance(a, int):
            return abs(a) // b * (1 if a >= 0 else -1)
        return self.floordiv(a, b) if self.nonnegative(a) else self._call("truncdiv", (a, b))

    def ceildiv(self, a: Dim, b: int) -> Dim:
        """``a`` divided by ``b`` > 0, rounded up."""
        return self.floordiv(self.add(a, b - 1), b)

    def max(self, *dims: Dim) -> Dim:
        return self._extreme("max", dims)

    def min(self, *dims: Dim) -> Dim:
        return self._extreme("min", dims)

    def broadcast(self, *dims: Dim) -> Dim | None:
        """The size several axes broadcast to, None if two constants forbid it. Two different symbols stay a
        call: either of them may be 1.
        """
        ints = {dim for dim in dims if isinstance(dim, int) and dim != 1}
        if ints:
            return ints.pop() if len(ints) == 1 else None
        names = set(self._flat("broadcast", (dim for dim in dims if dim != 1)))
        # min(n, s) against s: whatever s is, the result is s or the two do not broadcast
        names = {name for name in names if not self._cuts(name, names, 1)}
        if len(names) < 2:
            return names.pop() if names else 1
        return self._call("broadcast", tuple(sorted(map(str, names))))

    def is_cut(self, dim: Dim, whole: Dim) -> bool:
        """Whether ``dim`` is ``min(n, whole)`` for an n > 1: where the two broadcast they are equal."""
        return self._cuts(dim, {whole}, 2)

    def _cuts(self, dim: Dim, whole: set[Dim], least: int) -> bool:
        function, arguments = self._calls.get(str(dim), ("", ()))
        if function != "min" or whole.isdisjoint(arguments):
            return False
        return all(isinstance(each, int) and each >= least for each in arguments if each not in whole)

    def quotient(self, dim: Dim) -> tuple[tuple[Dim, int], tuple[Dim, int]] | None:
        """``((a, k), (b, c))`` if ``dim`` is ``floordiv(k*a, c*b)`` of products, else None."""
        function, arguments = self._calls.get(str(dim), ("", ()))
        if function != "floordiv":
            return None
        parts = [self._of(each) for each in arguments]
        if any(len(part) != 1 for part in parts):
            return None
        (top,), (bottom,) = parts
        return (self._make({top: 1}), parts[0][top]), (self._make({bottom: 1}), parts[1][bottom])

    def parted(self, dim: Dim) -> tuple[Dim, Dim]:
        """``(a, b)`` with ``dim == a + b``: its first term, and the rest, which is 0 if there is no other."""
        (first, count), *rest = sorted(self._of(dim).items(), key=_printed) or [((), 0)]
        return self._make({first: count}), self._make(dict(rest))

    def nonnegative(self, dim: Dim) -> bool:
        """Whether ``dim`` >= 0 is certain."""
        if isinstance(dim, int):
            return dim >= 0
        if all(count >= 0 and self._signed.isdisjoint(monomial) for monomial, count in self._terms[dim].items()):
            return True
        least = self.least(dim)
        return self._length(dim) is not None or (least is not None and least >= 0)

    def least(self, dim: Dim) -> int | None:
        """A number that ``dim`` is never below, None if none is known."""
        total = 0
        for monomial, count in self._of(dim).items():
            lows = [self._least_of(atom) for atom in monomial]
            known = [low for low in lows if low is not None]
            if len(known) < len(lows) or (monomial and count < 0) or (len(lows) > 1 and min(known) < 0):
                return None
            total += count * math.prod(known)
        return total

    def _least_of(self, atom: str) -> int | None:
        function, arguments = self._calls.get(atom, ("", ()))
        if not function:
            return None if atom in self._signed else self._least.get(atom, 0)
        lows = [self.least(argument) for argument in arguments]
        known = [low for low in lows if low is not None]
        if function == "max":
            return max(known, default=None)
        if len(known) < len(lows):
            return None
        if function == "min":
            return min(known)
        if function == "broadcast":
            return min(*known, 1)
        top, bottom = known[0], arguments[1]
        if isinstance(bottom, int) and bottom > 0:
            return top // bottom if function == "floordiv" or top >= 0 else -(-top // bottom)
        return 0 if top >= 0 else None

    def at_least(self, a: Dim, b: Dim) -> bool:
        """Whether ``a >= b`` is certain."""
        if a == b or (
            isinstance(a, str) and isinstance(b, int) and (least := self._length(a)) is not None and b <= least
        ):
            return True
        return self.nonnegative(self.sub(a, b))

    def mark_length(self, dim: Dim, least: int = 1) -> None:
        """Record that ``dim`` is at least ``least``, 0 or 1."""
        if isinstance(dim, str) and not self.bound(dim, least) and not self.nonnegative(self.sub(dim, least)):
            self._lengths[dim] = max(least, self._lengths.get(dim, 0))
            self._resolved.clear()

    def bound(self, dim: Dim, least: int) -> bool:
        """Record that ``dim`` >= ``least``. False, and nothing is, where that does not say how large a symbol is."""
        terms = dict(self._of(dim))
        least -= terms.pop((), 0)
        if len(terms) != 1:
            return False
        ((monomial, count),) = terms.items()
        if len(monomial) != 1 or count < 0:
            return False
        (atom,), least = monomial, -(-least // count)
        function, arguments = self._calls.get(atom, ("", ()))
        if function == "floordiv" and isinstance(bottom := arguments[1], int) and bottom > 0:
            return self.bound(arguments[0], bottom * least)
        if function == "max" and isinstance(arguments[0], int) and len(arguments) == 2:
            return arguments[0] < least and self.bound(arguments[1], least)
        if function or atom in self._signed:
            return False
        if least > self._least.get(atom, 0):
            self._least[atom] = least
            self._resolved.clear()
        return True

    def bounds(self) -> dict[str, int]:
        """What sizes of fed inputs are known to be at least, where that is more than 0."""
        return {symbol: least for symbol, least in self._least.items() if symbol in self._fed}

    def _length(self, dim: str) -> int | None:
        """What ``dim`` is at least, if it is a length, times a positive number perhaps."""
        if not self._lengths:
            return None
        terms = self._of(dim)
        common = math.gcd(*terms.values())
        return self._lengths.get(str(self._make({monomial: count // common for monomial, count in terms.items()})))

    def differ(self, a: Dim, b: Dim) -> bool:
        """Whether ``a != b`` is certain."""
        return self.at_least(a, self.add(b, 1)) or self.at_least(b, self.add(a, 1))

    def never_one(self, dim: Dim) -> bool:
        """Whether ``dim`` is a multiple of a number above 1."""
        return math.gcd(*self._of(dim).values()) > 1

    def feed(self, dim: str) -> None:
        """Record that ``dim`` is a size of an input a caller feeds."""
        self._fed.add(dim)

    def may_vanish(self, dim: Dim, count: Dim) -> bool:
        """Whether ``dim`` >= 0 may be 0 where no fed input and no tensor of ``count`` elements is empty."""
        return not self.stays(dim, self._fed | self.factors(count))

    def stays(self, dim: Dim, nonzero: AbstractSet[str]) -> bool:
        """Whether ``dim`` >= 0 is at least 1 when everything in ``nonzero`` is."""

        def stays(atom: str) -> bool:
            if atom in nonzero:
                return True
            function, arguments = self._calls.get(atom, ("", ()))
            return function in ("broadcast", "min") and all(self.stays(each, nonzero) for each in arguments)

        return (isinstance(dim, str) and self.at_least(dim, 1)) or any(
            all(map(stays, monomial)) for monomial in self._of(dim)
        )

    def degree(self, dim: Dim) -> int:
        """The largest number of atoms multiplied together."""
        return max((len(monomial) for monomial in self._of(dim)), default=0)

    def is_signed(self, dim: Dim) -> bool:
        """Whether an atom that may be negative occurs at the top level of ``dim``."""
        return any(not self._signed.isdisjoint(monomial) for monomial in self._of(dim))

    def is_moderate(self, dim: Dim) -> bool:
        """Whether ``dim`` is far from the limits of 64 bits: no `wild` symbol in it, no factor of 2**31 or
        more.
        """
        atoms = self._atoms(dim)
        parts = [dim, *(part for atom in atoms if atom in self._calls for part in self._calls[atom][1])]
        numbers = [count for part in parts for count in self._of(part).values()]
        return max(map(abs, numbers), default=0) < 2**31 and self._wild.isdisjoint(atoms)

    def largest(self, dim: Dim, size: int) -> int:
        """What the absolute value of ``dim`` is at most where no symbol is above ``size``."""

        def of_atom(atom: str) -> int:
            _, parts = self._calls.get(atom, ("", ()))
            return max((self.largest(part, size) for part in parts), default=size)

        return sum(abs(count) * math.prod(map(of_atom, monomial)) for monomial, count in self._of(dim).items())

    # ---- equations and values

    def equate(self, a: Dim, b: Dim) -> None:
        """Record ``a == b``; `resolve` applies it. An equation that cannot be solved for one atom is left
        out.
        """
        difference = self._of(self.sub(self.resolve(a), self.resolve(b)))
        common = math.gcd(*difference.values())
        difference = {monomial: count // common for monomial, count in difference.items()}
        for atom in [atom for atom in min(difference, default=(), key=len) if atom in self._nonzero]:
            if all(atom in monomial for monomial in difference):
                difference = {_without(monomial, atom): count for monomial, count in difference.items()}
        candidates = [monomial[0] for monomial, count in difference.items() if len(monomial) == 1 and abs(count) == 1]
        for atom in sorted(candidates, key=self._rank):
            sign = difference[atom,]
            rest = self._make({m: -sign * count for m, count in difference.items() if m != (atom,)})
            if atom not in self._atoms(rest):
                self._equal[atom] = rest
                self._resolved.clear()
                return

    @property
    def equations(self) -> int:
        """How many atoms have been eliminated."""
        return len(self._equal)

    def mark_nonzero(self, dim: Dim) -> None:
        """Record that ``dim`` is not 0: if it is a product, no factor is."""
        terms = self._of(self.resolve(dim))
        if len(terms) == 1:
            self._nonzero.update(*terms)

    def resolve(self, dim: Dim) -> Dim:
        """``dim`` with every recorded equation applied."""
        if isinstance(dim, int) or not (self._equal or self._lengths or self._least):
            return dim
        known = self._resolved.get(dim)
        if known is None:
            known = self._rebuild(dim, self._resolve_atom)
            self._resolved[dim] = known
        return known

    def _resolve_atom(self, atom: str) -> Dim:
        if atom in self._equal:
            return self.resolve(self._equal[atom])
        if atom not in self._calls:
            return atom
        function, arguments = self._calls[atom]
        again = self._apply(function, [self.resolve(argument) for argument in arguments])
        if again is None:  # constants that do not broadcast: the model fails wherever this size exists
            return atom
        return self.resolve(again) if again != atom else atom

    def evaluate(self, dim: Dim, values: Mapping[str, int]) -> int:
        """The number ``dim`` is for these values of its symbols.

        Raises KeyError for a symbol without a value, ValueError where they do not broadcast or divide by 0.
        """

        def atom_value(atom: str) -> Dim:
            if atom not in self._calls:
                return values[atom]
            function, arguments = self._calls[atom]
            result = self._apply(function, [self.evaluate(argument, values) for argument in arguments])
            if result is None:
                raise ValueError(f"{atom} does not broadcast for {dict(values)}")
            return result

        result = self._rebuild(dim, atom_value)
        if not isinstance(result, int):
            raise ValueError(f"{dim} divides by zero for {dict(values)}")
        return result

    def _rebuild(self, dim: Dim, replace: Callable[[str], Dim]) -> Dim:
        return self.add(*(self.mul(count, *map(replace, monomial)) for monomial, count in self._of(dim).items()))

    def _rank(self, atom: str) -> tuple[int, str]:
        """The smallest is eliminated first: what reads worst."""
        if atom.startswith("?"):
            return 0, atom
        return (1 if atom in self._calls else 2 if "@" in atom else 3), atom

    # ---- structure

    def _of(self, dim: Dim) -> Terms:
        return self._terms[dim] if isinstance(dim, str) else {(): dim} if dim else {}

    def _binary(self, function: str, a: Dim, b: Dim) -> Dim:
        key = (function, a, b)
        known = self._memo.get(key)
        if known is None:
            known = self._memo[key] = self._compute(function, a, b)
        return known

    def _compute(self, function: str, a: Dim, b: Dim) -> Dim:
        if function == "floordiv":
            return self._quotient(a, b)
        left, right = self._of(a), self._of(b)
        if function == "mul":
            if len(left) * len(right) > MAX_TERMS or self.degree(a) + self.degree(b) > MAX_DEGREE:
                return self.opaque("mul", a, b)
            product: Terms = {}
            for x, m in left.items():
                for y, n in right.items():
                    monomial = tuple(sorted(x + y))
                    product[monomial] = product.get(monomial, 0) + m * n
            return self._make(product)
        sign = 1 if function == "add" else -1
        total = dict(left)
        for monomial, count in right.items():
            total[monomial] = total.get(monomial, 0) + sign * count
        return self._make(total)

    def _quotient(self, a: Dim, b: Dim) -> Dim:
        if b == 0:  # nothing that divides by it runs
            return self.opaque("floordiv", a, b)
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        if b == 1 or a == 0:
            return a
        if a == b:
            return 1
        top, bottom = self._of(a), self._of(b)
        if len(bottom) > 1:
            lead = max(bottom)
            factor = _divide(max(top), top[max(top)], lead, bottom[lead])
            if factor is not None:
                whole = self._make(dict([factor]))
                if self.mul(whole, b) == a:
                    return whole
            return self._call("floordiv", (a, b))
        ((unit, size),) = bottom.items()
        exact: Terms = {}
        rest: Terms = {}
        for monomial, count in top.items():
            factor = _divide(monomial, count, unit, size)
            if factor is None:
                # keeping only count mod size makes (2*s + 3)//2 and s + 1 + 1//2 one spelling
                if monomial == () and unit == () and size > 0:
                    exact[()] = count // size
                    count %= size
                if count:
                    rest[monomial] = count
            else:
                exact[factor[0]] = factor[1]
        if not rest:
            return self._make(exact)
        common = math.gcd(size, *rest.values())
        shared = [atom for atom in dict.fromkeys(unit) if all(atom in monomial for monomial in rest)]
        for atom in shared:  # one power each is enough: shapes hold no higher ones
            rest = {_without(monomial, atom): count for monomial, count in rest.items()}
            unit = _without(unit, atom)
        top_left = self._make({monomial: count // common for monomial, count in rest.items()})
        bottom_left = self._make({unit: size // common})
        if isinstance(top_left, int) and isinstance(bottom_left, int) and bottom_left > 0:
            tail: Dim = top_left // bottom_left
        else:
            tail = top_left if bottom_left == 1 else self._divided(top_left, bottom_left)
        return self.add(self._make(exact), tail)

    def _divided(self, top: Dim, bottom: Dim) -> Dim:
        """The quotient of what has no common factor: of (x // n + y) // m it is (x + n*y) // (n*m)."""
        inner = [
            (atom, *self._calls[atom][1])
            for monomial, count in self._of(top).items()
            for atom in monomial[:1]
            if len(monomial) == count == 1 and self._calls.get(atom, ("",))[0] == "floordiv"
        ]
        if isinstance(bottom, int) and bottom > 0 and len(inner) == 1:
            atom, x, n = inner[0]
            if isinstance(n, int) and 0 < n * bottom < 2**31:
                return self.floordiv(self.add(x, self.mul(n, self.sub(top, atom))), n * bottom)
        return self._call("floordiv", (top, bottom))

    def _extreme(self, function: str, dims: Iterable[Dim]) -> Dim:
        kept: list[Dim] = []
        for dim in dict.fromkeys(self._flat(function, dims)):
            beats = self.at_least if function == "max" else lambda a, b: self.at_least(b, a)
            if any(beats(other, dim) for other in kept):
                continue
            kept = [other for other in kept if not beats(dim, other)] + [dim]
        return kept[0] if len(kept) == 1 else self._call(function, tuple(sorted(kept, key=str)))

    def _flat(self, function: str, dims: Iterable[Dim]) -> Iterable[Dim]:
        for dim in dims:
            call = self._calls.get(dim) if isinstance(dim, str) else None
            if call is not None and call[0] == function:
                yield from call[1]
            else:
                yield dim

    def _apply(self, function: str, arguments: list[Dim]) -> Dim | None:
        if function == "floordiv":
            return self.floordiv(*arguments)
        if function == "truncdiv" and isinstance(bottom := arguments[1], int):
            return self.truncdiv(arguments[0], bottom)
        if function == "broadcast":
            return self.broadcast(*arguments)
        return self._extreme(function, arguments)

    def _call(self, function: str, arguments: tuple[Dim, ...]) -> str:
        name = f"{function}({', '.join(map(str, arguments))})"
        if len(name) > MAX_TEXT:
            return self.opaque(function, *arguments)
        if name not in self._calls:
            self._calls[name] = (function, arguments)
            self.symbol(name)
            certain = any if function == "max" else all
            if not certain(self.nonnegative(argument) for argument in arguments):
                self._signed.add(name)
        return name

    def _make(self, terms: Terms) -> Dim:
        terms = {monomial: count for monomial, count in terms.items() if count}
        if not terms or terms.keys() == {()}:
            number = terms.get((), 0)
            return number if abs(number) < MAX_COUNT else self.opaque("number", number)
        pieces = []
        for monomial, count in sorted(terms.items(), key=_printed):
            factors = list(monomial) if abs(count) == 1 and monomial else [str(abs(count)), *monomial]
            pieces.append((" - " if count < 0 else " + ") + "*".join(factors))
        text = "".join(pieces)
        text = text[3:] if text.startswith(" + ") else "-" + text[3:]
        if len(text) > MAX_TEXT or len(terms) > MAX_TERMS or max(map(abs, terms.values())) >= MAX_COUNT:
            return self.opaque("sum", text)
        self._terms.setdefault(text, terms)
        return text


def _printed(term: tuple[Monomial, int]) -> tuple[int, Monomial]:
    """What terms are ordered by."""
    return -len(term[0]), term[0]


def _divide(monomial: Monomial, count: int, unit: Monomial, size: int) -> tuple[Monomial, int] | None:
    """``count*monomial / (size*unit)`` if that is exact."""
    if count % size:
        return None
    for atom in unit:
        if atom not in monomial:
            return None
        monomial = _without(monomial, atom)
    return monomial, count // size


def _without(monomial: Monomial, atom: str) -> Monomial:
    place = monomial.index(atom)
    return monomial[:place] + monomial[place + 1 :]
