"""How far rounding carries in a model: run it with every floating value moved by a few units in the last place."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto as T
from onnx import helper as h

#: Operators that move numbers and do not round.
MOVES = frozenset({
    "Transpose", "Reshape", "Flatten", "Expand", "Tile", "Unsqueeze", "Squeeze", "Slice", "Gather", "Concat", "Split",
    "Identity", "Shape", "Constant", "ConstantOfShape", "Range", "Neg", "Abs", "Not", "Where", "Max", "ReduceMax", "Size",
    "Relu", "Floor", "Sign", "Trilu", "TopK", "Dropout", "If", "Loop", "Scan",
})  # fmt: skip
UNIT = {T.FLOAT: 2.0**-23, T.FLOAT16: 2.0**-10, T.DOUBLE: 2.0**-52}


def noisy(model: onnx.ModelProto, feeds: dict[str, np.ndarray], runs: int, want: list[np.ndarray]) -> list[np.ndarray] | None:
    """For each output the largest distance from `want` that noise made, NaN where it made another integer, or made a
    number into none; None where the model with noise does not run.
    """
    try:
        session = _session(_with_noise(model))
        names = {i.name for i in (*session.get_inputs(), *session.get_overridable_initializers())}
        given = {k: v for k, v in feeds.items() if k in names}
        spreads = [np.zeros(w.shape) for w in want]
        for _ in range(runs):
            for spread, a, b in zip(spreads, want, session.run(None, given), strict=True):
                spread[...] = np.maximum(spread, _distance(a, b))
    except Exception:  # onnxruntime's exceptions have no common base
        return None
    return spreads


def _distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.shape != b.shape:
        raise ValueError("another shape")
    if a.dtype.kind not in "fV":
        return np.where(a != b, np.nan, 0.0)
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.abs(a - b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(np.isfinite(apart), apart, np.nan))


def _session(model: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _with_noise(model: onnx.ModelProto) -> onnx.ModelProto:
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    if model.graph.node and model.ir_version > 3:
        with_types = onnx.shape_inference.infer_shapes(changed)
    else:
        with_types = changed
    _noise(changed.graph, with_types.graph, {}, [0])
    return changed


def _noise(graph: onnx.GraphProto, typed: onnx.GraphProto, outer: dict[str, int], count: list[int]) -> None:
    infos = (*typed.input, *typed.value_info, *typed.output)
    types = outer | {v.name: v.type.tensor_type.elem_type for v in infos} | {t.name: t.data_type for t in graph.initializer}
    nodes = []
    for node, with_types in zip(graph.node, typed.node, strict=True):
        for a, b in zip(node.attribute, with_types.attribute, strict=True):
            if a.type == onnx.AttributeProto.GRAPH:
                _noise(a.g, b.g, types, count)
        nodes.append(node)
        if node.op_type in MOVES:
            continue
        for k, name in enumerate(node.output):
            kind = types.get(name, 0)
            if name and kind in UNIT:
                count[0] += 1
                raw, wide, factor = (f"{stem} {count[0]} of {name}" for stem in ("raw", "wide", "factor"))
                node.output[k] = raw
                spread = 2 * UNIT[kind]
                random = T.DOUBLE if kind == T.DOUBLE else T.FLOAT
                nodes.append(h.make_node(
                    "RandomUniformLike", [raw], [wide], dtype=random, low=1 - spread, high=1 + spread, seed=float(count[0]),
                ))  # fmt: skip
                if kind == T.FLOAT16:
                    nodes.append(h.make_node("Cast", [wide], [factor], to=kind))
                nodes.append(h.make_node("Mul", [raw, factor if kind == T.FLOAT16 else wide], [name]))
    kept = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del graph.node[:]
    graph.node.extend(kept)
