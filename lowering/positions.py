"""Gathers of all positions: indices that count along their own axes take a tensor as it is.

Those of fewer would be a slice; but that they are fewer, and not more, only the gather says.

Exporters write `mask[rows[:, None], columns[None, :]]` as a GatherND of two ranges side by side, or as a Gather of
rows * width + columns from the flattened mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from .shapes.inference import Shapes

_Dim = int | str
#: How far indices are followed to their ranges.
_FAR = 24


@dataclass(frozen=True, slots=True)
class Count:
    """A range from 0 along an axis of a size: every step adds `stride`."""

    stride: _Dim
    size: _Dim


#: By axes counted from the end: an integer tensor whose elements are the sum of what these count.
Counts = dict[int, Count]


def gathered(node: ir.Node, shapes: Shapes) -> tuple[ir.Value, tuple[int, ...]] | None:
    """What a GatherND, or a Gather along the first axis, takes if that is all of each axis, and the axes of size 1 that
    it adds.
    """
    data, ids = node.inputs[0], node.inputs[1]
    if node.op_type == "Gather" and data is not None and node.attributes.get_int("axis", 0) not in (
        0, -len(shapes.of(data).dims or ()),
    ):  # fmt: skip
        return None
    if data is None or ids is None or (out := shapes.of(node.outputs[0]).dims) is None:
        return None
    found = _of_columns(node, data, ids, shapes) if node.op_type == "GatherND" else _of_rows(data, ids, shapes)
    if found is None:
        return None
    source, along, counts = found
    ones = tuple(axis for axis in range(-len(out), 0) if axis not in along)
    if along != sorted(set(along)) or any(out[axis] != 1 for axis in ones):
        return None
    whole = shapes.of(source).dims == tuple(count.size for count in counts)
    return (source, ones) if whole else None


def _of_columns(
    node: ir.Node, data: ir.Value, ids: ir.Value, shapes: Shapes
) -> tuple[ir.Value, list[int], list[Count]] | None:
    """Source, its axes in the result, and what counts each: of indices that are joined along their last axis."""
    dims, columns = shapes.of(data).dims, ids.producer()
    batches = node.attributes.get_int("batch_dims", 0)
    if columns is None or columns.op_type != "Concat" or columns.domain or batches or dims is None:
        return None
    rank = len(shapes.of(ids).dims or ())
    if columns.attributes.get_int("axis", 0) not in (-1, rank - 1) or len(columns.inputs) != len(dims):
        return None
    given = [v for v in columns.inputs if v is not None and (shapes.of(v).dims or (0,))[-1] == 1]
    if len(given) != len(dims):
        return None
    parts = [counted(v, shapes) for v in given]
    found = [(axis + 1, count) for part in parts for axis, count in (part or {}).items()]
    if len(found) != len(parts) or any(part is None or len(part) != 1 for part in parts):
        return None
    if any(axis >= 0 or count.stride != 1 for axis, count in found):
        return None
    return data, [axis for axis, _ in found], [count for _, count in found]


def _of_rows(data: ir.Value, ids: ir.Value, shapes: Shapes) -> tuple[ir.Value, list[int], list[Count]] | None:
    """The same of indices into the first axis, which is all axes of another tensor flattened; the rest is of size 1."""
    counts, flat = counted(ids, shapes), shapes.of(data).dims
    if not counts or not flat or any(d != 1 for d in flat[1:]):
        return None
    source, maker = data, data.producer()
    if len(counts) > 1 or len(flat) > 1:
        if maker is None or maker.domain or maker.op_type not in ("Flatten", "Reshape") or maker.inputs[0] is None:
            return None
        source = maker.inputs[0]
    dims, axes = shapes.of(source).dims, sorted(counts)
    if dims is None or len(dims) != len(axes) or shapes.product(dims) != flat[0]:
        return None
    for j, axis in enumerate(axes):
        if counts[axis].stride != shapes.product(dims[j + 1 :]):
            return None
    return source, [axis - len(flat) + 1 for axis in axes], [counts[axis] for axis in axes]


def counted(value: ir.Value, shapes: Shapes, far: int = _FAR) -> Counts | None:
    """What an integer tensor counts, None if it is anything else."""
    node, dims = value.producer(), shapes.of(value).dims
    if node is None or node.domain or dims is None or not far or any(v is None for v in node.inputs):
        return None
    given = [v for v in node.inputs if v is not None]
    if node.op_type == "Range":
        start, step = (shapes.of(given[k]).elems for k in (0, 2))
        limit = shapes.of(given[1]).elems
        counts = start == (0,) and step == (1,) and limit == dims and shapes.of(value).dtype == ir.DataType.INT64
        return {-1: Count(1, dims[0])} if counts else None
    if node.op_type == "Mul":
        return _times(given, [counted(v, shapes, far - 1) for v in given], shapes)
    if node.op_type == "Add":
        first, second = (counted(v, shapes, far - 1) for v in given)
        found = None if first is None or second is None or first.keys() & second.keys() else {**first, **second}
    elif node.op_type in ("Unsqueeze", "Squeeze", "Reshape", "Flatten"):
        found = _moved(counted(given[0], shapes, far - 1), shapes.of(given[0]).dims, dims)
    elif node.op_type in ("Expand", "Identity", "Cast"):
        wide = shapes.of(value).dtype in (ir.DataType.INT64, ir.DataType.INT32)
        found = counted(given[0], shapes, far - 1) if wide else None
    else:
        return None
    # an axis of one position may have been stretched
    return found if found is not None and all(dims[axis] == c.size for axis, c in found.items()) else None


def _times(given: Sequence[ir.Value], sides: Sequence[Counts | None], shapes: Shapes) -> Counts | None:
    """A count, times one number."""
    for value, count in zip(reversed(given), sides, strict=True):
        facts = shapes.of(value)
        if count is not None and facts.elems is not None and len(facts.elems) == 1:
            by = facts.elems[0]
            return {axis: Count(shapes.product([c.stride, by]), c.size) for axis, c in count.items()}
    return None


def _moved(counts: Counts | None, before: Sequence[_Dim] | None, after: Sequence[_Dim]) -> Counts | None:
    """The same where axes of size 1 come or go."""
    if counts is None or before is None:
        return None
    old, new = ([k - len(dims) for k, d in enumerate(dims) if d != 1] for dims in (before, after))
    if [before[k] for k in old] != [after[k] for k in new] or not counts.keys() <= set(old):
        return None
    places = dict(zip(old, new, strict=True))
    return {places[axis]: count for axis, count in counts.items()}
