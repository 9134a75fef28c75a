"""One rule in an e-graph that holds nothing but a sample of it: what fires, is joined and is derived."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..budget import Limits
from ..engine.fact import counted, lowest
from ..engine.rule import Rule, Sides
from ..engine.saturate import Engine, Saturation
from ..errors import RuleError
from ..terms import FLOAT, INT, INTS, LIST, SILENT, TENSOR, IllFormed
from ..terms.dtypes import NAMES, code
from ..terms.expression import Expr, fill, number
from ..terms.meaning import evaluate
from .sample import REPEATED, TURNS, Drawn

_LIMITS = Limits(iterations=8, tuples=20_000)
_MARK = 1000  # numbers of values made for subterms; variables are numbered below


def ground(e: Expr, env: Mapping[str, Any], numbers: Mapping[str, int]) -> str:
    """A side of the rule in egglog's language, with values for its variables: tensors become (V number)."""
    if e.head == "var" and e.sort == TENSOR:
        return "(Absent)" if env.get(e.args[0], ()) is None else f"(V {numbers[e.args[0]]})"
    if e.head == "var" and e.sort == LIST:
        items = [f"(V {k})" for n, k in numbers.items() if n.partition(".")[0] == e.args[0]]
        return "".join(f"(Cons {item} " for item in items) + "(Nil)" + ")" * len(items)
    if e.sort == INTS:
        values = e.value(env) if e.head != "vec-empty" else ()
        return f"(vec-of {' '.join(map(str, values))})" if values else "(vec-empty)"
    if e.sort in (INT, FLOAT):
        value = e.value(env)
        return repr(float(value)) if e.sort == FLOAT else str(int(value))
    return f"({' '.join([e.head, *(ground(a, env, numbers) for a in e.args)])})"


@dataclass(frozen=True, slots=True)
class Seeding:
    """What the e-graph is told of a sample."""

    left: bool = True  # the left side itself, with the facts of its subterms, as the reader states them
    right: bool = False  # the right side, without facts
    without: frozenset[str] = frozenset()  # kinds of facts left out
    sources: bool = True  # symbols can be taken from a graph input


class Trial:
    """An e-graph with one rule, or none if `inert`. Each run starts from nothing else.

    Raises RuleError if egglog refuses the rule's text, for instance because a variable is bound by nothing.
    """

    def __init__(self, rule: Rule, *, inert: bool = False) -> None:
        self.rule = rule
        printed = replace(rule, sides=(), egglog="; no rule", declares=tuple(rule.terms)) if inert else rule
        try:
            self.engine = Engine([printed], present=None if inert else _terms(rule))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # egglog reports some errors as panics, which are no Exception
            raise RuleError(f"rule {rule.name}: egglog refuses it: {str(error).splitlines()[0]}") from None
        self.targets = sorted(rule.asks)

    def run(self, sides: Sides, drawn: Drawn, other: Drawn, env: Mapping[str, Any], how: Seeding) -> Fired:
        """Saturate with the left side of `sides` seeded; where `other` has another size, the size is a
        symbol.

        Raises UnsoundMerge when two facts contradict each other.
        """
        self.engine.run("(push)")
        try:
            seed = _Seed(drawn, other, env, how)
            known = (
                [] if "supported" in how.without else [f'(supported "{op}" {c})' for op in self.targets for c in NAMES]
            )
            self.engine.run("\n".join([*known, *seed.commands(sides)]))
            saturation = self.engine.saturate(_LIMITS)
            return self._read(sides, seed, saturation)
        finally:
            self.engine.run("(pop)")

    def _read(self, sides: Sides, seed: _Seed, saturation: Saturation) -> Fired:
        name = self.rule.name
        readings = tuple(
            i for i in range(len(self.rule.sides))
            if saturation.matches.get(f"{name}#{i}" if len(self.rule.sides) > 1 else name)
        )  # fmt: skip
        joined = bool(readings) and self._joined(sides, seed)
        facts = {}
        if seed.how.right:
            terms = [t for side in (sides.lhs, sides.rhs) for t in _subterms(side)]
            marks = [f"(union (V {_MARK + i}) {seed.text(t)})" for i, t in enumerate(terms)]
            self.engine.run("\n".join(marks))
            self.engine.run("(run-schedule (saturate (run facts)))")
            frozen = self.engine.freeze()
            for i, t in enumerate(terms):
                c = frozen.values[_MARK + i]
                facts[t.key()] = (t, frozen.dtype.get(c), frozen.rank.get(c), frozen.shape(c))
        return Fired(readings, joined, saturation, tuple(facts.values()))

    def _joined(self, sides: Sides, seed: _Seed) -> bool:
        try:
            self.engine.run(f"(check (= {seed.text(sides.lhs)} {seed.text(sides.rhs)}))")
        except (self.engine._b.EggSmolError, KeyError, IndexError):
            return False
        return True


@dataclass(frozen=True, slots=True)
class Fired:
    """What an e-graph did: readings that matched, whether both sides are joined, the facts of each term."""

    readings: tuple[int, ...]
    joined: bool
    saturation: Saturation
    facts: tuple[tuple[Expr, int | None, int | None, tuple[int | str | None, ...] | None], ...]


class _Seed:
    """Commands that state a sample: values, their facts, and the side that is loaded."""

    def __init__(self, drawn: Drawn, other: Drawn, env: Mapping[str, Any], how: Seeding) -> None:
        self.drawn, self.other, self.env, self.how = drawn, other, env, how
        self.numbers = {n: i for i, n in enumerate(drawn.specs)}
        self.symbols: dict[tuple[int, int], int] = {}

    def text(self, e: Expr) -> str:
        return ground(e, self.env, self.numbers)

    def size(self, a: int, b: int) -> str:
        if a == b:
            return f"(DNum {a})"
        return f"(DSym {self.symbols.setdefault((a, b), len(self.symbols))})"

    def commands(self, sides: Sides) -> list[str]:
        stated: list[tuple[str, str]] = []  # (kind of fact, command)
        for name, at in self.numbers.items():
            stated += self._variable(name, f"(V {at})")
        twin = {**self.env, **self.other.env}
        if self.how.left:
            stated.append(("", f"(union (V {_MARK - 1}) {self.text(sides.lhs)})"))
            for t in _subterms(sides.lhs):
                try:
                    value, second = evaluate(t, self.env), evaluate(t, twin)
                except (IllFormed, KeyError):
                    continue
                stated += self._shape(self.text(t), value, second) if value is not None else []
        if self.how.right:
            both = enumerate((sides.lhs, sides.rhs))
            stated += [("", f"(union (V {_MARK - 2 - i}) {self.text(s)})") for i, s in both]
        groups = ("weights-of", "biases-of")  # only a whole graph tells of them
        stated += [(f.head, self.text(f)) for g in sides.when for f in g.facts if f.head in groups]
        left_out = self.how.without if self.how.sources else self.how.without | {"source"}
        return [command for kind, command in stated if kind not in left_out]

    def _variable(self, name: str, v: str) -> list[tuple[str, str]]:
        spec, value, second = self.drawn.specs[name], self.drawn.env[name], self.other.env[name]
        if value is None:
            return []
        if isinstance(value, list):
            value, second = value[0], second[0]
        lines = self._shape(v, value, second)
        for i, (a, b) in enumerate(zip(value.shape, second.shape, strict=True)):
            if a != b:
                lines.append(("source", f"(source {self.size(a, b)} {v} {i - value.ndim})"))
        if spec.kind in ("positive", "squares"):
            lines.append(("bound", f"(zero-or-more {v})"))
        if spec.kind == "truths":
            lines.append(("zero-or-one", f"(zero-or-one {v})"))
        if not spec.constant:
            return lines
        lines.append(("const", f"(const {v})"))
        flat, twin = value.reshape(-1), second.reshape(-1)
        if (known := number(value)) is not None:
            lines.append(("fval", f"(set (fval {v}) {known!r})"))
        if (same := fill(value)) is not None:
            lines.append(("filled", f"(set (filled {v}) {same!r})"))
        if value.dtype.kind == "i" and value.ndim <= 1:
            lines.append(("len", f"(set (len {v}) {value.size})"))
            lines += [
                ("elem", f"(union (elem {v} {i}) {self.size(int(a), int(b))})")
                for i, (a, b) in enumerate(zip(flat, twin, strict=True))
            ]
        if spec.kind == "ids=" and (ids := counted(value)):
            lines.append(("irange", f"(irange {v} {ids[0]} {ids[1]} {ids[2]})"))
        if value.dtype == bool and value.size and (value.all() or not value.any()):
            truth = "all-true" if value.all() else "all-false"
            lines.append((truth, f"({truth} {v})"))
        if value.dtype.kind == "f" and value.size == 1 and np.isneginf(value).all():
            lines.append(("never", f"(never {v})"))
        if lowest(value):
            lines.append(("lowest", f"(lowest {v})"))
        if spec.kind == "causal":
            lines.append(("visible", f"(visible {v})"))
        for fact, kinds in (("doubled", REPEATED), ("turns", TURNS)):
            if spec.kind in kinds:
                lines.append((fact, f"({' '.join(map(str, (fact, v, *kinds[spec.kind])))})"))
        return lines

    def _shape(self, v: str, value: np.ndarray, second: np.ndarray) -> list[tuple[str, str]]:
        lines = [("dtype", f"(set (dtype {v}) {code(value)})"), ("rank", f"(set (rank {v}) {value.ndim})")]
        pairs = enumerate(zip(value.shape, second.shape, strict=True))
        return lines + [("dim", f"(union (dim {v} {i - value.ndim}) {self.size(a, b)})") for i, (a, b) in pairs]


def _terms(rule: Rule) -> frozenset[str] | None:
    """The terms that a sample of a rule can hold; None for a rule in egglog's text."""
    asked = [e for s in rule.sides for side in (s.lhs, s.rhs) for e in side.subterms()]
    asked += [p for s in rule.sides for g in s.when for f in g.facts for p in f.parts()]
    asked += [p for s in rule.sides for both in s.states for e in both for p in e.parts()]
    return SILENT.union(e.op.name for e in asked if e.op is not None) if rule.sides else None


def _subterms(e: Expr) -> list[Expr]:
    """Tensor-valued constructors, children first, each once."""
    found = {t.key(): t for t in e.subterms() if t.sort == TENSOR and t.op is not None}
    return list(found.values())
