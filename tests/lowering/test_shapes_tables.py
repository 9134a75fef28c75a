"""Symbolic facts of what position tables are made with: ranges of floats, the last elements, rows cut to a length."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from onnx_egraph.lowering.shapes.dims import Dim
from onnx_egraph.lowering.shapes.inference import Shapes, infer


def model(text: str, **constants: object) -> onnx.ModelProto:
    given = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> g {text}')
    for name, value in constants.items():
        array = np.asarray(value)
        array = array.astype(np.float32) if array.dtype.kind == "f" else array
        given.graph.initializer.append(numpy_helper.from_array(array, name))
    return given


def sizes(given: onnx.ModelProto) -> tuple[Shapes, dict[str, tuple[Dim, ...] | None]]:
    read = ir.from_proto(given)
    shapes = infer(read)
    return shapes, {str(v.name): shapes.of(v).dims for node in read.graph for v in node.outputs}


def is_fresh(dims: tuple[Dim, ...] | None) -> bool:
    return dims is not None and str(dims[0]).startswith("?")


def test_the_last_so_many_elements_are_counted_from_the_end() -> None:
    text = """(float[n] x) => (float[k] all, float[l] some, float[m] one) {
        s = Shape(x) back = Neg(s)
        all = Slice(x, back, far, zero) some = Slice(table, back, far, zero) one = Slice(x, minus, far, zero) }"""
    shapes, found = sizes(model(text, zero=[0], far=[2**63 - 1], minus=[-1], table=np.ones(7)))
    assert found["all"] == ("n",)
    assert is_fresh(found["some"])  # of no elements x[-0:] is everything
    assert found["one"] is not None
    assert [shapes.evaluate(found["one"][0], {"n": n}) for n in (0, 1, 5)] == [0, 1, 1]


def test_a_table_cut_to_what_it_is_multiplied_with_is_as_long() -> None:
    text = """(float[n] x) => (float[n] y, float[n] z) {
        s = Shape(x)
        cut = Slice(table, zero, s, zero) y = Mul(x, cut)
        short = Slice(row, zero, s, zero) z = Mul(x, short) }"""
    _, found = sizes(model(text, zero=[0], table=np.ones(7), row=np.ones(1)))
    assert found["cut"] == ("n",)
    assert found["short"] == ("min(1, n)",)  # one element broadcasts against any number


RANGES = [(0.5, 4.0, 1.0, 4), (0.0, 1.0, 0.1, 10), (1.0, -1.25, -0.5, 5), (1.0, 0.5, 1.0, 0), (0.0, 3.0, 1.0, 3)]


@pytest.mark.parametrize(("start", "limit", "step", "count"), RANGES)
def test_a_range_of_known_floats_has_a_length(start: float, limit: float, step: float, count: int) -> None:
    given = model("() => (float[k] r) { r = Range(start, limit, step) }", start=start, limit=limit, step=step)
    (made,) = ort.InferenceSession(given.SerializeToString()).run(None, {})
    assert sizes(given)[1]["r"] == (count,) == np.asarray(made).shape


@pytest.mark.parametrize("step", [0.5, 0.0])
def test_a_range_of_unknown_floats_has_none(step: float) -> None:
    text = "(float start, float limit) => (float[k] r) { r = Range(start, limit, step) }"
    assert is_fresh(sizes(model(text, step=step))[1]["r"])


def test_axes_of_several_heads_that_meet_prove_their_batches_equal() -> None:
    """4*a against 4*b: neither can be 1, so neither is stretched."""
    text = """(float[a,4,n] x, float[b,4,n] z) => (float[c,d] y) {
        flat = Constant <value_ints = [-1, 1]> ()
        tall = ReduceSum <keepdims = 0> (x, two)
        p = Reshape (tall, flat)
        low = ReduceSum <keepdims = 0> (z, two)
        q = Reshape (low, flat)
        y = Add (p, q)
    }"""
    _, found = sizes(model(text, two=[2]))
    assert found["p"] == found["q"] == found["y"]
    assert found["y"] in (("4*a", 1), ("4*b", 1))


def test_sizes_of_integer_inputs_are_positive_and_a_past_may_be_empty() -> None:
    text = """(int64[batch,seq] ids, float[b,4,past,8] cache) => (int64[n] y, float[m] z) {
        y = Shape (ids)
        z = Shape (cache)
    }"""
    read = ir.from_proto(model(text))
    shapes = infer(read)
    batch, seq = shapes.of(read.graph.inputs[0]).dims or ()
    assert shapes.positive(batch)
    assert shapes.positive(seq)
    assert not shapes.positive("past")
    assert shapes.positive(3)
    assert not shapes.positive(0)
    assert not shapes.positive(-1)
