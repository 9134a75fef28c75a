"""What a file says of sizes without proof: believed where they stay open, named in the report, and not under strict."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper

from onnx_egraph import saturate_and_extract
from onnx_egraph.egraph.engine.assumption import DECLARED_SIZES, NAMES_SHARED
from onnx_egraph.lowering.shapes.inference import infer


def model(text: str, info: dict[str, list[int | str]] | None = None, **constants: object) -> onnx.ModelProto:
    """`info` declares float values inside."""
    made = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> g {text}')
    for name, value in constants.items():
        array = np.asarray(value)
        array = array.astype(np.float32) if array.dtype.kind == "f" else array
        made.graph.initializer.append(numpy_helper.from_array(array, name))
    made.graph.value_info.extend(helper.make_tensor_value_info(n, T.FLOAT, s) for n, s in (info or {}).items())
    return made


def run(made: onnx.ModelProto, **feeds: np.ndarray) -> list[Any]:
    """Without the names of sizes, by which onnxruntime shares buffers, and the shapes declared inside."""
    plain = onnx.ModelProto()
    plain.CopyFrom(made)
    del plain.graph.value_info[:]
    for value in (*plain.graph.input, *plain.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            dim.ClearField("dim_param")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return list(ort.InferenceSession(plain.SerializeToString(), options).run(None, feeds))


def optimized(made: onnx.ModelProto, **arguments: Any) -> tuple[onnx.ModelProto, Any]:
    result = saturate_and_extract(made, **arguments)
    assert isinstance(result.model, onnx.ModelProto)
    return result.model, result.report


def assumed(report: Any) -> list[str]:
    return [a for a in report.assumptions if a.startswith((NAMES_SHARED, DECLARED_SIZES))]


def attention(owner: str) -> onnx.ModelProto:
    """A cross attention as it was once written: its views take their batch from the shape of `owner`."""
    rng = np.random.default_rng(0)
    text = f"""(int64[batch,seq] ids, int64[batch,seq] position_ids, float[batch,enc,32] h, int64[batch,enc] mask)
        => (float[b,s,32] y) {{
        tokens = Gather(table, ids) places = Gather(table, position_ids) x = Add(tokens, places)
        bsz = Shape<start=0, end=1>({owner}) four = Concat<axis=0>(bsz, tail) three = Concat<axis=0>(bsz, flat)
        q0 = MatMul(x, wq) q1 = Reshape(q0, four) q = Transpose<perm=[0,2,1,3]>(q1)
        k0 = MatMul(h, wk) k1 = Reshape(k0, four) k = Transpose<perm=[0,2,3,1]>(k1)
        v0 = MatMul(h, wv) v1 = Reshape(v0, four) v = Transpose<perm=[0,2,1,3]>(v1)
        kept = Cast<to=1>(mask) wide = Unsqueeze(kept, axes) off = Sub(one, wide) bias = Mul(off, low)
        qk = MatMul(q, k) scaled = Mul(qk, scale) masked = Add(scaled, bias) p = Softmax<axis=-1>(masked)
        o = MatMul(p, v) o1 = Transpose<perm=[0,2,1,3]>(o) y = Reshape(o1, three) }}"""
    drawn = {name: rng.standard_normal((32, 32)) * 0.3 for name in ("table", "wq", "wk", "wv")}
    return model(
        text, **drawn, tail=[-1, 4, 8], flat=[-1, 32], axes=[1, 2], one=1.0, low=-1e9, scale=8**-0.5
    )  # fmt: skip


def feeds(ids: int, positions: int, states: int, mask: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        "ids": rng.integers(0, 32, (ids, 5)), "position_ids": rng.integers(0, 32, (positions, 5)),
        "h": rng.standard_normal((states, 7, 32)).astype(np.float32), "mask": np.ones((mask, 7), np.int64),
    }  # fmt: skip


@pytest.mark.parametrize("owner", ["ids", "position_ids", "h", "mask"])
def test_a_view_by_another_inputs_batch(owner: str) -> None:
    made = attention(owner)
    result, report = optimized(made, verify=True)
    assert report.verified
    assert sum(report.counts().values()) == 1
    assert len(assumed(report)) >= 1
    given = feeds(3, 3, 3, 3)
    np.testing.assert_allclose(run(result, **given)[0], run(made, **given)[0], rtol=1e-4, atol=1e-5)
    strict, report = optimized(made, strict=True, verify=True)
    assert report.verified
    assert not assumed(report)
    # one row of states for three of ids mixes the rows: numbers all the same, which strict keeps
    ran = 0
    for sizes in ((1, 1, 3, 1), (3, 3, 1, 1), (3, 3, 3, 1), (3, 1, 3, 3), (1, 3, 3, 3)):
        given = feeds(*sizes)
        try:
            want = run(made, **given)
        except Exception:  # onnxruntime's have no base of their own
            continue
        np.testing.assert_allclose(run(strict, **given)[0], want[0], rtol=1e-4, atol=1e-5)
        ran += 1
    assert ran > 1


def test_rows_of_positions_that_are_only_broadcast_may_be_one() -> None:
    """Nothing asks for their number: it stays theirs, and nothing is assumed."""
    made = model(
        """(int64[batch,seq] ids, int64[batch,seq] position_ids, float[batch,seq,32] h) => (float[b,s,32] y) {
            tokens = Gather(table, ids) places = Gather(table, position_ids) x = Add(tokens, places)
            z = Add(x, h) e = Erf(z) f = Add(e, one) g = Mul(z, f) y = Mul(g, half) }""",
        table=np.random.default_rng(0).standard_normal((9, 32)), one=1.0, half=0.5,
    )  # fmt: skip
    result, report = optimized(made)
    assert not assumed(report)
    given = {
        "ids": np.ones((3, 4), np.int64), "position_ids": np.arange(4)[None], "h": np.ones((3, 4, 32), np.float32)
    }  # fmt: skip
    np.testing.assert_allclose(run(result, **given)[0], run(made, **given)[0], rtol=1e-5)


def test_a_vector_of_positions_is_as_long_as_the_tokens() -> None:
    """Its name is a batch's elsewhere, so that it might have one element; a sum of both asks for it."""
    text = """(int64[seq] cache_position, float[seq,batch,8] x, float[batch,seq,8] z) => (float[n,m,8] y) {
        rows = Gather(table, cache_position) y = Add(z, rows) }"""
    made = ir.from_proto(model(text, table=np.ones((9, 8))))
    (output,) = made.graph.outputs
    believed = infer(made, believing=True)
    assert believed.of(output).dims == ("batch", "seq", 8)
    assert [a.startswith(f"{NAMES_SHARED}: 'seq' of input 'cache_position'") for a in believed.assumed] == [True]
    proved = infer(made)
    assert proved.of(output).dims == ("batch", "broadcast(seq, seq@cache_position)", 8)
    assert not proved.assumed


def kept(*declared: int | str) -> onnx.ModelProto:
    """Rows that a condition keeps, nobody knows how many, and their sum."""
    text = """(float[n,4] x, bool[n] c) => (float[4] y, float[k,4] z) {
        some = Compress<axis=0>(x, c) y = ReduceSum<keepdims=0>(some, zero) z = Expand(some, shape) }"""
    made = model(text, {"some": [*declared]}, zero=[0], shape=[1, 1])
    return made


ROWS = {"x": np.arange(12, dtype=np.float32).reshape(3, 4), "c": np.array([True, False, True])}


def test_a_declared_size_is_believed_only_where_none_is_known() -> None:
    made = ir.from_proto(kept("m", 5))
    some = next(v for node in made.graph for v in node.outputs if v.name == "some")
    assert infer(made, believing=True).of(some).dims == ("m", 4)
    dims = infer(made).of(some).dims
    assert dims is not None
    assert str(dims[0]).startswith("?")
    assert dims[1] == 4


def test_two_values_of_one_declared_name_have_one_size() -> None:
    text = """(float[n,4] x, float[n,4] z, bool[n] c, bool[n] d) => (float[k,4] y) {
        a = Compress<axis=0>(x, c) b = Compress<axis=0>(z, d) y = Add(a, b) }"""
    made = ir.from_proto(model(text, {"a": ["kept", 4], "b": ["kept", 4]}))
    believed = infer(made, believing=True)
    assert believed.of(made.graph.outputs[0]).dims == ("kept", 4)
    assert [str(a) for a in believed.assumed] == [f"{DECLARED_SIZES}: of 'a', 'b' (strict does without)"]
    assert "broadcast" in str(infer(made).of(made.graph.outputs[0]).dims)


def test_a_false_declared_size_is_named_and_strict_does_without() -> None:
    """onnxruntime only warns of it."""
    made = kept(1, 4)
    want = run(made, **ROWS)
    _, report = optimized(made)
    assert report.unchanged or assumed(report) == [f"{DECLARED_SIZES}: of 'some' (strict does without)"]
    strict, report = optimized(made, strict=True)
    assert not assumed(report)
    for a, b in zip(run(strict, **ROWS), want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("way", ["MatMul", "Where", "Add"])
def test_a_declared_size_that_the_graph_contradicts_is_not_believed(way: str) -> None:
    """Neither an error nor another number."""
    uses = {
        "MatMul": "turned = Transpose(some) y = MatMul(turned, two)",
        "Where": "t = Transpose(some) w = Where(flags, t, lots) y = Neg(w)",
        "Add": "t = Transpose(some) w = Add(t, lots) y = Neg(w)",
    }
    text = f"(float[n,4] x, bool[n] c) => (float[p,q] y) {{ some = Compress<axis=0>(x, c) {uses[way]} }}"
    constants: dict[str, object] = {"two": np.ones((2, 3)), "flags": [True, False], "lots": np.ones((4, 2))}
    made = model(text, {"some": [5, 4]}, **{k: v for k, v in constants.items() if k in text})
    result, report = optimized(made)
    assert not assumed(report)
    np.testing.assert_allclose(run(result, **ROWS)[0], run(made, **ROWS)[0])
