"""Price every e-node of a frozen e-graph with a cost model, at reference sizes of the symbolic dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral

import onnx_ir as ir

from ..egraph.cost import ABSENT, CostModel, Tensor, Work
from ..egraph.dtypes import NAMES
from ..egraph.errors import CostError, ModelError
from ..egraph.extract import ENode
from ..egraph.ops import LIST, NODE, TENSOR, Op
from ..egraph.saturate import Frozen, Row
from .emit import NEEDS_OPSET
from .reader import Reading
from .shapes import Shapes

#: Picoseconds charged once for raising the model's opset: it must pay, since onnxruntime's own fusions differ there.
_RAISE = 5_000_000
_CONSTANT = {"Const", "FConst", "Ints", "Int0", "Absent", "Nil"}
_LEAVES = {"Input", "Cons", "Out", *_CONSTANT}


@dataclass(frozen=True, slots=True)
class Reference:
    """One point at which cost is computed: symbol -> size, and the weight of the point."""

    sizes: Mapping[str, int]
    weight: int


def references(shapes: Shapes, dims: Mapping[str, int | Sequence[int]] | None) -> list[Reference]:
    """Decode (one new position) and prefill (128), batch 1, caches of 512 positions; the caller's `dims` go first.

    `dims` maps a dimension's name in the model to a size, or to a list of sizes of equal length with the others.
    Raises ModelError for a name no input of the model has.
    """
    axes = [v.shape[a] for v, a in shapes.sources.values() if v.shape is not None]
    declared = {d.value for d in axes if isinstance(d, ir.SymbolicDim) and d.value is not None}
    for name in dims or {}:
        if name not in declared:
            raise ModelError(f"no input of the model has a dimension named {name!r}; there are {sorted(declared)}")
    chosen = {k: list(v) if isinstance(v, Sequence) else [v] for k, v in (dims or {}).items()}
    points = max([2, *(len(v) for v in chosen.values())])
    result = []
    for k in range(points):
        sizes: dict[str, int] = {}
        for symbol, (value, axis) in shapes.sources.items():
            given = chosen.get(str(value.shape[axis]) if value.shape is not None else symbol)
            if given:
                sizes[symbol] = given[min(k, len(given) - 1)]
            elif axis == 0:
                sizes[symbol] = 1
            elif value.dtype in (ir.DataType.INT64, ir.DataType.INT32):
                sizes[symbol] = 128 if k else 1
            else:
                sizes[symbol] = 512
        result.append(Reference(sizes, 1))
    return result


class Pricer:
    """Costs of rows; rows no file can hold have none."""

    def __init__(
        self, frozen: Frozen, reading: Reading, shapes: Shapes, model: CostModel, points: Sequence[Reference],
        extra: Mapping[str, Op], may_use: Callable[[int], bool],
    ) -> None:  # fmt: skip
        self.frozen, self.reading, self.shapes, self.model, self.points = frozen, reading, shapes, model, points
        self.ops = {**reading.terms.ops, **extra}
        self.may_use = may_use
        self._names = {f"${k}": name for name, k in reading.terms.symbols.items()}
        self._sizes: dict[tuple[str, int], int] = {}
        self._tensors: dict[tuple[int, int], Tensor] = {}
        self._lists: dict[int, tuple[int, ...]] = {}
        self._outs: dict[int, dict[int, int]] = {}
        for r in frozen.rows:
            if r.op == "Out":
                self._outs.setdefault(r.children[0], {})[r.attrs[0]] = r.cls
        self._cells = {r.cls: r.children for r in frozen.rows if r.op in ("Cons", "Nil")}
        self.const = self._constants()

    def enodes(self) -> tuple[list[ENode], list[int]]:
        """ENodes and, for each, the index of its row (-1: the price of raising the opset)."""
        nodes, rows, raised = [], [], self.frozen.classes
        for i, r in enumerate(self.frozen.rows):
            if self.ops[r.op].marker:
                continue
            children = r.children
            wanted = NEEDS_OPSET.get(r.op, 0)
            if wanted > self.reading.opset:
                if not self.may_use(wanted):
                    continue
                children = (*children, raised)
            nodes.append(ENode(r.cls, children, self.cost(r)))
            rows.append(i)
        nodes.append(ENode(raised, (), _RAISE))
        rows.append(-1)
        return nodes, rows

    def cost(self, r: Row) -> int:
        if r.op in _LEAVES:
            return 0
        total = 0
        for k, p in enumerate(self.points):
            work = self._work(r, k)
            cost = self.model.cost(work)
            if not isinstance(cost, Integral) or cost < 0:
                raise CostError(f"the cost model gives {work.op} the cost {cost!r}; picoseconds are an int from 0 up")
            total += int(cost) * p.weight
        return total

    def _work(self, r: Row, k: int) -> Work:
        name = r.op
        if name in ("Op1", "OpN"):
            node = self.reading.payloads.nodes[r.attrs[0]]
            name = f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
            attrs = {a.name: a.value for a in node.attributes.values() if not a.is_ref()}
        else:
            names = [n for n, s in self.ops[name].operands if s not in (TENSOR, LIST, NODE)]
            attrs = dict(zip(names, r.attrs, strict=True))
        ins: list[int] = []
        for c, s in zip(r.children, (s for s in self.ops[r.op].sorts if s in (TENSOR, LIST, NODE)), strict=True):
            ins += self._items(c) if s == LIST else [c]
        outs = [c for _, c in sorted(self._outs.get(r.cls, {}).items())] if self.ops[r.op].out == NODE else [r.cls]
        return Work(name, tuple(self._tensor(c, k) for c in ins), tuple(self._tensor(c, k) for c in outs), attrs)

    def _items(self, cell: int) -> list[int]:
        items = []
        while children := self._cells[cell]:
            items.append(children[0])
            cell = children[1]
        return items

    def _tensor(self, c: int, k: int) -> Tensor:
        known = self._tensors.get((c, k))
        if known is None:
            dtype, shape = self.frozen.dtype.get(c), self.frozen.shape(c)
            if dtype is None and c in self._absent:
                known = ABSENT
            else:
                dims = None if shape is None else tuple(self._size(d, k, i) for i, d in enumerate(shape))
                known = Tensor(NAMES.get(dtype or 0, "float32"), dims, c in self.const)
            self._tensors[c, k] = known
        return known

    def _size(self, d: int | str | None, k: int, axis: int) -> int:
        if isinstance(d, int):
            return max(d, 0)
        if d is None:
            return 128 if k and axis else 1  # unknown: taken for a batch in front, for a length elsewhere
        known = self._sizes.get((d, k))
        if known is None:
            dim, sizes = self._names[d], self.points[k].sizes
            values = {s: sizes.get(s, 128 if k else 1) for s in self.shapes.symbols(dim)}
            try:
                known = max(self.shapes.evaluate(dim, values), 0)
            except ValueError:
                known = 128 if k else 1
            self._sizes[d, k] = known
        return known

    def _constants(self) -> set[int]:
        """Classes some member of which is computed from constants alone: onnxruntime folds them at load."""
        self._absent = {r.cls for r in self.frozen.rows if r.op == "Absent"}
        const: set[int] = set()
        users: dict[int, list[Row]] = {}
        todo: list[Row] = []
        for r in self.frozen.rows:
            if r.op in _CONSTANT:
                todo.append(r)
            elif r.op != "Input" and not self.ops[r.op].marker and not (r.op in ("Op1", "OpN") and not r.children):
                for c in set(r.children):
                    users.setdefault(c, []).append(r)
        while todo:
            r = todo.pop()
            if r.cls in const or not all(c in const for c in r.children):
                continue
            if r.op in ("Op1", "OpN") and not self._deterministic(r):
                continue
            const.add(r.cls)
            todo += users.get(r.cls, ())
        return const

    def _deterministic(self, r: Row) -> bool:
        node = self.reading.payloads.nodes[r.attrs[0]]
        return "Random" not in node.op_type and node.op_type not in ("Multinomial", "Bernoulli", "Dropout")
