"""Norms at the edges: of nothing, without an epsilon, and of moments that cancel."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest

from onnx_egraph import NodeCount, saturate_and_extract
from onnx_egraph.egraph.engine.assumption import NO_CANCELLATION


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')


def run(model: onnx.ModelProto, feed: dict[str, np.ndarray]) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feed)[0])


def rms(size: int, added: str) -> onnx.ModelProto:
    return parsed(f"""g (float[b, n, {size}] x, float[{size}] w) => (float[b, n, {size}] y) <float e = {{0.00001}}> {{
        s = Mul(x, x) m = ReduceMean<axes = [-1]>(s) {added} d = Div(x, q) y = Mul(d, w) }}""")


@pytest.mark.parametrize("strict", [False, True])
def test_a_norm_of_nothing_runs(strict: bool) -> None:
    model = rms(0, "v = Add(m, e) q = Sqrt(v)")
    result = saturate_and_extract(model, strict=strict).model
    feed = {"x": np.zeros((2, 3, 0), np.float32), "w": np.zeros(0, np.float32)}
    assert run(result, feed).shape == run(model, feed).shape == (2, 3, 0)


@pytest.mark.parametrize("root", ["q = Sqrt(m)", "r = Sqrt(m) i = Reciprocal(r) q = Reciprocal(i)"])
def test_a_norm_without_an_epsilon(root: str) -> None:
    model = rms(8, root)
    result = saturate_and_extract(model, strict=True)
    feed = {"x": np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32), "w": np.ones(8, np.float32)}
    if "Reciprocal" not in root:
        assert result.report.counts() == {"RMSNormalization": 1}
    rounding = 32 * float(np.finfo(np.float32).eps)
    np.testing.assert_allclose(run(result.model, feed), run(model, feed), rtol=rounding, atol=rounding)
    feed["x"][0, 0] = 0  # 0 / 0
    np.testing.assert_array_equal(np.isnan(run(result.model, feed)), np.isnan(run(model, feed)))


def test_moments_that_cancel_are_an_assumption() -> None:
    model = parsed("""g (float[b, 4] x) => (float[b, 4] y) <float e = {0.00001}, float[4] w = {1, 1, 1, 1}> {
        u = ReduceMean<axes = [-1]>(x) z = Sub(x, u) xx = Mul(x, x) s = ReduceMean<axes = [-1]>(xx) uu = Mul(u, u)
        m = Sub(s, uu) a = Add(m, e) q = Sqrt(a) d = Div(z, q) y = Mul(d, w) }""")
    fused = saturate_and_extract(model)
    assert fused.report.counts() == {"LayerNormalization": 1}
    assert str(NO_CANCELLATION) in fused.report.assumptions
    strict = saturate_and_extract(model, strict=True)
    assert not strict.report.counts()
    noise = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    feed = {"x": np.float32(1000.3) + noise * np.float32(1e-3)}
    np.testing.assert_array_equal(run(strict.model, feed), run(model, feed))


def test_a_norm_has_the_type_of_its_weight() -> None:
    """onnxruntime takes one of another type than x, and gives that."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float16[b, s, 8] x, float16[b, s, 8] y) => (float[b, s, 8] z, float16[b, s, 8] h, float16[b, s, 8] t)
        <float[8] w = {1, 2, 3, 4, 5, 6, 7, 8}> {
        t = Add(x, y) z = SimplifiedLayerNormalization <axis = -1, epsilon = 0.00001, stash_type = 1> (t, w)
        h = Cast <to = 10> (z) }""")
    result = saturate_and_extract(model, cost=NodeCount(), verify=True)
    assert result.report.verified
    assert [n.op_type for n in result.model.graph.node] == ["Add", "SimplifiedLayerNormalization", "Cast"]
