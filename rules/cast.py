"""Cast elimination, only where no bit can change."""

from __future__ import annotations

from ..egraph.engine.lang import Int, Sides, Tensor, cast, dtype, eq, rule
from ..egraph.terms.dtypes import FLOAT16, FLOAT32, FLOAT64, INT32, INT64


@rule(holds=[dict(x="b s", to=1), dict(x="b s:int64", to=7)], refuse=[dict(x="b s", to=10)])
def cast_same(x: Tensor, to: Int) -> Sides:
    """cast(x, type of x) = x"""
    return Sides(cast(x, to), x, when=[eq(dtype(x), to)])


@rule(holds=[dict(x="b s:float16", to=10), dict(x="b s:float16", to=11)], refuse=[dict(x="b s", to=10)])
def cast_half_float(x: Tensor, to: Int) -> Sides:
    """cast(cast(x, f32), to) = cast(x, to)   for x of f16: f32 holds every f16"""
    return Sides(cast(cast(x, FLOAT32), to), cast(x, to), when=[eq(dtype(x), FLOAT16)])


@rule(holds=[dict(x="b s", to=1), dict(x="b s", to=7)], refuse=[dict(x="b s:int64", to=1)])
def cast_float_double(x: Tensor, to: Int) -> Sides:
    """cast(cast(x, f64), to) = cast(x, to)   for x of f32: f64 holds every f32"""
    return Sides(cast(cast(x, FLOAT64), to), cast(x, to), when=[eq(dtype(x), FLOAT32)])


@rule(holds=[dict(x="b s:int32", to=6), dict(x="b s:int32", to=1)], refuse=[dict(x="b s", to=1)])
def cast_int_long(x: Tensor, to: Int) -> Sides:
    """cast(cast(x, i64), to) = cast(x, to)   for x of i32: i64 holds every i32"""
    return Sides(cast(cast(x, INT64), to), cast(x, to), when=[eq(dtype(x), INT32)])
