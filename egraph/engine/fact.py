"""What can be known of a value, declared once: how the e-graph has it, when it holds of arrays, and how it is said."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from ..terms.dtypes import masking


@dataclass(frozen=True, slots=True)
class Declared:
    """A function or relation of the e-graph, by the sorts of its operands and of its value, "" for a relation.

    `merge` joins two values; with "" they must be one. `holds` asks arrays and numbers; None where they do not tell.
    `says` has {0}, {1}, ... for the operands. With `anchors` it has few rows: a rule may start from it, with a bare
    variable on the left.
    """

    operands: str
    value: str = ""
    says: str = ""
    holds: Callable[..., bool] | None = None
    anchors: bool = False
    merge: str = ""


def doubled(x: Any, pairs: int, sign: int) -> bool:
    """The last axis is cat(t, t) (pairs = 0) or holds every element twice (1); with a sign of -1 the first of each pair
    is negated, and none is zero.
    """
    x = np.asarray(x)
    if not x.ndim or not x.size or x.shape[-1] % 2:
        return False
    half = x.shape[-1] // 2
    a, b = (np.s_[..., ::2], np.s_[..., 1::2]) if pairs else (np.s_[..., :half], np.s_[..., half:])
    first = x.reshape(-1, x.shape[-1])[0]  # tells most tables apart
    alike = np.array_equal(first[a], sign * first[b]) and np.array_equal(x[a], sign * x[b])
    return alike and (sign > 0 or bool(x.all()))


def turns(x: Any, pairs: int, sign: int) -> bool:
    """y @ x is a quarter turn of each pair of y, by halves (pairs = 0) or interleaved (1); backwards if sign is -1."""
    x = np.asarray(x)
    if x.ndim != 2 or x.shape[0] != x.shape[1] or not x.size or x.shape[0] % 2 or np.count_nonzero(x[0]) != 1:
        return False
    places = np.arange(x.shape[0])
    first, second = (places[::2], places[1::2]) if pairs else np.split(places, 2)
    turn = np.zeros(x.shape)
    turn[second, first], turn[first, second] = -sign, sign
    return np.array_equal(x, turn)


def counted(x: np.ndarray) -> tuple[int, int, int] | None:
    """(start, end, step) of the integer vector start, start+step, ... below end; None for another array."""
    if x.ndim != 1 or x.dtype.kind not in "iu" or x.size < 2:
        return None
    first, last, step = int(x[0]), int(x[-1]), int(x[1]) - int(x[0])
    # in numpy a difference of far integers wraps around, but none between first and last
    even = first >= 0 and step > 0 and last == first + step * (x.size - 1) and bool((np.diff(x) == step).all())
    return (first, last + 1, step) if even else None


def lowest(x: Any) -> bool:
    """One number so low that adding it to a score leaves nothing of it: -inf, or at most -1e30 (f16: -6e4)."""
    x = np.asarray(x)
    return bool(x.size == 1 and x.dtype.kind == "f" and x.reshape(-1)[0] <= masking(x.dtype.itemsize))


def _zero_or_more(x: Any) -> bool:
    return not np.signbit(x[~np.isnan(x)]).any()


def zero_or_one(x: Any) -> bool:
    """Every element is 0 or 1."""
    x = np.asarray(x)
    few = x.reshape(-1)[: x.shape[-1] if x.ndim else 1]  # tells most tensors apart
    return x.dtype != object and all(bool(((part == 0) | (part == 1)).all()) for part in (few, x))


def _visible(x: Any) -> bool:
    x = np.asarray(x)
    if x.dtype == bool:
        return bool(x.ndim and x.any(-1).all())
    return bool(x.dtype.kind == "f" and x.ndim and (x.max(-1) > masking(x.dtype.itemsize)).all())


def _within(mask: Any, x: Any, axis: int, other: int) -> bool:
    return np.ndim(mask) >= -axis and np.shape(mask)[axis] in (1, np.shape(x)[other])


def _mask_exact(mask: Any, q: np.ndarray, k: np.ndarray) -> bool:
    own, full = np.shape(mask), (*q.shape[:3], k.shape[2])
    return len(own) == 4 and own[2:] == full[2:] and all(a in (1, b) for a, b in zip(own[:2], full[:2], strict=True))


#: Every fact but dims and elements, which are terms of the e-graph.
FACTS: Mapping[str, Declared] = MappingProxyType({
    "dtype": Declared("T", "i64"), "rank": Declared("T", "i64"), "len": Declared("T", "i64"),
    "fval": Declared("T", "f64"), "axes": Declared("T", "i64", merge="(max old new)"),  # no fewer than these
    "visible": Declared("T", says="no row of {0} hides every key", holds=_visible),
    "never": Declared("T", says="{0} is -inf", holds=lambda x: np.size(x) == 1 and bool(np.isneginf(x).all())),
    "all-true": Declared("T", says="{0} is true throughout", holds=lambda x: bool(np.all(x))),
    "all-false": Declared("T", says="{0} is false throughout", holds=lambda x: not np.any(x)),
    "lowest": Declared("T", says="{0} masks", holds=lowest), "row-true": Declared("T"), "no-negative": Declared("T"),
    "has-zero": Declared("T"),
    "zero-or-more": Declared("T", says="no element of {0} is below 0", holds=_zero_or_more),
    "zero-or-one": Declared("T", says="every element of {0} is 0 or 1", holds=zero_or_one),
    "floating": Declared("i64"), "filled": Declared("T", "f64"),
    "dimsum": Declared("Dim Dim Dim"), "dimplus": Declared("Dim Dim i64"),
    "const": Declared("T", says="{0} is a constant"),
    "weight-number": Declared("T", "i64", merge="(min old new)"),  # the number of a constant matrix or vector
    "weights-of": Declared("T TL", says="{0} is multiplied by each of {1}"),
    "biases-of": Declared("T TL TL", says="{0} is multiplied by each of {1}, and each of {2} added"),
    "doubled": Declared("T i64 i64", says="{0} repeats itself", holds=doubled, anchors=True),
    "turns": Declared("T i64 i64", says="{0} turns pairs", holds=turns, anchors=True),
    "irange": Declared("T i64 i64 i64", says="{0} is a range"),
    "within": Declared("T T i64 i64", says="axis {2} of {0} broadcasts into {1}", holds=_within),
    "same-batch": Declared(
        "T T", says="{0} and {1} have one batch size", holds=lambda q, k: np.shape(q)[:1] == np.shape(k)[:1],
    ),
    "mask-exact": Declared("T T T", says="{0} has the shape of the scores", holds=_mask_exact),
    "sized": Declared("Dim", says="{0} has a source", holds=lambda d: d is not None),
    "supported": Declared("String i64"),
})  # fmt: skip
#: What may be true of all elements of a tensor, or of every row: see masks.py.
TRUTHS = (
    "visible", "all-true", "all-false", "lowest", "row-true", "no-negative", "has-zero", "zero-or-more",
    "zero-or-one",
)  # fmt: skip
#: What only the reader states, of constants.
TOLD = (
    "fval", "filled", "const", "doubled", "turns", "irange", "lowest", "never", "visible", "all-true", "all-false",
)  # fmt: skip
#: Facts of symbols, and of no term.
OF_SYMBOLS = ("dimsum", "dimplus")
