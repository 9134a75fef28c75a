"""Symbolic facts inside and after If, Loop and Scan."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from onnx_egraph.lowering.shapes.inference import ValueFacts, infer

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def tensor(name: str, dtype: int, dims: list[int | str | None] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, dims)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    names = ["" if name == "_" else name for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), **attributes)


def facts(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[str],
    constants: dict[str, object] | None = None,
) -> dict[str, ValueFacts]:
    """The facts of a small model by name, those of its subgraphs included."""
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [onnx.numpy_helper.from_array(np.array(value), name) for name, value in (constants or {}).items()],
    )
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9))
    shapes = infer(model)
    graphs = (model.graph, *model.graph.subgraphs())
    values = [value for each in graphs for value in (*each.inputs, *each.initializers.values())]
    values += [value for each in graphs for inner in each for value in inner.outputs]
    return {str(value.name): shapes.of(value) for value in values}


def dims_of(found: ValueFacts) -> tuple[int | str, ...]:
    assert found.dims is not None
    return found.dims


def is_fresh(dim: int | str) -> bool:
    return isinstance(dim, str) and dim.startswith("?")


def branch(name: str, nodes: list[onnx.NodeProto], output: str) -> onnx.GraphProto:
    return helper.make_graph(nodes, name, [], [onnx.ValueInfoProto(name=output)])


def test_if_joins_its_branches_and_sees_outer_values() -> None:
    then = branch("t", [node("Relu", "x", "t1"), node("Concat", "t1 w", "t2", axis=1)], "t2")
    other = branch("e", [node("Neg", "x", "e1"), node("Concat", "e1 x", "e2", axis=1)], "e2")
    nodes = [node("If", "c", "y", then_branch=then, else_branch=other)]
    inputs = [tensor("c", BOOL, []), tensor("x", FLOAT, ["n", 3]), tensor("w", FLOAT, ["p", 5])]
    case = facts(nodes, inputs, ["y"])
    assert case["t1"].dims == ("n", 3)
    assert case["t2"].dims == ("n", 8)
    assert case["e2"].dims == ("n", 6)
    # a branch may not run: its Concat proves nothing
    assert case["w"].dims == ("p", 5)
    dims = dims_of(case["y"])
    assert dims[0] == "n"
    assert is_fresh(dims[1])
    known = facts(nodes, inputs[1:], ["y"], {"c": True})
    assert known["y"].dims == ("n", 8)


def test_loop_keeps_what_every_iteration_keeps() -> None:
    body = helper.make_graph(
        [
            node("Identity", "go", "go_on"),
            node("Add", "a x", "a_next"),
            node("Concat", "b x", "b_next", axis=0),
            node("Unsqueeze", "c zero", "c_next"),
            node("Relu", "a", "scan"),
        ],
        "body",
        [tensor("i", INT64, []), tensor("go", BOOL, [])] + [tensor(name, FLOAT, ["lie", 9]) for name in "abc"],
        [onnx.ValueInfoProto(name=name) for name in "go_on a_next b_next c_next scan".split()],
    )
    case = facts(
        [node("Loop", "trips _ x x x", "oa ob oc os", body=body)],
        [tensor("trips", INT64, []), tensor("x", FLOAT, ["n", 3])],
        "oa ob oc os".split(),
        {"zero": [0]},
    )
    assert case["i"].dims == ()
    assert case["i"].dtype == ir.DataType.INT64
    assert case["a"].dims == ("n", 3)
    assert case["oa"].dims == ("n", 3)
    (rows, columns) = dims_of(case["b"])
    (rows_after, columns_after) = dims_of(case["ob"])
    assert is_fresh(rows)
    assert is_fresh(rows_after)
    assert rows != rows_after
    assert columns == columns_after == 3
    assert case["c"].dims is None
    assert case["oc"].dims is None
    assert all(map(is_fresh, dims_of(case["os"])))
    assert len(dims_of(case["os"])) == 3


def test_scan_slices_its_inputs() -> None:
    body = helper.make_graph(
        [node("Add", "state row", "next"), node("Identity", "next", "out")],
        "body",
        [tensor("state", FLOAT, None), tensor("row", FLOAT, None)],
        [onnx.ValueInfoProto(name="next"), onnx.ValueInfoProto(name="out")],
    )
    case = facts(
        [node("Scan", "s x", "last all", body=body, num_scan_inputs=1, scan_input_axes=[-1])],
        [tensor("s", FLOAT, ["n", 3]), tensor("x", FLOAT, ["n", 3, "t"])],
        ["last", "all"],
    )
    assert case["row"].dims == ("n", 3)
    assert case["state"].dims == ("n", 3)
    assert case["last"].dims == ("n", 3)
    assert len(dims_of(case["all"])) == 3
