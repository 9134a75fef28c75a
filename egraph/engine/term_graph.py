"""A graph of terms, ready to be loaded: rows per constructor and the facts known of each value.

Built by the reader, and by the rule checker from samples. Every term gets an integer id; equal terms get equal ids.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ..terms import CLASSES, DIM, INTS, LIST, NODE, OPS, TENSOR, Op
from .fact import FACTS, OF_SYMBOLS

#: What an integer of egglog holds. A fact beyond it is not stated: less is known, and nothing false.
_LEAST, _LARGEST = -(2**63), 2**63 - 1


def _stating(name: str) -> tuple[list[str], str]:
    """The columns of a fact's rows, and what a row of a, b, c, d states."""
    operands, value = FACTS[name].operands.split(), FACTS[name].value
    columns = [*operands, *value.split()]
    wrap = {TENSOR: "(V {})", DIM: "(DSym {})"}
    cells = [wrap.get(sort, "{}").format(letter) for letter, sort in zip("abcd", columns, strict=False)]
    fact = f"({' '.join([name, *cells[: len(operands)]])})"
    return ["f64" if sort == "f64" else "i64" for sort in columns], f"(set {fact} {cells[-1]})" if value else fact


#: fact -> (columns, what it states); a, b, c, d are the columns.
FACT_ACTIONS: Mapping[str, tuple[list[str], str]] = MappingProxyType({
    **{name: _stating(name) for name in FACTS},
    **{f"{fact}-{kind}": (["i64"] * 3, f"(union ({fact} (V a) b) ({made} c))")
       for fact in ("dim", "elem") for kind, made in (("num", "DNum"), ("sym", "DSym"))},
    "source": (["i64"] * 3, "(source (DSym c) (V a) b)"),
})  # fmt: skip
#: Sizes above this no tensor has; products of two such are still integers of egglog.
_LONGEST = 2**31 - 1


@dataclass(slots=True)
class TermGraph:
    """`add` makes terms, the other methods state facts. `roots` are the ids that must be extracted."""

    ops: dict[str, Op] = field(default_factory=lambda: dict(OPS))
    rows: dict[str, list[tuple[Any, ...]]] = field(default_factory=lambda: defaultdict(list))
    facts: dict[str, list[tuple[Any, ...]]] = field(default_factory=lambda: defaultdict(list))
    vectors: dict[tuple[int, ...], int] = field(default_factory=dict)
    symbols: dict[str, int] = field(default_factory=dict)
    roots: list[int] = field(default_factory=list)
    _ids: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _count: int = 0

    def fresh(self) -> int:
        self._count += 1
        return self._count - 1

    def add(self, name: str, *args: Any, into: int | None = None) -> int:
        """The id of term `name(*args)`: tensor operands are ids, lists are sequences of ids, vectors are sequences.

        With `into`, the term is stated to be equal to that id (a second spelling of one value).
        """
        values = tuple(
            self._list(a) if s == LIST else self.vector(a) if s == INTS else a
            for a, s in self.ops[name].with_sorts(args)
        )
        key = (name, *values)
        known = self._ids.get(key)
        if known is None or (into is not None and known != into):
            known = self.fresh() if into is None else into
            self._ids[key] = known
            self.rows[name].append((known, *values))
        return known

    def _list(self, items: Sequence[int]) -> int:
        """A list shares its end with every list that ends so."""
        known = self._cell("Nil")
        for item in reversed(items):
            known = self._cell("Cons", item, known)
        return known

    def _cell(self, *key: Any) -> int:
        known = self._ids.get(key)
        if known is None:
            known = self._ids[key] = self.fresh()
            self.rows[key[0]].append((known, *key[1:]))
        return known

    def vector(self, values: Sequence[int]) -> int:
        return self.vectors.setdefault(tuple(values), len(self.vectors))

    def symbol(self, name: str) -> int:
        return self.symbols.setdefault(name, len(self.symbols))

    def state(self, fact: str, *args: Any) -> None:
        """A fact of a value, as `FACTS` has it."""
        if holds(args):
            self.facts[fact].append(args)

    def dims(self, value: int, dims: Sequence[int | str]) -> None:
        """rank and every dimension of a value; strings are symbols."""
        self.state("rank", value, len(dims))
        for i, d in enumerate(dims):
            if isinstance(d, str) or d <= _LONGEST:
                self._dim("dim", value, i - len(dims), d)

    def elements(self, value: int, elems: Sequence[int | str]) -> None:
        """len and every element of an integer vector or scalar."""
        self.state("len", value, len(elems))
        for i, d in enumerate(elems):
            self._dim("elem", value, i, d)

    def _dim(self, fact: str, value: int, index: int, d: int | str) -> None:
        self.place(fact, value, index, d if isinstance(d, int) else f"${self.symbol(d)}")

    def place(self, fact: str, value: int, index: int, d: int | str) -> None:
        """One "dim" or "elem" of a value, as a frozen e-graph has it: a number, or a symbol ("$k")."""
        kind, number = ("num", d) if isinstance(d, int) else ("sym", int(d[1:]))
        self.state(f"{fact}-{kind}", value, index, number)

    def source(self, symbol: str, value: int, axis: int) -> None:
        """Graph input `value` has the dimension `symbol` at `axis` (counted from the end)."""
        self.facts["source"].append((value, axis, self.symbol(symbol)))

    @property
    def size(self) -> int:
        """How many ids there are."""
        return self._count

    def tuples(self) -> int:
        """How large an e-graph it makes, about: rows and facts, what each of them states, and the name of each id."""
        stated = sum(map(len, self.rows.values())) + sum(map(len, self.facts.values()))
        return 2 * stated + self.size

    def until(self, last: int) -> TermGraph:
        """The terms and facts that name no id above `last`, to be loaded; more cannot be added to them."""
        kept = TermGraph(self.ops, vectors=self.vectors, symbols=self.symbols)
        for name, rows in self.rows.items():
            ids = [0, *(i for i, s in enumerate(self.ops[name].sorts, 1) if s in CLASSES)]
            if early := [row for row in rows if max(row[i] for i in ids) <= last]:
                kept.rows[name] = early
        for name, facts in self.facts.items():
            kept.facts[name] = [fact for fact in facts if name in OF_SYMBOLS or fact[0] <= last]
        return kept

    def lowering(self, folder: str) -> list[str]:
        """Write the rows as TSV files into `folder`; the egglog commands that load them."""
        text = [f"(set (iv {k}) ({'vec-of' if v else 'vec-empty'} {' '.join(map(str, v))}))" for v, k in
                self.vectors.items()]  # fmt: skip
        for name, rows in self.rows.items():
            op = self.ops[name]
            columns = ["i64" if s != "f64" else "f64" for s in op.sorts]
            names = [f"a{i}" for i in range(len(op.sorts))]
            wrap = {TENSOR: "(V {})", LIST: "(VL {})", NODE: "(VN {})"}
            vectors = " ".join(f"(= v{n} (iv {n}))" for n, s in zip(names, op.sorts, strict=True) if s == INTS)
            args = [f"v{n}" if s == INTS else wrap.get(s, "{}").format(n) for n, s in zip(names, op.sorts, strict=True)]
            head = wrap[op.out].format("o")
            text += self._input(folder, f"t-{name}", ["i64", *columns], rows)
            text.append(
                f"(rule ((t-{name} o {' '.join(names)}) {vectors}) ((union {head} ({name} {' '.join(args)})))"
                f" :ruleset lower)"
            )
        for name, (columns, action) in FACT_ACTIONS.items():
            if self.facts.get(name):
                text += self._input(folder, f"f-{name}", columns, self.facts[name])
                text.append(f"(rule ((f-{name} {' '.join('abcd'[: len(columns)])})) ({action}) :ruleset lower)")
        return text

    @staticmethod
    def _input(folder: str, relation: str, columns: list[str], rows: list[tuple[Any, ...]]) -> list[str]:
        path = f"{folder}/{relation}.tsv"
        with open(path, "w") as f:
            f.write("\n".join("\t".join(map(str, r)) for r in rows) + "\n")
        return [f"(relation {relation} ({' '.join(columns)}))", f'(input {relation} "{path}")']


def holds(operands: Any) -> bool:
    """Whether egglog has all integers among the operands of a term or fact, nested ones included."""
    if isinstance(operands, tuple | list):
        return all(map(holds, operands))
    return not isinstance(operands, int) or _LEAST <= operands <= _LARGEST
