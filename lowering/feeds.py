"""Inputs to try a model on: consistent sizes for symbolic dims, legal indices, masks, positions.

How the graph uses an input (`_Use`) decides its role; where the graph leaves it open, its name does.
Sizes are drawn once per symbol, so inputs that share a dim name agree. A feed the model refuses is no error
here: the caller runs the original first and drops what it refuses.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from ..egraph.errors import ModelError
from .load import parsed
from .operators import SOFTMAX, scales_trailing_axes, tables
from .tensors import elements

Array = npt.NDArray[np.generic]
Model = ir.Model | onnx.ModelProto | str | os.PathLike[str]
Dims = Mapping[str, int | Sequence[int]]
Shape = tuple[int, ...]
Bounds = tuple[int, int | None]
Rng = np.random.Generator


@dataclass(frozen=True)
class Feed:
    """One set of inputs.

    `pad_mask` [B, M] (int64) is 1 at real tokens and 0 at padding, or None. `dims` holds the size of every
    named dim. `pad_dims` names the dims along the mask's second axis: the mask's own, and, where the mask
    also covers a cache, that of the new tokens (the mask's tail).
    """

    name: str
    inputs: Mapping[str, Array]
    pad_mask: Array | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    pad_dims: frozenset[str] = frozenset()


@dataclass(frozen=True)
class _Plan:
    """Sizes of a feed, and which variant of masks, positions and floats it uses."""

    batch: int
    seq: int
    past: int
    pad: str = ""  # "", "left", "right", "one row empty"
    # "", "scattered", "large", "negative", "one row of", "beyond the table" (more tokens than it has rows)
    positions: str = ""
    scale: float = 1.0
    positive: bool = False


# Sizes of one and sizes that differ find broadcast and axis errors; float scales far from 1 find an epsilon
# that changed; a single padded row finds what a batch would hide.
_PLANS = (
    _Plan(2, 5, 3),
    _Plan(1, 1, 0),
    _Plan(3, 7, 4, pad="left", scale=0.02),
    _Plan(2, 6, 0, pad="right"),
    _Plan(2, 1, 6, scale=3.0),
    _Plan(3, 1, 5, pad="left"),
    _Plan(1, 16, 0, scale=0.02, positive=True),
    _Plan(2, 8, 2, pad="left", positions="scattered"),
    _Plan(3, 5, 0, positions="scattered"),
    _Plan(2, 4, 3, positions="large"),
    _Plan(1, 6, 0, pad="left"),
    _Plan(3, 6, 2, pad="one row empty"),
    _Plan(2, 5, 0, positions="negative", scale=0.3),
    _Plan(3, 4, 2, positions="one row of"),  # [1, S] ids for a batch of 3: dim names do not stop a caller
    _Plan(1, 1, 0, positions="beyond the table"),
)
_LONGEST = 512  # a position table longer than this is not outgrown: the feed would cost too much


# ---- how inputs are used


@dataclass
class _Use:
    """What the graph does with an input.

    `limits` are pairs (size, offset): value + offset indexes an axis of that size (None: unknown).
    """

    limits: list[tuple[int | str | None, int]] = field(default_factory=list)
    divides: bool = False
    flag_like: bool = False  # compared or cast to bool
    other: bool = False  # used in any way that is neither index, comparison nor shape query
    additive: bool = False
    masks: bool = False  # reaches a softmax


_VIEWS = {"Identity", "Unsqueeze", "Squeeze", "Reshape", "Flatten", "Expand", "Transpose"}
_MOVES = _VIEWS | {"Cast", "Slice", "Tile", "Gather"}
_COMPARES = {"Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "And", "Or", "Not", "Xor", "IsNaN"}


def _tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The constant a value holds."""
    node = value.producer() if value is not None else None
    if node is not None and node.op_type == "Constant" and "value" in node.attributes:
        return node.attributes["value"].as_tensor()
    return value.const_value if value is not None else None


def _dim(value: ir.Value | None, axis: int) -> int | str | None:
    """The size of an axis: an integer, a symbol, or None where nothing says."""
    while value is not None:
        tensor, node = _tensor(value), value.producer()
        shape = tensor.shape if tensor is not None else value.shape
        if shape is not None:
            size = shape[axis] if -len(shape) <= axis < len(shape) else None
            return size if size is None or isinstance(size, int) else size.value
        value = node.inputs[0] if node is not None and node.op_type in ("Cast", "Identity") else None
    return None


def _index_limit(node: ir.Node, operand: int) -> int | str | None:
    table = node.inputs[tables(node)[operand]]
    if node.op_type in ("GatherND", "ScatterND"):  # every column indexes an axis of its own
        sizes = [_dim(table, axis) for axis in range(len(table.shape or ()) if table is not None else 0)]
        return min((s for s in sizes if isinstance(s, int)), default=None)
    return _dim(table, node.attributes.get_int("axis", 0) or 0)


def _trace(model: ir.Model, start: ir.Value) -> _Use:
    use, seen, todo = _Use(), set[tuple[int, int, bool]](), [(start, 0, True)]
    while todo:
        value, offset, exact = todo.pop()  # exact: value - offset is still the input's own number
        if (id(value), offset, exact) in seen:
            continue
        seen.add((id(value), offset, exact))
        for at in value.uses():
            node, operand, op = at.node, at.idx, at.node.op_type
            function = model.functions.get(node.op_identifier())
            if function is not None:
                todo.append((function.inputs[operand], offset, exact))
            elif op in SOFTMAX:
                use.masks = use.other = True
            elif op in ("Shape", "Size"):
                continue
            elif exact and operand in tables(node):
                use.limits.append((_index_limit(node, operand), offset))
            elif exact and (op in _COMPARES or (op, operand) == ("Where", 0) or _to_bool(node)):
                use.flag_like = True
                todo += [(out, 0, False) for out in node.outputs]
            elif exact and (op in ("Concat", "Where", "Split") or (operand == 0 and op in _MOVES)):
                todo += [(out, offset, True) for out in node.outputs]
            else:
                shifts = op == "Add" or (op, operand) == ("Sub", 0)
                by = _tensor(node.inputs[1 - operand]) if exact and shifts else None
                if by is not None and by.size == 1 and by.dtype.is_integer():
                    step = int(elements(by).item())
                    todo.append((node.outputs[0], offset + (step if op == "Add" else -step), True))
                    continue
                use.other |= exact
                use.divides |= exact and op in ("Div", "Mod") and operand == 1
                use.additive |= exact and op == "Add"
                todo += [(out, 0, False) for out in node.outputs]
    return use


def _to_bool(node: ir.Node) -> bool:
    return node.op_type == "Cast" and node.attributes.get_int("to", 0) == ir.DataType.BOOL.value


def _forced_dim(value: ir.Value, axis: int, rank: int) -> int | None:
    """The size a weight next to the input forces on an axis."""
    for use in value.uses():
        node, operand, op, size = use.node, use.idx, use.node.op_type, 0
        others = [t for i, v in enumerate(node.inputs) if i != operand and (t := _tensor(v)) is not None]
        weight = others[0].shape.numpy() if others else ()
        if not weight:
            continue
        if op == "MatMul" and len(weight) > 1 and operand == 0 and axis == rank - 1:
            size = weight[-2]
        elif op == "MatMul" and len(weight) > 1 and operand == 1 and axis == rank - 2:
            size = weight[-1]
        elif op == "Gemm" and operand == 0 and axis == 1:
            size = weight[1] if node.attributes.get_int("transB", 0) else weight[0]
        elif op == "Conv" and operand == 0 and axis == 1:
            size = weight[1] * (node.attributes.get_int("group", 1) or 1)
        elif scales_trailing_axes(op):
            back = rank - axis
            size = weight[-back] if back <= len(weight) and weight[-back] > 1 else 0
        if size:
            return size
    return None


# ---- sizes


def _symbols(text: str) -> set[str]:
    """The symbols of a dim: those of an expression such as "past + seq", else the text itself."""
    if not re.search(r"[+*/(]|\s-\s", text):  # "batch-size" and "dim.1" are names
        return {text}
    try:
        dim = ir.SymbolicDim(text)
        names = set(dim.free_symbols())
        return names if isinstance(dim.evaluate(dict.fromkeys(names, 1)), int) else {text}
    except (ValueError, ZeroDivisionError):  # no expression after all
        return {text}


def _size(dim: int | str, sizes: Mapping[str, int]) -> int:
    if isinstance(dim, int) or dim in sizes:
        return dim if isinstance(dim, int) else sizes[dim]
    size = ir.SymbolicDim(dim).evaluate(sizes)
    assert isinstance(size, int), f"{dim}: not all its symbols have a size"
    return size


class _Inputs:
    """The inputs of a model with their roles, and the sizes its dims may take."""

    def __init__(self, model: ir.Model, dims: Dims) -> None:
        self.values = [v for v in model.graph.inputs if not v.is_initializer()]
        # before IR 4 every initializer had to be listed as an input, so the list says nothing
        self.defaults = [v for v in model.graph.inputs if v.is_initializer() and (model.ir_version or 0) >= 4]
        self.uses = {_name(v): _trace(model, v) for v in self.values}
        self.dims = {k: [v] if isinstance(v, int) else list(v) for k, v in dims.items()}
        axis_of: dict[str, set[int]] = {}
        holders: dict[str, list[ir.Value]] = {}
        self.forced: dict[str, int] = {}
        for value in self.values:
            for axis, dim in enumerate(self.shape(value, 0)):
                for name in [] if isinstance(dim, int) else _symbols(dim):
                    axis_of.setdefault(name, set()).add(axis)
                    holders.setdefault(name, []).append(value)
                if isinstance(dim, str) and value.shape is not None:
                    size = _forced_dim(value, axis, len(value.shape))
                    if size is not None and _symbols(dim) == {dim}:
                        self.forced[dim] = size
        unknown = sorted(set(self.dims) - set(axis_of))
        if unknown:
            known = ", ".join(map(repr, axis_of)) or "none"
            raise ModelError(f"dims: no input has a dim named {unknown[0]!r}; the inputs' dims: {known}")
        self.past = [s for s in axis_of if re.search(r"past|cache", s, re.I)]
        named = [s for s in axis_of if re.search(r"batch|^(b|n|bs)$", s, re.I)]
        self.batch = named or [s for s in axis_of if axis_of[s] == {0} and s not in self.past]
        self.batch += [s for s in axis_of if s.endswith("[0]") and s not in self.batch]
        rest = [s for s in axis_of if s not in self.past and s not in self.batch]
        # a length that only masks have covers cache and new tokens together
        only_mask = [s for s in rest if all(self.is_mask(v) for v in holders[s])]
        self.seq = [s for s in rest if s not in only_mask] or only_mask
        self.total = [s for s in only_mask if s not in self.seq and self.past and self.seq]
        self.seq += [s for s in only_mask if s not in self.seq and s not in self.total]
        # the decoder's own length leads
        self.seq.sort(key=lambda s: re.search(r"^enc|encoder", s, re.I) is not None)

    def shape(self, value: ir.Value, turn: int) -> list[int | str]:
        """Declared dims; unnamed ones are called input[axis]. An unknown rank is another one every turn."""
        if value.shape is None:
            return [f"{value.name}[{axis}]" for axis in range((2, 3, 1, 0, 4)[turn % 5])]
        dims = enumerate(value.shape)
        return [d if isinstance(d, int) else d.value or f"{value.name}[{i}]" for i, d in dims]

    def is_mask(self, value: ir.Value) -> bool:
        use = self.uses[_name(value)]
        flag = _is_integer(value) and use.flag_like and not use.other and not use.limits
        return flag or "mask" in _name(value).lower()

    def is_position(self, value: ir.Value) -> bool:
        named = re.search(r"position|pos_?ids|(^|_)pos$", _name(value), re.I) is not None
        return named and _is_integer(value)

    def sizes(self, plan: _Plan, turn: int) -> dict[str, int]:
        sizes: dict[str, int] = {}
        main, past = plan.seq, plan.past if self.past else 0
        sizes |= dict.fromkeys(self.batch, plan.batch) | dict.fromkeys(self.past, past)
        for at, name in enumerate(self.seq):
            axis = re.search(r"\[(\d+)\]$", name)  # unnamed dims at the same axis agree, the likeliest guess
            at = int(axis.group(1)) - 1 if axis else at
            sizes[name] = main if at == 0 else (3, 6, 1, 4)[(turn + at) % 4]
        for value in self.values:
            if value.shape is None:
                for dim, size in zip(self.shape(value, turn), (plan.batch, main, 3, 4), strict=False):
                    sizes[str(dim)] = size
        sizes.update(self.forced)
        stride = 1
        for name, values in self.dims.items():
            sizes[name] = values[turn // stride % len(values)]
            stride *= len(values)
        for name in self.total:
            if name not in self.dims:
                sizes[name] = sizes[self.past[0]] + sizes[self.seq[0]]
        return sizes


def _name(value: ir.Value) -> str:
    return value.name or ""


def _is_integer(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_integer()


# ---- values


def _mask_values(shape: Shape, pad: str) -> npt.NDArray[np.bool_]:
    mask = np.ones(shape, bool)
    if not shape or not pad:
        return mask
    length = shape[-1]
    for row in range(shape[0] if len(shape) > 1 else 1):
        part = mask[row] if len(shape) > 1 else mask
        # the second of three rows stays whole, every padded one keeps at least one token
        count = 0 if row == 1 and shape[0] > 2 else min(length - 1, 1 + 2 * row)
        if pad == "left":
            part[..., :count] = False
        elif pad == "right":
            part[..., length - count :] = False
        elif row == shape[0] - 1:
            part[...] = False
    return mask


def _positions(
    shape: Shape, limit: int | None, kind: str, past: int, mask: Array | None, rng: Rng
) -> npt.NDArray[np.int64]:
    length = shape[-1] if shape else 1
    rows = int(np.prod(shape[:-1])) if shape else 1
    if kind == "large":
        first = max(0, limit - length) if limit is not None else 131_072
        ids = np.tile(np.arange(first, first + length), (rows, 1))
        if limit is None:
            ids += 977 * np.arange(rows)[:, None]
    elif kind in ("scattered", "negative"):
        top = limit if limit is not None else 4 * length + 50
        ids = np.array([rng.choice(top, length, replace=top < length) for _ in range(rows)], np.int64)
        if kind == "negative":
            ids -= limit if limit is not None else top // 2
    elif mask is not None and mask.ndim == 2 and rows % mask.shape[0] == 0 and mask.shape[1] >= length > 0:
        tokens = np.maximum(np.cumsum(mask.astype(np.int64), axis=1) - 1, 0)[:, -length:]
        ids = np.tile(tokens, (rows // mask.shape[0], 1))
    else:
        ids = np.tile(np.arange(past, past + length), (rows, 1))
    if limit is not None and kind != "negative":
        ids = np.minimum(ids, limit - 1)
    return np.asarray(ids, np.int64).reshape(shape)


def _limit(use: _Use, sizes: Mapping[str, int]) -> Bounds:
    """(lowest, one past the highest) legal index; the second is None when no table bounds it."""
    low, high = 0, None
    for size, offset in use.limits:
        # of a table nothing is known about: that it is likely to have two rows
        top = (size if isinstance(size, int) else sizes.get(size or "", 2)) - offset
        low, high = max(low, -offset), min(top, top if high is None else high)
    return low, max(high, low + 1) if high is not None else None


def _values(value: ir.Value, use: _Use, shape: Shape, plan: _Plan, bounds: Bounds, rng: Rng) -> Array:
    dtype = value.dtype
    if dtype is None or dtype == ir.DataType.STRING:
        return np.array(rng.choice(["a", "bc", "", "déf"], shape), dtype=object).reshape(shape)
    kind = dtype.numpy()
    if dtype == ir.DataType.BOOL:
        return np.asarray(rng.integers(0, 2, shape), bool)
    if dtype.is_integer():
        low, high = bounds
        if high is None:
            signed = dtype.name.startswith("INT")
            wide = {"INT8": (-128, 128), "UINT8": (0, 256)}.get(dtype.name, (-9 if signed else 0, 10))
            low, high = (1, 9) if use.divides else wide
        elif plan.positions == "negative" and all(n == 0 for _, n in use.limits):
            low, high = -high, 0
        return np.asarray(rng.integers(low, high, shape), kind)
    numbers = rng.standard_normal(shape) * plan.scale
    return np.asarray(np.abs(numbers) if plan.positive else numbers).astype(kind)


def _as_mask(value: ir.Value, use: _Use, mask: npt.NDArray[np.bool_]) -> Array:
    dtype = value.dtype.numpy() if value.dtype is not None else np.dtype(np.int64)
    if use.additive and value.dtype is not None and value.dtype.is_floating_point():
        return np.where(mask, 0.0, -1e4).astype(dtype)  # in range of every float type of two bytes or more
    return mask.astype(dtype)


def _build(inputs: _Inputs, plan: _Plan, turn: int, seed: int) -> Feed | None:
    """The feed of a plan; None if the plan means nothing for these inputs."""
    rng = np.random.default_rng([seed, turn])
    masks = [v for v in inputs.values if inputs.is_mask(v)]
    positions = [v for v in inputs.values if inputs.is_position(v)]
    indexed = any(u.limits and not u.other and all(n == 0 for _, n in u.limits) for u in inputs.uses.values())
    if plan.positions and not positions and not (plan.positions == "negative" and indexed):
        return None
    if plan.positions == "beyond the table":
        limits = [_limit(inputs.uses[_name(v)], {})[1] for v in positions]
        longest = min((n for n in limits if n is not None), default=None)
        if longest is None or longest > _LONGEST:
            return None
        plan = replace(plan, seq=longest + 1, positions="scattered")
    sizes = inputs.sizes(plan, turn)
    shapes: dict[str, Shape] = {}
    for value in inputs.values:
        dims = inputs.shape(value, turn)
        shapes[_name(value)] = tuple(_size(d, sizes) for d in dims)
    if plan.positions == "one row of":
        for value in positions:
            shape, rows = shapes[_name(value)], [d in inputs.batch for d in inputs.shape(value, turn)]
            shapes[_name(value)] = tuple(1 if row else n for n, row in zip(shape, rows, strict=True))
    if any(size < 0 for shape in shapes.values() for size in shape):
        return None
    past = sizes[inputs.past[0]] if inputs.past else 0
    filled: dict[str, Array] = {}
    pad_mask, pad_dims = None, frozenset[str]()
    some_padding = False
    padded = masks[turn % len(masks)] if masks and plan.pad else None
    for value in masks:
        name, use = _name(value), inputs.uses[_name(value)]
        keep = _mask_values(shapes[name], plan.pad if value is padded else "")
        filled[name] = _as_mask(value, use, keep)
        some_padding |= not keep.all()
        if value is padded and keep.ndim == 2 and use.masks and not keep.all():
            pad_mask = keep.astype(np.int64)
            along = inputs.shape(value, turn)[1]
            tail = bool(inputs.seq) and (along in inputs.total or inputs.seq[0] in _symbols(str(along)))
            pad_dims = frozenset([str(along), *inputs.seq[: 1 if tail else 0]])
    if plan.pad and not some_padding:
        return None
    for value in inputs.values:
        name, use = _name(value), inputs.uses[_name(value)]
        if name in filled:
            continue
        if inputs.is_position(value):
            _, high = _limit(use, sizes)
            ids = _positions(shapes[name], high, plan.positions, past, pad_mask, rng)
            filled[name] = ids.astype(value.dtype.numpy() if value.dtype is not None else np.int64)
        else:
            filled[name] = _values(value, use, shapes[name], plan, _limit(use, sizes), rng)
        if value.dtype == ir.DataType.BOOL and filled[name].size == 1:
            filled[name] = np.full(shapes[name], turn % 2 == 1)  # a switch: both branches get their turn
    replaced = {}
    for value in inputs.defaults if turn % 2 == 0 < turn else []:
        if value.const_value is not None and value.const_value.dtype.is_floating_point():
            default: npt.NDArray[Any] = elements(value.const_value)
            replaced[_name(value)] = (default * (1 + 0.25 * rng.random(default.shape))).astype(default.dtype)
    parts = [f"{k}={v}" for k, v in sizes.items() if k not in inputs.forced]
    if plan.pad:
        parts.append(plan.pad + (" padding" if plan.pad in ("left", "right") else ""))
    if plan.positions:
        parts.append(f"{plan.positions} " + ("positions" if positions else "indices"))
    if plan.scale != 1 and any(np.asarray(a).dtype.kind == "f" for a in filled.values()):
        parts.append(f"floats x{plan.scale:g}" + (", positive" if plan.positive else ""))
    if replaced:
        parts.append("default inputs overridden")
    ordered = {_name(v): filled[_name(v)] for v in inputs.values}
    return Feed(", ".join(parts) or "fixed sizes", ordered | replaced, pad_mask, sizes, pad_dims)


def read_model(model: Model) -> ir.Model:
    """The model as onnx_ir; external tensors stay on disk. Raises ModelError if the file cannot be read."""
    if isinstance(model, ir.Model):
        return model
    if isinstance(model, onnx.ModelProto):
        return ir.from_proto(model)
    return parsed(model)


def make_feeds(model: Model, *, seed: int = 0, dims: Dims | None = None) -> list[Feed]:
    """Inputs that exercise a model: about a dozen mixes of sizes, paddings, positions and float scales.

    A symbol gets the same size wherever its name appears, but for one feed whose position ids have a single
    row; `dims` fixes it (for an unnamed dim, "input[axis]") to one size or cycles through several. Integer
    inputs stay within the tables they index; one feed uses the negative indices that Gather allows. Same
    model, seed and dims: same feeds. Raises ModelError for an unreadable model or a dim no input has.
    """
    inputs = _Inputs(read_model(model), dims or {})
    feeds: dict[str, Feed] = {}
    for turn, plan in enumerate(_PLANS):
        feed = _build(inputs, plan, turn, seed)
        if feed is not None:
            feeds.setdefault(feed.name, feed)
    return list(feeds.values())
