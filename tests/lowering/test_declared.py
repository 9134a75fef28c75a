"""Types declared more than once for one value: the result declares the true one, and nothing is computed from a false
one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from onnx_egraph import saturate_and_extract

Dims = list[int | str | None] | None


def info(name: str, dims: Dims, dtype: int = T.FLOAT) -> onnx.ValueInfoProto:
    return h.make_tensor_value_info(name, dtype, dims)


def model(given: onnx.ValueInfoProto, outputs: list[onnx.ValueInfoProto]) -> onnx.ModelProto:
    """z = x * the size of x's last axis; n = -x through a copy that can be left out."""
    nodes = [
        h.make_node("Shape", ["x"], ["s"]), h.make_node("Gather", ["s", "one"], ["d"]),
        h.make_node("Cast", ["d"], ["f"], to=T.FLOAT), h.make_node("Mul", ["x", "f"], ["z"]),
        h.make_node("Identity", ["x"], ["i"]), h.make_node("Neg", ["i"], ["n"]),
    ]  # fmt: skip
    one = nh.from_array(np.array(1, np.int64), "one")
    return h.make_model(
        h.make_graph(nodes, "g", [given], [*outputs, info("n", ["b", None])], [one]),
        opset_imports=[h.make_opsetid("", 17)], ir_version=8,
    )  # fmt: skip


def run(proto: onnx.ModelProto) -> list[Any]:
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.arange(6, dtype=np.float32).reshape(2, 3)})


def dims_of(value: onnx.ValueInfoProto) -> Dims:
    return [d.dim_param or d.dim_value or None for d in value.type.tensor_type.shape.dim]


@pytest.mark.parametrize("declared", [["b", 4], ["b"], None, ["n", "b"], [7, 7]])
def test_an_output_that_is_an_input(declared: Dims) -> None:
    given = model(info("x", ["b", "n"]), [info("x", declared), info("z", ["b", "n"])])
    result = saturate_and_extract(given, verify=True)
    assert result.report.verified, result.report.verification
    assert not result.report.unchanged
    assert [dims_of(v) for v in (*result.model.graph.input, result.model.graph.output[0])] == [["b", "n"]] * 2
    for a, b in zip(run(given), run(result.model), strict=True):
        np.testing.assert_array_equal(a, b)


def test_an_output_that_is_an_input_of_another_type() -> None:
    given = model(info("x", ["b", "n"]), [info("x", ["b", "n"], T.FLOAT16), info("z", ["b", "n"])])
    result = saturate_and_extract(given)
    for a, b in zip(run(given), run(result.model), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("last", "first", "second", "true"), [
    ("n", ["b", "n"], ["b", 5], ["b", "n"]),
    ("n", ["b", 5], ["b", "n"], ["b", "n"]),
    (3, ["b", 5], ["b", 3], ["b", 3]),
    (3, ["b", 3], ["b", 5], ["b", 3]),
    (3, ["b", 5], ["b", 6], ["b", 3]),
    (3, ["b"], ["b", 6], ["b", 3]),
    (3, None, ["b", 3], ["b", 3]),
    (3, ["c", "d"], ["c", "d"], ["c", "d"]),
])  # fmt: skip
def test_an_output_listed_twice(last: int | str, first: Dims, second: Dims, true: Dims) -> None:
    for outputs in ([info("z", first), info("z", second)], [info("z", first), info("z", second), info("z", first)]):
        given = model(info("x", ["b", last]), outputs)
        result = saturate_and_extract(given, verify=True)
        assert result.report.verified, result.report.verification
        assert not result.report.unchanged
        assert [v.name for v in result.model.graph.output] == [v.name for v in given.graph.output]
        assert [dims_of(v) for v in result.model.graph.output[: len(outputs)]] == [true] * len(outputs)
        for a, b in zip(run(given), run(result.model), strict=True):
            np.testing.assert_array_equal(a, b)
        same = saturate_and_extract(ir.from_proto(result.model))
        assert same.report.nodes_after == len(result.model.graph.node)


def test_a_type_another_output_claims_is_not_taken() -> None:
    given = model(info("x", ["b", 3]), [info("z", ["b", 3]), info("z", ["b", 3], T.FLOAT16)])
    result = saturate_and_extract(given)
    assert [v.type.tensor_type.elem_type for v in result.model.graph.output] == [T.FLOAT] * 3
    for a, b in zip(run(given), run(result.model), strict=True):
        np.testing.assert_array_equal(a, b)


def test_in_a_body_too() -> None:
    """The carried value goes out as it came in, under one name with two declarations."""
    body = h.make_graph(
        [h.make_node("Shape", ["v"], ["s"]), h.make_node("Gather", ["s", "one"], ["d"]),
         h.make_node("Cast", ["d"], ["f"], to=T.FLOAT), h.make_node("Identity", ["v"], ["i"]),
         h.make_node("Mul", ["i", "f"], ["p"]), h.make_node("Identity", ["go"], ["on"])],
        "body", [info("k", [], T.INT64), info("go", [], T.BOOL), info("v", None)],
        [info("on", [], T.BOOL), info("v", ["b", 4]), info("p", None)],
    )  # fmt: skip
    loop = h.make_node("Loop", ["times", "", "x"], ["z", "all"], body=body)
    inits = [nh.from_array(np.array(1, np.int64), "one"), nh.from_array(np.array(2, np.int64), "times")]
    outputs = [info("z", ["b", "n"]), info("all", ["t", "b", "n"])]
    graph = h.make_graph([loop], "g", [info("x", ["b", "n"])], outputs, inits)
    given = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)
    result = saturate_and_extract(given)
    for a, b in zip(run(given), run(result.model), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_constant_listed_twice_is_made_once() -> None:
    """Folding turns its node into an initializer, which each place it is listed at would copy under its name."""
    given = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 18]>
    g (float[n] x) => (int64[2] k, float[n] y, int64[2] k) <int64[1] a = {1}, int64[1] b = {2}> {
        k = Concat <axis = 0> (a, b)
        z = Identity (x)
        y = Neg (z)
    }""")
    result = saturate_and_extract(given)
    assert isinstance(result.model, onnx.ModelProto)
    onnx.checker.check_model(result.model, full_check=True)
    assert not result.report.unchanged
    session = ort.InferenceSession(result.model.SerializeToString(), providers=["CPUExecutionProvider"])
    first, negated, last = session.run(None, {"x": np.ones(3, np.float32)})
    assert first.tolist() == last.tolist() == [1, 2]
    assert negated.tolist() == [-1, -1, -1]
