"""The best graphs and the model, run in turn: the fastest is kept, and the model where nothing is faster."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import parser

from onnx_egraph import EGraphError, NodeCount, Roofline, Work, Workload, saturate, tune, tuning
from onnx_egraph.egraph.errors import ModelError, OutputError, TargetError
from onnx_egraph.lowering.measure.race import Standing

MODEL = Path(__file__).parents[2] / "examples" / "qwen3_2layers.onnx"
DIMS = [Workload("decode", past=16), Workload("prefill", new=16, weight=0.5)]


def timed(speeds: dict[str, tuple[float, float]], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the race: how many times as fast as the input each model is at both workloads."""
    seen: list[str] = []

    def race(entries: Any, feeds: Any, weights: Any, budget: Any, tell: Any, margin: float) -> list[Standing]:
        seen.extend(entries)
        standings = []
        for name in entries:
            decode, prefill = speeds.get(name, (1.0, 1.0))
            rounds = [
                ((0.001 / decode * wobble, 0.004 / prefill), (0.001 * wobble, 0.004)) for wobble in (1.0, 1.1) * 5
            ]
            standings.append(Standing(name, rounds))
        return standings

    monkeypatch.setattr(tuning, "race", race)
    return seen


@pytest.fixture(autouse=True)
def folder_of_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test touches the user's table."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches"


def test_the_fastest_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    timed({"graph 1": (1.2, 1.2), "graph 2": (1.5, 1.3), "graph 3": (1.4, 1.2)}, monkeypatch)
    tuned = tune(MODEL, dims=DIMS, candidates=3, seconds=1, cost=Roofline())
    assert tuned.winner == "graph 2"
    assert (
        tuned.result.report.cost_after == tuning._candidates(saturate(MODEL), 3, [None], DIMS)[1][1].report.cost_after
    )
    assert [line[1:8] for line in tuned.text().splitlines()[1:5]] == ["graph 2", "graph 3", "graph 1", "input  "]
    assert tuned.text().splitlines()[1].startswith("*")


@pytest.mark.parametrize(("speeds", "winner"), [
    ({"graph 1": (1.20, 1.20), "graph 2": (1.21, 1.21)}, "graph 1"),  # not told apart: what is predicted to be best
    ({"graph 1": (0.99, 1.00), "graph 2": (0.98, 1.0)}, "input"),
    ({"graph 1": (1.50, 0.90), "graph 2": (1.1, 0.99)}, "graph 2"),  # slower by more than 2 % at one workload
    ({"graph 1": (1.50, 0.90), "graph 2": (0.9, 0.99)}, "input"),
])  # fmt: skip
def test_what_is_no_gain_everywhere_is_not_taken(
    speeds: dict[str, tuple[float, float]], winner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(speeds, monkeypatch)
    tuned = tune(MODEL, dims=DIMS, candidates=2, seconds=1, cost=Roofline())
    assert tuned.winner == winner
    assert bool(tuned.result.report.unchanged) == (winner == "input")


def test_the_model_itself_comes_back_byte_for_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed({"graph 1": (0.5, 0.5)}, monkeypatch)
    tuned = tune(MODEL, dims=DIMS, candidates=1, seconds=1, verify=True, cost=Roofline())
    tuned.result.save(tmp_path / "same.onnx")
    assert (tmp_path / "same.onnx").read_bytes() == MODEL.read_bytes()
    assert tuned.result.report.unchanged == "no graph was faster than the model by more than chance"


def test_settings_of_a_session_are_tried_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    denormal = {"session.set_denormal_as_zero": "1"}
    name = "graph 1, set_denormal_as_zero=1"
    seen = timed({"graph 1": (1.2, 1.2), name: (2.0, 2.0)}, monkeypatch)
    tuned = tune(MODEL, dims=DIMS, candidates=1, seconds=1, settings=[denormal], threads=2, cost=Roofline())
    assert seen == ["input", "input again", "graph 1", name]
    assert (tuned.winner, tuned.settings) == (name, denormal)
    options = tuned.session_options()
    assert isinstance(options, ort.SessionOptions)
    assert options.intra_op_num_threads == 2
    assert options.get_session_config_entry("session.set_denormal_as_zero") == "1"


def test_a_real_race_ends_in_time_and_its_winner_is_right() -> None:
    stages: list[str] = []
    tuned = tune(MODEL, dims=DIMS, candidates=2, seconds=4, verify=True, cost=NodeCount(), progress=stages.append)
    assert any(stage.startswith("timing 3 models, for ") and stage.endswith(" s at most") for stage in stages)
    assert {t.name for t in tuned.timings} >= {"input", "graph 1"}
    assert all(math.isfinite(s) and s > 0 for t in tuned.timings for s in t.seconds)
    assert tuned.noise >= 0
    if tuned.winner != "input":
        assert tuned.result.report.verified
    feed = {
        "input_ids": np.ones((1, 3), np.int64), "attention_mask": np.ones((1, 3), np.int64),
        "position_ids": np.arange(3, dtype=np.int64)[None],
    }  # fmt: skip
    session = ort.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
    assert session.run(None, {i.name: feed[i.name] for i in session.get_inputs()})


class PackedAtDecode(Roofline):
    """As if products of one position were cheap, the longer the more."""

    def cost(self, work: Work) -> int:
        few = work.op == "MatMul" and work.ins[0].shape is not None and work.ins[0].shape[-2] == 1
        return 10**6 if few else super().cost(work)


def test_what_is_best_at_one_workload_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over both it is not: a prompt takes most of the time."""
    decode, prompt = Workload("decode", past=16), Workload("prompt", new=2000)
    timed({}, monkeypatch)
    tuned = tune(MODEL, dims=[decode, prompt], candidates=6, seconds=1, cost=PackedAtDecode())
    space = saturate(MODEL)
    seen = [r.drawn() for _, r in tuning._candidates(space, 6, [PackedAtDecode()], [decode, prompt])]
    best = [space.extract(cost=PackedAtDecode(), dims=dims).drawn() for dims in ([decode, prompt], [decode], [prompt])]
    assert best[0] != best[1]
    assert seen[: len(set(best))] == [*dict.fromkeys(best)]
    assert len({*seen}) == len(seen) == len(tuned.timings) - 1


def test_candidates_are_priced_by_what_is_measured_here(
    folder_of_caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed({}, monkeypatch)
    stages: list[str] = []
    tune(MODEL, dims=DIMS, candidates=2, seconds=6, progress=stages.append)
    assert any(stage.startswith("measuring 1 of") for stage in stages)
    assert [*folder_of_caches.rglob("*.json")]


def test_a_folder_that_takes_no_table_is_no_reason_to_stop(
    folder_of_caches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_of_caches.write_text("no folder")
    timed({}, monkeypatch)
    stages: list[str] = []
    tuned = tune(MODEL, dims=DIMS, candidates=2, seconds=1, progress=stages.append)
    assert any(stage.startswith("prices are not measured: ") for stage in stages)
    assert len(tuned.timings) > 1
    with pytest.raises(OutputError):
        tune(MODEL, dims=DIMS, seconds=1, table=folder_of_caches / "table.json")


@pytest.mark.parametrize(("given", "error", "says"), [
    (dict(candidates=0), EGraphError, "candidates is 0"), (dict(seconds=0), EGraphError, "seconds is 0"),
    (dict(seconds="10"), EGraphError, "seconds is '10'"), (dict(target="cuda"), TargetError, "runs on CUDA"),
    (dict(dims=[Workload("a", {"no": 3})]), ModelError, "'no'"), (dict(target=3), TargetError, "target is 3"),
    (dict(threads=-1), EGraphError, "threads is -1"), (dict(threads="2"), EGraphError, "threads is '2'"),
    (dict(settings={"session.a": "1"}), EGraphError, "settings has {'session.a'"),
    (dict(settings="abc"), EGraphError, "settings has 'abc'"),
    (dict(settings=["abc"]), EGraphError, "settings has 'abc'"),
    (dict(settings=[{"session.a": 1}]), EGraphError, "settings has {'session.a': 1}"),
    (dict(settings=[{"": "1"}], candidates=1, seconds=1), ModelError, "graph 1, =1 cannot be timed"),
])  # fmt: skip
def test_wrong_arguments(given: dict[str, Any], error: type[EGraphError], says: str) -> None:
    with pytest.raises(error, match=says) as raised:
        tune(MODEL, **given)
    assert "\n" not in str(raised.value)


def test_a_model_that_nothing_improves_comes_back() -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[n] y) { y = Exp (x) }'
    )
    tuned = tune(model, seconds=1, cost=Roofline())
    assert tuned.winner == "input"
    assert tuned.result.model == model


@pytest.mark.parametrize(("graph", "says"), [
    ("(float[n] x) => (float[n] y) { y = my.Own (x) }", "input cannot be timed: .*Own"),
    ("(float[n,4] x, int64[2] s) => (float[a,b] y) { y = Reshape (x, s) }", "input cannot be timed: .*Reshape"),
])  # fmt: skip
def test_a_model_that_does_not_run(graph: str, says: str) -> None:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17, "my" : 1]> g {graph}')
    with pytest.raises(ModelError, match=says) as raised:
        tune(model, seconds=1)
    assert "\n" not in str(raised.value)


def test_texts_are_inputs_too() -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (string[n] x) => (string[n] y) { y = Identity (x) }'
    )
    assert tune(model, seconds=1).winner == "input"


def test_settings_whose_names_end_alike_are_two(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = timed({}, monkeypatch)
    tune(MODEL, dims=DIMS, candidates=1, seconds=1, settings=[{"session.a.use": "1"}, {"session.b.use": "1"}])
    assert len(seen) == len(set(seen)) == 5
