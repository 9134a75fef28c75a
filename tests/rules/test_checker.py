"""The checker itself: false rules are rejected, by the check that should see them and in words that help."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnx_egraph.egraph.checking.comparison import differs
from onnx_egraph.egraph.checking.sample import Sample, draw, parse
from onnx_egraph.egraph.checking.soundness import Checker, check, replay
from onnx_egraph.egraph.engine.lang import Int, Sides, Tensor, dim, eq, le, lt, num, rank, rule, slice_, variable
from onnx_egraph.egraph.errors import RuleError
from onnx_egraph.rules import ALL

from .bad_rules import BAD, Bad, wrong_equation
from .test_sound import CHECKS


@pytest.mark.parametrize("bad", BAD, ids=lambda b: f"{b.rule.name}-{b.check}")
def test_a_false_rule_is_rejected(bad: Bad) -> None:
    problems = CHECKS[bad.check](Checker(bad.rule))
    assert problems
    assert bad.says in problems[0], problems[0]
    assert bad.rule.name in problems[0]


@pytest.mark.parametrize("made", list({b.rule.name: b.rule for b in BAD}.values()), ids=lambda r: r.name)
def test_the_whole_check_rejects_it_too(made: object) -> None:
    assert check(made)  # type: ignore[arg-type]


def test_a_true_rule_passes() -> None:
    assert check(next(r for r in ALL if r.name == "rot-parts")) == []


def test_a_problem_can_be_run_again() -> None:
    problem = Checker(wrong_equation, seed=3).equal()[0]
    again = problem.splitlines()[-1]
    case, seed = again.split("replay(rule, ")[1].split(")")[0].split(", ")
    assert replay(wrong_equation, case.strip("'"), int(seed)) == [problem]


def test_the_same_seed_draws_the_same_sample() -> None:
    assert Checker(wrong_equation, seed=1).equal() == Checker(wrong_equation, seed=1).equal()
    assert Checker(wrong_equation, seed=1).equal() != Checker(wrong_equation, seed=2).equal()


def test_a_guard_that_fails_binds_nothing_and_those_after_it_are_not_asked() -> None:
    @rule(holds={"x": "b 4"}, refuse=[{"x": "4"}])
    def whole(x: Tensor, n: Int) -> Sides:
        """-(-x) = x[0:n on axis -2]   where that is all of it"""
        minus = -x
        return Sides(-minus, slice_(x, 0, n, -2), when=[eq(dim(x, -2), num(n)), lt(n + 1, 2**20)])

    @rule(expand={"k": (1, 2)}, holds={"x": "b 4"}, refuse=[{"x": "4"}])
    def either(x: Tensor, n: Int, k: int) -> Sides:
        """-(-x) = x[0:n on axis -k]   where that is all of it"""
        minus = -x
        return Sides(-minus, slice_(x, 0, n, -k), when=[eq(dim(x, -k), num(n))])

    assert check(whole) == []
    assert "must refuse" in check(either)[0]


def test_a_rule_without_samples_is_a_problem() -> None:
    @rule(holds=[])
    def unshown(x: Tensor) -> Sides:
        """-(-x) = x"""
        minus = -x
        return Sides(-minus, x)

    assert "nothing shows that the rule can fire" in check(unshown)[0]


@pytest.mark.parametrize(
    ("sample", "says"),
    [
        (dict(x="b s!", y="b"), "is no dimension"),
        (dict(x="b"), "gives no shape for 'y'"),
        (dict(x="b", y="b", z="b"), "'z', which is no variable"),
        (dict(x="B", y="b"), "two or more numbers"),
        (dict(x="B C", y="b", B=(1, 2), C=(1, 2, 3)), "two or more numbers"),
        (dict(x="B", y="b", B=(1,)), "two or more numbers"),
    ],
)
def test_a_sample_outside_the_language_is_named(sample: dict[str, Any], says: str) -> None:
    with pytest.raises(RuleError, match=says):
        Sample(sample, {"x": "T", "y": "T"})


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        ("b s 2h", (2, 3, 10), "float32"),
        ("b*s 3*h", (6, 15), "float32"),
        ("", (), "float32"),
        ("b:int64", (2,), "int64"),
        ("positive b 4:float16", (2, 4), "float16"),
        ("=1e-6", (), "float32"),
        ("=2:1 1", (1, 1), "float32"),
        ("=2:float16", (), "float16"),
        ("ints b -1 2h", (3,), "int64"),
        ("ids 5 b s", (2, 3), "int64"),
        ("ids= 1 2 3 4", (4,), "int64"),
        ("doubled0 s 2h", (3, 10), "float32"),
        ("s:bool", (3,), "bool"),
        ("b t+1 2h+3:int32", (2, 8, 13), "int32"),
        ("causal 3 3", (3, 3), "float32"),
        ("hiding b 1 s t", (2, 1, 3, 7), "float32"),
        ("lowest b 1 s t:float16", (2, 1, 3, 7), "float16"),
    ],
)
def test_the_language_of_samples(text: str, shape: tuple[int, ...], dtype: str) -> None:
    sample = Sample({"x": text}, {"x": "T"})
    x = draw(sample, {"b": 2, "s": 3, "h": 5, "t": 7}, np.random.default_rng(0)).env["x"]
    assert (x.shape, str(x.dtype)) == (shape, dtype)


def test_values_follow_their_word() -> None:
    def value(text: str) -> np.ndarray:
        return np.asarray(draw(Sample({"x": text}, {"x": "T"}), {"h": 3}, np.random.default_rng(1)).env["x"])

    assert value("ints 4 -1 2h").tolist() == [4, -1, 6]
    assert value("=0.5:1").tolist() == [0.5]
    assert (value("positive 50") > 0).all()
    assert (value("causal 3 3") < 0).tolist() == [[False, True, True], [False, False, True], [False] * 3]
    assert set(value("ids 3 60").tolist()) == {0, 1, 2}
    assert np.isneginf(value("hiding 2 3 4")).tolist() == [[[True] * 4, [False] * 4, [False] * 4]] * 2
    assert (value("lowest 2 3 4") == np.finfo(np.float32).min).all(-1).tolist() == [[True, False, False]] * 2
    halves, pairs = value("doubled0 4 2h"), value("doubled1 4 2h")
    assert np.array_equal(halves[:, :3], halves[:, 3:])
    assert np.array_equal(pairs[:, ::2], pairs[:, 1::2])
    signed = value("signed0 4 2h")
    assert np.array_equal(signed[:, :3], -signed[:, 3:])


def test_exact_rules_meet_special_values() -> None:
    sample = Sample({"x": "40", "i": "40:int32"}, {"x": "T", "i": "T"})
    drawn = draw(sample, {}, np.random.default_rng(0), special="all")
    x, i = drawn.env["x"], drawn.env["i"]
    tiny = np.finfo(np.float32).smallest_subnormal
    assert np.isnan(x).any()
    assert {np.inf, -np.inf, tiny} <= set(x[~np.isnan(x)].tolist())
    assert (np.signbit(x) & (x == 0)).any()
    assert {np.iinfo(np.int32).min, np.iinfo(np.int32).max} <= set(i.tolist())


@pytest.mark.parametrize(
    ("x", "y", "same"),
    [
        (np.float32([0.0]), np.float32([-0.0]), False),
        (np.float32([np.nan]), np.float32([-np.nan]), True),
        (np.float32([1.0]), np.float32([np.nextafter(np.float32(1), np.float32(2))]), False),
        (np.float32([1.0]), np.float64([1.0]), False),
        (np.float32([1.0]), np.float32([[1.0]]), False),
        (np.int64([3]), np.int64([3]), True),
    ],
)
def test_equal_bits(x: np.ndarray, y: np.ndarray, same: bool) -> None:
    assert (differs(x, y) == "") is same


def test_letters_that_must_differ_differ_in_the_plain_draws() -> None:
    letters = Sample({"x": "b s 2h 5"}, {"x": "T"}).distinct()
    assert len(set(letters.values())) == 3
    assert 5 not in letters.values()


def test_capitals_are_symbols_of_given_numbers() -> None:
    sample = Sample(dict(x="B s", y="C*s", B=(2, 3), C=(2, 5)), {"x": "T", "y": "T"})
    letters = sample.distinct()
    assert letters | {"B": 2, "C": 2} == letters
    assert sample.twin(letters) == letters | {"B": 3, "C": 5}
    drawn = [sample.random(np.random.default_rng(seed)) for seed in range(20)]
    assert {(d["B"], d["C"]) for d in drawn} == {(2, 2), (3, 5)}


def test_an_absent_operand_is_none_and_has_no_rank() -> None:
    drawn = draw(Sample({"x": "absent"}, {"x": "T"}), {}, np.random.default_rng(0))
    assert drawn.env["x"] is None
    assert not le(rank(variable("x", Tensor)), 4).test(drawn.env)


def test_constants_know_it() -> None:
    assert [parse(t).constant for t in ("=1", "ints 1 2", "doubled0 4", "ids= 1 2", "b", "ids 5 b")] == [True] * 4 + [
        False
    ] * 2
