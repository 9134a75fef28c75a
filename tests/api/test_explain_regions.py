"""Each fused node of a whole decoder is explained by its own part of the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnx_egraph import Result, saturate_and_extract
from onnx_egraph.egraph.explain import Derivation

EXAMPLE = Path(__file__).parents[2] / "examples" / "qwen3_2layers.onnx"


@pytest.fixture(scope="module")
def decoder() -> Result:
    return saturate_and_extract(EXAMPLE)


@pytest.fixture(scope="module")
def derived(decoder: Result) -> dict[str, tuple[str, Derivation]]:
    return {f.node: (f.op, decoder.explain(f.node)) for f in decoder.report.fused}


def test_every_chain_replays(derived: dict[str, tuple[str, Derivation]]) -> None:
    for op, found in derived.values():
        assert found.complete, op
        assert found.steps
        assert all(s.compared and not s.false and s.before for s in found.steps)


def test_a_rotation_is_explained_by_rules_of_rotations(derived: dict[str, tuple[str, Derivation]]) -> None:
    """It equals no original value: what the model has is its transpose, split into heads."""
    chains = {found.rules for op, found in derived.values() if op == "RotaryEmbedding"}
    (chain,) = chains
    assert chain[-2:] == ("ms-rope3-shared", "squeeze-unsqueeze")
    assert {"wide-cos", "rot-halves", "rope-sum"} <= set(chain)
    assert not any(rule.startswith(("scores", "sdpa", "biased", "softmax", "onnx")) for rule in chain)


def test_an_attention_begins_where_the_rotations_end(derived: dict[str, tuple[str, Derivation]]) -> None:
    for op, found in derived.values():
        if op == "Attention":
            assert not any(rule.startswith(("wide", "rot", "rope", "ms-rope")) for rule in found.rules)
            assert found.result.startswith("OnnxAttention3(x, y, z, u, ")
            assert [value.endswith(" of the result") for _, value in found.where] == [True, True, False, False]


def test_the_cheap_list_has_every_rule_of_the_chain(
    decoder: Result, derived: dict[str, tuple[str, Derivation]]
) -> None:
    for f in decoder.report.fused:
        assert set(derived[f.node][1].rules) <= set(f.rules)
        if f.op == "RotaryEmbedding":
            assert not any(rule.startswith(("scores", "sdpa", "biased", "softmax", "onnx")) for rule in f.rules)
