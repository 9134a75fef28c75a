"""Limits bound the whole call: the best graph by then comes back, it is right, and the report says what ended it.

Time is that of a clock which ticks whenever it is asked, so that a call can be ended at each place where it asks, or
the processor time of this process, which other processes do not spend.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import parser

from onnx_egraph import Limits, Report, Result, cli, optimize, saturate_and_extract
from onnx_egraph import result as results
from onnx_egraph.egraph.budget import Budget, Limit, LimitReached, Stop
from onnx_egraph.egraph.errors import VerificationError
from onnx_egraph.egraph.explanation.explain import Derivation
from onnx_egraph.lowering.files.load import load
from onnx_egraph.lowering.verify.compare import Mismatch
from onnx_egraph.lowering.verify.runtime import Runtime
from onnx_egraph.lowering.verify.verify import Verification, verify
from onnx_egraph.verification import verdict

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "qwen3_2layers.onnx"
NORM = """
    {p}s = Mul ({x}, {x})
    {p}m = ReduceMean <axes = [-1]> ({p}s)
    {p}a = Add ({p}m, eps)
    {p}r = Sqrt ({p}a)
    {p}d = Div ({x}, {p}r)
    {y} = Mul ({p}d, w)
"""


def branching() -> onnx.ModelProto:
    """Two branches and what comes before them, each with a norm."""
    one, two = (NORM.format(x=x, y=y, p=p) for x, y, p in (("h", "y1", "a"), ("k", "y2", "b")))
    return parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 17]>
    main (float[b,8] x, bool c) => (float[b,8] y)
    <float[8] w = {{1,2,3,4,5,6,7,8}}, float eps = {{0.00001}}> {{
        {NORM.format(x="x", y="h", p="o")}
        k = Neg (h)
        y = If (c) <then_branch = first () => (float[b,8] y1) {{ {one} }},
                    else_branch = second () => (float[b,8] y2) {{ {two} }}>
    }}""")


def feeds_of(model: onnx.ModelProto) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    if model.graph.input[0].name == "input_ids":
        return [{"input_ids": rng.integers(0, 128, (2, 7)), "attention_mask": np.ones((2, 7), np.int64)}]
    x = rng.standard_normal((3, 8)).astype(np.float32)
    return [{"x": x, "c": np.array(c)} for c in (False, True)]


def run(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return list(ort.InferenceSession(model.SerializeToString(), options).run(None, feeds))


def data(result: Result) -> bytes:
    assert isinstance(result.model, onnx.ModelProto)
    return result.model.SerializeToString(deterministic=True)


def right(result: Result, model: onnx.ModelProto) -> None:
    """The result computes what the model does, and a limit that left nothing to do is the reason for that."""
    assert isinstance(result.model, onnx.ModelProto)
    for feeds in feeds_of(model):
        for got, want in zip(run(result.model, feeds), run(model, feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    report = result.report
    assert bool(report.limits) == (report.stop != "saturated")
    if report.limits:
        assert f"stopped early: {report.stop}" in report.text().splitlines()
    if report.unchanged:
        assert report.stop in report.unchanged
        assert data(result) == model.SerializeToString(deterministic=True)


class Ticks:
    """A clock that is a second later each time it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> float:
        self.asked += 1
        return float(self.asked)


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Ticks]:
    """Give the next call a clock that ticks."""

    def start() -> Ticks:
        clock = Ticks()
        for module in (optimize, results):
            monkeypatch.setattr(module, "Budget", lambda limits: Budget(limits, clock))
        return clock

    return start


@pytest.mark.parametrize("name", ["branching", "example"])
def test_a_call_may_end_anywhere(name: str, ticking: Callable[[], Ticks]) -> None:
    model = branching() if name == "branching" else onnx.load(EXAMPLE)
    clock = ticking()
    whole = saturate_and_extract(model, limits=Limits(seconds=1_000_000))
    assert whole.report.stop == "saturated"
    assert data(whole) == data(saturate_and_extract(model))
    stops = set()
    for part in (0.0, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 0.6, 0.8, 0.9, 0.95, 0.98, 1.0, 1.3):
        seconds = max(1, int(clock.asked * part))
        used = ticking()
        result = saturate_and_extract(model, limits=Limits(seconds=seconds))
        assert used.asked <= 1.2 * seconds + 10, "the last things are not asked for"
        right(result, model)
        stops.add(result.report.stop)
        assert result.report.stop == "saturated" or f"time limit {seconds:g} s (not reprod" in result.report.stop
    assert {stop.split(" while ")[1].split(" in graph")[0] for stop in stops if stop != "saturated"} >= {
        "reading", "inferring shapes", "building the e-graph", "saturating",
    }  # fmt: skip


def test_seconds_bound_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    from deepen import deepen

    model = deepen(EXAMPLE, 28)
    monkeypatch.setattr(optimize, "Budget", lambda limits: Budget(limits, time.process_time))
    saturate_and_extract(onnx.load(EXAMPLE), limits=Limits(seconds=100))  # imports
    for seconds in (0.05, 0.3, 1, 2):
        begin = time.process_time()
        load(model)
        reading = time.process_time() - begin
        begin = time.process_time()
        result = saturate_and_extract(model, limits=Limits(seconds=seconds))
        spent = time.process_time() - begin
        # reading is not cut short, and what was read is given back
        assert spent <= max(1.2 * seconds, 2 * reading) + 0.3, (seconds, spent, result.report.stop)
        if seconds >= 1:
            right(result, model)


def test_tuples_bound_the_largest_e_graph() -> None:
    model = onnx.load(EXAMPLE)
    full = saturate_and_extract(model)
    size = full.report.egraph["tuples"]
    seen = set()
    for limit in (1, size // 2, int(size * 0.85), int(size * 0.93), int(size * 0.97), 2 * size):
        result = saturate_and_extract(model, limits=Limits(tuples=limit))
        right(result, model)
        assert result.report.egraph["tuples"] <= 1.2 * limit
        assert data(result) == data(saturate_and_extract(model, limits=Limits(tuples=limit)))
        assert (result.report.stop == "saturated") == (limit > size)
        seen.add(result.report.stop.partition(" while ")[2])
    assert seen == {"", "building the e-graph", "saturating"}


@pytest.mark.parametrize("iterations", [0, 2, 5])
def test_iterations_are_those_of_each_graph(iterations: int) -> None:
    model = branching()
    result = saturate_and_extract(model, limits=Limits(iterations=iterations))
    right(result, model)
    assert result.report.egraph["iterations"] <= iterations
    assert data(result) == data(saturate_and_extract(model, limits=Limits(iterations=iterations)))


def test_a_stop_in_a_body_names_it() -> None:
    stop = saturate_and_extract(branching(), limits=Limits(iterations=1)).report.stop
    assert stop == ("iteration limit 1 in graph 'first'; iteration limit 1 in graph 'second'; iteration limit 1")


def test_a_graph_that_is_too_large_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    model = branching()
    for k in range(40):  # more than the branches hold
        model.graph.node[-1].input[0] = f"c{k + 1}"
        ends = (f"c{k}" if k else "c", f"c{k + 1}")
        model.graph.node.insert(len(model.graph.node) - 1, onnx.helper.make_node("Not", ends[:1], ends[1:]))
    largest = saturate_and_extract(model).report.egraph["tuples"]
    for limit in range(400, largest + 300, 300):
        result = saturate_and_extract(model, limits=Limits(tuples=limit))
        assert result.report.egraph["tuples"] <= 1.2 * limit
        right(result, model)


# ---- verification, near misses, derivations


def test_a_verification_that_does_not_fit_is_none(ticking: Callable[[], Ticks]) -> None:
    model, clock = branching(), Ticks()
    assert verify(model, model, runtime=Runtime(budget=Budget(Limits(seconds=1_000_000), clock))).ok
    for seconds in range(1, clock.asked - 1, 7):
        outcome = verify(model, model, runtime=Runtime(budget=Budget(Limits(seconds=seconds), Ticks())))
        assert not outcome.ok
        assert outcome.skipped == f"time limit {seconds} s (not reproducible) while verifying"
    ticking()
    result = saturate_and_extract(model, limits=Limits(seconds=1), verify=True)
    assert result.report.verified is False
    assert result.report.verification.startswith("NOT verified: time limit")
    assert result.report.stop.endswith("(not reproducible) while verifying")


def test_a_difference_counts_though_there_is_no_time_to_find_the_rule() -> None:
    def late(names: object) -> bool:
        raise LimitReached(Stop(Limit.SECONDS, "time limit 1 s"))

    outcome = Verification(False, 1, 1.0, [Mismatch("", "y", "value", 1, 2)])
    with pytest.raises(VerificationError, match=r"differs.*; the rule is not known: time limit 1 s"):
        verdict(outcome, ["a", "b"], late)


def test_near_misses_and_derivations_have_the_same_limits(ticking: Callable[[], Ticks]) -> None:
    ticking()
    result = saturate_and_extract(onnx.load(EXAMPLE), limits=Limits(seconds=1_000_000))
    clock = ticking()
    assert dataclasses.replace(result).near_misses() == []
    for part in (0.0, 0.2, 0.5, 0.8):
        result.report.missed.clear()
        ticking()
        late = dataclasses.replace(result, _limits=Limits(seconds=int(part * clock.asked)))
        assert any("stopped early (time limit" in line for line in late.near_misses())
    node = result.report.fused[0].node
    for explainer in result._explainers:
        explainer.limits = Limits(seconds=0)
    assert result.explain(node).text().startswith("  not replayed: time limit 0 s (not reproducible) while ")
    for explainer in result._explainers:
        explainer.limits = Limits(tuples=1)
    assert result.explain(node).text() == "  not replayed: tuple limit 1 while replaying the rules"
    for explainer in result._explainers:
        explainer.limits = Limits()
    assert result.explain(node).complete


def test_nothing_to_miss_where_nothing_was_optimized() -> None:
    result = saturate_and_extract(branching(), limits=Limits(tuples=1))
    [line] = result.near_misses()
    assert line.startswith("no graph was optimized (tuple limit 1 while building the e-graph")


def test_explain_says_what_stopped_it() -> None:
    report = Report(stop="tuple limit 1 while saturating", limits=[Limit.TUPLES])
    lines = list(cli.explanation(report, None, None, lambda node: Derivation(node, (), "", False)))
    assert "stopped early: tuple limit 1 while saturating" in lines
