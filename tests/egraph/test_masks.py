"""What is derived of masks holds in numbers: random terms of lengths, ranges and comparisons, each fact checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from onnx_egraph.egraph.engine.saturate import Engine
from onnx_egraph.egraph.engine.term_graph import TermGraph
from onnx_egraph.egraph.terms import OPS, IllFormed
from onnx_egraph.egraph.terms.dtypes import BOOL, code
from onnx_egraph.egraph.terms.meaning import apply

LOW = -3e38
COMPARE = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")


def _any_per_row(hit: np.ndarray) -> bool:
    return bool(np.atleast_1d(hit).any(-1).all())


#: relation -> whether it is true of a value
MEANS: dict[str, Callable[[np.ndarray], bool]] = {
    "no-negative": lambda x: bool((x >= 0).all()),
    "has-zero": lambda x: _any_per_row(x == 0),
    "all-true": lambda x: bool((x != 0).all()),
    "row-true": lambda x: x.dtype == bool and _any_per_row(x),
    "visible": lambda x: _any_per_row(x if x.dtype == bool else x > -1e30),
}


class Terms:
    """A term graph and the value of each term for one past and one length."""

    def __init__(self, past: int, length: int) -> None:
        self.graph, self.values = TermGraph(), dict[int, np.ndarray]()
        x, p = (self.leaf(np.zeros((1, n), np.float32), constant=False) for n in (length, past))
        zero, one = (self.add("Int0", n) for n in (0, 1))
        self.p, self.s = (self.add("Squeeze", self.add("Shape", t, -1, 0), -1) for t in (p, x))
        total = self.add("Add", self.p, self.s)
        news = self.add("Range", zero, self.s, one)
        self.ranges = [
            news, self.add("Range", zero, total, one), self.add("Add", news, self.p),
            self.add("Range", one, total, one), self.add("Range", self.p, total, one), self.add("Sub", news, self.p),
        ]  # fmt: skip
        self.numbers = [zero, one, self.p, *(self.add("Int0", n) for n in (2, 3, -1))]

    def leaf(self, value: np.ndarray, *, constant: bool) -> int:
        term = self.graph.add("Const" if constant else "Input", len(self.values))
        return self.known(term, value)

    def known(self, term: int, value: np.ndarray) -> int:
        if term not in self.values:
            self.values[term] = value
            self.graph.state("dtype", term, code(value))
            self.graph.dims(term, value.shape)
            if value.dtype == np.int64 and value.ndim == 0:
                self.graph.elements(term, [int(value)])
        return term

    def add(self, name: str, *args: Any) -> int:
        """Raises IllFormed if the operands do not fit."""
        tensors = [self.values[a] if s == "T" else a for a, s in OPS[name].with_sorts(args)]
        value = apply(OPS[name], tensors)
        return self.known(self.graph.add(name, *args), value)

    def scalar(self, number: float) -> int:
        term = self.leaf(np.asarray(number, np.float32), constant=True)
        self.graph.state("const", term)
        self.graph.state("fval", term, repr(number))
        if number <= LOW:
            self.graph.state("lowest", term)
        return term

    def true(self) -> int:
        term = self.leaf(np.asarray(True), constant=True)
        self.graph.state("all-true", term)
        return term


def grow(t: Terms, rng: np.random.Generator) -> None:
    """Masks as exporters write them, and as they do not."""

    def pick(terms: list[int]) -> int:
        return terms[int(rng.integers(len(terms)))]

    columns = [t.add("Unsqueeze", t.add("Unsqueeze", r, -2), -2) for r in t.ranges]
    rows = [t.add("Unsqueeze", t.add("Unsqueeze", r, -1), -3) for r in t.ranges]
    vectors = [*columns, *rows, *t.numbers]
    for _ in range(12):
        vectors.append(t.add(str(rng.choice(["Sub", "Add"])), pick(columns + rows), pick(vectors)))
        vectors.append(t.add("Abs", vectors[-1]))
    truths = [t.true()]
    for _ in range(60):
        truths.append(t.add(str(rng.choice(COMPARE)), pick(vectors), pick(vectors)))
    for a, b in ((rows, columns), (columns, rows)):
        truths += [t.add(str(rng.choice(COMPARE)), pick(a), pick(b)) for _ in range(20)]
    for _ in range(60):
        truths.append(t.add(str(rng.choice(["And", "Or"])), pick(truths), pick(truths)))
    zero, low = t.scalar(0.0), t.scalar(LOW)
    for _ in range(40):
        t.add("Where", pick(truths), *((zero, low) if rng.random() < 0.7 else (low, zero)))
        if (rank := t.values[wide := pick(truths)].ndim) > 0:
            t.add("Expand", pick(truths), t.add("Shape", wide, -rank, 0))


@pytest.mark.parametrize("seed", range(24))
def test_facts_of_masks_are_true(seed: int) -> None:
    rng = np.random.default_rng(seed)
    terms = Terms(int(rng.choice([0, 1, 2, 3, 5])), int(rng.choice([1, 2, 3, 5])))
    for _ in range(20):
        try:
            grow(terms, rng)
        except IllFormed:  # sizes that do not broadcast
            continue
    engine = Engine([])
    engine.load(terms.graph)
    engine.facts()
    frozen = engine.freeze()
    value = {cls: terms.values[term] for term, cls in frozen.values.items()}
    functions = engine.egraph.freeze().functions
    for relation, means in MEANS.items():
        found = {frozen.class_of(row.inputs[0]) for row in functions[relation].rows}
        false = [c for c in found if c in value and value[c].size and not means(value[c])]
        assert not false, (relation, [value[c] for c in false[:3]])


def mask(past: int, length: int, window: int | None = None, *, late: bool = False) -> tuple[Terms, int]:
    """Causal, with a window if so asked; `late` hides the position itself, too."""
    t = Terms(past, length)
    columns = t.add("Unsqueeze", t.ranges[1], -2)
    rows = t.add("Unsqueeze", t.ranges[2], -1)
    seen = t.add("Less" if late else "LessOrEqual", columns, rows)
    if window is not None:
        inside = t.add("Greater", columns, t.add("Sub", rows, t.add("Int0", window)))
        seen = t.add("And", t.true(), t.add("And", inside, seen))
    return t, t.add("Where", seen, t.scalar(0.0), t.scalar(LOW))


@pytest.mark.parametrize(("window", "late", "proved"), [
    (None, False, True), (4, False, True), (1, False, True), (None, True, False), (4, True, False), (0, False, False),
])  # fmt: skip
def test_causal_masks_with_a_past_and_a_window_are_proved_visible(window: int | None, late: bool, proved: bool) -> None:
    terms, made = mask(3, 2, window, late=late)
    engine = Engine([])
    engine.load(terms.graph)
    engine.facts()
    assert engine.holds(f"(visible (V {made}))") == proved
    assert code(terms.values[made]) != BOOL


@pytest.mark.parametrize(("step", "first", "proved"), [(1, 0, True), (2**40, 0, False), (1, 2**62, False)])
def test_positions_that_may_wrap_around_are_not_all_positive(step: int, first: int, proved: bool) -> None:
    terms = Terms(0, 3)
    a, b = terms.add("Int0", first), terms.add("Int0", step)
    made = terms.add("Range", a, terms.add("Int0", first + 3 * step), b)
    narrow = terms.add("Cast", made, code(np.zeros(0, np.int32)))
    twice = terms.add("Add", made, made)
    engine = Engine([])
    engine.load(terms.graph)
    engine.facts()
    assert [engine.holds(f"(no-negative (V {t}))") for t in (narrow, twice)] == [proved] * 2


def test_a_window_over_positions_that_wrap_around_may_hide_all() -> None:
    terms = Terms(0, 2)
    p = terms.leaf(np.asarray(-(2**63)), constant=False)
    positions = terms.add("Add", terms.ranges[0], p)
    columns, rows = terms.add("Unsqueeze", positions, -2), terms.add("Unsqueeze", positions, -1)
    with np.errstate(over="ignore"):
        seen = terms.add("Greater", columns, terms.add("Sub", rows, terms.add("Int0", 3)))
    engine = Engine([])
    engine.load(terms.graph)
    engine.facts()
    assert not engine.holds(f"(row-true (V {seen}))")
    assert not terms.values[seen].any()
