"""Models run in turn: what counts is the ratio within a round, whatever the machine does meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser

from onnx_egraph import Limits, Workload
from onnx_egraph.egraph.budget import Budget
from onnx_egraph.egraph.errors import ModelError
from onnx_egraph.lowering.measure.race import Interval, Standing, feeds_at, race
from onnx_egraph.lowering.verify.feeds import Feed

ROOT = Path(__file__).parents[2]


class Machine:
    """Time passes by what is run. Some rounds are three times as slow, and every run is off by up to 3 %."""

    def __init__(self, seed: int) -> None:
        self.now, self.random, self.made = 0.0, random.Random(seed), list[str]()

    def clock(self) -> float:
        return self.now

    def model(self, name: str, seconds: Sequence[float]) -> Callable[[], Any]:
        def load() -> Any:
            self.made.append(name)
            return Loaded(self, seconds)

        return load


class Loaded:
    def __init__(self, machine: Machine, each: Sequence[float]) -> None:
        self.machine, self.each = machine, each

    def seconds(self, feed: Mapping[str, Any], count: int) -> float:
        slow = 3.0 if int(self.machine.now * 0.7) % 5 == 0 else 1.0
        taken = self.each[feed["k"]] * count * slow * (1 + 0.03 * self.machine.random.random())
        self.machine.now += taken
        return taken


FEEDS = [Feed("decode", {"k": 0}), Feed("prefill", {"k": 1})]  # type: ignore[dict-item]


def run(machine: Machine, models: Mapping[str, Sequence[float]], seconds: float = 1000.0) -> dict[str, Standing]:
    budget = Budget(Limits(seconds=seconds), machine.clock)
    entries = {name: machine.model(name, each) for name, each in models.items()}
    return {s.name: s for s in race(entries, FEEDS, [1.0, 0.5], budget, lambda stage: None, 0.02)}


@pytest.mark.parametrize("seed", range(5))
def test_the_intervals_hold_the_true_speeds(seed: int) -> None:
    models = {"input": (0.010, 0.100), "again": (0.010, 0.100), "fast": (0.008, 0.090), "slow": (0.020, 0.090)}
    found = run(Machine(seed), models)
    for name, (decode, prefill) in models.items():
        speed, at_decode = found[name].speed([1.0, 0.5]), found[name].speed_at(0)
        assert 0.97 < speed.value / ((0.010 + 0.050) / (decode + prefill / 2)) < 1.03
        assert 0.97 < at_decode.value / (0.010 / decode) < 1.03
        assert speed.low <= speed.value <= speed.high
    assert found["fast"].speed([1.0, 0.5]).low > 1 > found["slow"].speed([1.0, 0.5]).high
    assert 0.97 < found["again"].speed([1.0, 0.5]).low <= found["again"].speed([1.0, 0.5]).high < 1.03


def test_sessions_are_made_in_several_orders_and_slow_models_are_dropped() -> None:
    machine = Machine(0)
    run(machine, {"input": (0.010, 0.100), "fast": (0.005, 0.050), "slow": (0.030, 0.300)})
    assert machine.made[:3] == ["input", "fast", "slow"]
    assert machine.made[3:] == ["fast", "input", "input", "fast"]


def test_one_model_left_is_run_no_more() -> None:
    machine = Machine(0)
    run(machine, {"input": (0.010, 0.100), "slow": (0.030, 0.300)})
    assert machine.made == ["input", "slow"]


def test_it_ends_with_its_time_and_has_something_to_say() -> None:
    machine = Machine(1)
    found = run(machine, {"input": (1.0, 2.0), "other": (0.9, 2.0)}, seconds=20.0)
    assert machine.now < 20 + 3 * (1 + 1 + 2 + 2) * 3.1  # what had begun: a count of runs, and a round
    assert found["other"].rounds
    assert found["other"].speed([1.0, 1.0]).low == -np.inf  # too few rounds to know


def test_an_interval_is_as_wide_as_chance() -> None:
    assert Interval.of([1.0, 2.0, 3.0]).low == -np.inf
    six = Interval.of([6.0, 1.0, 5.0, 2.0, 4.0, 3.0])  # 2 * 0.5**6 < 0.05: the extremes hold the median
    assert (six.low, six.value, six.high) == (1.0, 3.5, 6.0)
    held = [Interval.of([random.Random(s * 100 + k).gauss(0, 1) for k in range(25)]) for s in range(400)]
    assert sum(i.low <= 0 <= i.high for i in held) >= 0.93 * 400


def test_feeds_have_the_sizes_of_the_workload() -> None:
    decode, wide = feeds_at(
        ROOT / "examples" / "qwen3_2layers.onnx",
        [Workload("decode", past=64), Workload("wide", batch=3, new=40, past=7)],
    )
    assert {np.shape(a) for a in decode.inputs.values()} <= {(1, 1), (1, 65), (1, 2, 64, 16)}
    assert np.shape(wide.inputs["input_ids"]) == (3, 40)


def test_no_feed_for_sizes_that_nothing_fits() -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[n] y) { y = Exp (x) }'
    )
    with pytest.raises(ModelError, match="workload 'huge': no inputs"):
        feeds_at(model, [Workload("huge", {"n": 10**10})])
