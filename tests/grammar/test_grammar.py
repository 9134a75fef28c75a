"""Every spelling of a formula computes it, and becomes a fused operator; what only looks like one stays right."""

from __future__ import annotations

from functools import cache

import pytest
from grammar.choices import Drawing
from grammar.formulas import FORMULAS
from grammar.judge import Judged, judge
from grammar.listed import Change, changes, grouped, line, unfused
from grammar.measure import judged, mixtures, near_misses, told
from grammar.writer import Spelling

PARTS = 4
SHORT = 2  # mixtures and near misses of each formula
LONG = 10_000


@cache
def singles() -> dict[Change, Spelling]:
    return changes(FORMULAS)


def faults(seen: list[Judged]) -> str:
    return "\n".join(f"{j.written and 'as written: '}{j.written or j.wrong}; {told(j)}" for j in seen if not j.right)


@pytest.mark.parametrize("part", range(PARTS))
def test_one_change(part: int) -> None:
    """Right, and fused if it is not listed in unfused.txt; what is listed and fuses is to be taken out of the list."""
    names = {s.prefix: change for change, s in singles().items()}
    seen = [j for group in grouped(singles())[part::PARTS] for j in judge(group)]
    assert not faults(seen), faults(seen)
    left = {line(names[j.spelling.prefix]) for j in seen if not j.fused}
    listed = {line(names[j.spelling.prefix]) for j in seen} & {line(change) for change in unfused()}
    assert not left - listed, "no longer fused"
    assert not listed - left, "fused now: take out of tests/grammar/unfused.txt"


def test_the_list_names_spellings() -> None:
    assert unfused() <= singles().keys()


def test_mixtures() -> None:
    seen = judged(s for name in FORMULAS for s in mixtures(name, range(SHORT)))
    assert not faults(seen), faults(seen)


def test_near_misses() -> None:
    seen = judged((s for name in FORMULAS for s in near_misses(name, range(SHORT))), missing=True)
    assert not faults(seen), faults(seen)
    assert sum(j.misses for j in seen) > len(seen) // 2


@pytest.mark.deep
@pytest.mark.parametrize("name", FORMULAS)
def test_mixtures_deep(name: str) -> None:
    seen = judged(mixtures(name, range(1000, 1000 + LONG // len(FORMULAS))))
    print(f"{name}: {sum(j.fused for j in seen)} of {len(seen)} mixtures fused")
    assert not faults(seen), faults(seen)


@pytest.mark.deep
@pytest.mark.parametrize("name", FORMULAS)
def test_near_misses_deep(name: str) -> None:
    seen = judged(near_misses(name, range(1000, 1000 + LONG // len(FORMULAS))), missing=True)
    print(f"{name}: {sum(j.fused for j in seen)} of {len(seen)} near misses fused, {sum(j.misses for j in seen)} miss")
    assert not faults(seen), faults(seen)


# ---- the grammar itself


def test_a_seed_draws_the_same_spelling_again_and_so_do_its_decisions() -> None:
    a, b = (FORMULAS["attention"](Drawing(3), "") for _ in range(2))
    again = FORMULAS["attention"](Drawing(picks=a.drawing.chosen), "")
    assert a.graph.SerializeToString() == b.graph.SerializeToString() == again.graph.SerializeToString()


def test_the_judge_sees_a_wrong_spelling() -> None:
    """One that is written wrong differs from the formula; judged as a near miss it is none of the optimizer's."""
    spelling = FORMULAS["rope"](Drawing(fault="rope.no sign"), "")
    [j] = judge([spelling])
    assert "became" in j.written
    [j] = judge([spelling], near_misses=True)
    assert j.right
    assert j.misses
    assert not j.fused
