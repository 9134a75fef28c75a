"""Products with a truth as 0 or 1: `selected(x, c, b)` is x where c is b, and 0 elsewhere.

A number times 0 is 0 and times 1 itself, so x*m + y*(1 - m) is a choice between x and y. It is a marker: a file keeps
its products.
"""

from __future__ import annotations

from typing import Any

from ..egraph.engine.assumption import FINITE
from ..egraph.engine.lang import (
    Float,
    Int,
    Sides,
    Tensor,
    call,
    cast,
    dtype,
    eq,
    exactly,
    ne,
    real,
    rule,
    scalar,
    tensor,
    thin,
    unsqueeze,
    zero_or_one,
)
from ..egraph.terms.dtypes import BOOL, STRING

_PRODUCT = dict(x="b n s t", m="truths b 1 s t")
_BY = [_PRODUCT, dict(x="b s:float16", m="truths s:float16"), dict(x="=-3", m="truths b s")]
_REST = [dict(sample, o="=1:float16" if "float16" in sample["x"] else "=1") for sample in _BY]
_OTHER_ONES = [dict(_PRODUCT, o="=2"), dict(_PRODUCT, o="=1:1 1 1 1 1")]


def selected(x: Tensor, c: Tensor, side: int | Int) -> Tensor:
    return tensor("Selected", x, c, side)


def _truth(m: Tensor) -> Tensor:
    return cast(m, BOOL)


@rule(stage="marker", contract="finite", assumes=[FINITE], holds=_BY, refuse=[dict(_PRODUCT, m="b 1 s t")])
def selected_product(x: Tensor, m: Tensor) -> Sides:
    """x * m = selected(x, m as a truth, true)   for an m of zeros and ones"""
    return Sides(x * m, selected(x, _truth(m), 1), when=[zero_or_one(m)])


@rule(
    stage="marker", contract="finite", assumes=[FINITE], holds=_REST,
    refuse=[*_OTHER_ONES, dict(_PRODUCT, m="b 1 s t", o="=1")],
)  # fmt: skip
def selected_rest(x: Tensor, m: Tensor, o: Tensor) -> Sides:
    """x * (1 - m) = selected(x, m as a truth, false)   for an m of zeros and ones"""
    return Sides(x * (o - m), selected(x, _truth(m), 0), when=[zero_or_one(m), *exactly(o, m, 1.0)])


_BACK = dict(x="=3", m="truths b 1 s t", o="=-1")


@rule(
    stage="marker", contract="finite", assumes=[FINITE],
    holds=[_BACK, dict(x="=-3:1:float16", m="truths s:float16", o="=-1:1:float16")],
    refuse=[dict(_BACK, o="=-2"), dict(_BACK, o="=-1:1 1 1 1 1"), dict(_BACK, m="b 1 s t"), dict(_BACK, x="b 1 s t"),
            dict(_BACK, x="=3:1 1 1 1 1"), dict(_BACK, x="=0")],
)  # fmt: skip
def selected_rest_back(x: Tensor, m: Tensor, o: Tensor, v: Float, to: Int) -> Sides:
    """x * (m + -1) = selected(-x, m as a truth, false)   for an m of zeros and ones and a constant x"""
    number = [eq(scalar(x), v), ne(v, real(0.0)), thin(x, m), eq(dtype(m), to)]
    when = [zero_or_one(m), *exactly(o, m, -1.0), *number]
    return Sides(x * (m + o), selected(call("FConst", v * -1.0, to), _truth(m), 0), when=when)


@rule(
    stage="marker", holds=[dict(c="b s:bool", via=1, to=9), dict(c="b s:bool", via=7, to=10)],
    refuse=[dict(c="b s", via=7, to=1)],
)  # fmt: skip
def truth_twice(c: Tensor, via: Int, to: Int) -> Sides:
    """cast(cast(c, via), to) = cast(c, to)   for a boolean c and numbers"""
    return Sides(cast(cast(c, via), to), cast(c, to), when=[eq(dtype(c), BOOL), ne(via, STRING), ne(to, STRING)])


_CHOSEN: dict[str, Any] = dict(c="b s:bool", x="=1", y="=0")


@rule(
    stage="marker", expand=dict(other=(0, 1)), holds=[_CHOSEN, dict(c="s:bool", x="=1:1:float16", y="=0:float16")],
    refuse=[dict(_CHOSEN, x="=0"), dict(_CHOSEN, y="=1"),
            *({**_CHOSEN, "c": "s:bool", name: f"={value}:1 1"} for name, value in (("x", 1), ("y", 0)))],
)  # fmt: skip
def truth_chosen(c: Tensor, x: Tensor, y: Tensor, v: Float, other: int) -> Sides:
    """cast(where(c, x, y), bool) = c, or not c   where one of the constants x and y is 0 and the other is not"""
    when = [eq(scalar(x), v), ne(v, real(0.0)), thin(x, c), *exactly(y, c, 0.0)]
    if other:
        return Sides(cast(tensor("Where", c, y, x), BOOL), call("Not", c), when=when)
    return Sides(cast(tensor("Where", c, x, y), BOOL), c, when=when)


@rule(
    stage="marker", holds=[dict(c="b s:bool", to=1, axis=-2), dict(c="s:bool", to=10, axis=-1)],
    refuse=[dict(c="b s", to=10, axis=-2)],
)  # fmt: skip
def truth_unsqueeze(c: Tensor, to: Int, axis: Int) -> Sides:
    """unsqueeze(cast(c), axis) = cast(unsqueeze(c, axis))   for a boolean c, as whose cast products know it"""
    return Sides(unsqueeze(cast(c, to), axis), cast(unsqueeze(c, axis), to), when=[eq(dtype(c), BOOL)])


_CHOICE = dict(x="b n s t", c="b 1 s t:bool")


@rule(stage="marker", expand=dict(side=(0, 1)), holds=_CHOICE)
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
