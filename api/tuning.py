"""Which of the best graphs is the fastest on this machine: measured, not predicted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import onnxruntime

from .calibrate import calibrate
from .egraph.budget import Budget, Limits
from .egraph.engine.rule import Rule
from .egraph.errors import EGraphError, OutputError, TargetError
from .egraph.targets import CostModel, Target
from .egraph.targets import target as find_target
from .lowering.files.load import Source
from .lowering.files.save import Named
from .lowering.measure.measured import Measured
from .lowering.measure.race import Interval, Standing, Timed, feeds_at, race
from .lowering.measure.table import Table
from .lowering.verify.feeds import read_model
from .lowering.verify.session import CPU, Session, source_of
from .lowering.workload import Sizes, Workload, workloads
from .optimize import saturate
from .result import Result
from .run import Progress, Run
from .settings import Libraries, libraries_of
from .space import Space

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
    candidates: int = 6,
    seconds: float = 60.0,
    table: Table | Named | None = None,
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

    dims: the workloads, as for `saturate_and_extract`. candidates: how many graphs are run beside the model: the best
    over all workloads, the best at each alone, then the next ones, by the `cost` given; by default by prices measured
    here in a third of the time, and by those of the target. table: where measured prices are kept, as for `calibrate`.
    seconds: wall time for measuring, at most; saturation comes before it, under `limits`. settings: configurations
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
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 0:
        raise EGraphError(
            f"threads is {threads!r}; how many are to run a node, or 0 for onnxruntime's choice, is wanted"
        )
    tried = _settings(settings)
    where = find_target(target)
    if where.provider != CPU:
        raise TargetError(f"target {where.name!r} runs on {where.provider}; what is timed here runs on {CPU}")
    source = os.fspath(model) if isinstance(model, os.PathLike) else model
    feeds = feeds_at(source, wanted)
    space = saturate(
        model, rules=rules, disable=disable, target=target, limits=limits, strict=strict, custom_ops=custom_ops,
        progress=progress,
    )  # fmt: skip
    start = time.monotonic()
    costs = [cost] if cost is not None else [*_measured(space, wanted, table, seconds / 3, tell), None]
    results = {f"graph {k}": made for k, made in enumerate(_candidates(space, candidates, costs, wanted), 1)}
    left = max(seconds - (time.monotonic() - start), seconds / 3)
    tell(f"timing {len(results) + 1} models, for {left:.3g} s at most")
    begin = partial(Session, optimize=True, libraries=libraries_of(custom_ops), threads=threads)
    original = source_of(source, read_model(source))
    entries: dict[str, Callable[[], Timed]] = {name: partial(begin, original) for name in (_INPUT, _AGAIN)}
    made: dict[str, tuple[str, Mapping[str, str]]] = {_INPUT: ("", {})}
    for name, (_, result) in results.items():
        optimized = source_of(result._ir, result._ir)
        for given in tried:
            title = name + "".join(f", {key.rpartition('.')[2]}={value}" for key, value in given.items())
            title = f"{name}, {dict(given)}" if title in made else title
            made[title] = name, given
            entries[title] = partial(begin, optimized, entries=given)
    weights = [w.weight for w in wanted]
    standings = {s.name: s for s in race(entries, feeds, weights, Budget(Limits(seconds=left)), tell, _MARGIN)}
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


def _measured(
    space: Space, wanted: Sequence[Workload], table: Table | Named | None, seconds: float, tell: Progress
) -> list[CostModel]:
    """Prices measured here; none where no table was asked for and that of the machine cannot be kept."""
    try:
        return [Measured(calibrate(space, dims=wanted, table=table, seconds=seconds, progress=tell))]
    except OutputError as error:
        if table is not None:
            raise
        tell(f"prices are not measured: {error}")
        return []


def _candidates(
    space: Space, count: int, costs: Sequence[CostModel | None], wanted: Sequence[Workload]
) -> list[tuple[Run, Result[Any]]]:
    """The best graphs over all workloads, at each alone, and the next ones over all, by each cost model, each once."""
    alone = [[workload] for workload in wanted] if len(wanted) > 1 else []
    calls = [*((1, cost, points) for points in (wanted, *alone) for cost in costs)]
    calls += [(count, cost, wanted) for cost in costs if count > 1]
    found: dict[Hashable, tuple[Run, Result[Any]]] = {}
    for number, cost, points in calls:
        for run, result in space.runs(number, cost, points) if len(found) < count else ():
            if not result.report.unchanged:
                found.setdefault(result.drawn(), (run, result))
    return [*found.values()][:count]


def _settings(given: object) -> list[Mapping[str, str]]:
    """The configurations to be tried, none first. Raises EGraphError for what is none."""
    found: list[Any] = list(given) if isinstance(given, Iterable) and not isinstance(given, str | Mapping) else [given]
    for each in found:
        texts = [text for entry in each.items() for text in entry] if isinstance(each, Mapping) else [None]
        if each is given or not all(isinstance(text, str) for text in texts):
            raise EGraphError(
                f'settings has {each!r}; a list of such as {{"session.set_denormal_as_zero": "1"}} is wanted'
            )
    return [{}, *found]


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
