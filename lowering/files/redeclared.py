"""Types declared more than once for one value: an output may be an input, too, or be listed twice.

onnx-ir keeps one type a value, the last it meets. onnxruntime believes the input, then what it infers, and of outputs
the first.
"""

from __future__ import annotations

from collections import Counter

import onnx
import onnx_ir as ir

from ..model import wellformed
from ..shapes.inference import graphs_of, infer


def settle(proto: onnx.GraphProto, graph: ir.Graph) -> None:
    """Give the values of a graph just read from `proto`, bodies included, the type of the input, or what the outputs
    agree on; in place.
    """
    given = {v.name: v for v in proto.input}
    declared: dict[str, list[onnx.ValueInfoProto]] = {}
    for entry in proto.output:
        declared.setdefault(entry.name, []).append(entry)
    for value in dict.fromkeys(graph.outputs):
        entries = declared.get(value.name or "", [])
        if value.name in given and value.is_graph_input():
            ir.serde.deserialize_value_info_proto(given[value.name], value)
        elif len(entries) > 1:
            ir.serde.deserialize_value_info_proto(entries[0], value)
            shapes = [ir.serde.deserialize_type_proto_for_shape(entry.type) for entry in entries]
            value.shape = _common(shapes)
    for written, node in zip(proto.node, graph, strict=True):
        for body, inner in zip(wellformed.bodies(written), graphs_of(node), strict=True):
            settle(body, inner)


def complete(model: ir.Model) -> None:
    """Fill in the sizes of outputs listed twice on which their declarations do not agree, in place."""
    times = Counter(model.graph.outputs)
    open_ones = [v for v, n in times.items() if n > 1 and (v.shape is None or v.shape.has_unknown_dim())]
    if not open_ones:
        return
    shapes = infer(model)
    for value in open_ones:
        dims = shapes.of(value).dims
        known = value.shape if value.shape is not None else [None] * len(dims or ())
        if dims is None or len(dims) != len(known):
            continue
        names = [d if isinstance(d, int) else shapes.readable.get(d, "@") for d in dims]
        sizes = [None if isinstance(n, str) and "@" in n else n for n in names]  # such a size is one input's own
        value.shape = ir.Shape([n if _size(k) is None else k for k, n in zip(known, sizes, strict=True)])


def _common(shapes: list[ir.Shape | None]) -> ir.Shape | None:
    """What the shapes agree on."""
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or len({len(shape) for shape in known}) > 1:
        return None
    columns = [{_size(d) for d in column} for column in zip(*known, strict=True)]
    return ir.Shape([column.pop() if len(column) == 1 else None for column in columns])


def _size(dim: int | ir.SymbolicDim | None) -> int | str | None:
    return dim.value if isinstance(dim, ir.SymbolicDim) else dim
