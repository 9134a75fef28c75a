"""Which part of a result a fused operator belongs to, the part of the original it stands for, and the rules between.

A region is a chosen class that holds an original value, with the chosen terms under it down to the next
classes that hold one: its leaves. Its cone is the original computation of the same class down to the same
leaves. A class that is an original value in another layout counts as one that holds it (`view.py`): it has a
region of its own, and others end there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..engine.frozen import Frozen, Row
from ..engine.rule import STAGES, Rule
from ..engine.term_graph import TermGraph
from ..terms import CLASSES, CONSTANTS, LAYOUT, LEAVES, names
from ..terms.dtypes import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from .view import View, Views

#: A cone is cut after this many terms; what lies below becomes a leaf.
CONE_LIMIT = 500
#: A leaf beside the cone is looked at this many operators deep.
_REACH = 4
_LEAVES = LEAVES | CONSTANTS | {"Nil"}
_PARTS = names("list") | {"DimT"}
_OPAQUE = names("opaque")
_FLOATS = frozenset({FLOAT32, FLOAT16, FLOAT64, BFLOAT16})

Term = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Region:
    """`root` and `leaves` are classes; `rows` the chosen terms between, `start` the original term they stand for.

    It is the root's, or with a `lift` that of which the root is another layout. A leaf holds an original value,
    or is one in another layout; `views` are those of the leaves, or of terms that are layouts of leaves. Of the
    classes `sized` the terms take the shape only.
    """

    root: int
    start: int
    rows: Mapping[int, Row]
    leaves: tuple[int, ...]
    views: tuple[View, ...] = ()
    lift: View | None = None
    sized: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Cone:
    """`terms` of the original graph by id, and the ids that are cut: leaves of the derivation."""

    terms: Mapping[int, Sequence[Term]]
    cut: frozenset[int]


class Regions:
    """The regions of one chosen graph."""

    def __init__(self, graph: TermGraph, frozen: Frozen, choice: Mapping[int, Row], rules: Sequence[Rule]) -> None:
        self.graph, self.frozen, self.choice, self.rules = graph, frozen, choice, rules
        self.start: dict[int, int] = {}  # class -> its first original term
        for term, cls in frozen.values.items():
            self.start[cls] = min(term, self.start.get(cls, term))
        self._terms: dict[int, list[Term]] = {}
        for name, rows in graph.rows.items():
            for out, *args in rows:
                self._terms.setdefault(out, []).append((name, tuple(args)))
        self._users: dict[int, list[int]] = {}
        for c, r in choice.items():
            for child in r.children:
                self._users.setdefault(child, []).append(c)
        self._readings = [_heads(r) for r in rules]
        self._wanted = [frozenset[str]().union(*(takes for takes, _ in readings)) for readings in self._readings]
        self._views: Views | None = None
        self._viewed: dict[int, View | None] = {}
        self._regions: dict[tuple[int, bool], Region] = {}
        self._by: dict[tuple[object, ...], tuple[int, ...]] = {}

    def of(self, cls: int, *, views: bool = True) -> Region:
        """The region a chosen class is in: the first above it when it serves several.

        Without `views`, regions begin and end at classes that hold an original value only.
        """
        seen, level = {cls}, [cls]
        while level:
            roots = sorted(c for c in level if c in self.start or (views and self._view(c) is not None))
            if roots:
                return self._region(roots[0], views)
            level = sorted({u for c in level for u in self._users.get(c, ())} - seen)
            seen.update(level)
        raise ValueError(f"class {cls} is not part of the chosen graph")

    def _view(self, cls: int) -> View | None:
        """The original value that a chosen class without one is another layout of; None if there is none.

        Terms that only move axes have no view: they belong to what takes them.
        """
        if cls not in self._viewed:
            self._viewed[cls] = None
            row = self.choice.get(cls)
            floating = self.frozen.dtype.get(cls) in _FLOATS
            if row is not None and cls not in self.start and row.op not in LAYOUT | _LEAVES and floating:
                if self._views is None:
                    self._views = Views(self.frozen, self.start)
                found = self._views.of(cls)
                self._viewed[cls] = next((v for v in found if v.value not in self._grown(v, cls).leaves), None)
        return self._viewed[cls]

    def _grown(self, lift: View | None, cls: int, views: bool = True) -> Region:
        """The region of a class, from its lift down."""
        rows: dict[int, Row] = {}
        leaves: dict[int, None] = {}
        sized: dict[int, None] = {}
        viewed: dict[int, View] = {}  # value -> view
        above = lift if lift is not None and lift.above else None
        root = cls if above is None else above.value
        stack = [cls]
        while stack:
            c = stack.pop()
            if c in rows or c in leaves:
                continue
            if c != cls and c in self.start:
                leaves[c] = None
                continue
            view = self._view(c) if views and c not in (cls, root) else None
            if view is not None and view.value not in viewed and view.value != root:
                viewed[view.value] = view
                leaves[c if view.above else view.value] = None
                continue
            row = rows[c] = self.choice[c]
            if row.op == "Shape" and row.children[0] in self.start:
                sized[row.children[0]] = None
            else:
                stack += reversed(row.children)
        if above is not None:
            rows = {**{r.cls: r for r in (*above.rows, *above.numbers)}, **rows}
        for view in [*viewed.values(), *([lift] if lift is not None else [])]:
            leaves.update((c, None) for r in view.rows for c in r.children[1:] if c in self.start)
        start = self.start.get(cls if lift is None else lift.value, -1)
        return Region(root, start, rows, tuple(leaves), tuple(viewed.values()), lift,
                      tuple(c for c in sized if c not in leaves))  # fmt: skip

    def _region(self, cls: int, views: bool) -> Region:
        known = self._regions.get((cls, views))
        if known is None:
            lift = self._view(cls) if views and cls not in self.start else None
            known = self._grown(lift, cls, views)
            if views and not known.views and lift is None:
                known = self._region(cls, False)
            self._regions[cls, views] = known
        return known

    def cone(self, region: Region) -> Cone:
        """The original terms from the region's start to its leaves, breadth first, at most `CONE_LIMIT` of them.

        What a node of the region computes besides has its start, too: a law may take several values to one node.
        """
        ends = dict.fromkeys([*(c for c in region.leaves if c in self.start), *(v.value for v in region.views)])
        terms, cut = dict[int, list[Term]](), set[int]()
        starts = {region.start: None, **dict.fromkeys(self._besides(region, ends))}
        level, seen = [*starts], {*starts}
        while level:
            below: list[int] = []
            for term in level:
                spelled = self.spelled(term)
                opaque = not spelled or any(self._is_opaque(t) for t in spelled)
                inner = term in starts or self.frozen.values.get(term) not in ends
                if opaque or not inner or len(terms) >= CONE_LIMIT:
                    cut.add(term)
                    continue
                terms[term] = spelled
                for name, args in spelled:
                    children, _ = self.graph.ops[name].parted(args)
                    if name == "Shape":  # only the dimensions matter, and they are facts
                        cut.update(c for c in children if c not in terms)
                        children = []
                    below += [c for c in children if c not in seen]
                    seen.update(children)
            level = below
        reached = {self.frozen.values.get(t) for t in (*terms, *cut)}
        for leaf in ends:
            if leaf not in reached:
                self._connect(self.start[leaf], terms, cut)
        lists = {t for t in cut if t not in self.frozen.values}
        for term in lists:  # the budget ended inside a list: cut its elements instead
            cut |= self._elements(term, terms)
        return Cone(terms, frozenset(cut - lists - set(terms)))

    def _besides(self, region: Region, ends: Collection[int]) -> Iterator[int]:
        """The original terms of other outputs of the region's nodes."""
        for row in region.rows.values():
            if row.op == "Out":
                outputs = (c for c in self._users.get(row.children[0], ()) if self.choice[c].op == "Out")
                yield from (self.start[c] for c in outputs if c in self.start and c not in ends)

    def shape(self, region: Region) -> tuple[object, ...]:
        """Equal for regions of equal chosen terms over cones of equal terms, whatever their leaves are."""
        cone = self.cone(region)
        numbers: dict[object, int] = {}

        def number(key: object) -> int:
            return numbers.setdefault(key, len(numbers))

        def facts(cls: int) -> tuple[object, ...]:
            return (self.frozen.dtype.get(cls), self.frozen.shape(cls), self.frozen.number.get(cls))

        def numbered(r: Row) -> tuple[object, ...]:
            return (number(r.cls), r.op, tuple(map(number, r.children)), r.attrs)

        chosen = tuple(map(numbered, region.rows.values()))
        terms = []
        for t, spelled in cone.terms.items():  # breadth first: the same order for the same structure
            for name, args in spelled:
                op = self.graph.ops[name]
                inner = (number(self.frozen.cell(s, a)) if s in CLASSES else a for a, s in op.with_sorts(args))
                cls = number(self.frozen.cell(op.out, t))
                terms.append((cls, name, *((facts(self.frozen.values[t]),) if name == "Const" else inner)))
        ends = {*region.leaves, *region.sized, *(self.frozen.values[t] for t in cone.cut)}
        seen = (*region.views, *([region.lift] if region.lift else []))
        views = tuple(numbered(r) for v in seen for r in (*v.rows, *v.numbers))
        return chosen, tuple(terms), views, tuple(sorted(((number(c), facts(c)) for c in ends), key=lambda e: e[0]))

    def _connect(self, leaf: int, terms: dict[int, list[Term]], cut: set[int]) -> None:
        """Take in how a leaf beside the cone is computed from terms of the cone, if it is, in a few steps.

        A proof may need it: two spellings of one value, of which the model keeps one and the result takes the other.
        """
        found, below, level, meets = dict[int, list[Term]](), set[int](), [leaf], False
        for _ in range(_REACH):
            deeper: list[int] = []
            for term in level:
                rows = self.spelled(term)
                if term in terms or term in cut or term in found:
                    meets = meets or (term in terms and rows[0][0] not in _LEAVES)
                elif not rows or any(self._is_opaque(t) for t in rows):
                    below.add(term)
                else:
                    found[term] = rows
                    for name, args in rows:
                        deeper += self.graph.ops[name].parted(args)[0]
            level = deeper
        if meets:
            terms.update(found)
            cut |= below | {t for t in level if t not in terms}

    def spelled(self, term: int) -> list[Term]:
        """The rows of a term; a spelling goes before the opaque node it was read from."""
        rows = self._terms.get(term, [])
        return [t for t in rows if t[0] not in _OPAQUE] or rows

    def _is_opaque(self, term: Term) -> bool:
        name, args = term
        return name in _OPAQUE or (name == "Out" and any(t[0] in _OPAQUE for t in self._terms.get(args[0], ())))

    def _elements(self, term: int, terms: dict[int, list[Term]]) -> set[int]:
        """Take a list or node into the cone after all, and return the tensors it needs."""
        found: set[int] = set()
        stack = [term]
        while stack:
            t = stack.pop()
            if t in terms:
                continue
            if t in self.frozen.values:
                found.add(t)
                continue
            terms[t] = self.spelled(t)
            for name, args in terms[t]:
                stack += self.graph.ops[name].parted(args)[0]
        return found

    def candidates(self, region: Region) -> tuple[int, ...]:
        """Numbers of the rules that may have led from the cone to the region, in the order of their stages.

        They matched in a class of either, and made terms that were chosen or that another of them takes.
        """
        key = (region.root, tuple(region.rows), region.leaves)
        known = self._by.get(key)
        if known is None:
            cone = self.cone(region)
            classes = {self.frozen.values[t] for t in cone.terms if t in self.frozen.values} | set(region.rows)
            matched = {k for c in classes for k in self.frozen.why.get(c, ())}
            moved = {c for v in region.views for c in v.classes} - classes
            matched |= {k for c in moved for k in self.frozen.why.get(c, ()) if self.rules[k].stage == "normal"}
            ends = {r.op for r in region.rows.values()}
            known = self._by[key] = self.ordered(self._least(self._relevant(matched, ends)))
        return known

    def _least(self, numbers: set[int]) -> set[int]:
        """Without the rules whose step another of them takes on fewer assumptions."""

        def weaker(k: int, other: int) -> bool:
            same = self._readings[k] == self._readings[other]
            return same and set(self.rules[other].assumes) < set(self.rules[k].assumes)

        return {k for k in numbers if not any(weaker(k, other) for other in numbers)}

    def ordered(self, numbers: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(numbers, key=lambda k: (STAGES.index(self.rules[k].stage), k)))

    def _relevant(self, matched: set[int], ends: set[str]) -> set[int]:
        """Drop rules whose product nobody takes, until all are needed."""
        layout = (w for r, w in zip(self.rules, self._wanted, strict=True) if r.stage == "normal")
        ends = ends.union(*layout)
        while True:
            taken = ends.union(*(self._wanted[k] for k in matched))
            kept = {k for k in matched if any(makes <= taken for _, makes in self._readings[k])}
            if kept == matched:
                return kept
            matched = kept


def _heads(rule: Rule) -> list[tuple[frozenset[str], frozenset[str]]]:
    """Terms each reading of a rule takes and terms it makes; leaves and lists aside."""
    return [(takes - _LEAVES, makes - _LEAVES - takes - _PARTS) for takes, makes in rule.takes_and_makes]
