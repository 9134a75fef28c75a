"""Explanations, verification and invented operators, through saturate_and_extract on small real models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import onnx_egraph
from onnx_egraph import Limits, saturate_and_extract, verification
from onnx_egraph.cli import app
from onnx_egraph.egraph.engine.lang import (
    Float,
    Sides,
    Tensor,
    apply,
    call,
    dim,
    dtype,
    eq,
    operator,
    rank,
    rule,
    supported,
)
from onnx_egraph.egraph.engine.rule import Rule, load_egglog
from onnx_egraph.egraph.errors import ModelError, RuleError, UnsoundMerge, VerificationError
from onnx_egraph.egraph.targets import Work
from onnx_egraph.egraph.terms import OPS, declare, form
from onnx_egraph.lowering import declared
from onnx_egraph.lowering.verify.verify import Mismatch, Verification
from onnx_egraph.rules import ALL
from onnx_egraph.rules.norm import rnorm

HIDDEN = 64


def scalar(name: str, value: float) -> TensorProto:
    return numpy_helper.from_array(np.asarray(value, np.float32), name)


def model_of(
    nodes: list[onnx.NodeProto],
    weights: list[TensorProto],
    *,
    last: int = HIDDEN,
    inputs: tuple[str, ...] = ("x",),
) -> onnx.ModelProto:
    ins = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", "seq", last]) for n in inputs]
    outs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "seq", last])]
    graph = helper.make_graph(nodes, "main", ins, outs, weights)
    made: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(made)
    return made


def rms_model(layers: int = 1, weight: int = HIDDEN) -> onnx.ModelProto:
    nodes: list[onnx.NodeProto] = []
    weights = [scalar("two", 2.0), scalar("eps", 1e-6)]
    x = "x"
    for i in range(layers):
        w = np.random.default_rng(i).standard_normal(weight).astype(np.float32)
        weights.append(numpy_helper.from_array(w, f"w{i}"))
        out = "y" if i == layers - 1 else f"out{i}"
        nodes += [
            helper.make_node("Pow", [x, "two"], [f"square{i}"], name=f"/{i}/Pow"),
            helper.make_node("ReduceMean", [f"square{i}"], [f"mean{i}"], name=f"/{i}/ReduceMean", axes=[-1]),
            helper.make_node("Add", [f"mean{i}", "eps"], [f"sum{i}"], name=f"/{i}/Add"),
            helper.make_node("Sqrt", [f"sum{i}"], [f"root{i}"], name=f"/{i}/Sqrt"),
            helper.make_node("Div", [x, f"root{i}"], [f"norm{i}"], name=f"/{i}/Div"),
            helper.make_node("Mul", [f"norm{i}", f"w{i}"], [out], name=f"/{i}/Mul"),
        ]
        x = out
    return model_of(nodes, weights)


CHAIN = ("pow-two", "rnorm-div", "rms-norm")
#: Fuses what is left of a norm whose weight does not fit.
PLAIN = ("rms-norm-plain",)


# ------------------------------------------------------------------------------------------------ derivations


def test_every_fused_node_has_its_rules_and_its_derivation() -> None:
    result = saturate_and_extract(rms_model(3))
    assert [f.op for f in result.report.fused] == ["RMSNormalization"] * 3
    for fused in result.report.fused:
        assert set(CHAIN) <= set(fused.rules)
        found = result.explain(fused.node)
        assert found.complete
        assert found.rules == CHAIN
        assert all(not s.false and s.compared for s in found.steps)
    derived = [result.explain(f.node) for f in result.report.fused]
    assert [d.where for d in derived] == [
        (("x", "x"), ("y", "w0")), (("x", "out0"), ("y", "w1")), (("x", "out1"), ("y", "w2")),
    ]  # fmt: skip
    assert derived[0].steps is derived[1].steps, "equal layers share the work"


def test_only_fused_nodes_are_explained() -> None:
    with pytest.raises(ModelError, match="no fused node of the result is named '/0/Pow'"):
        saturate_and_extract(rms_model()).explain("/0/Pow")


def test_removing_any_rule_of_a_derivation_leaves_the_graph_unfused() -> None:
    for name in CHAIN:
        assert not saturate_and_extract(rms_model(), disable=[name, *PLAIN]).report.fused
    assert not saturate_and_extract(rms_model(), rules=[]).report.fused


# ------------------------------------------------------------------------------------------------ near misses

GELU = "gelu (x * 0.5 * erf_plus(x) = Gelu(x), in every order; with tanh_plus(x): FastGelu(x))"
RMS = "rms-norm (rnorm(x, eps) * w = RMSNormalization(x, w, eps))"


def gelu_model(divisor: float = 2.0**0.5, half: float = 0.5) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Div", ["x", "root"], ["a"], name="/Div"),
        helper.make_node("Erf", ["a"], ["e"], name="/Erf"),
        helper.make_node("Add", ["e", "one"], ["p"], name="/Add"),
        helper.make_node("Mul", ["x", "p"], ["m"], name="/Mul"),
        helper.make_node("Mul", ["m", "half"], ["y"], name="/Mul_1"),
    ]
    return model_of(nodes, [scalar("root", divisor), scalar("one", 1.0), scalar("half", half)])


def flat_weight() -> onnx.ModelProto:
    model = rms_model()
    model.graph.initializer[2].CopyFrom(numpy_helper.from_array(np.ones((1, HIDDEN), np.float32), "w0"))
    return model


def variable_eps() -> onnx.ModelProto:
    model = rms_model()
    del model.graph.initializer[1]
    model.graph.input.append(helper.make_tensor_value_info("eps", TensorProto.FLOAT, []))
    return model


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            rms_model(weight=1),
            f"/0/Mul (RMSNormalization): {RMS} needs dim(w, -1) = dim(x, -1): w is float32[1] 0.125",
        ),
        (flat_weight(), f"/0/Mul (RMSNormalization): {RMS} needs rank(w) = 1: w is float32[1, 64]"),
        (
            variable_eps(),
            "/0/Div (RNorm): rnorm-div (x / sqrt(mean(x*x) + eps) = rnorm(x, eps)) needs value(e) = eps: e",
        ),
        (
            gelu_model(half=0.4),
            f"/Mul_1 (Gelu): {GELU} needs v = 0.5: v is 0.4",
        ),
        (
            gelu_model(1.5),
            "/Add (ErfPlus): erf-plus-scaled (1 + erf(x * sqrt(1/2)) = erf_plus(x)) needs v within 4.24264e-07 of",
        ),
    ],
)
def test_a_near_miss_names_the_guard_and_the_values(model: onnx.ModelProto, reason: str) -> None:
    result = saturate_and_extract(model, disable=PLAIN)
    assert not result.report.fused
    assert result.report.missed == []
    (line,) = result.near_misses()
    assert line.startswith(reason)
    assert result.report.missed == [line]
    assert f"not fused: {line}" in result.report.text()


def test_symbolic_dims_are_named_as_in_the_model() -> None:
    (line,) = saturate_and_extract(rms_model(weight=1)).near_misses()
    assert line.endswith("x is float32[batch, seq, 64] (x)")


def test_where_nothing_is_near_the_deepest_marker_is_named() -> None:
    """1 + erf(x / sqrt(2)), and no product."""
    model = gelu_model()
    model.graph.node[3].CopyFrom(helper.make_node("Sin", ["p"], ["m"], name="/Sin"))
    (line,) = saturate_and_extract(model).near_misses()
    assert line.startswith("/Add: got as far as ErfPlus, and none of these matched: gelu (")
    assert line.endswith("; it goes into /Sin")


def other_gate() -> onnx.ModelProto:
    """1 + erf(x / sqrt(2)) times something other than x."""
    model = gelu_model()
    model.graph.node[3].input[0] = "e"
    return model


def before_the_gate() -> onnx.ModelProto:
    model = gelu_model()
    model.graph.node.insert(2, helper.make_node("Abs", ["e"], ["f"], name="/Abs"))
    model.graph.node[3].input[0] = "f"
    return model


def other_sign() -> onnx.ModelProto:
    model = gelu_model()
    model.graph.node[2].CopyFrom(helper.make_node("Sub", ["one", "e"], ["p"], name="/Sub"))
    return model


def other_axis() -> onnx.ModelProto:
    model = rms_model()
    (mean,) = (n for n in model.graph.node if n.op_type == "ReduceMean")
    mean.attribute[0].ints[:] = [1]
    return model


def no_root() -> onnx.ModelProto:
    model = rms_model()
    (root,) = (n for n in model.graph.node if n.op_type == "Sqrt")
    root.op_type = "Identity"
    return model


def other_root() -> onnx.ModelProto:
    model = rms_model()
    (root,) = (n for n in model.graph.node if n.op_type == "Sqrt")
    root.op_type = "Pow"
    root.input.append("third")
    model.graph.initializer.append(scalar("third", 0.33))
    return model


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (other_gate(), ["/Mul_1 (Gelu): gelu", "needs one x: it is", "(e)", "(x)"]),
        (before_the_gate(), ["/Add (ErfPlus): erf-plus-scaled", "needs erf(scaled(x, v)): there is", "(f)"]),
        (other_sign(), ["/Sub (ErfPlus): erf-plus-scaled", "needs erf(scaled(x, v)) + o: there is", "(p)"]),
        (other_axis(), ["(RNorm): rnorm-div", "needs ReduceMean with axes [-1]: that of", "is [-2]"]),
        (no_root(), ["(RNorm): rnorm-div", "needs sqrt(mean(x*x, [-1], 1) + e): there is"]),
        (
            other_root(),
            ["(RNorm): rnorm-div", "to which pow-half", "leads if value(c) = 0.5: c is float32[] 0.33 (third)"],
        ),
    ],
)
def test_where_one_part_differs_it_is_named(model: onnx.ModelProto, words: list[str]) -> None:
    (line,) = saturate_and_extract(model).near_misses()
    assert all(word in line for word in words), line


def test_a_law_that_matched_is_no_near_miss() -> None:
    """sqrt(mean(x*x)), to which an epsilon of 0 is added: that law makes another root of a root."""
    model = rms_model()
    (root, add) = (next(n for n in model.graph.node if n.op_type == op) for op in ("Sqrt", "Add"))
    root.input[0], add.input[0] = add.input[0], root.output[0]
    (divided,) = (n for n in model.graph.node if n.op_type == "Div")
    divided.input[1] = add.output[0]
    nodes = list(model.graph.node)
    at, to = (next(k for k, n in enumerate(nodes) if n.op_type == op) for op in ("Sqrt", "Add"))
    nodes[at], nodes[to] = nodes[to], nodes[at]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    (line,) = saturate_and_extract(model).near_misses()
    assert "rnorm-div" in line
    assert "root-mean-square" not in line


def test_what_fuses_is_no_near_miss() -> None:
    for model in (rms_model(), gelu_model()):
        result = saturate_and_extract(model)
        assert result.report.fused
        assert result.near_misses() == []


def test_an_operator_that_costs_more_is_said_to() -> None:
    class Dear:
        def cost(self, work: Work) -> int:
            return 10**12 if work.op == "RMSNorm" else 1

    (line,) = saturate_and_extract(rms_model(), cost=Dear(), disable=PLAIN).near_misses()
    assert line == "/0/Mul: RMSNormalization would be equal, but the graph costs less without it"


def test_an_operator_of_another_type_that_is_fused_costs_nothing_less() -> None:
    """Attention in float16 that is computed in float32, and merged behind the cast back."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g (float16[b, 2, s, 8] q, float16[b, 2, s, 8] k, float16[b, 2, s, 8] v) => (float16[b, s, 16] z)
    <int64[3] sizes = {0, 0, 16}> {
        turned = Transpose <perm = [0, 1, 3, 2]> (k)
        s = MatMul (q, turned)
        wide = Cast <to = 1> (s)
        weights = Softmax <axis = -1> (wide)
        p = Cast <to = 10> (weights)
        o = MatMul (p, v)
        rows = Transpose <perm = [0, 2, 1, 3]> (o)
        z = Reshape (rows, sizes)
    }""")
    result = saturate_and_extract(model)
    assert [node.op_type for node in result.model.graph.node].count("Cast")
    assert result.report.counts() == {"Attention": 1}
    assert result.near_misses() == []


def test_explain_prints_derivations_and_near_misses(tmp_path: Path) -> None:
    onnx.save(rms_model(2), tmp_path / "good.onnx")
    onnx.save(gelu_model(1.5), tmp_path / "bad.onnx")
    done = CliRunner().invoke(app, ["explain", str(tmp_path / "good.onnx"), "-q"])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert [line.endswith("RMSNormalization by pow-two, rnorm-div, rms-norm") for line in lines].count(True) == 2
    assert lines.count("  = by rms-norm (rnorm(x, eps) * w = RMSNormalization(x, w, eps))") == 1, "once per chain"
    node = lines[0].split(": ")[1]
    one = CliRunner().invoke(app, ["explain", str(tmp_path / "good.onnx"), "--node", node, "-q"]).stdout
    assert one.startswith(lines[0])
    assert one.count("fused: ") == 1
    assert "\n  where x is x, y is w0\n" in one
    bad = CliRunner().invoke(app, ["explain", str(tmp_path / "bad.onnx"), "-q"]).stdout
    assert bad.startswith("not fused: /Add (ErfPlus): erf-plus-scaled")


# ----------------------------------------------------------------------------------------------- verification


@rule(stage="fuse", contract="reassociated", holds=dict(x="b s h", w="h", eps=1e-5))
def false_eps(x: Tensor, w: Tensor, eps: Float) -> Sides:
    """rnorm(x, eps) * w = RMSNormalization(x, w, 0.01)"""
    when = [eq(rank(w), 1), eq(dim(w, -1), dim(x, -1)), eq(dtype(w), dtype(x)), supported("RMSNorm", x)]
    return Sides(rnorm(x, eps) * w, call("RMSNorm", x, w, 0.01), when=when)


FALSE = [*(r for r in ALL if r.name != "rms-norm"), false_eps]


def test_a_wrong_result_names_the_false_rule() -> None:
    stages: list[str] = []
    with pytest.raises(VerificationError) as caught:
        saturate_and_extract(rms_model(), rules=FALSE, verify=True, progress=stages.append)
    message = str(caught.value)
    assert message.startswith("rule false-eps is false: the optimized model differs in value of y[")
    assert "batch=" in message
    assert " apart, tolerance " in message
    assert "\n" not in message
    trials = [s for s in stages if s.startswith("looking for the false rule")]
    assert len(trials) == 1, "its step in the derivation gives it away; one more run confirms it"


def test_the_command_line_fails_on_a_wrong_result_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(rms_model(), source)

    def with_false_rule(model: Path, **options: object) -> onnx_egraph.Result:
        return saturate_and_extract(model, rules=FALSE, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(onnx_egraph, "saturate_and_extract", with_false_rule)
    done = CliRunner().invoke(app, ["optimize", str(source), "-o", str(out), "-q"])
    assert done.exit_code == 1
    assert done.stderr.startswith("error: rule false-eps is false:")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize("guilty", [{"c"}, {"a"}, {"h"}, {"b", "g"}, {"a", "b", "h"}, set()])
def test_halving_finds_a_smallest_set(guilty: set[str]) -> None:
    trials: list[frozenset[str]] = []

    def right_without(names: frozenset[str]) -> bool:
        trials.append(names)
        return bool(guilty) and guilty <= names

    assert set(verification.culprits("abcdefgh", right_without)) == guilty
    if len(guilty) == 1:
        assert len(trials) <= 1 + 2 * 3


def never(names: frozenset[str]) -> bool:
    raise AssertionError("nothing to look for")


def test_what_could_not_run_is_not_verified() -> None:
    skipped = Verification(False, 0, 0.0, [], "onnxruntime cannot load the original: no kernel")
    assert verification.verdict(skipped, [], never).startswith("NOT verified: onnxruntime cannot load")
    assert verification.verdict(Verification(True, 0, 0.0, []), [], never).startswith("NOT verified")
    agreed = Verification(True, 4, 1e-6, [], excluded=["noise"], dropped=["batch=3: too large"])
    said = verification.verdict(agreed, [], never)
    assert said.startswith("4 runs agree")
    assert "noise" in said
    assert "1 inputs could not be used" in said


def test_a_difference_counts_even_where_nothing_ran() -> None:
    lost = Verification(False, 0, 0.0, [Mismatch("", "outputs", "interface", ["y"], ["z"])], "nothing runs")
    with pytest.raises(VerificationError, match="not because of the rules"):
        verification.verdict(lost, ["a"], lambda names: False)


def test_without_a_visible_step_the_rules_are_halved() -> None:
    wrong = Verification(False, 1, 1.0, [Mismatch("batch=1", "y", "value", 1.0, 2.0, 1.0, 1e-6, (0,), "off")])
    with pytest.raises(VerificationError, match=r"value of y\[0\] .*the numbers are right without rule c$"):
        verification.verdict(wrong, list("abcde"), lambda names: "c" in names, lambda: ["a"])


def test_verified_models_say_so() -> None:
    assert "runs agree" in saturate_and_extract(rms_model(), verify=True).report.verification
    assert saturate_and_extract(rms_model()).report.verification == ""


# -------------------------------------------------------------------------------------------------- conflicts


@rule(holds=dict(x="b s"))
def sqrt_is_half(x: Tensor) -> Sides:
    """sqrt(x) = cast(sqrt(x), f16)"""
    root: Tensor = call("Sqrt", x)
    return Sides(root, call("Cast", root, 10))


def test_a_contradiction_is_one_line_that_names_the_rule() -> None:
    with pytest.raises(UnsoundMerge) as caught:
        saturate_and_extract(rms_model(), rules=[*ALL, sqrt_is_half])
    message = str(caught.value)
    assert message.startswith("rule sqrt-is-half is false (sqrt(x) = cast(sqrt(x), f16)): it equates sqrt(")
    assert message.endswith("(dtype float32 and float16)")
    assert "\n" not in message


# ----------------------------------------------------------------------------------------- invented operators


def _swish(x: np.ndarray, y: np.ndarray, alpha: float) -> np.ndarray:
    return np.asarray(x * np.tanh(y) * alpha, x.dtype)


GATE = operator("GateOp", "x y alpha:f64", numpy=_swish, onnx="my.domain::Gate")


@rule(stage="fuse", contract="reassociated", holds=dict(x="b s h", y="b s h"))
def gate(x: Tensor, y: Tensor) -> Sides:
    """x * tanh(y) = Gate(x, y, 1)"""
    return Sides(x * call("Tanh", y), apply(GATE, x, y, 1.0), when=[eq(dtype(x), dtype(y)), supported("GateOp", x)])


GATE_TEXT = """
; name: gate-text
; law: x * tanh(y) = Gate(x, y, 1)
(rule ((sym-Mul o x t) (= t (Tanh y)) (supported "GateOp" (dtype x))) ((union o (GateOp x y 1.0))))
"""


def gate_model() -> onnx.ModelProto:
    nodes = [
        helper.make_node("Tanh", ["b"], ["t"], name="/Tanh"),
        helper.make_node("Mul", ["t", "a"], ["y"], name="/Mul"),
    ]
    return model_of(nodes, [], inputs=("a", "b"))


@pytest.mark.parametrize("mine", [gate, load_egglog(GATE_TEXT, terms=[GATE])], ids=["python", "text"])
def test_an_invented_operator_is_fused_and_written(mine: Rule) -> None:
    result = saturate_and_extract(gate_model(), rules=[*ALL, mine], dims={"batch": 1, "seq": [1, 512]})
    model = result.model
    assert isinstance(model, onnx.ModelProto)
    (node,) = model.graph.node
    assert (node.domain, node.op_type, list(node.input), list(node.output)) == (
        "my.domain",
        "Gate",
        ["a", "b"],
        ["y"],
    )
    assert [(a.name, a.f) for a in node.attribute] == [("alpha", 1.0)]
    assert {o.domain: o.version for o in model.opset_import} == {"": 17, "my.domain": 1}
    onnx.checker.check_model(model)
    (fused,) = result.report.fused
    assert (fused.op, fused.rules) == ("Gate", (mine.name,))
    found = result.explain(fused.node)
    assert found.rules == (mine.name,)
    assert found.result == "GateOp(x, y, 1)"
    assert found.steps[0].compared > 0


def rule_that_makes(onnx: str) -> Rule:
    made = operator("MadeOp", "x", numpy=np.tanh, onnx=onnx)

    @rule(stage="fuse", holds=dict(x="b s"))
    def making(x: Tensor) -> Sides:
        """tanh(x) = MadeOp(x)"""
        return Sides(call("Tanh", x), apply(made, x), when=[supported("MadeOp", x)])

    return making


def test_an_operator_that_the_target_lacks_stays_out() -> None:
    making = rule_that_makes("com.microsoft::BiasAdd")
    assert not saturate_and_extract(gate_model(), rules=[*ALL, making]).report.fused


@pytest.mark.parametrize("onnx", ["com.microsoft::Typo", "Tahn", "ai.onnx::Tahn", "ai.onnx.ml::Tanh"])
def test_an_operator_that_nobody_has_is_told(onnx: str) -> None:
    with pytest.raises(RuleError, match=r"the term MadeOp is written as .*, which neither ONNX nor"):
        saturate_and_extract(gate_model(), rules=[*ALL, rule_that_makes(onnx)])


def test_the_operators_that_terms_are_written_as_exist() -> None:
    declared.check(OPS.values(), ())
    with pytest.raises(RuleError, match=r"the term Mine is written as com\.microsoft::Typo"):
        declared.check([declare("Mine", "x", np.abs, forms=(form("com.microsoft::Typo", "x"),))], ())


def test_a_term_may_not_be_declared_twice() -> None:
    with pytest.raises(RuleError, match="exists already"):
        operator("Tanh", "x", numpy=np.tanh, onnx="my.domain::Tanh")


def test_a_stopped_saturation_still_gives_a_graph() -> None:
    stopped = saturate_and_extract(rms_model(), limits=Limits(iterations=1))
    assert stopped.report.stop == "iteration limit 1"
