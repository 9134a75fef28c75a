"""Real exports: what is fused in each, and that the numbers hold on generated inputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnx_egraph import saturate_and_extract

EXPORTS = Path(__file__).parent / "exports"
ATTENTION = {"Attention", "MultiHeadAttention", "GroupQueryAttention"}
NORM = {"RMSNormalization", "LayerNormalization", "SkipSimplifiedLayerNormalization", "SkipLayerNormalization"}
GELU = {"Gelu", "FastGelu", "BiasGelu"}

#: rotary, attention, norm and gelu operators that must be in the result
#: (LayerNormalization may be there from the start)
WANTED = {
    "bart_decoder_init_ts_sdpa": (0, 4, 7, 2),
    "bart_decoder_past_ts_sdpa": (0, 4, 7, 2),
    "bart_encoder_ts_sdpa": (0, 2, 5, 2),
    "deepseek_v3_ts_eager": (4, 2, 9, 0),
    "gemma3_text_ts_eager": (4, 2, 13, 2),
    "gpt2_past_dynamo_sdpa": (0, 2, 5, 2),
    "gptj_dynamo_sdpa": (4, 2, 3, 2),
    "llama_fp16_dynamo_sdpa": (4, 2, 5, 0),
    "llama_past_dynamo_eager": (4, 2, 5, 0),
    "modernbert_dynamo_sdpa": (4, 2, 5, 2),
    "phi_past_dynamo_sdpa": (4, 2, 3, 2),
    "qwen2_vl_text_ts_eager": (4, 2, 5, 0),
    "qwen3_past_ts_sdpa": (4, 2, 9, 0),
    "qwen3_posids_ts_eager": (4, 2, 9, 0),
    "t5_encoder_ts_eager": (0, 2, 5, 2),
    "tf4_bert_ts_eager": (0, 2, 5, 2),
}


def test_every_export_is_listed() -> None:
    assert {p.stem for p in EXPORTS.glob("*.onnx")} == set(WANTED)


@pytest.mark.parametrize("name", WANTED)
def test_export(name: str) -> None:
    result = saturate_and_extract(EXPORTS / f"{name}.onnx", verify=True)
    model = result.model
    ops = [n.op_type for n in model.graph.all_nodes()]  # type: ignore[union-attr]
    families = ({"RotaryEmbedding"}, ATTENTION, NORM | {"SimplifiedLayerNormalization"}, GELU)
    found = tuple(sum(op in family for op in ops) for family in families)
    assert all(f >= w for f, w in zip(found, WANTED[name], strict=True)), found
    assert "agree" in result.report.verification
    assert result.report.stop == "saturated"
