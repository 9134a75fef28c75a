"""Bodies of If, Loop and Scan are optimized with what they capture; local functions are inlined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh
from roundtrip_models import (
    CONSTANTS,
    FUSED,
    SIZE,
    bodies,
    fused,
    good,
    info,
    model,
    n,
    norm,
    ops,
    optimized,
    same_numbers,
    x,
)

from onnx_egraph import saturate_and_extract

# ---- bodies


def body(nodes: Sequence[onnx.NodeProto], outs: Sequence[onnx.ValueInfoProto], *more: Any) -> onnx.GraphProto:
    return (
        h.make_graph(list(nodes), "body", *(more or ([],)), list(outs))
        if not more
        else h.make_graph(list(nodes), "body", list(more[0]), list(outs), list(more[1]) if len(more) > 1 else [])
    )


def choice(then: onnx.GraphProto, other: onnx.GraphProto, out: str, name: str) -> onnx.NodeProto:
    return n("If", "c", out, name, then_branch=then, else_branch=other)


CONDITION = info("c", 1, dtype=T.BOOL)


def test_branches_are_optimized_with_what_they_capture() -> None:
    """Values of the outer graph, outer initializers, and initializers and Constant nodes of their own."""
    inner_weight = nh.from_array(np.linspace(1, 2, SIZE, dtype=np.float32), "inner_w")
    then = body(norm("r", "t_out", "t_"), [info("t_out")])
    constant = n("Constant", "", "k", value=nh.from_array(np.array([3], np.float32), ""))
    other = body(
        [constant, *norm("x", "e_mid", "e_", "inner_w"), n("Mul", "e_mid k", "e_out")],
        [info("e_out")],
        [],
        [inner_weight],
    )
    given = model([n("Relu", "x", "r"), choice(then, other, "y", "if")], [info("x"), CONDITION])
    result = optimized(given)
    assert [sum(op in FUSED for op in ops(b)) for b in bodies(result.graph)] == [1, 1]
    for c in (True, False):
        same_numbers(given, result, x=x(), c=np.array([c]))


def test_branches_inside_branches_that_only_pass_on() -> None:
    passing = body([n("Identity", "r", "p")], [info("p")])
    constant = body([n("Identity", "w", "q")], [info("q", SIZE)])
    inner = choice(body(norm("r", "deep", "d_"), [info("deep")]), passing, "i", "inner if")
    outer = choice(
        body([inner, n("Relu", "i", "t")], [info("t")]),
        body(
            [
                choice(constant, body([n("Neg", "w", "m")], [info("m", SIZE)]), "j", "other if"),
                n("Add", "r j", "e"),
            ],
            [info("e")],
        ),
        "y",
        "outer if",
    )
    given = model([*norm("x", "r", "main_"), outer], [info("x"), CONDITION])
    result = optimized(given)
    assert fused(result) == 2
    for c in (True, False):
        same_numbers(given, result, x=x(), c=np.array([c]))


def test_captured_values_that_are_merged_or_replaced() -> None:
    """Both Relus become one and the Identity goes; bodies must follow."""
    then = body([n("Add", "r copy", "t")], [info("t")])
    other = body([n("Sub", "q s", "e")], [info("e")])
    nodes = [
        n("Relu", "x", "r"),
        n("Relu", "x", "q"),
        n("Identity", "q", "copy"),
        *norm("r", "s"),
        choice(then, other, "y", "if"),
    ]
    given = model(nodes, [info("x"), CONDITION])
    result = good(given, x=x(), c=np.array([False]))
    same_numbers(given, result, x=x(), c=np.array([True]))
    assert ops(result.graph).count("Relu") == 1


def test_loop_and_scan() -> None:
    step = body(
        [*norm("state", "mid", "l_"), n("Add", "mid r", "next"), n("Identity", "go", "going")],
        [info("going", dtype=T.BOOL), info("next"), info("mid")],
        [
            h.make_tensor_value_info("i", T.INT64, []),
            h.make_tensor_value_info("go", T.BOOL, []),
            info("state"),
        ],
    )
    step.output[0].CopyFrom(h.make_tensor_value_info("going", T.BOOL, []))
    row = body(
        [
            n("Unsqueeze", "row zero", "row2"),
            *norm("row2", "row3", "s_"),
            n("Squeeze", "row3 zero", "row4"),
            n("Add", "sum row4", "sum2"),
        ],
        [info("sum2", SIZE), info("row4", SIZE)],
        [info("sum", SIZE), info("row", SIZE)],
    )
    nodes = [
        n("Relu", "x", "r"),
        n("Loop", "trips true x", "y many", "loop", body=step),
        n("Scan", "w y", "total rows", "scan", body=row, num_scan_inputs=1),
    ]
    constants = [
        *CONSTANTS,
        nh.from_array(np.array(3), "trips"),
        nh.from_array(np.array(True), "true"),
        nh.from_array(np.array([0]), "zero"),
    ]
    outs = [info("y"), info("many", 3, "batch", SIZE), info("total", SIZE), info("rows", "batch", SIZE)]
    result = good(model(nodes, None, outs, constants), norms=2)
    assert [sum(op in FUSED for op in ops(b)) for b in bodies(result.graph)] == [1, 1]


# ---- local functions


def test_functions_are_inlined() -> None:
    opsets = [h.make_opsetid("", 18)]
    square = h.make_function("own", "Square", ["a"], ["b"], [n("Mul", "a a", "b")], opsets)
    leaky = h.make_node("LeakyRelu", ["s"], ["r"])
    leaky.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    unit = h.make_function(
        "own",
        "Unit",
        ["a", "axis", "eps", "w"],
        ["r"],
        [
            h.make_node("Square", ["a"], ["q"], domain="own"),
            n("ReduceMean", "q axis", "m"),
            n("Add", "m eps", "n"),
            n("Sqrt", "n", "o"),
            n("Div", "a o", "p"),
            n("Mul", "p w", "s"),
            leaky,
        ],
        [*opsets, h.make_opsetid("own", 1)],
        attribute_protos=[h.make_attribute("slope", 0.25)],
    )
    calls = [
        h.make_node("Unit", ["x", "last", "eps", "w"], ["mid"], domain="own", name="one"),
        h.make_node("Unit", ["mid", "last", "eps", "w"], ["y"], domain="own", name="two", slope=0.5),
    ]
    result = good(model(calls, functions=[square, unit]), norms=2)
    assert not result.functions
    assert [h.get_node_attr_value(node, "alpha") for node in result.graph.node if node.op_type == "LeakyRelu"] == [
        0.25,
        0.5,
    ]


def test_a_function_of_another_opset_stays_a_call() -> None:
    """Its ReduceMax has axes that are an attribute; onnx and onnxruntime refuse to run it in this model."""
    old = h.make_function("own", "Old", ["a"], ["b"], [n("ReduceMax", "a", "b", axes=[1])], [h.make_opsetid("", 17)])
    unused = h.make_function("own", "Unused", ["a"], ["b"], [n("Neg", "a", "b")], [h.make_opsetid("", 18)])
    call = h.make_node("Old", ["s"], ["y"], domain="own", name="call")
    given = model([*norm("x", "s"), call], functions=[old, unused])
    result = saturate_and_extract(given)
    assert isinstance(result.model, onnx.ModelProto)
    assert fused(result.model) == 1
    assert [f.name for f in result.model.functions] == ["Old"]
    assert result.report.calls == [
        "function own::Old stays a call: ReduceMax of its operator set 17 of ai.onnx need not be that of the model's 18"
    ]


def test_a_body_that_passes_integers_of_an_outer_graph_on() -> None:
    """Their elements are symbols that both have: the inner value must not stand for the outer one."""
    given = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 20]>
    g (float[2] x, int64[1] one, bool c) => (int64[1] y) <int64 three = {3}> {
        p = Pow (one, three)
        a = Neg (x)
        b = Neg (a)
        y = If (c) <
            then_branch = t () => (int64[1] u) { u = Identity (p) },
            else_branch = e () => (int64[1] v) { q = Shape (b) v = Mul (p, q) }
        >
    }""")
    result = saturate_and_extract(given)
    assert isinstance(result.model, onnx.ModelProto)
    assert not result.report.unchanged
    for c in (True, False):
        same_numbers(given, result.model, x=np.ones(2, np.float32), one=np.array([3]), c=np.array(c))


def test_an_output_of_a_scan_keeps_the_rank_it_had_from_a_value_that_is_gone() -> None:
    """onnxruntime wants one of each, and may know it only from what an equal value declares."""
    given = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 22]>
        g (bool[] x, float[3] z) => (bool[] s, bool[] t) {
          s, t = Scan <num_scan_inputs = 1, body = b (bool[] l, float u) => (bool[a,b] i, bool[] j) {
            unused = Neg (u)
            i = Identity (x)
            j = Identity (i)
          }> (x, z)
        }""")
    result = saturate_and_extract(given, verify=False)
    assert not result.report.unchanged
    (scan,) = result.model.graph.node
    _i, j = scan.attribute[-1].g.output
    assert len(j.type.tensor_type.shape.dim) == 2
    same_numbers(given, result.model, x=np.ones((2, 3), bool), z=np.ones(3, np.float32))
