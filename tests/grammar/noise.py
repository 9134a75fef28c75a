"""Harmless noise: nodes that change nothing, put behind values of a graph."""

from __future__ import annotations

import numpy as np
import onnx
from grammar.choices import Drawing
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

PLACES = 5  # noise is put behind one in so many values
KINDS = ("none", "identity", "cast", "transpose", "reshape", "flat", "unsqueeze", "any")
WIDER = {T.FLOAT: T.DOUBLE, T.FLOAT16: T.FLOAT}


def disturb(graph: onnx.GraphProto, opset: int, draw: Drawing, prefix: str) -> None:
    """Put noise behind one in five of the floating values of known rank."""
    kind = draw.choice("noise", KINDS)
    if kind == "none":
        return
    place = int(draw.choice("noise.place", [str(k) for k in range(PLACES)]))
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=8)
    typed = onnx.shape_inference.infer_shapes(model).graph
    types = {v.name: v.type.tensor_type for v in [*typed.value_info, *typed.input]}
    last = {o.name for o in graph.output}
    nodes: list[onnx.NodeProto] = []
    renamed: dict[str, str] = {}
    seen = 0

    def behind(name: str) -> None:
        nonlocal seen
        known = types.get(name)
        if known is None or name in last or known.elem_type not in (T.FLOAT, T.FLOAT16, T.DOUBLE):
            return
        seen += 1
        rank = len(known.shape.dim)
        if seen % PLACES != place or not rank:
            return
        this = KINDS[1 + (seen // PLACES + place) % (len(KINDS) - 2)] if kind == "any" else kind
        pair = _pair(this, known.elem_type, rank)
        before = name
        for step, (op, operands, attributes) in enumerate(pair):
            inputs = [before]
            for k, operand in enumerate(operands):
                if operand is None:  # the sizes of the value itself
                    sizes = f"{prefix}noise{seen} sizes"
                    nodes.append(h.make_node("Shape", [name], [sizes]))
                    inputs.append(sizes)
                else:
                    inputs.append(f"{prefix}noise{seen} {step} {k}")
                    graph.initializer.append(nh.from_array(np.array(operand, np.int64), inputs[-1]))
            before = f"{prefix}noise{seen} {step}"
            nodes.append(h.make_node(op, inputs, [before], **attributes))
        renamed[name] = before

    for value in graph.input:
        behind(value.name)
    for node in list(graph.node):
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [renamed.get(i, i) for i in node.input]
        nodes.append(copy)
        if node.op_type != "Constant":
            for name in node.output:
                behind(name)
    del graph.node[:]
    graph.node.extend(nodes)


Step = tuple[str, list[list[int] | None], dict[str, object]]


def _pair(kind: str, element: int, rank: int) -> list[Step]:
    """There and back."""
    if kind == "cast" and element in WIDER:
        return [("Cast", [], {"to": WIDER[element]}), ("Cast", [], {"to": element})]
    if kind == "transpose" and rank > 1:
        turn = [*range(1, rank), 0]
        return [("Transpose", [], {"perm": turn}), ("Transpose", [], {"perm": [rank - 1, *range(rank - 1)]})]
    if kind == "reshape":
        return [("Reshape", [[0] * (rank - 1) + [1, -1]], {}), ("Reshape", [[0] * (rank - 1) + [-1]], {})]
    if kind == "flat":
        return [("Reshape", [[-1]], {}), ("Reshape", [None], {})]
    if kind == "unsqueeze":
        return [("Unsqueeze", [[rank - 1]], {}), ("Squeeze", [[rank - 1]], {})]
    return [("Identity", [], {})]
