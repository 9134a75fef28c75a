"""All rules at once on small random graphs: every e-node of every class computes the class's value.

A graph is made of the left sides of a few rules, sharing inputs, with random operators on top. Some letters
are symbols: the e-graph is saturated without knowing them, then evaluated for two sizes of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from onnx_egraph.egraph.checking.comparison import bind
from onnx_egraph.egraph.checking.sample import REPEATED, TURNS, Sample, Spec, draw
from onnx_egraph.egraph.engine.frozen import Frozen
from onnx_egraph.egraph.engine.saturate import Engine, Limits
from onnx_egraph.egraph.engine.term_graph import TermGraph
from onnx_egraph.egraph.targets import Target
from onnx_egraph.egraph.terms import INTS, LIST, OPS, TENSOR, IllFormed
from onnx_egraph.egraph.terms.dtypes import NAMES, code
from onnx_egraph.egraph.terms.expression import Expr
from onnx_egraph.egraph.terms.meaning import apply as compute
from onnx_egraph.rules import ALL

from .classes import evaluate_classes

GRAPHS = 12
Pair = tuple[Any, Any]  # a value for each of two sizes of the symbols


@dataclass
class Build:
    """A term graph under construction, with the value of every term for both sizes."""

    rng: np.random.Generator
    graph: TermGraph = field(default_factory=TermGraph)
    values: dict[int, Pair] = field(default_factory=dict)
    leaves: tuple[dict[int, np.ndarray], dict[int, np.ndarray]] = field(default_factory=lambda: ({}, {}))
    specs: dict[tuple[Any, ...], int] = field(default_factory=dict)
    law: list[str] = field(default_factory=list)

    def add(self, name: str, *args: Any) -> int:
        """The term; raises IllFormed if it cannot be computed for either size."""
        op = OPS[name]
        both = tuple(compute(op, [self._operand(a, s, i) for a, s in op.with_sorts(args)]) for i in (0, 1))
        term = self.graph.add(name, *args)
        if op.out == TENSOR and term not in self.values and both[0] is not None:
            self._facts(term, both)
        self.values[term] = both
        return term

    def _operand(self, a: Any, sort: str, i: int) -> Any:
        if sort == LIST:
            return [self.values[x][i] for x in a]
        return self.values[a][i] if sort in (TENSOR, "Nd") else tuple(a) if sort == INTS else a

    def _facts(self, term: int, both: Pair) -> None:
        first, second = both
        self.graph.state("dtype", term, code(first))
        self.graph.dims(term, [self._size(a, b) for a, b in zip(first.shape, second.shape, strict=True)])

    def _size(self, a: int, b: int) -> int | str:
        return a if a == b else f"{a}|{b}"

    def leaf(self, spec: Spec, both: Pair) -> int:
        key = (
            spec.kind,
            both[0].shape,
            both[1].shape,
            str(both[0].dtype),
            spec.value if spec.constant else "",
        )
        if spec.constant or key not in self.specs:
            self.specs[key] = self._leaf(spec, both)
        return self.specs[key]

    def _leaf(self, spec: Spec, both: Pair) -> int:
        payload, (first, second) = len(self.leaves[0]), both
        self.leaves[0][payload], self.leaves[1][payload] = first, second
        term = self.graph.add("Const" if spec.constant else "Input", payload)
        self.values[term] = both
        self._facts(term, both)
        for i, (a, b) in enumerate(zip(first.shape, second.shape, strict=True)):
            if a != b:
                self.graph.source(f"{a}|{b}", term, i - first.ndim)
        if not spec.constant:
            return term
        self.graph.state("const", term)
        if first.dtype.kind == "f" and first.size == 1:
            self.graph.state("fval", term, repr(float(first.reshape(-1)[0])))
        if first.dtype.kind == "i":
            self.graph.elements(term, [self._size(int(a), int(b)) for a, b in zip(first, second, strict=True)])
        if spec.kind == "ids=":
            self.graph.state("irange", term, int(first[0]), int(first[-1]) + 1, int(first[1] - first[0]))
        if spec.kind in REPEATED:
            self.graph.state("doubled", term, *REPEATED[spec.kind])
        if spec.kind in TURNS:
            self.graph.state("turns", term, *TURNS[spec.kind])
        return term

    def term(self, e: Expr, env: dict[str, Any], leaves: dict[str, int]) -> int:
        """The ids of a rule's left side on the given leaves."""
        if e.head == "var":
            return leaves[e.args[0]]
        assert e.op is not None
        args = [
            self._items(a, env, leaves)
            if s == LIST
            else self.term(a, env, leaves)
            if s in (TENSOR, "Nd")
            else a.value(env)
            for a, s in e.op.with_sorts(e.args)
        ]
        return self.add(e.head, *args)

    def _items(self, e: Expr, env: dict[str, Any], leaves: dict[str, int]) -> list[int]:
        if e.head == "var":
            return [leaves[e.args[0]]]
        return [self.term(e.args[0], env, leaves), *self._items(e.args[1], env, leaves)] if e.head == "Cons" else []

    def left_side(self, letters: tuple[dict[str, int], dict[str, int]]) -> int:
        """The left side of a random rule on a random one of its samples."""
        rule = ALL[int(self.rng.integers(len(ALL)))]
        # rules that assume a key in every row are among the others
        seen = [e for e in rule.holds if not any(str(v).startswith(("hiding", "lowest")) for v in e.values())]
        entry = (seen or rule.holds)[int(self.rng.integers(len(seen or rule.holds)))]
        sample = Sample(entry, rule.variables)
        drawn = [draw(sample, {**both, **sample.fixed()}, np.random.default_rng(1)) for both in letters]
        sides = rule.sides[int(self.rng.integers(len(rule.sides)))]
        env, _ = bind(sides, drawn[0].env, drawn[0].letters)
        leaves = {}
        for name, spec in drawn[0].specs.items():
            pair = tuple(d.env[name][0] if isinstance(d.env[name], list) else d.env[name] for d in drawn)
            leaves[name] = self.leaf(spec, pair)
        term = self.term(sides.lhs, env, leaves)
        self.law.append(f"{rule.name} {entry}")
        return term

    def on_top(self, x: int) -> int:
        """A random operator on x."""
        value, pick = self.values[x][0], int(self.rng.integers(8))
        rank = value.ndim
        if pick == 0 and rank > 1:
            return self.add("Transpose", x, tuple(int(i) for i in self.rng.permutation(rank)))
        if pick == 1:
            return self.add("Unsqueeze", x, -1 - int(self.rng.integers(rank + 1)))
        if pick == 2 and rank and value.shape[-1] % 2 == 0:
            h = value.shape[-1] // 2
            low, high = self.add("SliceC", x, -1, 0, h, 1), self.add("SliceC", x, -1, h, 2 * h, 1)
            return self.add("Concat", [self.add("Neg", high), low], -1)
        if pick == 3 and rank:
            return self.add("Concat", [x, x], -1)
        if pick == 4:
            return self.add("Cast", x, int(self.rng.choice([1, 10, 11])))
        other = int(self.rng.choice(list(self.values)))
        if pick in (5, 6) and isinstance(self.values[other][0], np.ndarray):
            return self.add("Mul" if pick == 5 else "Add", x, other)
        return self.add("Neg", x)


def build(seed: int) -> Build:
    made = Build(np.random.default_rng([seed, 1]))
    base = dict(zip("bdhknmst", (2, 4, 3, 5, 2, 6, 7, 3), strict=True))
    symbols = made.rng.permutation(list("bst"))[: int(made.rng.integers(0, 4))]
    letters = (base, {**base, **{c: int(made.rng.choice([1, base[c] + 1])) for c in symbols}})
    tops: list[int] = []
    for _ in range(40):
        if len(tops) >= 10:
            break
        try:
            x = made.left_side(letters) if len(tops) < 4 else made.on_top(int(made.rng.choice(tops)))
        except (IllFormed, KeyError, ValueError, IndexError, ZeroDivisionError):
            continue
        if isinstance(made.values[x][0], np.ndarray) and made.values[x][0].size:
            tops.append(x)
    made.graph.roots = tops
    return made


@pytest.fixture(scope="module")
def engine() -> Engine:
    names = {t.head for r in ALL for s in r.sides for t in s.rhs.subterms()}
    kinds = frozenset(("", n, "float32") for n in names) | frozenset(("com.microsoft", n, "float32") for n in names)
    made = Engine(ALL, Target("everything", "CPUExecutionProvider", 24, kinds))
    for name in sorted(names):
        for number in NAMES:
            made.run(f'(supported "{name}" {number})')
    return made


def saturated(engine: Engine, made: Build) -> Frozen:
    engine.run("(push)")
    try:
        engine.load(made.graph)
        engine.saturate(Limits(iterations=6, tuples=50_000))
        return engine.freeze()
    finally:
        engine.run("(pop)")


def disagreements(frozen: Frozen, made: Build, which: int) -> Iterator[str]:
    leaves = made.leaves[which]
    native = evaluate_classes(frozen, leaves)
    for cls, found in native.items():
        first = found[0].value
        if not isinstance(first, np.ndarray):
            continue
        for v in found[1:]:
            if v.value.shape != first.shape or v.value.dtype != first.dtype:
                kinds = f"{first.dtype}{first.shape} and {v.value.dtype}{v.value.shape}"
                yield f"{found[0].row} and {v.row} are {kinds}"
        if frozen.dtype.get(cls, code(first)) != code(first):
            yield f"{found[0].row}: the facts say element type {frozen.dtype[cls]}, it is {first.dtype}"
        shape = frozen.shape(cls)
        if shape is not None and (
            len(shape) != first.ndim
            or any(isinstance(d, int) and d != n for d, n in zip(shape, first.shape, strict=True))
        ):
            yield f"{found[0].row}: the facts say {shape}, it is {first.shape}"
    # A constant may be rounded to the narrowest type, and counts as the number it was rounded from.
    rounding = max([1e-5, *(float(np.finfo(v.dtype).eps) for v in leaves.values() if v.dtype == np.float16)])
    for found in evaluate_classes(frozen, leaves, wide=True).values():
        first = found[0].value
        if not isinstance(first, np.ndarray):
            continue
        for v in found[1:]:
            scale = np.abs(first[np.isfinite(first)]).max(initial=1.0) if first.dtype.kind == "f" else 0.0
            if not np.allclose(v.value, first, rtol=0, atol=rounding * scale, equal_nan=True):
                yield f"{found[0].row} and {v.row} differ: {v.value.ravel()[:4]} and {first.ravel()[:4]}"


@pytest.mark.parametrize("seed", range(GRAPHS))
def test_all_rules_together(seed: int, engine: Engine) -> None:
    made = build(seed)
    print(f"seed {seed}:", *made.law, sep="\n  ")
    frozen = saturated(engine, made)
    assert len(frozen.rows) > 10
    for which in (0, 1):
        assert not (found := list(disagreements(frozen, made, which))), "\n".join(found[:5])


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(GRAPHS, 100 * GRAPHS))
def test_all_rules_together_deep(seed: int, engine: Engine) -> None:
    test_all_rules_together(seed, engine)
