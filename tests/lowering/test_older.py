"""Models of opsets 7 to 10 are raised to 11, each node by itself; what cannot be raised comes back with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh
from onnx import parser

from onnx_egraph import saturate_and_extract
from onnx_egraph.lowering.files.older import renew

X = np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32)
X[0, 0, 0] = [np.inf, -np.inf, 3e38, 0.5]
FAR = 2**63 - 1
#: A node of x, 2 x 3 x 4 x 4, in the spelling of each older opset it runs in.
NODES: list[tuple[str, range]] = [
    (f"y = Slice <starts = [1], ends = [{FAR}], axes = [1]> (x)", range(7, 10)),
    ("y = Slice <starts = [0, -2], ends = [1, -1]> (x)", range(7, 10)),
    (f"y = Slice <starts = [{-FAR}], ends = [{-FAR}], axes = [0]> (x)", range(7, 10)),
    ("y = Slice (x, one, far, one)", range(10, 11)),
    ("y = Clip <min = 0.0, max = 6.0> (x)", range(7, 11)),
    ("y = Clip <max = 0.5> (x)", range(7, 11)),
    ("y = Clip <min = -0.0> (x)", range(7, 11)),
    ("y = Clip (x)", range(7, 11)),
    ("y = Pad <pads = [0, 0, 0, 1, 0, 0, 1, 0], value = 2.5> (x)", range(7, 11)),
    ("y = Pad <pads = [0, 0, 0, -1, 0, 0, 1, 0]> (x)", range(7, 11)),
    ("y = Pad <mode = \"edge\", pads = [0, 0, 0, 1, 0, 0, 1, 0]> (x)", range(7, 11)),
    ("d = Cast <to = 11> (x) \n y = Pad <pads = [0, 0, 0, 1, 0, 0, 1, 0], value = 0.1> (d)", range(7, 11)),
    ("y, i = TopK <k = 2> (x)", range(7, 10)),
    ("y, i = TopK <k = 2, axis = 1> (x)", range(7, 10)),
    ("y, i = TopK (x, one)", range(10, 11)),
    ("y = BatchNormalization (x, c3, c3, c3, c3)", range(7, 11)),
    ("y = MaxPool <kernel_shape = [2, 2]> (x)", range(7, 11)),
    ("y = AveragePool <kernel_shape = [2, 2], strides = [2, 2], pads = [1, 1, 1, 1]> (x)", range(7, 11)),
    ("y = DepthToSpace <blocksize = 2> (four)", range(7, 11)),
    ("a = Reshape (x, rows) \n b = Transpose (a) \n c = MatMul (a, b) \n y = Gemm (a, b, c)", range(7, 11)),
    ("y = Softmax <axis = 1> (x)", range(7, 11)),
    ("y = ReduceMean <axes = [1, 2], keepdims = 0> (x)", range(7, 11)),
    ("y = Dropout <ratio = 0.5> (x)", range(7, 11)),
    ("y, z = Split <axis = 1, split = [1, 2]> (x)", range(7, 11)),
    ("y = Scatter <axis = 1> (x, where, one4)", range(9, 11)),
    ("u = Unsqueeze <axes = [0]> (x) \n y = Squeeze <axes = [0]> (u)", range(7, 11)),
    ("s = Shape (x) \n y = ConstantOfShape <value = float[1] {3.0}> (s)", range(9, 11)),
    ("b = Cast <to = 9> (x) \n y = Where (b, x, x)", range(9, 11)),
]  # fmt: skip
CASES = [(text, opset) for text, opsets in NODES for opset in opsets]


def model(body: str, opset: int, ir_version: int = 4) -> onnx.ModelProto:
    made = parser.parse_model(f"""<ir_version: {ir_version}, opset_import: ["" : {opset}]>
    g (float[a,3,4,4] x) => ()
    <int64[1] one = {{1}}, int64[1] far = {{{FAR}}}, float[3] c3 = {{1.5, 2.0, 0.5}}, int64[2] rows = {{-1, 4}},
     int64[1,1,1,1] where = {{1}}, float[1,1,1,1] one4 = {{7.0}}, float[1,4,1,1] four = {{1.0, 2.0, 3.0, 4.0}},
     float[4] w4 = {{1.0, 2.0, 3.0, 4.0}}, float root = {{1.4142135}}, float unit = {{1.0}}, float half = {{0.5}}>
    {{ {body} }}""")
    made.graph.output.append(h.make_tensor_value_info("y", T.DOUBLE if "to = 11" in body else T.FLOAT, None))
    return made


def run(proto: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, feeds)


@pytest.mark.parametrize(("body", "opset"), CASES)
def test_a_node_means_the_same_in_opset_11(body: str, opset: int) -> None:
    given = model(body, opset)
    want = run(given, {"x": X})
    del given.graph.output[0].type.tensor_type.shape.dim[:]
    given.graph.output[0].type.tensor_type.shape.dim.extend(onnx.TensorShapeProto.Dimension() for _ in want[0].shape)
    raised = ir.from_proto(given)
    assert renew(raised) == ""
    made = ir.to_proto(raised)
    onnx.checker.check_model(made, full_check=True)
    assert [o.version for o in made.opset_import] == [11]
    assert {v.name for v in made.graph.input} == {"x"}
    assert [v.name for v in made.graph.output] == ["y"]
    names = [o for node in given.graph.node for o in node.output]
    assert [o for node in made.graph.node for o in node.output] == names
    np.testing.assert_array_equal(run(made, {"x": X}), want)


@pytest.mark.parametrize(("body", "opset", "says"), [
    ("y = Relu (x)", 6, "older than 11; convert"),
    ("y = Upsample <mode = \"nearest\"> (x, scales)", 9, "(Upsample)"),
    ("y, m = Dropout (x) \n z = Neg (m)", 7, "(Dropout)"),
    ("y = Frobnicate (x)", 9, "(Frobnicate)"),
])  # fmt: skip
def test_what_cannot_be_raised_comes_back_as_it_was(body: str, opset: int, says: str) -> None:
    given = model(body, opset)
    given.graph.initializer.append(nh.from_array(np.ones(4, np.float32), "scales"))
    result = saturate_and_extract(given)
    assert says in result.report.unchanged
    assert result.report.opset == opset
    assert result.report.needs == []
    assert [o.version for o in result.model.opset_import] == [opset]
    assert [n.op_type for n in result.model.graph.node] == [n.op_type for n in given.graph.node]
    raised = ir.from_proto(given)
    renew(raised)
    assert ir.to_proto(raised).SerializeToString() == ir.to_proto(ir.from_proto(given)).SerializeToString()


def norm(opset: int, ir_version: int, folder: Path | None = None) -> onnx.ModelProto:
    """A LayerNorm over a MatMul, in a branch and outside, its weights in a side file."""
    text = """
        p = MatMul (x, w)
        m = ReduceMean <axes = [-1]> (p)
        d = Sub (p, m)
        q = Pow (d, two)
        v = ReduceMean <axes = [-1]> (q)
        e = Add (v, eps)
        r = Sqrt (e)
        n = Div (d, r)
        k = Mul (n, g)
        y = Add (k, g)"""
    made = parser.parse_model(f"""<ir_version: {ir_version}, opset_import: ["" : {opset}]>
    graph (float[a,b,16] x) => (float[a,b,16] y) <float two = {{2.0}}, float eps = {{0.00001}}> {{ {text} }}""")
    rng = np.random.default_rng(1)
    for name, shape in (("w", (16, 16)), ("g", (16,))):
        tensor = nh.from_array(rng.standard_normal(shape).astype(np.float32), name)
        made.graph.initializer.append(tensor)
    if opset < 10:
        made.graph.node.append(h.make_node("Slice", ["y"], ["s"], "sliced", starts=[0], ends=[4], axes=[2]))
        made.graph.output.append(h.make_tensor_value_info("s", T.FLOAT, ["a", "b", 4]))
    if ir_version < 4:
        given = [h.make_tensor_value_info(t.name, t.data_type, t.dims) for t in made.graph.initializer]
        made.graph.input.extend(given)
    if folder is not None:
        onnx.save(made, folder / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    return made


@pytest.mark.parametrize("opset", range(7, 11))
@pytest.mark.parametrize("ir_version", [3, 4, 8])
def test_an_older_model_is_optimized(opset: int, ir_version: int) -> None:
    given = norm(opset, ir_version)
    result = saturate_and_extract(given, verify=True)
    assert result.report.verified, result.report.verification
    assert result.report.counts() == {"LayerNormalization": 1}
    assert result.report.needs == ["operator set 11 of ai.onnx"]
    assert "needs: operator set 11 of ai.onnx" in result.report.text()
    made = result.model
    assert made.ir_version == ir_version
    assert [v.SerializeToString() for v in made.graph.input] == [v.SerializeToString() for v in given.graph.input]
    assert [v.SerializeToString() for v in made.graph.output] == [v.SerializeToString() for v in given.graph.output]
    x = np.random.default_rng(2).standard_normal((2, 3, 16)).astype(np.float32)
    for a, b in zip(run(given, {"x": x}), run(made, {"x": x}), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_weights_in_side_files_stay_there(tmp_path: Path) -> None:
    norm(9, 4, tmp_path)
    result = saturate_and_extract(tmp_path / "m.onnx", verify=True)
    assert result.report.verified, result.report.verification
    assert result.report.needs == ["operator set 11 of ai.onnx"]
    tensor = result.model.graph.initializers["w"].const_value
    assert isinstance(tensor, ir.ExternalTensor)
    result.save(tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").stat().st_size < 2000


@pytest.mark.parametrize("kind", ["proto", "ir"])
def test_a_raised_model_in_which_nothing_is_found_comes_back_as_it_was(kind: str) -> None:
    given = model("y = Clip <min = 0.0> (x)", 9)
    source: Any = given if kind == "proto" else ir.from_proto(given)
    result = saturate_and_extract(source)
    assert result.report.unchanged == "no rule leads to a cheaper graph"
    assert result.report.needs == []
    made: Any = result.model if kind == "proto" else ir.to_proto(result.model)
    assert [o.version for o in made.opset_import] == [9]
    assert [a.name for a in made.graph.node[0].attribute] == ["min"]


def test_bodies_are_raised_too() -> None:
    text = """
        y = If (c) <
            then_branch = yes () => (float[a,i,4,4] p) { p = Slice <starts = [0], ends = [2], axes = [0]> (x) },
            else_branch = no () => (float[a,j,4,4] q) { q = Clip <min = 0.0> (x) }
        >"""
    given = model(text, 9)
    given.graph.input.append(h.make_tensor_value_info("c", T.BOOL, []))
    raised = ir.from_proto(given)
    assert renew(raised) == ""
    made = ir.to_proto(raised)
    for choice in (True, False):
        feeds = {"x": X, "c": np.array(choice)}
        np.testing.assert_array_equal(run(made, feeds), run(given, feeds))


@pytest.mark.parametrize("opset", range(7, 17))
def test_an_operator_of_a_later_opset_is_left_alone(opset: int) -> None:
    """ONNX has it since opset 20 and onnxruntime runs no such model: nothing is made of it, and below 11 it is said."""
    given = model("e = Exp (x) \n y = Gelu (e)", opset)
    result = saturate_and_extract(given)
    assert result.model.SerializeToString() == given.SerializeToString()
    assert ("(Gelu) is no operator of opset" in result.report.unchanged) == (opset < 11)


@pytest.mark.parametrize("opset", [7, 10])
@pytest.mark.parametrize("body", [
    "y = LayerNormalization <axis = 2> (x, square, square)", "y, m, v = LayerNormalization (x, w4) z = Exp (m)",
    "y = SimplifiedLayerNormalization <epsilon = 0.1> (x, w4)",
])  # fmt: skip
def test_norms_of_onnxruntime_are_the_same_in_opset_11(body: str, opset: int) -> None:
    given = model(body, opset)
    given.graph.initializer.append(nh.from_array(np.linspace(1, 2, 16, dtype=np.float32).reshape(4, 4), "square"))
    raised = ir.from_proto(given)
    assert renew(raised) == ""
    np.testing.assert_array_equal(run(ir.to_proto(raised), {"x": X}), run(given, {"x": X}))


@pytest.mark.parametrize("opset", range(9, 17))
def test_layer_norm_of_any_opset_is_one(opset: int) -> None:
    """The checker refuses it below opset 17; onnxruntime runs it, and what is around it is optimized."""
    text = """n = LayerNormalization <axis = -1> (x, w4, w4)
        r = Div (n, root) \n e = Erf (r) \n p = Add (e, unit) \n h = Mul (n, half) \n y = Mul (p, h)"""
    given = model(text, opset)
    result = saturate_and_extract(given, verify=True)
    assert result.report.verified, result.report.verification
    assert result.report.counts() == {"Gelu": 1}
    assert [node.op_type for node in result.model.graph.node] == ["LayerNormalization", "Gelu"]
