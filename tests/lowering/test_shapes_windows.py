"""Lengths behind windows over strides, computed by convolutions and by a model's own arithmetic, are one size."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from onnx_egraph import saturate_and_extract
from onnx_egraph.lowering.shapes.dims import Dim
from onnx_egraph.lowering.shapes.inference import Shapes, infer

Windows = list[tuple[int, int]]  # width and stride
#: What a model's code says of the length behind them, with divisions that round down.
LENGTHS: dict[str, tuple[Windows, list[tuple[str, int]]]] = {
    "moonshine": ([(127, 64), (7, 3), (3, 2)], [("Sub", 127), ("Div", 384), ("Sub", 1)]),
    "one after the other": ([(10, 5), (3, 2)], [("Sub", 10), ("Div", 5), ("Sub", 2), ("Div", 2), ("Add", 1)]),
    "two steps at once": ([(10, 5), (3, 2)], [("Div", 5), ("Div", 2), ("Sub", 1)]),
    "conformer": ([(3, 2), (3, 2)], [("Sub", 1), ("Div", 2), ("Sub", 1), ("Div", 2)]),
}  # fmt: skip


def stack(windows: Windows, steps: list[tuple[str, int]], *, first: bool) -> onnx.ModelProto:
    """A view of rows behind windows by a length computed from the input's, before (`first`) or after them."""
    text, constants = [], dict[str, np.ndarray]()
    length = "t"
    sums = ["s = Shape<start=2, end=3>(x)", "t = Squeeze(s)"]
    for k, (op, number) in enumerate(steps):
        constants[f"c{k}"] = np.array(number)
        sums.append(f"l{k} = {op}({length}, c{k})")
        length = f"l{k}"
    value = "x"
    for k, (width, stride) in enumerate(windows):
        constants[f"w{k}"] = np.full((8, 8, width), 0.01, np.float32)
        text.append(f"h{k} = Conv<strides=[{stride}]>({value}, w{k})")
        value = f"h{k}"
    constants |= {"zero": np.array([0]), "two": np.array([2]), "four": np.array([4])}
    text.append(f"rows = Transpose<perm=[0,2,1]>({value})")
    nodes = [*sums, *text] if first else [*text, *sums]
    view = f"l = Unsqueeze({length}, zero) b = Shape<start=0, end=1>(x) to = Concat<axis=0>(b, l, two, four)"
    body = " ".join([*nodes, view, "y = Reshape(rows, to)"])
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 20]> g (float[b,8,t] x) => (float[b,n,2,4] y) {{ {body} }}'
    )
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in constants.items())
    return model


def known(model: onnx.ModelProto) -> tuple[Shapes, dict[str, tuple[Dim, ...] | None]]:
    read = ir.from_proto(model)
    shapes = infer(read)
    return shapes, {str(v.name): shapes.of(v).dims for node in read.graph for v in node.outputs}


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("name", LENGTHS)
def test_the_models_own_length_is_that_of_its_windows(name: str, first: bool) -> None:
    windows, steps = LENGTHS[name]
    model = stack(windows, steps, first=first)
    shapes, found = known(model)
    rows, y = found["rows"], found["y"]
    assert rows is not None
    assert y == ("b", rows[1], 2, 4)
    session = ort.InferenceSession(model.SerializeToString())
    least = next(t for t in range(1, 2000) if shapes.evaluate(rows[1], {"t": t}) == 1)
    for t in (least, least + 1, least + 700):
        (out,) = session.run(None, {"x": np.ones((2, 8, t), np.float32)})
        assert out.shape == (2, shapes.evaluate(rows[1], {"t": t}), 2, 4)


def test_a_window_says_nothing_where_it_need_not_run() -> None:
    """Without the convolution behind, x may be shorter than what is taken off it."""
    text = """(float[b,8,t] x) => (float[b,8,n] y, int64[m] l) {
        s = Shape<start=2, end=3>(x) l = Sub(s, three) lost = Conv<strides=[2]>(x, w) y = Slice(x, zero, l, axis) }"""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> g {text}')
    constants = {"three": [3], "zero": [0], "axis": [2]}
    model.graph.initializer.extend(numpy_helper.from_array(np.array(a), n) for n, a in constants.items())
    model.graph.initializer.append(numpy_helper.from_array(np.ones((8, 8, 9), np.float32), "w"))
    assert str((known(model)[1]["y"] or ())[2]).startswith("?")
    model.graph.output.append(onnx.helper.make_tensor_value_info("lost", 1, None))
    assert known(model)[1]["y"] == ("b", 8, "t - 3")


@pytest.mark.parametrize("first", [False, True])
def test_views_by_such_a_length_are_optimized_and_right(first: bool) -> None:
    model = stack(*LENGTHS["moonshine"], first=first)
    report = saturate_and_extract(model, verify=True).report
    assert report.verified


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("options", ["kernel_shape=[4]", 'kernel_shape=[4], auto_pad="VALID"'])
def test_a_pool_of_something_one_short_gives_nothing(kind: str, options: str) -> None:
    text = f"""g (float[b, 2, n] x) => (int64 y) <int64 two = {{2}}, int64 one = {{1}}> {{
        p = {kind}<{options}>(x) s = Shape(p) k = Gather(s, two) y = Max(k, one) }}"""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    result = saturate_and_extract(model, strict=True).model
    for size in (3, 4, 7):
        feed = {"x": np.ones((1, 2, size), np.float32)}
        want, got = (
            ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feed)
            for m in (model, result)
        )
        assert want == got
