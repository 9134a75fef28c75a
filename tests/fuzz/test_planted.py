"""Each planted fault is seen by the fuzzer that is named with it, within one of its seeds."""

from __future__ import annotations

import damaged
import graphs
import near_misses
import pytest
from campaign import Campaign
from planted import PLANTED, Planted

FUZZERS: tuple[Campaign, ...] = (graphs.FUZZER, near_misses.FUZZER, damaged.FUZZER)


def test_ten_faults_are_planted() -> None:
    assert len({p.name for p in PLANTED}) == len(PLANTED) >= 10
    assert {p.fuzzer for p in PLANTED} == {f.name for f in FUZZERS}


@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: p.name)
def test_a_planted_fault_is_seen(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    [fuzzer] = (f for f in FUZZERS if f.name == planted.fuzzer)
    planted.plant(monkeypatch)
    outcome = fuzzer.run(planted.seed, 0)
    assert outcome.fault == planted.seen, outcome.text
