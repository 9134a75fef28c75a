"""calibrate and Measured from the outside: a table filled in time, and graphs chosen by what it says."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import parser
from typer.testing import CliRunner

from onnx_egraph import (
    EGraphError,
    Measured,
    Roofline,
    Space,
    Table,
    Work,
    calibrate,
    cli,
    saturate,
    saturate_and_extract,
)
from onnx_egraph.egraph.errors import ModelError, OutputError, TableError, TargetError

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "examples" / "qwen3_2layers.onnx"
ROTARY = ("MsRope", "MsRope3", "OnnxRope", "OnnxRope3")


@pytest.fixture(scope="module")
def space() -> Space:
    return saturate(MODEL)


@pytest.fixture(scope="module")
def table(space: Space, tmp_path_factory: pytest.TempPathFactory) -> Table:
    """What the machine at hand has time for."""
    return calibrate(space, table=tmp_path_factory.mktemp("tables") / "prices.json", seconds=2)


class Asking(Roofline):
    """Keeps all that it is asked."""

    __slots__ = ("asked",)

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "asked", [])

    def cost(self, work: Work) -> int:
        self.asked.append(work)
        return Roofline.cost(self, work)


@pytest.fixture(scope="module")
def made_up(space: Space) -> Table:
    """A table with all that may be asked, of prices that are not measured, and some entries far off."""
    asking, told = Asking(), Table(Path("unwritten.json"), node=1_000_000)
    space.extract(cost=asking)
    for number, work in enumerate(asking.asked):
        told.add(work, Roofline().cost(work) * (1 + number % 7))
    return told


def test_it_ends_in_time_with_a_table_of_use(tmp_path: Path) -> None:
    path, said = tmp_path / "prices.json", list[str]()
    begin = time.process_time()
    filled = calibrate(MODEL, table=path, seconds=1, progress=said.append)
    assert time.process_time() - begin < 30  # other programs do not count
    assert filled.entries
    assert filled.added == len(filled.entries)
    assert filled.left > 0
    assert any(line.startswith("measuring 1 of ") for line in said)
    read = Table.read(path)
    assert read.entries == filled.entries
    result = saturate_and_extract(MODEL, cost=Measured(read), verify=True)
    assert result.report.verified
    assert result.report.predicts == "measured CPU time"


def test_a_price_is_about_what_an_operator_takes(table: Table) -> None:
    """Sanity: the dearest, a product, takes longer than a microsecond and no longer than a second."""
    products = [e for e in table.entries.values() if e.work.op == "MatMul" and e.work.outs[0].size > 1000]
    assert products
    assert all(10**6 < e.picoseconds < 10**12 for e in products)


def test_what_was_measured_is_not_measured_again(space: Space, table: Table) -> None:
    before = dict(table.entries)
    more = calibrate(space, table=table.path, seconds=1)
    assert before.items() <= more.entries.items()


@pytest.mark.parametrize("factor", [1000, 0.001], ids=["dear", "cheap"])
def test_the_graph_is_the_one_that_the_table_says_is_cheaper(space: Space, factor: float) -> None:
    """Entries for every rotary operator that may be chosen, many times what the roofline says, or next to nothing."""
    asking, told = Asking(), Table(Path("unwritten.json"))
    space.extract(cost=asking)
    for work in asking.asked:
        told.add(work, round(Roofline().cost(work) * (factor if work.op in ROTARY else 1)))
    result = space.extract(cost=Measured(told))
    assert ("RotaryEmbedding" in result.report.counts()) == (factor < 1)


def test_the_costs_of_a_result_are_those_of_the_table(space: Space, made_up: Table) -> None:
    measured = Measured(made_up)
    result = space.extract(cost=measured)
    assert result.report.cost_after == sum(sum(row.costs) for row in result.costs())
    again = saturate_and_extract(result.model, cost=measured)
    assert again.report.unchanged
    assert again.report.cost_before == result.report.cost_after


def test_several_models_fill_one_table(tmp_path: Path) -> None:
    def small(op: str) -> onnx.ModelProto:
        node = onnx.helper.make_node(op, ["x"], ["y"])
        values = [onnx.helper.make_tensor_value_info(name, 1, [8, 512]) for name in "xy"]
        graph = onnx.helper.make_graph([node], "g", values[:1], values[1:])
        return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)

    both = calibrate([saturate(small("Erf")), small("Cos")], table=tmp_path / "both.json")
    assert {e.work.op for e in both.entries.values()} == {"Erf", "Cos"}
    assert both.node > 0
    assert (both.added, both.left, both.unfit) == (2, 0, 0)


def test_wrong_arguments(tmp_path: Path, space: Space) -> None:
    small = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { y = Erf (x) }'
    )
    for model in (MODEL, saturate(small, target="cuda")):
        with pytest.raises(TargetError, match="CUDAExecutionProvider"):
            calibrate(model, target="cuda", table=tmp_path / "t.json")
    with pytest.raises(EGraphError, match="seconds"):
        calibrate(space, table=tmp_path / "t.json", seconds=0)
    with pytest.raises(ModelError, match="nowhere"):
        calibrate(space, table=tmp_path / "t.json", dims={"nowhere": 3})
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(TableError, match=r"bad\.json"):
        calibrate(space, table=tmp_path / "bad.json")
    said: list[str] = []
    for place in (tmp_path / "bad.json" / "t.json", tmp_path / "bad.json" / "folder" / "t.json"):
        with pytest.raises(OutputError, match=r"bad\.json"):
            calibrate(MODEL, table=place, seconds=1, progress=said.append)
    assert said == []


# ---- the command line


def test_the_last_line_says_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    arguments = ["calibrate", str(MODEL), "--time-limit", "1", "--dim", "batch=1"]
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 0, done.output
    last = done.stdout.splitlines()[-1]
    for part in (" operators measured, ", " left to be predicted", "error of predictions ", f"table: {tmp_path}"):
        assert part in last
    assert "measuring 1 of " in done.stderr
    out = tmp_path / "out.onnx"
    done = CliRunner().invoke(cli.app, ["optimize", str(MODEL), "-o", str(out), "--cost", "measured", "--no-verify"])
    assert done.exit_code == 0, done.output
    assert "predicted measured CPU time" in done.stdout
    assert out.is_file()


@pytest.mark.parametrize("command", ["optimize", "explain"])
def test_without_a_table_the_command_that_makes_one_is_named(command: str, tmp_path: Path) -> None:
    path, out = tmp_path / "none.json", ["-o", str(tmp_path / "out.onnx")] if command == "optimize" else []
    done = CliRunner().invoke(cli.app, [command, str(MODEL), *out, "--cost", "measured", "--table", str(path), "-q"])
    assert done.exit_code == 1
    assert done.stderr.startswith("error: there is no table of measured prices")
    assert f"onnx-egraph calibrate MODEL --table {path}" in done.stderr
    assert not (tmp_path / "out.onnx").exists()


def test_a_table_for_another_cost_model_is_wrong_usage(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli.app, ["explain", str(MODEL), "--table", str(tmp_path / "t.json")])
    assert done.exit_code == 2
    assert "--table" in done.stderr


def test_an_interrupted_calibration_leaves_a_table(tmp_path: Path) -> None:
    """SIGINT while it measures; what was measured by then is kept."""
    path = tmp_path / "prices.json"
    code = (
        "import os, signal, sys\n"
        "from onnx_egraph import calibrate\n"
        "def tell(stage):\n"
        "    if stage.startswith('measuring 4 '): os.kill(os.getpid(), signal.SIGINT)\n"
        "calibrate(sys.argv[1], table=sys.argv[2], progress=tell)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(MODEL), str(path)], capture_output=True, text=True, check=False
    )
    assert "KeyboardInterrupt" in done.stderr
    assert len(Table.read(path).entries) == 3


@pytest.mark.parametrize(("given", "says"), [
    (dict(models=3), "type int"), (dict(seconds="3"), "seconds is '3'"), (dict(seconds=True), "seconds is True"),
    (dict(seconds=float("nan")), "seconds is nan"), (dict(target=3), "target is 3"), (dict(table=3), "table is 3"),
])  # fmt: skip
def test_wrong_arguments_are_named(given: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(EGraphError, match=says) as raised:
        calibrate(**{"models": MODEL, "table": tmp_path / "t.json", "seconds": 1, **given})
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())
