"""Sizes that must be equal because the model fails on every input for which they are not.

Exporters often read the batch from one input and reshape a tensor computed from another with it, so that the
head count comes out as ``floordiv(4*batch_a, batch_b)``. The shapes that meet later leave few values for such
a size; when only one fits them all, the batches are equal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from .dims import Dim, Dims

# Each round solves what the last one's substitutions laid bare; models need two or three.
MAX_ROUNDS = 8


@dataclass(slots=True)
class Equations:
    """What executing the nodes of a graph proves about its sizes."""

    equal: list[tuple[Dim, Dim]] = field(default_factory=list)
    # (size, n): the size is 1 or n
    narrowed: list[tuple[Dim, int]] = field(default_factory=list)
    # (quotient, top, bottom): top == quotient * bottom, and bottom is not 0
    exact: list[tuple[Dim, Dim, Dim]] = field(default_factory=list)

    def extend(self, other: Equations) -> None:
        """Add what another node proves."""
        self.equal += other.equal
        self.narrowed += other.narrowed
        self.exact += other.exact

    def solve(self, dims: Dims) -> None:
        """Record in ``dims`` what follows."""
        nonzero = {bottom for _, _, bottom in self.exact}
        for _ in range(MAX_ROUNDS):
            before = dims.equations
            for size in nonzero:
                dims.mark_nonzero(size)
            for a, b in self.equal:
                dims.equate(a, b)
            for quotient, top, bottom in self.exact:
                whole = dims.resolve(quotient)
                if isinstance(whole, int):
                    dims.equate(top, dims.mul(whole, bottom))
            self._choose(dims)
            if dims.equations == before:
                return

    def _choose(self, dims: Dims) -> None:
        """Equate ``a`` with a multiple of ``b`` where only one ratio gives every quotient of theirs a value
        it may have.
        """
        exact = {dims.resolve(quotient) for quotient, _, _ in self.exact}
        ratios: dict[tuple[Dim, Dim], set[Fraction]] = {}
        for size, limit in self.narrowed:
            parts = dims.quotient(dims.resolve(size))
            if parts is None or dims.resolve(size) not in exact:
                continue
            (a, times), (b, over) = parts
            possible = {Fraction(choice * over, times) for choice in (1, limit)}
            ratios[a, b] = ratios.get((a, b), possible) & possible
        for (a, b), left in ratios.items():
            if len(left) == 1:
                (ratio,) = left
                dims.equate(dims.mul(a, ratio.denominator), dims.mul(b, ratio.numerator))
