"""Nodes that break their operator's definition: one line that names the node, or the node as it came.

What cannot be run is refused where the definition says so; what only the sizes show stays as it is, since it may
lie in a branch that is never taken.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh
from roundtrip_models import info, model, n

from onnx_egraph import saturate_and_extract
from onnx_egraph.egraph.errors import ModelError

ONE = nh.from_array(np.array([1]), "one")
SPARSE = h.make_sparse_tensor(nh.from_array(np.ones(1, np.float32)), nh.from_array(np.array([2])), [4])
FAR = nh.from_array(np.array([-9]), "far")


def given(op: str, ins: str, domain: str = "", opset: int = 17, **attributes: Any) -> onnx.ModelProto:
    node = n(op, ins, "y", name="bad node", domain=domain, **attributes)
    outs = [h.make_tensor_value_info("y", T.FLOAT, None)]
    made = model([node], [info("x", "b", 4)], outs, [ONE, FAR])
    made.opset_import[0].version = opset
    made.opset_import.append(h.make_opsetid("com.microsoft", 1))
    return made


def body(inputs: int, outputs: int) -> onnx.GraphProto:
    names = [f"o{i}" for i in range(outputs)]
    return h.make_graph(
        [n("Identity", "x", name) for name in names], "body", [info(f"i{i}") for i in range(inputs)],
        [info(name) for name in names],
    )  # fmt: skip


REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    ("MatMul", "x -", {}), ("MatMul", "- x", {}), ("Relu", "-", {}), ("Reshape", "x -", {}), ("Softmax", "-", {}),
    ("Gather", "- one", {}), ("Transpose", "-", {}), ("Where", "- x x", {}), ("Expand", "x -", {}),
    ("Split", "- one", {}), ("Squeeze", "- one", {}), ("Cast", "-", {"to": 1}), ("Max", "x -", {}),
    ("Range", "one - one", {}), ("LayerNormalization", "x -", {}), ("ReduceMean", "-", {}), ("Slice", "x - one", {}),
    ("Cast", "x", {"to": -1}), ("Cast", "x", {"to": 99}), ("Cast", "x", {"to": 0}),
    ("RandomNormalLike", "x", {"dtype": 99}),
    ("ConstantOfShape", "one", {"value": nh.from_array(np.zeros(0, np.float32))}),
    ("ConstantOfShape", "one", {"value": nh.from_array(np.zeros(3, np.float32))}),
    ("Constant", "", {"sparse_value": SPARSE}),
    ("Transpose", "x", {"perm": [0, 0]}), ("Transpose", "x", {"perm": [5, -9]}),
    ("Loop", "- - x", {"body": body(0, 0)}), ("Loop", "- - x", {"body": body(3, 1)}),
    ("Scan", "x", {"body": body(1, 1), "num_scan_inputs": 5}),
    ("Scan", "x", {"body": body(0, 0), "num_scan_inputs": 1}),
    ("Scan", "x", {"body": body(1, 1), "num_scan_inputs": 1, "scan_input_axes": [0, 0]}),
    ("Scan", "x", {"body": body(1, 1), "num_scan_inputs": -1}),
    ("If", "one", {"then_branch": body(0, 1), "else_branch": body(0, 0)}),
    ("If", "one", {"then_branch": body(1, 1), "else_branch": body(0, 1)}),
    # operators this operator set does not have yet, or that are not ONNX's
    ("RotaryEmbedding", "x", {}), ("Gelu", "", {}), ("QuickGelu", "", {"domain": "com.microsoft"}),
    ("QuickGelu", "x", {"domain": "com.microsoft", "alpha": "a"}),
]  # fmt: skip


@pytest.mark.parametrize(("op", "ins", "attributes"), REFUSED)
def test_refused(op: str, ins: str, attributes: dict[str, Any]) -> None:
    with pytest.raises(ModelError) as caught:
        saturate_and_extract(given(op, ins, **attributes))
    assert f"'bad node' ({op})" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_split_into_fewer_parts_than_it_has_outputs_is_refused() -> None:
    """onnxruntime ends the process when it loads one whose operand has a known size."""
    made = given("Split", "x", opset=18, axis=1, num_outputs=1)
    made.graph.node[0].output.append("z")
    with pytest.raises(ModelError, match=r"'bad node' \(Split\): attribute 'num_outputs' is 1, and the node has 2"):
        saturate_and_extract(made)


def in_onnx_ir(op: str, ins: str, attributes: dict[str, Any]) -> bool:
    try:
        ir.from_proto(given(op, ins, **attributes))
    except Exception:  # onnx-ir raises several kinds for what it cannot hold
        return False
    return True


@pytest.mark.parametrize(("op", "ins", "attributes"), [case for case in REFUSED if in_onnx_ir(*case)])
def test_an_onnx_ir_model_is_no_way_around(op: str, ins: str, attributes: dict[str, Any]) -> None:
    """Its nodes are not held to the definition beforehand: refused, or as they came."""
    made = ir.from_proto(given(op, ins, **attributes))
    try:
        said = [node.op_type for node in saturate_and_extract(made)._ir.graph]
    except ModelError as error:
        said = [str(error)]
    assert said in ([op], []) or f"'bad node' ({op})" in said[0]


KEPT: list[tuple[str, str, dict[str, Any]]] = [
    ("Gather", "x one", {"axis": -99}), ("Gather", "x one", {"axis": 2}), ("Slice", "x one one far", {}),
    ("Slice", "x one far one", {}), ("Softmax", "x", {"axis": 99}), ("Concat", "x x", {"axis": -9}),
    ("Split", "x", {"axis": -9}), ("Squeeze", "x far", {}), ("Unsqueeze", "x far", {}), ("ReduceSum", "x far", {}),
    ("Transpose", "x", {"perm": [0]}), ("Transpose", "x", {"perm": [2, 1, 0]}), ("Flatten", "x", {"axis": 99}),
    ("Shape", "x", {"start": 99, "end": -99}), ("Squeeze", "one far", {}), ("Trilu", "x far", {}),
    ("Tile", "x far", {}),
]  # fmt: skip


@pytest.mark.parametrize(("op", "ins", "attributes"), KEPT)
def test_kept(op: str, ins: str, attributes: dict[str, Any]) -> None:
    result = saturate_and_extract(given(op, ins, **attributes)).model
    assert isinstance(result, onnx.ModelProto)
    assert [node.op_type for node in result.graph.node] in ([op], [])


@pytest.mark.parametrize(
    ("op", "a", "b"), [("Pow", 2, -1), ("Div", 2, 0), ("Div", 0, 0)]
)  # fmt: skip
@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_numbers_that_do_not_exist_are_not_computed(op: str, a: int, b: int, dtype: type[np.integer[Any]]) -> None:
    """No error, and no warning of numpy's."""
    constants = [nh.from_array(np.array(v, dtype), name) for name, v in (("a", a), ("b", b))]
    nodes = [n(op, "a b", "c"), n("Cast", "c", "d", to=T.FLOAT), n("Mul", "x d", "y")]
    saturate_and_extract(model(nodes, constants=constants))


@pytest.mark.parametrize("depth", [0, 40])
def test_sizes_that_contradict_each_other_are_found(depth: int) -> None:
    """The node at which it shows, among nodes before and behind it that are right."""
    nodes = [
        *(n("Neg" if k % 2 else "Abs", f"a{k}" if k else "x", f"a{k + 1}") for k in range(depth)),
        n("Where", f"c {f'a{depth}' if depth else 'x'} seven", "w", name="the bad one"),
        *(n("Neg" if k % 2 else "Abs", f"b{k}" if k else "w", f"b{k + 1}") for k in range(depth)),
        n("Sin", f"b{depth}" if depth else "w", "y"),
    ]
    condition = h.make_tensor_value_info("c", T.BOOL, ["b", 1])
    seven = nh.from_array(np.ones(7, np.float32), "seven")
    with pytest.raises(ModelError, match=r"node 'the bad one' \(Where\): .*two sizes for one dimension"):
        saturate_and_extract(model(nodes, [info("x", "b", 4), condition], [info("y", None, None)], [seven]))
