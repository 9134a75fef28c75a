"""The left side of a law as egglog matches it: one fact per subterm, and a variable for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..terms import FLOAT, INT
from ..terms.expression import Expr
from .guard import Fact


@dataclass(frozen=True, slots=True)
class Pattern:
    """Facts of the subterms, arithmetic on attributes, the variable of the root, and subterm -> variable.

    Equal subterms share a variable. Commutative operators are matched through their symmetric relation. Arithmetic on
    attributes comes apart, to be printed after the guards: egglog 13.2 computes primitives in the order written, and
    crashes on an operand that is not bound yet.
    """

    atoms: tuple[Fact, ...]
    sums: tuple[Fact, ...]
    root: Expr
    names: Mapping[tuple[Any, ...], Expr]

    @property
    def vectors(self) -> frozenset[str]:
        """The vectors of numbers in it, by which the e-graph finds them: a table is joined early, a primitive computed
        late.
        """
        found = (f.args[1] for f in self.atoms if f.head == "=" and f.args[1].head == "vector")
        return frozenset(str(e.args[0].args[0]) for e in found)

    def named(self, e: Any) -> Any:
        """An expression with the subterms of the left side replaced by their variables, the largest first."""
        if e.head in ("var", "lit"):
            return e
        args = tuple(self.names.get(a.key()) or self.named(a) for a in e.args)
        return type(e)(e.head, args, e.op)


def flatten(term: Expr, once: bool = False) -> Pattern:
    """The pattern that matches a term, in one order if `once`; the subterms of a subterm come before it."""
    atoms, sums = list[Fact](), list[Fact]()
    known, names = dict[tuple[Any, ...], Expr](), dict[tuple[Any, ...], Expr]()

    def visit(e: Expr) -> Expr:
        key = e.key()
        if e.head in ("var", "lit") or key in known:
            return known.get(key, e)
        args = tuple(visit(a) for a in e.args)
        vector = e.head == "vec-of" and all(a.head == "lit" for a in args)
        flat = type(e)(e.head, args, e.op)
        if vector:
            flat = type(e)("vector", (Expr("lit", (" ".join(a.text() for a in args),)),))
        arithmetic = e.op is None and not vector
        if arithmetic and e.sort not in (INT, FLOAT):
            return flat
        v = known[key] = type(e)("var", (f"_{len(known)}",))
        if arithmetic:
            sums.append(Fact("=", (v, flat)))
            return v
        names[key] = v
        symmetric = e.op is not None and e.op.commutative and not once
        atoms.append(Fact(f"sym-{e.head}", (v, *args)) if symmetric else Fact("=", (v, flat)))
        return v

    root = visit(term)
    return Pattern(tuple(atoms), tuple(sums), root, names)
