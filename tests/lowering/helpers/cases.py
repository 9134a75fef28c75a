"""A small model and what is inferred of it, by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from onnx_egraph.lowering.shapes.inference import Shapes, ValueFacts, infer

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
FAR = 2**63 - 1


def tensor(name: str, dtype: int, dims: list[int | str | None] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, dims)


def const(name: str, values: object, dtype: type = np.int64) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(np.array(values, dtype=dtype), name)


class Case:
    """A small model and its facts by name."""

    def __init__(
        self,
        nodes: list[onnx.NodeProto],
        inputs: list[onnx.ValueInfoProto],
        outputs: list[str | onnx.ValueInfoProto],
        constants: list[onnx.TensorProto] | None = None,
        value_info: list[onnx.ValueInfoProto] | None = None,
        opset: int = 20,
        believing: bool = False,
    ) -> None:
        graph = helper.make_graph(
            nodes,
            "g",
            inputs,
            [onnx.ValueInfoProto(name=each) if isinstance(each, str) else each for each in outputs],
            constants or [],
            value_info=value_info or [],
        )
        imports = [helper.make_opsetid("", opset), helper.make_opsetid("custom", 1)]
        self.proto = helper.make_model(graph, opset_imports=imports, ir_version=9)
        self.model = ir.from_proto(self.proto)
        self.shapes: Shapes = infer(self.model, believing=believing)
        self.values: dict[str, ir.Value] = {}
        for graph_ in (self.model.graph, *self.model.graph.subgraphs()):
            nodes_outputs = [value for node in graph_ for value in node.outputs]
            for value in (*graph_.inputs, *graph_.initializers.values(), *nodes_outputs):
                self.values[str(value.name)] = value

    def __getitem__(self, name: str) -> ValueFacts:
        return self.shapes.of(self.values[name])

    def dims(self, name: str) -> tuple[int | str, ...]:
        """The sizes of a value of known rank."""
        dims = self[name].dims
        assert dims is not None, name
        return dims

    def elems(self, name: str) -> tuple[int | str, ...]:
        """The contents of a small tensor."""
        elems = self[name].elems
        assert elems is not None, name
        return elems


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    domain = str(attributes.pop("domain", ""))
    names = ["" if name == "_" else name for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), domain=domain, **attributes)


def is_fresh(dim: int | str) -> bool:
    return isinstance(dim, str) and dim.startswith("?")
