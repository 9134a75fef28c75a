"""No rule is idle: for each there is a graph that it proves something about and all the others do not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from onnx_egraph.egraph.checking.comparison import bind
from onnx_egraph.egraph.checking.sample import Sample, draw
from onnx_egraph.egraph.checking.trial import Seeding, _Seed
from onnx_egraph.egraph.engine.rule import Rule
from onnx_egraph.egraph.engine.saturate import Engine
from onnx_egraph.egraph.terms import IllFormed
from onnx_egraph.egraph.terms.meaning import evaluate
from onnx_egraph.rules import ALL

#: Rules whose law also follows from others on every sample, and why they are kept.
FOLLOWS: dict[str, str] = {
    "mul-one": "scaled-mul and scaled-one prove it by laws that round, and it is exact",
    "onnx-attention-bool": "onnx-attention proves it, but assumes what strict mode does not",
    "onnx-attention-visible": "onnx-attention proves it, but assumes what strict mode does not",
    "wide-slice-first": "wide-written and slice-concat-first prove it",
    "wide-slice-second": "wide-written and slice-concat-second prove it",
}

_ROUNDS = 8


@pytest.fixture(scope="module")
def engine() -> Engine:
    made = Engine(ALL)
    codes = range(1, 17)
    terms = {name for r in ALL for name in r.asks}
    made.run("\n".join(f'(supported "{term}" {code})' for term in sorted(terms) for code in codes))
    return made


def _pair(sample: Sample) -> tuple[dict[str, int], dict[str, int]]:
    """Two sizes of the letters: what differs is a symbol."""
    return sample.distinct(), sample.twin(sample.distinct())


def witnesses(rule: Rule) -> Iterator[tuple[str, str, list[str]]]:
    """(left side, right side, commands that seed the left one) for each sample and reading whose guards
    hold.
    """
    for entry in rule.holds:
        sample = Sample(entry, rule.variables)
        drawn, twin = (draw(sample, letters, np.random.default_rng(0)) for letters in _pair(sample))
        for sides in rule.sides:
            try:
                env, failing = bind(sides, drawn.env, drawn.letters)
                evaluate(sides.lhs, env)  # another rank's reading may make no sense
                seed = _Seed(drawn, twin, env, Seeding())
                commands = seed.commands(sides)
                texts = seed.text(sides.lhs), seed.text(sides.rhs)
            except (IllFormed, KeyError, IndexError):
                continue
            if not failing:
                yield *texts, commands


def proves(engine: Engine, numbers: list[int], left: str, right: str, commands: list[str]) -> bool:
    """Whether these rules join both sides; they run together, in rounds, stage after stage."""
    engine.run("(push)")
    try:
        engine.run("\n".join(commands))
        engine.run(f"(unstable-combined-ruleset some {' '.join(f'only-{k}' for k in numbers)})")
        rounds = f"(repeat {_ROUNDS} (seq (run some) (saturate (run facts))))"
        engine.run(f"(run-schedule (saturate (run facts)) {rounds})")
        return engine.holds(f"(= {left} {right})")
    finally:
        engine.run("(pop)")


@pytest.mark.parametrize("number", range(len(ALL)), ids=[r.name for r in ALL])
def test_each_rule_proves_what_the_others_do_not(engine: Engine, number: int) -> None:
    rule = ALL[number]
    others = [k for k in range(len(ALL)) if k != number]
    found = list(witnesses(rule))
    assert found, "no sample binds all variables"
    fires = [w for w in found if proves(engine, [number], *w)]
    assert fires, "the rule alone joins its sides"
    needed = any(not proves(engine, others, *w) for w in fires)
    assert needed != (rule.name in FOLLOWS)
