"""What is computed from small constants is the runtime's own result to the bit, and nothing else is computed."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from onnx_egraph import saturate_and_extract

FLOATS = (np.float32, np.float64)
NUMBERS = (*FLOATS, np.int64, np.int32)
#: Each with its operands, the element types it is tried on, and whether it is computed.
COMPUTED = {
    **{name: (f"y = {name}(a)", NUMBERS) for name in ("Neg", "Abs")},
    **{name: (f"y = {name}(a, b)", NUMBERS) for name in ("Add", "Sub", "Mul", "Div", "Max", "Less", "Equal")},
    "Cast": ("y = Cast<to = 7>(a)", NUMBERS),
    "Cast to float": ("y = Cast<to = 1>(a)", NUMBERS),
    "Cast to half": ("y = Cast<to = 10>(a)", FLOATS),
    "Transpose": ("y = Transpose<perm = [1, 0]>(a)", (np.float32,)),
    "Where": ("c = Less(a, b) n = Not(c) y = Where(n, a, b)", (np.float32,)),
    "Concat": ("y = Concat<axis = 1>(a, b)", (np.float32,)),
    "Slice": ("y = Slice(a, one, three, one, one)", (np.float32,)),
    "Gather": ("y = Gather<axis = 1>(a, one)", (np.float32,)),
    "Unsqueeze": ("y = Unsqueeze(a, one)", (np.float32,)),
    "Reshape": ("y = Reshape(a, flat)", (np.float32,)),
    "Expand": ("u = Unsqueeze(a, one) y = Expand(u, large)", (np.float32,)),
    "Split": ("p, y = Split<axis = 1, num_outputs = 2>(a)", (np.float32,)),
    "Range": ("y = Range(zero, five, two)", (np.int64,)),
    "a chain": ("s = Add(a, b) t = Mul(s, a) y = Div(t, b)", NUMBERS),
}
KEPT = {
    "Sin": ("y = Sin(a)", (np.float32,)),  # the last bit is the library's
    "Exp": ("y = Exp(a)", (np.float32,)),
    "of an input": ("y = Add(x, a)", (np.float32,)),
    "too large": ("y = Expand(a, huge)", (np.float32,)),
    "random": ("y = RandomNormalLike(a)", (np.float32,)),
}


def build(body: str, dtype: type, *, overridable: bool = False) -> onnx.ModelProto:
    rng = np.random.default_rng(7)
    code = {np.float32: "float", np.float64: "double", np.int64: "int64", np.int32: "int32"}[dtype]
    whole = np.dtype(dtype).kind == "i"
    constants = {
        "a": rng.integers(-9, 9, (3, 4)) if whole else rng.standard_normal((3, 4)) * 3,
        "b": rng.integers(1, 9, (3, 4)) if whole else rng.standard_normal((3, 4)) * 3,
    }
    integers = dict(one=[1], three=[3], flat=[4, 3], large=[3, 2, 4], huge=[999, 3, 4], zero=0, five=5, two=2)
    given = f", {code}[3, 4] a" if overridable else ""
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 18]> g ({code}[3, 4] x, int64[r] times{given}) => ({code} o) '
        f"{{ {body} o = Tile(y, times) }}"
    )
    tensors = [numpy_helper.from_array(v.astype(dtype), k) for k, v in constants.items()]
    tensors += [numpy_helper.from_array(np.asarray(v, np.int64), k) for k, v in integers.items()]
    used = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(t for t in tensors if t.name in used)
    inferred = onnx.shape_inference.infer_shapes(without_output_type(model))
    del inferred.graph.value_info[:]
    return inferred


def without_output_type(model: onnx.ModelProto) -> onnx.ModelProto:
    model.graph.output[0].ClearField("type")
    return model


def run(model: onnx.ModelProto, x: np.ndarray, rank: int) -> np.ndarray:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    given = {"x": x, "times": np.ones(rank, np.int64)}
    return np.asarray(session.run(None, {i.name: given[i.name] for i in session.get_inputs()})[0])


def cases(table: dict[str, tuple[str, tuple[type, ...]]]) -> list[object]:
    return [
        pytest.param(body, dtype, id=f"{name} {dtype.__name__}")
        for name, (body, types) in table.items()
        for dtype in types
    ]


@pytest.mark.parametrize(("body", "dtype"), cases(COMPUTED))
def test_computed_to_the_bit(body: str, dtype: type) -> None:
    given = build(body, dtype)
    made = saturate_and_extract(given).model
    assert isinstance(made, onnx.ModelProto)
    assert [n.op_type for n in made.graph.node] == ["Tile"]
    [stored] = made.graph.initializer
    x = np.ones((3, 4), dtype)
    want, got = run(given, x, len(stored.dims)), run(made, x, len(stored.dims))
    assert want.dtype == got.dtype
    assert want.shape == got.shape
    assert want.tobytes() == got.tobytes()


@pytest.mark.parametrize(("body", "dtype"), cases(KEPT))
def test_not_computed(body: str, dtype: type) -> None:
    given = build(body, dtype)
    made = saturate_and_extract(given).model
    assert isinstance(made, onnx.ModelProto)
    assert [n.op_type for n in made.graph.node] == [n.op_type for n in given.graph.node]


def test_an_initializer_that_callers_may_replace_is_no_constant() -> None:
    given = build("y = Mul(a, b)", np.float32, overridable=True)
    made = saturate_and_extract(given).model
    assert isinstance(made, onnx.ModelProto)
    assert [n.op_type for n in made.graph.node] == ["Mul", "Tile"]


def test_integers_that_have_no_quotient_stay() -> None:
    given = build("n = Sub(b, b) y = Div(a, n)", np.int64)
    made = saturate_and_extract(given).model
    assert isinstance(made, onnx.ModelProto)
    assert "Div" in {n.op_type for n in made.graph.node}
