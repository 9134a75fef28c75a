"""The rules, one file per family of laws, and the presets that combine them."""

from __future__ import annotations

from types import ModuleType

from ..egraph.engine.rule import Rule
from . import activation, arithmetic, cast, layout, logic, norm, powers, products, scales, selection, signs, slicing
from .attention import attention, gqa, grouped, merged, sink
from .attention import layout as attention_layout
from .attention import targets as attention_targets
from .rope import rotary
from .rope import targets as rope_targets


def _rules(*modules: ModuleType) -> tuple[Rule, ...]:
    return tuple(v for m in modules for v in vars(m).values() if isinstance(v, Rule))


#: Laws that hold for any model.
ALGEBRA: tuple[Rule, ...] = _rules(cast, layout, slicing, arithmetic, signs, powers, scales, logic, selection, products)
#: Rotary position embeddings, normalization and activations as fused operators.
FUSION: tuple[Rule, ...] = _rules(
    rotary, rope_targets, norm, activation, attention_layout, attention, merged, grouped, sink, attention_targets, gqa
)
#: Everything: the default.
ALL: tuple[Rule, ...] = ALGEBRA + FUSION

__all__ = ["ALGEBRA", "ALL", "FUSION", "Rule"]
