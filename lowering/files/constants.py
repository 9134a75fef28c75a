"""Constants as nodes and as initializers: `lift` and `sink` undo each other, in place."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ..model.domains import DEFAULT
from ..model.names import Names
from ..model.tensors import initializer, like

_DTYPES: Mapping[tuple[str, ir.AttributeType], ir.DataType] = {
    ("value_int", ir.AttributeType.INT): ir.DataType.INT64, ("value_ints", ir.AttributeType.INTS): ir.DataType.INT64,
    ("value_float", ir.AttributeType.FLOAT): ir.DataType.FLOAT,
    ("value_floats", ir.AttributeType.FLOATS): ir.DataType.FLOAT,
}  # fmt: skip


def lift(model: ir.Model) -> None:
    """Turn Constant nodes into initializers, in place; those of strings, and those that are outputs, stay.

    The value keeps what the node said about itself; where both say something under one key, its own.
    """
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        if node.op_type != "Constant" or node.domain != DEFAULT:
            continue
        value, graph = node.outputs[0], node.graph
        if value.is_graph_output() or not value.name:
            continue
        tensor = _constant(node)
        if tensor is None or graph is None:
            continue
        made = initializer(tensor, value.name)
        made.doc_string = value.doc_string or node.doc_string
        made.metadata_props.update({**node.metadata_props, **value.metadata_props})
        made.meta.update(value.meta)
        value.replace_all_uses_with(made)
        graph.remove(node, safe=True)
        graph.register_initializer(made)


def _constant(node: ir.Node) -> ir.TensorProtocol | None:
    if len(node.attributes) != 1:
        return None
    [attribute] = node.attributes.values()
    if attribute.name == "value" and attribute.type == ir.AttributeType.TENSOR:
        tensor: ir.TensorProtocol = attribute.value  # as_tensor() checks a protocol of 20 members
        return tensor
    dtype = _DTYPES.get((attribute.name, attribute.type))
    return None if dtype is None else ir.tensor(np.asarray(attribute.value, dtype.numpy()), dtype=dtype)


def sink(model: ir.Model) -> None:
    """Turn initializers that are no inputs into Constant nodes, in place: an old IR version has no others.

    Listing them among the inputs instead would change what a caller may feed, and a branch of an If has no inputs.
    """
    names = Names.of(model)
    for graph in model.graphs():
        for name, value in list(graph.initializers.items()):
            if value.is_graph_input() or value.const_value is None:
                continue
            made = like(value, name)
            attribute = ir.AttrTensor("value", value.const_value)
            node = ir.Node("", "Constant", [], [attribute], outputs=[made], name=names.nodes.fresh(f"Constant_{name}"))
            value.replace_all_uses_with(made, replace_graph_outputs=True)
            del graph.initializers[name]
            graph.insert_before(graph[0], node) if len(graph) else graph.append(node)
