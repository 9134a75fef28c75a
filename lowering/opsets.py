"""May a model's opset be raised? Only when every node that is carried through verbatim means the same there.

Terms are printed in whatever opset is wanted. A verbatim node is unchanged if its operator was not redefined,
or if the new definition has the same inputs, outputs, attributes and defaults, and only more types, and runs.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx
import onnx_ir as ir

from .model.domains import DEFAULT, schema
from .reader import Reading
from .shapes.inference import GRAPH_TYPES

Schema = onnx.defs.OpSchema
#: Redefined in opset 22 with more types, and onnxruntime 1.32 has no kernel for that definition.
_LEFT_BEHIND = frozenset({
    "GlobalLpPool", "MaxRoiPool", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike", "RoiAlign",
})  # fmt: skip


def can_raise(reading: Reading, nodes: Iterable[ir.Node], opset: int) -> bool:
    """Whether these nodes of the graph, all that are or were verbatim, keep their meaning in `opset` of the default
    domain.

    Never for a body, nor for a graph with bodies: they share one opset, and only one graph was read.
    """
    if not reading.graph.opset_imports:
        return False  # only the outermost graph has imports
    for node in nodes:
        if node.domain == DEFAULT and not same_operator(node.op_type, reading.opset, opset):
            return False
        if any(a.type in GRAPH_TYPES for a in node.attributes.values()):
            return False
    return True


def same_operator(op: str, old: int, new: int) -> bool:
    """Whether a node of this type means the same in both opsets of the default domain, and runs in the new one."""
    a, b = schema(op, old), schema(op, new)
    if a is None or b is None:
        return False
    if a.since_version == b.since_version:
        return True
    return op not in _LEFT_BEHIND and _signature(a) == _signature(b)


def _signature(s: Schema) -> tuple[object, ...]:
    attributes = sorted(
        (n, str(a.type), a.required, a.default_value.SerializeToString()) for n, a in s.attributes.items()
    )
    formals = [(p.name, str(p.option)) for p in (*s.inputs, *s.outputs)]
    return (s.min_input, s.max_input, s.min_output, s.max_output, attributes, formals, s.deprecated)
