"""How far two right answers lie apart, and whether another answer lies further."""

from __future__ import annotations

from collections.abc import Sequence
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

    `where` is the index of the worst element; `runtime` says whether onnxruntime's own optimizations were
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
        mode = f", onnxruntime's optimizations {self.runtime}" if self.runtime else ""
        return f"{self.kind} of {place}: want {self.want}, got {self.got}{spread}{mode}"


def is_float(array: Array) -> bool:
    return array.dtype.kind in "fc" or "float" in array.dtype.name  # bfloat16 is of kind V


def widened(array: Array) -> npt.NDArray[np.generic]:
    return array if array.dtype.kind == "c" else array.astype(np.float64)


def _eps(array: Array) -> float:
    one, two = (np.asarray(x, array.real.dtype) for x in (1, 2))
    return float(np.nextafter(one, two)) - 1.0  # numpy's finfo knows its own types only


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


FEW = 16  # runs times rows: fewer samples of a channel may all be small by chance

Floats = npt.NDArray[np.float64]


class Noise:
    """How far right answers lie apart, for one output on one feed.

    Distances and magnitudes are kept per index of the last axis, its channel: next to one that is a million times
    larger, an error of a channel is no less an error. `settle` makes the tolerances of them.
    """

    def __init__(self, want: Array, keep: Mask) -> None:
        self.want, self.keep = want, keep
        self.unstable = np.zeros(want.shape, bool)  # where a nudge gives another integer, or NaN
        self.random = False
        self.reference: Array | None = None  # with onnxruntime's optimizations on
        self.runs = 0  # of the original, moved a little
        self.channels = want.shape[-1] if want.ndim > 1 else 1
        self.rows = want.size // self.channels if self.channels else 0
        self.spread = self.runtime = np.zeros(self.channels)
        self.level = self._largest(np.abs(widened(want))) if is_float(want) else np.zeros(self.channels)
        self.tolerance: Floats = np.zeros(want.shape)
        self.shaky = np.zeros(want.shape, bool)  # where the tolerance leaves nothing to compare

    def _largest(self, distance: npt.NDArray[np.generic]) -> Floats:
        """The largest finite number of each channel at a real token."""
        used = np.where(self.keep & np.isfinite(distance), distance, 0.0)
        if not used.size:
            return np.zeros(self.channels)
        return np.asarray(used.reshape(-1, self.channels).max(axis=0), np.float64)

    def repeated(self, got: Array) -> None:
        self.random = got.shape != self.want.shape
        if not self.random:
            differs, distance = differences(self.want, got)
            whole = np.abs(widened(self.want)) if is_float(self.want) else np.zeros(self.want.shape)
            rounding = _rounding(self.want) * float(np.max(whole, initial=0.0, where=np.isfinite(whole)))
            self.random = bool(differs.any()) or bool(np.max(distance, initial=0.0) > rounding)

    def nudged(self, got: Array) -> None:
        if got.shape == self.want.shape:
            differs, distance = differences(self.want, got)
            self.unstable |= differs
            self.spread = np.maximum(self.spread, self._largest(distance))
            self.runs += 1

    def optimized(self, got: Array) -> None:
        if got.shape == self.want.shape and got.dtype == self.want.dtype:
            self.reference = got
            self.runtime = self._largest(differences(self.want, got)[1])
            self.runs += 1

    def numbers(self) -> Mask:
        """Where the output is a number at a real token."""
        return np.asarray(self.keep & np.isfinite(widened(self.want)) if is_float(self.want) else self.keep, np.bool_)

    def recognizable(self) -> Mask:
        """Where it is one that rounding does not change beyond use, and that is no random one."""
        return np.asarray(self.numbers() & ~self.unstable & ~self.shaky & (not self.random), np.bool_)


def _rounding(want: Array) -> float:
    return 8 * _eps(want) if is_float(want) else 0.0


def _of_alike(share: Floats) -> Floats:
    """For each channel the largest share among those of up to four times its own.

    The few samples of a channel miss its larger deviations; channels much like it supply them.
    """
    if not share.size:
        return share
    ordered = np.sort(share)
    return np.asarray(ordered[np.searchsorted(ordered, 4 * share, side="right") - 1], np.float64)


def settle(entries: Sequence[Noise]) -> None:
    """Tolerances for one output, from its noise on all feeds.

    A single feed may hold one value per channel, which says little of it. Feeds differ in scale, so what is taken
    from the others is how a channel compares with the largest. Where the last axis has no fixed size all channels
    count as one; where few samples were seen, the lower half of them as much as the median.
    """
    entries = [e for e in entries if is_float(e.want)]
    apart = len({(e.channels, e.want.ndim) for e in entries}) == 1 and len(entries) > 0
    samples = sum(e.runs * e.rows for e in entries)

    def pooled(found: Sequence[Floats]) -> list[Floats]:
        tops = [float(np.max(f, initial=0.0)) for f in found]
        if not apart:
            return [np.full(1, top) for top in tops]
        share = np.zeros(entries[0].channels)
        for each, top in zip(found, tops, strict=True):
            share = np.maximum(share, each / top if top else 0.0)
        if samples < FEW and share.size:
            share = np.maximum(share, np.median(share))
        return [_of_alike(share) * top for top in tops]

    levels = pooled([e.level for e in entries])
    # onnxruntime's fusions can be wrong: past half the digits, what they change is no rounding
    halves = [_eps(e.want) ** 0.5 * level for e, level in zip(entries, levels, strict=True)]
    spreads = pooled([np.maximum(e.spread, np.minimum(e.runtime, h)) for e, h in zip(entries, halves, strict=True)])
    for entry, level, spread in zip(entries, levels, spreads, strict=True):
        rounding = _rounding(entry.want) * level
        tolerance = np.maximum(rounding, 10.0 * spread)
        # if a tenth more or less passes, or half where a type is as coarse as that, passing means little
        shaky = tolerance > np.maximum(0.1 * level, np.minimum(4 * rounding, 0.5 * level))
        shape = entry.want.shape
        entry.tolerance = np.broadcast_to(tolerance if tolerance.size != 1 else tolerance[0], shape)
        entry.shaky = np.broadcast_to(shaky if shaky.size != 1 else shaky[0], shape)


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
    largest, tolerance = float(np.max(distance, initial=0.0)), one.tolerance
    far = distance > tolerance
    if not wrong.any() and not far.any():
        return None, largest
    kind: Kind = "nan" if wrong.any() and is_float(want) else "value"
    worst = int(np.argmax(wrong if wrong.any() else np.where(far, distance - tolerance, -1.0)))
    where = tuple(int(i) for i in np.unravel_index(worst, want.shape))
    values = {"want": np.asarray(want[where]).item(), "got": np.asarray(got[where]).item()}
    apart = largest if wrong.any() else float(distance[where])
    return found(kind=kind, **values, max_abs=apart, tolerance=float(tolerance[where]), where=where), largest


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

    def along(axis: int) -> bool:
        dim, size = dims[axis], want.shape[axis]
        known = dim in feed.pad_dims or not feed.pad_dims
        named = isinstance(dim, str) and dim in feed.dims
        return not isinstance(dim, int) and size <= total and (known or (not named and size in lengths))

    fixed = (a for a in axes if isinstance(dims[a], int) and dims[a] in feed.pad_dims and want.shape[a] <= total)
    # of two axes of one fixed size the first is likelier the heads'
    found = next((axis for axis in axes if along(axis)), max(fixed, default=None))
    if found is None:
        return keep
    rest = tuple(a for a in range(want.ndim) if a not in (0, found))
    return keep & np.asarray(np.expand_dims(mask[:, total - want.shape[found] :] != 0, rest), np.bool_)
