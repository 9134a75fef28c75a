"""Derivations and the naming of false rules, on hand-made graphs without any ONNX."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from onnx_egraph.egraph.engine.lang import Sides, Tensor, call, dim, eq, num, rule, transpose
from onnx_egraph.egraph.engine.rule import STAGES, Rule, load_egglog
from onnx_egraph.egraph.engine.saturate import Engine, Limits
from onnx_egraph.egraph.engine.term_graph import TermGraph
from onnx_egraph.egraph.errors import RuleError, UnsoundMerge
from onnx_egraph.egraph.explanation.conflict import saturate
from onnx_egraph.egraph.explanation.evaluation import NumberSource
from onnx_egraph.egraph.explanation.explain import Derivation, derive
from onnx_egraph.egraph.explanation.region import Regions
from onnx_egraph.egraph.extraction.extract import ENode, extract
from onnx_egraph.egraph.targets import target
from onnx_egraph.rules import ALL

CPU = target("cpu")


class Small(TermGraph):
    """A term graph with inputs that know their type and dims."""

    def input(self, *dims: int | str, dtype: int = 1) -> int:
        term = self.add("Input", sum(len(rows) for rows in self.rows.values()))
        self.state("dtype", term, dtype)
        self.dims(term, dims)
        return term

    def number(self, value: float) -> int:
        term = self.add("Const", sum(len(rows) for rows in self.rows.values()))
        self.state("dtype", term, 1)
        self.dims(term, ())
        self.state("const", term)
        self.state("fval", term, repr(value))
        return term


def rms_norm(g: Small, x: int, w: int, eps: float = 1e-6) -> int:
    square = g.add("Pow", x, g.number(2.0))
    root = g.add("Sqrt", g.add("Add", g.add("ReduceMean", square, (-1,), 1), g.number(eps)))
    return g.add("Mul", g.add("Div", x, root), w)


def optimize(g: TermGraph, rules: Sequence[Rule], prices: dict[str, int]) -> tuple[Regions, int]:
    """The cheapest term of the only root, at the given prices (others 10), and its class."""
    engine = Engine(rules, CPU)
    engine.load(g)
    saturate(engine, Limits())
    frozen = engine.freeze()
    ops = {**g.ops, **engine.extra_ops}
    rows = [r for r in frozen.rows if not ops[r.op].marker]
    root = frozen.values[g.roots[0]]
    found = extract([ENode(r.cls, r.children, prices.get(r.op, 10)) for r in rows], [root])
    return Regions(g, frozen, {c: rows[k] for c, k in found.choice.items()}, list(rules)), root


@pytest.fixture
def rms() -> Small:
    g = Small()
    g.roots = [rms_norm(g, g.input("b", "s", 64), g.input(64))]
    return g


def test_a_derivation_is_a_minimal_chain_that_replays(rms: Small) -> None:
    regions, root = optimize(rms, ALL, {})
    found = derive(regions, root, CPU, NumberSource())
    assert found.complete
    assert found.rules == ("pow-two", "rnorm-div", "rms-norm")
    assert found == derive(regions, root, CPU, NumberSource()), "a derivation is deterministic"
    assert found.original == "x/sqrt(mean(x**2, [-1], 1) + 1e-06)*y"
    assert found.result == "RMSNorm(x, y, 1e-06)"
    assert [(s.before, s.after) for s in found.steps] == [
        ("x**2", "x*x"),
        ("x/sqrt(mean(x*x, [-1], 1) + 1e-06)", "RNorm(x, 1e-06)"),
        ("RNorm(x, 1e-06)*y", "RMSNorm(x, y, 1e-06)"),
    ]
    by_name = {r.name: r for r in ALL}
    again, _ = optimize(rms, [by_name[name] for name in found.rules], {})
    assert any(r.op == "RMSNorm" for r in again.choice.values()), "the named rules alone reach the result"
    for name in found.rules:
        without, _ = optimize(rms, [by_name[n] for n in found.rules if n != name], {})
        assert not any(r.op == "RMSNorm" for r in without.choice.values()), f"{name} is needed"


def test_every_step_is_checked_with_numbers(rms: Small) -> None:
    regions, root = optimize(rms, ALL, {})
    steps = derive(regions, root, CPU, NumberSource()).steps
    compared = [s.compared for s in steps]
    assert compared[0] > 0
    assert compared == sorted(compared)
    assert compared[-1] > compared[0]
    assert all(s.error < 64 * 2.0**-23 for s in steps)
    assert all(not s.false for s in steps)


@rule(holds=dict(x="b s"))
def twice_is_thrice(x: Tensor) -> Sides:
    """x + x = x + x + x"""
    return Sides(x + x, x + x + x)


@rule(stage="fuse", holds=dict(x="b s"))
def made_up_gelu(x: Tensor) -> Sides:
    """x + x + x = Gelu(x)"""
    return Sides(x + x + x, call("Gelu", x))


def test_a_false_step_is_pointed_out() -> None:
    g = Small()
    x = g.input("b", "s")
    g.roots = [g.add("Add", x, x)]
    regions, root = optimize(g, [twice_is_thrice, made_up_gelu], {"Gelu": 1})
    found = derive(regions, root, CPU, NumberSource())
    assert found.rules == ("twice-is-thrice", "made-up-gelu")
    assert found.steps[0].false
    assert "FALSE" in found.text()


def test_rules_of_a_region_leave_out_what_did_not_lead_there(rms: Small) -> None:
    regions, root = optimize(rms, ALL, {})
    region = regions.of(root)
    names = [ALL[k].name for k in regions.candidates(region)]
    assert set(derive(regions, root, CPU, NumberSource()).rules) <= set(names)
    stages = ["normal", "marker", "fuse", "target"]
    order = [stages.index(ALL[k].stage) for k in regions.candidates(region)]
    assert order == sorted(order)
    assert not any(name.startswith(("wide", "rope", "rot")) for name in names)


def test_equal_regions_have_equal_shapes() -> None:
    g = Small()
    x, w = g.input("b", "s", 64), g.input(64)
    y = rms_norm(g, x, w)
    z = rms_norm(g, y, g.input(64))
    g.roots = [rms_norm(g, z, g.input(64), eps=1e-5)]
    regions, root = optimize(g, ALL, {})
    inner = [regions.frozen.values[t] for t in (y, z)]
    shapes = [regions.shape(regions.of(c)) for c in (*inner, root)]
    assert shapes[0] == shapes[1]
    assert shapes[0] != shapes[2], "another epsilon"


# ------------------------------------------------------------------------------------------------ false rules


@rule(holds=dict(x="b s"))
def cast_is_nothing(x: Tensor) -> Sides:
    """cast(x, f16) = x"""
    return Sides(call("Cast", x, 10), x)


@rule(holds=dict(x="b s"))
def transpose_is_nothing(x: Tensor) -> Sides:
    """transpose(x, 10) = x"""
    return Sides(transpose(x, (1, 0)), x)


@rule(holds=dict(x="b s"))
def negate_one(x: Tensor) -> Sides:
    """-x = x, without its last axis"""
    return Sides(-x, call("Squeeze", x, -1), when=[eq(dim(x, -1), num(1))])


def _graph(op: str, *args: object, dims: tuple[int, ...] = (2, 3)) -> Small:
    g = Small()
    x = g.input(*dims)
    g.roots = [g.add("Tanh", g.add(op, g.add("Exp", x), *args))]
    return g


@pytest.mark.parametrize(
    ("false", "graph", "terms", "fact"),
    [
        (cast_is_nothing, _graph("Cast", 10), "cast(exp(x0), 10) and exp(x0)", "dtype float16 and float32"),
        (
            transpose_is_nothing,
            _graph("Transpose", (1, 0)),
            "transpose(exp(x0), [1, 0]) and exp(x0)",
            "dim -1: 2 and 3",
        ),
        (negate_one, _graph("Neg", dims=(2, 1)), "-exp(x0) and squeeze(exp(x0), -1)", "rank 2 and 1"),
    ],
)
def test_a_contradiction_names_the_rule_and_both_terms(false: Rule, graph: Small, terms: str, fact: str) -> None:
    rules = [*ALL[:5], false, *ALL[5:]]
    engine = Engine(rules, CPU)
    engine.load(graph)
    with pytest.raises(UnsoundMerge) as caught:
        saturate(engine, Limits())
    message = str(caught.value)
    assert message == f"rule {false.name} is false ({false.law}): it equates {terms} ({fact})"


@pytest.mark.parametrize("place", ["", *(f" :ruleset {stage}" for stage in STAGES)])
def test_a_false_rule_in_text_is_named_as_well(place: str) -> None:
    text = f"; name: exp-is-half\n; law: exp(x) = cast(exp(x), f16)\n(rewrite (Exp x) (Cast (Exp x) 10){place})"
    engine = Engine([*ALL, load_egglog(text, stage="normal")], CPU)
    engine.load(_graph("Neg"))
    with pytest.raises(UnsoundMerge, match=r"rule exp-is-half is false .*equates exp\(x0\) and cast\(exp\(x0\), 10\)"):
        saturate(engine, Limits())


def test_facts_that_contradict_before_any_rule() -> None:
    g = _graph("Neg")
    g.state("dtype", g.roots[0], 10)
    engine = Engine(ALL, CPU)
    engine.load(g)
    with pytest.raises(UnsoundMerge, match="before any rule has run"):
        saturate(engine, Limits())


# ---------------------------------------------------------------------------------------- rules in plain text


def test_text_rules_say_where_they_matched() -> None:
    text = """
    ; name: double-negation
    ; law: -(-x) = x
    (rewrite (Neg (Neg x)) x)   ; a comment (with a parenthesis
    (rule ((= a (Sub x (Neg y)))) ((union a (Add x y))))
    """
    mine = load_egglog(text, stage="normal")
    g = Small()
    x, y = g.input(2, 3), g.input(2, 3)
    double, minus = g.add("Neg", g.add("Neg", x)), g.add("Sub", x, g.add("Neg", y))
    g.roots = [g.add("Mul", double, minus)]
    engine = Engine([mine], CPU)
    engine.load(g)
    saturate(engine, Limits())
    frozen = engine.freeze()
    assert frozen.values[double] == frozen.values[x]
    assert {frozen.values[x], frozen.values[minus]} <= set(frozen.why)
    assert frozen.values[y] not in frozen.why
    assert mine.takes_and_makes == [(frozenset({"Neg", "Sub"}), frozenset({"Add"}))]


@pytest.mark.parametrize("named", STAGES)
@pytest.mark.parametrize("stage", STAGES)
def test_a_form_that_names_a_ruleset_runs_where_no_other_rule_does(stage: str, named: str) -> None:
    text = f"; name: twice-negated\n; law: -(-x) = x\n(rewrite (Neg (Neg x)) x :ruleset {named})"
    g = Small()
    x = g.input(2, 3)
    g.roots = [g.add("Neg", g.add("Neg", x))]
    mine = load_egglog(text, stage=stage)
    engine = Engine([mine], CPU)
    engine.load(g)
    assert saturate(engine, Limits()).complete
    frozen = engine.freeze()
    assert frozen.values[g.roots[0]] == frozen.values[x]
    assert mine.takes_and_makes == [(frozenset({"Neg"}), frozenset())]
    assert frozen.why[frozen.values[x]] == {0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(rewrite (Neg (Neg x)) x)", "starts with '; name"),
        ("; name: a\n; law: b\n(rewrite (Neg (Neg x) x)", "unbalanced"),
        ("; name: a\n; law: b\n(rewrite (Neg x) x))", "unbalanced"),
        ("; name: a\n; law: b\n(rewrite (Neg x))", "too few"),
        ("; name: a\n; law: b\n(rewrite (Neg x) x :subsume)", "only :when"),
    ],
)
def test_malformed_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        load_egglog(text)


def test_an_unknown_term_in_text_names_the_rule() -> None:
    mine = load_egglog("; name: a-b\n; law: b\n(rewrite (Negg x) x)")
    with pytest.raises(RuleError, match=r"rule a-b: .*Negg"):
        Engine([mine], CPU)


def test_a_derivation_prints_what_it_is() -> None:
    empty = Derivation("x", (), "y", complete=False)
    assert empty.text() == "  x\n  = y, but not by these rules alone: none matched"
    tried = Derivation("x", (), "y", complete=False, tried=("a", "b"))
    assert tried.text().endswith("= y, but not by these rules alone: a, b")
