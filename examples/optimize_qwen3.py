"""Optimize the small Qwen3 export in this folder, print the report, run both models on the same input.

    python examples/optimize_qwen3.py [OUT.onnx]

The model has 2 layers, random weights and dynamic batch and sequence. torch.onnx exported it, at opset 17.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

from onnx_egraph import saturate_and_extract

MODEL = Path(__file__).with_name("qwen3_2layers.onnx")


def run(path: Path, feed: dict[str, np.ndarray]) -> np.ndarray:
    """First output of the model: logits, float32 [batch, sequence, vocabulary]."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feed)[0])


def main(output: Path) -> None:
    """Write the optimized model to `output`."""
    result = saturate_and_extract(MODEL, verify=True)
    print(result.report.text())
    result.save(output)

    ids = np.random.default_rng(0).integers(0, 100, (3, 7))
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    difference = np.abs(run(MODEL, feed) - run(output, feed)).max()
    print(f"largest difference of the logits at batch 3, sequence 7: {difference:.2g}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder) / "qwen3.opt.onnx")
