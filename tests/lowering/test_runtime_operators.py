"""Operators that onnxruntime lacks: computed by their meaning or a library, or not verified; never a rule's fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import ModelProto, parser

from onnx_egraph import saturate_and_extract
from onnx_egraph.egraph.engine.lang import Sides, Tensor, apply, call, dtype, eq, operator, rule, supported
from onnx_egraph.egraph.engine.rule import Rule
from onnx_egraph.egraph.errors import ModelError, VerificationError
from onnx_egraph.egraph.terms import Op
from onnx_egraph.lowering.verify.runtime import Runtime
from onnx_egraph.lowering.verify.verify import verify
from onnx_egraph.rules import ALL

HEAD = '<ir_version: 10, opset_import: ["" : 20, "my.domain" : 1]>'
PLAIN = f"""{HEAD} g (float[batch, seq, 8] a, float[batch, seq, 8] b) => (float[batch, seq, 8] y)
<float[8] w = {{1, 2, 3, 4, 5, 6, 7, 8}}> {{
    t = Tanh (b)
    u = Mul (a, t)
    v = Add (u, w)
    s = Sigmoid (v)
    r = Tanh (s)
    y = Mul (r, v)
}}"""
CALLS = f"""{HEAD} g (float[batch, seq, 8] a, float[batch, seq, 8] b) => (float[batch, seq, 8] y, float[p, q, 8] z)
<float[8] w = {{1, 2, 3, 4, 5, 6, 7, 8}}> {{
    v = Relu (a)
    [mine] u = my.domain.Gate <alpha = 1.0> (v, w)
    y = Add (u, b)
    z = my.domain.Gate <alpha = 2.0> (y, v)
}}"""


def gated(x: np.ndarray, y: np.ndarray, alpha: float) -> np.ndarray:
    return np.asarray(x * np.tanh(y) * alpha)


GATE = operator("GateOp", "x y alpha:f64", numpy=gated, onnx="my.domain::Gate")
FALSE = operator("FalseOp", "x y alpha:f64", numpy=lambda *a: gated(*a) * 1.01, onnx="my.domain::False")
FAILS = operator("FailsOp", "x y alpha:f64", numpy=lambda *a: gated(*a)[:, :, 9], onnx="my.domain::Fails")


def fusing(op: Op) -> Rule:
    @rule(stage="fuse", contract="reassociated", holds=dict(x="b s h", y="b s h"))
    def gate(x: Tensor, y: Tensor) -> Sides:
        """x * tanh(y) = the operator of x, y and 1"""
        when = [eq(dtype(x), dtype(y)), supported(op.name, x)]
        return Sides(x * call("Tanh", y), apply(op, x, y, 1.0), when=when)

    return gate


def report_of(text: str, *rules: Rule, **settings: Any) -> Any:
    return saturate_and_extract(named(text), rules=[*ALL, *rules], verify=True, **settings).report


def named(text: str) -> ModelProto:
    model = parser.parse_model(text.replace("[mine] ", ""))
    for node in model.graph.node:
        node.name = "mine" if node.output[0] == "u" else ""
    return model


def test_a_declared_operator_is_compared_by_its_meaning() -> None:
    report = report_of(PLAIN, fusing(GATE))
    assert report.counts() == {"Gate": 2}
    assert report.verified, report.verification


def test_a_false_meaning_is_a_difference() -> None:
    with pytest.raises(VerificationError, match=r"gate.*value of y"):
        report_of(PLAIN, fusing(FALSE))


def test_a_meaning_that_fails_is_told() -> None:
    with pytest.raises(VerificationError, match=r"runs the original, not the optimized model.*numpy meaning fails"):
        report_of(PLAIN, fusing(FAILS))


def test_a_model_that_calls_the_operator_is_compared() -> None:
    report = report_of(CALLS, fusing(GATE))
    assert report.verified, report.verification
    assert report_of(CALLS, fusing(GATE), disable=["gate"]).verified


def test_a_function_that_calls_the_operator_is_compared() -> None:
    text = f"""{HEAD.replace('"my', '"f" : 1, "my')} g (float[b, 8] x) => (float[b, 8] y) {{ y = f.twice (x) }}
    <domain: "f", opset_import: ["" : 20, "my.domain" : 1]> twice (p) => (q) {{
        r = my.domain.Gate <alpha = 1.0> (p, p)
        q = Add (r, r)
    }}"""
    report = report_of(text, fusing(GATE))
    assert report.verified, report.verification


@pytest.mark.parametrize(
    ("text", "rules", "says"),
    [
        pytest.param(CALLS, [], "node 'mine' (my.domain::Gate); declare it with a numpy meaning", id="not declared"),
        pytest.param(
            CALLS.replace("<alpha = 1.0> ", ""), [fusing(GATE)], "node 'mine' (my.domain::Gate), which has other",
            id="another call",
        ),
        pytest.param(
            f"""{HEAD} g (float[b, 8] x, bool c) => (float[b, 8] y) {{
                y = If (c) <then_branch = p () => (float[b, 8] k) {{ k = my.domain.Gate <alpha = 1.0> (x, x) }},
                            else_branch = q () => (float[b, 8] m) {{ m = Tanh (x) }}>
            }}""",
            [fusing(GATE)], "node 'k' (my.domain::Gate), which lies in the body", id="in a body",
        ),
    ],
)  # fmt: skip
def test_what_nothing_can_compute_is_not_verified(text: str, rules: list[Rule], says: str) -> None:
    report = report_of(text, *rules)
    assert report.verified is False
    assert report.verification.startswith("NOT verified: onnxruntime has no such operator as that of ")
    assert says in report.verification


# ---- libraries


def test_a_library_that_cannot_be_loaded_is_one_line(tmp_path: Path) -> None:
    missing = tmp_path / "none.so"
    with pytest.raises(ModelError, match=r"custom-op library .*none\.so: onnxruntime cannot load it") as raised:
        report_of(PLAIN, custom_ops=missing)
    assert "\n" not in str(raised.value)


def test_a_library_reaches_every_session(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(ort.SessionOptions, "register_custom_ops_library", lambda self, path: loaded.append(path))
    report = report_of(PLAIN, custom_ops=["a.so", Path("b.so")])
    assert report.verified
    assert set(loaded) == {"a.so", "b.so"}
    assert len(loaded) >= 2 * 5  # a check, the original twice, the result twice
    report = report_of(CALLS, custom_ops="a.so")  # which has no such operator
    assert "node 'mine'" in report.verification


@pytest.mark.parametrize("op", ["Sigmoid", "Mish"])  # a kernel, and steps that onnxruntime expands it to
def test_a_declared_operator_that_onnxruntime_has_is_run_by_it(op: str) -> None:
    model = named(f'<ir_version: 10, opset_import: ["" : 20]> g (float[b, 8] x) => (float[b, 8] y) {{ y = {op} (x) }}')
    mine = operator("MyOp", "x", numpy=np.cos, onnx=f"ai.onnx::{op}")
    runner = Runtime({("", op): mine}).open(model, ir.from_proto(model), False)
    x = np.ones((1, 8), np.float32)
    assert not np.allclose(runner.run({"x": x})["y"], np.cos(x))


def test_a_declared_operator_without_a_kernel_is_run_by_its_meaning() -> None:
    """The provider for CUDA has BiasAdd, that for CPU has not."""
    text = """<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>
    g (float[b, 4, 8] x, float[b, 4, 8] skip) => (float[b, 4, 8] y) <float[8] bias = {1, 2, 3, 4, 5, 6, 7, 8}> {
        t = com.microsoft.BiasAdd (x, bias, skip)
        y = Tanh (t)
    }"""
    added = operator("MyBiasAdd", "x bias skip", numpy=lambda x, b, s: x + b + s, onnx="com.microsoft::BiasAdd")

    @rule(stage="fuse", contract="reassociated", holds=dict(x="b s h", y="h", z="b s h"))
    def bias_add(x: Tensor, y: Tensor, z: Tensor) -> Sides:
        """x + y + z = BiasAdd(x, y, z)"""
        return Sides(x + y + z, apply(added, x, y, z), when=[supported("MyBiasAdd", x)])

    report = report_of(text, bias_add)
    assert report.verified, report.verification
    report = report_of(text)
    assert report.verified is False
    assert "cannot load the original: Could not find an implementation for BiasAdd" in report.verification


def test_an_operator_that_no_onnxruntime_has_is_an_error_of_the_result() -> None:
    plain = named('<ir_version: 10, opset_import: ["" : 20]> g (float[b, 8] x) => (float[b, 8] y) { y = Tanh (x) }')
    wrong = named('<ir_version: 10, opset_import: ["" : 20]> g (float[b, 8] x) => (float[b, 8] y) { y = Tanhh (x) }')
    assert {m.kind for m in verify(plain, wrong).mismatches} == {"error"}
