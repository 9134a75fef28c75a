"""The formulas that are spelled, by name."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from grammar.attention import attention
from grammar.block import block
from grammar.choices import Drawing
from grammar.gelu import gelu_erf, gelu_sigmoid, gelu_tanh
from grammar.norms import layernorm, rmsnorm
from grammar.rope import rope
from grammar.writer import Spelling

FORMULAS: MappingProxyType[str, Callable[[Drawing, str], Spelling]] = MappingProxyType({
    "rope": rope, "attention": attention, "rmsnorm": rmsnorm, "layernorm": layernorm,
    "gelu-erf": gelu_erf, "gelu-tanh": gelu_tanh, "gelu-sigmoid": gelu_sigmoid, "block": block,
})  # fmt: skip
