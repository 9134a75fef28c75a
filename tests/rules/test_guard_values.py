"""Guards and facts are values: what they say, print, bind and ask for is read from their parts."""

from __future__ import annotations

import numpy as np
import pytest

from onnx_egraph.egraph.engine.fact import FACTS, counted, doubled, turns
from onnx_egraph.egraph.engine.guard import Guard
from onnx_egraph.egraph.engine.lang import (
    Int,
    Ints,
    Tensor,
    at,
    count,
    dim,
    eq,
    is_const,
    le,
    load_egglog,
    lowest,
    near,
    num,
    rank,
    real,
    reshape,
    same_batch,
    scalar,
    supported,
    symbolic,
    tensor,
    transpose,
    variable,
    within,
)  # fmt: skip
from onnx_egraph.egraph.engine.rule import Rule
from onnx_egraph.rules import ALL

X, C, T = Tensor("var", ("x",)), Tensor("var", ("c",)), Tensor("var", ("t",))
H, P = Int("var", ("h",)), Ints("var", ("p",))


@pytest.mark.parametrize(
    ("guard", "says", "text"),
    [
        (eq(dim(X, -1), num(1)), "dim(x, -1) = 1", "(= (dim x -1) (DNum 1))"),
        (eq(scalar(C), real(1.0)), "value(c) = 1.0", "(= (fval c) 1.0)"),
        (
            le(rank(C), rank(reshape(X * C, T))),
            "rank(c) <= rank(Reshape(Mul(x, c), t))",
            "(<= (rank c) (rank (Reshape (Mul x c) t)))",
        ),
        (
            same_batch(transpose(X, (0, 2, 1, 3)), C),
            "Transpose(x, vec-of(0, 2, 1, 3)) and c have one batch size",
            "(same-batch (Transpose x (vec-of 0 2 1 3)) c)",
        ),
        (
            eq(dim(X, -1), num(2 * H)),
            "dim(x, -1) = 2 * h",
            "(= (DNum hx2) (dim x -1)) (= h (/ hx2 2)) (= 0 (% hx2 2))",
        ),
        (eq(at(P, 1), 2), "vec-get(p, 1) = 2", "(= (vec-get p 1) 2)"),
        (near(H, 0.5, 0.1), "h within 0.1 of 0.5", "(< (abs (- h 0.5)) 0.1)"),
        (is_const(C), "c is a constant", "(const c)"),
        (within(X, -1, C, -2), "axis -1 of x broadcasts into c", "(within x c -1 -2)"),
        (symbolic(dim(X, -3), "any"), "dim(x, -3) is not fixed", "(= (dim x -3) (DSym any))"),
        (supported("Gelu", X), "the target runs Gelu on the element type of x", '(supported "Gelu" (dtype x))'),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_a_guard_is_said_and_printed(guard: Guard, says: str, text: str) -> None:
    assert guard.says == says
    assert " ".join(f.text() for f in guard.facts) == text


@pytest.mark.parametrize(
    ("guard", "needs", "binds"),
    [
        (eq(dim(X, -1), num(H)), {"x"}, {"h"}),
        (eq(dim(X, -1), dim(C, -1)), {"x", "c"}, set()),
        (eq(num(H), dim(X, -1)), {"x"}, {"h"}),
        (eq(count(P), 3), {"p"}, set()),
        (le(H, 3), {"h"}, set()),
        (lowest(C), set(), {"c"}),
    ],
)
def test_a_fact_knows_what_it_binds(guard: Guard, needs: set[str], binds: set[str]) -> None:
    (fact,) = guard.facts
    assert fact.binds() == binds
    assert fact.variables() - fact.binds() == needs


def test_all_relations_of_guards_are_declared() -> None:
    asked = {f.head for r in ALL for s in r.sides for g in s.when for f in g.facts}
    assert asked - {"=", "!=", "<", "<="} <= set(FACTS)


def test_a_law_asks_for_operators() -> None:
    rules = {r.name: r for r in ALL}
    assert rules["ms-rope-shared"].asks == {"MsRope"}
    assert rules["mul-one"].asks == frozenset()


TEXT = """
; name: from-text
; law: gelu(x) = x
(rule ((= r (Neg (Neg x))) (= t (dtype x)) (supported "Gelu" t) (= p (vector "1 0")))
      ((subsume (Neg (Neg x))) (union r x)))
"""


def test_a_text_of_the_caller_is_asked_the_same() -> None:
    rule: Rule = load_egglog(TEXT)
    assert rule.asks == {"Gelu"}
    assert rule.vectors == [{"1 0"}]


def test_a_recorded_law_equates_nothing() -> None:
    text = load_egglog(TEXT).text("fuse", relation="seen")
    assert "(seen r x)" in text
    assert "union" not in text
    assert "subsume" not in text
    replaces = next(r for r in ALL if any(s.replaces and not s.states for s in r.sides))
    assert "subsume" in replaces.text("fuse")
    assert "(seen _" in replaces.text("fuse", relation="seen")
    assert "subsume" not in replaces.text("fuse", relation="seen")


def test_equal_subterms_of_guards_are_named_by_the_left_side() -> None:
    y = tensor("Sin", variable("x", Tensor))
    rule = next(r for r in ALL if r.name == "reshape-squeeze")
    assert "(= (sizes _1) (sizes x))" in rule.text("fuse")
    assert rule.sides[0].pattern.named(eq(rank(y), 2).facts[0]).text() == "(= (rank (Sin x)) 2)"


@pytest.mark.parametrize(
    ("array", "found"),
    [
        (np.arange(3, 12, 2), (3, 12, 2)),
        (np.array([0, 1]), (0, 2, 1)),
        (np.array([2, 1, 0]), None),
        (np.array([-1, 0, 1]), None),
        (np.array([0, 1, 3]), None),
        (np.array([0]), None),
        (np.array([0.0, 1.0]), None),
        (np.array([0, 2**62, -(2**63), -(2**62)]), None),
    ],
)
def test_a_range_is_counted(array: np.ndarray, found: tuple[int, int, int] | None) -> None:
    assert counted(array) == found


def test_a_table_that_repeats_itself() -> None:
    t = np.array([[1.0, 2.0], [3.0, 4.0]])
    tables = [np.concatenate([t, t], -1), np.repeat(t, 2, -1), np.concatenate([-t, t], -1)]
    tables.append(np.stack([-t, t], -1).reshape(2, 4))
    ways = [(0, 1), (1, 1), (0, -1), (1, -1)]
    assert [[doubled(x, *way) for way in ways] for x in tables] == np.eye(4, dtype=bool).tolist()
    assert not doubled(np.concatenate([-t, t], -1) * [0.0, 1.0, 0.0, 1.0], 0, -1)
    assert not doubled(np.zeros(3), 0, 1)


def test_a_matrix_that_turns_pairs() -> None:
    halves, pairs = np.zeros((4, 4)), np.zeros((4, 4))
    halves[[2, 3], [0, 1]], halves[[0, 1], [2, 3]] = -1, 1
    pairs[[1, 3], [0, 2]], pairs[[0, 2], [1, 3]] = -1, 1
    x = np.array([1.0, 2.0, 3.0, 4.0])
    assert (x @ halves).tolist() == [-3, -4, 1, 2]
    assert (x @ pairs).tolist() == [-2, 1, -4, 3]
    ways = [(0, 1), (1, 1), (0, -1), (1, -1)]
    matrices = [halves, pairs, halves.T, pairs.T]
    assert [[turns(m, *way) for way in ways] for m in matrices] == np.eye(4, dtype=bool).tolist()
    assert not any(turns(m, 0, 1) for m in (2 * halves, np.abs(halves), halves[:2], np.eye(4), np.zeros((4, 4))))
