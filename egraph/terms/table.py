"""All terms, read only."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from . import activation, arithmetic, attention, layout, norm, rope, structure
from .op import ROLES, Op

#: Every built-in term by its name.
OPS: Mapping[str, Op] = MappingProxyType({
    op.name: op
    for family in (structure, arithmetic, layout, rope, attention, norm, activation)
    for op in family.TERMS
})  # fmt: skip


def names(*roles: str) -> frozenset[str]:
    """The built-in terms of these roles. Raises KeyError for an unknown role."""
    if unknown := set(roles) - set(ROLES):
        raise KeyError(f"no role {sorted(unknown)[0]!r}; there are {', '.join(ROLES)}")
    return frozenset(op.name for op in OPS.values() if op.role in roles)


#: Constants: tensors of the model, numbers, and the operand that is absent.
CONSTANTS = names("stored", "number", "absent")
#: Leaves whose payload names a value of the model.
LEAVES = names("input", "stored")
#: Constants a term itself gives.
NUMBERS = names("number")
#: What a file shows no node for.
SILENT = names("input", "stored", "number", "absent", "list", "output")
#: What no rule looks into.
OPAQUE = names("opaque")
#: Operators reports count.
FUSED = names("fused")
#: Terms with the elements of their first operand, in order or in another one.
LAYOUT = frozenset(op.name for op in OPS.values() if op.layout)
