"""Sizes known for several bindings of the symbols: a tuple, the number under each."""

from __future__ import annotations

import numpy as np

Dim = tuple[int, ...]
Dims = tuple[Dim, ...]
CASES = 3


def fixed(n: int) -> Dim:
    return (n,) * CASES


def is_fixed(d: Dim) -> bool:
    return len(set(d)) == 1


def times(a: Dim, b: Dim) -> Dim:
    return tuple(i * j for i, j in zip(a, b, strict=True))


def plus(a: Dim, b: Dim) -> Dim:
    return tuple(i + j for i, j in zip(a, b, strict=True))


def broadcast(*shapes: Dims) -> Dims | None:
    """The common sizes, None if they do not fit under some binding."""
    rank = max(map(len, shapes))
    try:
        each = [np.broadcast_shapes(*(tuple(d[k] for d in s) for s in shapes)) for k in range(CASES)]
    except ValueError:
        return None
    return tuple(tuple(e[i] for e in each) for i in range(rank))
