"""The samples of every rule notice when the rule is made false: a guard dropped, a sign, an axis, a number
changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import partial

import pytest

from onnx_egraph.egraph.checking.soundness import Checker
from onnx_egraph.egraph.errors import RuleError
from onnx_egraph.rules import ALL

from .mutants import Mutant, changed_sides, dropped_guards

_COUNT = "follows from the other sizes, because a reshape keeps the number of elements"
_TYPED = "operands of one operator have one element type: said for terms whose type is not known yet"

#: Guards, as patterns over ids, that follow from the rest wherever the left side is well-formed; and why.
REDUNDANT: dict[str, str] = {
    "transpose-transpose-without vec-length(?) = n": "either of the two lengths tells the rank of x",
    "slice-of-*-without dim(x, -1) = *": _COUNT,
    "slice-of-*-without dim(Reshape(x, shape), -?) = dim(x, *": _COUNT,
    "wide-mul-without dim(x, -1) = dim(y, -1)": "two even last axes broadcast only if they are equal",
    "wide-squeeze-without axis != -1": "the last axis has an even size, so it cannot be squeezed",
    "rope-columns-without dim(???, -1) = 1": _COUNT,
    "rms-norm*-without dtype(w) = *": _TYPED,
    "sdpa-sink-grouped-without dim(k, -3) = *": "weights of one number of heads meet both",
    "sdpa-sink-grouped-without rank(v) = *": "repeated heads have four axes",
    "sdpa-sink*-without rank(mask) <= *": "an absent mask, which it keeps out, is the other reading's",
    "layer-norm-without dtype(b) = dtype(x)": _TYPED,
    "truth-twice-without * != 8": "no sample has strings",
}
#: Changes, as patterns over ids, that leave the law true; and why.
EQUIVALENT: dict[str, str] = {
    "ms-rope*-rows-the next axis*": "axes 0 and -1 of a vector are the same",
    "rope-rows-before-batch-the next axis [13]": "axes 0 and -1 of a vector are the same",
    "gqa-decode*-the next axis": "axes 0 and -1 of a vector are the same",
    "sdpa-sink*-the next axis [13]": "axes 0 and -1 of a vector are the same",
    "merged-plus-each-the next axis": "the new axis of size 1 may stand on either side of the merged one",
    "grouped-plus-another axis": "both axes have size 1",
    "softmax-cleared-another number [12]": "a softmax does not show what all seen scores share, nor how low -inf is",
    "root-mean-square-plus for minus": "what is added is 0",
    "skip-norm*-operands swapped*": "the two that are added may stand in either order",
    "guard-behind-another number": "which rows are NaN does not depend on the scale",
}


def caught(m: Mutant) -> list[str]:
    """The first problems found with a mutant, by the check that is likely to see it, and then by the others; the many
    draws, which take longest, come last.
    """
    quick, checker = (Checker(m.rule, samples=n, obligations=m.original, hasty=True) for n in (6, 40))
    facts = [checker.refuse, checker.withheld]
    few, many = ([partial(each.equal, "holds"), partial(each.equal, "refuse")] for each in (quick, checker))
    likely = [*facts, *few] if m.guard else [*few, *facts]
    checks = (checker.closed, *likely, checker.symbolic, checker.fires, *many)
    try:
        return next(filter(None, (check() for check in checks)), [])
    except RuleError as error:  # nothing binds a variable
        return [str(error)]


def listed(m: Mutant, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(m.id, p) for p in patterns)


GUARDS = [m for rule in ALL for m in dropped_guards(rule)]
SIDES = [m for rule in ALL for m in changed_sides(rule)]


@pytest.mark.parametrize("mutant", [m for m in GUARDS if not listed(m, REDUNDANT)], ids=lambda m: m.id)
def test_a_dropped_guard_is_noticed(mutant: Mutant) -> None:
    assert caught(mutant)


@pytest.mark.parametrize("mutant", [m for m in SIDES if not listed(m, EQUIVALENT)], ids=lambda m: m.id)
def test_a_changed_side_is_noticed(mutant: Mutant) -> None:
    assert caught(mutant)


@pytest.mark.parametrize("pattern", [*REDUNDANT, *EQUIVALENT])
def test_the_lists_name_mutants_that_exist(pattern: str) -> None:
    assert any(listed(m, [pattern]) for m in [*GUARDS, *SIDES])


@pytest.mark.deep
@pytest.mark.parametrize(
    "mutant", [m for m in [*GUARDS, *SIDES] if listed(m, [*REDUNDANT, *EQUIVALENT])], ids=lambda m: m.id
)
def test_a_listed_mutant_is_true(mutant: Mutant) -> None:
    assert not Checker(mutant.rule, samples=400, obligations=mutant.original).equal()
