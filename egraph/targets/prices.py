"""What the operators of a runtime cost: data that a target's file gives and a roofline turns into time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Rate:
    """Picoseconds per element of the largest operand, beside the traffic of memory.

    `half` is the same for float16. None: there is no such kernel, the runtime computes in float32.
    """

    full: float
    half: float | None = None


#: Time of an attention operator over that of MatMul, Mul, Add, Softmax, MatMul (with the Concat of the past and the
#: repeated heads where there are any), at (decode, prompts up to 128 tokens, longer prompts).
Ratios = tuple[float, float, float]


@dataclass(frozen=True)
class Prices:
    """Prices of one runtime in picoseconds.

    what: the quantity, for reports. launch: of a kernel; view: of an operator that moves no data; const: of one folded
    at load; byte: of one read or written; mac: of a float32 multiply-add of a matrix product, half_mac: of a float16
    one. widening: times what an operator without a float16 kernel costs in float32. rates: by term, or by the operator
    of a file ("domain::Type" outside the default domain), with "3" for operands of rank 3 and "+tanh" for that variant;
    rotary: of the rotation an operator does inside. bodies: what float16 is computed as where there is no kernel, steps
    (operator, second operand) in order, x or a constant c. attention: ratios by (term, float16, fewer heads of keys);
    an operator without any costs its products or its traffic. simple: operators that cost their traffic. other: the
    rate of a term without a row; None: there must be one. opaque: the rate of what is no term.
    """

    what: str
    launch: int
    view: int
    byte: float
    mac: float
    half_mac: float
    const: int = 1_000
    widening: float = 1.0
    rates: Mapping[str, Rate] = field(default_factory=lambda: MappingProxyType({}))
    rotary: Rate = Rate(0.0, 0.0)
    bodies: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=lambda: MappingProxyType({}))
    attention: Mapping[tuple[str, bool, bool], Ratios] = field(default_factory=lambda: MappingProxyType({}))
    simple: frozenset[str] = frozenset()
    other: Rate | None = None
    opaque: Rate = Rate(0.0, 0.0)

    @cached_property
    def rows(self) -> frozenset[str]:
        """Everything that has a row of its own."""
        return frozenset(self.rates) | self.simple | frozenset(self.bodies) | {op for op, _, _ in self.attention}
