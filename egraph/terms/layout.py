"""Operators that move elements: reshapes, transposes, slices, joins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .op import NODE, IllFormed, Op, declare, form, refusing


def _reshape(x: np.ndarray, target: np.ndarray) -> np.ndarray:
    return x.reshape([x.shape[i] if d == 0 else int(d) for i, d in enumerate(target)])


def _expand(x: np.ndarray, target: np.ndarray) -> np.ndarray:
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(int(d) for d in target)))


def _along(x: np.ndarray, axis: int, where: slice) -> np.ndarray:
    index: list[slice] = [slice(None)] * x.ndim
    index[axis] = where
    return x[tuple(index)]


def _slice(x: np.ndarray, start: np.ndarray, end: np.ndarray, axis: int, step: int) -> np.ndarray:
    first, last, size = int(start[0]), int(end[0]), x.shape[axis]
    if step < 0 and last < -size:
        return _along(x, axis, slice(first, None, step))
    return _along(x, axis, slice(first, last, step))


def _split(x: np.ndarray, axis: int, sizes: tuple[int, ...]) -> list[np.ndarray]:
    return list(np.split(x, np.cumsum(sizes)[:-1], axis=axis))


def _slice_fits(x: np.ndarray, axis: int, start: int, end: int, step: int) -> None:
    if not -x.ndim <= axis < 0 or not 0 <= start <= end <= x.shape[axis] or step < 1:
        raise IllFormed(f"slice {start}:{end}:{step} of {x.shape} at {axis}")


def _parts_fit(x: np.ndarray, axis: int, sizes: tuple[int, ...]) -> None:
    if any(size < 0 for size in sizes) or sum(sizes) != (x.shape[axis] if -x.ndim <= axis < 0 else -1):
        raise IllFormed(f"split of {x.shape} into {sizes}")


def _axes(name: str) -> tuple[Any, ...]:
    """One axis, an attribute before operator set 13."""
    return form(name, "x", "axes=[axis]"), form(name, "x axis", since=13)


def _moving(name: str, operands: str, f: Callable[..., Any], shape: str, moves: str = "x", **more: Any) -> Op:
    return declare(name, operands, f, shape, moves=moves, exact=True, **more)


TERMS: tuple[Op, ...] = (
    _moving("Transpose", "x perm:IV", lambda x, p: np.transpose(x, p), "transpose", layout=True, weights="x"),
    _moving(
        "Reshape", "x target", _reshape, "reshape", layout=True, weights="x", symbolic="reshape",
        requires=refusing(lambda x, target: -1 not in target and x.size == 0, "reshape of an empty tensor"),
    ),
    _moving("Expand", "x target", _expand, "expand", carries=True, symbolic="expand"),
    _moving(
        "Unsqueeze", "x axis:i64", lambda x, a: np.expand_dims(x, a), "unsqueeze", forms=_axes("Unsqueeze"),
        layout=True, weights="x", folds=True,
    ),
    _moving(
        "Squeeze", "x axis:i64", lambda x, a: np.squeeze(x, a), "squeeze", forms=_axes("Squeeze"), layout=True,
        folds=True,
    ),
    _moving(
        "Slice", "x start end axis:i64 step:i64", _slice, "slice", symbolic="slice",
        forms=(form("Slice", "x start end axis step?1"),),
    ),
    _moving(  # of constant bounds that are in range
        "SliceC", "x axis:i64 start:i64 end:i64 step:i64", lambda x, a, s, e, t: _along(x, a, slice(s, e, t)), "slicec",
        requires=_slice_fits, forms=(form("Slice", "x start end axis step?1"),),
    ),
    _moving("Gather", "x ids axis:i64", lambda x, i, a: np.take(x, i, axis=a), "gather", carries=True, weights="x"),
    _moving(
        "Concat", "xs:TL axis:i64", lambda xs, a: np.concatenate(xs, axis=a), "concat", "xs", dtype="list",
        short="cat", implied=True,
        requires=refusing(
            lambda xs, axis: any(x.dtype != xs[0].dtype for x in xs), "Concat of different element types"
        ),
    ),
    _moving(  # of matrices that are multiplied by one tensor, or of vectors that are added to the products
        "Beside", "xs:TL", lambda xs: np.concatenate(xs, axis=-1), "beside", "xs", dtype="list",
        plain="Concat", short="cat", forms=(form("Concat", "xs", "axis:-1"),),
        requires=refusing(
            lambda xs: any(x.dtype != xs[0].dtype or x.shape[:-1] != xs[0].shape[:-1] for x in xs)
            or xs[0].ndim not in (1, 2),
            "matrices of different types or heights, or vectors of different types",
        ),
    ),
    _moving(
        "Split", "x axis:i64 sizes:IV", _split, "split", out=NODE, dtype="", requires=_parts_fit,
        forms=(form("Split", "x", "axis split=sizes", outputs="sizes"),
               form("Split", "x sizes", "axis", since=13, outputs="sizes")),
    ),
    _moving(  # of the last axis of a product
        "Parts", "x sizes:IV", lambda x, z: _split(x, -1, z), "", out=NODE, dtype="",
        requires=lambda x, z: _parts_fit(x, -1, z), plain="Split", short="split",
        forms=(form("Split", "x", "axis:-1 split=sizes", outputs="sizes"),
               form("Split", "x sizes", "axis:-1", since=13, outputs="sizes")),
    ),
    declare(  # from the diagonal on
        "Trilu", "x upper:i64", lambda x, upper: np.triu(x) if upper else np.tril(x), "same", exact=True,
        requires=refusing(lambda x, upper: x.ndim < 2, "a triangle of fewer than two axes"),
        forms=(form("Trilu", "x", "upper?1", since=14),),
    ),
    declare(
        "Shape", "x first:i64 last:i64",  # dims first..last-1 counted from the end; last = 0 means through the end
        lambda x, a, b: np.asarray(x.shape[a : b or None], np.int64), "shapeof", dtype="int64", exact=True,
        symbolic="shape",
    ),
    declare("Cell", "x index:i64 axis:i64", lambda x, i, a: np.take(x, i, axis=a), role="marker", common=True,
            requires=refusing(lambda x, i, a: i < 0, "a cell is counted from the front"), doc="x at a place"),
    declare("Stack", "x y axis:i64", lambda x, y, a: np.stack([x, y], axis=a), role="marker", common=True,
            requires=refusing(lambda x, y, a: x.dtype != y.dtype, "a stack of different element types"),
            doc="both along a new axis"),
)  # fmt: skip
