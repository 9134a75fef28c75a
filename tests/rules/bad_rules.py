"""False rules, each with the check that must reject it. None may ever be accepted."""

from __future__ import annotations

import math
from dataclasses import dataclass

from onnx_egraph.egraph.engine.assumption import SAME_BATCH
from onnx_egraph.egraph.engine.lang import (
    Float,
    Int,
    Ints,
    Sides,
    Tensor,
    at,
    call,
    cast,
    concat,
    count,
    dim,
    dtype,
    eq,
    ints,
    is_const,
    num,
    rank,
    real,
    rule,
    scalar,
    size,
    slice_,
    supported,
    symbolic,
    tensor,
    thin,
    transpose,
)  # fmt: skip
from onnx_egraph.egraph.engine.rule import Rule


@dataclass(frozen=True)
class Bad:
    """A rule, the check that rejects it, and a part of the problem's text."""

    rule: Rule
    check: str
    says: str


def _mean(x: Tensor, axis: int = -1) -> Tensor:
    return tensor("ReduceMean", x, (axis,), 1)


def _wide(x: Tensor, pairs: int) -> Tensor:
    return tensor("Wide", x, pairs, 1)


def _rot(x: Tensor, pairs: int) -> Tensor:
    return tensor("Rot", x, pairs)


@rule(holds=dict(x="b s", y="b s"))
def wrong_equation(x: Tensor, y: Tensor) -> Sides:
    """x - y = y - x"""
    return Sides(x - y, y - x)


@rule(holds=dict(x="b s", c="=1"))
def missing_guard(x: Tensor, c: Tensor) -> Sides:
    """x * 1 = x, although c may have more axes than x"""
    return Sides(x * c, x, when=[eq(scalar(c), real(1.0))])


@rule(contract="reassociated", holds=dict(x="b m k", w="k n", s="1"))
def missing_rank(x: Tensor, w: Tensor, s: Tensor) -> Sides:
    """(s * x) @ w = s * (x @ w), although s may be a vector"""
    return Sides((s * x) @ w, s * (x @ w), when=[])


@rule(holds=dict(x="b s"))
def never_fires(x: Tensor) -> Sides:
    """-(-x) = x, asking for two ranks at once"""
    minus = -x
    return Sides(-minus, x, when=[eq(rank(x), 2), eq(rank(x), 3)])


@rule(holds=dict(x="b s", c="b s"))
def fires_on_constants_only(x: Tensor, c: Tensor) -> Sides:
    """(x + c) - c = x, sampled with a c that is no constant"""
    return Sides(call("Cast", x * c, 1), x * c, when=[is_const(c)])


@rule(contract="reassociated", stage="fuse", holds=dict(x="b s h", e="=1e-5"))
def dropped_epsilon(x: Tensor, e: Tensor, eps: Float) -> Sides:
    """x / sqrt(mean(x*x) + eps) = rnorm(x, 0)"""
    lhs = x / call("Sqrt", _mean(x * x) + e)
    return Sides(lhs, call("RNorm", x, real(0.0)), when=[eq(scalar(e), eps), thin(e, x)])


@rule(contract="reassociated", stage="fuse", holds=dict(x="b s h", e="=1e-5"))
def epsilon_outside_the_root(x: Tensor, e: Tensor, eps: Float) -> Sides:
    """x / (sqrt(mean(x*x)) + eps) = rnorm(x, eps)"""
    lhs = x / (call("Sqrt", _mean(x * x)) + e)
    return Sides(lhs, call("RNorm", x, eps), when=[eq(scalar(e), eps), thin(e, x)])


@rule(contract="reassociated", stage="fuse", holds=dict(x="b s h"))
def wrong_axis(x: Tensor) -> Sides:
    """x - mean(x over -2) = center(x)"""
    return Sides(x - _mean(x, -2), call("Center", x))


@rule(contract="reassociated", stage="fuse", holds=dict(x="b s h"))
def mean_for_sum(x: Tensor) -> Sides:
    """sum(x) = mean(x)"""
    return Sides(call("ReduceSum", x, (-1,), 1), _mean(x))


@rule(stage="marker", holds=dict(x="b s 2h"))
def sign_flipped_in_the_turn(x: Tensor, h: Int) -> Sides:
    """cat(x2, -x1) = rot(x)"""
    return Sides(concat([slice_(x, h, 2 * h), -slice_(x, 0, h)]), _rot(x, 0), when=[eq(dim(x, -1), num(2 * h))])


@rule(stage="marker", holds=dict(x="b s 2h"))
def halves_swapped_without_a_sign(x: Tensor, h: Int) -> Sides:
    """cat(x2, x1) = rot(x)"""
    return Sides(concat([slice_(x, h, 2 * h), slice_(x, 0, h)]), _rot(x, 0), when=[eq(dim(x, -1), num(2 * h))])


@rule(stage="marker", holds=dict(x="b s h", y="b s h"))
def wide_of_different_halves(x: Tensor, y: Tensor) -> Sides:
    """cat(x, y) = wide(x)"""
    return Sides(concat([x, y]), _wide(x, 0))


@rule(stage="marker", holds=dict(x="b s h"))
def interleaved_for_halves(x: Tensor) -> Sides:
    """cat(x, x) = every element twice"""
    return Sides(concat([x, x]), _wide(x, 1))


@rule(holds=dict(x="b s"))
def narrowing_cast_dropped(x: Tensor) -> Sides:
    """cast(cast(x, f16), f32) = x"""
    return Sides(cast(cast(x, 10), 1), x, when=[eq(dtype(x), 1)])


@rule(holds=dict(x="b s:float16"))
def wrong_type_on_the_right(x: Tensor) -> Sides:
    """cast(x, f32) = x"""
    return Sides(cast(x, 1), x)


@rule(holds=dict(x="b s"))
def without_end(x: Tensor) -> Sides:
    """unsqueeze(x) = squeeze(unsqueeze(unsqueeze(x))): true, but there is always one more"""
    more = call("Unsqueeze", call("Unsqueeze", x, -1), -1)
    return Sides(call("Unsqueeze", x, -1), call("Squeeze", more, -1))


@rule(holds=dict(x="b n s", p=(1, 2, 0), q=(0, 2, 1)))
def transposes_in_the_wrong_order(x: Tensor, p: Ints, q: Ints) -> Sides:
    """transpose(transpose(x, p), q) = transpose(x, q[p])"""
    both = Ints("vec-of", tuple(at(q, at(p, i)) for i in range(3)))
    return Sides(transpose(transpose(x, p), q), transpose(x, both), when=[eq(count(p), 3), eq(count(q), 3)])


@rule(holds=dict(x="b s"))
def zero_times_anything(x: Tensor) -> Sides:
    """x - x = x * 0: of a negative x that is -0.0"""
    return Sides(x - x, x * call("FConst", 0.0, 1), when=[eq(dtype(x), 1)])


@rule(holds=dict(x="b s"))
def adding_zero(x: Tensor) -> Sides:
    """x + 0 = x: wrong for -0.0, under a contract of equal bits"""
    return Sides(x + call("FConst", 0.0, 1), x, when=[eq(dtype(x), 1)])


@rule(contract="exact", holds=dict(x="b s", y="b s", z="b s"))
def reassociated_called_exact(x: Tensor, y: Tensor, z: Tensor) -> Sides:
    """(x + y) + z = x + (y + z), said to be exact"""
    return Sides((x + y) + z, x + (y + z))


@rule(holds=dict(x="b s h", t="ints b s h"), refuse=[dict(x="b s h", t="ints s b h")])
def reshape_of_the_same_rank(x: Tensor, t: Tensor) -> Sides:
    """reshape(x, t) = x for every t as long as the shape of x"""
    same: Tensor = call("Reshape", x, t)
    return Sides(same, x, when=[eq(rank(x), rank(same))])


@rule(holds=dict(x="b s", c="=1"), refuse=[dict(x="b s", c="=1")])
def refuses_what_holds(x: Tensor, c: Tensor) -> Sides:
    """x * 1 = x, with one sample in both lists"""
    return Sides(x * c, x, when=[eq(scalar(c), real(1.0)), thin(c, x)])


@rule(holds=dict(x="1 s h", y="b s h"), refuse=[dict(x="b s h", y="s h")])
def first_batch_row(x: Tensor, y: Tensor) -> Sides:
    """x + y = squeeze(x) + y   where x has one batch row: true for y of rank 3 only"""
    return Sides(x + y, call("Squeeze", x, -3) + y, when=[eq(dim(x, -3), num(1))])


@rule(holds=dict(x="b s", y="b s"))
def states_a_wrong_size(x: Tensor, y: Tensor) -> Sides:
    """-x + -y = -(x + y), and the first axis is as long as the last"""
    return Sides(-x + -y, -(x + y), states=[(dim(x + y, -2), dim(x + y, -1))])


@rule(holds=dict(x="b s", y="b s"))
def states_a_wrong_value(x: Tensor, y: Tensor) -> Sides:
    """-x + -y = -(x + y), and x is y"""
    return Sides(-x + -y, -(x + y), states=[(x, y)])


@rule(
    contract="reassociated", assumes=[SAME_BATCH],
    holds=[dict(q="b n s h", k=f"b n {t} h", v="b n t d", m="b n s t", s=0.5, c=3.0, g=1) for t in "t1"],
)  # fmt: skip
def attention_of_a_wide_mask(q: Tensor, k: Tensor, v: Tensor, m: Tensor, s: Float, c: Float, g: Int) -> Sides:
    """sdpa(q, k, v, m) = sdpa(q, k, v, m), and the mask is as wide as k is long: not of a T of 1"""
    left: Tensor = call("Sdpa", q, k, v, m, s, c, g)
    wide: Tensor = call("Expand", m, concat([ints(1, 1, 1), size(dim(k, -2))]))
    return Sides(left, call("Sdpa", q, k, v, wide, s, c, g), states=[(dim(wide, -1), dim(k, -2))])


@rule(holds=dict(x="b s h", y="K s h", K=(1, 3)))
def one_row_for_any_number(x: Tensor, y: Tensor) -> Sides:
    """x + y = x + squeeze(y)   for a y of a number of rows that is not fixed"""
    return Sides(x + y, x + call("Squeeze", y, -3), when=[symbolic(dim(y, -3), "rows")])


_ATTENTION = dict(q="b n s h", k="b n t h", v="b n t d", s=0.5)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, m: Tensor, s: Float, c: Float, guard: int) -> Tensor:
    return tensor("Sdpa", q, k, v, m, s, c, guard)


@rule(contract="reassociated", stage="target", holds=dict(_ATTENTION, m="b 1 s t", c=3.0))
def guard_dropped(q: Tensor, k: Tensor, v: Tensor, m: Tensor, s: Float, c: Float) -> Sides:
    """sdpa(q, k, v, m), guarded = sdpa(q, k, v, m): not of NaN among the scores"""
    return Sides(_sdpa(q, k, v, m, s, c, 1), _sdpa(q, k, v, m, s, c, 0))


@rule(contract="reassociated", stage="target", holds=dict(_ATTENTION, c=3.0))
def guard_dropped_without_a_mask(q: Tensor, k: Tensor, v: Tensor, s: Float, c: Float) -> Sides:
    """sdpa(q, k, v), guarded = ONNX Attention: no row is empty, but scores may be NaN"""
    none = call("Absent")
    fused = call("OnnxAttention", q, k, v, none, s, c)
    return Sides(_sdpa(q, k, v, none, s, c, 1), fused, when=[supported("OnnxAttention", q)])


@rule(contract="reassociated", stage="target", holds=dict(_ATTENTION, m="lowest b 1 s t", c=3.0))
def lowest_number_taken_for_infinity(q: Tensor, k: Tensor, v: Tensor, m: Tensor, s: Float, c: Float) -> Sides:
    """sdpa(q, k, v, m), 0 in rows that m hides = ONNX Attention: not of rows of the lowest number"""
    fused = call("OnnxAttention", q, k, v, m, s, c)
    return Sides(_sdpa(q, k, v, m, s, c, 2), fused, when=[supported("OnnxAttention", q)])


@rule(contract="reassociated", stage="target", holds=dict(_ATTENTION, m="b 1 s t", c=3.0))
def guard_behind_hides_values(q: Tensor, k: Tensor, v: Tensor, m: Tensor, s: Float, c: Float) -> Sides:
    """sdpa(q, k, v, m), guarded = where(isnan(o), 0, o): not of NaN among the values"""
    o = _sdpa(q, k, v, m, s, c, 0)
    behind = call("Where", call("IsNaN", o), call("FConst", real(0.0), 1), o)
    return Sides(_sdpa(q, k, v, m, s, c, 1), behind, when=[eq(dtype(q), 1)])


@rule(contract="reassociated", stage="target", holds=dict(_ATTENTION, m="b 1 s t", c=3.0))
def cap_dropped(q: Tensor, k: Tensor, v: Tensor, m: Tensor, s: Float, c: Float) -> Sides:
    """sdpa(.., cap) = sdpa(.., no cap)"""
    return Sides(_sdpa(q, k, v, m, s, c, 0), _sdpa(q, k, v, m, s, real(0.0), 0))


@rule(contract="reassociated", stage="target", holds=dict(_ATTENTION, m="b 1 s t", c=0.0))
def cap_dropped_where_there_is_none(q: Tensor, k: Tensor, v: Tensor, m: Tensor, s: Float, c: Float) -> Sides:
    """sdpa(.., cap) = sdpa(.., no cap), sampled without one"""
    return Sides(_sdpa(q, k, v, m, s, c, 0), _sdpa(q, k, v, m, s, real(0.0), 0))


@rule(contract="reassociated", stage="marker", holds=dict(x="b s 2h", p=0))
def turn_of_pairs_as_of_halves(x: Tensor, p: Int) -> Sides:
    """-rot(x, pairs) = rot(-x, halves), sampled with halves"""
    return Sides(-_rot(x, p), _rot(-x, 0))


@rule(contract="reassociated", holds=dict(w="b s:bool", x="b s"))
def product_for_a_selection(w: Tensor, x: Tensor) -> Sides:
    """where(w, x, 0) = x * w: not of NaN and infinities that are hidden"""
    zero = call("FConst", real(0.0), 1)
    return Sides(call("Where", w, x, zero), x * cast(w, 1), when=[eq(dtype(x), 1)])


@rule(contract="reassociated", holds=dict(w="b s:bool", x="b s"))
def sum_for_a_selection(w: Tensor, x: Tensor) -> Sides:
    """where(w, x, -inf) = x + where(w, 0, -inf): not of NaN and +inf that are hidden"""
    never, zero = (call("FConst", real(value), 1) for value in (-math.inf, 0.0))
    return Sides(call("Where", w, x, never), x + call("Where", w, zero, never), when=[eq(dtype(x), 1)])


@rule(contract="reassociated", stage="marker", holds=dict(x="b s"))
def softmax_without_its_maximum(x: Tensor) -> Sides:
    """softmax(x) = exp(x) / sum(exp(x)): not where exp(x) overflows"""
    e = call("Exp", x)
    return Sides(call("Softmax", x, -1), e / tensor("ReduceSum", e, (-1,), 1))


@rule(contract="reassociated", stage="marker", holds=dict(x="b s"))
def root_of_any_number(x: Tensor) -> Sides:
    """x ** -0.5 = rsqrt(x): not of -inf"""
    return Sides(call("Pow", x, call("FConst", real(-0.5), 1)), call("RSqrt", x), when=[eq(dtype(x), 1)])


@rule(contract="reassociated", stage="fuse", holds=dict(x="b s"))
def floor_of_any_number(x: Tensor) -> Sides:
    """max(x, lowest number) = x: not of -inf"""
    lowest = call("FConst", real(-3.4028234663852886e38), 1)
    return Sides(call("Max", x, lowest), x, when=[eq(dtype(x), 1)])


@rule(contract="reassociated", holds=dict(x="b s h"))
def square_over_square(x: Tensor) -> Sides:
    """(x * x) / (x * x) = x / x: not where x * x is infinite"""
    return Sides(x / x, (x * x) / (x * x))


@rule(holds=dict(x="b s h", axis=-1))
def softmax_of_any_axis(x: Tensor, axis: Int) -> Sides:
    """softmax(-x, -1), although the axis may be another one"""
    return Sides(call("Softmax", -x, axis), call("Softmax", -x, -1))


@rule(holds=dict(x="b s h n", perm=(0, 2, 1, 3)))
def any_order_twice(x: Tensor, perm: Ints) -> Sides:
    """transpose(transpose(x, p), p) = x, although only some orders undo themselves"""
    return Sides(transpose(transpose(x, perm), perm), x)


@rule(contract="reassociated", stage="fuse", holds=dict(x="b s", alpha=1.0))
def any_slope(x: Tensor, alpha: Float) -> Sides:
    """quickgelu(x, alpha) = x * sigmoid(x), although alpha may be another number than 1"""
    return Sides(call("QuickGelu", x, alpha), x * call("Sigmoid", x))


@rule(contract="reassociated", stage="fuse", holds=dict(x="b s h", w="h", eps=1e-5))
def any_epsilon(x: Tensor, w: Tensor, eps: Float) -> Sides:
    """rnorm(x, eps) * w = rmsnorm(x, w, 1e-5)"""
    vector = [eq(rank(w), 1), eq(dim(w, -1), dim(x, -1)), eq(dtype(w), dtype(x))]
    return Sides(call("RNorm", x, eps) * w, call("RMSNorm", x, w, real(1e-5)), when=vector)


@rule(holds=dict(x="b 8", axis=-1, start=2))
def tail_of_any_axis(x: Tensor, axis: Int, start: Int) -> Sides:
    """x[start:8 on axis] = x[start:8 on -1], of an axis that in no sample is another one"""
    return Sides(slice_(x, start, 8, axis), slice_(x, start, 8, -1))


BAD: tuple[Bad, ...] = (
    Bad(softmax_of_any_axis, "equal", "first difference"),
    Bad(any_order_twice, "equal", "sides differ"),
    Bad(any_slope, "equal", "first difference"),
    Bad(any_epsilon, "equal", "first difference"),
    Bad(tail_of_any_axis, "varied", "no sample gives the attribute 'axis' another value"),
    Bad(wrong_equation, "equal", "first difference"),
    Bad(missing_guard, "equal", "shapes"),
    Bad(missing_rank, "equal", "missing-rank"),
    Bad(never_fires, "equal", "the guards held on none"),
    Bad(never_fires, "fires", "no reading's guards hold"),
    Bad(fires_on_constants_only, "fires", "does not fire in the e-graph"),
    Bad(dropped_epsilon, "equal", "first difference"),
    Bad(epsilon_outside_the_root, "equal", "first difference"),
    Bad(wrong_axis, "equal", "first difference"),
    Bad(mean_for_sum, "equal", "first difference"),
    Bad(sign_flipped_in_the_turn, "equal", "first difference"),
    Bad(halves_swapped_without_a_sign, "equal", "first difference"),
    Bad(wide_of_different_halves, "equal", "first difference"),
    Bad(interleaved_for_halves, "equal", "first difference"),
    Bad(narrowing_cast_dropped, "equal", "first difference"),
    Bad(wrong_type_on_the_right, "equal", "element types"),
    Bad(wrong_type_on_the_right, "fires", "two facts contradict"),
    Bad(without_end, "fires", "does not end"),
    Bad(transposes_in_the_wrong_order, "equal", "shapes"),
    Bad(zero_times_anything, "equal", "first difference"),
    Bad(adding_zero, "equal", "left np.float32(0.0), right np.float32(-0.0)"),
    Bad(reassociated_called_exact, "equal", "first difference"),
    Bad(reshape_of_the_same_rank, "equal", "shapes"),
    Bad(reshape_of_the_same_rank, "refuse", "two facts contradict"),
    Bad(refuses_what_holds, "refuse", "fires on a sample it must refuse"),
    Bad(first_batch_row, "equal", "shapes"),
    Bad(states_a_wrong_size, "equal", "the rule states that"),
    Bad(states_a_wrong_value, "equal", "where the rule states that"),
    Bad(attention_of_a_wide_mask, "equal", "the rule states that"),
    Bad(one_row_for_any_number, "equal", "right side cannot be computed"),
    Bad(guard_dropped, "equal", "nan"),
    Bad(guard_dropped_without_a_mask, "equal", "nan"),
    Bad(lowest_number_taken_for_infinity, "equal", "right np.float32(0.0)"),
    Bad(guard_behind_hides_values, "equal", "NaN"),
    Bad(cap_dropped, "equal", "first difference"),
    Bad(cap_dropped_where_there_is_none, "passed", "no sample gives 'cap' of Sdpa"),
    Bad(turn_of_pairs_as_of_halves, "passed", "no sample gives 'pairs' of Rot"),
    Bad(product_for_a_selection, "equal", "right np.float32(nan)"),
    Bad(sum_for_a_selection, "equal", "right np.float32(nan)"),
    Bad(softmax_without_its_maximum, "equal", "nan"),
    Bad(root_of_any_number, "equal", "NaN and infinities"),
    Bad(floor_of_any_number, "equal", "right np.float32(-inf)"),
    Bad(square_over_square, "equal", "nan"),
)
