"""Products with a boolean as 0 or 1: `selected(x, c, b)` is x where c is b, and 0 elsewhere.

A number times 0 is 0 and times 1 itself, so x*m + y*(1 - m) is a choice between x and y. It is a marker: a file keeps
its products.
"""

from __future__ import annotations

from ..egraph.engine.assumption import FINITE
from ..egraph.engine.lang import (
    Float,
    Guard,
    Int,
    Sides,
    Tensor,
    call,
    cast,
    dtype,
    eq,
    ne,
    real,
    rule,
    scalar,
    tensor,
    thin,
    unsqueeze,
)
from ..egraph.terms.dtypes import BOOL, FLOAT16, FLOAT32
from .numbers import exactly

_TYPES = (FLOAT16, FLOAT32)
_PRODUCT = dict(x="b n s t", c="b 1 s t:bool")
_BY = [_PRODUCT, dict(x="b s:float16", c="s:bool"), dict(x="=-3", c="b s:bool")]
_REST = [dict(sample, o="=1:float16" if "float16" in sample["x"] else "=1") for sample in _BY]
_OTHER_ONES = [dict(_PRODUCT, o="=2"), dict(_PRODUCT, o="=1:1 1 1 1 1")]


def selected(x: Tensor, c: Tensor, side: int | Int) -> Tensor:
    return tensor("Selected", x, c, side)


def _truth(c: Tensor) -> list[Guard]:
    return [eq(dtype(c), BOOL)]


@rule(
    stage="marker", contract="finite", assumes=[FINITE], expand=dict(to=_TYPES), holds=_BY,
    refuse=[dict(_PRODUCT, c="b 1 s t")],
)  # fmt: skip
def selected_product(x: Tensor, c: Tensor, to: int) -> Sides:
    """x * cast(c) = selected(x, c, true)   for a boolean c"""
    return Sides(x * cast(c, to), selected(x, c, 1), when=_truth(c))


@rule(
    stage="marker", contract="finite", assumes=[FINITE], expand=dict(to=_TYPES), holds=_REST,
    refuse=[*_OTHER_ONES, dict(_PRODUCT, c="b 1 s t", o="=1")],
)  # fmt: skip
def selected_rest(x: Tensor, c: Tensor, o: Tensor, to: int) -> Sides:
    """x * (1 - cast(c)) = selected(x, c, false)   for a boolean c"""
    return Sides(x * (o - cast(c, to)), selected(x, c, 0), when=[*_truth(c), *exactly(o, c, 1.0)])


_BACK = dict(x="=3", c="b 1 s t:bool", o="=-1")


@rule(
    stage="marker", contract="finite", assumes=[FINITE], expand=dict(to=_TYPES),
    holds=[_BACK, dict(x="=-3:1:float16", c="s:bool", o="=-1:1:float16")],
    refuse=[dict(_BACK, o="=-2"), dict(_BACK, o="=-1:1 1 1 1 1"), dict(_BACK, c="b 1 s t"), dict(_BACK, x="b 1 s t"),
            dict(_BACK, x="=3:1 1 1 1 1"), dict(_BACK, x="=0")],
)  # fmt: skip
def selected_rest_back(x: Tensor, c: Tensor, o: Tensor, v: Float, to: int) -> Sides:
    """x * (cast(c) + -1) = selected(-x, c, false)   for a boolean c and a constant x"""
    when = [*_truth(c), *exactly(o, c, -1.0), eq(scalar(x), v), ne(v, real(0.0)), thin(x, c)]
    return Sides(x * (cast(c, to) + o), selected(call("FConst", v * -1.0, to), c, 0), when=when)


@rule(
    stage="marker", holds=[dict(c="b s:bool", to=1, axis=-2), dict(c="s:bool", to=10, axis=-1)],
    refuse=[dict(c="b s", to=10, axis=-2)],
)  # fmt: skip
def truth_unsqueeze(c: Tensor, to: Int, axis: Int) -> Sides:
    """unsqueeze(cast(c), axis) = cast(unsqueeze(c, axis))   for a boolean c, as whose cast products know it"""
    return Sides(unsqueeze(cast(c, to), axis), cast(unsqueeze(c, axis), to), when=_truth(c))


@rule(stage="marker", expand=dict(side=(0, 1)), holds=_PRODUCT)
def selected_not(x: Tensor, c: Tensor, side: int) -> Sides:
    """selected(x, not c, b) = selected(x, c, not b)"""
    return Sides(selected(x, call("Not", c), side), selected(x, c, 1 - side))


@rule(
    stage="marker", contract="finite", assumes=[FINITE],
    holds=[dict(x="b n s t", y="", c="b 1 s t:bool"), dict(x="b s", y="b 1", c="s:bool")],
)  # fmt: skip
def selected_both(x: Tensor, y: Tensor, c: Tensor) -> Sides:
    """selected(x, c, true) + selected(y, c, false) = where(c, x, y)"""
    return Sides(selected(x, c, 1) + selected(y, c, 0), tensor("Where", c, x, y))
