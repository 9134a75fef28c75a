"""Rules are proved for every size; false ones are not; and what numpy's functions do to symbols is what numpy does."""

from __future__ import annotations

import builtins
import math
import re
from collections.abc import Iterator
from pathlib import Path as File
from typing import Any

import numpy as np
import pytest
from scipy.special import erf

from onnx_egraph.egraph.checking.sample import Sample, draw
from onnx_egraph.egraph.checking.soundness import Checker
from onnx_egraph.egraph.engine.lang import Int, Sides, Tensor, concat, dim, eq, num, rule, slice_, tensor
from onnx_egraph.egraph.errors import RuleError
from onnx_egraph.egraph.proving.array import SymbolicArray
from onnx_egraph.egraph.proving.meaning import MEANINGS, applied
from onnx_egraph.egraph.proving.path import Path, Unproved
from onnx_egraph.egraph.proving.polynomial import Polynomial, constant, symbol
from onnx_egraph.egraph.proving.proof import prove
from onnx_egraph.egraph.proving.value import REDUCTIONS, Value, number
from onnx_egraph.egraph.terms import FLOAT, INT, OPS, IllFormed, Op
from onnx_egraph.egraph.terms.dtypes import CODES, NAMES, eps
from onnx_egraph.egraph.terms.expression import Expr
from onnx_egraph.egraph.terms.meaning import apply
from onnx_egraph.rules import ALL

from .bad_rules import BAD
from .mutants import changed_sides, dropped_guards

RULES = {r.name: r for r in ALL}
LINES = [line.split() for line in File(__file__).with_name("proved.txt").read_text().splitlines() if line[:1] != "#"]
QUICK = [name for name, *how in LINES if not how]
SLOW = [name for name, *how in LINES if how]
SECONDS = 60  # the longest takes ten, alone
SHARES = 4


# --------------------------------------------------------------------------------------------------------- the rules


@pytest.mark.parametrize("share", range(SHARES))
def test_rules_are_proved(share: int) -> None:
    for name in QUICK[share::SHARES]:
        found = prove(RULES[name], SECONDS)
        assert found.verdict == "proved", f"{name}: {found.why}"


@pytest.mark.deep
@pytest.mark.parametrize("name", SLOW)
def test_rules_are_proved_that_take_long(name: str) -> None:
    found = prove(RULES[name], SECONDS)
    assert found.verdict == "proved", found.why


#: What is wrong with these is no equation between numbers.
TRUE_LAWS = {
    "without-end": "it has no end",
    "refuses-what-holds": "its samples are wrong",
    "product-for-a-selection": "0 times infinity",
    "sum-for-a-selection": "infinity and 0",
    "root-of-any-number": "of -inf and -0",
}


@pytest.mark.parametrize("name", sorted({b.rule.name for b in BAD}))
def test_false_rules_are_not(name: str) -> None:
    bad = next(b.rule for b in BAD if b.rule.name == name)
    assert (prove(bad, 1).verdict == "proved") == (name in TRUE_LAWS)


MUTATED = (
    "slice-slice", "concat-slices", "reshape-nothing", "wide-concat", "wide-neg", "rot-parts", "gather-added-axis",
    "neg-mul", "unsqueeze-neg", "cast-twice", "stack-unsqueezed", "mul-one",
)  # fmt: skip


@pytest.mark.parametrize("name", MUTATED)
def test_what_numpy_refutes_is_not_proved(name: str) -> None:
    proved = [m for m in (*changed_sides(RULES[name]), *dropped_guards(RULES[name])) if _proved(m.rule)]
    for mutant in proved:
        assert not Checker(mutant.rule, samples=60, obligations=mutant.original).equal(), mutant.id


def _proved(r: Any) -> bool:
    return prove(r, 1).verdict == "proved"


# ------------------------------------------------------------------------------------------------- what is not proved


def test_a_sum_over_what_differs_from_place_to_place_is_not_decided() -> None:
    """Of cat(a, b) @ y each place of the sum is in a or in b, and never all of them in one."""

    @rule(contract="reassociated", holds={"a": "b s", "b": "b s", "y": "2s n"})
    def first_alone(a: Tensor, b: Tensor, y: Tensor, h: Int) -> Sides:
        """cat(a, b) @ y = a @ y[:h]"""
        return Sides(concat([a, b]) @ y, a @ slice_(y, 0, h, -2), when=[eq(dim(a, -1), num(h))])

    found = prove(first_alone, 5)
    assert found.verdict == "unproved"


def test_what_is_decided_of_one_result_says_nothing_of_another() -> None:
    """Of the first part the sides agree in one place alone, and the second is as large as the first."""

    @rule(holds={"x": "b 4", "y": "b 4"})
    def mixed_up(x: Tensor, y: Tensor, h: Int) -> Sides:
        """cat(x, y) = cat(x, y), which is also cat(y, x)"""
        whole = concat([x, y])
        return Sides(
            whole, concat([x, y]), when=[eq(dim(x, -1), num(h)), eq(dim(y, -1), num(h))],
            states=[(whole, concat([y, x]))],
        )  # fmt: skip

    assert prove(mixed_up, 5).verdict == "unproved"


def test_sums_of_two_sizes_are_told_apart() -> None:
    """A sum over n parts of m that is split says nothing of a sum over other sizes."""

    @rule(contract="reassociated", holds={"x": "b 6", "y": "b 4", "h": 2})
    def other_sum(x: Tensor, y: Tensor, h: Int) -> Sides:
        """sum(repeated halves of x) + sum(y) = sum(repeated halves of x) + sum(y[:, ::2])"""
        total = tensor("ReduceSum", tensor("Wide", x, 1, 1), (-1,), 1)
        some = slice_(y, 0, 2 * h - 1, -1, 2)
        return Sides(
            total + tensor("ReduceSum", y, (-1,), 1), total + tensor("ReduceSum", some, (-1,), 1),
            when=[eq(dim(y, -1), num(2 * h))],
        )  # fmt: skip

    assert prove(other_sum, 5).verdict == "unproved"


def test_time_ends_a_proof() -> None:
    found = prove(RULES["transpose-transpose"], 0.2)
    assert (found.verdict, found.seconds < 2) == ("unproved", True)
    assert "time is up" in found.why


def test_why_names_the_reading_and_the_case() -> None:
    @rule(holds={"x": "b s"})
    def upside_down(x: Tensor) -> Sides:
        """-x = 1 / x"""
        return Sides(-x, tensor("Reciprocal", x))

    why = prove(upside_down, 5).why
    assert why.startswith("reading 0: ")
    assert "x[" in why


def test_a_law_for_no_tensor_is_vacuous() -> None:
    @rule(holds={"x": "b s"})
    def never(x: Tensor) -> Sides:
        """-x = x   where the last axis has 3 and 5 elements"""
        return Sides(-x, x, when=[eq(dim(x, -1), num(3)), eq(dim(x, -1), num(5))])

    assert prove(never, 5).verdict == "vacuous"


def test_without_the_solver_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *more: Any) -> Any:
        if name == "z3":
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(RuleError, match=r"onnx-egraph\[prove\]"):
        prove(RULES["slice-slice"], 5)


# -------------------------------------------------------------------------------------- numpy's functions on symbols


class Held:
    """An array, to be found in an element again."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array


def concrete(path: Path, x: Any) -> Any:
    """An operand of a sample as symbols that are known: numbers at known places."""
    if isinstance(x, list):
        return [concrete(path, part) for part in x]
    if not isinstance(x, np.ndarray):
        return x

    def at(index: tuple[Polynomial, ...]) -> Value:
        places = tuple(p.number for p in index)
        if None in places:  # the index of a sum among them
            return Value("at", Held(x), index)
        item = x[places].item()
        return Value("integer", constant(item)) if x.dtype.kind in "iu" else number(item)

    return SymbolicArray(path, x.shape, at, path.number(CODES[str(x.dtype)]))


_FUNCTIONS: dict[str, Any] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide, "negative": np.negative,
    "where": np.where, "maximum": np.maximum, "erf": erf, "floor_divide": np.floor_divide, "absolute": np.abs,
}  # fmt: skip


def whole(p: Polynomial, names: dict[str, int]) -> int:
    return sum(k * math.prod(names[s] for s in m) for m, k in p.terms.items())


def computed(v: Value, names: dict[str, int]) -> Any:
    """The number that an element is."""
    if v.kind == "integer":
        return whole(v.args[0], names)
    if v.kind == "number":
        return v.args[0]
    if v.kind == "at":
        return v.args[0].array[tuple(whole(p, names) for p in v.args[1])].item()
    if v.kind == "cast":
        return np.asarray(computed(v.args[2], names)).astype(NAMES[v.args[0].number])
    if v.kind in REDUCTIONS:
        size, name, body = v.args
        each = [computed(body, {**names, name: k}) for k in range(whole(size, names))]
        return {"sum": np.sum, "max": np.max, "all": np.all}[v.kind](each)
    function = _FUNCTIONS.get(v.kind) or getattr(np, v.kind)
    return function(*(computed(a, names) for a in v.args))


def terms_of_samples() -> Iterator[tuple[Op, list[Any]]]:
    """Terms of the rules with operands that a sample gives them."""
    seen: dict[str, int] = {}
    for r in ALL:
        sample = Sample(r.holds[0], r.variables)
        drawn = draw(sample, sample.distinct(), np.random.default_rng(0))
        env = {**drawn.letters, **drawn.env}
        for e in (t for s in r.sides[:1] for side in (s.lhs, s.rhs) for t in side.subterms()):
            if e.op is None or e.op.numpy is None or seen.get(e.op.name, 0) >= 3 or not e.variables() <= env.keys():
                continue
            try:
                args = [_operand(a, env) for a in e.args]
                apply(e.op, args)
            except (IllFormed, KeyError):
                continue
            seen[e.op.name] = seen.get(e.op.name, 0) + 1
            yield e.op, args


def _operand(e: Expr, env: dict[str, Any]) -> Any:
    from onnx_egraph.egraph.terms.meaning import evaluate

    value = evaluate(e, env)
    return int(value) if e.sort == INT else float(value) if e.sort == FLOAT else value


#: What numpy's functions need more of a type than its kind for, or do with sizes that no symbol can be.
NOT_ON_SYMBOLS = {"ClipBelow", "OnnxAttention", "OnnxAttention3", "MsGQA", "MsGQARope"}


def test_symbols_compute_what_numpy_does() -> None:
    told: set[str] = set()
    rng = np.random.default_rng(0)
    for op, args in terms_of_samples():
        wanted = apply(op, args)
        path = Path()
        try:
            found = applied(path, op, [concrete(path, a) for a in args])
        except Unproved:
            assert op.name in NOT_ON_SYMBOLS, op.name
            continue
        pairs = zip(found, wanted, strict=True) if isinstance(wanted, list) else [(found, wanted)]
        for symbols, array in pairs:
            if not isinstance(array, np.ndarray) or symbols is None:
                assert symbols is None or not isinstance(array, np.ndarray)
                continue
            assert tuple(int(s) for s in symbols.shape) == array.shape, op.name
            assert int(symbols.code) == CODES[str(array.dtype)], op.name
            some = sorted({0, array.size - 1, *rng.integers(max(array.size, 1), size=2)}) if array.size else []
            for index in zip(*np.unravel_index(some, array.shape), strict=True) if array.ndim else [()]:
                with np.errstate(all="ignore"):
                    value = computed(symbols.at(tuple(constant(int(i)) for i in index)), {})
                bound = (
                    64 * eps(str(array.dtype)) * max(1.0, float(np.abs(array).max())) if array.dtype.kind == "f" else 0
                )
                same = abs(float(value) - float(array[index])) <= bound or (np.isnan(value) and np.isnan(array[index]))
                assert same or float(value) == float(array[index]), f"{op.name} at {index}: {value} for {array[index]}"
        told.add(op.name)
        assert not path.others, f"{op.name} asks what is known"
    assert len(told) > 55


# ----------------------------------------------------------------------------------------------------- polynomials


def test_polynomials() -> None:
    x, y, two = symbol("x"), symbol("y"), constant(2)
    product = (x + y) * (x - y)
    assert product == x * x - y * y
    assert product.over(x + y) == x - y
    assert product.over(x + two) is None
    assert product.put({"x": y}) == constant(0)
    assert (two * x).over(two) == x
    assert x.over(two) is None
    assert str(two * x * y - constant(1)) == "-1 + 2*x*y"


def test_bounds_of_indices() -> None:
    path = Path()
    n, m = path.size("n").value, path.size("m").value
    i, j = path.index("i", n), path.index("j", m)
    place = i * m + j
    assert path.at_least_zero(n * m - place - constant(1))
    assert path.divided(place, m) == (i, j)
    assert not path.at_least_zero(m - n)
    whole = path.index("k", n * m)
    assert path.divided(whole, m)[1] == symbol('k"')
    assert path.normal(whole) == symbol("k'") * m + symbol('k"')


def test_the_list_names_rules() -> None:
    names = [name for name, *_ in LINES]
    assert names == sorted(set(names))
    assert set(names) <= RULES.keys()
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in names)


def test_declarations_name_meanings_on_symbols_that_there_are() -> None:
    assert {op.symbolic for op in OPS.values()} - {""} == set(MEANINGS)
