"""Cast elimination, only where no bit can change."""

from __future__ import annotations

from ..egraph.engine.lang import Int, Sides, Tensor, cast, dtype, eq, rule
from ..egraph.terms.dtypes import FLOAT16, FLOAT32, FLOAT64, INT32, INT64


@rule(holds=[dict(x="b s", t=1), dict(x="b s:int64", t=7)], refuse=[dict(x="b s", t=10)])
def cast_same(x: Tensor, t: Int) -> Sides:
    """cast(x, type of x) = x"""
    return Sides(cast(x, t), x, when=[eq(dtype(x), t)])


@rule(holds=[dict(x="b s:float16", t=10), dict(x="b s:float16", t=11)], refuse=[dict(x="b s", t=10)])
def cast_half_float(x: Tensor, t: Int) -> Sides:
    """cast(cast(x, f32), t) = cast(x, t)   for x of f16: f32 holds every f16"""
    return Sides(cast(cast(x, FLOAT32), t), cast(x, t), when=[eq(dtype(x), FLOAT16)])


@rule(holds=[dict(x="b s", t=1), dict(x="b s", t=7)], refuse=[dict(x="b s:int64", t=1)])
def cast_float_double(x: Tensor, t: Int) -> Sides:
    """cast(cast(x, f64), t) = cast(x, t)   for x of f32: f64 holds every f32"""
    return Sides(cast(cast(x, FLOAT64), t), cast(x, t), when=[eq(dtype(x), FLOAT32)])


@rule(holds=[dict(x="b s:int32", t=6), dict(x="b s:int32", t=1)], refuse=[dict(x="b s", t=1)])
def cast_int_long(x: Tensor, t: Int) -> Sides:
    """cast(cast(x, i64), t) = cast(x, t)   for x of i32: i64 holds every i32"""
    return Sides(cast(cast(x, INT64), t), cast(x, t), when=[eq(dtype(x), INT32)])
