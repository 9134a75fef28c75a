"""Explanations of one optimized graph: by which rules a node came to be, and what almost matched."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ..egraph.budget import Budget, LimitReached, Limits
from ..egraph.engine.frozen import Frozen, Row
from ..egraph.engine.rule import Rule
from ..egraph.engine.saturate import Engine
from ..egraph.explanation.conflict import saturate
from ..egraph.explanation.evaluation import Array, NumberSource
from ..egraph.explanation.explain import Derivation, derive
from ..egraph.explanation.near_misses import Called, near_misses, stopped
from ..egraph.explanation.region import Regions
from ..egraph.targets import Target
from ..egraph.terms import FUSED, LAYOUT, OPS
from .model.tensors import elements
from .reader import Reading
from .shapes.inference import Shapes

#: Constants up to this many bytes are loaded to check a derivation; larger ones are random numbers.
_LARGEST = 2**28
_SIZES = (2, 3, 5, 4, 7, 6)


@dataclass(slots=True)
class Explainer:
    """`nodes` says which class each new fused node of the written graph prints, `others` the same of the other new
    ones, and `values` what a class is called there.
    """

    reading: Reading
    shapes: Shapes
    frozen: Frozen
    choice: Mapping[int, Row]
    rules: Sequence[Rule]
    target: Target
    limits: Limits
    old: set[Row]
    nodes: dict[str, int] = field(default_factory=dict)
    others: dict[str, int] = field(default_factory=dict)
    values: dict[int, str] = field(default_factory=dict)
    _regions: Regions | None = None
    _derived: dict[object, Derivation] = field(default_factory=dict)

    @property
    def regions(self) -> Regions:
        if self._regions is None:
            self._regions = Regions(self.reading.terms, self.frozen, self.choice, self.rules)
        return self._regions

    def rules_of(self, cls: int) -> tuple[str, ...]:
        """Names of the rules that may have led to a chosen class, in the order of their stages; cheap."""
        regions = self.regions
        return tuple(self.rules[k].name for k in regions.candidates(regions.of(cls)))

    def absorbed(self, cls: int) -> set[str]:
        """Names of the original nodes and values that the operator of a class stands for."""
        names: set[str] = set()
        cone = self.regions.cone(self.regions.of(cls))
        for term in set(cone.terms) - cone.cut:
            for value in self.reading.origin.get(term, ()):
                producer = value.producer()
                names.update(n for n in (value.name, None if producer is None else producer.name) if n)
        return names

    def names(self) -> set[str]:
        """Names of the original nodes and values."""
        values = [v for vs in self.reading.origin.values() for v in vs]
        nodes = [n for v in values if (n := v.producer()) is not None]
        return {name for name in (*(v.name for v in values), *(n.name for n in nodes)) if name}

    def derivation(self, cls: int, budget: Budget | None = None) -> Derivation:
        """The chain of rules that leads to a chosen class, replayed; equal regions of a graph share the work.

        The limits hold anew for each call, unless it is part of one that has a budget: then it raises LimitReached.
        """
        given = budget or Budget(self.limits)
        try:
            made = self._derivation(cls, given, views=True)
            if made.complete or self.regions.of(cls) is self.regions.of(cls, views=False):
                return made
            whole = self._derivation(cls, given, views=False)
            return whole if whole.complete else made
        except LimitReached as reached:
            if budget is not None:
                raise
            return Derivation("", (), "", False, stop=str(reached))

    def _derivation(self, cls: int, budget: Budget, *, views: bool) -> Derivation:
        regions = self.regions
        region = regions.of(cls, views=views)
        key = regions.shape(region)
        known = self._derived.get(key)
        if known is None:
            known = self._derived[key] = derive(regions, cls, self.target, self._inputs(), budget, views=views)
        names = [self._value(c) for c in region.leaves]
        where = tuple((letter, name) for letter, name in zip(known.letters, names, strict=True) if letter and name)
        return dataclasses.replace(known, where=where)

    def _value(self, cls: int) -> str:
        """The name of a class's value in the model, or else in the result."""
        if cls in self.regions.start:
            values = self.reading.origin.get(self.regions.start[cls])
            return (values[0].name if values else None) or ""
        made = self.values.get(cls)
        return f"{made} of the result" if made else ""

    def false_rules(self, budget: Budget) -> list[str]:
        """The rule of the first step that changes a value, for each derivation of a part of the graph that
        has one. Raises LimitReached.
        """
        found: dict[str, None] = {}
        regions = self.regions
        for root in dict.fromkeys(regions.of(c).root for c in self.choice):
            if set(regions.candidates(regions.of(root))):
                steps = self.derivation(root, budget).steps
                found.update((s.rule, None) for s in [s for s in steps if s.false][:1])
        return list(found)

    def misses(self, budget: Budget, *, again: bool = False) -> list[str]:
        """What was not fused and why: patterns of which a guard failed or the structure differs, and dear operators.

        Only nodes that are still in the graph count, which was optimized `again` after this pass. Saturates the graph
        once more. What a limit leaves no room for is said last.
        """
        lines: dict[str, None] = {}
        try:
            self._miss(lines, budget, again)
        except LimitReached as reached:
            lines[f"the search stopped early ({reached}): more may be missed"] = None
        return list(lines)

    def _miss(self, lines: dict[str, None], budget: Budget, again: bool) -> None:
        engine = Engine(self.rules, self.target, present=self.reading.terms.rows, budget=budget)
        engine.load(self.reading.terms)
        saturation = saturate(engine, budget, rest=budget.left() / 2 if budget.timed else 0.0)
        budget.check("looking for near misses")
        frozen = engine.freeze()
        kept = {c for c, r in self.choice.items() if r in self.old} - (self._gone() if again else set())
        terms = self.frozen.values.items()
        live = {frozen.values[t] for t, c in terms if c in kept}
        inside = {frozen.values[t] for t, c in terms if c in kept and self._holds_fused(c)}
        nodes = {frozen.values[t]: name for t in reversed(list(self.reading.origin)) if (name := self._node(t))}
        if not saturation.complete:
            lines[f"saturation stopped early ({saturation.stop}): with more, more may be fused"] = None
        dear = {
            r.cls: OPS[r.op].title
            for r in frozen.rows
            if r.op in FUSED and r not in self.old and r.cls in live - inside
        }
        for cls, op in sorted(dear.items()):
            lines[f"{nodes.get(cls, '?')}: {op} would be equal, but the graph costs less without it"] = None
        live -= {*dear, *inside}
        inner = self._inner(frozen) - live
        readable = self.shapes.readable
        sizes = {f"${k}": readable.get(name, name) for name, k in self.reading.terms.symbols.items()}
        values = {frozen.values[t]: vs[0].name or "" for t, vs in self.reading.origin.items() if vs}
        names = Called(sizes, {cls: name for cls, name in values.items() if name})
        missed = near_misses(
            engine, frozen, live, inner, complete=saturation.complete, budget=budget, names=names, told=dear
        )
        for miss in missed:
            made = OPS[miss.makes].title if miss.makes in FUSED else miss.makes
            lines[f"{nodes.get(miss.cls, '?')} ({made}): {miss}"] = None
        for stop in stopped(engine, frozen, live, missed) if saturation.complete else ():
            lines[f"{nodes.get(stop.cls, '?')}: {stop}{_taken(frozen, stop.cls, nodes)}"] = None

    def _gone(self) -> set[int]:
        """Classes whose values are computed by other operators now, or no more."""
        now = {out.name: node.op_type for node in self.reading.graph for out in node.outputs}
        stay = {
            self.frozen.values[term] for term, values in self.reading.origin.items() for value in values
            if (node := value.producer()) is None or now.get(value.name) == node.op_type
        }  # fmt: skip
        return set(self.choice) - stay

    def _holds_fused(self, cls: int) -> bool:
        """The value is computed from a fused operator by moving axes only, or as another type."""
        row = self.choice[cls]
        while (row.op in LAYOUT or row.op == "Cast") and row.children[0] in self.choice:
            row = self.choice[row.children[0]]
        return row.op in FUSED

    def _inner(self, frozen: Frozen) -> set[int]:
        """Classes of the original values that new fused operators stand for, in another freeze of the e-graph."""
        regions = self.regions
        fused = {c for c, r in self.choice.items() if r.op in FUSED and r not in self.old}
        terms = {t for c in fused for t in regions.cone(regions.of(c)).terms if t in self.frozen.values}
        return {frozen.values[t] for t in terms}

    def _node(self, term: int) -> str:
        """The node of the model that computes a term, or its value where nodes have no names."""
        value = self.reading.origin[term][0]
        node = value.producer()
        return (node.name if node is not None and node.name else value.name) or ""

    def _inputs(self) -> NumberSource:
        sizes: dict[str, int] = {}

        def size(dim: str) -> int:
            for symbol in sorted(self.shapes.symbols(dim)):
                sizes.setdefault(symbol, _SIZES[len(sizes) % len(_SIZES)])
            try:
                return max(self.shapes.evaluate(dim, sizes), 0)
            except ValueError:
                return sizes.setdefault(dim, _SIZES[len(sizes) % len(_SIZES)])

        def constant(payload: int) -> Array | None:
            tensor = self.reading.payloads.values[payload].const_value
            if tensor is None or tensor.dtype == ir.DataType.STRING or tensor.nbytes > _LARGEST:
                return None
            array = elements(tensor)
            # by name: an array read from a file has a type of its own, with its byte order
            return None if array.dtype.kind == "V" else array.astype(array.dtype.name, copy=False)

        return NumberSource(size, constant)


def _taken(frozen: Frozen, cls: int, nodes: Mapping[int, str]) -> str:
    """Which nodes take the value of a class, as the end of a sentence."""
    rows = (r for r in frozen.rows if cls in r.children and r.cls != cls and r.cls in nodes)
    takers = sorted({nodes[r.cls] for r in rows if r.op in OPS and not OPS[r.op].marker})
    return f"; it goes into {' and '.join(takers)}" if takers else ""
