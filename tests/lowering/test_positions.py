"""Gathers of all positions take a tensor as it is; others stay gathers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from onnx_egraph import saturate_and_extract

HEAD = """n0 = Shape<start=0, end=1>({rows}) n = Squeeze(n0) t0 = Shape<start=1, end=2>(x) t = Squeeze(t0)
    i = Range({first}, n, {step}) j = Range(zero, t, one)"""
#: rows[:, None, None], columns[None, None, :] side by side, and rows * width + columns of the flattened tensor
PAIRS = """i3 = Unsqueeze(i, ones) j3 = Unsqueeze(j, fronts) wide = Max(i3, j3) shape = Shape(wide)
    a = Expand(i3, shape) b = Expand(j3, shape) a1 = Unsqueeze(a, last) b1 = Unsqueeze(b, last)
    at = Concat<axis=-1>({pair}) y = GatherND<batch_dims=0>(x, at)"""
FLAT = """i1 = Unsqueeze(i, last) i2 = Unsqueeze(i1, last) j3 = Unsqueeze(j, fronts) iw = Mul(i2, {width})
    at = Add(iw, j3) flat = {flat}(x) g = Gather<axis=0>(flat, at) y = Identity(g)"""
CONSTANTS = {
    "zero": np.array(0), "one": np.array(1), "two": np.array(2), "last": np.array([-1]), "ones": np.array([1, 2]),
    "fronts": np.array([0, 1]), "row": np.array([-1]), "three": np.array(3),
}  # fmt: skip


def model(form: str, **how: str) -> onnx.ModelProto:
    how = {"rows": "x", "first": "zero", "step": "one", "pair": "a1, b1", "width": "t", "flat": "Flatten<axis=2>"} | how
    body = (HEAD + " " + form).format_map(how)
    made = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 20]> g (float[n,t] x, float[k,t] z) => (float[p,q,r] y) {{ {body} }}'
    )
    rank = 4 if "flat = Flatten" in body else 3
    made.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", 1, [None] * rank))
    used = {name for node in made.graph.node for name in node.input}
    made.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in CONSTANTS.items() if n in used)
    return made


def ops(made: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in made.graph.node}


def same(made: onnx.ModelProto, result: onnx.ModelProto, *sizes: tuple[int, int, int]) -> None:
    """Equal for these numbers of rows of x and z, and columns, where the original runs."""

    def run(one: onnx.ModelProto, feeds: dict[str, Any]) -> Any:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        return ort.InferenceSession(one.SerializeToString(), options).run(None, feeds)[0]

    for rows, others, columns in sizes:
        rng = np.random.default_rng(0)
        feeds = {
            "x": rng.standard_normal((rows, columns)).astype(np.float32), "z": np.ones((others, columns), np.float32)
        }  # fmt: skip
        np.testing.assert_array_equal(run(made, feeds), run(result, feeds))


WHOLE: dict[str, tuple[str, dict[str, str]]] = {
    "side by side": (PAIRS, {}),
    "flattened": (FLAT, {}),
    "a view of one axis": (FLAT.replace("{flat}(x)", "Reshape(x, row)"), {}),
}


@pytest.mark.parametrize("name", WHOLE)
def test_all_positions(name: str) -> None:
    form, how = WHOLE[name]
    made = model(form, **how)
    result = saturate_and_extract(made).model
    assert isinstance(result, onnx.ModelProto)
    assert not ops(result) & {"Gather", "GatherND", "Range", "Expand"}
    same(made, result, (3, 1, 5), (1, 1, 1), (1, 2, 4), (4, 2, 1))


OTHERS: dict[str, tuple[str, dict[str, str]]] = {
    "as many rows as another input has": (PAIRS, {"rows": "z"}),
    "as many rows, flattened": (FLAT, {"rows": "z"}),
    "from the second row": (PAIRS, {"first": "one"}),
    "every second row": (PAIRS, {"step": "two"}),
    "columns by rows": (PAIRS, {"pair": "b1, a1"}),
    "rows twice": (PAIRS, {"pair": "a1, a1"}),
    "an axis of batches": (PAIRS.replace("batch_dims=0>(x, at)", "batch_dims=1>(x, at)").replace("{pair}", "b1"), {}),
    "one row after the other, of three": (FLAT, {"width": "three"}),
    "from the second row of all": (FLAT, {"first": "one"}),
    "along the other axis": (FLAT.replace("Gather<axis=0>(flat, at)", "Gather<axis=1>(flat, at)"), {}),
    "products of both": (FLAT.replace("Add(iw, j3)", "Mul(i2, j3)"), {}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_positions(name: str) -> None:
    form, how = OTHERS[name]
    made = model(form, **how)
    result = saturate_and_extract(made).model
    assert isinstance(result, onnx.ModelProto)
    assert ops(result) & {"Gather", "GatherND"}
    if name not in ("along the other axis",):
        same(made, result, (3, 1, 3))
