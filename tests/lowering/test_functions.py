"""Local functions: calls are written out as they stand, or stay calls; operators of onnxruntime stay operators."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from function_models import Maker, written_out
from onnx import TensorProto as T
from onnx import helper as h
from roundtrip_models import (
    SIZE,
    all_ops,
    data,
    fused,
    good,
    info,
    model,
    n,
    norm,
    optimized,
    run,
    same_numbers,
    unique,
    x,
)

from onnx_egraph import saturate_and_extract
from onnx_egraph.egraph.engine.lang import Sides, Tensor, apply, operator, rule
from onnx_egraph.egraph.errors import ModelError
from onnx_egraph.egraph.targets import Target
from onnx_egraph.egraph.targets import target as find_target
from onnx_egraph.lowering.files.functions import same_in
from onnx_egraph.lowering.files.load import load
from onnx_egraph.rules import ALL

OPSETS = [h.make_opsetid("", 18), h.make_opsetid("own", 1), h.make_opsetid("other", 1)]
MS = "com.microsoft"


def function(name: str, ins: str, outs: str, *nodes: onnx.NodeProto, domain: str = "own", **more: Any) -> Any:
    return h.make_function(domain, name, ins.split(), outs.split(), list(nodes), more.pop("opsets", OPSETS), **more)


def call(name: str, ins: str, outs: str, domain: str = "own", **attributes: Any) -> onnx.NodeProto:
    node = n(name, ins, "x", **attributes)
    node.domain, node.name = domain, f"call {name} {outs}"
    node.output[:] = [o.replace("-", "") for o in outs.split()]
    return node


def right(given: onnx.ModelProto, want: onnx.ModelProto | None = None, **feeds: Any) -> onnx.ModelProto:
    """The result, which computes what the model does once each call is replaced by hand."""
    feeds = feeds or {"x": x()}
    result = optimized(given)
    rounding = 4 * SIZE * float(np.finfo(np.float32).eps)
    for p, q in zip(run(want or written_out(given), **feeds), run(result, **feeds), strict=True):
        np.testing.assert_allclose(q, p, rtol=rounding, atol=rounding)
    return result


# ---- operands and outputs


TWO = function("Two", "a", "p q", n("Relu", "a", "p"), n("Neg", "a", "q"))
CHAIN = function("Chain", "a", "p q", n("Relu", "a", "p"), n("Neg", "p", "q"))
SPLIT = function("Split2", "a", "p q", n("Split", "a", "p q", axis=1, num_outputs=2))
SAME = function("Same", "a", "a", n("Neg", "a", "unused"))
BOTH = function("Both", "a b", "b a")
TWICE = function("Twice", "a", "p p", n("Neg", "a", "p"))
CONSTANT = function("Const", "a", "c", h.make_node("Constant", [], ["c"], value_floats=[0.5] * SIZE))
CLIP = function("Clip3", "a lo hi", "p", n("Clip", "a lo hi", "p"))
WITHIN = function("Within", "a", "p", n("Relu", "a", "p"), n("Neg", "p", "unused"))


@pytest.mark.parametrize(
    ("used", "made", "nodes"),
    [
        (TWO, "y", [call("Two", "v", "y -")]),
        (TWO, "y", [call("Two", "v", "y")]),
        (TWO, "y", [call("Two", "v", "- y")]),
        (CHAIN, "y", [call("Chain", "v", "- y")]),
        (SPLIT, "y", [call("Split2", "v", "- h"), n("Concat", "h h", "y", axis=1)]),
        (TWO, "y", [call("Two", "v", "- t"), call("Two", "t", "y")]),
        (CLIP, "y", [call("Clip3", "v", "y")]),
        (CLIP, "y", [call("Clip3", "v - two", "y")]),
        (CLIP, "y", [call("Clip3", "v eps", "y")]),
        (SAME, "y", [call("Same", "v", "y")]),
        (SAME, "y z", [call("Same", "v", "y"), call("Same", "x", "z")]),
        (SAME, "y z", [call("Same", "v", "y"), call("Same", "y", "z")]),
        (BOTH, "y z", [call("Both", "x v", "y z")]),
        (TWICE, "y z", [call("Twice", "v", "y z")]),
        (TWICE, "z y", [call("Twice", "v", "y z")]),
        (TWICE, "y", [call("Twice", "v", "s t"), n("Add", "s t", "y")]),
        (CONSTANT, "y z", [n("Neg", "v", "y"), call("Const", "v", "c"), n("Add", "x c", "z")]),
        (WITHIN, "y", [call("Within", "v", "y")]),
    ],
)
def test_operands_and_outputs(used: onnx.FunctionProto, made: str, nodes: list[onnx.NodeProto]) -> None:
    given = model([*norm("x", "v"), *nodes], None, [info("v"), *(info(o) for o in made.split())], functions=[used])
    result = right(given)
    assert fused(result) == 1
    assert not result.functions


def test_a_constant_as_an_output_of_the_graph() -> None:
    given = model([*norm("x", "v"), call("Const", "v", "c")], None, [info("v"), info("c", SIZE)], functions=[CONSTANT])
    assert not right(given).functions


@pytest.mark.parametrize("outs", ["y", "- y", "y -"])
def test_calls_in_bodies(outs: str) -> None:
    """A body may not declare what its node's surroundings declare, whatever the function calls its values."""
    flag = h.make_tensor_value_info("flag", T.BOOL, [])
    branches = {
        f"{side}_branch": h.make_graph(
            [call("Two", "v", outs.replace("y", side)), call("Same", side, f"{side}2")],
            side, [], [h.make_tensor_value_info(f"{side}2", T.FLOAT, None)],
        )
        for side in ("then", "else")
    }  # fmt: skip
    nodes = [*norm("x", "v"), call("Two", "v", "p q"), n("If", "flag", "y", **branches), n("Add", "p q", "z")]
    given = model(nodes, [info("x"), flag], [info("v"), info("y"), info("z")], functions=[TWO, SAME])
    assert not right(given, x=x(), flag=np.array(True)).functions


def test_attributes_in_bodies_of_functions() -> None:
    """A reference is replaced by the call's value, else by the default; else the operator's own default holds."""

    def leaky(value: str, out: str) -> onnx.NodeProto:
        node = n("LeakyRelu", value, out)
        node.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
        return node

    def branch(side: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
        return h.make_graph(nodes, side, [], [h.make_tensor_value_info(side, T.FLOAT, None)])

    def choice(name: str, **more: Any) -> onnx.FunctionProto:
        sides = {"then_branch": branch("t", leaky("a", "t")), "else_branch": branch("e", n("Neg", "a", "e"))}
        node = n("If", "flag", "r", **sides)
        return function(name, "a flag", "r", node, **more)

    with_default = choice("Default", attribute_protos=[h.make_attribute("slope", 0.25)])
    without = choice("Without", attributes=["slope"])
    outer = function("Outer", "a flag", "r", call("Without", "a flag", "r", "other"), domain="own")
    without_elsewhere = onnx.FunctionProto()
    without_elsewhere.CopyFrom(without)
    without_elsewhere.domain = "other"
    nodes = [
        *norm("x", "v"), call("Default", "v flag", "p"), call("Default", "v flag", "q", slope=0.5),
        call("Without", "v flag", "r"), call("Without", "v flag", "s", slope=0.75), call("Outer", "v flag", "t"),
    ]  # fmt: skip
    outs = [info(o) for o in "vpqrst"]
    flag = h.make_tensor_value_info("flag", T.BOOL, [])
    given = model(nodes, [info("x"), flag], outs, functions=[with_default, without, outer, without_elsewhere])
    given.opset_import.append(h.make_opsetid("other", 1)) if len(given.opset_import) < 3 else None
    for value in (True, False):
        assert not right(given, given, x=x(), flag=np.array(value)).functions


def test_constants_in_bodies_of_functions_get_names_of_their_own() -> None:
    """The new name of one may be the old name of the next."""

    def branch(out: str, op: str) -> onnx.GraphProto:
        stored = [onnx.numpy_helper.from_array(np.full(SIZE, k + 1, np.float32), w) for k, w in enumerate(("w", "w_1"))]
        nodes = [n(op, "a w", f"{out}0"), n(op, f"{out}0 w_1", out)]
        return h.make_graph(nodes, out, [], [h.make_tensor_value_info(out, T.FLOAT, None)], stored)

    node = n("If", "flag", "r", then_branch=branch("t", "Mul"), else_branch=branch("e", "Add"))
    flag = h.make_tensor_value_info("flag", T.BOOL, [])
    nodes = [*norm("x", "v"), call("Stored", "v flag", "p"), call("Stored", "p flag", "y")]
    given = model(nodes, [info("x"), flag], functions=[function("Stored", "a flag", "r", node)])
    for value in (True, False):
        assert not right(given, given, x=x(), flag=np.array(value)).functions


def test_overloads_are_told_apart() -> None:
    functions = [
        function("F", "a", "b", n("Neg", "a", "b"), overload="negative"),
        function("F", "a", "b", n("Abs", "a", "b"), overload="positive"),
    ]
    nodes = [*norm("x", "v"), call("F", "v", "y"), call("F", "v", "z")]
    nodes[-2].overload, nodes[-1].overload = "negative", "positive"
    given = model(nodes, None, [info("v"), info("y"), info("z")], functions=functions)
    given.ir_version = 10
    result = right(given)
    v, y, z = run(result, x=x())
    assert np.array_equal(y, -v)
    assert np.array_equal(z, abs(v))


@pytest.mark.parametrize("opset", [17, 18])
def test_an_opset_that_defines_the_operators_alike(opset: int) -> None:
    used = function("F", "a", "b", n("Elu", "a", "b"), opsets=[h.make_opsetid("", opset)])
    assert not good(model([*norm("x", "s"), call("F", "s", "y")], functions=[used])).functions


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m.graph.node[-1].input.append("v"), "(Two): 2 inputs and 1 outputs are not what own::Two has"),
        (lambda m: m.graph.node[-1].output.extend(["p", "q"]), "1 inputs and 3 outputs"),
    ],
)
def test_calls_that_do_not_fit(change: Any, says: str) -> None:
    given = model([*norm("x", "v"), call("Two", "v", "y")], None, [info("v"), info("y")], functions=[TWO])
    change(given)
    with pytest.raises(ModelError) as caught:
        saturate_and_extract(given)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


# ---- at random


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_random_functions(seed: int, plain: bool) -> None:
    at_random(seed, plain)


@pytest.mark.deep
@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("seed", range(6, 200))
def test_more_random_functions(seed: int, plain: bool) -> None:
    at_random(seed, plain)


def at_random(seed: int, plain: bool) -> None:
    given = Maker(seed, plain).model()
    before = data(given)
    result = saturate_and_extract(given).model
    assert isinstance(result, onnx.ModelProto)
    assert data(given) == before
    assert not result.functions
    assert fused(result) >= 1
    assert [v.SerializeToString() for v in result.graph.input] == [v.SerializeToString() for v in given.graph.input]
    assert [v.SerializeToString() for v in result.graph.output] == [v.SerializeToString() for v in given.graph.output]
    unique(result.graph, set())
    rounding = 4 * SIZE * float(np.finfo(np.float32).eps)
    for flag in (True, False):
        feeds = {"x": x(), "flag": np.array(flag)}
        for p, q in zip(run(given if plain else written_out(given), **feeds), run(result, **feeds), strict=True):
            np.testing.assert_allclose(q, p, rtol=rounding, atol=rounding)


# ---- functions that grow


def doubling(levels: int) -> onnx.ModelProto:
    """Each function calls the one below twice."""
    functions = [function("F0", "a", "b", n("Relu", "a", "b"))]
    for k in range(1, levels + 1):
        nodes = call(f"F{k - 1}", "a", "m"), call(f"F{k - 1}", "m", "b")
        functions.append(function(f"F{k}", "a", "b", *nodes))
    return model([*norm("x", "v"), call(f"F{levels}", "v", "y")], functions=functions)


def test_many_calls_take_linear_time() -> None:
    def seconds(levels: int) -> float:
        given = doubling(levels)
        begin = time.process_time()
        loaded = load(given)
        assert loaded.model.graph.num_nodes() == 2**levels + 6
        assert not loaded.calls
        return time.process_time() - begin

    few = min(seconds(10) for _ in range(3))
    assert seconds(13) < 3 * 8 * few  # eight times as many; quadratic time would be 64 times as much


@pytest.mark.parametrize("levels", [16, 60, 2000])
def test_too_many_calls_stay_calls(levels: int) -> None:
    result = saturate_and_extract(doubling(levels))
    assert isinstance(result.model, onnx.ModelProto)
    assert fused(result.model) == 1
    assert f"F{levels}" in all_ops(result.model.graph)
    assert len(result.model.functions) == levels + 1
    [reason] = result.report.calls
    assert reason.startswith(f"function own::F{levels} stays a call: it stands for")
    assert f"not looked into: {reason}" in result.report.text()


def test_only_the_largest_function_stays_a_call() -> None:
    given = doubling(16)
    given.functions.append(function("Small", "a", "b", n("Neg", "a", "b")))
    given.graph.node[-1].output[0] = "s"
    given.graph.node.append(call("Small", "s", "y"))
    result = saturate_and_extract(given)
    assert isinstance(result.model, onnx.ModelProto)
    assert {f.name for f in result.model.functions} == {f"F{k}" for k in range(17)}
    assert "Neg" in all_ops(result.model.graph)


@pytest.mark.parametrize(("op", "same"), [("Elu", True), ("Mul", True), ("ReduceMean", False)])
@pytest.mark.parametrize("inside", [False, True])
def test_an_opset_is_raised_only_where_functions_mean_the_same(op: str, same: bool, inside: bool) -> None:
    """onnxruntime reads the body of a function in the opset of the model, whatever its own is."""
    nodes = [n(op, "a a" if op == "Mul" else "a", "r")]
    if inside:
        body = h.make_graph(nodes, "body", [], [h.make_tensor_value_info("r", T.FLOAT, None)])
        nodes = [n("If", "flag", "r", then_branch=body, else_branch=body)]
    used = function("F", "a flag", "r", *nodes, opsets=[h.make_opsetid("", 12)])
    given = ir.from_proto(model(norm("x", "y"), functions=[used])).functions["own", "F", ""]
    assert same_in(given, 12)
    assert same_in(given, 18) == same


# ---- names of operators


def skip(domain: str = MS, name: str = "SkipSimplifiedLayerNormalization") -> onnx.FunctionProto:
    """A body that is not what onnxruntime's operator computes, so that numbers tell which of them runs."""
    return function(name, "a b w", "r", n("Add", "a b", "s"), n("Neg", "s", "r"), domain=domain)


def test_an_operator_of_onnxruntime_stays_one() -> None:
    node = call("SkipSimplifiedLayerNormalization", "v x w", "y", MS, epsilon=1e-5)
    given = model([*norm("x", "v"), node], None, [info("v"), info("y")], functions=[skip()])
    result = good(given)
    assert "SkipSimplifiedLayerNormalization" in all_ops(result.graph)
    assert [f.name for f in result.functions] == ["SkipSimplifiedLayerNormalization"]
    assert MS in {o.domain for o in result.opset_import}


def test_so_does_one_that_rules_know() -> None:
    """Gelu is read as Gelu, whatever a body under that name says, as onnxruntime does."""
    body = function("Gelu", "a", "r", n("Neg", "a", "r"), domain=MS)
    given = model(
        [*norm("x", "v"), call("Gelu", "v", "y", MS), call("Two", "v", "p q")], None,
        [info("v"), info("y"), info("p")], functions=[body, TWO],
    )  # fmt: skip
    result = good(given)
    assert "Gelu" in all_ops(result.graph)
    assert [f.name for f in result.functions] == ["Gelu"]


@pytest.mark.parametrize("name", ["Relu", "HardSwish"])
def test_so_does_one_of_the_default_domain(name: str) -> None:
    body = function(name, "a", "r", n("Neg", "a", "r"), domain="")
    given = model([*norm("x", "v"), call(name, "v", "y", "")], None, [info("v"), info("y")], functions=[body])
    del given.opset_import[1:]
    result = saturate_and_extract(given).model
    assert isinstance(result, onnx.ModelProto)
    assert fused(result) == 1
    assert name in all_ops(result.graph)
    same_numbers(given, result, x=x())


def test_a_name_of_a_later_opset_is_a_function() -> None:
    """Gelu is an operator of the default domain from opset 20; onnxruntime refuses this model."""
    body = function("Gelu", "a", "r", n("Neg", "a", "r"), domain="")
    given = model([*norm("x", "v"), call("Gelu", "v", "y", "")], None, [info("v"), info("y")], functions=[body])
    del given.opset_import[1:]
    result = saturate_and_extract(given).model
    assert isinstance(result, onnx.ModelProto)
    v, y = run(result, x=x())
    assert np.array_equal(y, -v)


def test_a_function_of_an_operator_is_no_operator() -> None:
    """Other names in a domain of onnxruntime are functions."""
    body = function("Mine", "a", "r", n("Neg", "a", "r"), domain=MS)
    given = model([*norm("x", "v"), call("Mine", "v", "y", MS)], None, [info("v"), info("y")], functions=[body])
    assert not good(given).functions


Turn = operator("Turn", "x", numpy=lambda v: -v, onnx="own::Turn")


@rule(contract="exact", holds={"x": "b n"})
def turned_twice(x: Tensor) -> Sides:
    """Turn(Turn(x)) = x"""
    return Sides(apply(Turn, apply(Turn, x)), x)


@pytest.mark.parametrize("by", ["target", "rules"])
def test_an_operator_of_the_target_or_the_caller_stays_one(by: str) -> None:
    body = function("Turn", "a", "p", n("Neg", "a", "p"))
    nodes = [*norm("x", "v"), call("Turn", "v", "s"), call("Turn", "s", "t"), call("Turn", "t", "y")]
    given = model(nodes, None, [info("v"), info("y")], functions=[body])
    assert not good(given).functions
    if by == "target":
        cpu = find_target("cpu")
        own = Target("own", cpu.provider, cpu.opset_max, cpu.ops | {("own", "Turn", "float32")})
        result = saturate_and_extract(given, target=own).model
    else:
        result = saturate_and_extract(given, rules=[*ALL, turned_twice]).model
    assert isinstance(result, onnx.ModelProto)
    assert all_ops(result.graph).count("Turn") == (3 if by == "target" else 1)
    assert [f.name for f in result.functions] == ["Turn"]
    same_numbers(given, result, x=x())
