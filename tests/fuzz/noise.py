"""How far rounding carries in a model: run it with every floating value moved by a few units in the last place."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.inliner
import onnxruntime as ort
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

#: Operators that move numbers and do not round.
MOVES = frozenset({
    "Transpose", "Reshape", "Flatten", "Expand", "Tile", "Unsqueeze", "Squeeze", "Slice", "Gather", "Concat", "Split",
    "Identity", "Shape", "Constant", "ConstantOfShape", "Range", "Neg", "Abs", "Not", "Where", "Max", "ReduceMax",
    "Size", "Relu", "Floor", "Sign", "Trilu", "TopK", "Dropout", "If", "Loop", "Scan",
})  # fmt: skip
#: An input that is another number in each run.
RUN = "the number of the run"
UNIT = {T.FLOAT: 2.0**-23, T.FLOAT16: 2.0**-10, T.DOUBLE: 2.0**-52}


def noisy(
    model: onnx.ModelProto, feeds: dict[str, np.ndarray], runs: int, want: list[np.ndarray]
) -> list[np.ndarray] | None:
    """For each output the largest distance from `want` that noise made, NaN where it made another integer, or made a
    number into none; None where the model with noise does not run.
    """
    try:
        session = _session(_with_noise(model))
        names = {i.name for i in (*session.get_inputs(), *session.get_overridable_initializers())}
        given = {k: v for k, v in feeds.items() if k in names}
        spreads = [np.zeros(w.shape) for w in want]
        for run in range(runs):
            for spread, a, b in zip(
                spreads, want, session.run(None, {**given, RUN: np.array(run, np.float32)}), strict=True
            ):
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
    with_types = onnx.shape_inference.infer_shapes(changed) if model.graph.node and model.ir_version > 3 else changed
    moved = {v.name: f"{v.name} moved" for v in changed.graph.input if v.type.tensor_type.elem_type in UNIT}
    _renamed(changed.graph, moved)
    _renamed(with_types.graph, moved)
    types = {moved.get(v.name, v.name): v.type.tensor_type.elem_type for v in changed.graph.input}
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    _noise(changed.graph, with_types.graph, types, [0], opset)
    first = [n for k, (x, y) in enumerate(moved.items()) for n in _moving(x, y, types[y], f"input {k}", opset)]
    rest = [onnx.NodeProto.FromString(n.SerializeToString()) for n in changed.graph.node]
    del changed.graph.node[:]
    changed.graph.node.extend([*first, *rest])
    changed.graph.input.append(h.make_tensor_value_info(RUN, T.FLOAT, []))
    return changed


def _renamed(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    for node in graph.node:
        node.input[:] = [names.get(i, i) for i in node.input]
        for a in node.attribute:
            if a.type == onnx.AttributeProto.GRAPH:
                _renamed(a.g, names)


def _moving(raw: str, moved: str, kind: int, tag: str, opset: int) -> list[onnx.NodeProto]:
    """Nodes that move every number of a value by two units in the last place, or less: by sin(10,000 x + the run), as
    onnxruntime has no random operators in the newest opsets.
    """
    last = T.DOUBLE if kind == T.DOUBLE else T.FLOAT
    wide = last if opset >= 12 else T.FLOAT  # the older Clip knows no other type
    constants = {"steep": 1e4, "low": -1e6, "high": 1e6, "spread": 2 * UNIT[kind], "one": 1.0}
    name = {
        k: f"{k} {tag}"
        for k in (*constants, "wide", "finite", "run", "large", "angle", "sine", "last", "small", "factor")
    }
    nodes = [h.make_node("Cast", [raw], [name["wide"]], to=wide), h.make_node("Cast", [RUN], [name["run"]], to=wide)]
    kinds = {k: last if k in ("spread", "one") else wide for k in constants}
    arrays = {k: nh.from_array(np.asarray(v, h.tensor_dtype_to_np_dtype(kinds[k]))) for k, v in constants.items()}
    nodes += [h.make_node("Constant", [], [name[k]], value=a) for k, a in arrays.items()]
    if opset < 11:
        nodes.append(h.make_node("Clip", [name["wide"]], [name["finite"]], min=constants["low"], max=constants["high"]))
    else:
        nodes.append(h.make_node("Clip", [name[k] for k in ("wide", "low", "high")], [name["finite"]]))
    for op, operands, out in (
        ("Mul", "finite steep", "large"), ("Add", "large run", "angle"), ("Sin", "angle", "sine"),
        ("Cast", "sine", "last"), ("Mul", "last spread", "small"), ("Add", "small one", "factor"),
    ):  # fmt: skip
        more = {"to": last} if op == "Cast" else {}
        nodes.append(h.make_node(op, [name[each] for each in operands.split()], [name[out]], **more))
    factor = name["factor"]
    if kind == T.FLOAT16:
        nodes.append(h.make_node("Cast", [factor], [f"narrow {tag}"], to=kind))
        factor = f"narrow {tag}"
    return [*nodes, h.make_node("Mul", [raw, factor], [moved])]


def _noise(graph: onnx.GraphProto, typed: onnx.GraphProto, outer: dict[str, int], count: list[int], opset: int) -> None:
    infos = (*typed.input, *typed.value_info, *typed.output)
    types = (
        outer | {v.name: v.type.tensor_type.elem_type for v in infos} | {t.name: t.data_type for t in graph.initializer}
    )
    nodes = []
    for node, with_types in zip(graph.node, typed.node, strict=True):
        for a, b in zip(node.attribute, with_types.attribute, strict=True):
            if a.type == onnx.AttributeProto.GRAPH:
                _noise(a.g, b.g, types, count, opset)
        nodes.append(node)
        if node.op_type in MOVES:
            continue
        for k, name in enumerate(node.output):
            kind = types.get(name, 0)
            if name and kind in UNIT:
                count[0] += 1
                node.output[k] = f"raw {count[0]} of {name}"
                nodes += _moving(node.output[k], name, kind, f"{count[0]} of {name}", opset)
    kept = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del graph.node[:]
    graph.node.extend(kept)
