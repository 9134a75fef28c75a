"""Cost models compared with what is measured: what is read, compared, counted, written, and where it runs."""

from __future__ import annotations

import csv
import dataclasses
import gc
import importlib
import io
import os
import signal
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from threading import Thread
from typing import Any
from xml.etree import ElementTree

import onnx
import pytest
from onnx import parser
from scipy.stats import spearmanr
from typer.testing import CliRunner

from onnx_egraph import (
    EGraphError,
    Experiment,
    Findings,
    NamedCost,
    NodeCount,
    Roofline,
    Table,
    Workload,
    cli,
    saturate,
)
from onnx_egraph import experiment as conduct
from onnx_egraph import target as find_target
from onnx_egraph.egraph.errors import CostError, ModelError, OutputError, TableError
from onnx_egraph.experiments import task as tasks
from onnx_egraph.experiments.agreement import agreements, spearman
from onnx_egraph.experiments.apart import Crew, Outcome
from onnx_egraph.experiments.finding import COLUMNS, Finding
from onnx_egraph.experiments.task import Task
from onnx_egraph.lowering.measure.race import Standing

GELU = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[b, s, 8] x) => (float[b, s, 8] y)
<float root = {1.41421356}, float one = {1.0}, float half = {0.5}>
{
    p = MatMul (x, w1)
    q = MatMul (x, w2)
    both = Add (p, q)
    d = Div (both, root)
    e = Erf (d)
    f = Add (e, one)
    m = Mul (both, f)
    y = Mul (m, half)
}
"""
EXP = '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[n] y) { y = Exp (x) }'
MINE = """
from onnx_egraph import Roofline

class NoGelu(Roofline):
    \"\"\"A fused activation costs a second.\"\"\"

    def cost(self, work):
        return super().cost(work) + 10**12 * (work.op == "MsGelu" or work.op == "Gelu")

ready = NoGelu()
nothing = 3
"""
WORKLOADS = [Workload("one", new=1), Workload("many", new=64, weight=0.5)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two small models, one of which nothing improves, and cost models."""
    gelu = parser.parse_model(GELU)
    for k, name in enumerate(("w1", "w2")):
        values = [((k + 2) * i % 7 - 3) / 8 for i in range(64)]
        gelu.graph.initializer.append(onnx.helper.make_tensor(name, 1, [8, 8], values))
    onnx.save(gelu, tmp_path / "gelu.onnx")
    onnx.save(parser.parse_model(EXP), tmp_path / "exp.onnx")
    (tmp_path / "my_costs.py").write_text(MINE, encoding="utf-8")
    return tmp_path


def plan(folder: Path, **given: Any) -> Experiment:
    models = given.pop("models", ["gelu.onnx"])
    return Experiment(models, **{"workloads": WORKLOADS, "seconds": 0.3, "folder": folder, **given})


def without_times(findings: Findings) -> list[Finding]:
    nothing = dict.fromkeys(("measured", "speed", "low", "high", "noise"))
    return [dataclasses.replace(row, **nothing) for row in findings.rows]


# ---- what a file says

FILE = """
models = ["a.onnx", "b/c.onnx"]
targets = ["cpu"]
best = 3
seconds = 12.5
backend = "dask"
scheduler = "tcp://10.0.0.1:8786"
workers = 2

[[cost]]
name = "roofline"

[[cost]]
name = "of this machine"
model = "measured"
table = "prices.json"

[[workload]]
name = "decode"
past = 128
"""


def test_the_keys_of_a_file_are_the_fields(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(FILE, encoding="utf-8")
    read = Experiment.read(tmp_path / "e.toml")
    costs = [NamedCost("roofline"), NamedCost("of this machine", "measured", "prices.json")]
    assert read == Experiment(
        ["a.onnx", "b/c.onnx"], costs, ["cpu"], [Workload("decode", past=128)], 3, 12.5, "dask", 2,
        "tcp://10.0.0.1:8786", tmp_path,
    )  # fmt: skip
    assert read.path("b/c.onnx") == tmp_path / "b" / "c.onnx"
    assert Experiment.of(read.plain()) == read


def test_what_a_file_leaves_out_has_a_default(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text('models = ["a.onnx"]', encoding="utf-8")
    read = Experiment.read(tmp_path / "e.toml")
    assert [w.name for w in read.workloads] == ["decode", "prefill"]
    assert (read.named, read.targets, read.backend) == ([NamedCost("roofline")], ["cpu"], "local")


@pytest.mark.parametrize(("text", "says"), [
    ("models = [", "cannot be read"), ("", "no key models"), ("models = []", r"models is \[\]"),
    ("models = 'a.onnx'", "models is 'a.onnx'; a list"), ("models = [3]", "models: 3 is none"),
    ("models = ['a', 'a']", "models: 'a' is there twice"), ("model = ['a']", "no key 'model'; there are models, "),
    ("models = ['a']\nfolder = '/'", "no key 'folder'"), ("models = ['a']\ncosts = ['nodes']", "no key 'costs'"),
    ("models = ['a']\ntargets = ['tpu']", "no target 'tpu'"), ("models = ['a']\ntargets = [1]", "targets: 1 is none"),
    ("models = ['a']\nbest = 0", "best is 0"), ("models = ['a']\nbest = true", "best is True"),
    ("models = ['a']\nseconds = 0", "seconds is 0"), ("models = ['a']\nseconds = inf", "seconds is inf"),
    ("models = ['a']\nseconds = '5'", "seconds is '5'"), ("models = ['a']\nworkers = 1.5", "workers is 1.5"),
    ("models = ['a']\nbackend = 'slurm'", "backend is 'slurm'; one of local, dask, ray"),
    ("models = ['a']\nbackend = ['ray']", r"backend is \['ray'\]"),
    ("models = ['a']\nscheduler = 'tcp://h'", "scheduler is 'tcp://h'"),
    ("models = ['a']\ncost = 'nodes'", "cost is 'nodes'; tables"), ("models = ['a']\ncost = [1]", "cost is 1; tables"),
    ("models = ['a']\ncost = []", r"cost is \[\]; tables"),
    ("models = ['a']\n[[cost]]\nmodel = 'nodes'", "has no name"),
    ("models = ['a']\n[[cost]]\nname = ''", "is named ''"), ("models = ['a']\n[[cost]]\nname = 3", "name is 3"),
    ("models = ['a']\n[[cost]]\nname = 'nodes'\nkind = 1", "has no 'kind'; it has name, model, table"),
    ("models = ['a']\n[[cost]]\nname = 'best'", "no cost model 'best'; roofline, nodes, measured or module:attribute"),
    ("models = ['a']\n[[cost]]\nname = 'a'\nmodel = 'os:'", "no cost model 'os:'"),
    ("models = ['a']\n[[cost]]\nname = 'nodes'\ntable = 't'", "a table is for measured, not for nodes"),
    ("models = ['a']\n[[cost]]\nname = 'nodes'\n[[cost]]\nname = 'nodes'", "costs: 'nodes' is there twice"),
    ("models = ['a']\ntargets = ['cpu', 'cuda']\n[[cost]]\nname = 'measured'", "targets: 'cuda' runs on CUDA"),
    ("models = ['a']\nworkload = 3", r"tables \[\[workload\]\]"),
    ("models = ['a']\n[[workload]]\nname = 'w'\nsize = 1", "a workload has no 'size'"),
    ("models = ['a']\n[[workload]]\nname = 'w'\nnew = 0", "workload 'w': new is 0"),
])  # fmt: skip
def test_a_file_that_is_none(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(EGraphError, match=says) as raised:
        Experiment.read(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)
    done = CliRunner().invoke(cli.app, ["experiment", str(path), "-q"])
    assert (done.exit_code, done.stderr) == (1, f"error: {raised.value}\n")


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_bytes(b"models = ['\xff']")
    for path in (tmp_path / "e.toml", tmp_path / "nowhere.toml", tmp_path):
        with pytest.raises(EGraphError, match="the experiment cannot be read"):
            Experiment.read(path)


# ---- cost models by name


def test_a_name_is_a_cost_model(folder: Path) -> None:
    cpu, cuda = find_target("cpu"), find_target("cuda")
    Table(folder / "prices.json").save()
    assert NamedCost("roofline").load(cuda, folder) == Roofline(cuda.prices)
    assert NamedCost("some", "nodes").load(cpu, folder) == NodeCount()
    assert NamedCost("measured", table="prices.json").load(cpu, folder).table.path == folder / "prices.json"
    for name in ("NoGelu", "ready"):
        assert type(NamedCost("mine", f"my_costs:{name}").load(cpu, folder)).__name__ == "NoGelu"


@pytest.mark.parametrize(("cost", "error", "says"), [
    (NamedCost("c", "my_costs:missing"), CostError, "cost 'c': my_costs:missing: AttributeError"),
    (NamedCost("c", "no_such_module_here:x"), CostError, "ModuleNotFoundError"),
    (NamedCost("c", "my_costs:nothing"), CostError, "TypeError"),
    (NamedCost("measured", table="none.json"), TableError, "there is no table of measured prices at"),
])  # fmt: skip
def test_a_cost_model_that_is_none(cost: NamedCost, error: type[EGraphError], says: str, folder: Path) -> None:
    with pytest.raises(error, match=says) as raised:
        cost.load(find_target("cpu"), folder)
    assert "\n" not in str(raised.value)


# ---- what is compared


def timed(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float]) -> list[str]:
    """Replace the race: seconds of each graph at the first workload, ten times that at the second."""
    entered: list[str] = []

    def race(entries: Any, feeds: Any, weights: Any, *rest: Any, drop: bool) -> list[Standing]:
        assert (len(feeds), weights, drop) == (2, [1, 0.5], False)
        entered.extend(entries)
        first = seconds.get("input", 1.0)
        return [
            Standing(name, [((s, 10 * s), (first, 10 * first))] * 10)
            for name in entries for s in [seconds.get(name, first)]
        ]  # fmt: skip

    monkeypatch.setattr(tasks, "race", race)
    return entered


def test_each_graph_is_there_once_and_priced_by_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered = timed(monkeypatch, {"graph 1": 0.5, "graph 2": 1.5})
    costs = ["roofline", "nodes", NamedCost("no gelu", "my_costs:NoGelu")]
    rows = Task(plan(folder, costs=costs), "gelu.onnx").run(lambda stage: None)
    graphs = list(dict.fromkeys(row.graph for row in rows))
    assert entered == ["input", "input again", *graphs[1:]]
    assert len(rows) == len(graphs) * 3 * 2
    assert len({(row.graph, row.cost, row.workload) for row in rows}) == len(rows)
    best = {row.cost: row for row in rows if row.rank == 1}
    assert best["roofline"].graph == best["nodes"].graph == "graph 1"
    assert "com.microsoft::Gelu 1" in best["roofline"].operators
    assert "Gelu" not in best["no gelu"].operators
    for row in rows:
        scale = {"input": 1.0, "graph 1": 0.5, "graph 2": 1.5}.get(row.graph, 1.0)
        assert row.measured == scale * (1 if row.workload == "one" else 10)
        assert row.speed == row.low == row.high == 1 / scale
        assert row.noise == 0.0


def test_what_is_predicted_is_what_the_graph_was_chosen_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every graph is priced as it stands, whoever chose it; its own model said the same."""
    timed(monkeypatch, {})
    rows = Task(plan(folder, costs=["roofline", "nodes"], best=2), "gelu.onnx").run(lambda stage: None)
    space = saturate(folder / "gelu.onnx")
    for name, cost in (("roofline", Roofline()), ("nodes", NodeCount())):
        own = [row for row in rows if row.cost == name]
        best = space.best(2, cost=cost, dims=WORKLOADS)
        for rank, result in enumerate(best, 1):
            for k, workload in enumerate(WORKLOADS):
                (row,) = [row for row in own if (row.rank, row.workload) == (rank, workload.name)]
                assert row.predicted == pytest.approx(1e-12 * sum(node.costs[k] for node in result.costs()), rel=1e-9)
        given = [row.predicted for row in own if row.graph == "input"]
        assert given[0] + 0.5 * given[1] == pytest.approx(1e-12 * best[0].report.cost_before, rel=1e-9)


def test_a_model_that_nothing_improves_is_its_own_best(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, {})
    rows = Task(plan(folder, models=["exp.onnx"]), "exp.onnx").run(lambda stage: None)
    assert [(row.graph, row.rank, row.nodes, row.operators) for row in rows] == [("input", 1, 1, "Exp 1")] * 2


def test_a_target_that_does_not_run_here_is_predicted_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered = timed(monkeypatch, {})
    rows = Task(plan(folder, targets=["cuda"]), "gelu.onnx").run(lambda stage: None)
    assert entered == []
    assert all(row.predicted > 0 and row.measured is row.speed is row.noise is None for row in rows)
    assert [(a.graphs, a.error, a.ordered, a.correlation) for a in agreements(rows)] == [(0, None, None, None)]
    assert "error" in Findings(tuple(rows)).text()


def test_what_onnxruntime_does_not_run_is_named(folder: Path) -> None:
    model = onnx.load(folder / "gelu.onnx")
    model.graph.node[0].op_type, model.graph.node[0].domain = "Unheard", "of.nobody"
    model.opset_import.append(onnx.helper.make_opsetid("of.nobody", 1))
    onnx.save(model, folder / "strange.onnx")
    with pytest.raises(ModelError, match=r"input cannot be timed: .*Unheard") as raised:
        Task(plan(folder), "strange.onnx").run(lambda stage: None)
    assert "\n" not in str(raised.value)


# ---- how far a cost model agrees


def row(graph: str, predicted: float, speed: float | None, cost: str = "c", workload: str = "w") -> Finding:
    measured = None if speed is None else 1 / speed
    return Finding(
        "m.onnx", "cpu", workload, graph, cost, 0, predicted, measured, speed, None, None, None, 3, "Exp 3", ""
    )


def test_agreement_is_counted_within_a_workload() -> None:
    rows = [
        row("a", 1.0, 1.0), row("b", 0.6, 2.0), row("c", 0.7, 1.98),  # b and c are within 5 %
        row("a", 9.0, 1.0, workload="v"), row("b", 9.0, 2.0, workload="v"),  # a tie orders nothing
        row("d", 5.0, None),  # was not measured
    ]  # fmt: skip
    (agreement,) = agreements(rows)
    assert (agreement.graphs, agreement.pairs) == (5, 3)
    assert agreement.ordered == pytest.approx(2 / 3)
    assert agreement.error == pytest.approx(0.386)  # 0, 0.2, 0.386, 8, 17
    assert agreement.correlation == pytest.approx(1.0)  # constant predictions at v say nothing


def test_cost_models_are_counted_apart() -> None:
    rows = [row("a", 1.0, 1.0, "right"), row("b", 0.5, 2.0, "right"), row("a", 1.0, 1.0, "x"), row("b", 2.0, 2.0, "x")]
    right, wrong = agreements(rows)
    assert (right.cost, right.error, right.ordered, right.correlation) == ("right", 0.0, 1.0, pytest.approx(1.0))
    assert (wrong.cost, wrong.ordered, wrong.correlation) == ("x", 0.0, pytest.approx(-1.0))


@pytest.mark.parametrize("left", [[3.0, 1.0, 2.0, 2.0, 9.0], [1.0, 2.0, 2.0, 2.0, 1.0], [5.0, 4.0, 3.0, 2.0, 1.0]])
def test_the_correlation_is_spearman_s(left: list[float]) -> None:
    right = [2.0, 1.0, 1.0, 4.0, 8.0]
    assert spearman(left, right) == pytest.approx(spearmanr(left, right).statistic)


def test_ranks_count_and_equal_numbers_share_theirs() -> None:
    """By hand: 1 - 6 * (0 + 1 + 1) / (3 * 8); and ranks 1.5, 1.5, 3 beside 1, 2, 3."""
    assert spearman([10.0, 20.0, 30.0], [1.0, 9.0, 5.0]) == pytest.approx(0.5)
    assert spearman([7.0, 7.0, 8.0], [1.0, 2.0, 3.0]) == pytest.approx(3**0.5 / 2)


def test_what_is_constant_has_no_correlation() -> None:
    assert spearman([1.0, 1.0], [1.0, 2.0]) is None
    assert spearman([], []) is None
    assert spearman([4.0], [4.0]) is None


# ---- what is written

ODD = '<script>a & "b"\n,.onnx'
ROWS = (
    dataclasses.replace(row("input", 2e-3, 1.0), model=ODD, measured=1e-3, low=0.9, high=1.1, noise=0.1),
    dataclasses.replace(row("graph 1", 1e-3, 2.0), model=ODD, measured=5e-4, rank=1),
    dataclasses.replace(row("input", 1e-3, None, workload="x"), target="cuda"),
)
FOUND = Findings(ROWS, {"bad<.onnx": "it is & was no model"})


class Watching(HTMLParser):
    """Collects tags, and what they load."""

    def __init__(self) -> None:
        super().__init__()
        self.tags, self.loads = list[str](), list[tuple[str, str | None]]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [a for a in attrs if a[0] in ("src", "href", "xlink:href", "data", "onload")]


def test_csv_holds_all_rows() -> None:
    read = list(csv.DictReader(io.StringIO(FOUND.csv(), newline="")))
    assert [tuple(line) for line in read] == [COLUMNS] * 3
    for line, given in zip(read, ROWS, strict=True):
        assert line["model"] == given.model
        assert [float(line[k]) if line[k] else None for k in ("predicted", "measured", "speed", "low")] == [
            given.predicted, given.measured, given.speed, given.low,
        ]  # fmt: skip


def test_the_page_needs_nothing_but_itself() -> None:
    page, watching = FOUND.html(), Watching()
    watching.feed(page)
    assert watching.loads == []
    assert not {"script", "link", "img", "iframe"} & {*watching.tags}
    assert "http" not in page
    assert "@import" not in page
    assert "url(" not in page
    assert watching.tags.count("svg") == 2
    assert watching.tags.count("circle") == 2
    for part in ("bad&lt;.onnx", "it is &amp; was no model", "&lt;script&gt;", "graph 1", "Exp 3"):
        assert part in page
    for plot in page.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + plot.split("</svg>")[0] + "</svg>")  # well-formed


def test_a_page_of_nothing_measured_is_a_page() -> None:
    assert Findings(ROWS[2:]).html().endswith("</html>\n")


def test_the_text_says_what_was_found() -> None:
    text = FOUND.text()
    for part in ("graph 1", "0.5 ms", "2.000", "1 ms #1", "[0.900, 1.100]", "up to 10.0%", "rank corr.", "Exp 3"):
        assert part in text


def test_what_is_written_is_whole_or_not_there(tmp_path: Path) -> None:
    FOUND.save(csv=tmp_path / "a.csv", html=tmp_path / "a.html")
    assert (tmp_path / "a.csv").read_bytes() == FOUND.csv().encode()
    assert (tmp_path / "a.html").read_text(encoding="utf-8") == FOUND.html()
    with pytest.raises(OutputError, match="nowhere"):
        FOUND.save(csv=tmp_path / "b.csv", html=tmp_path / "nowhere" / "b.html")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.csv", "a.html"]


def test_parquet_holds_all_rows(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    FOUND.save(parquet=tmp_path / "a.parquet")
    assert parquet.read_table(tmp_path / "a.parquet").to_pylist() == [row.plain() for row in ROWS]


@pytest.mark.parametrize(("backend", "module"), [("dask", "joblib"), ("dask", "distributed"), ("ray", "ray")])
def test_what_is_not_installed_is_named(
    backend: str, module: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing(module, monkeypatch)
    with pytest.raises(EGraphError, match=rf'backend = "{backend}" needs .*pip install "onnx-egraph\[experiment\]"'):
        conduct(plan(folder, backend=backend))


def test_parquet_without_pyarrow_is_said_before_the_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing("pyarrow", monkeypatch)
    (folder / "e.toml").write_text('models = ["gelu.onnx"]', encoding="utf-8")
    begin = time.process_time()
    done = CliRunner().invoke(cli.app, ["experiment", str(folder / "e.toml"), "--parquet", str(folder / "p")])
    assert time.process_time() - begin < 2
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "Parquet is written by pyarrow: pip install" in done.stderr


def missing(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a module was not installed."""
    imported = importlib.import_module

    def without(name: str, package: str | None = None) -> Any:
        if name.split(".")[0] == module:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        return imported(name, package) if not name.startswith("joblib") else sys

    monkeypatch.setattr(importlib, "import_module", without)


# ---- where it runs


COST = '[[cost]]\nname = "mine"\nmodel = "my_costs:NoGelu"\n[[workload]]\nname = "w"\n'


def test_the_program_says_and_writes_all(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """From another folder; the cost model prints, and for two models there is nothing to find: one is no model, at one
    the process dies.
    """
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    written = ["--csv", str(elsewhere / "o.csv"), "--html", str(elsewhere / "o.html")]
    dying = "print('{not json')\nimport os\nfrom my_costs import *\nclass Dying(NoGelu):\n" + (
        "    def cost(self, work):\n        return os._exit(7) if work.op == 'Exp' else super().cost(work)\n"
    )
    (folder / "dying_costs.py").write_text(dying, encoding="utf-8")
    (folder / "none.onnx").write_text("no model")
    text = f'models = ["none.onnx", "exp.onnx", "gelu.onnx"]\nseconds = 0.3\nbest = 1\n{COST}'
    (folder / "e.toml").write_text(text.replace("my_costs:NoGelu", "dying_costs:Dying"), encoding="utf-8")
    done = CliRunner().invoke(cli.app, ["experiment", str(folder / "e.toml"), *written])
    assert done.exit_code == 1, done.output
    assert "error: model none.onnx: " in done.stderr
    assert "error: model exp.onnx: its process ended with status 7: {not json" in done.stderr
    assert "model 3 of 3, gelu.onnx: timing" in done.stderr
    assert "gelu.onnx for cpu, w" in done.stdout
    lines = list(csv.DictReader((elsewhere / "o.csv").read_text(encoding="utf-8").splitlines()))
    assert {line["model"] for line in lines} == {"gelu.onnx"}
    assert all(float(line["measured"]) > 0 for line in lines)
    page = (elsewhere / "o.html").read_text(encoding="utf-8")
    assert all(name in page for name in ("none.onnx", "exp.onnx", "gelu.onnx"))


def test_where_nothing_is_found_that_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Crew, "run", lambda crew, task, tell: Outcome(failure=f"{task.model} is none"))
    with pytest.raises(EGraphError, match=r"nothing was found; model a\.onnx: a\.onnx is none") as raised:
        conduct(plan(folder, models=["a.onnx", "b.onnx"]))
    assert "\n" not in str(raised.value)


def test_a_signal_ends_what_was_started(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the command line has it: a signal raises SystemExit in the main thread."""
    place = folder / "pid"
    slow = f"import os, time\nopen({str(place)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    (folder / "my_costs.py").write_text(slow, encoding="utf-8")

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    waiting = Thread(target=lambda: wait_for(place) and os.kill(os.getpid(), signal.SIGTERM))
    waiting.start()
    try:
        with pytest.raises(SystemExit):
            conduct(plan(folder, models=["gelu.onnx", "exp.onnx"], costs=[NamedCost("slow", "my_costs:x")]))
    finally:
        signal.signal(signal.SIGTERM, before)
        waiting.join()
    with pytest.raises(ProcessLookupError):
        os.kill(wait_for(place), 0)


def wait_for(path: Path) -> int:
    for _ in range(1200):
        if path.exists() and (text := path.read_text()):
            return int(text)
        time.sleep(0.05)
    raise AssertionError(f"{path} did not appear")


@pytest.mark.parametrize("option", ["--csv", "--html"])
@pytest.mark.parametrize("name", ["e.toml", "gelu.onnx", "sub/../gelu.onnx"])
def test_nothing_of_the_experiment_is_overwritten(option: str, name: str, folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "e.toml").write_text('models = ["gelu.onnx"]', encoding="utf-8")
    before = (folder / "gelu.onnx").read_bytes()
    done = CliRunner().invoke(cli.app, ["experiment", str(folder / "e.toml"), option, str(folder / name)])
    assert done.exit_code == 2
    assert "would overwrite" in done.stderr
    assert (folder / "gelu.onnx").read_bytes() == before


@pytest.mark.filterwarnings("ignore")  # of Dask's own
def test_a_cluster_finds_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workers of Dask, by the address of their scheduler; all but times is as it is here."""
    distributed = pytest.importorskip("distributed")
    pytest.importorskip("joblib")
    given = {"models": ["gelu.onnx", "exp.onnx"], "costs": ["roofline", NamedCost("mine", "my_costs:NoGelu")]}
    said: list[str] = []
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        there = plan(folder, **given, backend="dask", scheduler=cluster.scheduler_address)
        found = conduct(there, progress=said.append)
    gc.collect()  # what Dask leaves open is told of here, not in some other test
    assert found.failures == {}
    assert all(row.measured for row in found.rows)
    timed(monkeypatch, {})
    here = [row for model in given["models"] for row in Task(plan(folder, **given), model).run(lambda stage: None)]
    assert without_times(found) == without_times(Findings(tuple(here)))
    assert said[-1] == "2 of 2 models done: exp.onnx"


@pytest.mark.filterwarnings("ignore")
def test_a_cluster_that_is_not_there_is_an_error(folder: Path) -> None:
    pytest.importorskip("distributed")
    pytest.importorskip("joblib")
    with pytest.raises(EGraphError, match='backend = "dask": ') as raised:
        conduct(plan(folder, backend="dask"))
    gc.collect()
    assert "\n" not in str(raised.value)
