"""Measurements in processes of their own: the child's side, started by `fresh.py`.

    python task.py ours|ort|onnxscript|load MODEL ANSWER.json [options of the task]

Every task reads the model from its file with the clock running and writes nothing to disk while it runs.
What a task imports, including modules it would otherwise load on first use, is loaded before.
"""

import argparse
import importlib
import json
import pkgutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def _peak() -> float:
    """The largest resident set of this process so far in MiB, from /proc (Linux).

    Not getrusage: its maximum is inherited over fork and exec, so a big parent would be counted.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmHWM in /proc/self/status")


def _ours(model: str, options: argparse.Namespace) -> Callable[[], dict[str, Any]]:
    root = importlib.import_module("onnx_egraph")
    for module in pkgutil.walk_packages(root.__path__, "onnx_egraph."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in ("egglog.bindings", "onnxruntime", "onnx_ir", "onnx_shape_inference", "scipy.optimize", "scipy.sparse"):
        importlib.import_module(name)

    def run() -> dict[str, Any]:
        report = root.saturate_and_extract(model).report
        return {
            "times": dict(report.times),
            "egraph": dict(report.egraph),
            "nodes_before": report.nodes_before,
            "nodes_after": report.nodes_after,
        }

    return run


def _ort(model: str, options: argparse.Namespace) -> Callable[[], dict[str, Any]]:
    optimizer = importlib.import_module("onnxruntime.transformers.optimizer")
    for name in ("sympy.combinatorics", "sympy.tensor.tensor"):  # its shape inference loads them on first use
        importlib.import_module(name)
    if options.type not in optimizer.MODEL_TYPES:  # optimize_model would return the model as it is
        raise ValueError(f"onnxruntime has no model type {options.type!r}")

    def run() -> dict[str, Any]:
        result = optimizer.optimize_model(
            model, model_type=options.type, num_heads=options.heads, hidden_size=options.hidden
        )
        return {"nodes_after": len(result.model.graph.node)}

    return run


def _onnxscript(model: str, options: argparse.Namespace) -> Callable[[], dict[str, Any]]:
    ir = importlib.import_module("onnx_ir")
    optimize = importlib.import_module("onnxscript.rewriter.ort_fusions").optimize_for_ort

    def run() -> dict[str, Any]:
        result = optimize(ir.load(model))
        # Versions differ: the model, or the model with the number of uses of each fusion.
        optimized = result[0] if isinstance(result, tuple) else result
        return {"nodes_after": sum(1 for _ in optimized.graph)}

    return run


def _load(model: str, options: argparse.Namespace) -> Callable[[], dict[str, Any]]:
    onnxruntime = importlib.import_module("onnxruntime")

    def run() -> dict[str, Any]:
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
        return {}

    return run


_TASKS = {"ours": _ours, "ort": _ort, "onnxscript": _onnxscript, "load": _load}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=sorted(_TASKS))
    parser.add_argument("model")
    parser.add_argument("answer")
    parser.add_argument("--type", default="qwen3")
    parser.add_argument("--heads", type=int, default=0)
    parser.add_argument("--hidden", type=int, default=0)
    options = parser.parse_args()

    run = _TASKS[options.task](options.model, options)
    imports = _peak()
    cpu, wall = time.process_time(), time.perf_counter()
    sizes = run()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    sample = {"cpu": cpu, "wall": wall, "rss_imports": imports, "rss_peak": _peak(), **sizes}
    Path(options.answer).write_text(json.dumps(sample))


if __name__ == "__main__":
    main()
