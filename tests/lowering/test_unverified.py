"""Inputs and outputs of every kind are compared, and where nothing can be, the text says why and names the node."""

from __future__ import annotations

import onnx
import pytest
from onnx import parser

from onnx_egraph import saturate_and_extract
from onnx_egraph.egraph.errors import VerificationError
from onnx_egraph.lowering.verify.verify import verify
from onnx_egraph.verification import verdict


def model(text: str, opset: int = 20) -> onnx.ModelProto:
    version = {20: 9, 21: 10}[opset]
    made = parser.parse_model(f'<ir_version: {version}, opset_import: ["" : {opset}]> g {text}')
    for node in made.graph.node:
        node.name = f"/{node.output[0]}"
    return made


def said(text: str) -> tuple[bool | None, str]:
    report = saturate_and_extract(model(text), verify=True).report
    return report.verified, report.verification


# ---- kinds of inputs and outputs


@pytest.mark.parametrize("dtype", [
    "float16", "bfloat16", "double", "float8e4m3fn", "float8e5m2", "int4", "uint4", "int8", "uint8", "int16", "uint16",
    "int32", "uint32", "int64", "uint64", "bool",
])  # fmt: skip
def test_inputs_of_every_element_type_are_compared(dtype: str) -> None:
    made = model(f"({dtype}[b, 7] x) => (float[b, 7] y) {{ y = Cast <to = 1> (x) }}", 21)
    result = verify(made, made)
    assert result.ok, result
    assert not result.dropped


def test_outputs_of_half_a_byte_are_compared() -> None:
    def cast(op: str) -> onnx.ModelProto:
        steps = f"f = Cast <to = 1> (x) g = {op} (f) y = Cast <to = 22> (g)"
        return model(f"(int4[b, 7] x) => (int4[b, 7] y) {{ {steps} }}", 21)

    assert verify(cast("Abs"), cast("Abs")).ok
    wrong = verify(cast("Identity"), cast("Abs"))
    assert {m.kind for m in wrong.mismatches} == {"value"}


SEQUENCE = """(seq(float[b, 8]) x) => (float[c, 8] y, seq(float[b, 8]) z) {
    y = ConcatFromSequence <axis = 0> (x) z = Identity (x) }"""


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(SEQUENCE, id="sequence"),
        pytest.param(
            """(optional(float[b, 8]) x) => (float[b, 8] y, bool h) {
                y = OptionalGetElement (x) h = OptionalHasElement (x) }""",
            id="optional",
        ),
        pytest.param("(optional(float[b, 8]) x) => (bool h) { h = OptionalHasElement (x) }", id="perhaps nothing"),
        pytest.param('(string[b] x) => (string[b] y) <string[1] w = {"a"}> { y = StringConcat (x, w) }', id="string"),
        pytest.param("() => (float[2] y) <float[2] w = {1, 2}> { y = Tanh (w) }", id="no input"),
        pytest.param("(float[b, 8] x) => (int64[b] y) { y = ArgMax <axis = 1, keepdims = 0> (x) }", id="no float"),
        pytest.param("(float x) => (float y) { y = Tanh (x) }", id="no axis"),
        pytest.param(
            """(int64[k] i, float[8, 4] t) => (float[k, 4] y) <int64 m = {30}> {
                j = Mul (i, m) y = Gather (t, j) }""",
            id="indices of few values",
        ),
    ],
)  # fmt: skip
def test_inputs_and_outputs_of_every_kind_are_compared(text: str) -> None:
    verified, verification = said(text)
    assert verified, verification


def test_sequences_are_told_apart() -> None:
    twice = SEQUENCE.replace("z = Identity (x)", "z = SequenceInsert (x, y)")
    assert {m.output for m in verify(model(SEQUENCE), model(twice)).mismatches} == {"z (length)"}
    other = SEQUENCE.replace("z = Identity (x)", "t = Tanh (y) z = SplitToSequence <axis = 0> (t, n)")
    other = other.replace("z) {", "z) <int64 n = {2}> {")
    assert "z[0]" in {m.output for m in verify(model(SEQUENCE), model(other)).mismatches}


# ---- nothing to compare


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(
            """(float[b, 8] x) => (float[b, 8] y) <float r = {0.5}, bool t = {1}> {
                z = Abs (x) d = Dropout (z, r, t) y = Sigmoid (d) }""",
            "two runs of the original differ: y, by node '/d' (Dropout)", id="training",
        ),
        pytest.param(
            "(float[b, 8] x) => (float[b, 8] y) { q = RandomNormalLike (x) r = Add (q, x) y = Tanh (r) }",
            "two runs of the original differ: y, by node '/q' (RandomNormalLike)", id="random",
        ),
        pytest.param(
            """(float[b, 8] x, bool c) => (float[b, 8] y) { q = If (c) <
                then_branch = p () => (float[b, 8] k) { k = RandomNormalLike (x) },
                else_branch = n () => (float[b, 8] m) { m = RandomUniformLike (x) }> y = Add (q, x) }""",
            "two runs of the original differ: y, by node '/q' (If)", id="random in a body",
        ),
        pytest.param(
            "(float[b, 8] x) => (float[b, 8] y) <float z = {-100}> { e = Add (x, z) q = Sqrt (e) y = Sigmoid (q) }",
            "empty, infinite or NaN throughout: y, by node '/q' (Sqrt)", id="NaN",
        ),
        pytest.param(
            """(float[b, 8] x) => (float[b, 0] y) <int64[1] n = {0}, int64[1] a = {1}> {
                t = Tanh (x) s = Slice (t, n, n, a) y = Abs (s) }""",
            "empty, infinite or NaN throughout: y, by node '/s' (Slice)", id="empty",
        ),
    ],
)  # fmt: skip
def test_the_node_that_makes_an_output_incomparable_is_named(text: str, says: str) -> None:
    verified, verification = said(text)
    assert verified is False
    assert verification.startswith("NOT verified: no output can be compared; ")
    assert says in verification


# ---- only one of the models runs

RUNS = "(float[b, 8] x) => (float[b, 8] y) { y = Tanh (x) }"
FAILS = "(float[b, 8] x) => (float[b, 8] y) <int64[1] n = {7}> { t = Reshape (x, n) y = Tanh (t) }"
NOT_LOADED = "(float[b, 8] x) => (float[b, 8] y) { t = Cast <to = 7> (x) y = Add (x, t) }"


def test_only_the_optimized_model_runs() -> None:
    result = verify(model(FAILS), model(RUNS))
    assert not result.ok
    assert "the original runs on no feed: b=2: node '/t' (Reshape): " in result.skipped
    assert "\n" not in result.skipped
    assert "onnxruntime_src" not in result.skipped
    assert result.skipped.endswith("; the optimized model runs, on b=2")
    result = verify(model(NOT_LOADED), model(RUNS))
    assert "onnxruntime cannot load the original: " in result.skipped
    assert result.skipped.endswith("; the optimized model runs, on b=2")
    assert "optimized" not in verify(model(FAILS), model(FAILS)).skipped


@pytest.mark.parametrize(("text", "says"), [(FAILS, r"runs .* on \[b=2\]: node '/t'"), (NOT_LOADED, "loads .*model: ")])
def test_only_the_original_runs(text: str, says: str) -> None:
    result = verify(model(RUNS), model(text))
    with pytest.raises(VerificationError, match=f"onnxruntime {says}") as raised:
        verdict(result, [], lambda names: False)
    assert "the original, not the optimized model" in str(raised.value)
    assert "\n" not in str(raised.value)
