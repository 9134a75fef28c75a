"""Weights side by side, as rules want them: each such concatenation is one tensor in the place of its parts."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from ..egraph.engine.frozen import Frozen, Row
from ..egraph.terms import Op, names
from .model.tensors import Joined
from .reader import Reading

_LISTS = names("list")


class Packing:
    """`tensors` has what is stored of each class, and `rows` the e-nodes that it is made of.

    `copies` are the concatenations of which a part is needed besides, by something else than the products that the
    whole one serves. To store such a one would be to store that part twice, which is nothing for vectors.
    """

    def __init__(self, frozen: Frozen, reading: Reading, ops: Mapping[str, Op]) -> None:
        self.tensors: dict[int, Joined] = {}
        self.rows: dict[int, Row] = {}
        self.copies: set[Row] = set()
        found = [r for r in frozen.rows if r.op == "Beside"]
        if not found:
            return
        self._frozen, self._cells = frozen, {r.cls: r for r in frozen.rows if r.op in _LISTS}
        values = reading.payloads.values
        self._stored = {r.cls: r for r in frozen.rows if r.op == "Const" and _own(values[r.attrs[0]], reading.graph)}
        self._needed = {frozen.values[term] for term in reading.terms.roots}
        self._users: dict[int, list[Row]] = {}
        served: dict[int, set[int]] = {}
        watched = self._cells.keys() | self._stored.keys()
        for r in frozen.rows:
            if ops[r.op].marker:
                continue
            for c in r.children:
                if c in watched:
                    self._users.setdefault(c, []).append(r)
            if r.op == "Product":
                served.setdefault(r.children[1], set()).add(r.children[0])
        for r in found:
            cells = self._listed(r.children[0])
            parts = [cell.children[0] for cell in cells if cell.children]
            ranks = {frozen.rank.get(c) for c in parts}
            if not parts or any(c not in self._stored for c in parts) or ranks not in ({1}, {2}):
                continue
            if ranks == {2} and self._elsewhere(r, cells, served.get(r.cls, set())):
                self.copies.add(r)
                continue
            tensors = [values[self._stored[c].attrs[0]].const_value for c in parts]
            self.tensors[r.cls] = Joined([t for t in tensors if t is not None])
            self.rows.update((row.cls, row) for row in (r, *cells, *(self._stored[c] for c in parts)))

    def _listed(self, cell: int) -> list[Row]:
        """The cells of a list."""
        cells = [self._cells[cell]]
        while cells[-1].children:
            cells.append(self._cells[cells[-1].children[1]])
        return cells

    def _elsewhere(self, whole: Row, cells: list[Row], served: set[int]) -> bool:
        """Whether a part is needed by something else than products with `served`, which the whole can take over."""
        own = {whole, *cells}
        lists = {cell.cls for cell in cells if cell.children}
        parts = {cell.children[0] for cell in cells if cell.children}
        return bool(parts & self._needed) or any(
            r not in own and not (r.op == "MatMul" and r.children[1] in parts and r.children[0] in served)
            for c in lists | parts for r in self._users.get(c, ())
        )  # fmt: skip


def _own(value: ir.Value, graph: ir.Graph) -> bool:
    """Whether it is an initializer of the graph that nobody can override."""
    return value.graph is graph and value.const_value is not None and not value.is_graph_input()
