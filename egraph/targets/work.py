"""What a cost model is asked: one operator with the types and sizes of its operands.

A model prices one operator at a time; extraction adds the prices over the DAG. Whoever calls a model substitutes the
reference dims (decode, prefill, ...) into the shapes and weights the results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from ..terms import SILENT

# A tensor of unknown rank counts as this many elements; an unknown reduction length as this many terms.
NOMINAL_ELEMENTS = 65_536
NOMINAL_DEPTH = 256

HALF = frozenset({"float16", "bfloat16"})
_WIDTH = MappingProxyType(
    {"bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2}
    | {"int32": 4, "uint32": 4, "float32": 4, "int64": 8, "uint64": 8, "float64": 8, "complex64": 8}
)


@dataclass(frozen=True, slots=True)
class TensorType:
    """What a cost model may know of a value: dtype in numpy's spelling ("" if absent) and dims.

    `shape` has the reference dims filled in; None is an unknown rank. `const` says that the value is
    known when the model is loaded: an initializer, or computed from initializers alone. `outer` says of an operand
    that it is an input of the model, which no cache holds, and of a result that it is an output, which has memory of
    its own.
    """

    dtype: str
    shape: tuple[int, ...] | None
    const: bool = False
    outer: bool = False

    @property
    def size(self) -> int:
        """Number of elements; `NOMINAL_ELEMENTS` where the rank is unknown."""
        return NOMINAL_ELEMENTS if self.shape is None else math.prod(self.shape)

    @property
    def width(self) -> int:
        """Bytes per element; types narrower than a byte and strings count as 1 and 8."""
        return 8 if self.dtype == "string" else _WIDTH.get(self.dtype, 1)


# An optional input that is left out.
ABSENT = TensorType("", (0,), True)


@dataclass(frozen=True, slots=True)
class Work:
    """One operator to be priced.

    `op` is the term's name, or the original op type of an opaque node, written "domain::Type" outside the
    default domain. Inputs keep their positions: an optional one that is left out is `ABSENT`.
    """

    op: str
    ins: tuple[TensorType, ...]
    outs: tuple[TensorType, ...]
    attrs: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))


@runtime_checkable
class CostModel(Protocol):
    """Anything with this method prices graphs."""

    def cost(self, work: Work) -> int:
        """Picoseconds, an int >= 0. It is called once per e-node and reference point."""
        ...


@dataclass(frozen=True, slots=True)
class NodeCount:
    """Every operator costs the same, inputs and constants nothing: the fewest nodes win."""

    per_node: int = 1_000_000

    def cost(self, work: Work) -> int:
        """`per_node` picoseconds, 0 for a term that is not an operator."""
        return 0 if work.op in SILENT else self.per_node
