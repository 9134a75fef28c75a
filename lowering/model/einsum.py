"""Einsum of two matrices, or of stacks of them, as transposes around a MatMul."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def parsed(equation: str) -> tuple[list[str], str] | None:
    """The letters of each operand and of the result; None with an ellipsis, or where the equation is none.

    Without an arrow the result has the letters that occur once, in alphabetical order. Source: ONNX Einsum-12.
    """
    terms, arrow, out = equation.replace(" ", "").partition("->")
    operands = terms.split(",")
    if not all(term.isalpha() or not term for term in (*operands, out)):
        return None
    return operands, out if arrow else "".join(sorted(c for c in {*terms} - {","} if terms.count(c) == 1))


def product(equation: str, x: Any, y: Any, shapes: Sequence[tuple[int | str, ...] | None]) -> Any:
    """The spelling of an Einsum of x and y, or None where one matrix product does not do it.

    Every letter stands once in a term; one is summed over, one is x's alone, one y's alone, and the others are axes of
    all three terms. It is a Contract, and a MatMul where what is summed over has provably one size. Source: ONNX
    Einsum-12.
    """
    known = parsed(equation)
    if known is None or len(known[0]) != 2:
        return None
    (left, right), out = known
    if any(len(set(term)) < len(term) for term in (left, right, out)):
        return None
    summed = [c for c in left if c in right and c not in out]
    rows = [c for c in left if c not in right]
    columns = [c for c in right if c not in left]
    if len(summed) != 1 or len(rows) != 1 or len(columns) != 1 or not {*rows, *columns} <= set(out):
        return None
    sizes = [
        shape[term.index(summed[0])] if shape is not None and len(shape) == len(term) else None
        for term, shape in zip((left, right), shapes, strict=True)
    ]
    if None in sizes or (sizes[0] != sizes[1] and all(isinstance(size, int) for size in sizes)):
        return None
    name = "MatMul" if sizes[0] == sizes[1] else "Contract"
    batch = [c for c in out if c in left and c in right]
    if len(batch) + 2 != len(out):
        return None
    if out.index(rows[0]) > out.index(columns[0]):  # the other way round the product need not be turned
        (x, left, rows), (y, right, columns) = (y, right, columns), (x, left, rows)
    first = _permuted(x, left, [*batch, *rows, *summed])
    second = _permuted(y, right, [*batch, *summed, *columns])
    return _permuted((name, first, second), "".join([*batch, *rows, *columns]), list(out))


def _permuted(x: Any, letters: str, wanted: list[str]) -> Any:
    order = tuple(letters.index(c) for c in wanted)
    return x if order == tuple(range(len(order))) else ("Transpose", x, order)
