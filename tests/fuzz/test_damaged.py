"""A short run of damaged files, in a child process, and a long one behind `-m deep`."""

from __future__ import annotations

import pytest
from campaign import Total, again, children
from damaged import FUZZER, damaged, originals

SHORT = 40


def total_of(seeds: range) -> Total:
    total = Total()
    for outcome in children(FUZZER, seeds, limit=60):
        total.add(outcome)
    return total


def told(total: Total) -> str:
    return "\n".join(f"{o.text}\n{again(FUZZER, o.seed)}" for o in total.faults)


def test_damaged_files() -> None:
    total = total_of(range(SHORT))
    assert not total.faults, told(total)
    assert total.seeds == SHORT
    assert total.counts["refused"] > SHORT // 4
    assert total.counts["results"] > SHORT // 8


def test_a_seed_damages_one_model() -> None:
    data, source = damaged(5)
    assert damaged(5) == (data, source)
    assert source in originals()


@pytest.mark.deep
@pytest.mark.parametrize("part", range(4))
def test_damaged_files_deep(part: int) -> None:
    total = total_of(range(1000 + 2500 * part, 3500 + 2500 * part))
    assert not total.faults, told(total)
