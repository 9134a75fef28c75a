"""Every spelling of a formula computes it, and becomes a fused operator; what only looks like one stays right."""

from __future__ import annotations

from functools import cache

import pytest
from grammar.choices import Drawing
from grammar.explained import unexplained
from grammar.formulas import FORMULAS
from grammar.judge import FUSED, Judged, behind, judge, model_of
from grammar.listed import Change, changes, grouped, line, unfused
from grammar.measure import judged, mixtures, near_misses, told
from grammar.writer import Spelling

from onnx_egraph import saturate_and_extract

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


@pytest.mark.parametrize("name", [name for name in FORMULAS if name != "block"])
def test_explanations(name: str) -> None:
    """Of a plain form and a mixture; `measure.py --explain` replays those of all changes. A block is made of these."""
    plain, mixed = unexplained([FORMULAS[name](Drawing(), "")]), unexplained([*mixtures(name, [7])])
    assert plain[0]
    assert not (faults := [*plain[1], *mixed[1]]), "\n".join(faults)


# ---- what several changes bring about

TOGETHER: dict[str, tuple[str, dict[str, str]]] = {
    "an Einsum of values whose rows are not proved": ("attention", {
        "cache": "k", "mask": "Where(keep, s, low)", "values": "Einsum, other letters",
    }),
    "a product with a mask of zeros and ones": ("attention", {"mask": "s m - big (1 - m)", "mask.low": "-1e9"}),
    "that product in float16": ("attention", {"mask": "s m - big (1 - m)", "dtype": "float16"}),
    "a soft cap of widened scores": ("attention", {
        "dtype": "float16", "attention.widened": "scores and softmax", "attention.cap": "c tanh(s / c)",
    }),
    "a number below a cap, before the softmax is widened": ("attention", {
        "dtype": "float16", "attention.widened": "softmax", "attention.cap": "c tanh(s * (1/c))",
        "mask": "s m - big (1 - m)", "mask.big": "1e4",
    }),
    "one head without an axis, rows of a table": ("rope", {"rope.layout": "BSH", "rope.tables": "rows of a table"}),
    "one head without an axis, Range": ("rope", {"rope.layout": "BSH", "rope.positions": "Range"}),
    "one head without an axis, rows with an axis": ("rope", {
        "rope.layout": "BSH", "rope.tables": "rows of a table", "rope.leading": "1",
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", TOGETHER)
def test_changes_together(name: str) -> None:
    formula, picks = TOGETHER[name]
    [j] = judge([FORMULAS[formula](Drawing(picks=picks), "")])
    assert j.right, faults([j])
    assert j.fused, j.left


def test_scores_that_a_number_of_no_proved_bound_replaces_are_a_near_miss() -> None:
    spelling = FORMULAS["attention"](Drawing(picks={"mask": "s m - big (1 - m)", "mask.big": "1e4"}), "")
    result = saturate_and_extract(model_of([spelling]))
    assert not result.report.counts()
    assert any("mask-where-big" in miss and "v is -10000.0" in miss for miss in result.near_misses())


def test_a_mask_that_multiplies_is_left_alone_where_infinities_count() -> None:
    spelling = FORMULAS["attention"](Drawing(picks=TOGETHER["a product with a mask of zeros and ones"][1]), "")
    assert not saturate_and_extract(model_of([spelling]), strict=True).report.counts()


#: Kinds of near misses that the plain form does not have: formula, a change, the place written wrong, what is said.
UNFIT: tuple[tuple[str, dict[str, str], str, str], ...] = (
    ("rmsnorm", {"mean": "sum * (1/n)"}, "norm.count", "to which mean-sum"),
    ("layernorm", {"mean": "sum / n"}, "norm.count", "to which mean-sum"),
    ("rmsnorm", {"norm.order": "r w, then x"}, "norm.axis", "needs ReduceMean with axes [-1]: that of"),
    ("rope", {"rope.turn": "halves"}, "rope.plus", "needs x*cos - y*sin: there is"),
    ("attention", {"softmax": "written out"}, "attention.sum over queries", "needs ReduceSum with axes [-1]: that of"),
    ("attention", {"mask": "Where(keep, s, low)"}, "attention.low of -5", "needs n masks: n is float32[] -5"),
    ("attention", {"mask": "Where(keep, s, low)"}, "attention.mask behind softmax", "needs SafeSoftmax(biased("),
)


@pytest.mark.parametrize("name", [name for name in FORMULAS if name != "block"])
def test_a_near_miss_names_what_does_not_fit(name: str) -> None:
    """Of each place of the plain form that is written wrong, and is not fused as something else."""
    plain = Drawing()
    FORMULAS[name](plain, "")
    spelled = [FORMULAS[name](Drawing(fault=fault), f"f{k}.") for k, fault in enumerate(plain.faults)]
    result = saturate_and_extract(model_of(spelled))
    whole = FUSED.keys() - {"Sigmoid"}
    left = [s for s in spelled if not any(n.op_type in whole for n in behind(result.model, s))]
    lines = [line for line in result.near_misses() if " needs " in line]
    silent = [s.drawing.fault for s in left if not any(s.prefix in line for line in lines)]
    assert left
    assert not silent, "\n".join(result.near_misses())


@pytest.mark.parametrize(("formula", "picks", "fault", "said"), UNFIT)
def test_a_near_miss_names_what_does_not_fit_of_a_change(
    formula: str, picks: dict[str, str], fault: str, said: str
) -> None:
    result = saturate_and_extract(model_of([FORMULAS[formula](Drawing(picks=picks, fault=fault), "")]))
    assert not result.report.counts()
    assert any(said in line for line in result.near_misses()), result.near_misses()


# ---- the grammar itself


def test_options_that_only_another_change_brings_up_are_changes() -> None:
    assert {("rope", "rope.turn", "2x2 matrices"), ("rope", "rope.matrices", "of four")} <= singles().keys()


def test_the_judge_tells_laws_from_prices() -> None:
    """float16 is widened for an attention, which few tokens do not pay for."""
    picks = {"dtype": "float16", "sizes": "fixed to 1", "mask": "Where(keep, s, low)"}
    [j] = judge([FORMULAS["attention"](Drawing(picks=picks), "")])
    assert (j.fused, j.dearer) == (False, True)
    [j] = judge(
        [
            FORMULAS["attention"](
                Drawing(picks={**picks, "mask.low": "-1e9", "dtype": "float32"}, fault="attention.low of -5"), ""
            )
        ],
        True,
    )
    assert (j.fused, j.dearer) == (False, False)


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


@pytest.mark.parametrize(
    ("formula", "seed", "fault"),
    [
        ("attention", 600336, "attention.sign of the mask"),  # 1e4 is added to scores, of which float16 keeps
        ("attention", 600420, "attention.sign of the mask"),  # multiples of 8: onnxruntime rounds in some kernels only
        ("block", 600520, "norm.cube"),  # the mean of cubes is nearly 0: float32 as it is written is off by 2e-4
        ("block", 600464, "norm.cube"),  # cubes overflow in float16
    ],
)
def test_what_rounding_decides_is_no_fault(formula: str, seed: int, fault: str) -> None:
    [j] = judge([FORMULAS[formula](Drawing(seed, fault=fault), "")], near_misses=True)
    assert j.right, j.wrong
