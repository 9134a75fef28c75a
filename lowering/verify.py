"""Numeric verification: the optimised model against the original, both in onnxruntime.

The original runs with onnxruntime's own optimisations off, the optimised model with them off and on. How far
two right answers may lie apart is measured, not chosen: the original runs again with its float inputs and its
weights moved by one unit in the last place, and with onnxruntime's optimisations on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from .feeds import Array, Dims, Feed, Model, make_feeds, read_model
from .operators import WEIGHTS
from .session import Session, source_of
from .tensors import elements

Kind = Literal["value", "shape", "dtype", "nan", "error", "interface"]
Progress = Callable[[str], None]
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


@dataclass(frozen=True)
class Verification:
    """The outcome; `ok` needs at least one run compared and no mismatch.

    `runs` counts the runs of the optimised model that were compared, `max_abs` is the largest difference
    between compared floats. `skipped` says why nothing could be run, or is empty. `excluded` lists outputs
    whose values are not compared because two equal runs of the original differ; `dropped` the feeds it
    refuses, each with its error; `ill_conditioned` outputs whose tolerance is far wider than their type asks.
    """

    ok: bool
    runs: int
    max_abs: float
    mismatches: list[Mismatch]
    skipped: str = ""
    excluded: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    ill_conditioned: list[str] = field(default_factory=list)


def _is_float(array: Array) -> bool:
    return array.dtype.kind in "fc" or "float" in array.dtype.name  # bfloat16 is of kind V


def _wide(array: Array) -> npt.NDArray[np.generic]:
    return array if array.dtype.kind == "c" else array.astype(np.float64)


def _eps(array: Array) -> float:
    return float(np.finfo(array.dtype.name).eps)


def _scale(want: Array, where: Mask) -> float:
    wide = np.abs(_wide(want))[where]
    return float(np.max(wide, initial=0.0, where=np.isfinite(wide)))


def _differences(want: Array, got: Array) -> tuple[Mask, npt.NDArray[np.float64]]:
    """(where arrays of one shape are unequal or NaN or infinite in one only; |want - got| elsewhere)."""
    if not _is_float(want):
        return np.asarray(want != got, bool), np.zeros(want.shape)
    a, b = _wide(want), _wide(got)
    finite = np.isfinite(a) & np.isfinite(b)
    distance = np.abs(np.subtract(a, b, out=np.zeros(a.shape, a.dtype), where=finite))
    return ~(finite | (a == b) | (np.isnan(a) & np.isnan(b))), np.asarray(distance, np.float64)


def _nudge(array: Array, rng: np.random.Generator) -> Array:
    """Every float moved by one unit in the last place, up or down; zeros stay: they are often structural."""
    towards = np.where(rng.integers(0, 2, array.shape), np.inf, -np.inf).astype(array.dtype)
    with np.errstate(all="ignore"):
        moved = np.nextafter(array, towards)
    return np.where((array == 0) | ~np.isfinite(array), array, moved).astype(array.dtype)


_WEIGHT_BUDGET = 256 * 2**20  # bytes; beyond it the largest weights stay as they are


def _moved_weights(model: ir.Model, rng: np.random.Generator) -> dict[str, Array]:
    listed = {v.name for v in model.graph.inputs}
    found: list[tuple[str, ir.TensorProtocol]] = []
    for name, value in model.graph.initializers.items():
        tensor, uses = value.const_value, value.uses()
        weight = uses and all(use.idx in WEIGHTS.get(use.node.op_type, ()) for use in uses)
        if tensor is None or name in listed or tensor.size < 16 or not weight:
            continue
        if tensor.dtype.is_floating_point() and tensor.dtype.bitwidth >= 16:
            found.append((name, tensor))
    moved, spent = dict[str, Array](), 0
    for name, tensor in sorted(found, key=lambda item: (item[1].nbytes, item[0])):
        spent += tensor.nbytes
        if spent > _WEIGHT_BUDGET:
            break
        array = elements(tensor)
        if float(np.max(np.abs(_wide(array)))) < 1e4:  # a mask's minus infinity is no weight
            moved[name] = _nudge(array, rng)
    return moved


class _Noise:
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
            differs, distance = _differences(self.want, got)
            rounding = self._rounding(np.ones(self.want.shape, bool))
            self.random = bool(differs.any()) or bool(np.max(distance, initial=0.0) > rounding)

    def nudged(self, got: Array) -> None:
        if got.shape == self.want.shape:
            differs, distance = _differences(self.want, got)
            self.unstable |= differs
            self._spread = max(self._spread, float(np.max(distance[self.keep], initial=0.0)))

    def optimised(self, got: Array) -> None:
        if got.shape == self.want.shape and got.dtype == self.want.dtype:
            self.reference = got
            self._runtime = float(np.max(_differences(self.want, got)[1][self.keep], initial=0.0))

    def _rounding(self, where: Mask) -> float:
        return 8 * _eps(self.want) * _scale(self.want, where) if _is_float(self.want) else 0.0

    def tolerance(self) -> float:
        if not _is_float(self.want):
            return 0.0
        # onnxruntime's fusions can be wrong: past half the digits, what they change is no rounding
        half: float = _eps(self.want) ** 0.5 * _scale(self.want, self.keep)
        spread = max(self._spread, min(self._runtime, half))
        return max(self._rounding(self.keep), 10.0 * spread)

    def ill_conditioned(self) -> bool:
        return self.tolerance() > max(0.01 * _scale(self.want, self.keep), 4 * self._rounding(self.keep)) > 0


Note = Callable[[_Noise, Array], None]


def _compare(one: _Noise, want: Array, got: Array, found: partial[Mismatch]) -> tuple[Mismatch | None, float]:
    """(the worst difference if it is one too many, the largest difference between floats)."""
    if got.dtype != want.dtype:
        return found(kind="dtype", want=str(want.dtype), got=str(got.dtype)), 0.0
    if one.random:
        return None, 0.0
    if got.shape != want.shape:
        return found(kind="shape", want=want.shape, got=got.shape), 0.0
    differs, distance = _differences(want, got)
    judged = one.keep & ~one.unstable
    wrong, distance = differs & judged, np.where(judged, distance, 0.0)
    if _is_float(want):  # padding may hold any finite value
        wrong |= ~one.keep & ~one.unstable & np.isfinite(_wide(want)) & ~np.isfinite(_wide(got))
    largest, tolerance = float(np.max(distance, initial=0.0)), one.tolerance()
    if not wrong.any() and largest <= tolerance:
        return None, largest
    kind: Kind = "nan" if wrong.any() and _is_float(want) else "value"
    worst = int(np.argmax(wrong if wrong.any() else distance))
    where = tuple(int(i) for i in np.unravel_index(worst, want.shape))
    values = {"want": np.asarray(want[where]).item(), "got": np.asarray(got[where]).item()}
    return found(kind=kind, **values, max_abs=largest, tolerance=tolerance, where=where), largest


def _kept(want: Array, declared: Declared, feed: Feed) -> Mask:
    """True where the output holds real tokens.

    The axis along the padding mask is found by its declared dim, or by length if no input has that dim.
    """
    keep = np.ones(want.shape, bool)
    mask = feed.pad_mask
    if mask is None or want.ndim < 2 or want.shape[0] != mask.shape[0]:
        return keep
    total = mask.shape[1]
    lengths = {total} | {feed.dims[d] for d in feed.pad_dims if d in feed.dims}
    for axis in (1, 2) if want.ndim == 4 else (1,):
        dim = declared[axis] if declared is not None and len(declared) == want.ndim else None
        known = dim in feed.pad_dims or not feed.pad_dims
        size = want.shape[axis]
        named = isinstance(dim, str) and dim in feed.dims
        if isinstance(dim, int) or size > total or (not known and (named or size not in lengths)):
            continue
        tail = mask[:, total - size :] != 0
        rest = tuple(a for a in range(want.ndim) if a not in (0, axis))
        return np.asarray(keep & np.expand_dims(tail, rest), np.bool_)
    return keep


def _declared(value: ir.Value) -> Declared:
    return None if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]


def _interface(original: ir.Model, optimised: ir.Model) -> list[Mismatch]:
    found: list[tuple[str, object, object]] = []
    sides: list[tuple[str, list[ir.Value], list[ir.Value]]] = [
        ("inputs", _given(original), _given(optimised)),
        ("outputs", list(original.graph.outputs), list(optimised.graph.outputs)),
    ]
    for side, before, after in sides:
        if [v.name for v in before] != [v.name for v in after]:
            found.append((side, [v.name for v in before], [v.name for v in after]))
        others = {v.name: v for v in after}
        for value, other in ((v, others[v.name]) for v in before if v.name in others):
            if value.dtype != other.dtype:
                found.append((f"{value.name} (type)", str(value.dtype), str(other.dtype)))
            want, got = _declared(value), _declared(other)
            # an output may become known better than it was; an input may not become narrower
            if want != got and not (side == "outputs" and _refines(want, got)):
                found.append((f"{value.name} (dims)", want, got))
    return [Mismatch("", name, "interface", want, got) for name, want, got in found]


def _refines(want: Declared, got: Declared) -> bool:
    if want is None or got is None or len(want) != len(got):
        return want is None
    return all(w in (None, g) for w, g in zip(want, got, strict=True))


def _given(model: ir.Model) -> list[ir.Value]:
    """The inputs a caller may give; before IR 4 initializers had to be listed among them."""
    old = (model.ir_version or 0) < 4
    return [v for v in model.graph.inputs if not (old and v.is_initializer())]


def _line(error: Exception) -> str:
    return " ".join([f"{type(error).__name__}:", *str(error).strip().splitlines()[:1]])


@dataclass
class _Answers:
    """What the original says: per feed and output its answer and how far it can be trusted."""

    noise: list[tuple[Feed, dict[str, _Noise]]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    failure: str = ""
    refused: set[str] = field(default_factory=set)  # feeds it refuses once onnxruntime has optimised it

    def those(self, quality: Callable[[_Noise], bool]) -> list[str]:
        return sorted({name for _, noise in self.noise for name, entry in noise.items() if quality(entry)})


def _ask(model: Model, parsed: ir.Model, feeds: Sequence[Feed], seed: int, tell: Progress) -> _Answers:
    answers, rng = _Answers(), np.random.default_rng(seed)
    declared = {v.name or "": _declared(v) for v in parsed.graph.outputs}
    tell("running the original")
    try:
        source = source_of(model, parsed)
        session = Session(source, False)
    except Exception as error:  # onnxruntime's exceptions share no base of their own
        answers.failure = f"onnxruntime cannot load the original: {_line(error)}"
        return answers
    for feed in feeds:
        try:
            results = session.run(feed.inputs)
        except Exception as error:
            answers.dropped.append(f"{feed.name}: {_line(error)}")
            continue
        noise = {n: _Noise(a, _kept(a, declared.get(n), feed)) for n, a in results.items()}
        answers.noise.append((feed, noise))
        _again(session, feed.inputs, noise, _Noise.repeated)
        floats = {n: _nudge(a, rng) for n, a in feed.inputs.items() if _is_float(a) and a.dtype.itemsize > 1}
        if floats:
            _again(session, {**feed.inputs, **floats}, noise, _Noise.nudged)
    if not answers.noise:
        answers.failure = f"the original runs on no feed: {''.join(answers.dropped[:1]) or 'none was given'}"
        return answers
    for name in answers.those(lambda entry: entry.random):
        for _, noise in answers.noise:
            noise[name].random = True  # on one feed, so on all
    del session  # one at a time: large weights are in memory once
    weights = _moved_weights(parsed, rng)
    if weights:
        tell("measuring rounding: weights moved by one unit in the last place")
        session = Session(source, False, weights)
        for feed, noise in answers.noise:
            _again(session, feed.inputs, noise, _Noise.nudged)
        del session
    tell("measuring rounding: onnxruntime's optimisations on")
    try:
        session = Session(source, True)
    except Exception:  # onnxruntime's optimisers have bugs of their own
        answers.refused = {feed.name for feed, _ in answers.noise}
        return answers
    ran = {f.name for f, noise in answers.noise if _again(session, f.inputs, noise, _Noise.optimised)}
    answers.refused = {feed.name for feed, _ in answers.noise} - ran
    return answers


def _again(session: Session, inputs: Mapping[str, Array], noise: Mapping[str, _Noise], note: Note) -> bool:
    """Run once more to widen the picture; False if the model refuses, which is no verdict on anything."""
    try:
        results = session.run(inputs)
    except Exception:
        return False
    for name, entry in noise.items():
        note(entry, results[name])
    return True


def _judge(
    feed: Feed, noise: Mapping[str, _Noise], got: Mapping[str, Array], runtime: str
) -> tuple[list[Mismatch], float]:
    found, largest = list[Mismatch](), 0.0
    for name in [n for n in noise if n in got]:  # a lost output is a difference of the interface
        entry, make = noise[name], partial(Mismatch, feed.name, name, runtime=runtime)
        mismatch, distance = _compare(entry, entry.want, got[name], make)
        if mismatch is not None and runtime == "on" and entry.reference is not None:
            # what onnxruntime does to the original as well is not the optimised model's fault
            again, closer = _compare(entry, entry.reference, got[name], make)
            mismatch, distance = (None, closer) if again is None else (mismatch, distance)
        largest = max(largest, distance)
        if mismatch is not None:
            found.append(mismatch)
    return found, largest


def verify(
    original: Model, optimised: Model, *, feeds: Sequence[Feed] | None = None, seed: int = 0,
    dims: Dims | None = None, strict: bool = False, progress: Progress | None = None,
) -> Verification:
    """Compare an optimised model with the original on `feeds`, by default those of `make_feeds`.

    Integers, booleans and strings must be equal, floats within a tolerance measured per output and feed (see
    the module), NaN and infinities in the same places. Where a feed's `pad_mask` marks padding, any finite
    value will do, unless `strict`. With onnxruntime's optimisations on, the optimised model may instead agree
    with the original run the same way. Names, order, types and declared dims of inputs and outputs count too.

    Both models run in this process, one session at a time. Raises ModelError for an unreadable model or an
    unknown dim; what onnxruntime raises becomes a `Mismatch` ("error"), a dropped feed or `skipped`.
    """
    tell = progress or (lambda message: None)
    before, after = read_model(original), read_model(optimised)
    mismatches = _interface(before, after)
    feeds = make_feeds(before, seed=seed, dims=dims) if feeds is None else feeds
    if strict:
        feeds = [replace(feed, pad_mask=None) for feed in feeds]
    answers = _ask(original, before, feeds, seed, tell)
    if answers.failure:
        return Verification(False, 0, 0.0, mismatches, answers.failure, [], answers.dropped)
    runs, largest = 0, 0.0
    for runtime in ("off", "on"):
        tell(f"running the optimised model, onnxruntime's optimisations {runtime}")
        excused = answers.refused if runtime == "on" else set[str]()
        try:
            session = Session(source_of(optimised, after), runtime == "on")
        except Exception as error:
            if len(excused) < len(answers.noise):
                mismatches.append(Mismatch("", "", "error", "loads", _line(error), runtime=runtime))
            continue
        for feed, noise in answers.noise:
            try:
                results = session.run(feed.inputs)
            except Exception as error:
                if feed.name not in excused:
                    mismatches.append(Mismatch(feed.name, "", "error", "runs", _line(error), runtime=runtime))
                continue
            found, distance = _judge(feed, noise, results, runtime)
            mismatches += found
            runs, largest = runs + 1, max(largest, distance)
        del session
    random = answers.those(lambda entry: entry.random)
    shaky = answers.those(lambda entry: not entry.random and entry.ill_conditioned())
    return Verification(not mismatches, runs, largest, mismatches, "", random, answers.dropped, shaky)
