"""The command line: `onnx-egraph optimize | explain | calibrate | experiment | rules`.

Parsing, progress and printing; no more.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import math
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from .egraph.budget import Limits
from .egraph.errors import EGraphError, ModelError, one_line
from .egraph.explanation.explain import Derivation
from .egraph.targets import CostModel
from .lowering.files.save import destination, identity
from .lowering.workload import from_file
from .report import Report

# Plain help and plain tracebacks: the same text on a terminal, in a log and in the README.
app = typer.Typer(
    name="onnx-egraph", rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False,
    no_args_is_help=True,
)  # fmt: skip

#: Seconds in which cleaning up is done.
_MOMENT = 2.0


class CostName(StrEnum):
    """Cost models that have a name."""

    ROOFLINE = "roofline"
    MEASURED = "measured"


ModelArgument = Annotated[
    Path, typer.Argument(metavar="MODEL", exists=True, dir_okay=False, help="The ONNX file to read.")
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Demand equal numbers in rows that a mask hides entirely, too.")
]
DisableOption = Annotated[
    list[str] | None, typer.Option("--disable", metavar="RULE", help="Leave a rule out. Repeatable.")
]
TargetOption = Annotated[str, typer.Option(metavar="NAME", help="Where the model will run.")]
DimOption = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        metavar="NAME=VALUES",
        help="Sizes of a symbolic dimension to compute costs at, e.g. seq=1,512. Repeatable.",
    ),
]
WorkloadsOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE.toml", help="What the model is run on, to compute costs at, instead of --dim."),
]
CostOption = Annotated[
    CostName, typer.Option(help="What prices operators: the target's own figures, or a table that calibrate made.")
]
TableOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The table of measured prices.  [default: this machine's, in the user's cache]"),
]
IterationsOption = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Stop the saturation of each graph after N rounds.")
]
TuplesOption = Annotated[int | None, typer.Option(metavar="N", min=1, help="Let no e-graph grow much beyond N tuples.")]
TimeOption = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0.001,
        help="Give the best graph found in this time, verification included; such a result may not be reproducible.",
    ),
]
QuietOption = Annotated[bool, typer.Option("-q", "--quiet", help="Show no progress, and of optimize no report.")]


def main() -> None:
    """Entry point of the console script. Exit status: 0 done, 1 an error it knows, 2 wrong usage, 128 + the number of
    a signal.
    """
    if threading.current_thread() is threading.main_thread():
        _unwind_on_signals()
    for stream in (sys.stdout, sys.stderr):
        # Names in a model may hold any character, and the console may know few of them.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app()


def _unwind_on_signals() -> None:
    """SIGINT, SIGTERM and SIGHUP end the program as an exception does, so that nothing of it stays on the disk.

    Those the caller has set to be ignored, as nohup does, still are. More of them within a moment of the first,
    such as from an impatient hand, do not interrupt the cleaning up.
    """
    last = -math.inf

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal last
        if time.monotonic() - last > _MOMENT:
            last = time.monotonic()
            raise SystemExit(128 + number)

    for number in (signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, end)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"onnx-egraph {importlib.metadata.version('onnx-egraph')}")
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Equality saturation for ONNX models."""


def _settings(
    disable: list[str] | None, target: str, cost: CostName, table: Path | None, dim: list[str] | None,
    workloads: Path | None, iterations: int | None, tuples: int | None, seconds: float | None, strict: bool,
) -> dict[str, Any]:  # fmt: skip
    """What `optimize` and `explain` both hand on. Raises typer.BadParameter, EGraphError."""
    if workloads is not None and dim:
        raise typer.BadParameter("give --dim or --workloads, not both", param_hint="--workloads")
    sizes = parse_dims(dim) if workloads is None else from_file(workloads)
    stop = limits(iterations, tuples, seconds)
    off = tuple(disable or ())
    prices = _prices(cost, table, target)
    return {"disable": off, "target": target, "cost": prices, "dims": sizes, "limits": stop, "strict": strict}


def _prices(cost: CostName, table: Path | None, target: str) -> CostModel | None:
    """The cost model of a name. Raises typer.BadParameter for a table that it does not use, TableError, TargetError."""
    if cost is CostName.ROOFLINE:
        if table is not None:
            raise typer.BadParameter("a table is for --cost measured", param_hint="--table")
        return None
    from . import Measured, Roofline, Table
    from . import target as find_target

    return Measured(Table.read(table), Roofline(find_target(target).prices))


@app.command()
def optimize(
    model: ModelArgument,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="OUT", help="The file to write.")],
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Run both models and compare their numbers.")
    ] = True,
    strict: StrictOption = False,
    disable: DisableOption = None,
    target: TargetOption = "cpu",
    cost: CostOption = CostName.ROOFLINE,
    table: TableOption = None,
    dim: DimOption = None,
    workloads: WorkloadsOption = None,
    custom_ops: Annotated[
        list[Path] | None,
        typer.Option(metavar="LIBRARY", help="A library of operators for onnxruntime to verify with. Repeatable."),
    ] = None,
    tune: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.1,
            help="Run the best graphs and MODEL in turn, for so long at most, and write the fastest.",
        ),
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Also write the report, as JSON.")] = None,
    iterations: IterationsOption = None,
    max_tuples: TuplesOption = None,
    time_limit: TimeOption = None,
    quiet: QuietOption = False,
) -> None:
    """Optimize MODEL, compare the numbers of both models, write OUT, and say what was fused."""
    from . import saturate_and_extract
    from . import tune as run_in_turn

    timings = ""
    with known_errors(), progress_on_stderr(quiet) as progress:
        settings = _settings(disable, target, cost, table, dim, workloads, iterations, max_tuples, time_limit, strict)
        # better said before the work than after it
        for option, path, others in (("--output", output, [model]), ("--report", report, [model, output])):
            if path is not None:
                destination(path)
                refuse_overwrite(option, path, *others)
        settings |= {"verify": verify, "custom_ops": tuple(custom_ops or ()), "progress": progress}
        if tune is None:
            result = saturate_and_extract(model, **settings)
        else:
            tuned = run_in_turn(model, seconds=tune, **settings)
            result, timings = tuned.result, tuned.text()
        progress(f"writing {output}")
        result.save(output, report=report)
    if result.report.verified is False:
        typer.echo(one_line(f"warning: {result.report.verification}"), err=True)
    if not quiet:
        typer.echo("\n".join(filter(None, [timings, result.report.text()])))
        typer.echo("what was not fused, and why: onnx-egraph explain")
        typer.echo(one_line(f"wrote {output}"))


@app.command()
def explain(
    model: ModelArgument,
    node: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only what concerns this node or value, of the model or of the result."),
    ] = None,
    strict: StrictOption = False,
    disable: DisableOption = None,
    target: TargetOption = "cpu",
    cost: CostOption = CostName.ROOFLINE,
    table: TableOption = None,
    dim: DimOption = None,
    workloads: WorkloadsOption = None,
    iterations: IterationsOption = None,
    max_tuples: TuplesOption = None,
    time_limit: TimeOption = None,
    quiet: QuietOption = False,
) -> None:
    """Say what would be fused in MODEL and by which rules, and what would not and why. Writes nothing."""
    from . import saturate

    with known_errors(), progress_on_stderr(quiet) as progress:
        settings = _settings(disable, target, cost, table, dim, workloads, iterations, max_tuples, time_limit, strict)
        chosen = {key: settings.pop(key) for key in ("cost", "dims")}
        space = saturate(model, **settings, progress=progress)
        result = space.extract(**chosen)
        found = None if node is None else result.find(node)
        if node is not None and not found and not result.knows(node):
            raise ModelError(f"neither the model nor the result has a node or value named {node!r}")
        result.near_misses(progress)
        progress("replaying the rules")
        lines = list(explanation(result.report, found, node, result.explain))
        if node is not None:
            with contextlib.suppress(ModelError):  # nothing to choose from: the node is gone, or was not looked at
                lines += [f"could be: {one}" for one in space.alternatives(node, **chosen)]
    for line in lines:
        typer.echo(one_line(line))


@app.command()
def calibrate(
    models: Annotated[
        list[Path], typer.Argument(metavar="MODEL", exists=True, dir_okay=False, help="The ONNX files to read.")
    ],
    target: TargetOption = "cpu",
    table: TableOption = None,
    dim: DimOption = None,
    time_limit: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0.001, help="Stop after this time; the next run goes on.")
    ] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Show no progress.")] = False,
) -> None:
    """Measure what the operators take, on this machine, that the MODELs may be made of.

    What is in the table already is not measured again. For optimize --cost measured.
    """
    from . import Measured
    from . import calibrate as measure

    with known_errors(), progress_on_stderr(quiet) as progress:
        sizes = parse_dims(dim)
        filled = measure(models, dims=sizes, target=target, table=table, seconds=time_limit, progress=progress)
        progress("checking the table")
        errors = Measured(filled).errors()
    error = f"{statistics.median(errors):.0%}" if len(errors) > 1 else "unknown"
    typer.echo(
        one_line(
            f"{filled.added} operators measured, {len(filled.entries)} in all; {filled.left} left to be predicted"
            f" ({filled.unfit} of them cannot run alone); error of predictions {error} (median, each left out in turn);"
            f" table: {filled.path}"
        )
    )


@app.command()
def experiment(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE.toml", exists=True, dir_okay=False, help="Says what is compared; see the README."),
    ],
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the rows as CSV.")] = None,
    parquet: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the rows as Parquet.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a page with plots.")] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Show no progress.")] = False,
) -> None:
    """Compare what cost models say with what is measured: models x cost models x targets x workloads.

    Prints predicted and measured times of the graphs that the cost models choose, and how far each is right.
    """
    from . import Experiment
    from . import experiment as conduct
    from .experiments.findings import parquet_library

    with known_errors(), progress_on_stderr(quiet) as progress:
        plan = Experiment.read(file)
        written = [("--csv", csv), ("--parquet", parquet), ("--html", html)]
        taken = [file, *(plan.path(str(model)) for model in plan.models)]
        for option, path in written:  # better said before the work than after it
            if path is not None:
                destination(path)
                refuse_overwrite(option, path, *taken)
                taken.append(path)
        if parquet is not None:
            parquet_library()
        findings = conduct(plan, progress=progress)
        findings.save(csv=csv, parquet=parquet, html=html)
    for line in findings.text().splitlines():
        typer.echo(one_line(line))
    for model, failure in findings.failures.items():
        typer.echo(one_line(f"error: model {model}: {failure}"), err=True)
    if findings.failures:
        raise typer.Exit(1)


@app.command()
def rules(
    contract: Annotated[
        bool, typer.Option("--contract", help="Also print each rule's numeric contract and what it assumes.")
    ] = False,
) -> None:
    """List the rules: name and law, which is an equation over arrays."""
    from .rules import ALL

    names = max(len(rule.name) for rule in ALL)
    for rule in ALL:
        promise = ", assumes ".join([rule.contract, *rule.assumes])
        typer.echo(f"{rule.name:{names}}  {rule.law}" + (f"  [{promise}]" if contract else ""))


def parse_dims(options: list[str] | None) -> dict[str, int | list[int]] | None:
    """`["batch=1", "seq=1,512"]` as `{"batch": 1, "seq": [1, 512]}`; None when there are none.

    The name is all before the last "=", since a model may name a dimension anything.
    Raises typer.BadParameter for anything but positive integers, and for a name given twice.
    """
    if not options:
        return None
    dims: dict[str, int | list[int]] = {}
    for option in options:
        name, equals, text = option.rpartition("=")
        values = [int(v) if v.strip().isdecimal() else 0 for v in text.split(",")]
        if not equals or not name or min(values) < 1:
            raise typer.BadParameter(f"{option!r} is not NAME=VALUES, such as batch=1 or seq=1,512", param_hint="--dim")
        if name in dims:
            raise typer.BadParameter(
                one_line(f"{name!r} is given twice; write {name}=1,2 for two sizes"), param_hint="--dim"
            )
        dims[name] = values[0] if len(values) == 1 else values
    return dims


def explanation(
    report: Report, found: list[str] | None, node: str | None, derive: Callable[[str], Derivation]
) -> Iterator[str]:
    """One line per fused operator with the rules that lead to it, and per near miss with its reason.

    `found` keeps the fused operators of those names, `node` the near misses that mention it. The first operator
    of each chain of rules is followed by its derivation.
    """
    fused = [f for f in report.fused if found is None or f.node in found]
    missed = [m for m in report.missed if node is None or node in m]
    first: dict[tuple[str, tuple[str, ...]], str] = {}
    for f in fused:
        made = derive(f.node)
        yield f"fused: {f.node}: {f.op} by {', '.join(made.rules if made.complete else f.rules)}"
        if first.setdefault((f.op, made.rules), f.node) == f.node:
            yield from made.text().splitlines()
    yield from (f"not fused: {m}" for m in missed)
    if not fused and not missed:
        yield f"no rule fuses anything{f' at {node}' if node else ''}, and none comes near to it"
    if report.limits:
        yield f"stopped early: {report.stop}"
    if report.unchanged:
        yield f"unchanged: {report.unchanged}"
    if node is None:
        yield from (f"assumes: {a}" for a in report.assumptions)


def limits(iterations: int | None, tuples: int | None, seconds: float | None) -> Limits | None:
    """The library's defaults with the given ones replaced; None when none is given."""
    if iterations is None and tuples is None and seconds is None:
        return None
    default = Limits()
    return Limits(iterations or default.iterations, tuples or default.tuples, seconds or default.seconds)


def refuse_overwrite(option: str, path: Path, *others: Path) -> None:
    """Raises typer.BadParameter if `path` is one of `others`, through whatever link."""
    for other in others:
        if identity(path) == identity(other):
            raise typer.BadParameter(one_line(f"{path} would overwrite {other}"), param_hint=option)


@contextlib.contextmanager
def known_errors() -> Iterator[None]:
    """An EGraphError becomes one line on stderr and exit status 1. Anything else is a bug: a traceback."""
    try:
        yield
    except EGraphError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from error


@contextlib.contextmanager
def progress_on_stderr(quiet: bool) -> Iterator[Callable[[str], None]]:
    """A function to call with the name of each stage: one live line on a terminal, else a line per stage."""
    if quiet:
        yield lambda stage: None
        return
    console = Console(stderr=True)
    if console.is_terminal:
        with console.status("starting") as status:
            # Text, because a name in brackets would be read as markup.
            yield lambda stage: status.update(Text(one_line(stage)))
        return
    start = time.monotonic()
    yield lambda stage: typer.echo(f"{time.monotonic() - start:7.2f} s  {one_line(stage)}", err=True)
