"""The budget of a call and the pace of a saturation, on a clock of our own."""

from __future__ import annotations

from typing import Any

import pytest

from onnx_egraph.egraph.budget import Budget, LimitReached, Limits
from onnx_egraph.egraph.engine.pace import SLACK, Pace
from onnx_egraph.egraph.errors import EGraphError


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("given", [
    dict(iterations=-1), dict(tuples=-1), dict(seconds=-0.1), dict(seconds=float("nan")), dict(iterations=2.5),
    dict(tuples=None), dict(iterations=True), dict(seconds="soon"),
])  # fmt: skip
def test_a_limit_is_a_number_from_0_up(given: dict[str, Any]) -> None:
    with pytest.raises(EGraphError, match=f"{next(iter(given))}=.*from 0 up"):
        Limits(**given)


def test_what_is_kept_is_not_left() -> None:
    clock = Clock()
    budget = Budget(Limits(seconds=10), clock)
    clock.now += 4
    budget.kept = 5
    assert budget.left() == 1
    budget.check("reading")
    with pytest.raises(LimitReached, match=r"^time limit 10 s \(not reproducible\) while reading$"):
        budget.check("reading", ahead=1)
    clock.now += 1
    with pytest.raises(LimitReached):
        budget.check("reading")


def test_without_seconds_no_clock_is_asked() -> None:
    def broken() -> float:
        raise AssertionError

    budget = Budget(Limits(), broken)
    budget.check("reading", ahead=1e9)
    with budget.sharing(0.1):
        assert budget.left() == float("inf")


def test_a_share_is_given_back_even_after_a_failure() -> None:
    budget = Budget(Limits(seconds=8), Clock())
    with budget.sharing(0.25):
        assert budget.left() == 2
    with pytest.raises(ZeroDivisionError), budget.sharing(0.25):
        raise ZeroDivisionError
    assert budget.left() == 8


def test_a_step_is_not_begun_if_one_like_it_took_longer_than_there_is_left() -> None:
    clock = Clock()
    budget = Budget(Limits(seconds=10), clock)
    for seconds in (4, 1):
        with budget.step("verifying", "run"):
            clock.now += seconds
    with budget.step("verifying", "another kind"):
        clock.now += 1
    with pytest.raises(LimitReached), budget.step("verifying", "run"):
        raise AssertionError


def test_a_saturation_stops_before_a_step_that_would_lead_too_far() -> None:
    pace = Pace(Budget(Limits(tuples=1000)), 100, 0.0)
    assert not pace.close, "far from its limit it is not watched"
    pace.size = 500
    assert pace.close
    assert pace.fits("fuse")
    pace.took("fuse", 900)
    assert not pace.fits("fuse")
    assert str(pace.stop) == "tuple limit 1,000 while saturating"
    again = Pace(Budget(Limits(tuples=1000)), 500, 0.0)
    assert not again.lost(int(SLACK * 1000))
    assert again.lost(int(SLACK * 1000) + 1)


def test_a_saturation_leaves_time_for_what_follows() -> None:
    clock = Clock()
    pace = Pace(Budget(Limits(seconds=10), clock), 1000, 3.0)
    assert pace.fits("fuse")
    clock.now += 2
    pace.took("fuse", 1500)  # what follows takes 4.5 by now
    assert pace.fits("fuse")
    clock.now += 2
    pace.took("fuse", 1500)
    assert not pace.fits("fuse")
    assert str(pace.stop).startswith("time limit 10 s")
