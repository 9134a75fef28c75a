"""Decoding with caches: the optimized model, fed by its own presents, gives the original's tokens, step by step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from onnx_egraph import saturate_and_extract

EXPORTS = Path(__file__).parent / "exports"
STEPS = 64
VOCABULARY = 128
Arrays = dict[str, np.ndarray]


def session(path: Path, optimized: bool, folder: Path) -> ort.InferenceSession:
    """The original with onnxruntime's optimizations off, or our result with them on."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    if optimized:
        result = saturate_and_extract(path)
        assert {f.op for f in result.report.fused} & {"Attention", "MultiHeadAttention"}
        path = folder / path.name
        result.save(path)
    else:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def empty_caches(s: ort.InferenceSession, batch: int, lengths: dict[str, int]) -> Arrays:
    rng = np.random.default_rng(5)
    caches = {}
    for i in s.get_inputs():
        if len(i.shape) == 4:
            length = lengths[str(i.shape[2])]
            caches[i.name] = rng.standard_normal((batch, i.shape[1], length, i.shape[3])).astype(np.float32)
    return caches


def step(s: ort.InferenceSession, feeds: Arrays) -> tuple[np.ndarray, Arrays]:
    """The first output, and the presents under the names of the pasts they become."""
    out = dict(zip((o.name for o in s.get_outputs()), s.run(None, feeds), strict=True))
    first = next(iter(out))
    return out[first], {k.replace("present", "past"): v for k, v in out.items() if k.startswith("present")}


def prompt(batch: int, padding: str) -> tuple[np.ndarray, np.ndarray]:
    """Seven tokens per row; row b has b padded positions on the given side."""
    ids = np.random.default_rng(batch).integers(3, VOCABULARY, (batch, 7))
    mask = np.ones_like(ids)
    for b in range(batch):
        if padding == "left":
            mask[b, :b] = 0
        elif padding == "right" and b:
            mask[b, -b:] = 0
    return ids, mask


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", ["qwen3_past_ts_sdpa", "llama_past_dynamo_eager", "gpt2_past_dynamo_sdpa"])
def test_decoder(name: str, batch: int, padding: str, tmp_path: Path) -> None:
    path = EXPORTS / f"{name}.onnx"
    pair = [session(path, optimized, tmp_path) for optimized in (False, True)]
    ids, mask = prompt(batch, padding)
    last = np.array([np.flatnonzero(row)[-1] for row in mask])
    caches = [empty_caches(s, batch, {"past": 0}) for s in pair]
    tokens = ids
    for k in range(STEPS):
        logits = []
        for i, s in enumerate(pair):
            out, caches[i] = step(s, {"input_ids": tokens, "attention_mask": mask, **caches[i]})
            logits.append(out[np.arange(batch), last] if k == 0 else out[:, -1])
        assert np.abs(logits[0] - logits[1]).max() <= 1e-4, f"step {k}"
        chosen = [x.argmax(-1) for x in logits]
        assert np.array_equal(chosen[0], chosen[1]), f"step {k}"
        tokens = chosen[0][:, None]
        mask = np.concatenate([mask, np.ones((batch, 1), mask.dtype)], axis=1)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("past", [0, 1, 37])
def test_bart_decoder(past: int, batch: int, tmp_path: Path) -> None:
    """Self attention over a growing cache, cross attention over a fixed one of 11 positions."""
    path = EXPORTS / "bart_decoder_past_ts_sdpa.onnx"
    pair = [session(path, optimized, tmp_path) for optimized in (False, True)]
    fixed = empty_caches(pair[0], batch, {"past": past, "enc": 11})
    caches = [dict(fixed), dict(fixed)]
    head = np.random.default_rng(1).standard_normal((64, VOCABULARY)).astype(np.float32)
    tokens = np.random.default_rng(batch).integers(3, VOCABULARY, (batch, 1))
    for k in range(STEPS):
        states = []
        for i, s in enumerate(pair):
            out, presents = step(s, {"decoder_input_ids": tokens, **caches[i]})
            caches[i] |= presents
            states.append(out[:, -1])
        assert np.abs(states[0] - states[1]).max() <= 1e-4, f"step {k}"
        chosen = [(x @ head).argmax(-1) for x in states]
        assert np.array_equal(chosen[0], chosen[1]), f"step {k}"
        tokens = chosen[0][:, None]
