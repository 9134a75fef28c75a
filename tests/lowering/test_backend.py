"""The node tests of the onnx package, 1,900 small models: all operators, types, opsets and odd shapes.

Each is optimized and must still be the same model: same inputs and outputs, same numbers on test data.
The second round writes every graph back even where nothing was gained; the third hides the inputs' sizes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from roundtrip_models import checkable

from onnx_egraph import EGraphError, saturate_and_extract
from onnx_egraph.lowering.shapes.inference import infer
from onnx_egraph.lowering.space import Choice

PARTS = 8  # tests per round
EVERY = 16  # without -m deep, one model in so many
RANDOM = {
    "RandomUniform",
    "RandomUniformLike",
    "RandomNormal",
    "RandomNormalLike",
    "Bernoulli",
    "Multinomial",
}
REFUSED_AT_MOST = 0.01
Run = Callable[[onnx.ModelProto, Sequence[Any]], list[Any]]


@pytest.fixture(scope="session")
def cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package computes its expected values with overflows
        from onnx.backend.test.loader import load_model_tests

        return sorted(load_model_tests(kind="node"), key=lambda case: case.name)


@pytest.fixture
def always_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """No graph is left as it is for want of a better one."""
    monkeypatch.setattr(Choice, "better", True)


@pytest.mark.parametrize("part", range(PARTS))
def test_sample(cases: list[Any], part: int) -> None:
    check(cases[part :: PARTS * EVERY])


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.usefixtures("always_written")
def test_sample_written(cases: list[Any], part: int) -> None:
    check(cases[PARTS * EVERY // 2 + part :: PARTS * EVERY])


@pytest.mark.deep
@pytest.mark.parametrize("part", range(PARTS))
def test_all(cases: list[Any], part: int) -> None:
    check(cases[part::PARTS])


@pytest.mark.deep
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.usefixtures("always_written")
def test_all_written(cases: list[Any], part: int) -> None:
    check(cases[part::PARTS])


@pytest.mark.deep
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.usefixtures("always_written")
def test_all_written_without_sizes(cases: list[Any], part: int) -> None:
    check(cases[part::PARTS], without_sizes)


@pytest.mark.parametrize("part", range(PARTS))
def test_sizes_of_a_sample_are_not_guessed(cases: list[Any], part: int) -> None:
    check_sizes(cases[part :: PARTS * EVERY])


@pytest.mark.deep
@pytest.mark.parametrize("part", range(PARTS))
def test_sizes_are_not_guessed(cases: list[Any], part: int) -> None:
    check_sizes(cases[part::PARTS])


def test_sizes_of_what_follows_several_operands_are_not_guessed(cases: list[Any]) -> None:
    """Attention has the size of v, not of q."""
    found = [c for c in cases if c.model.graph.node[-1].op_type in ("Attention", "Compress", "Unique")]
    check_sizes(found[::4])


def check_sizes(cases: Iterable[Any]) -> None:
    """What is said of the outputs' sizes holds where the size of an input, or of all, is not declared."""
    for case in cases:
        count = len(case.model.graph.input)
        for hidden in [*((k,) for k in range(count)), tuple(range(count))]:
            model = onnx.ModelProto()
            model.CopyFrom(case.model)
            for value in (*(model.graph.input[k] for k in hidden), *model.graph.output):
                if value.type.HasField("tensor_type"):
                    value.type.tensor_type.ClearField("shape")
            read = ir.from_proto(model)
            shapes = infer(read)
            for _, arrays in case.data_sets:
                for value, array in zip(read.graph.outputs, arrays, strict=True):
                    said = shapes.of(value).dims
                    if said is None or not isinstance(array, np.ndarray):
                        continue
                    where = f"{case.name}, inputs {hidden} hidden: {said}, {array.shape}"
                    assert len(said) == array.ndim, where
                    pairs = zip(said, array.shape, strict=True)
                    assert all(isinstance(d, str) or d == n for d, n in pairs), where


def test_the_comparison_sees_a_difference() -> None:
    a = np.ones((2, 3), np.float32)
    assert difference(a, a) == ""
    assert difference(a, a * np.float32(1 + 1e-6)) == ""
    assert "by 0.0001" in difference(a, a * np.float32(1 + 1e-4))
    assert difference(a, a.astype(np.float64))
    assert difference(a, a[0])
    assert difference([a], [a, a])
    assert difference(a.astype(np.int64), a.astype(np.int64) + 1)
    assert difference(a, np.full_like(a, np.nan))


def check(cases: Iterable[Any], change: Callable[[onnx.ModelProto], onnx.ModelProto] | None = None) -> None:
    faults, refused, count = [], [], 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # both sides overflow and divide by zero on purpose
        for case in cases:
            count += 1
            model = change(case.model) if change else case.model
            try:
                fault = fault_of(model, [inputs for inputs, _ in case.data_sets])
            except EGraphError as error:
                refused.append(f"{case.name}: {error}")
                continue
            if fault:
                faults.append(f"{case.name}: {fault}")
    assert not faults, "\n".join(faults)
    assert len(refused) <= max(1, REFUSED_AT_MOST * count), "\n".join(refused)


def fault_of(model: onnx.ModelProto, feeds: Sequence[Sequence[Any]]) -> str:
    before = model.SerializeToString()
    optimized = saturate_and_extract(model).model
    assert isinstance(optimized, onnx.ModelProto)
    if model.SerializeToString() != before:
        return "the caller's model was changed"
    for mine, theirs in zip(face(optimized), face(model), strict=True):
        if mine != theirs:
            return f"declared {theirs}, now {mine}"
    if valid(model) and (complaint := complaint_of(optimized)):
        return complaint
    for run in (in_onnxruntime, in_reference):
        try:
            expected = [run(model, inputs) for inputs in feeds]
        except Exception:
            continue  # neither knows every operator; whether it knows this one is not ours to say
        try:
            found = [run(optimized, inputs) for inputs in feeds]
        except Exception as error:
            return f"no longer runs: {error}"
        numbers = RANDOM.isdisjoint(operators(model.graph))
        return next((d for a, b in zip(expected, found, strict=True) if (d := difference(a, b, numbers))), "")
    old, new = sorted(operators(model.graph)), sorted(operators(optimized.graph))
    return "" if old == new else f"nothing runs it, but {old} became {new}"


def without_sizes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a symbol for each size of its inputs and outputs."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for side, values in (("i", changed.graph.input), ("o", changed.graph.output)):
        for k, value in enumerate(values):
            if value.type.HasField("tensor_type"):
                for axis, size in enumerate(value.type.tensor_type.shape.dim):
                    size.dim_param = f"{side}{k}_{axis}"
    return changed


def face(model: onnx.ModelProto) -> list[bytes]:
    graph = model.graph
    return [value.SerializeToString() for value in (*graph.input, *graph.output)]


def valid(model: onnx.ModelProto) -> bool:
    return not complaint_of(model)


def complaint_of(model: onnx.ModelProto) -> str:
    try:
        onnx.checker.check_model(checkable(model))
    except onnx.checker.ValidationError as error:
        return str(error)
    return ""


def operators(graph: onnx.GraphProto) -> list[str]:
    bodies = [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    return [node.op_type for node in graph.node] + [op for body in bodies for op in operators(body)]


def in_onnxruntime(model: onnx.ModelProto, inputs: Sequence[Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, named(model, inputs)))


def in_reference(model: onnx.ModelProto, inputs: Sequence[Any]) -> list[Any]:
    from onnx.reference import ReferenceEvaluator

    return list(ReferenceEvaluator(model).run(None, named(model, inputs)))


def named(model: onnx.ModelProto, inputs: Sequence[Any]) -> dict[str, Any]:
    return {declared.name: value for declared, value in zip(model.graph.input, inputs, strict=False)}


def difference(expected: Any, found: Any, numbers: bool = True) -> str:
    """What differs, or "". Floats may differ by rounding, without `numbers` at will; the rest is exact."""
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        return next((d for a, b in zip(expected, found, strict=True) if (d := difference(a, b, numbers))), "")
    if type(expected) is not type(found):
        return f"{type(expected).__name__} became {type(found).__name__}"
    if not isinstance(expected, np.ndarray | np.generic):
        return "" if expected == found else f"{expected!r} became {found!r}"
    if expected.dtype != found.dtype or expected.shape != found.shape:
        return f"{expected.dtype}{expected.shape} became {found.dtype}{found.shape}"
    if not numbers or expected.tobytes() == found.tobytes():
        return ""
    if expected.dtype.kind in "OSU":
        return "" if bool(np.all(expected == found)) else "the strings differ"
    try:
        rounding = 32 * float(ml_dtypes.finfo(expected.dtype).eps)
    except ValueError:
        return "the numbers differ"
    a, b = expected.astype(np.float64), found.astype(np.float64)
    scale = max(1.0, float(np.max(np.abs(a), where=np.isfinite(a), initial=0)))
    if np.allclose(b, a, rtol=rounding, atol=rounding * scale, equal_nan=True):
        return ""
    largest = np.max(np.abs(a - b), where=np.isfinite(a - b), initial=0)
    return f"the numbers differ, by {largest:.2g} where finite"
