"""strict=True: rows that a mask hides entirely keep their values, too. Shown on left-padded batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from onnx_egraph import saturate_and_extract

EXPORTS = Path(__file__).parent / "exports"
NAMES = ["qwen3_past_ts_sdpa", "llama_past_dynamo_eager", "gpt2_past_dynamo_sdpa", "tf4_bert_ts_eager"]


def run(path: Path, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, feeds)


def left_padded(path: Path) -> dict[str, np.ndarray]:
    """Three rows of six tokens, the first b of row b masked; no past."""
    rng = np.random.default_rng(3)
    mask = np.ones((3, 6), np.int64)
    for b in range(3):
        mask[b, :b] = 0
    feeds = {}
    for i in ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).get_inputs():
        if len(i.shape) == 4:
            feeds[i.name] = np.zeros((3, i.shape[1], 0, i.shape[3]), np.float32)
        elif "mask" in i.name:
            feeds[i.name] = mask
        else:
            feeds[i.name] = rng.integers(0, 2 if "type" in i.name else 128, (3, 6))
    return feeds


@pytest.mark.parametrize("name", NAMES)
def test_hidden_rows_keep_their_values(name: str, tmp_path: Path) -> None:
    path = EXPORTS / f"{name}.onnx"
    result = saturate_and_extract(path, strict=True)
    assert not any("strict does without" in a for a in result.report.assumptions)
    result.save(tmp_path / "strict.onnx")
    feeds = left_padded(path)
    for a, b in zip(run(path, feeds), run(tmp_path / "strict.onnx", feeds), strict=True):
        assert np.array_equal(np.isnan(a), np.isnan(b))
        assert np.nanmax(np.abs(a - b)) <= 1e-4


def test_without_strict_the_assumption_is_reported() -> None:
    result = saturate_and_extract(EXPORTS / "llama_past_dynamo_eager.onnx")
    assert any("fully masked" in a for a in result.report.assumptions)
