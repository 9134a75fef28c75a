"""Terms of a frozen e-graph as short algebra: `x*wide(c) + rot(x)*wide(s)`, for people."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..engine.frozen import Frozen, Row
from ..terms import CLASSES, LIST, NUMBERS, OPS, Op

_LONGEST = 400

Show = Callable[[Any, int], str]


class Notation:
    """Prints classes by their smallest term. `names` are the classes a reader knows; `ops` knows every term."""

    def __init__(self, frozen: Frozen, names: Mapping[int, str], extra: Mapping[str, Op] | None = None) -> None:
        self.ops, self.frozen = {**OPS, **(extra or {})}, frozen
        self.names = {**names, **{c: f"{n:g}" for c, n in frozen.number.items()}}
        self._best: dict[int, tuple[int, Row]] = {}
        self.rows: dict[int, list[Row]] = {}
        for r in frozen.rows:
            self.rows.setdefault(r.cls, []).append(r)
        for members in self.rows.values():
            members.sort(key=lambda r: (r.op == "Input", r.op, r.attrs, r.children))
        self.lookup = {(r.op, r.children, r.attrs): r.cls for r in frozen.rows if r.op != "DimT"}
        changed = True
        while changed:
            changed = False
            for c, members in self.rows.items():
                for r in members:
                    size = self.size(r)
                    if size is not None and (c not in self._best or size < self._best[c][0]):
                        self._best[c], changed = (size, r), True

    def prefer(self, row: Row) -> None:
        """Print this row's class as this row."""
        self._best[row.cls] = (0, row)

    def size(self, row: Row) -> int | None:
        """Number of terms in the smallest tree under `row`; None if it has no finite one."""
        total = 1
        for c in row.children:
            if c in self.names:
                continue
            if c not in self._best:
                return None
            total += self._best[c][0]
        return total

    def text(self, cls: int) -> str:
        """The smallest term of a class."""
        return _cut(self.within(cls, 0))

    def row(self, row: Row) -> str:
        """A given term, its operands by their smallest terms."""
        return _cut(self._row(row, 0))

    def within(self, cls: int, binds: int) -> str:
        """The smallest term of a class, in parentheses if an operator of strength `binds` stands before it."""
        if cls in self.names:
            return self.names[cls]
        return self._row(self._best[cls][1], binds) if cls in self._best else "?"

    def items(self, cls: int) -> list[str]:
        """The elements of a list class."""
        items: list[str] = []
        while cls in self._best and self._best[cls][1].op == "Cons":
            head, cls = self._best[cls][1].children
            items.append(self.within(head, 0))
        return items

    def _row(self, r: Row, binds: int) -> str:
        op = self.ops[r.op]

        def show(operand: tuple[Any, str], strength: int) -> str:
            value, sort = operand
            return self.within(value, strength) if sort in CLASSES else "?" if value is None else attribute(value)

        operands = list(op.with_sorts(op.joined(r.children, r.attrs)))
        return self.compose(r.op, operands, show, binds, lambda operand: self.items(operand[0]))

    def compose(
        self, op: str, operands: Sequence[Any], show: Show, binds: int, items: Callable[[Any], list[str]]
    ) -> str:
        """A term from its operands: `show` prints one, `items` the elements of a list."""
        term = self.ops[op]
        if term.infix is not None:
            sign, strength = term.infix
            text = f"{show(operands[0], strength)}{sign}{show(operands[1], strength + 1)}"
            return f"({text})" if strength < binds else text
        if op == "Neg":
            return f"-{show(operands[0], 3)}"
        texts: list[str] = []
        for operand, sort in term.with_sorts(operands):
            texts += items(operand) if sort == LIST else [show(operand, 3 if op == "SliceC" else 0)]
        if op == "SliceC":
            x, axis, start, end, step = texts
            stride, place = "" if step == "1" else f":{step}", "" if axis == "-1" else f" on {axis}"
            return f"{x}[{start}:{end}{stride}{place}]"
        if op in NUMBERS:
            return texts[0]
        if term.implied and texts[-1] == "-1":
            texts.pop()
        return f"{_name(term)}({', '.join(texts)})"


def attribute(value: Any) -> str:
    """A number or a vector of them."""
    return f"{value:g}" if isinstance(value, float) else str(list(value) if isinstance(value, tuple) else value)


def _name(op: Op) -> str:
    """Terms of one word in lower case."""
    return op.short or (op.name.lower() if op.name[1:].islower() else op.name)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} .."
