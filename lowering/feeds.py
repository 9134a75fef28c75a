"""Inputs to try a model on: consistent sizes for symbolic dims, legal indices, masks, positions.

Sizes are drawn once per symbol, so inputs that share a dim name agree. A feed the model refuses is no error
here: the caller runs the original first and drops what it refuses.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from .inputs import Dims, Inputs, Use, name_of, size_of, symbols_of
from .load import parsed, understood
from .tensors import elements

Array = npt.NDArray[np.generic]
Model = ir.Model | onnx.ModelProto | str | os.PathLike[str]
Shape = tuple[int, ...]
Bounds = tuple[int, int | None]
Rng = np.random.Generator


@dataclass(frozen=True)
class Feed:
    """One set of inputs.

    `pad_mask` [B, M] (int64) is 1 at real tokens and 0 at padding, or None. `dims` holds the size of every
    named dim. `pad_dims` holds the dims, or fixed sizes, along the mask's second axis: the mask's own, and,
    where the mask also covers a cache, that of the new tokens (the mask's tail).
    """

    name: str
    inputs: Mapping[str, Array]
    pad_mask: Array | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    pad_dims: frozenset[str | int] = frozenset()


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


def _limit(use: Use, sizes: Mapping[str, int]) -> Bounds:
    """(lowest, one past the highest) legal index; the second is None when no table bounds it."""
    low, high = 0, None
    for size, offset in use.limits:
        # of a table nothing is known about: that it is likely to have two rows
        top = (size if isinstance(size, int) else sizes.get(size or "", 2)) - offset
        low, high = max(low, -offset), min(top, top if high is None else high)
    return low, max(high, low + 1) if high is not None else None


def _values(value: ir.Value, use: Use, shape: Shape, plan: _Plan, bounds: Bounds, rng: Rng) -> Array:
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


def _as_mask(value: ir.Value, use: Use, mask: npt.NDArray[np.bool_]) -> Array:
    dtype = value.dtype.numpy() if value.dtype is not None else np.dtype(np.int64)
    if use.additive and value.dtype is not None and value.dtype.is_floating_point():
        return np.where(mask, 0.0, -1e4).astype(dtype)  # in range of every float type of two bytes or more
    return mask.astype(dtype)


_LARGEST = 2**30  # bytes of all inputs of a feed; the runs that compare it need several times as much


class _TooLargeError(Exception):
    """Why a feed is not built; its declared sizes are the model's affair, and no fault."""


def _weigh(inputs: Inputs, shapes: Mapping[str, Shape], sizes: Mapping[str, int]) -> None:
    kinds = {name_of(v): v.dtype.itemsize if v.dtype is not None else 8.0 for v in inputs.values}
    total = sum(math.prod(shape) * kinds[name] for name, shape in shapes.items())
    if total > _LARGEST:
        named = ", ".join(f"{k}={v}" for k, v in sizes.items()) or "fixed sizes"
        raise _TooLargeError(f"{named}: {total / 2**30:,.1f} GiB of inputs are too many to compare")


def _build(inputs: Inputs, plan: _Plan, turn: int, seed: int) -> Feed | None:
    """The feed of a plan; None if the plan means nothing for these inputs. Raises _TooLargeError."""
    rng = np.random.default_rng([seed, turn])
    masks = [v for v in inputs.values if inputs.is_mask(v)]
    positions = [v for v in inputs.values if inputs.is_position(v)]
    indexed = any(u.limits and not u.other and all(n == 0 for _, n in u.limits) for u in inputs.uses.values())
    if plan.positions and not positions and not (plan.positions == "negative" and indexed):
        return None
    if plan.positions == "beyond the table":
        limits = [_limit(inputs.uses[name_of(v)], {})[1] for v in positions]
        longest = min((n for n in limits if n is not None), default=None)
        if longest is None or longest > _LONGEST:
            return None
        plan = replace(plan, seq=longest + 1, positions="scattered")
    sizes = inputs.sizes(plan.batch, plan.seq, plan.past, turn)
    shapes: dict[str, Shape] = {}
    for value in inputs.values:
        dims = inputs.shape(value, turn)
        shapes[name_of(value)] = tuple(size_of(d, sizes) for d in dims)
    if plan.positions == "one row of":
        for value in positions:
            shape, rows = shapes[name_of(value)], [d in inputs.batch for d in inputs.shape(value, turn)]
            shapes[name_of(value)] = tuple(1 if row else n for n, row in zip(shape, rows, strict=True))
    if any(size < 0 for shape in shapes.values() for size in shape):
        return None
    _weigh(inputs, shapes, sizes)
    past = size_of(inputs.cached, sizes) if inputs.cached is not None else 0
    filled: dict[str, Array] = {}
    pad_mask, pad_dims = None, frozenset[str | int]()
    some_padding = False
    padded = masks[turn % len(masks)] if masks and plan.pad else None
    for value in masks:
        name, use = name_of(value), inputs.uses[name_of(value)]
        keep = _mask_values(shapes[name], plan.pad if value is padded else "")
        filled[name] = _as_mask(value, use, keep)
        some_padding |= not keep.all()
        if value is padded and keep.ndim == 2 and use.masks and not keep.all():
            pad_mask = keep.astype(np.int64)
            along, new = inputs.shape(value, turn)[1], inputs.new
            tail = new is not None and (name in inputs.covering or along == new or str(new) in symbols_of(str(along)))
            pad_dims = frozenset([along, new] if tail and new is not None else [along])
        elif value is padded and use.masks and not keep.all() and keep.ndim > 2:
            # which keys are hidden says nothing of the queries, but where all are hidden
            seen = np.asarray(keep.reshape(len(keep), -1).any(axis=1), np.bool_)
            pad_mask = np.tile(seen[:, None], (1, keep.shape[-1])).astype(np.int64) if not seen.all() else None
    if plan.pad and not some_padding:
        return None
    for value in inputs.values:
        name, use = name_of(value), inputs.uses[name_of(value)]
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
            replaced[name_of(value)] = (default * (1 + 0.25 * rng.random(default.shape))).astype(default.dtype)
    parts = [f"{k}={v}" for k, v in sizes.items() if k not in inputs.forced]
    if plan.pad:
        parts.append(plan.pad + (" padding" if plan.pad in ("left", "right") else ""))
    if plan.positions:
        parts.append(f"{plan.positions} " + ("positions" if positions else "indices"))
    if plan.scale != 1 and any(np.asarray(a).dtype.kind == "f" for a in filled.values()):
        parts.append(f"floats x{plan.scale:g}" + (", positive" if plan.positive else ""))
    if replaced:
        parts.append("default inputs overridden")
    ordered = {name_of(v): filled[name_of(v)] for v in inputs.values}
    return Feed(", ".join(parts) or "fixed sizes", ordered | replaced, pad_mask, sizes, pad_dims)


def read_model(model: Model) -> ir.Model:
    """The model as onnx_ir; external tensors stay on disk. Raises ModelError if the file cannot be read."""
    if isinstance(model, ir.Model):
        return model
    if isinstance(model, onnx.ModelProto):
        return understood(model)
    return parsed(model)


def make_feeds(model: Model, *, seed: int = 0, dims: Dims | None = None) -> list[Feed]:
    """Inputs that exercise a model: about a dozen mixes of sizes, paddings, positions and float scales.

    A symbol gets the same size wherever its name appears, but for one feed whose position ids have a single
    row; `dims` fixes it (for an unnamed dim, "input[axis]") to one size or cycles through several. Integer
    inputs stay within the tables they index; one feed uses the negative indices that Gather allows. Feeds of more
    than 1 GiB are left out. Same model, seed and dims: same feeds. Raises ModelError for an unreadable model or a
    dim no input has.
    """
    return plan_feeds(model, seed=seed, dims=dims)[0]


def plan_feeds(model: Model, *, seed: int = 0, dims: Dims | None = None) -> tuple[list[Feed], list[str]]:
    """The feeds of `make_feeds`, and why others are left out."""
    inputs = Inputs(read_model(model), dims or {})
    feeds: dict[str, Feed] = {}
    left_out: dict[str, None] = {}
    for turn, plan in enumerate(_PLANS):
        try:
            feed = _build(inputs, plan, turn, seed)
        except _TooLargeError as error:
            left_out[str(error)] = None
            continue
        if feed is not None:
            feeds.setdefault(feed.name, feed)
    return list(feeds.values()), list(left_out)
