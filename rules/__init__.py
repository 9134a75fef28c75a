"""The rules, one file per family of laws, and the presets that combine them."""

from __future__ import annotations

from types import ModuleType

from ..egraph.rule import Rule
from . import (
    activation,
    arithmetic,
    attention,
    attention_layout,
    attention_targets,
    cast,
    gqa,
    grouped,
    layout,
    merged,
    norm,
    rope_targets,
    rotary,
    sink,
    slicing,
)


def _rules(*modules: ModuleType) -> tuple[Rule, ...]:
    return tuple(v for m in modules for v in vars(m).values() if isinstance(v, Rule))


#: Laws that hold for any model.
ALGEBRA: tuple[Rule, ...] = _rules(cast, layout, slicing, arithmetic)
#: Rotary position embeddings, normalisation and activations as fused operators.
FUSION: tuple[Rule, ...] = _rules(
    rotary, rope_targets, norm, activation, attention_layout, attention, merged, grouped, sink, attention_targets, gqa
)
#: Everything: the default.
ALL: tuple[Rule, ...] = ALGEBRA + FUSION

__all__ = ["ALGEBRA", "ALL", "FUSION", "Rule"]
