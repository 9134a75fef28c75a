"""Joined weights as nodes, for a model in memory whose weights stay in their files."""

from __future__ import annotations

import onnx_ir as ir

from ..model.names import Names
from ..model.tensors import Joined, initializer, like


def take_apart(model: ir.Model) -> None:
    """Make each initializer that is joined of tensors in files a Concat of those, in place: onnxruntime joins them."""
    names = Names.of(model)
    for graph in model.graphs():
        for name, value in list(graph.initializers.items()):
            whole = value.const_value
            if not isinstance(whole, Joined) or not whole.outside:
                continue
            parts = [initializer(part, names.values.fresh(part.name or "weight")) for part in whole.parts]
            made = like(value, name)
            axis = ir.AttrInt64("axis", -1)
            node = ir.Node("", "Concat", parts, [axis], outputs=[made], name=names.nodes.fresh(f"Concat_{name}"))
            value.replace_all_uses_with(made, replace_graph_outputs=True)
            del graph.initializers[name]
            for part in parts:
                graph.register_initializer(part)
            graph.insert_before(graph[0], node)
