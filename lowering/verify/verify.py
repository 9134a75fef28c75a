"""Numeric verification: the optimized model against the original, both in onnxruntime.

The original runs with onnxruntime's own optimizations off, the optimized model with them off and on. How far
two right answers may lie apart is measured, not chosen: the original runs again with its float inputs and its
weights moved by one unit in the last place, and with onnxruntime's optimizations on (see compare.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import onnx_ir as ir

from ...egraph.budget import LimitReached
from ..declared import OWN
from ..model.operators import WEIGHTS
from ..model.tensors import elements
from .compare import FEW, Declared, Mask, Mismatch, Noise, compare, is_float, nudge, real_tokens, settle, widened
from .feeds import Array, Feed, Feeder, Given, Model, make_feeds, read_model
from .inputs import Dims
from .runtime import DOING, Runner, Runtime
from .session import CPU, NotImplementedHere, reason
from .trace import Trace
from .unfused import for_cpu

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Verification:
    """The outcome; `ok` needs an output that could be compared, and no mismatch.

    `runs` counts the runs of the optimized model that were compared, `max_abs` is the largest difference
    between compared floats. `skipped` says why nothing could be compared, or is empty. `dropped` lists the feeds
    that could not be used, each with the reason; `unused` does so for sizes the caller asked for. Outputs that agree
    without that meaning anything are listed, too:
    `excluded`, as two equal runs of the original differ, `blank`, which hold no number on any feed, and
    `ill_conditioned`, most of whose numbers rounding alone changes beyond use. `origins` says of the first two kinds
    which node makes them so.
    """

    ok: bool
    runs: int
    max_abs: float
    mismatches: list[Mismatch]
    skipped: str = ""
    excluded: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    ill_conditioned: list[str] = field(default_factory=list)
    blank: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    origins: Mapping[str, str] = field(default_factory=dict)


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
        if float(np.max(np.abs(widened(array)))) < 1e4:  # a mask's minus infinity is no weight
            moved[name] = nudge(array, rng)
    return moved


Note = Callable[[Noise, Array], None]


def _declared(value: ir.Value) -> Declared:
    return None if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]


def _interface(original: ir.Model, optimized: ir.Model) -> list[Mismatch]:
    found: list[tuple[str, object, object]] = []
    sides: list[tuple[str, list[ir.Value], list[ir.Value]]] = [
        ("inputs", _given(original), _given(optimized)),
        ("outputs", list(original.graph.outputs), list(optimized.graph.outputs)),
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


_ROUNDS = 8


@dataclass
class _Answers:
    """What the original says: per feed and output its answer and how far it can be trusted."""

    noise: list[tuple[Feed, dict[str, Noise]]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    failure: str = ""
    refused: set[str] = field(default_factory=set)  # feeds it refuses once onnxruntime has optimized it

    def those(self, quality: Callable[[Noise], bool]) -> list[str]:
        return sorted(name for name, entries in self.outputs().items() if any(map(quality, entries)))

    def count(self, quality: Callable[[Noise], Mask]) -> dict[str, int]:
        """How many elements of each output have a quality, over all feeds."""
        return {name: sum(int(quality(e).sum()) for e in entries) for name, entries in self.outputs().items()}

    def rounds(self) -> int:
        """How often each feed's inputs are to be moved, so that every channel is seen often enough."""
        rows = [sum(entry.rows for entry in entries) for entries in self.outputs().values()]
        return max(1, min(_ROUNDS, -(-FEW // max(1, min(rows, default=1)))))

    def settled(self) -> _Answers:
        for entries in self.outputs().values():
            settle(entries)
        return self

    def outputs(self) -> dict[str, list[Noise]]:
        """Each output's noise on the feeds that have it; a sequence may be shorter on some."""
        found: dict[str, list[Noise]] = {}
        for name, entry in ((n, e) for _, noise in self.noise for n, e in noise.items()):
            found.setdefault(name, []).append(entry)
        return found


class _Asking:
    """The original, asked one feed after the other."""

    def __init__(self, session: Runner, parsed: ir.Model, answers: _Answers, strict: bool) -> None:
        self._session, self._answers, self._strict = session, answers, strict
        self._declared = {v.name or "": _declared(v) for v in parsed.graph.outputs}

    def refusal(self, feed: Feed) -> str:
        """Enter what the original answers; or else why it does not."""
        feed = replace(feed, pad_mask=None) if self._strict else feed
        try:
            results = self._session.run(feed.inputs)
        except Exception as error:  # onnxruntime's exceptions share no base of their own
            return f"{feed.name}: {reason(error)}"
        noise = {n: Noise(a, real_tokens(a, self._declared.get(n), feed)) for n, a in results.items()}
        self._answers.noise.append((feed, noise))
        _again(self._session, feed, noise, Noise.repeated)
        return ""

    def all(
        self, feeds: Iterable[Feed | str], instead: Callable[[Feed], Iterable[Feed | str]] | None = None
    ) -> list[str]:
        """Ask them all; why some are of no use."""
        refused = list[str]()
        for feed in feeds:
            why = feed if isinstance(feed, str) else self.refusal(feed)
            if why and not isinstance(feed, str) and instead is not None:
                others = [other for other in instead(feed) if isinstance(other, Feed)]
                why = why if not others or any(map(self.refusal, others)) else ""
            refused += [why] if why else []
        return refused


def _ask_all(
    asking: _Asking, answers: _Answers, model: ir.Model, seed: int, dims: Dims, large: Mapping[str, Sequence[int]],
    strict: bool,
) -> None:  # fmt: skip
    """Ask the usual feeds and those at the caller's large sizes; others where these tell nothing."""
    feeder = Feeder(model, seed, dims, strict=strict)
    refused = asking.all(feeder.usual(), feeder.instead)
    usual = answers.noise[:]
    answers.unused += asking.all(feeder.at(large)) if large else []
    if answers.noise and not usual:
        asking.all(feeder.at(large, throughout=True))
    if not any(answers.count(Noise.numbers).values()):
        for feed, _ in answers.noise[:]:
            asking.all(feeder.instead(feed))
    answers.dropped += refused
    for offered in feeder.spare() if not answers.noise else ():
        if isinstance(offered, Feed) and not asking.refusal(offered):
            asking.all(feeder.like(offered))
            break


def _ask(
    runtime: Runtime, model: Model, parsed: ir.Model, ask: Callable[[_Asking, _Answers], None], strict: bool, seed: int,
    tell: Progress,
) -> _Answers:  # fmt: skip
    answers, rng = _Answers(), np.random.default_rng(seed)
    tell("running the original")
    try:
        session = runtime.open(model, parsed, False)
    except Exception as error:
        answers.failure = f"onnxruntime cannot load the original: {reason(error)}"
        return answers
    ask(_Asking(session, parsed, answers, strict), answers)
    if not answers.noise:
        first = next(iter(answers.dropped + answers.unused), "none was given")
        answers.failure = f"the original runs on no feed: {first}"
        return answers
    for feed, noise in answers.noise:
        for _ in range(answers.rounds()):
            floats = {n: _nudged(a, rng) for n, a in feed.inputs.items()}
            if any(floats[n] is not a for n, a in feed.inputs.items()):
                _again(session, replace(feed, inputs=floats), noise, Noise.nudged)
    for entries in answers.outputs().values():
        random = any(entry.random for entry in entries)
        for entry in entries:
            entry.random = random  # on one feed, so on all
    del session  # one at a time: large weights are in memory once
    weights = _moved_weights(parsed, rng)
    if weights:
        tell("measuring rounding: weights moved by one unit in the last place")
        session = runtime.open(model, parsed, False, weights)
        for feed, noise in answers.noise:
            _again(session, feed, noise, Noise.nudged)
        del session
    tell("measuring rounding: onnxruntime's optimizations on")
    try:
        session = runtime.open(model, parsed, True)
    except Exception:  # onnxruntime's optimizers have bugs of their own
        answers.refused = {feed.name for feed, _ in answers.noise}
        return answers.settled()
    ran = {f.name for f, noise in answers.noise if _again(session, f, noise, Noise.optimized)}
    answers.refused = {feed.name for feed, _ in answers.noise} - ran
    return answers.settled()


def _nudged(given: Given, rng: np.random.Generator) -> Given:
    if isinstance(given, list):
        return [nudge(a, rng) if is_float(a) and a.dtype.itemsize > 1 else a for a in given]
    return nudge(given, rng) if given is not None and is_float(given) and given.dtype.itemsize > 1 else given


def _again(session: Runner, feed: Feed, noise: Mapping[str, Noise], note: Note) -> bool:
    """Run once more to widen the picture; False if the model refuses, which is no verdict on anything."""
    try:
        results = session.run(feed.inputs)
    except Exception:
        return False
    for name, entry in noise.items():
        if name in results:
            note(entry, results[name])
        else:  # an element of a sequence that is shorter this time
            entry.random = True
    return True


def _judge(
    feed: Feed, noise: Mapping[str, Noise], got: Mapping[str, Array], runtime: str
) -> tuple[list[Mismatch], float]:
    found, largest = list[Mismatch](), 0.0
    for name in noise:
        entry, make = noise[name], partial(Mismatch, feed.name, name, runtime=runtime)
        if name not in got:  # a whole output is a difference of the interface as well
            found.append(make(kind="shape", want=entry.want.shape, got=None))
            continue
        mismatch, distance = compare(entry, entry.want, got[name], make)
        if mismatch is not None and runtime == "on" and entry.reference is not None:
            # what onnxruntime does to the original as well is not the optimized model's fault
            again, closer = compare(entry, entry.reference, got[name], make)
            mismatch, distance = (None, closer) if again is None else (mismatch, distance)
        largest = max(largest, distance)
        if mismatch is not None:
            found.append(mismatch)
    return found, largest


def verify(
    original: Model, optimized: Model, *, feeds: Sequence[Feed] | None = None, seed: int = 0,
    dims: Dims | None = None, large: Mapping[str, Sequence[int]] | None = None, strict: bool = False,
    progress: Progress | None = None, provider: str = CPU, runtime: Runtime | None = None,
) -> Verification:  # fmt: skip
    """Compare an optimized model with the original on `feeds`, by default those of `make_feeds`.

    Integers, booleans and strings must be equal, floats within a tolerance measured per output, feed and index of
    the last axis (see the module), NaN and infinities in the same places. Where a feed's `pad_mask` marks padding,
    any finite value will do, unless `strict`. With onnxruntime's optimizations on, the optimized model may instead
    agree with the original run the same way. Names, order, types and declared dims of inputs and outputs count too.

    Sizes of `dims` hold for every feed; at each of `large` there is one more feed, where memory allows. Where the
    original refuses a feed others are tried. Both models run in this process, one session at a time, on the CPU
    provider; `runtime` adds operators of the caller's. `provider` is the one the optimized model is for: what the CPU
    provider has no kernel for then is no fault, and `skipped` says so. So it does of operators that nothing here has.
    Raises ModelError for an unreadable model, an unknown dim or a library that cannot be loaded; what onnxruntime
    raises becomes a `Mismatch` ("error"), a dropped feed or `skipped`. Where `runtime` has no time for all runs,
    `skipped` says so, and a mismatch found by then counts.
    """
    tell, runtime, mismatches = progress or (lambda message: None), runtime or Runtime(), list[Mismatch]()
    runtime.check()
    try:
        runtime.budget.check(DOING)
        return _compared(
            original, optimized, feeds, seed, dims or {}, large or {}, strict, tell, provider, runtime, mismatches
        )
    except LimitReached as reached:
        return Verification(False, 0, 0.0, mismatches, str(reached))


def _compared(
    original: Model, optimized: Model, feeds: Sequence[Feed] | None, seed: int, dims: Dims,
    large: Mapping[str, Sequence[int]], strict: bool, tell: Progress, provider: str, runtime: Runtime,
    mismatches: list[Mismatch],
) -> Verification:  # fmt: skip
    """As `verify`, with all it needs; differences are added to `mismatches`. Raises LimitReached."""
    before, after = read_model(original), read_model(optimized)
    mismatches += _interface(before, after)
    # that a result has an operator which no onnxruntime has is an error, and found by loading it
    unknown = runtime.unknown(before) or runtime.unknown(after, beside=OWN)
    if unknown:
        return Verification(False, 0, 0.0, mismatches, unknown)

    def ask(asking: _Asking, answers: _Answers) -> None:
        if feeds is None:
            _ask_all(asking, answers, before, seed, dims, large, strict)
        else:
            answers.dropped += asking.all(feeds)

    answers = _ask(runtime, original, before, ask, strict, seed, tell)
    if answers.failure:
        asked = feeds if feeds is not None else make_feeds(before, seed=seed, dims=dims)
        failure = answers.failure + _otherwise(runtime, optimized, after, asked)
        return Verification(False, 0, 0.0, mismatches, failure, [], answers.dropped, unused=answers.unused)
    runs, largest, here = 0, 0.0, for_cpu(after)
    for mode in ("off", "on"):
        tell(f"running the optimized model, onnxruntime's optimizations {mode}")
        excused = answers.refused if mode == "on" else set[str]()
        try:
            session = runtime.open(optimized if here is after else here, here, mode == "on")
        except Exception as error:
            if isinstance(error, NotImplementedHere) and provider != CPU:
                failure = f"not compared: the result needs the {provider} ({reason(error)})"
                return Verification(False, 0, 0.0, mismatches, failure, [], answers.dropped)
            if len(excused) < len(answers.noise):
                mismatches.append(Mismatch("", "", "error", "loads", reason(error), runtime=mode))
            continue
        for feed, noise in answers.noise:
            try:
                results = session.run(feed.inputs)
            except Exception as error:
                if feed.name not in excused:
                    mismatches.append(Mismatch(feed.name, "", "error", "runs", reason(error), runtime=mode))
                continue
            found, distance = _judge(feed, noise, results, mode)
            mismatches += found
            runs, largest = runs + 1, max(largest, distance)
        del session
    random = answers.those(lambda entry: entry.random)
    numbers, sound = answers.count(Noise.numbers), answers.count(Noise.recognizable)
    blank = [n for n in numbers if n not in random and not numbers[n]]
    shaky = [n for n in numbers if n not in (*random, *blank) and 2 * sound[n] < numbers[n]]
    skipped = "" if len(random) + len(blank) + len(shaky) < len(numbers) else "no output can be compared"
    ok = runs > 0 and not mismatches and not skipped
    origins = _origins(runtime, before, answers, random, blank)
    return Verification(
        ok, runs, largest, mismatches, skipped, random, answers.dropped, shaky, blank, answers.unused, origins
    )


def _otherwise(runtime: Runtime, optimized: Model, read: ir.Model, feeds: Sequence[Feed]) -> str:
    """What to add about the optimized model where the original cannot be run: nothing, if it cannot either."""
    try:
        session = runtime.open(optimized, read, False)
        for feed in feeds:
            with suppress(Exception):
                session.run(feed.inputs)
                return f"; the optimized model runs, on {feed.name}"
    except Exception:
        return ""
    return ""


def _origins(
    runtime: Runtime, model: ir.Model, answers: _Answers, random: Sequence[str], blank: Sequence[str]
) -> dict[str, str]:
    """The nodes that make outputs random or blank, as far as they can be found."""
    if not random and not blank:
        return {}
    trace = Trace(runtime, model, min((feed for feed, _ in answers.noise), key=_elements), random)
    found = {n: trace.random(n) for n in random} | {n: trace.blank(n) for n in blank}
    return {name: node for name, node in found.items() if node}


def _elements(feed: Feed) -> int:
    return sum(a.size for a in feed.inputs.values() if isinstance(a, np.ndarray))


__all__ = ["Mismatch", "Verification", "verify"]
