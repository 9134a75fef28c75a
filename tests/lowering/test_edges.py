"""Models at the edge of what ONNX allows: nodes without outputs, thousands of operands, an old IR version."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh
from roundtrip_models import SIZE, info, model, n, norm, optimized

from onnx_egraph import saturate_and_extract
from onnx_egraph.lowering.model.names import Pool


def kinds(graph: onnx.GraphProto) -> list[str]:
    return [node.op_type for node in graph.node]


# ---- nodes


@pytest.mark.parametrize("outputs", ["", "-"])
def test_a_node_without_outputs_stays(outputs: str) -> None:
    """It may write a file, or count: nothing is known about it."""
    log = h.make_node("Log", ["s"], [o.strip("-") for o in outputs.split()], name="log it", domain="own")
    given = model([*norm("x", "s"), log, n("Neg", "s", "y")])
    given.opset_import.append(h.make_opsetid("own", 1))
    result = saturate_and_extract(given)
    assert "'log it' (Log)" in result.report.unchanged
    assert isinstance(result.model, onnx.ModelProto)
    assert kinds(result.model.graph) == kinds(given.graph)


def test_nodes_that_differ_in_an_attribute_stay_two() -> None:
    """In the middle of a long one, in its kind, in the bits of a NaN's neighbor: none is the same node."""
    long, other = np.zeros(5000, np.float32), np.zeros(5000, np.float32)
    other[2500] = 1
    string = [nh.from_array(np.array([text], object)) for text in "ab"]
    pairs: list[tuple[object, object]] = [
        ([nh.from_array(long)], [nh.from_array(other)]),
        (nh.from_array(long), nh.from_array(other)),
        (string[0], string[1]),
        ([1] * 5000, [1] * 2500 + [2] + [1] * 2499),
        ([1.0, float("nan")], [2.0, float("nan")]),
        (0.0, -0.0),
        (1, 1.0),
        (b"\xff", b"\xfe"),
        (["a", "b"], ["a", "c"]),
        (h.make_tensor_type_proto(1, [1]), h.make_tensor_type_proto(1, [2])),
    ]
    for k, pair in enumerate(pairs):
        nodes = [n("Mystery", "x", f"m{i}", value=value) for i, value in enumerate(pair)]
        given = model([*nodes, n("Sub", "m0 m1", "d"), n("Neg", "d", "e"), n("Neg", "e", "y")])
        result = saturate_and_extract(given).model
        assert isinstance(result, onnx.ModelProto)
        assert kinds(result.graph) == ["Mystery", "Mystery", "Sub"], k


def test_nodes_with_equal_attributes_become_one() -> None:
    attributes = dict(i=1, f=float("nan"), s="a", ints=[1, 2], floats=[0.5, float("nan")], strings=["a", "b"])
    nodes = [n("Mystery", "x", f"m{i}", t=nh.from_array(np.ones(3)), **attributes) for i in range(2)]
    result = saturate_and_extract(model([*nodes, n("Mul", "m0 m1", "y")])).model
    assert isinstance(result, onnx.ModelProto)
    assert kinds(result.graph) == ["Mystery", "Mul"]


@pytest.mark.parametrize("op", ["Sum", "Concat"])
def test_thousands_of_operands(op: str) -> None:
    count = 3000
    attributes = {"axis": 0} if op == "Concat" else {}
    nodes = [n("Neg", "x", "a"), n("Neg", "a", "b")] if op == "Concat" else norm("x", "b")
    operands = " ".join(["x", "b"] * (count // 2))
    given = model([*nodes, n(op, operands, "z", **attributes), n("Neg", "z", "y")], None, [info("y", None, SIZE)])
    result = saturate_and_extract(given).model
    assert isinstance(result, onnx.ModelProto)
    [joined] = [node for node in result.graph.node if node.op_type == op]
    assert len(joined.input) == count
    assert len(result.graph.node) < len(given.graph.node)


def test_new_names_are_the_first_free_ones() -> None:
    pool = Pool({"a_1", "a_3"})
    assert [pool.fresh("a") for _ in range(4)] == ["a", "a_2", "a_4", "a_5"]
    assert pool.fresh("a_4") == "a_4_1"


# ---- constants


def test_a_lifted_constant_keeps_what_its_node_said() -> None:
    constant = n("Constant", "", "k", value=nh.from_array(np.ones(SIZE, np.float32)), doc_string="of the node")
    constant.metadata_props.add(key="from", value="the node")
    given = model([constant, *norm("x", "s"), n("Mul", "s k", "y")])
    result = optimized(given)
    [kept] = [v for v in result.graph.value_info if v.name == "k"]
    assert kept.doc_string == "of the node"
    assert [(p.key, p.value) for p in kept.metadata_props] == [("from", "the node")]


def test_before_ir_version_4_no_initializer_is_new() -> None:
    """Each must be an input there, and a branch has none; the inputs are the caller's."""
    branches = {
        f"{name}_branch": h.make_graph(
            [
                n("Constant", "", "k", value=nh.from_array(np.ones(SIZE, np.float32))),
                n(op, "x k", f"{name}1"), n("Neg", f"{name}1", f"{name}2"), n("Neg", f"{name}2", f"{name}3"),
            ],
            name, [], [info(f"{name}3")],
        )
        for name, op in (("then", "Add"), ("else", "Sub"))
    }  # fmt: skip
    constants = [n("Constant", "", "k0", value=nh.from_array(np.ones(SIZE, np.float32)))]
    nodes = [*constants, n("If", "c", "i", **branches), n("Add", "i k0", "y")]
    given = model(nodes, [info("x"), h.make_tensor_value_info("c", T.BOOL, [])], constants=[])
    given.ir_version = 3
    onnx.checker.check_model(given)
    result = optimized(given)
    assert result.ir_version == 3
    assert not result.graph.initializer
    assert kinds(result.graph) == ["Constant", "If", "Add"]
    assert [kinds(a.g) for a in result.graph.node[1].attribute] == [["Constant", "Sub"], ["Constant", "Add"]]
    again = saturate_and_extract(ir.from_proto(result))
    assert again.report.unchanged
