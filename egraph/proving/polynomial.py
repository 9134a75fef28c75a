"""Integer polynomials over named symbols: sizes and indices as they are computed with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

Monomial = tuple[str, ...]  # symbols in order, one for each power


class Polynomial:
    """A sum of integer multiples of products of symbols; equal ones are equal objects of hashing."""

    __slots__ = ("_key", "terms")

    def __init__(self, terms: Mapping[Monomial, int]) -> None:
        self.terms = {m: k for m, k in terms.items() if k}
        self._key = tuple(sorted(self.terms.items()))

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Polynomial) and self._key == other._key

    def __add__(self, other: Polynomial) -> Polynomial:
        total = dict(self.terms)
        for m, k in other.terms.items():
            total[m] = total.get(m, 0) + k
        return Polynomial(total)

    def __neg__(self) -> Polynomial:
        return self * constant(-1)

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + -other

    def __mul__(self, other: Polynomial) -> Polynomial:
        total: dict[Monomial, int] = {}
        for m, k in self.terms.items():
            for n, j in other.terms.items():
                both = tuple(sorted((*m, *n)))
                total[both] = total.get(both, 0) + k * j
        return Polynomial(total)

    @property
    def number(self) -> int | None:
        """The number it is, if it has no symbol."""
        if not self.terms:
            return 0
        return self.terms.get(()) if len(self.terms) == 1 else None

    @property
    def symbols(self) -> frozenset[str]:
        return frozenset(s for m in self.terms for s in m)

    @property
    def symbol(self) -> str:
        """The symbol it is, or ""."""
        [(m, k)] = self.terms.items() if len(self.terms) == 1 else [((), 0)]
        return m[0] if k == 1 and len(m) == 1 else ""

    @property
    def leading(self) -> tuple[Monomial, int]:
        """The product of the most symbols, with its multiple."""
        return max(self.terms.items(), key=_order)

    def linear(self) -> Iterator[tuple[str, int]]:
        """Symbols that occur once, by themselves and nowhere else, with their multiples."""
        for m, k in self.terms.items():
            if len(m) == 1 and sum(m[0] in n for n in self.terms) == 1:
                yield m[0], k

    def of(self, symbol: str) -> tuple[Polynomial, Polynomial] | None:
        """(a, b) of a + b * symbol; None where it has a square of it."""
        a: dict[Monomial, int] = {}
        b: dict[Monomial, int] = {}
        for m, k in self.terms.items():
            if symbol not in m:
                a[m] = k
            else:
                rest = without(m, (symbol,))
                if rest is None or symbol in rest:
                    return None
                b[rest] = k
        return Polynomial(a), Polynomial(b)

    def put(self, values: Mapping[str, Polynomial]) -> Polynomial:
        """With other polynomials for some symbols."""
        if values.keys().isdisjoint(self.symbols):
            return self
        total = Polynomial({})
        for m, k in self.terms.items():
            product = constant(k)
            for s in m:
                product = product * values.get(s, symbol(s))
            total = total + product
        return total

    def over(self, other: Polynomial) -> Polynomial | None:
        """The quotient, if the division leaves nothing for whatever values of the symbols."""
        if not other.terms:
            return None
        lead, by = other.leading
        rest, quotient = self, Polynomial({})
        while rest.terms:
            m, k = rest.leading
            part = without(m, lead)
            if part is None or k % by:
                return None
            quotient = quotient + Polynomial({part: k // by})
            rest = rest - Polynomial({part: k // by}) * other
        return quotient

    def __str__(self) -> str:
        shown = ["*".join([*([str(k)] if k != 1 or not m else []), *m]) for m, k in self._key]
        return " + ".join(shown) or "0"

    __repr__ = __str__


def _order(term: tuple[Monomial, int]) -> tuple[int, Monomial]:
    """Products of more symbols first: an order that multiplication keeps."""
    return len(term[0]), term[0]


def constant(value: int) -> Polynomial:
    return Polynomial({(): value})


def symbol(name: str) -> Polynomial:
    return Polynomial({(name,): 1})


def without(m: Monomial, part: Monomial) -> Monomial | None:
    """The product m divided by another, if that divides it."""
    left = list(m)
    for s in part:
        if s not in left:
            return None
        left.remove(s)
    return tuple(left)
