"""Initializers among the inputs: constants before IR version 4, defaults that a caller may replace from then on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper as h
from onnx import numpy_helper as nh
from onnx import parser

from onnx_egraph import saturate_and_extract


def model(ir_version: int, opset: int = 11, listed: bool = True) -> onnx.ModelProto:
    """A LayerNorm, whose constants are graph inputs, too, in an order of their own."""
    made = parser.parse_model(f"""<ir_version: {ir_version}, opset_import: ["" : {opset}]>
    graph (float[a,b,8] x) => (float[a,b,8] y) <float two = {{2.0}}, float eps = {{0.00001}}> {{
        m = ReduceMean <axes = [-1]> (x)
        d = Sub (x, m)
        q = Pow (d, two)
        v = ReduceMean <axes = [-1]> (q)
        e = Add (v, eps)
        r = Sqrt (e)
        n = Div (d, r)
        k = Mul (n, g)
        y = Add (k, c)
    }}""")
    for name in "gc":
        made.graph.initializer.append(nh.from_array(np.linspace(1, 2, 8, dtype=np.float32), name))
    if listed:
        given = [h.make_tensor_value_info(t.name, t.data_type, t.dims) for t in made.graph.initializer]
        made.graph.input.extend(given[2:])
        made.graph.input.insert(0, given[1])
        made.graph.input.insert(0, given[0])
    return made


def run(proto: onnx.ModelProto, **feeds: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, feeds)[0])


X = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)


@pytest.mark.parametrize("ir_version", [3, 4])
def test_onnxruntime_lets_them_be_fed_from_version_4_on(ir_version: int) -> None:
    fed = {"x": X, "c": np.zeros(8, np.float32)}
    if ir_version < 4:
        with pytest.raises(Exception, match="Invalid input name: c"):
            run(model(ir_version), **fed)
    else:
        assert not np.array_equal(run(model(ir_version), **fed), run(model(ir_version), x=X))


@pytest.mark.parametrize("kind", ["path", "proto", "ir"])
def test_before_version_4_they_are_constants(kind: str, tmp_path: Path) -> None:
    given = model(3)
    onnx.save(given, tmp_path / "m.onnx")
    before = given.SerializeToString()
    source = {"path": tmp_path / "m.onnx", "proto": given, "ir": ir.from_proto(given)}[kind]
    result = saturate_and_extract(source, verify=True)
    assert result.report.verified, result.report.verification
    assert result.report.counts() == {"LayerNormalization": 1}
    assert given.SerializeToString() == before
    made = result.model if isinstance(result.model, onnx.ModelProto) else ir.to_proto(result.model)
    assert made.ir_version == 3
    assert [v.SerializeToString() for v in made.graph.input] == [v.SerializeToString() for v in given.graph.input]
    listed = {v.name for v in made.graph.input}
    assert {t.name for t in made.graph.initializer} <= listed  # as the version demands
    np.testing.assert_allclose(run(made, x=X), run(given, x=X), rtol=1e-5, atol=1e-6)
    again = saturate_and_extract(made)
    assert again.report.unchanged


@pytest.mark.parametrize("empty", [True, False])
@pytest.mark.parametrize("name", ["c", "two", "eps"])
def test_one_that_nothing_uses_any_more_says_of_what_type_it_is(name: str, empty: bool) -> None:
    given = model(3)
    [value] = [v for v in given.graph.input if v.name == name]
    value.ClearField("type")
    if empty:
        value.type.SetInParent()
    result = saturate_and_extract(given)
    assert isinstance(result.model, onnx.ModelProto)
    assert not result.report.unchanged
    assert [v.name for v in result.model.graph.input] == [v.name for v in given.graph.input]
    np.testing.assert_allclose(run(result.model, x=X), run(given, x=X), rtol=1e-5, atol=1e-6)
    assert saturate_and_extract(result.model).report.unchanged


def test_from_version_4_on_they_may_be_fed() -> None:
    given = model(4)
    result = saturate_and_extract(given, verify=True)
    for fed in ({}, {"eps": np.array(3, np.float32)}, {"two": np.array(4, np.float32)}):
        np.testing.assert_allclose(run(result.model, x=X, **fed), run(given, x=X, **fed), rtol=1e-5, atol=1e-6)
