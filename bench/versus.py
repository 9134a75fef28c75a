"""Our optimizer beside others, on one model, in one run.

    python bench/versus.py MODEL [--peers ort:qwen3,onnxscript,load] [--repeat 3]

Each measurement is a fresh process, all tools take turns. Compared are CPU seconds from the file to the
optimized model in memory, imports excluded. Peers:

    ort:TYPE     onnxruntime.transformers.optimizer.optimize_model(model_type=TYPE)
    onnxscript   onnxscript.rewriter.ort_fusions.optimize_for_ort
    load         no optimizer but onnxruntime's own work on the file: creating a session, all optimizations on

Peers that live in another environment: --peer-python PATH.
"""

import argparse
import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import onnx
from fresh import Sample, TaskFailed, measure, median_of, spread_of
from onnx import TensorProto

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def heads_and_hidden(graph: onnx.GraphProto) -> tuple[int, int]:
    """(attention heads, hidden size) by the names of a decoder export; 0 for what it does not show.

    The hidden size is the row length of the embedding, the heads are the columns of the first q_proj
    weight over the length of the first q_norm weight.
    """
    shapes = {t.name: list(t.dims) for t in graph.initializer if t.data_type in _FLOATS}
    rows = [shapes[n.input[0]] for n in graph.node if n.op_type == "Gather" and n.input[0] in shapes]
    hidden = max((shape[1] for shape in rows if len(shape) == 2), default=0)
    columns = [
        shapes[name][-1]
        for node in graph.node
        if node.op_type == "MatMul" and "q_proj" in node.name
        for name in node.input
        if name in shapes
    ]
    norms = [shape[0] for name, shape in shapes.items() if re.search(r"q_norm\.weight$", name)]
    heads = columns[0] // norms[0] if columns and norms else 0
    return heads, hidden


def installed(module: str, python: str) -> bool:
    """Whether `python` has `module`; asked without importing it."""
    probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", probe], check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--peers", default="ort:qwen3,onnxscript,load")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--heads", type=int, help="attention heads, for ort; read from the model if absent")
    parser.add_argument("--hidden", type=int, help="hidden size, for ort; read from the model if absent")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--peer-python")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    graph = onnx.load(options.model, load_external_data=False).graph
    heads, hidden = heads_and_hidden(graph)
    sizes = [f"--heads={options.heads or heads}", f"--hidden={options.hidden or hidden}"]
    peer_python = options.peer_python or options.python
    failures: dict[str, str] = {}
    runs: dict[str, tuple[str, str, list[str]]] = {"ours": ("ours", options.python, [])}
    for peer in options.peers.split(","):
        task, _, kind = peer.partition(":")
        if task == "onnxscript" and not installed("onnxscript", peer_python):
            failures[peer] = "not installed"
        else:
            runs[peer] = (task, peer_python, [*sizes, f"--type={kind or 'qwen3'}"] if task == "ort" else [])

    samples: dict[str, list[Sample]] = {name: [] for name in runs}
    for turn in range(options.repeat):
        order = list(runs.items())
        for name, (task, python, arguments) in order if turn % 2 == 0 else reversed(order):
            if name in failures:
                continue
            try:
                samples[name].append(measure(task, options.model, *arguments, python=python))
            except TaskFailed as failure:
                # A peer that cannot do this model is a finding; ours that cannot is an error.
                if name == "ours":
                    raise
                failures[name] = str(failure)

    print(f"{options.model}: {len(graph.node)} nodes; {' '.join(sizes)}; median of {options.repeat}")
    print(f"{'':16} {'cpu s':>9} {'spread':>7} {'wall s':>9} {'+MiB':>7} {'nodes':>7} {'/ ours':>8}")
    ours = median_of(samples["ours"], "cpu")
    for name, taken in samples.items():
        if name in failures:
            continue
        cpu = median_of(taken, "cpu")
        grown = median_of(taken, "rss_peak") - median_of(taken, "rss_imports")
        nodes = str(taken[0].nodes_after or "-")
        print(
            f"{name:16} {cpu:9.3f} {spread_of(taken, 'cpu'):7.0%} {median_of(taken, 'wall'):9.3f}"
            f" {grown:7.0f} {nodes:>7} {cpu / ours:8.2f}"
        )
    for name, reason in failures.items():
        print(f"{name:16} {reason}")
    if options.json:
        plain = {name: [dataclasses.asdict(s) for s in taken] for name, taken in samples.items()}
        options.json.write_text(json.dumps({"samples": plain, "failures": failures}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
