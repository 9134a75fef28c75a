"""Every rule of the package, through every check of the soundness checker; and all rules together on random
graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from onnx_egraph.egraph.checking.soundness import Checker
from onnx_egraph.egraph.checking.trial import Trial
from onnx_egraph.egraph.engine.rule import Rule
from onnx_egraph.egraph.terms import FUSED
from onnx_egraph.rules import ALL

CHECKS: dict[str, Callable[[Checker], list[str]]] = {
    "closed": Checker.closed,
    "equal": lambda c: c.equal("holds"),
    "varied": Checker.varied,
    "passed": Checker.passed,
    "fires": Checker.fires,
    "refuse": Checker.refuse,
    "typed": Checker.typed,
    "symbolic": Checker.symbolic,
    "withheld": Checker.withheld,
}


@pytest.fixture(scope="module")
def checkers() -> Callable[[Rule], Checker]:
    """One checker, and so one e-graph, for all checks of a rule."""
    last: list[Checker] = []
    inert = Trial(ALL[0], inert=True)

    def get(rule: Rule) -> Checker:
        if not last or last[0].rule is not rule:
            last[:] = [Checker(rule, inert=None if rule.terms else inert)]
        return last[0]

    return get


def cases() -> Iterator[object]:
    for rule in ALL:
        for check in CHECKS:
            yield pytest.param(rule, check, id=f"{rule.name}-{check}")


@pytest.mark.parametrize(("rule", "check"), list(cases()))
def test_rule(rule: Rule, check: str, checkers: Callable[[Rule], Checker]) -> None:
    problems = CHECKS[check](checkers(rule))
    assert not problems, "\n".join(problems)


@pytest.mark.deep
@pytest.mark.parametrize("rule", ALL, ids=lambda r: r.name)
def test_rule_deep(rule: Rule) -> None:
    problems = Checker(rule, samples=2000, seed=7).equal("holds")
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("rule", ALL, ids=lambda r: r.name)
def test_fused_operators_are_made_for_targets_that_have_them(rule: Rule) -> None:
    made = {t.head for s in rule.sides for t in s.rhs.subterms()} - {
        t.head for s in rule.sides for t in s.lhs.subterms()
    }
    assert made & FUSED <= rule.asks
