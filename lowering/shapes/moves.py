"""What the operators that move elements (reshape, slice, gather, concat, ...) do to sizes and contents."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ...egraph.terms.norm import WEIGHTED
from ..model.einsum import parsed
from ..model.operators import SAME
from .dims import Dim
from .values import FAR, MAX_ELEMENTS, Function, Known, Operation, Outputs, pack, shared


def same(node: Operation) -> Outputs:
    """Dtype and shape of the first input, for operators with one output and no contents worth following."""
    if len(node.node.outputs) != 1:
        return None
    return [Known(node[0].dtype, node[0].dims)]


def weighted(node: Operation) -> Outputs:
    """A norm has the type of its weight, which may be another than its operand's."""
    data, weight = node[0], node[1]
    return same(node) if data.dtype == weight.dtype else [Known(weight.dtype, data.dims)]


def matmul(node: Operation) -> list[Known]:
    a, b = node[0], node[1]
    dtype = a.dtype or b.dtype
    if a.dims is None or b.dims is None or not a.dims or not b.dims:
        return [Known(dtype)]
    batch = shared(node, [a.dims[:-2], b.dims[:-2]])
    if batch is None:
        return [Known(dtype)]
    inner = a.dims[-1], b.dims[-2] if len(b.dims) > 1 else b.dims[0]
    if inner[0] != inner[1]:
        node.proves.equal.append(inner)
    rows = a.dims[-2:-1]
    columns = b.dims[-1:] if len(b.dims) > 1 else ()
    return [Known(dtype, (*batch, *rows, *columns))]


def transpose(node: Operation) -> Outputs:
    data = node[0]
    rank = len(data.dims or ())
    given = list(node.node.attributes["perm"].as_ints()) if node.has("perm") else list(range(rank))[::-1]
    if data.dims is None or sorted(given) != list(range(rank)):
        return [Known(data.dtype)]
    contents = None if data.contents is None else data.contents.transpose(given)
    return [Known(data.dtype, tuple(data.dims[axis] for axis in given), contents)]


def expand(node: Operation) -> Outputs:
    data, target = node[0], node.ints_or_input("", 1)
    if target is None:
        grown = node.of_length(1)
        if data.dims is None or grown is None:
            return [Known(data.dtype)]
        return [Known(data.dtype, node.unknown(max(len(grown), len(data.dims))))]
    sizes = shared(node, [data.dims, target])
    if sizes is None or data.contents is None:
        return [Known(data.dtype, sizes)]
    static = [size for size in sizes if isinstance(size, int) and 0 <= size <= MAX_ELEMENTS]
    if len(static) < len(sizes) or math.prod(static) > MAX_ELEMENTS:
        return [Known(data.dtype, sizes)]
    return [Known(data.dtype, sizes, np.broadcast_to(data.contents, static))]


def reshape(node: Operation) -> Outputs:
    data, dims = node[0], node.dims
    target = node.ints_or_input("shape", 1)
    if target is None:
        return [Known(data.dtype, node.of_length(1))]
    source = data.dims
    count = 1 if source is None else dims.mul(*source)
    copies = node.attribute("allowzero", 0) != 1
    sizes: list[Dim] = []
    blanks: list[int] = []
    for axis, extent in enumerate(target):
        copied = source[axis] if copies and source is not None and axis < len(source) else None
        if extent == 0 and copied is not None:
            extent = copied
        elif not dims.nonnegative(extent) or (copies and copied != extent and dims.may_vanish(extent, count)):
            # -1, or a size that is 0 for some inputs, where the operator takes the axis of its input instead
            extent = 1
            blanks.append(axis)
        sizes.append(extent)
    others = dims.mul(*sizes)
    if source is not None and others != 0:
        if not blanks and count != others:
            node.proves.equal.append((count, others))
        elif len(blanks) == 1:
            whole = sizes[blanks[0]] = dims.floordiv(count, others)
            if target[blanks[0]] == -1:
                node.proves.exact.append((whole, count, others))
            blanks = []
    for axis in blanks:
        sizes[axis] = dims.fresh()
    contents = None
    if data.contents is not None and all(isinstance(extent, int) for extent in sizes):
        extents = [int(extent) for extent in sizes]
        contents = data.contents.reshape(extents) if math.prod(extents) == data.contents.size else None
    return [Known(data.dtype, tuple(sizes), contents)]


def flatten(node: Operation) -> Outputs:
    data = node[0]
    axis = node.attribute("axis", 1)
    if data.dims is None or abs(axis) > len(data.dims):
        return [Known(data.dtype, node.unknown(2))]
    left, right = (data.dims[:axis], data.dims[axis:]) if axis else ((), data.dims)
    return [Known(data.dtype, (node.dims.mul(*left), node.dims.mul(*right)))]


def squeeze(node: Operation) -> Outputs:
    data = node[0]
    if data.dims is None:
        return [Known(data.dtype)]
    axes = node.axes("axes", 1, len(data.dims))
    if not axes:  # no axes, or an empty list of them, means every axis of size 1
        unread = axes is None and (node.has("axes") or node.get(1) is not None)
        if unread or any(isinstance(size, str) for size in data.dims):
            return [Known(data.dtype)]
        axes = tuple(axis for axis, size in enumerate(data.dims) if size == 1)
    if any(data.dims[axis] != 1 and isinstance(data.dims[axis], int) for axis in axes):
        return [Known(data.dtype)]
    sizes = tuple(size for axis, size in enumerate(data.dims) if axis not in axes)
    contents = None if data.contents is None else pack(list(data.contents.ravel()), sizes)
    return [Known(data.dtype, sizes, contents)]


def unsqueeze(node: Operation) -> Outputs:
    data = node[0]
    given = node.ints_or_input("axes", 1)
    rank = len(data.dims or ()) + len(given or ())
    axes = node.axes("axes", 1, rank)
    if data.dims is None or axes is None or len(set(axes)) < len(axes):
        return [Known(data.dtype)]
    rest = iter(data.dims)
    sizes = tuple(1 if axis in axes else next(rest) for axis in range(rank))
    contents = None if data.contents is None else pack(list(data.contents.ravel()), sizes)
    return [Known(data.dtype, sizes, contents)]


def concat(node: Operation) -> Outputs:
    dtype = node[0].dtype
    shapes = [Known() if given is None else given for given in node.inputs]
    ranks = {len(given.dims) for given in shapes if given.dims is not None}
    known = [(given.dims, given.contents) for given in shapes if given.dims is not None]
    axis = node.attribute("axis", 1)
    if len(ranks) != 1 or not -(rank := ranks.pop()) <= axis < rank:
        return [Known(dtype)]
    if len(known) < len(shapes):
        return [Known(dtype, node.unknown(rank))]
    axis %= rank
    # onnxruntime lets an empty operand disagree on the other axes
    filled = [(dims, contents) for dims, contents in known if 0 not in dims] or known
    sizes: list[Dim] = []
    for place, column in enumerate(zip(*(dims for dims, _ in filled), strict=True)):
        if place == axis:
            sizes.append(node.dims.add(*(dims[axis] for dims, _ in known)))
        else:
            sizes.append(next((size for size in column if isinstance(size, int)), column[0]))
            node.proves.equal += [(column[0], other) for other in column[1:] if other != column[0]]
    arrays = [contents for _, contents in filled if contents is not None]
    others = {array.shape[:axis] + array.shape[axis + 1 :] for array in arrays}
    contents = None
    if len(arrays) == len(filled) and len(others) == 1 and sum(array.size for array in arrays) <= MAX_ELEMENTS:
        joined = np.concatenate(arrays, axis)
        contents = joined if joined.shape == tuple(sizes) else None
    return [Known(dtype, tuple(sizes), contents)]


def gather(node: Operation) -> Outputs:
    data, indices = node[0], node[1]
    axis = node.attribute("axis", 0)
    if data.dims is None or indices.dims is None or not -len(data.dims) <= axis < len(data.dims):
        return [Known(data.dtype)]
    axis %= len(data.dims)
    sizes = data.dims[:axis] + indices.dims + data.dims[axis + 1 :]
    if data.contents is None or indices.contents is None:
        return [Known(data.dtype, sizes)]
    length = data.contents.shape[axis]
    places = list(indices.contents.ravel())
    if not all(isinstance(place, int) and -length <= place < length for place in places):
        return [Known(data.dtype, sizes)]
    taken = np.take(data.contents, np.array(places, dtype=np.int64).reshape(indices.contents.shape), axis)
    contents = taken if isinstance(taken, np.ndarray) else pack([taken], ())
    return [Known(data.dtype, sizes, contents if contents.size <= MAX_ELEMENTS else None)]


def bound(node: Operation, given: Dim, length: Dim) -> Dim | None:
    """Where a slice bound lands in ``[0, length]`` for a positive step, None if its sign is unknown."""
    dims = node.dims
    if isinstance(given, int) and given >= FAR:
        return length
    back = dims.sub(0, given)
    if dims.at_least(back, 1) or back == length:  # x[-s:] of s elements is all of it, even of none
        return dims.max(0, dims.add(length, given))
    if dims.nonnegative(given):
        return dims.min(given, length)
    return None


def slice_of(length: Dim, start: Dim, end: Dim, step: Dim) -> slice | None:
    """The Python slice that takes the same elements, None unless all is known."""
    known = isinstance(length, int) and isinstance(start, int) and isinstance(end, int) and isinstance(step, int)
    if not known or step == 0:
        return None
    if int(step) < 0:
        if int(end) >= FAR:  # the specification clamps it to the last element, onnxruntime reads "to the beginning"
            return None
        # a start before the axis: ONNX starts at the first element, Python takes nothing
        start = max(int(start), -int(length))
    return slice(start, end, step)


def slice_length(node: Operation, length: Dim, start: Dim, end: Dim, step: Dim) -> Dim:
    """How many elements a slice of an axis takes."""
    dims = node.dims
    taken = slice_of(length, start, end, step)
    if taken is not None:
        return len(range(int(length))[taken])
    if not isinstance(step, int) or step == 0:
        return dims.fresh()
    if step < 0:
        whole = step == -1 and isinstance(start, int) and isinstance(end, int) and end <= -FAR
        return length if whole and (start == -1 or int(start) >= FAR) else dims.fresh()
    low, high = bound(node, start, length), bound(node, end, length)
    if low is None or high is None:
        return dims.fresh()
    return dims.max(0, dims.ceildiv(dims.sub(high, low), step))


def slices(node: Operation) -> Outputs:
    data = node[0]
    if not data.dims:
        return [Known(data.dtype)]
    rank = len(data.dims)
    starts, ends = node.ints_or_input("starts", 1), node.ints_or_input("ends", 2)
    axes = node.axes("axes", 3, rank)
    if axes is None and not node.has("axes") and node.get(3) is None:
        axes = None if starts is None else tuple(range(len(starts)))
    steps = node.ints_or_input("steps", 4)
    if steps is None and node.get(4) is None and starts is not None:
        steps = (1,) * len(starts)
    if axes is None or any(axis >= rank for axis in axes) or len(set(axes)) < len(axes):
        return [Known(data.dtype, node.unknown(rank))]
    sizes = list(data.dims)
    if starts is None or ends is None or steps is None or not len(starts) == len(ends) == len(steps) == len(axes):
        for axis in axes:
            sizes[axis] = node.dims.fresh()
        return [Known(data.dtype, tuple(sizes))]
    taken: list[slice | None] = [slice(None)] * rank
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        sizes[axis] = slice_length(node, data.dims[axis], start, end, step)
        taken[axis] = slice_of(data.dims[axis], start, end, step)
    static = data.contents is not None and None not in taken
    contents = data.contents[tuple(taken)] if static and data.contents is not None else None
    return [Known(data.dtype, tuple(sizes), contents)]


def split(node: Operation) -> Outputs:
    data, dims, count = node[0], node.dims, len(node.node.outputs)
    axis = node.attribute("axis", 0)
    if data.dims is None or not -len(data.dims) <= axis < len(data.dims):
        return [Known(data.dtype) for _ in range(count)]
    axis %= len(data.dims)
    length = data.dims[axis]
    parts = node.ints_or_input("split", 1)
    if parts is None and not node.has("split") and node.get(1) is None:
        # opset 18 lets the last part be smaller; before, the parts are equal
        each = dims.ceildiv(length, count) if node.opset >= 18 else dims.floordiv(length, count)
        last = dims.sub(length, dims.mul(count - 1, each))
        parts = (each,) * (count - 1) + (last if node.opset >= 18 else each,)
    if parts is None or len(parts) != count:
        parts = node.unknown(count)
    static = all(isinstance(part, int) and part >= 0 for part in parts) and dims.add(*parts) == length
    outputs = []
    offset = 0
    for part in parts:
        contents = None
        if data.contents is not None and static:
            contents = data.contents.take(range(offset, offset + int(part)), axis)
            offset += int(part)
        outputs.append(Known(data.dtype, (*data.dims[:axis], part, *data.dims[axis + 1 :]), contents))
    return outputs


def einsum(node: Operation) -> Outputs:
    """Each letter has one size, which an operand may have as 1. Source: ONNX Einsum-12."""
    known = parsed(node.node.attributes["equation"].as_string()) if node.has("equation") else None
    if known is None or len(known[0]) != len(node.inputs):
        return [Known(node[0].dtype)]
    terms, out = known
    found: dict[str, list[Dim]] = {}
    for i, term in enumerate(terms):
        shape = node[i].dims
        if shape is None or len(shape) != len(term):
            return [Known(node[0].dtype)]
        for letter, extent in zip(term, shape, strict=True):
            found.setdefault(letter, []).append(extent)
    sizes = {letter: node.dims.broadcast(*extents) for letter, extents in found.items()}
    shape = tuple(size for letter in out if (size := sizes.get(letter)) is not None)
    return [Known(node[0].dtype, shape if len(shape) == len(out) else None)]


TABLE: Mapping[str, Function] = {
    **dict.fromkeys(SAME, same),
    **dict.fromkeys(WEIGHTED, weighted),
    **dict.fromkeys(("IsNaN", "IsInf"), lambda node: [Known(ir.DataType.BOOL, node[0].dims)]),
    "Identity": lambda node: [node[0]],
    "Einsum": einsum,
    "MatMul": matmul,
    "Transpose": transpose,
    "Expand": expand,
    "Reshape": reshape,
    "Flatten": flatten,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Concat": concat,
    "Gather": gather,
    "Slice": slices,
    "Split": split,
}
