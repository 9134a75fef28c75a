"""A model saturated once: what is taken out of it, again and again, and what else there would have been."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from onnx import parser

from onnx_egraph import (
    Limits,
    Measured,
    NodeCount,
    Roofline,
    Sides,
    Space,
    Table,
    Tensor,
    Work,
    Workload,
    apply,
    call,
    operator,
    rule,
    rules,
    saturate,
    saturate_and_extract,
)
from onnx_egraph.egraph.errors import CostError, EGraphError, ModelError
from onnx_egraph.result import Result

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "examples" / "qwen3_2layers.onnx"
BODIES = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[b, 4] x, bool c) => (float[b, 4] y, float[b, 4] twice) {
    two = Constant <value = float {2.0}> ()
    doubled = Mul (x, two)
    same = Identity (doubled)
    root = Sqrt (same)
    y = If (c) <
        then_branch = then () => (float[b, 4] a) { kept = Identity (same)  a = Add (kept, root) },
        else_branch = other () => (float[b, 4] e) {
            e = If (c) <
                then_branch = inner () => (float[b, 4] i) { j = Neg (same)  i = Neg (j) },
                else_branch = last () => (float[b, 4] k) { k = Identity (x) }
            >
        }
    >
    twice = Identity (same)
}
"""


ODD = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[b, 4] x, float[4] given = {1, 2, 3, 4})
  => (float[b, 4] x, float[4] kept, float[b, 4] y, float[b, 4] again, float[4] given)
  <float[4] kept = {1, 2, 3, 4}> {
    z = Mul (x, kept)
    copy = Identity (z)
    y = Neg (copy)
    turned = Neg (z)
    again = Identity (turned)
}
"""


def saved(result: Result[Any], path: Path) -> bytes:
    result.save(path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def space() -> Space:
    return saturate(MODEL)


class DearTables(Roofline):
    """As if a product with a table of angles took a second."""

    def cost(self, work: Work) -> int:
        return super().cost(work) + (10**12 if work.op in ("MsRope", "MsRope3", "OnnxRope", "OnnxRope3") else 0)


@pytest.mark.parametrize("source", [MODEL, *map(parser.parse_model, (BODIES, ODD))], ids=["one graph", "bodies", "odd"])
def test_what_is_taken_out_is_what_one_call_gives(source: Any, tmp_path: Path) -> None:
    whole, space = saturate_and_extract(source), saturate(source)
    want = saved(whole, tmp_path / "want.onnx")
    assert space.extract().report.needs == whole.report.needs
    assert saved(space.extract(), tmp_path / "first.onnx") == want
    space.extract(cost=NodeCount())
    space.extract(cost=DearTables(), dims=[Workload("decode", past=64)])
    assert saved(space.extract(), tmp_path / "again.onnx") == want


def test_bodies_are_optimized_and_the_source_is_as_it_was() -> None:
    source = parser.parse_model(BODIES)
    before = source.SerializeToString()
    result = saturate(source).extract(verify=True)
    assert isinstance(result.model, onnx.ModelProto)
    assert source.SerializeToString() == before
    assert result.report.verified
    left = Counter(node.op_type for graph in result._ir.graphs() for node in graph)
    assert left == {"Mul": 1, "Sqrt": 1, "If": 2, "Add": 1, "Identity": left["Identity"]}
    assert left["Identity"] <= 3


def test_another_cost_model_takes_another_graph(space: Space) -> None:
    assert space.extract().report.counts()["RotaryEmbedding"] == 4
    dear = space.extract(cost=DearTables(), verify=True)
    assert "RotaryEmbedding" not in dear.report.counts()
    assert dear.report.predicts == "cost"
    assert dear.report.verified
    assert space.report.fused == []
    assert space.report.egraph["tuples"] == dear.report.egraph["tuples"] > 1000


def test_results_share_no_nodes(space: Space) -> None:
    first, second = space.extract(), space.extract()
    assert isinstance(first.model, ir.Model)
    assert isinstance(second.model, ir.Model)
    first.model.graph.node(0).name = "renamed"
    next(iter(first.model.graph.inputs)).name = "other"
    assert "renamed" not in {n.name for n in second.model.graph}
    assert "other" not in {v.name for v in space.extract().model.graph.inputs}


def test_a_space_that_a_limit_stopped_says_so() -> None:
    space = saturate(MODEL, limits=Limits(iterations=1))
    assert space.report.stop == "iteration limit 1"
    assert space.extract().report.stop == space.extract().report.stop == "iteration limit 1"
    full = saturate(MODEL, limits=Limits(tuples=10))
    assert "tuple limit" in full.extract().report.unchanged
    with pytest.raises(ModelError, match="no e-class of 'logits'"):
        full.alternatives("logits")


@pytest.mark.parametrize("limits", [Limits(tuples=10), Limits(seconds=1e-6)])
def test_a_limit_is_why_there_is_no_class(limits: Limits) -> None:
    with pytest.raises(ModelError, match=r"no e-class of 'logits': a limit was reached: .* limit"):
        saturate(MODEL, limits=limits).alternatives("logits")


@pytest.mark.parametrize("name", [None, "", 3])
def test_what_is_no_name_is_refused(name: Any) -> None:
    """Nodes may have none, and then it is not theirs."""
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[n] y) { y = Exp (x) }'
    )
    with pytest.raises(ModelError, match=f"{name!r} is no name"):
        saturate(model).alternatives(name)


def test_a_model_that_is_left_alone_has_a_space_of_nothing() -> None:
    model = parser.parse_model('<ir_version: 8, opset_import: ["com.microsoft" : 1]> g (float[2] x) => (float[2] y) '
                               "{ y = com.microsoft.Gelu (x)  z = Relu (y) }")  # fmt: skip
    space = saturate(model)
    assert "import one" in space.extract().report.unchanged
    assert len(space.extract().costs()) == 0
    assert [r.report.unchanged for r in space.best(2)] == [space.extract().report.unchanged]


# ---- workloads


def test_workloads_are_sizes_with_weights(space: Space) -> None:
    decode, prefill = Workload("decode"), Workload("prefill", new=128)
    both = space.extract(dims=[decode, prefill]).report
    assert both.workloads == ["decode", "prefill"] == space.extract().report.workloads
    assert both.cost_before == space.extract().report.cost_before
    one, other = (space.extract(dims=[w]).report.cost_before for w in (decode, prefill))
    assert both.cost_before == one + other
    assert space.extract(dims=[replace(decode, weight=3), prefill]).report.cost_before == 3 * one + other
    halves = [replace(decode, weight=0.5), replace(prefill, weight=0.25)]
    half = space.extract(dims=halves).report.cost_before
    assert abs(half - (one / 2 + other / 4)) <= 607  # each node's price is a whole number
    named = space.extract(dims=[Workload("wide", {"batch": 4}, past=64)]).report
    assert named.cost_before == space.extract(dims=[Workload("wide", batch=4, past=64)]).report.cost_before


@pytest.mark.parametrize(("dims", "says"), [
    ([Workload("a"), Workload("a", new=2)], "two workloads are named 'a'"),
    ([], "a list of Workload"),
    ("decode", "a list of Workload"),
    ([Workload("a", {"heads": 3})], "no input of the model has a dimension named 'heads'"),
])  # fmt: skip
def test_wrong_workloads(space: Space, dims: Any, says: str) -> None:
    for ask in (space.extract, space.best, lambda dims: saturate_and_extract(MODEL, dims=dims)):
        with pytest.raises(ModelError, match=says):
            ask(dims=dims) if ask != space.best else space.best(1, dims=dims)


@pytest.mark.parametrize(("given", "says"), [
    (dict(name=""), "a text is wanted"), (dict(name="a", dims={"seq": 0}), r"dims\['seq'\] is 0"),
    (dict(name="a", new=-1), "new is -1"), (dict(name="a", past=True), "past is True"),
    (dict(name="a", weight=0), "its weight is 0"),
    (dict(name="a", weight=float("inf")), "its weight is inf"), (dict(name="a", dims=[3]), "dims is"),
    (dict(name="a", weight=1e-300), "a number from 0.001 to 1000000"), (dict(name="a", weight=10**400), "is wanted"),
    (dict(name="a", dims={"batch": 0}), r"dims\['batch'\] is 0"), (dict(name="a", dims={"new": [1, 2]}), "is .1, 2."),
    (dict(name="a", dims={"past": "x"}), "is 'x'"),
])  # fmt: skip
def test_no_workload(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        Workload(**given)


@pytest.mark.parametrize("weight", [0.01, Fraction(1, 3), 1000])
def test_what_weights_are_counted_in_changes_no_choice(weight: float, space: Space) -> None:
    """Nor whether a newer operator set pays."""
    for news in ([1], [1, 7]):
        plain, scaled = (
            space.extract(dims=[Workload(f"{new}", new=new, weight=w) for new in news]) for w in (1, weight)
        )  # fmt: skip
        assert scaled.report.counts() == plain.report.counts()
        assert scaled.report.needs == plain.report.needs
        assert scaled.report.cost_after == pytest.approx(plain.report.cost_after * weight, rel=0.01)


# ---- costs


def test_another_cost_model_is_asked_only_for_prices(
    space: Space, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked, prices = list[Work](), Roofline()

    class Counting:
        def cost(self, work: Work) -> int:
            asked.append(work)
            return prices.cost(work)

    first = saved(space.extract(), tmp_path / "first.onnx")

    def refused(*_: object) -> None:
        raise AssertionError("what is on offer was worked out again")

    monkeypatch.setattr("onnx_egraph.lowering.space.Offers", refused)
    again = space.extract(cost=Counting())
    assert saved(again, tmp_path / "again.onnx") == first
    assert again.report.workloads == ["decode", "prefill"]
    texts = [repr(work) for work in asked if not work.attrs]  # a tensor among them equals itself alone
    assert max(Counter(zip(texts[::2], texts[1::2], strict=True)).values()) == 1  # layers ask the same, once
    with pytest.raises(AssertionError, match="worked out again"):
        space.extract(dims=[Workload("another", past=3)])


def test_costs_of_the_nodes_are_the_cost_of_the_result(space: Space) -> None:
    for result in (space.extract(), space.extract(dims=[Workload("a", weight=2), Workload("b", new=7)])):
        table = result.costs()
        graph = result._ir.graph
        assert [row.op.rpartition(":")[2] for row in table] == [node.op_type for node in graph]
        assert [row.node for row in table] == [node.name for node in graph]
        weights = [2, 1] if "a" in table.workloads else [1, 1]
        assert sum(c * w for row in table for c, w in zip(row.costs, weights, strict=True)) == result.report.cost_after
        assert sum(row.share for row in table) == pytest.approx(1)
        assert {row.op for row in table.by_operator()} == {row.op for row in table}
        assert all(name in table.text() for name in table.workloads)


@pytest.mark.parametrize("graph", [
    "{ y = Exp (x)  w = Exp (x)  z = Identity (w) }", "{ y = Softmax (x)  w = Softmax (x)  z = Identity (w) }",
    "{ a = Neg (x)  b = Neg (a)  y = Identity (b)  c = Exp (b)  d = Exp (x)  z = Add (c, d) }",
    "{ y = Exp (x)  z = Exp (x)  v = Neg (z)  u = Neg (v) }",
])  # fmt: skip
def test_costs_of_what_is_printed_twice(graph: str) -> None:
    """For an output of its own name, as a copy or by the same operator again."""
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[n] y, float[n] z) {graph}'
    )
    result = saturate_and_extract(model, cost=NodeCount())
    nodes = result.model.graph.node
    assert [(row.node, row.op) for row in result.costs()] == [(n.name, n.op_type) for n in nodes]
    assert [row.costs for row in result.costs()] == [(1_000_000, 1_000_000)] * len(nodes)
    assert result.report.cost_after == 2_000_000 * len(nodes)


def test_costs_of_an_unchanged_model_are_those_of_its_nodes() -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { z = Exp (x)  y = Sin (z) }'
    )
    result = saturate_and_extract(model)
    assert result.report.unchanged
    assert [row.op for row in result.costs()] == ["Exp", "Sin"]
    assert sum(sum(row.costs) for row in result.costs()) == result.report.cost_after == result.report.cost_before


def test_the_costs_of_bodies_are_told_by_graph() -> None:
    table = saturate_and_extract(parser.parse_model(BODIES)).costs()
    assert {row.graph for row in table} >= {"g", "then", "other"}


# ---- alternatives


def test_alternatives_are_the_members_of_a_class(space: Space) -> None:
    name = "/model/model/layers.0/self_attn/q_norm/Mul_1_output_0"
    found = space.alternatives(name)
    assert [a.op for a in found if a.chosen] == ["RMSNorm"]
    by_hand = next(a for a in found if a.op == "Mul")
    assert by_hand.more is not None
    assert by_hand.more > 0
    assert len(by_hand.costs) == 2
    assert "+" in str(by_hand)
    assert found[0].chosen
    assert found[0].more == 0
    counted = space.alternatives(name, cost=NodeCount(), dims=[Workload("decode")])
    assert {a.costs for a in counted} == {(1_000_000,)}


def test_what_a_forced_member_costs_is_what_its_graph_costs(space: Space) -> None:
    name = "/model/model/layers.0/self_attn/q_norm/Mul_1_output_0"
    whole = space.extract().report.cost_after
    more = next(a.more for a in space.alternatives(name) if a.op == "Mul")
    without = saturate(MODEL, disable=["rms-norm"]).alternatives(name)
    assert [a.op for a in without if a.chosen] == ["Mul"]
    assert more is not None
    assert 0 < more < saturate_and_extract(MODEL, disable=["rms-norm"]).report.cost_after - whole


def test_a_caller_sees_what_its_own_operator_would_have_cost() -> None:
    fused = operator("SineOfExp", "x", numpy=lambda x: x, onnx="my.domain::SineOfExp")

    @rule(contract="exact", holds={"x": "b n"}, stage="target")
    def to_fused(x: Tensor) -> Sides:
        """sin(exp(x)) = SineOfExp(x)"""
        return Sides(call("Sin", call("Exp", x)), apply(fused, x))

    class Dear(Roofline):
        def cost(self, work: Work) -> int:
            return 10**9 if work.op == "SineOfExp" else super().cost(work)

    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { z = Exp (x)  y = Sin (z) }'
    )
    found = saturate(model, rules=[*rules.ALL, to_fused]).alternatives("y", cost=Dear())
    assert [(a.op, a.chosen) for a in found] == [("Sin", True), ("SineOfExp", False)]
    assert found[1].more == 2 * 10**9 - sum(row.costs[0] + row.costs[1] for row in saturate_and_extract(model).costs())
    assert found[1].operands == ("x",)


def test_a_fused_node_of_the_result_has_alternatives_too(space: Space) -> None:
    fused = next(f.node for f in space.extract().report.fused if f.op == "Attention")
    found = space.alternatives(fused)
    assert found[0].chosen
    assert found[0].op.startswith("OnnxAttention")
    assert len(found) > 1


def test_no_alternatives_for_what_is_no_value(space: Space) -> None:
    with pytest.raises(ModelError, match="no e-class of 'nowhere'"):
        space.alternatives("nowhere")
    with pytest.raises(CostError):
        space.alternatives("logits", cost=Roofline)  # type: ignore[arg-type]


# ---- the k best


def test_the_best_differ_and_come_in_order(space: Space, tmp_path: Path) -> None:
    found = space.best(4)
    costs = [r.report.cost_after for r in found]
    assert costs == sorted(costs)
    assert len(found) == 4
    kinds = [tuple(sorted(Counter(n.op_type for n in r._ir.graph).items())) for r in found]
    assert len(set(kinds)) == 4
    assert saved(found[0], tmp_path / "a.onnx") == saved(space.extract(), tmp_path / "b.onnx")


def test_graphs_that_differ_in_a_constant_are_two() -> None:
    graph = "g (float[n] x) => (float[n] y) <float two = {%d}> { y = Mul (x, two) }"
    text = '<ir_version: 8, opset_import: ["" : 17]> ' + graph
    first, again, other = (saturate(parser.parse_model(text % k)).extract().drawn() for k in (2, 2, 3))
    assert first == again
    assert first != other


def test_one_graph_is_told_once() -> None:
    """Without one kind or with it, a later pass makes the same of both."""
    space = saturate(ROOT / "tests" / "models" / "exports" / "bart_encoder_ts_sdpa.onnx")
    found = space.best(4, dims=[Workload("decode", past=128), Workload("prompt", new=64)])
    assert len({result.drawn() for result in found}) == len(found) > 1


def test_measured_prices_are_of_one_provider(tmp_path: Path) -> None:
    space = saturate(MODEL, target="cuda")
    with pytest.raises(CostError, match=r"'cuda' runs on CUDAExecutionProvider, and the prices of .* are of CPU"):
        space.extract(cost=Measured(Table(tmp_path / "table.json")))


def test_fewer_than_k_are_all_there_are() -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { z = Exp (x)  y = Sin (z) }'
    )
    assert len(saturate(model).best(5)) == 1


@pytest.mark.parametrize("k", [0, -1, True, 1.5])
def test_how_many_is_a_number_from_1_up(space: Space, k: Any) -> None:
    with pytest.raises(EGraphError, match="from 1 up"):
        space.best(k)


@pytest.mark.parametrize("text", [BODIES, ODD], ids=["bodies", "odd"])
@pytest.mark.parametrize("cost", [Roofline(), NodeCount()], ids=["roofline", "nodes"])
def test_what_a_model_costs_as_it_stands(text: str, cost: Any) -> None:
    """Whatever the rules are, and no more than a result says of what it was made from; every node is there once."""
    model, dims = parser.parse_model(text), [Workload("a", new=8), Workload("b", weight=0.25, past=64)]
    space = saturate(model)
    stands = space.costs(cost=cost, dims=dims)
    assert stands == saturate(model, rules=[]).costs(cost=cost, dims=dims)
    result = space.extract(cost=cost, dims=dims)
    again = saturate(result.model, rules=[]).costs(cost=cost, dims=dims)
    for table, told in ((stands, result.report.cost_before), (again, result.report.cost_after)):
        total = sum(row.costs[0] + round(0.25 * row.costs[1]) for row in table)
        assert total == told
    assert stands.workloads == ("a", "b")


def test_what_cannot_be_priced_says_why() -> None:
    for limits, says in ((Limits(tuples=3), "tuple limit 3"), (Limits(seconds=0), "time limit 0 s")):
        with pytest.raises(ModelError, match=f"what the model costs cannot be told: {says}") as raised:
            saturate(MODEL, limits=limits).costs()
        assert "\n" not in str(raised.value)
