"""Scalars that do nothing, and how constant factors meet; bounds that hold anyway."""

from __future__ import annotations

from ..egraph.engine.lang import (
    Float,
    Guard,
    Int,
    Sides,
    Tensor,
    call,
    dtype,
    eq,
    le,
    ne,
    rank,
    real,
    rule,
    scalar,
    tensor,
    thin,
    zero_or_more,
)
from ..egraph.terms.dtypes import FLOAT16


@rule(expand=dict(k=(0, 1)), holds=dict(x="b s", c="=1"), refuse=[dict(x="b s", c="=2"), dict(x="b s", c="=1:1 1 1")])
def mul_one(x: Tensor, c: Tensor, k: int) -> Sides:
    """x * 1 = x"""
    return Sides(x * c, x, when=[eq(scalar(c), real(1.0)), *thin(c, x, k)])


@rule(
    contract="reassociated", expand=dict(below=(0, 1), k=(0, 1)), holds=[dict(x="b s", c="=0"), dict(x="b s", c="=0:1")],
    refuse=[dict(x="b s", c="=2"), dict(x="b s", c="=0:1 1 1")],
)  # fmt: skip
def add_zero(x: Tensor, c: Tensor, below: int, k: int) -> Sides:
    """x + 0 = x - 0 = x   but for the sign of a 0"""
    return Sides(x - c if below else x + c, x, when=[eq(scalar(c), real(0.0)), *thin(c, x, k)])


# ---------------------------------------------------------------------------------------------------- constant factors


def _normal(v: Float, c: Tensor, wide: int) -> list[Guard]:
    """v and its inverse are normal numbers of the type of c: of any, or (wide = 1) of one wider than float16."""
    far = 2.0**100 if wide else 2.0**14
    return [le(v * v, far**2), le(far**-2, v * v), *([ne(dtype(c), FLOAT16)] if wide else [])]


_FAR = [dict(c="=1e31"), dict(c="=1e-31"), dict(c="=6e4:float16"), dict(c="=2e-5:float16")]


def _refused(sample: dict[str, str]) -> list[dict[str, str]]:
    """The constant is too large, too small, widens x, or is none."""
    kinds = (c["c"].partition(":")[2] for c in _FAR)
    far = [dict(sample, x=f"{sample['x']}:{t}" if t else sample["x"], **c) for c, t in zip(_FAR, kinds, strict=True)]
    return [*far, dict(sample, c=f"{sample['c']}:1 1 1")]


@rule(
    contract="reassociated", expand=dict(k=(0, 1), wide=(0, 1)),
    holds=[dict(x="b s", c="=3"), dict(x="b s", c="=-0.7:1"), dict(x="b s:float16", c="=3:float16")],
    refuse=_refused(dict(x="b s", c="=3")),
)  # fmt: skip
def div_number(x: Tensor, c: Tensor, v: Float, to: Int, k: int, wide: int) -> Sides:
    """x / c = x * (1/c)   for a constant c"""
    when = [eq(scalar(c), v), eq(dtype(c), to), *thin(c, x, k), *_normal(v, c, wide)]
    return Sides(x / c, x * call("FConst", real(1.0) / v, to), when=when)


@rule(
    contract="reassociated", expand=dict(k=(0, 1), wide=(0, 1)),
    holds=[dict(x="b s", c="=3", d="=-0.7"), dict(x="b s", c="=3:1", d="=2:1"),
           dict(x="b s:float16", c="=3:float16", d="=2:float16")],
    refuse=[*(dict(r, d=f"=1:{r['c'].split(':')[1]}" if "float16" in r["c"] else "=1")
              for r in _refused(dict(x="b s", c="=3"))),
            dict(x="b s", c="=3", d="=2:1 1 1")],
)  # fmt: skip
def scale_scale(x: Tensor, c: Tensor, d: Tensor, v: Float, w: Float, to: Int, k: int, wide: int) -> Sides:
    """(x * c) * d = x * (c*d)   for constants c and d"""
    when = [eq(scalar(c), v), eq(scalar(d), w), eq(dtype(c), to), *thin(c, x, k), *thin(d, x, k)]
    return Sides((x * c) * d, x * call("FConst", v * w, to), when=[*when, *_normal(v * w, c, wide)])


# ------------------------------------------------------------------------------------------------ bounds that hold


@rule(holds=dict(x="squares b s"), refuse=[dict(x="b s")])
def relu_nothing(x: Tensor) -> Sides:
    """relu(x) = x   for x of 0 and above"""
    return Sides(tensor("Relu", x), x, when=[zero_or_more(x)])


@rule(
    holds=[dict(x="squares b s", c="=0"), dict(x="squares b s", c="=-1:1")],
    refuse=[dict(x="squares b s", c="=0.1"), dict(x="squares b s", c="=0:1 1 1"), dict(x="b s", c="=0")],
)  # fmt: skip
def max_nothing(x: Tensor, c: Tensor, v: Float) -> Sides:
    """max(x, c) = x   for x of 0 and above and c of 0 and below"""
    when = [eq(scalar(c), v), le(v, real(0.0)), le(rank(c), rank(x)), zero_or_more(x)]
    return Sides(tensor("Max", x, c), x, when=when)


@rule(
    contract="finite", holds=[dict(x="squares b s", c="=0"), dict(x="squares b s", c="=-1")],
    refuse=[dict(x="squares b s", c="=0.1"), dict(x="b s", c="=0")],
)  # fmt: skip
def clip_nothing(x: Tensor, c: Tensor, v: Float) -> Sides:
    """clip(x, c) = x   for x of 0 and above and c of 0 and below; of inf it would be the largest number"""
    when = [eq(scalar(c), v), le(v, real(0.0)), zero_or_more(x)]
    return Sides(tensor("ClipBelow", x, c), x, when=when)
