"""What an inference of sizes starts from: what an earlier one proved, and what of the file it believes unproved.

A file says more of its sizes than running it proves: one dimension name on several inputs, and shapes of values inside,
which onnxruntime does not enforce. Of that only what would close an open size is believed, and each belief is an
assumption.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...egraph.engine.assumption import DECLARED_SIZES, NAMES_SHARED, Assumption
from .dims import Dim, Dims

# Values that an assumption names
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Belief:
    """`shared` are pairs of a dimension name and an integer input whose first axis has the size that other inputs have
    under this name. `declared`: where nothing is known of a size, the one that the file declares is believed.
    `bounds` are proved: what symbols are at least.
    """

    shared: frozenset[tuple[str, str]] = frozenset()
    declared: bool = False
    bounds: Mapping[str, int] = field(default_factory=dict)

    def assumptions(self, filled: Sequence[str]) -> tuple[Assumption, ...]:
        """For the report; `filled` are the values that have a size only because it is declared."""
        found = [Assumption(f"{NAMES_SHARED}: {name!r} of input {x!r}", loose=True) for name, x in sorted(self.shared)]
        if filled:
            more = f" and {len(filled) - _NAMED} more" if len(filled) > _NAMED else ""
            named = ", ".join(map(repr, filled[:_NAMED]))
            found.append(Assumption(f"{DECLARED_SIZES}: of {named}{more}", loose=True))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Namesakes:
    """The sizes that inputs declare: each symbol with its dimension name and, if it is one input's own, that input.

    `vectors` are pairs of a name and an input of one axis that is declared by it, where it is no first axis elsewhere.
    """

    dims: Dims
    names: Mapping[str, tuple[str, str | None]]
    vectors: frozenset[tuple[str, str]]

    def meant_equal(self, sizes: set[Dim]) -> Iterator[tuple[str, str]]:
        """What `Belief.shared` lacks for these sizes to be known.

        One input's batch that divides another's is read by a view, which else would mix the rows of a batch. An input
        of positions may have one row for all rows: that broadcasts, and leaves no quotient. One position for all tokens
        is another matter.
        """
        for function, operands in self.dims.calls(sizes):
            if function == "floordiv":
                top, bottom = map(self.dims.factors, operands)
                for divisor in bottom & self.names.keys():
                    for factor in top:
                        yield from self._paired(divisor, factor)
            elif function == "broadcast":
                own = [(s, self.names[s]) for s in map(str, operands) if s in self.names]
                yield from (name for s, name in own if name in self.vectors and self._has_namesake(s, own))

    def _paired(self, divisor: str, factor: str) -> Iterator[tuple[str, str]]:
        """The inputs that `divisor` and `factor` belong to if they have one name."""
        stretched = [factor] if factor in self.names else self.dims.stretched(factor)
        if divisor in stretched:
            return
        named = self.names[divisor][0]
        others = [self.names[s] for s in stretched if s in self.names and self.names[s][0] == named]
        # of several that broadcast one is enough: those with one row may keep it
        for name, owner in [self.names[divisor], min(others, key=lambda each: each[1] or "")] if others else []:
            if owner is not None:
                yield name, owner

    def _has_namesake(self, symbol: str, others: list[tuple[str, tuple[str, str | None]]]) -> bool:
        return any(s != symbol and name == self.names[symbol][0] for s, (name, _) in others)
