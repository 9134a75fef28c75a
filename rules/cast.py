"""Cast elimination, only where no bit can change."""

from __future__ import annotations

from ..egraph.engine.lang import Int, Sides, Tensor, cast, dtype, eq, rule
from ..egraph.terms.dtypes import FLOAT16, FLOAT32, FLOAT64, INT32, INT64

#: Types, each with one that holds all of its numbers.
_HOLDING = ((FLOAT16, FLOAT32), (FLOAT32, FLOAT64), (INT32, INT64))


@rule(holds=[dict(x="b s", to=1), dict(x="b s:int64", to=7)], refuse=[dict(x="b s", to=10)])
def cast_same(x: Tensor, to: Int) -> Sides:
    """cast(x, type of x) = x"""
    return Sides(cast(x, to), x, when=[eq(dtype(x), to)])


@rule(
    expand=dict(k=range(len(_HOLDING))),
    holds=[dict(x="b s:float16", to=10), dict(x="b s:float16", to=11), dict(x="b s", to=1), dict(x="b s", to=7),
           dict(x="b s:int32", to=6), dict(x="b s:int32", to=1)],
    refuse=[dict(x="b s:int64", to=10)],
)  # fmt: skip
def cast_twice(x: Tensor, to: Int, k: int) -> Sides:
    """cast(cast(x, wide), to) = cast(x, to)   for a type that holds every x"""
    narrow, wide = _HOLDING[k]
    return Sides(cast(cast(x, wide), to), cast(x, to), when=[eq(dtype(x), narrow)])
