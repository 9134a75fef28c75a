"""Inputs to try a model on: consistent sizes for symbolic dims, legal indices, masks, positions.

Sizes are drawn once per symbol, so inputs that share a dim name agree. A feed the model refuses is no error
here: the caller runs the original first and drops what it refuses.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from ..files.load import inlined, parsed, understood
from ..model.operators import width
from ..model.tensors import elements
from .demands import Demands
from .inputs import Dims, ModelInputs, Use, is_integer, name_of, size_of, symbols_of

Array = npt.NDArray[np.generic]
Given = Array | list[Array] | None  # a tensor, a sequence, or an optional without a value
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
    inputs: Mapping[str, Given]
    pad_mask: Array | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    pad_dims: frozenset[str | int] = frozenset()
    turn: int = 0  # which of the usual feeds it is


@dataclass(frozen=True)
class _FeedPlan:
    """Sizes of a feed, and which variant of masks, positions and floats it uses."""

    batch: int
    seq: int
    past: int
    pad: str = ""  # "", "left", "right", "one row empty"
    # "", "scattered", "large", "negative", "one row of", "beyond the table" (more tokens than it has rows)
    positions: str = ""
    scale: float = 1.0
    positive: bool = False
    integers: str = ""  # "", "zeros", "ones"
    square: bool = False  # all lengths are one


# Sizes of one and sizes that differ find broadcast and axis errors; float scales far from 1 find an epsilon
# that changed; a single padded row finds what a batch would hide.
_PLANS = (
    _FeedPlan(2, 5, 3),
    _FeedPlan(1, 1, 0),
    _FeedPlan(3, 7, 4, pad="left", scale=0.02),
    _FeedPlan(2, 6, 0, pad="right"),
    _FeedPlan(2, 1, 6, scale=3.0),
    _FeedPlan(3, 1, 5, pad="left"),
    _FeedPlan(1, 16, 0, scale=0.02, positive=True),
    _FeedPlan(2, 8, 2, pad="left", positions="scattered"),
    _FeedPlan(3, 5, 0, positions="scattered"),
    _FeedPlan(2, 4, 3, positions="large"),
    _FeedPlan(1, 6, 0, pad="left"),
    _FeedPlan(3, 6, 2, pad="one row empty"),
    _FeedPlan(2, 5, 0, positions="negative", scale=0.3),
    _FeedPlan(3, 4, 2, positions="one row of"),  # [1, S] ids for a batch of 3: dim names do not stop a caller
    _FeedPlan(1, 1, 0, positions="beyond the table"),
)
# What to try where the original runs on none of them: few elements of any table, and many samples or pixels.
_SPARE = tuple(
    _FeedPlan(1, size, 0, integers=integers, square=True)
    for integers in ("", "zeros", "ones")
    for size in (1, 2, 4, 8, 16, 32, 64, 128, 224, 256, 400, 512, 1024, 2048, 4096, 16384)
)
_AT = _FeedPlan(1, 5, 3)  # at large sizes the caller names
_SPREAD = 8  # the size up to which what comes out of a stack of convolutions is as long as plans say
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


def _values(value: ir.Value, use: Use, shape: Shape, plan: _FeedPlan, bounds: Bounds, rng: Rng) -> Array:
    dtype = value.dtype
    if dtype is None or dtype == ir.DataType.STRING:
        return np.array(rng.choice(["a", "bc", "", "déf"], shape), dtype=object).reshape(shape)
    kind = dtype.numpy()
    if dtype == ir.DataType.BOOL:
        return np.asarray(rng.integers(0, 2, shape), bool)
    if dtype.is_integer():
        low, high = bounds
        half = 2 ** (dtype.bitwidth - 1)
        least, most = (-half, half) if dtype.name.startswith("INT") else (0, 2 * half)
        if plan.integers:
            return np.full(shape, min(max(low, plan.integers == "ones"), most - 1), kind)
        if high is None:
            wide = (least, most) if dtype.bitwidth <= 8 else (max(least, -9), 10)
            low, high = (1, min(9, most)) if use.divides else wide
        elif plan.positions == "negative" and all(n == 0 for _, n in use.limits):
            low, high = -high, 0
        low, high = max(low, least), min(high, most)
        return np.asarray(rng.integers(low, max(high, low + 1), shape)).astype(kind)
    if dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
        return np.asarray((rng.standard_normal(shape) + 1j * rng.standard_normal(shape)) * plan.scale).astype(kind)
    numbers = rng.standard_normal(shape) * plan.scale
    return np.asarray(np.abs(numbers) if plan.positive else numbers).astype(kind)


def _filled(value: ir.Value, draw: Callable[[], Array], turn: int) -> Given:
    """What an input takes: a tensor, or several, or perhaps nothing."""
    kind = value.type
    if isinstance(kind, ir.OptionalType):
        if turn % 3 == 2:
            return None
        kind = kind.elem_type
    return [draw() for _ in range((2, 1, 3)[turn % 3])] if isinstance(kind, ir.SequenceType) else draw()


def _as_mask(value: ir.Value, use: Use, mask: npt.NDArray[np.bool_]) -> Array:
    dtype = value.dtype.numpy() if value.dtype is not None else np.dtype(np.int64)
    if use.additive and value.dtype is not None and value.dtype.is_floating_point():
        return np.where(mask, 0.0, -1e4).astype(dtype)  # in range of every float type of two bytes or more
    return mask.astype(dtype)


_LARGEST = 2**30  # bytes of all inputs of a feed, and of a value inside where sizes were chosen to be large
_LARGEST_OUTPUTS = 2**27  # at large sizes: comparing takes many times as much


class _TooLargeError(Exception):
    """Why a feed is not built; its declared sizes are the model's affair, and no fault."""


def _weigh(found: float, most: int, what: str, sizes: Mapping[str, int]) -> None:
    if found > most:
        named = ", ".join(f"{k}={v}" for k, v in sizes.items()) or "fixed sizes"
        raise _TooLargeError(f"{named}: {found / 2**30:,.1f} GiB of {what} are too many to compare")


def _build(
    inputs: ModelInputs,
    demands: Demands,
    plan: _FeedPlan,
    turn: int,
    seed: int,
    strict: bool = False,
    large: bool = False,
) -> Feed | None:
    """The feed of a plan; None if the plan means nothing for these inputs. With `strict` nothing inside is empty as
    far as sizes can help it, `large` sizes are looked at twice. Raises _TooLargeError.
    """
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
    sizes = inputs.sizes(plan.batch, plan.seq, plan.past, turn, plan.square)

    def size(value: ir.Value, axis: int) -> int:
        return size_of(inputs.shape(value, turn)[axis], sizes)

    large |= demands.fit(sizes, inputs.free, min(plan.seq, _SPREAD), strict, size)
    shapes: dict[str, Shape] = {}
    for value in inputs.values:
        dims = inputs.shape(value, turn)
        shapes[name_of(value)] = tuple(size_of(d, sizes) for d in dims)
    if plan.positions == "one row of":
        for value in (v for v in positions if name_of(v) not in demands.shared):
            shape, rows = shapes[name_of(value)], [d in inputs.batch for d in inputs.shape(value, turn)]
            shapes[name_of(value)] = tuple(1 if row else n for n, row in zip(shape, rows, strict=True))
    if any(size < 0 for shape in shapes.values() for size in shape):
        return None
    given = sum(math.prod(shapes[name_of(v)]) * width(v.dtype) for v in inputs.values)
    _weigh(given, _LARGEST, "inputs", sizes)
    if large:
        inside, outside = demands.largest(size)
        _weigh(inside, _LARGEST, "one value inside", sizes)
        _weigh(outside, _LARGEST_OUTPUTS, "outputs", sizes)
    past = size_of(inputs.cached, sizes) if inputs.cached is not None else 0
    filled: dict[str, Given] = {}
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
            tail = new is not None and (name in inputs.covering or along == new or str(new) in symbols_of(along))
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
        if inputs.is_position(value) and not plan.integers:
            _, high = _limit(use, sizes)
            ids = _positions(shapes[name], high, plan.positions, past, pad_mask, rng)
            filled[name] = ids.astype(value.dtype.numpy() if value.dtype is not None else np.int64)
        else:
            draw = partial(_values, value, use, shapes[name], plan, _limit(use, sizes), rng)
            filled[name] = _filled(value, draw, turn)
        made = filled[name]
        if value.dtype == ir.DataType.BOOL and isinstance(made, np.ndarray) and made.size == 1:
            filled[name] = np.full(shapes[name], turn % 2 == 1)  # a switch: both branches get their turn
    replaced = dict[str, Given]()
    for value in inputs.defaults if turn % 2 == 0 < turn else []:
        if value.const_value is not None and value.const_value.dtype.is_floating_point():
            default: npt.NDArray[Any] = elements(value.const_value)
            replaced[name_of(value)] = (default * (1 + 0.25 * rng.random(default.shape))).astype(default.dtype)
    parts = [f"{k}={v}" for k, v in sizes.items() if k not in inputs.forced]
    if plan.pad:
        parts.append(plan.pad + (" padding" if plan.pad in ("left", "right") else ""))
    if plan.positions:
        parts.append(f"{plan.positions} " + ("positions" if positions else "indices"))
    if plan.scale != 1 and any(isinstance(a, np.ndarray) and a.dtype.kind == "f" for a in filled.values()):
        parts.append(f"floats x{plan.scale:g}" + (", positive" if plan.positive else ""))
    if plan.integers and any(is_integer(v) for v in inputs.values):
        parts.append(f"integers {plan.integers}")
    if replaced:
        parts.append("default inputs overridden")
    ordered = {name_of(v): filled[name_of(v)] for v in inputs.values}
    return Feed(", ".join(parts) or "fixed sizes", ordered | replaced, pad_mask, sizes, pad_dims, turn)


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
    row, unless they are assumed to have all of them; `dims` fixes it (for an unnamed dim, "input[axis]") to one size or
    cycles through several. Other lengths grow until a stack of convolutions has something to slide over. Integer inputs
    stay within the tables they index; one feed uses the negative indices that Gather allows. Feeds of more than 1 GiB
    are left out. Same model, seed and dims: same feeds. Raises ModelError for an unreadable model or an unknown dim.
    """
    return plan_feeds(model, seed=seed, dims=dims)[0]


def plan_feeds(model: Model, *, seed: int = 0, dims: Dims | None = None) -> tuple[list[Feed], list[str]]:
    """The feeds of `make_feeds`, and why others are left out."""
    found = list(Feeder(read_model(model), seed, dims or {}).usual())
    return [f for f in found if isinstance(f, Feed)], [f for f in found if isinstance(f, str)]


class Feeder:
    """The feeds of `make_feeds`, each built when it is asked for, and others for when the model refuses them.

    What is left out for its size is a text instead, which says why.
    """

    def __init__(self, model: ir.Model, seed: int, dims: Dims, *, strict: bool = False) -> None:
        self._model, self._seed, self._dims = model, seed, dims
        self._inputs, self._demands = ModelInputs(model, dims), Demands(inlined(model), believing=not strict)
        self._offered: set[str] = set()

    def usual(self) -> Iterator[Feed | str]:
        """The feeds to compare on, if the model runs on them."""
        for turn, plan in enumerate(_PLANS):
            yield from self._offer(self._inputs, plan, turn)

    def instead(self, refused: Feed) -> Iterator[Feed | str]:
        """Another for a usual one: such that nothing inside is empty."""
        yield from self._offer(self._inputs, _PLANS[refused.turn], refused.turn, strict=True)

    def at(self, sizes: Mapping[str, Sequence[int]], throughout: bool = False) -> Iterator[Feed | str]:
        """One feed for each of the largest numbers of sizes, in turn; all of them `throughout`."""
        inputs = ModelInputs(self._model, {**self._dims, **sizes})
        for turn in range(max(map(len, sizes.values()), default=0)):
            yield from self._offer(inputs, _AT, turn, strict=True, large=True)
        for turn, plan in enumerate(_PLANS if throughout else ()):
            yield from self._offer(inputs, plan, turn, strict=True, large=True)

    def sized(self, batch: int, seq: int, past: int) -> Iterator[Feed | str]:
        """One for a batch of so many rows, with so many new positions after so many others, none of them padding."""
        yield from self._offer(self._inputs, _FeedPlan(batch, seq, past), 0, large=True)

    def spare(self) -> Iterator[Feed | str]:
        """For when the model ran on nothing else."""
        for turn, plan in enumerate(_SPARE):
            yield from self._offer(self._inputs, plan, turn, large=True)

    def like(self, found: Feed) -> Iterator[Feed | str]:
        """The usual ones, as far as they can be had at the sizes and integers of a spare one."""
        kept = _SPARE[found.turn]
        for turn, plan in enumerate(_PLANS):
            plan = replace(plan, seq=kept.seq, square=True, integers=kept.integers)
            yield from self._offer(self._inputs, plan, turn, large=True)

    def _offer(
        self, inputs: ModelInputs, plan: _FeedPlan, turn: int, strict: bool = False, large: bool = False
    ) -> Iterator[Feed | str]:
        try:
            feed: Feed | str | None = _build(inputs, self._demands, plan, turn, self._seed, strict, large)
        except _TooLargeError as error:
            feed = str(error)
        name = feed.name if isinstance(feed, Feed) else feed
        if feed is not None and name is not None and name not in self._offered:
            self._offered.add(name)
            yield feed
