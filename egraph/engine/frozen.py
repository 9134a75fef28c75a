"""A saturated e-graph as plain data: its e-nodes, and the facts of its e-classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..terms import CLASSES
from .fact import TRUTHS


@dataclass(frozen=True, slots=True)
class Row:
    """An e-node: class, constructor, operand classes (tensors, lists and nodes) and attributes in operand order."""

    cls: int
    op: str
    children: tuple[int, ...]
    attrs: tuple[Any, ...]


def settled(rows: Iterable[Row], decide: Callable[[Row], bool]) -> dict[int, Row]:
    """The classes that rows settle, each with the first that does: its operands are settled, and it is decided so."""
    found: dict[int, Row] = {}
    users: dict[int, list[Row]] = {}
    todo: list[Row] = []
    for r in rows:
        for c in set(r.children):
            users.setdefault(c, []).append(r)
        if not r.children:
            todo.append(r)
    todo.reverse()
    while todo:
        r = todo.pop()
        if r.cls not in found and all(c in found for c in r.children) and decide(r):
            found[r.cls] = r
            todo += reversed(users.get(r.cls, ()))
    return found


class Frozen:
    """The e-graph as plain Python data. Classes of tensors, lists and nodes share one numbering."""

    def __init__(self, egraph: Any) -> None:
        functions = egraph.freeze().functions
        self.rows: list[Row] = []
        self._numbers: dict[tuple[str, Any], int] = {}
        number = self._number
        vectors: dict[Any, tuple[int, ...]] = {}

        def vector(v: Any) -> tuple[int, ...]:
            if v not in vectors:
                vectors[v] = tuple(egraph.value_to_i64(x) for x in egraph.value_to_vec(v))
            return vectors[v]

        read: dict[str, Callable[[Any], Any]] = {
            "i64": egraph.value_to_i64, "f64": egraph.value_to_f64, "IV": vector,
            "String": egraph.value_to_string,
        }  # fmt: skip
        skip = {"V", "VL", "VN", "spread", "item-of", "dim", "elem", "iv", "DNum", "DSym"}
        for name, f in functions.items():
            if f.output_sort not in CLASSES or name in skip:
                continue
            sorts = f.input_sorts
            for r in f.rows:
                if r.subsumed:
                    continue
                children, attrs = [], []
                for s, v in zip(sorts, r.inputs, strict=True):
                    if s in CLASSES:
                        children.append(number(s, v))
                    elif s != "Dim":
                        attrs.append(read[s](v))
                self.rows.append(Row(number(f.output_sort, r.output), name, tuple(children), tuple(attrs)))
        self.values = {egraph.value_to_i64(r.inputs[0]): number("T", r.output) for r in functions["V"].rows}
        self._cells = {
            (sort, egraph.value_to_i64(r.inputs[0])): number(sort, r.output)
            for name, sort in (("V", "T"), ("VL", "TL"), ("VN", "Nd")) for r in functions[name].rows
        }  # fmt: skip
        known: dict[Any, int | str] = {r.output: f"${egraph.value_to_i64(r.inputs[0])}" for r in functions["DSym"].rows}
        known.update({r.output: egraph.value_to_i64(r.inputs[0]) for r in functions["DNum"].rows})
        self.symbols = {egraph.value_to_i64(r.inputs[0]): known[r.output] for r in functions["DSym"].rows}
        self.dtype = {number("T", r.inputs[0]): egraph.value_to_i64(r.output) for r in functions["dtype"].rows}
        self.rank = {number("T", r.inputs[0]): egraph.value_to_i64(r.output) for r in functions["rank"].rows}
        self.number = {number("T", r.inputs[0]): egraph.value_to_f64(r.output) for r in functions["fval"].rows}
        self.truths = {fact: {number("T", r.inputs[0]) for r in functions[fact].rows} for fact in TRUTHS}
        self._dims, self.elements = dict[int, dict[int, int | str]](), dict[int, dict[int, int | str]]()
        for name, of in (("dim", self._dims), ("elem", self.elements)):
            for r in functions[name].rows:
                if r.output in known:
                    at = of.setdefault(number("T", r.inputs[0]), {})
                    at[egraph.value_to_i64(r.inputs[1])] = known[r.output]
        self.why: dict[int, set[int]] = {}
        for r in functions["why"].rows:
            self.why.setdefault(number("T", r.inputs[0]), set()).add(egraph.value_to_i64(r.inputs[1]))

    def cell(self, sort: str, number: int) -> int:
        """The class of a tensor, list or node by its number in the loaded graph."""
        return self._cells[sort, number]

    def class_of(self, value: Any) -> int:
        """The class of a value of egglog's own."""
        return self._number("T", value)

    def _number(self, sort: str, value: Any) -> int:
        return self._numbers.setdefault((sort, value), len(self._numbers))

    @property
    def classes(self) -> int:
        return len(self._numbers)

    def shape(self, cls: int) -> tuple[int | str | None, ...] | None:
        """Dimensions of a tensor class: numbers, symbols ("$k", k as numbered by the graph) or None where unknown."""
        rank = self.rank.get(cls)
        if rank is None:
            return None
        dims = self._dims.get(cls, {})
        return tuple(dims.get(i - rank) for i in range(rank))
