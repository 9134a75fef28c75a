"""Which of the best graphs is the fastest on this machine: measured, not predicted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import onnxruntime

from .egraph.budget import Budget, Limits
from .egraph.engine.rule import Rule
from .egraph.errors import EGraphError, TargetError
from .egraph.targets import CostModel, Target
from .egraph.targets import target as find_target
from .lowering.files.load import Source
from .lowering.measure.race import Interval, Standing, Timed, feeds_at, race
from .lowering.verify.feeds import read_model
from .lowering.verify.session import CPU, Session, source_of
from .lowering.workload import Sizes, Workload, workloads
from .optimize import saturate
from .result import Result
from .run import Progress
from .settings import Libraries

_INPUT, _AGAIN = "input", "input again"
#: What a graph must win by to be taken instead of the one that is predicted to be the fastest, which is the simpler.
_MARGIN = 0.02


@dataclass(frozen=True, slots=True)
class Timing:
    """A model that was run: CPU seconds of a run at each workload, and how many times as fast as the input it is, at
    each and over all, with the interval in which that lies with a probability of 95 %.
    """

    name: str
    seconds: tuple[float, ...]
    speeds: tuple[Interval, ...]
    speed: Interval


@dataclass(frozen=True, slots=True)
class Tuned:
    """The fastest: `result` is it, and `winner` its name among the `timings`; the input itself where nothing is faster.

    `settings` are entries of a session's configuration that it was fastest with, `noise` is how far the input is from
    itself: the larger bound of its second entry's interval.
    """

    result: Result[Any]
    winner: str
    workloads: tuple[str, ...]
    timings: tuple[Timing, ...]
    noise: float
    settings: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1

    def session_options(self) -> onnxruntime.SessionOptions:
        """Options with which the model ran as it was measured."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        for key, value in self.settings.items():
            options.add_session_config_entry(key, value)
        return options

    def text(self) -> str:
        """A line for each model, the fastest first."""
        lines = [f"{'':24}" + "".join(f" {name[:12]:>12}" for name in self.workloads) + "    speed      interval"]
        for t in sorted(self.timings, key=lambda t: -t.speed.value):
            seconds = "".join(f" {1e3 * s:9.3f} ms" for s in t.seconds)
            mark = "*" if t.name == self.winner else " "
            lines.append(
                f"{mark}{t.name[:23]:23}{seconds} {t.speed.value:8.3f}  [{t.speed.low:.3f}, {t.speed.high:.3f}]"
            )
        lines.append(f"the input differs from itself by up to {self.noise:.1%}")
        return "\n".join(lines)


def tune(
    model: Source,
    *,
    dims: Sizes = None,
    candidates: int = 4,
    seconds: float = 60.0,
    settings: Iterable[Mapping[str, str]] = (),
    threads: int = 1,
    cost: CostModel | None = None,
    rules: Iterable[Rule] | None = None,
    disable: Iterable[str] = (),
    target: str | Target = "cpu",
    limits: Limits | None = None,
    strict: bool = False,
    verify: bool = False,
    custom_ops: Libraries = (),
    progress: Progress | None = None,
) -> Tuned:
    """Take the best graphs out of the space of a model, run them and the model in turn, and keep the fastest.

    dims: the workloads, as for `saturate_and_extract`. candidates: how many graphs are run beside the model.
    seconds: wall time for running them, at most; saturation comes before it, under `limits`. settings: configurations
    of a session to be tried too, such as {"session.set_denormal_as_zero": "1"}. threads: those of one node. The other
    arguments are those of `saturate_and_extract`. What is measured is CPU time; `Tuned.text` is a table.

    A graph is kept only if it is faster than the model over all workloads, weighed, beyond chance, and slower by more
    than 2 % at none. Raises what `saturate_and_extract` raises, and ModelError where no inputs fit a workload.
    """
    wanted, tell = workloads(dims), progress or (lambda stage: None)
    if isinstance(candidates, bool) or not isinstance(candidates, int) or candidates < 1:
        raise EGraphError(f"candidates is {candidates!r}; how many graphs are to be run, from 1 up, is wanted")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise EGraphError(f"seconds is {seconds!r}; a number above 0 is wanted")
    where = find_target(target) if isinstance(target, str) else target
    if where.provider != CPU:
        raise TargetError(f"target {where.name!r} runs on {where.provider}; what is timed here runs on {CPU}")
    source = os.fspath(model) if isinstance(model, os.PathLike) else model
    feeds = feeds_at(source, wanted)
    space = saturate(
        model, rules=rules, disable=disable, target=target, limits=limits, strict=strict, custom_ops=custom_ops,
        progress=progress,
    )  # fmt: skip
    best = [(run, result) for run, result in space.runs(candidates, cost, wanted) if not result.report.unchanged]
    results = {f"graph {k}": made for k, made in enumerate(best, 1)}
    tell(f"timing {len(results) + 1} models, for {seconds:g} s at most")
    libraries = [custom_ops] if isinstance(custom_ops, str | os.PathLike) else [*custom_ops]
    begin = partial(Session, optimize=True, libraries=[os.fspath(each) for each in libraries], threads=threads)
    original = source_of(source, read_model(source))
    entries: dict[str, Callable[[], Timed]] = {name: partial(begin, original) for name in (_INPUT, _AGAIN)}
    made: dict[str, tuple[str, Mapping[str, str]]] = {_INPUT: ("", {})}
    for name, (_, result) in results.items():
        optimized = source_of(result._ir, result._ir)
        for given in ({}, *settings):
            title = name + "".join(f", {key.rpartition('.')[2]}={value}" for key, value in given.items())
            made[title] = name, given
            entries[title] = partial(begin, optimized, entries=given)
    weights = [w.weight for w in wanted]
    standings = {s.name: s for s in race(entries, feeds, weights, Budget(Limits(seconds=seconds)), tell, _MARGIN)}
    noise = standings.pop(_AGAIN).speed(weights).off
    winner = _winner(list(standings.values()), weights)
    graph, given = made[winner]
    timings = [_timing(s, wanted, weights) for s in standings.values()]
    kept = space.unchanged("no graph was faster than the model by more than chance")
    if graph:
        run, kept = results[graph]
        if verify:
            space.verify(run, kept, cost, wanted)
    return Tuned(kept, winner, tuple(w.name for w in wanted), tuple(timings), noise, given, threads)


def _timing(standing: Standing, wanted: Sequence[Workload], weights: Sequence[float]) -> Timing:
    places = range(len(wanted))
    return Timing(
        standing.name, tuple(map(standing.seconds_at, places)), tuple(map(standing.speed_at, places)),
        standing.speed(weights),
    )  # fmt: skip


def _winner(standings: Sequence[Standing], weights: Sequence[float]) -> str:
    """The fastest that is surely faster than the input and nowhere slower by more than the margin; the first of those
    that are not told apart by it.
    """
    places = range(len(weights))
    sure = [
        s for s in standings
        if s.name != _INPUT and s.speed(weights).low > 1 and all(s.speed_at(k).value >= 1 - _MARGIN for k in places)
    ]  # fmt: skip
    best = max((s.speed(weights).value for s in sure), default=1.0)
    return next((s.name for s in sure if s.speed(weights).value >= best * (1 - _MARGIN)), _INPUT)
