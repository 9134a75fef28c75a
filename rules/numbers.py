"""Constants of formulas, as files have them: rounded to the element type, or a little more."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..egraph.engine.lang import Float, Guard, Tensor, dtype, eq, near
from ..egraph.terms.dtypes import FLOAT16, FLOAT32

#: Element types, each with how far a constant may be off, relatively: half a unit of the last place, and in float32 two
#: units. A constant farther off is another function. Of float64 nothing is fused that has constants of its own.
ROUNDED: Mapping[int, float] = MappingProxyType({FLOAT32: 2.5e-7, FLOAT16: 5e-4})


def about(v: Float, x: Tensor, value: float, kind: int, loose: float = 0.0) -> list[Guard]:
    """v is `value` as elements of x, of type `kind`, have it; up to `loose` off where that is more."""
    return [near(v, value, value * max(ROUNDED[kind], loose)), eq(dtype(x), kind)]
