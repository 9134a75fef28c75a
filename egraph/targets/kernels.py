"""Tables of kernels as text: which operators a provider runs, for which element types of their main operand."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import TargetError

#: domain -> lines "dtype ...: Op ...", a deeper indent goes on with the ops.
Kernels = Mapping[str, str]

_SHORT: Mapping[str, str] = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "b1": "bool",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
}  # fmt: skip
#: Element types kernels are listed for.
DTYPES = tuple(_SHORT.values())
# Groups of dtypes in the tables.
_SETS: Mapping[str, str] = {"any": "float int bf16 b1", "float": "f16 f32 f64", "int": "i8 i16 i32 i64 u8 u16 u32 u64"}


def expand(table: Kernels) -> set[tuple[str, str, str]]:
    """The (domain, operator, dtype) triples of a table. Raises TargetError for a line that cannot be read."""
    ops: set[tuple[str, str, str]] = set()
    for domain, text in table.items():
        dtypes: list[str] = []
        for line in text.splitlines():
            names, colon, row = line.rpartition(":")
            if colon:
                dtypes = _dtypes(names)
            if row.split() and not dtypes:
                raise TargetError(f"the line {line.strip()!r} of kernels says no element types: 'f16 f32: Op Op ...'")
            ops |= {(domain, op, dtype) for op in row.split() for dtype in dtypes}
    return ops


def _dtypes(names: str) -> list[str]:
    if strange := set(names.split()) - _SETS.keys() - _SHORT.keys():
        known = ", ".join([*_SETS, *_SHORT])
        raise TargetError(f"kernels for {sorted(strange)[0]!r}: element types are {known}")
    return [dtype for name in names.split() for dtype in (_dtypes(_SETS[name]) if name in _SETS else [_SHORT[name]])]
