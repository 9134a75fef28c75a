"""The command line, with the library behind it replaced by a recorder; the README tests run the real one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import onnx_egraph
from onnx_egraph import Workload, cli
from onnx_egraph.egraph.engine.saturate import Limits
from onnx_egraph.egraph.errors import EGraphError, ModelError, RuleError, VerificationError
from onnx_egraph.egraph.explanation.explain import Derivation, Step
from onnx_egraph.report import Fused, Report


class FakeReport(Report):
    """A real report, but for its two long forms."""

    def text(self) -> str:
        return "fused 4 rope [markup?] at /layers.0/Add"

    def to_json(self) -> str:
        return json.dumps({"fused": ["né"]}, ensure_ascii=False)


def report() -> FakeReport:
    return FakeReport(
        fused=[
            Fused("/layers.0/Add", "RotaryEmbedding", "main", ("rope-sum", "ms-rope")),
            Fused("/layers.1/Add", "RotaryEmbedding", "main", ("rope-sum",)),
        ],
        missed=["/layers.1/Mul: rope-sum: [x] has rank 5"],
        assumptions=["rows visible"],
    )


@dataclass
class FakeResult:
    report: FakeReport = field(default_factory=report)

    def save(self, path: Path, *, report: Path | None = None) -> None:
        Path(path).write_bytes(b"optimized")
        if report is not None:
            report.write_text(self.report.to_json(), encoding="utf-8")

    def near_misses(self, progress: Callable[[str], None]) -> list[str]:
        progress("looking for near misses in main")
        return self.report.missed

    def knows(self, name: str) -> bool:
        return name in ("/layers.1/Mul", "/kept")

    def find(self, name: str) -> list[str]:
        return [f.node for f in self.report.fused if name in (f.node, f.node.replace("Add", "took-in"))]

    def explain(self, node: str) -> Derivation:
        rules = next(f.rules for f in self.report.fused if f.node == node)
        return Derivation("x + y", tuple(Step(r, "a = b", "a", "b", 1, 0.0) for r in rules), "y", complete=True)


@dataclass
class Library:
    """What the command line asked for; `fails` is raised instead of an answer."""

    calls: list[dict[str, Any]] = field(default_factory=list)
    fails: BaseException | None = None

    def __call__(self, model: Path, *, progress: Callable[[str], None], **options: Any) -> FakeResult:
        self.calls.append({"model": model, **options})
        progress("reading [/x]")
        progress("saturating")
        if self.fails is not None:
            raise self.fails
        return FakeResult()


@dataclass
class FakeSpace:
    """What `explain` takes its result from: asked in two calls, entered as one."""

    ask: Callable[..., FakeResult]

    def extract(self, **options: Any) -> FakeResult:
        return self.ask(**options)

    def alternatives(self, name: str, **options: Any) -> list[str]:
        raise ModelError(f"no value is named {name!r}")


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    recorder = Library()
    monkeypatch.setattr(onnx_egraph, "saturate_and_extract", recorder)
    monkeypatch.setattr(onnx_egraph, "saturate", lambda model, **given: FakeSpace(partial(recorder, model, **given)))
    return recorder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "in.onnx"
    path.write_bytes(b"original")
    return path


def run(*args: str | Path) -> Any:
    return CliRunner().invoke(cli.app, [str(a) for a in args], env={"COLUMNS": "200", "NO_COLOR": "1"})


def test_optimize_writes_and_reports(library: Library, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    done = run("optimize", model, "-o", out)
    assert done.exit_code == 0, done.output
    assert out.read_bytes() == b"optimized"
    assert model.read_bytes() == b"original"
    asked = "what was not fused, and why: onnx-egraph explain"
    assert done.stdout == f"fused 4 rope [markup?] at /layers.0/Add\n{asked}\nwrote {out}\n"
    stages = [line.split(" s  ")[1] for line in done.stderr.splitlines()]
    assert stages == ["reading [/x]", "saturating", f"writing {out}"]
    assert library.calls == [
        {
            "model": model, "disable": (), "target": "cpu", "cost": None, "dims": None, "limits": None,
            "strict": False, "verify": True, "custom_ops": (),
        }
    ]  # fmt: skip


def test_every_option_reaches_the_library(library: Library, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    done = run(
        "optimize", model, "--output", tmp_path / "out.onnx", "--no-verify", "--strict", "--target", "cuda",
        "--disable", "rope", "--disable", "cast-cast", "--dim", "batch=1", "--dim", "seq=1,512",
        "--report", file, "--iterations", "7", "--max-tuples", "1000", "--time-limit", "2.5", "-q",
        "--custom-ops", "a.so", "--custom-ops", "b.so",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert done.output == ""
    assert library.calls == [
        {
            "model": model, "disable": ("rope", "cast-cast"), "target": "cuda", "cost": None,
            "dims": {"batch": 1, "seq": [1, 512]}, "limits": Limits(iterations=7, tuples=1000, seconds=2.5),
            "strict": True, "verify": False, "custom_ops": (Path("a.so"), Path("b.so")),
        }
    ]  # fmt: skip
    assert json.loads(file.read_text(encoding="utf-8")) == {"fused": ["né"]}


def test_workloads_of_a_file_are_handed_on(library: Library, model: Path, tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text("[[workload]]\nname = 'decode'\npast = 7", encoding="utf-8")
    given = ("--workloads", tmp_path / "w.toml")
    assert run("optimize", model, "-o", tmp_path / "out.onnx", *given).exit_code == 0
    assert library.calls[0]["dims"] == [Workload("decode", past=7)]
    both = run("explain", model, *given, "--dim", "seq=3")
    assert both.exit_code == 2
    assert "not both" in both.stderr
    (tmp_path / "w.toml").write_text("workload = 3", encoding="utf-8")
    wrong = run("explain", model, *given)
    assert wrong.exit_code == 1
    assert "tables [[workload]] are wanted" in wrong.stderr


def test_tuned_is_what_is_written(
    library: Library, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Tuned:
        result = FakeResult()

        def text(self) -> str:
            return "graph 2 is the fastest"

    asked: dict[str, Any] = {}
    monkeypatch.setattr(onnx_egraph, "tune", lambda model, **given: asked.update(given) or Tuned())
    done = run("optimize", model, "-o", tmp_path / "out.onnx", "--tune", "2.5", "--no-verify", "--dim", "seq=7")
    assert done.exit_code == 0, done.output
    assert library.calls == []
    assert (asked["seconds"], asked["verify"], asked["dims"]) == (2.5, False, {"seq": 7})
    assert done.stdout.startswith("graph 2 is the fastest\nfused")
    assert (tmp_path / "out.onnx").read_bytes() == b"optimized"


def test_one_limit_leaves_the_other_defaults() -> None:
    assert cli.limits(3, None, None) == Limits(iterations=3)
    assert cli.limits(None, 5, None) == Limits(tuples=5)
    assert cli.limits(None, None, None) is None


@pytest.mark.parametrize("kind", [ModelError, RuleError, VerificationError, EGraphError])
def test_a_known_error_is_one_line_and_writes_nothing(
    kind: type[EGraphError], library: Library, model: Path, tmp_path: Path
) -> None:
    library.fails = kind("node 'a':\n  bad")
    done = run("optimize", model, "-o", tmp_path / "out.onnx", "--report", tmp_path / "r.json", "-q")
    assert done.exit_code == 1
    assert done.stderr == "error: node 'a': bad\n"
    assert done.stdout == ""
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.onnx"]
    assert run("explain", model, "-q").exit_code == 1


def test_an_unknown_error_is_a_bug_and_is_shown(library: Library, model: Path, tmp_path: Path) -> None:
    library.fails = KeyError("oops")
    done = run("optimize", model, "-o", tmp_path / "out.onnx")
    assert isinstance(done.exception, KeyError)
    assert "error:" not in done.output


@pytest.mark.parametrize("how", ["same", "relative", "symlink", "hard link"])
@pytest.mark.parametrize("option", ["-o", "--report"])
def test_the_input_is_never_overwritten(
    how: str, option: str, library: Library, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    alias: Path = {
        "same": model, "relative": Path("../" + model.parent.name) / "in.onnx", "symlink": Path("alias"),
        "hard link": Path("alias"),
    }[how]  # fmt: skip
    if how == "symlink":
        alias.symlink_to(model)
    elif how == "hard link":
        os.link(model, alias)
    more = [] if option == "-o" else ["-o", "out.onnx"]
    done = run("optimize", model, option, alias, *more)
    assert done.exit_code == 2
    assert "would overwrite" in done.stderr
    assert model.read_bytes() == b"original"
    assert library.calls == []


@pytest.mark.parametrize(
    "args",
    [
        ["optimize", "{model}"],
        ["optimize", "missing.onnx", "-o", "{out}"],
        ["optimize", "{folder}", "-o", "{out}"],
        ["optimize", "{model}", "-o", "{out}", "--dim", "batch"],
        ["optimize", "{model}", "-o", "{out}", "--dim", "=1"],
        ["optimize", "{model}", "-o", "{out}", "--dim", "batch=0"],
        ["optimize", "{model}", "-o", "{out}", "--dim", "batch=1,"],
        ["optimize", "{model}", "-o", "{out}", "--dim", "batch=-1"],
        ["optimize", "{model}", "-o", "{out}", "--dim", "b=1", "--dim", "b=2"],
        ["optimize", "{model}", "-o", "{out}", "--iterations", "0"],
        ["optimize", "{model}", "-o", "{out}", "--time-limit", "soon"],
        ["optimize", "{model}", "-o", "{out}", "--report", "{out}"],
        ["optimise", "{model}"],
        ["explain"],
        [],
    ],
)
def test_wrong_usage_is_status_2(args: list[str], library: Library, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    done = run(*[a.format(model=model, out=out, folder=tmp_path) for a in args])
    assert done.exit_code == 2, done.output
    assert library.calls == []
    assert not out.exists()


def test_a_dimension_may_be_named_anything() -> None:
    assert cli.parse_dims(["past + seq=3", "a=b=2", " 4 =1, 2"]) == {"past + seq": 3, "a=b": 2, " 4 ": [1, 2]}
    assert cli.parse_dims([]) is None
    with pytest.raises(typer.BadParameter, match="twice"):
        cli.parse_dims(["b=1", "b=2"])


@pytest.mark.parametrize("option", ["-o", "--report"])
def test_a_place_that_cannot_be_written_is_said_before_the_work(
    option: str, library: Library, model: Path, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    for place in (tmp_path / "none" / "x", tmp_path, tmp_path / "fifo", tmp_path / "loop", tmp_path / ("n" * 300)):
        more = [] if option == "-o" else ["-o", tmp_path / "out.onnx"]
        done = run("optimize", model, option, place, *more)
        assert done.exit_code == 1
        assert done.stderr.startswith(f"error: cannot write {place}: ")
        assert done.stderr.count("\n") == 1
    assert library.calls == []


def test_explain_writes_nothing(library: Library, model: Path, tmp_path: Path) -> None:
    done = run("explain", model, "--disable", "rope-sum", "--dim", "seq=8", "--iterations", "2")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        "fused: /layers.0/Add: RotaryEmbedding by rope-sum, ms-rope",
        "  x + y",
        "  = by rope-sum (a = b)",
        "      a  ->  b",
        "      1 terms compared, relative difference 0",
        "  = by ms-rope (a = b)",
        "      a  ->  b",
        "      1 terms compared, relative difference 0",
        "  = y",
        "fused: /layers.1/Add: RotaryEmbedding by rope-sum",
        "  x + y",
        "  = by rope-sum (a = b)",
        "      a  ->  b",
        "      1 terms compared, relative difference 0",
        "  = y",
        "not fused: /layers.1/Mul: rope-sum: [x] has rank 5",
        "assumes: rows visible",
    ]
    assert list(tmp_path.iterdir()) == [model]
    (call,) = library.calls
    assert call["disable"] == ("rope-sum",)
    assert call["dims"] == {"seq": 8}
    assert call["limits"] == Limits(iterations=2)
    assert "verify" not in call


@pytest.mark.parametrize(
    ("node", "shown"),
    [
        ("/layers.1/Add", "fused: /layers.1/Add: RotaryEmbedding by rope-sum"),
        ("/layers.1/took-in", "fused: /layers.1/Add: RotaryEmbedding by rope-sum"),
        ("/layers.1/Mul", "not fused: /layers.1/Mul: rope-sum: [x] has rank 5"),
    ],
)
def test_explain_one_node(node: str, shown: str, library: Library, model: Path) -> None:
    done = run("explain", model, "--node", node, "-q")
    assert done.exit_code == 0, done.output
    lines = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert lines == [shown]


def test_explain_says_what_else_a_node_could_be() -> None:
    name = "/model/model/layers.0/self_attn/q_norm/Mul_1"
    done = run("explain", Path(__file__).parents[2] / "examples" / "qwen3_2layers.onnx", "--node", name, "-q")
    assert done.exit_code == 0, done.output
    others = [line for line in done.stdout.splitlines() if line.startswith("could be: ")]
    assert others[0].startswith("could be: RMSNorm(")
    assert others[0].endswith("us; chosen")
    assert others[1].startswith("could be: Mul(")
    assert others[1].endswith(" us")


def test_explain_an_unknown_node(library: Library, model: Path) -> None:
    done = run("explain", model, "--node", "nowhere", "-q")
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: neither the model nor the result has a node or value named 'nowhere'")


def test_explain_a_node_that_is_kept(library: Library, model: Path) -> None:
    done = run("explain", model, "--node", "/kept", "-q")
    assert done.exit_code == 0
    assert done.stdout == "no rule fuses anything at /kept, and none comes near to it\n"


def test_explain_says_why_nothing_changed() -> None:
    report = Report(unchanged="opset 9 is older than 13; convert the model first")
    assert list(cli.explanation(report, None, None, FakeResult().explain)) == [
        "no rule fuses anything, and none comes near to it",
        "unchanged: opset 9 is older than 13; convert the model first",
    ]


def test_rules_lists_every_rule_once() -> None:
    from onnx_egraph.rules import ALL

    done = run("rules")
    assert done.exit_code == 0, done.output
    assert [line.split()[0] for line in done.stdout.splitlines()] == [r.name for r in ALL]
    assert [line.split(maxsplit=1)[1] for line in done.stdout.splitlines()] == [r.law for r in ALL]

    full = run("rules", "--contract").stdout.splitlines()
    for line, rule in zip(full, ALL, strict=True):
        assert line.split(rule.law)[1].startswith(f"  [{rule.contract}")
        assert all(name in line for name in rule.assumes)


def test_progress_on_a_terminal_survives_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    """rich would raise MarkupError for a closing tag without an opening one."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    with cli.progress_on_stderr(quiet=False) as progress:
        progress("node [/model/layers.0]")


def script(*args: str | Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    start = "import sys; sys.argv[0] = 'onnx-egraph'; from onnx_egraph.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", start, *args], capture_output=True, check=False, env=os.environ | environment
    )


def test_the_script_prints_on_a_console_that_lacks_the_characters(tmp_path: Path) -> None:
    done = script("optimize", tmp_path / "層.onnx", "-o", tmp_path / "x.onnx", PYTHONIOENCODING="latin-1")
    assert done.returncode == 2
    assert rb"\u5c64.onnx" in done.stderr
    assert b"Traceback" not in done.stderr


def test_version(model: Path) -> None:
    done = script("--version")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"onnx-egraph 0.")


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "onnx_egraph", "optimize", "no-such-file.onnx", "-o", "out.onnx"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no-such-file.onnx" in done.stderr


# ---- signals

SIGNALLED = """
import os, signal, sys
from onnx_egraph import cli
number = int(sys.argv.pop(1))
if sys.argv.pop(1) == "ignored":
    signal.signal(number, signal.SIG_IGN)
def rules(*args, **options):
    try:
        os.kill(os.getpid(), number)
        for _ in range(1000):
            pass
    finally:
        os.kill(os.getpid(), number)  # once more while it cleans up
        for _ in range(1000):
            pass
        print("cleaned up")
cli.parse_dims = rules
cli.main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("how", ["ignored", "default"])
def test_a_signal_unwinds_the_program(number: signal.Signals, how: str, model: Path) -> None:
    """Two in a row do not stop the cleaning up; one that is ignored, as under nohup, still is."""
    command = [sys.executable, "-c", SIGNALLED, str(int(number)), how, "optimize", str(model), "-o", str(model)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "cleaned up" in done.stdout, done.stderr
    assert done.returncode == (2 if how == "ignored" else 128 + number), done.stderr
    assert "Traceback" not in done.stderr
