"""The terms of a small e-graph on random inputs: every e-node of a class must have the class's value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine.frozen import Frozen, Row
from ..engine.term_graph import TermGraph
from ..terms import CLASSES, FLOAT, INTS, LEAVES, TENSOR, Op, names
from ..terms.dtypes import NAMES, eps, masking

Array = npt.NDArray[Any]
_GIVEN = names("stored", "number")
_SYMBOLS = (2, 3, 5, 4, 7, 6)
#: What truths are, one after the other until every row of a mask has a key: drawn, and then all of them alike.
_TRUTHS = (*[None] * 8, True, False)


@dataclass(frozen=True, slots=True)
class NumberSource:
    """Where numbers come from: `size` of a symbolic dimension, and the elements of a constant by its payload.

    The default gives each symbol one of a few small sizes, which is right only for symbols that are
    independent.
    """

    size: Callable[[str], int] | None = None
    constant: Callable[[int], Array | None] = lambda payload: None
    seed: int = 0


class Evaluation:
    """Values of the terms of a graph, and the comparison of all that an e-graph holds equal.

    With `visible`, numbers are drawn again where a row of a mask, or of scores, hides all there is in it.
    """

    def __init__(
        self, graph: TermGraph, extra: Mapping[str, Op], inputs: NumberSource, *, visible: bool = False
    ) -> None:
        self.graph, self.ops, self.inputs = graph, {**graph.ops, **extra}, inputs
        self._symbols = {k: name for name, k in graph.symbols.items()}
        self._facts: dict[int, dict[str, list[tuple[Any, ...]]]] = {}
        for fact, stated in graph.facts.items():
            for term, *rest in stated:
                self._facts.setdefault(term, {}).setdefault(fact, []).append(tuple(rest))
        self._sizes: dict[int, int] = {}
        self._sums: dict[int, tuple[tuple[int, ...], int]] = {}  # symbol -> symbols and a number, which add up to it
        for d, *terms in graph.facts.get("dimsum", ()):
            self._sums[d] = (tuple(terms), 0)
        for d, term, number in graph.facts.get("dimplus", ()):
            self._sums.setdefault(d, ((term,), number))
        self._vectors = {k: v for v, k in graph.vectors.items()}
        spelled: dict[int, list[tuple[str, tuple[Any, ...]]]] = {}
        for name, rows in graph.rows.items():
            for term, *args in rows:
                spelled.setdefault(term, []).append((name, tuple(args)))
        for draw, truth in enumerate(_TRUTHS):
            self._draw(spelled, inputs.seed + draw, truth)
            if not visible or not any(self._hides(term) for term in spelled):
                return
        self._draw(spelled, inputs.seed, None)

    def _draw(self, spelled: Mapping[int, list[tuple[str, tuple[Any, ...]]]], seed: int, truth: bool | None) -> None:
        self._random, self._truth = np.random.default_rng(seed), truth
        self.values: dict[int, Any] = {}
        self._units: dict[int, float] = {}  # the coarsest rounding on the way to a value
        self._leaves: dict[int, Array | None] = {}
        for term in sorted(spelled, key=lambda t: (not _known(spelled[t]), t)):  # operands have lower numbers
            for name, operands in sorted(spelled[term], key=lambda t: t[0] == "Input"):
                if self.values.get(term) is None:
                    self.values[term] = self._original(term, name, operands)
                if name == "Input" and self.values[term] is not None:
                    self._leaves.setdefault(operands[0], self.values[term])

    def _original(self, term: int, name: str, args: Sequence[Any]) -> Any:
        if name == "Const":
            array = self.inputs.constant(args[0])
            return self._leaf(term) if array is None else array
        if name == "Input":
            if args[0] not in self._leaves:  # equal leaves share their payload
                self._leaves[args[0]] = self._leaf(term)
            return self._leaves[args[0]]
        op = self.ops[name]
        value = self._apply(op, [
            self.values.get(a) if s in CLASSES else self._vectors[a] if s == INTS else float(a) if s == FLOAT else a
            for a, s in op.with_sorts(args)
        ])  # fmt: skip
        operands = (a for a, s in op.with_sorts(args) if s in CLASSES)
        self._units[term] = max(_unit(value), *(self._units.get(a, 0.0) for a in operands), 0.0)
        return value

    def _hides(self, term: int) -> bool:
        """A row of a value is so low throughout that it masks; of one that is no number given."""
        x = self.values[term]
        if not isinstance(x, np.ndarray) or x.dtype.kind != "f" or not x.ndim or not x.size:
            return False
        given = "fval" in self._facts.get(term, {})
        return not given and bool((x.max(-1) <= masking(x.dtype.itemsize)).any())

    def _apply(self, op: Op, values: Sequence[Any]) -> Any:
        """A term's numpy meaning; None if it has none, an operand is unknown or the drawn shapes do not fit."""
        if op.numpy is None or any(v is None for v in values):
            return None
        try:
            with np.errstate(all="ignore"):
                return op.numpy(*values)
        except (ValueError, IndexError, TypeError):
            return None

    def _size(self, symbol: int) -> int:
        """The size of a symbol: what the graph says it is the sum of, or else as given."""
        if symbol not in self._sizes:
            given = self.inputs.size
            name = self._symbols[symbol]
            self._sizes[symbol] = given(name) if given is not None else _SYMBOLS[symbol % len(_SYMBOLS)]
            parts, more = self._sums.get(symbol, ((), 0))
            if parts:  # a sum that leads back to its symbol meets the size given
                self._sizes[symbol] = sum(self._size(part) for part in parts) + more
        return self._sizes[symbol]

    def _dims(self, facts: Mapping[str, list[tuple[Any, ...]]], fact: str, count: int, first: int) -> list[int] | None:
        known = {i: d for i, d in facts.get(f"{fact}-num", ())}
        known |= {i: self._size(s) for i, s in facts.get(f"{fact}-sym", ())}
        return [known[first + i] for i in range(count)] if all(first + i in known for i in range(count)) else None

    def _leaf(self, term: int) -> Array | None:
        """Random numbers of the term's type and shape: normal, 0 or 1, True or False; its elements where
        known, and such as the facts of masks allow.
        """
        facts = self._facts.get(term, {})
        if "rank" not in facts or "dtype" not in facts:
            return None
        rank, dtype = facts["rank"][0][0], NAMES.get(facts["dtype"][0][0], "string")
        dims = self._dims(facts, "dim", rank, -rank)
        if dims is None or dtype in ("string", "bfloat16"):
            return None
        if "len" in facts:
            elements = self._dims(facts, "elem", facts["len"][0][0], 0)
            if elements is not None:
                return np.asarray(elements, dtype).reshape(dims)
        if "fval" in facts:
            return np.full(dims, float(facts["fval"][0][0]), dtype)
        if dtype == "bool" and self._truth is not None and "all-true" not in facts:
            return np.full(dims, self._truth)
        if np.dtype(dtype).kind in "iub":
            return _allowed(self._random.integers(0, 2, dims).astype(dtype), facts)
        return _allowed(self._random.standard_normal(dims).astype(dtype), facts)

    def check(self, frozen: Frozen, tolerance: float) -> tuple[int, float, Row | None]:
        """(e-nodes compared, largest relative difference, an e-node that differs from its class or None).

        `tolerance` 0 asks for equal bits; 1 allows what reassociation may do to a sum over the longest axis, of numbers
        as coarse as the coarsest on the way to them.
        """
        values: dict[int, Any] = {}
        units: dict[int, float] = {}
        for term in sorted(self.values):
            if self.values[term] is not None and term in frozen.values:
                values.setdefault(frozen.values[term], self.values[term])
                cls = frozen.values[term]
                units[cls] = max(units.get(cls, 0.0), self._units.get(term, 0.0))
        terms = (r for r in frozen.rows if r.op not in LEAVES and r.op != "DimT")
        waiting = sorted(terms, key=lambda r: (r.op, r.children, r.attrs))
        compared, worst = 0, 0.0
        progress = True
        while progress:
            progress, later = False, list[Row]()
            for row in waiting:
                op = self.ops[row.op]
                got = self._apply(op, op.joined(map(values.get, row.children), row.attrs))
                if got is None:
                    later.append(row)
                    continue
                progress = True
                unit = max(_unit(got), *(units.get(c, 0.0) for c in row.children), 0.0)
                if row.cls not in values:
                    values[row.cls], units[row.cls] = got, unit
                    continue
                if op.out != TENSOR:
                    continue
                compared += 1
                error, same = _difference(values[row.cls], got, tolerance * max(unit, units.get(row.cls, 0.0)))
                worst = max(worst, error)
                if not same:
                    return compared, worst, row
            waiting = later
        return compared, worst, None


def _allowed(array: Array, facts: Collection[str]) -> Array:
    """Random numbers as those facts say that the elements are."""
    if "lowest" in facts:
        return np.full_like(array, -np.inf)
    if "all-true" in facts or (array.dtype == bool and array.ndim and array.shape[-1] == 1 and "row-true" in facts):
        return np.ones_like(array)
    if "zero-or-one" in facts:
        return (array > 0).astype(array.dtype)
    if not {"no-negative", "zero-or-more"}.isdisjoint(facts):
        array = np.abs(array)
    if array.ndim and array.shape[-1] and "has-zero" in facts:
        array[..., 0] = 0
    if array.ndim and array.shape[-1] > 1 and array.dtype == bool:  # a mask that hides a whole row is a case of its own
        array[..., 1] = ~array[..., 0]
    return array


def _known(rows: Sequence[tuple[str, tuple[Any, ...]]]) -> bool:
    """A leaf whose value is given: it decides for the leaves that are equal to it."""
    return len(rows) > 1 and any(name in _GIVEN for name, _ in rows)


def _unit(value: Any) -> float:
    """The rounding of a floating value; 0 of another."""
    return eps(str(getattr(value, "dtype", "")))


def _difference(want: Any, got: Any, unit: float) -> tuple[float, bool]:
    """(largest difference relative to the largest element, whether it is within so many units of rounding)."""
    a, b = np.asarray(want), np.asarray(got)
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf"), False
    if a.dtype.kind not in "fc" or not a.size:
        return 0.0, bool(np.array_equal(a, b))
    finite = np.isfinite(a) & np.isfinite(b)
    scale = float(np.max(np.abs(a), initial=0.0, where=finite))
    with np.errstate(invalid="ignore"):  # of infinities, which are compared apart
        apart = float(np.max(np.abs(a.astype(np.float64) - b), initial=0.0, where=finite))
    alike = bool(np.array_equal(a[~finite], b[~finite], equal_nan=True))
    bound = 8 * unit * max(a.shape, default=1) ** 0.5 * scale
    return (apart / scale if scale else apart), alike and apart <= bound
