"""The default domain has two names, "" and "ai.onnx", and a model may use either, both or none of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper as h
from onnx import numpy_helper as nh
from onnx import parser

from onnx_egraph import saturate_and_extract
from onnx_egraph.egraph.errors import ModelError
from onnx_egraph.lowering.files.load import load

Imports = list[tuple[str, int]]
#: The answer of each depends on the operator set it is read in.
BODIES = {
    "broadcast of x[b,1]": """t = Add (x, y) \n s = Shape (t) \n d = Gather (s, one) \n f = Cast <to = 1> (d)
        z = Mul (t, f)""",
    "axes by operand": """t = ReduceSum (y, axes) \n s = Shape (t) \n d = Gather (s, one) \n f = Cast <to = 1> (d)
        z = Mul (y, f)""",
    "softmax of one axis": "u = Unsqueeze (y, axes) \n z0 = Softmax <axis = 1> (u) \n z = Squeeze (z0, axes)",
    "layer norm": """m = ReduceMean <axes = [-1]> (y) \n d = Sub (y, m) \n p = Pow (d, two)
        v = ReduceMean <axes = [-1]> (p) \n e = Add (v, eps) \n r = Sqrt (e) \n q = Div (d, r) \n z = Mul (q, two)""",
    "quantized": """q, sc, zp = DynamicQuantizeLinear (y) \n t = DequantizeLinear (q, sc, zp) \n n = Identity (t)
        z = Mul (n, two)""",
}  # fmt: skip
FEEDS = {"x": np.full((2, 1), 2, np.float32), "y": np.arange(6, dtype=np.float32).reshape(2, 3)}


def model(body: str, imports: Imports, of_nodes: str = "") -> onnx.ModelProto:
    made = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[b,1] x, float[b,n] y) => (float[b,m] z)
    <int64 one = {{1}}, int64[1] axes = {{1}}, float two = {{2.0}}, float eps = {{0.00001}}> {{ {body} }}""")
    del made.opset_import[:]
    made.opset_import.extend(h.make_opsetid(*pair) for pair in imports)
    for node in made.graph.node:
        node.domain = of_nodes
    return made


def run(proto: onnx.ModelProto, feeds: Any) -> Any:
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})


def as_path(proto: onnx.ModelProto, folder: Path) -> Path:
    onnx.save(proto, folder / "m.onnx")
    return folder / "m.onnx"


SOURCES: dict[str, Callable[[onnx.ModelProto, Path], Any]] = {
    "path": as_path, "proto": lambda proto, _: proto, "ir": lambda proto, _: ir.from_proto(proto),
}  # fmt: skip


def proto_of(found: Any) -> onnx.ModelProto:
    return ir.to_proto(found) if isinstance(found, ir.Model) else found


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("of_nodes", ["", "ai.onnx"])
@pytest.mark.parametrize("body", BODIES)
def test_either_name_is_read_alike(body: str, of_nodes: str, kind: str, tmp_path: Path) -> None:
    plain = model(BODIES[body], [("", 17)])
    other = model(BODIES[body], [("ai.onnx", 17)], of_nodes)
    source = SOURCES[kind](other, tmp_path)
    before = proto_of(source if kind != "path" else other).SerializeToString()
    result = saturate_and_extract(source, verify=True)
    assert result.report.verified, result.report.verification
    assert proto_of(source if kind != "path" else other).SerializeToString() == before
    expected = saturate_and_extract(plain)
    assert result.report.fused == expected.report.fused
    assert result.report.unchanged == expected.report.unchanged
    for a, b in zip(run(plain, FEEDS), run(proto_of(result.model), FEEDS), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert "ai.onnx" not in " ".join(result.report.needs)


@pytest.mark.parametrize("kind", SOURCES)
def test_an_unchanged_model_keeps_the_name_it_gives(kind: str, tmp_path: Path) -> None:
    given = model("z = Mul (y, two)", [("ai.onnx", 17)])
    result = saturate_and_extract(SOURCES[kind](given, tmp_path))
    assert result.report.unchanged
    assert [(o.domain, o.version) for o in proto_of(result.model).opset_import] == [("ai.onnx", 17)]


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("imports", [
    [("", 12), ("ai.onnx", 13)], [("ai.onnx", 13), ("", 12)], [("", 13), ("ai.onnx", 12)], [("ai.onnx", 12), ("", 13)],
    [("", 12), ("", 13)], [("", 13), ("", 12)], [("", 12), ("ai.onnx", 12), ("", 13)],
    [("", 13), ("ai.onnx", 13), ("", 12)],
])  # fmt: skip
def test_of_several_imports_the_last_counts_as_in_onnxruntime(imports: Imports, kind: str, tmp_path: Path) -> None:
    # before opset 13 Softmax goes over all axes from the first
    given = model("s3 = Shape (y) \n u = Softmax <axis = 0> (y) \n z = Identity (u)", imports)
    source = SOURCES[kind](given, tmp_path)
    want = run(proto_of(source) if kind == "ir" else given, FEEDS)
    result = saturate_and_extract(source)
    assert not result.report.unchanged
    if kind != "ir":  # whose imports are a dict
        assert load(source).opset == imports[-1][1]
    assert len(proto_of(result.model).opset_import) == 1
    np.testing.assert_array_equal(run(proto_of(result.model), FEEDS), want)


def test_functions_are_inlined_under_either_name() -> None:
    body = [h.make_node("Unsqueeze", ["a", "i"], ["u"], domain="ai.onnx"), h.make_node("Neg", ["u"], ["v"]),
            h.make_node("Squeeze", ["v", "i"], ["r"])]  # fmt: skip
    made = model("f = Identity (y) \n z = Mul (f, two)", [("ai.onnx", 17), ("own", 1)])
    made.functions.append(h.make_function("own", "F", ["a", "i"], ["r"], body, [h.make_opsetid("", 17)]))
    made.graph.node[0].CopyFrom(h.make_node("F", ["y", "axes"], ["f"], domain="own"))
    made.functions[0].node[0].domain = ""
    want = run(made, FEEDS)
    for name in ("", "ai.onnx"):  # which onnxruntime takes in functions as far as they say "" alone
        made.functions[0].opset_import[0].domain = name
        for node in made.functions[0].node:
            node.domain = name
        loaded = load(made)
        assert not loaded.model.functions
        assert [node.op_type for node in loaded.model.graph] == ["Unsqueeze", "Neg", "Squeeze", "Mul"]
        np.testing.assert_array_equal(run(ir.to_proto(loaded.model), FEEDS), want)


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_a_function_of_the_default_domain_gives_way_to_the_operator(domain: str) -> None:
    """onnxruntime never looks at such a function."""
    made = model("t = Relu (y) \n i = Identity (t) \n z = Mul (i, two)", [("", 17)])
    made.functions.append(
        h.make_function(domain, "Relu", ["a"], ["r"], [h.make_node("Neg", ["a"], ["r"])], [h.make_opsetid("", 17)])
    )
    result = saturate_and_extract(made)
    np.testing.assert_array_equal(run(result.model, FEEDS), run(made, FEEDS))


def test_no_import_of_the_default_domain() -> None:
    made = model("i = Identity (y) \n z = Mul (i, two)", [("com.microsoft", 1)])
    result = saturate_and_extract(made)
    assert "no operator set of the default domain" in result.report.unchanged
    assert [o.domain for o in result.model.opset_import] == ["com.microsoft"]
    made = model("i = Identity (y) \n z = Mul (i, two)", [])
    with pytest.raises(ModelError, match="imports no opset"):
        saturate_and_extract(made)


def test_what_is_written_in_the_default_domain_is_imported() -> None:
    """A model of other operators alone need not import it."""
    made = model("z = FusedMatMul (y, w) \n again = FusedMatMul (y, w)", [("com.microsoft", 1)], "com.microsoft")
    made.graph.initializer.append(nh.from_array(np.eye(3, dtype=np.float32), "w"))
    made.graph.output.append(h.make_tensor_value_info("again", 1, ["b", "m"]))
    result = saturate_and_extract(made)
    assert any(not node.domain for node in result.model.graph.node)  # an output that is a copy
    assert {o.domain for o in result.model.opset_import} == {"", "com.microsoft"}
    assert any("of ai.onnx" in need for need in result.report.needs)
    for a, b in zip(run(made, FEEDS), run(result.model, FEEDS), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_a_function_imports_says_nothing_of_the_model() -> None:
    """onnxruntime takes its newest operators for such a model, in the function as well."""
    made = model("f = Identity (y) \n z = Mul (f, two)", [("own", 1)])
    body = [h.make_node("Softmax", ["a"], ["r"], axis=0)]
    made.functions.append(h.make_function("own", "F", ["a"], ["r"], body, [h.make_opsetid("", 12)]))
    made.graph.node[0].CopyFrom(h.make_node("F", ["y"], ["f"], domain="own"))
    result = saturate_and_extract(made)
    assert "no operator set of the default domain" in result.report.unchanged
    np.testing.assert_array_equal(run(result.model, FEEDS), run(made, FEEDS))


@pytest.mark.parametrize("version", [0, -(2**63), 1, 2**31, 2**63 - 1, 2**32 + 1])
def test_an_import_that_no_node_needed_is_mended_where_one_does(version: int) -> None:
    given = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
    g (float[n, 4] x) => (float[n, 4] y) <float root = {1.41421354}, float one = {1}, float half = {0.5}> {
        d = Div (x, root)
        e = Erf (d)
        p = Add (e, one)
        q = Mul (x, p)
        y = Mul (q, half)
    }""")
    given.opset_import.add(domain="com.microsoft", version=version)
    result = saturate_and_extract(given, verify=True)
    assert result.report.counts() == {"Gelu": 1}
    assert result.report.verified, result.report.verification
