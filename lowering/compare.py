"""How far two right answers lie apart, and whether another answer lies further."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt

from .feeds import Array, Feed

Kind = Literal["value", "shape", "dtype", "nan", "error", "interface"]
Mask = npt.NDArray[np.bool_]
Declared = list[int | str | None] | None


@dataclass(frozen=True)
class Mismatch:
    """One difference.

    `where` is the index of the worst element; `runtime` says whether onnxruntime's own optimisations were
    "on" or "off" when it showed, and is empty for the interface.
    """

    feed: str
    output: str
    kind: Kind
    want: object
    got: object
    max_abs: float = 0.0
    tolerance: float = 0.0
    where: tuple[int, ...] = ()
    runtime: str = ""

    def __str__(self) -> str:
        place = f"{self.output}{list(self.where) or ''}" + (f" [{self.feed}]" if self.feed else "")
        spread = f", {self.max_abs:.3g} apart, tolerance {self.tolerance:.3g}" if self.kind == "value" else ""
        mode = f", onnxruntime's optimisations {self.runtime}" if self.runtime else ""
        return f"{self.kind} of {place}: want {self.want}, got {self.got}{spread}{mode}"


def is_float(array: Array) -> bool:
    return array.dtype.kind in "fc" or "float" in array.dtype.name  # bfloat16 is of kind V


def widened(array: Array) -> npt.NDArray[np.generic]:
    return array if array.dtype.kind == "c" else array.astype(np.float64)


def _eps(array: Array) -> float:
    return float(np.finfo(array.dtype.name).eps)


def _scale(want: Array, where: Mask) -> float:
    wide = np.abs(widened(want))[where]
    return float(np.max(wide, initial=0.0, where=np.isfinite(wide)))


def differences(want: Array, got: Array) -> tuple[Mask, npt.NDArray[np.float64]]:
    """(where arrays of one shape are unequal or NaN or infinite in one only; |want - got| elsewhere)."""
    if not is_float(want):
        return np.asarray(want != got, bool), np.zeros(want.shape)
    a, b = widened(want), widened(got)
    finite = np.isfinite(a) & np.isfinite(b)
    distance = np.abs(np.subtract(a, b, out=np.zeros(a.shape, a.dtype), where=finite))
    return ~(finite | (a == b) | (np.isnan(a) & np.isnan(b))), np.asarray(distance, np.float64)


def nudge(array: Array, rng: np.random.Generator) -> Array:
    """Every float moved by one unit in the last place, up or down; zeros stay: they are often structural."""
    towards = np.where(rng.integers(0, 2, array.shape), np.inf, -np.inf).astype(array.dtype)
    with np.errstate(all="ignore"):
        moved = np.nextafter(array, towards)
    return np.where((array == 0) | ~np.isfinite(array), array, moved).astype(array.dtype)


class Noise:
    """How far right answers lie apart, for one output on one feed."""

    def __init__(self, want: Array, keep: Mask) -> None:
        self.want, self.keep = want, keep
        self.unstable = np.zeros(want.shape, bool)  # where a nudge gives another integer, or NaN
        self.random = False
        self.reference: Array | None = None  # with onnxruntime's optimisations on
        self._spread = self._runtime = 0.0

    def repeated(self, got: Array) -> None:
        self.random = got.shape != self.want.shape
        if not self.random:
            differs, distance = differences(self.want, got)
            rounding = self._rounding(np.ones(self.want.shape, bool))
            self.random = bool(differs.any()) or bool(np.max(distance, initial=0.0) > rounding)

    def nudged(self, got: Array) -> None:
        if got.shape == self.want.shape:
            differs, distance = differences(self.want, got)
            self.unstable |= differs
            self._spread = max(self._spread, float(np.max(distance[self.keep], initial=0.0)))

    def optimised(self, got: Array) -> None:
        if got.shape == self.want.shape and got.dtype == self.want.dtype:
            self.reference = got
            self._runtime = float(np.max(differences(self.want, got)[1][self.keep], initial=0.0))

    def _rounding(self, where: Mask) -> float:
        return 8 * _eps(self.want) * _scale(self.want, where) if is_float(self.want) else 0.0

    def tolerance(self) -> float:
        if not is_float(self.want):
            return 0.0
        # onnxruntime's fusions can be wrong: past half the digits, what they change is no rounding
        half: float = _eps(self.want) ** 0.5 * _scale(self.want, self.keep)
        spread = max(self._spread, min(self._runtime, half))
        return max(self._rounding(self.keep), 10.0 * spread)

    def ill_conditioned(self) -> bool:
        return self.tolerance() > max(0.01 * _scale(self.want, self.keep), 4 * self._rounding(self.keep)) > 0


def compare(one: Noise, want: Array, got: Array, found: partial[Mismatch]) -> tuple[Mismatch | None, float]:
    """(the worst difference if it is one too many, the largest difference between floats)."""
    if got.dtype != want.dtype:
        return found(kind="dtype", want=str(want.dtype), got=str(got.dtype)), 0.0
    if one.random:
        return None, 0.0
    if got.shape != want.shape:
        return found(kind="shape", want=want.shape, got=got.shape), 0.0
    differs, distance = differences(want, got)
    judged = one.keep & ~one.unstable
    wrong, distance = differs & judged, np.where(judged, distance, 0.0)
    if is_float(want):  # padding may hold any finite value
        wrong |= ~one.keep & ~one.unstable & np.isfinite(widened(want)) & ~np.isfinite(widened(got))
    largest, tolerance = float(np.max(distance, initial=0.0)), one.tolerance()
    if not wrong.any() and largest <= tolerance:
        return None, largest
    kind: Kind = "nan" if wrong.any() and is_float(want) else "value"
    worst = int(np.argmax(wrong if wrong.any() else distance))
    where = tuple(int(i) for i in np.unravel_index(worst, want.shape))
    values = {"want": np.asarray(want[where]).item(), "got": np.asarray(got[where]).item()}
    return found(kind=kind, **values, max_abs=largest, tolerance=tolerance, where=where), largest


def real_tokens(want: Array, declared: Declared, feed: Feed) -> Mask:
    """True where the output holds real tokens.

    The axis along the padding mask is found by its declared dim, or by length if no input has that dim.
    """
    keep = np.ones(want.shape, bool)
    mask = feed.pad_mask
    if mask is None or want.ndim < 2 or want.shape[0] != mask.shape[0]:
        return keep
    empty = ~mask.any(axis=1)  # nothing to see, whatever the query
    keep &= ~empty.reshape(-1, *[1] * (want.ndim - 1))
    total = mask.shape[1]
    lengths = {total} | {feed.dims[d] for d in feed.pad_dims if isinstance(d, str) and d in feed.dims}
    axes = (1, 2) if want.ndim == 4 else (1,)
    dims = declared if declared is not None and len(declared) == want.ndim else [None] * want.ndim
    for axis in axes:
        dim, size = dims[axis], want.shape[axis]
        known = dim in feed.pad_dims or not feed.pad_dims
        named = isinstance(dim, str) and dim in feed.dims
        if isinstance(dim, int) or size > total or (not known and (named or size not in lengths)):
            continue
        return keep & _tail(mask, axis, want)
    for axis in reversed(axes):  # of two axes of one fixed size the first is likelier the heads'
        if isinstance(dims[axis], int) and dims[axis] in feed.pad_dims and want.shape[axis] <= total:
            return keep & _tail(mask, axis, want)
    return keep


def _tail(mask: Array, axis: int, want: Array) -> Mask:
    """The mask's last tokens, along one axis of an output."""
    rest = tuple(a for a in range(want.ndim) if a not in (0, axis))
    return np.asarray(np.expand_dims(mask[:, mask.shape[1] - want.shape[axis] :] != 0, rest), np.bool_)
