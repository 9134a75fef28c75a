"""A copy of a model to write into, and which of its parts stands for which: what was read stays as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from .model.tensors import like
from .reader import Payloads, Reading
from .shapes.inference import graphs_of


@dataclass(frozen=True, slots=True)
class Twin:
    """A model, and what of it stands for the parts of another; a part of neither stands for itself."""

    model: ir.Model
    values: Mapping[ir.Value, ir.Value] = field(default_factory=dict)
    nodes: Mapping[ir.Node, ir.Node] = field(default_factory=dict)
    graphs: Mapping[ir.Graph, ir.Graph] = field(default_factory=dict)

    def value(self, old: ir.Value) -> ir.Value:
        return self.values.get(old, old)

    def graph(self, old: ir.Graph) -> ir.Graph:
        return self.graphs.get(old, old)

    def reading(self, old: Reading) -> Reading:
        """The same reading, as that of the twin, but for how its nodes were read."""
        payloads = Payloads(
            [self.value(v) for v in old.payloads.values],
            [self.nodes.get(n, n) for n in old.payloads.nodes],
            {k: [self.value(v) for v in captured] for k, captured in old.payloads.captured.items()},
        )
        origin = {term: [self.value(v) for v in values] for term, values in old.origin.items()}
        return replace(old, payloads=payloads, graph=self.graph(old.graph), origin=origin)


def copied(model: ir.Model, *, whole: bool) -> Twin:
    """A copy of a model that shares its tensors: all of it, or, where that is enough, all but its nodes.

    Without nodes, the outputs of the copy are values of the same names that come from nothing yet.
    """
    if not whole:
        return _emptied(model)
    copy = model.clone()
    values: dict[ir.Value, ir.Value] = {}
    nodes: dict[ir.Node, ir.Node] = {}
    graphs: dict[ir.Graph, ir.Graph] = {}
    waiting = [(model.graph, copy.graph)]
    while waiting:
        old, new = waiting.pop()
        graphs[old] = new
        values.update(zip(old.inputs, new.inputs, strict=True))
        values.update((v, new.initializers[name]) for name, v in old.initializers.items())
        for one, other in zip(old, new, strict=True):
            nodes[one] = other
            values.update(zip(one.outputs, other.outputs, strict=True))
            waiting += zip(graphs_of(one), graphs_of(other), strict=True)
    return Twin(copy, values, nodes, graphs)


def _emptied(model: ir.Model) -> Twin:
    old = model.graph
    values = {v: like(v, v.name) for v in (*old.inputs, *old.initializers.values())}
    for v in old.initializers.values():
        values[v].const_value = v.const_value
    outputs = [values.get(v) or like(v, v.name) for v in dict.fromkeys(old.outputs)]
    made = dict(zip(dict.fromkeys(old.outputs), outputs, strict=True))
    graph = ir.Graph(
        [values[v] for v in old.inputs], [made[v] for v in old.outputs], nodes=(),
        initializers=[values[v] for v in old.initializers.values()], doc_string=old.doc_string,
        opset_imports=old.opset_imports.copy(), name=old.name, metadata_props=dict(old.metadata_props),
    )  # fmt: skip
    graph.meta.update(old.meta)
    copy = ir.Model(
        graph, ir_version=model.ir_version, producer_name=model.producer_name, producer_version=model.producer_version,
        domain=model.domain, model_version=model.model_version, doc_string=model.doc_string,
        functions=[function.clone() for function in model.functions.values()],
        metadata_props=dict(model.metadata_props), device_configurations=model.device_configurations,
    )  # fmt: skip
    copy.meta.update(model.meta)
    return Twin(copy, values, {}, {old: graph})
