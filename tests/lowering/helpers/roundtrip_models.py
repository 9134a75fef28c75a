"""Models that hold an RMS normalization spelled out, and what must hold of results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from onnx_egraph import saturate_and_extract

SIZE = 8
FUSED = {"SimplifiedLayerNormalization", "RMSNormalization"}
WEIGHT = nh.from_array(np.linspace(0.5, 1.5, SIZE, dtype=np.float32), "w")
CONSTANTS = [
    WEIGHT,
    nh.from_array(np.array(2, np.float32), "two"),
    nh.from_array(np.array(1e-6, np.float32), "eps"),
    nh.from_array(np.array([-1]), "last"),
]


def n(op: str, ins: str, outs: str, name: str | None = None, **attributes: Any) -> onnx.NodeProto:
    """A node; "-" is an operand that is left out."""
    made = h.make_node(op, [i.replace("-", "") for i in ins.split()], outs.split(), **attributes)
    made.name = f"node/{outs.split()[0]}" if name is None else name
    return made


def norm(x: str, y: str, p: str = "", w: str = "w") -> list[onnx.NodeProto]:
    """x / sqrt(mean(x^2) + eps) * w as exporters spell it; names of values begin with p."""
    return [
        n("Pow", f"{x} two", f"{p}square"),
        n("ReduceMean", f"{p}square last", f"{p}mean"),
        n("Add", f"{p}mean eps", f"{p}shifted"),
        n("Sqrt", f"{p}shifted", f"{p}root"),
        n("Div", f"{x} {p}root", f"{p}unit"),
        n("Mul", f"{p}unit {w}", y),
    ]


def info(name: str, *shape: str | int | None, dtype: int = T.FLOAT) -> onnx.ValueInfoProto:
    return h.make_tensor_value_info(name, dtype, shape or ("batch", SIZE))


def model(
    nodes: Sequence[onnx.NodeProto],
    ins: Sequence[onnx.ValueInfoProto] | None = None,
    outs: Sequence[onnx.ValueInfoProto] | None = None,
    constants: Sequence[onnx.TensorProto] = CONSTANTS,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    ins, outs = ins or [info("x")], outs or [info("y")]
    graph = h.make_graph(list(nodes), "main graph", list(ins), list(outs), list(constants))
    imports = [
        h.make_opsetid("", 18),
        *({h.make_opsetid(f.domain, 1).domain: h.make_opsetid(f.domain, 1) for f in functions}.values()),
    ]
    return h.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=9)


def optimized(given: onnx.ModelProto) -> onnx.ModelProto:
    """The result, after the checks that hold for every model."""
    before = given.SerializeToString()
    result = saturate_and_extract(given).model
    assert isinstance(result, onnx.ModelProto)
    assert given.SerializeToString() == before
    onnx.checker.check_model(checkable(result))
    assert [v.SerializeToString() for v in result.graph.input] == [v.SerializeToString() for v in given.graph.input]
    assert [v.SerializeToString() for v in result.graph.output] == [v.SerializeToString() for v in given.graph.output]
    unique(result.graph, set())
    again = saturate_and_extract(given).model
    assert isinstance(again, onnx.ModelProto)
    assert data(again) == data(result)
    once_more = saturate_and_extract(result).model
    assert isinstance(once_more, onnx.ModelProto)
    assert text(once_more) == text(result)
    assert data(once_more) == data(result)
    return result


def checkable(given: onnx.ModelProto) -> onnx.ModelProto:
    """The model with an operator that onnxruntime has in the default domain moved to one nobody checks."""
    changed = onnx.ModelProto()
    changed.CopyFrom(given)
    changed.opset_import.append(h.make_opsetid("unchecked", 1))
    graphs = [changed.graph]
    for graph in graphs:
        graphs += bodies(graph)
        for node in graph.node:
            if node.op_type == "SimplifiedLayerNormalization":
                node.domain = "unchecked"
    return changed


def text(given: onnx.ModelProto) -> str:
    return onnx.printer.to_text(given)


def data(given: onnx.ModelProto) -> bytes:
    return given.SerializeToString(deterministic=True)


def unique(graph: onnx.GraphProto, outer: set[str]) -> None:
    made = [v.name for v in graph.input]
    made += [t.name for t in graph.initializer if t.name not in made]
    made += [o for node in graph.node for o in node.output if o]
    assert len(set(made)) == len(made)
    assert outer.isdisjoint(made)
    names = [node.name for node in graph.node if node.name]
    assert len(set(names)) == len(names)
    for body in bodies(graph):
        unique(body, outer | set(made))


def bodies(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    return [a.g for node in graph.node for a in node.attribute if a.HasField("g")]


def ops(graph: onnx.GraphProto) -> list[str]:
    return [node.op_type for node in graph.node]


def all_ops(graph: onnx.GraphProto) -> list[str]:
    return ops(graph) + [op for body in bodies(graph) for op in all_ops(body)]


def fused(given: onnx.ModelProto) -> int:
    return sum(op in FUSED for op in all_ops(given.graph))


def run(given: onnx.ModelProto | Path, **feeds: Any) -> list[Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    source = str(given) if isinstance(given, Path) else given.SerializeToString()
    session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def x(rows: int = 3) -> npt.NDArray[np.float32]:
    return np.random.default_rng(5).standard_normal((rows, SIZE)).astype(np.float32)


def same_numbers(a: onnx.ModelProto, b: onnx.ModelProto, **feeds: Any) -> None:
    """Equal up to the rounding of a sum of SIZE squares and a few more operations."""
    rounding = 4 * SIZE * float(np.finfo(np.float32).eps)
    for p, q in zip(run(a, **feeds), run(b, **feeds), strict=True):
        np.testing.assert_allclose(q, p, rtol=rounding, atol=rounding)


def good(given: onnx.ModelProto, norms: int = 1, **feeds: Any) -> onnx.ModelProto:
    result = optimized(given)
    assert fused(result) == norms
    same_numbers(given, result, **(feeds or {"x": x()}))
    return result
