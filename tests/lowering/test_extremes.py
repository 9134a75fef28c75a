"""Extreme values of every element type, as constants, shapes and attributes: nothing crashes, no bit of a number
changes.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh
from onnx import parser

from onnx_egraph import saturate_and_extract
from onnx_egraph.egraph.errors import ModelError

LEAST, LARGEST = -(2**63), 2**63 - 1
TYPES = [name for name in T.DataType.keys() if name != "UNDEFINED"]  # noqa: SIM118  # a protobuf wrapper
#: Operators of one and of two operands of one type.
ONE = ["Identity", "Neg", "Abs", "Sign", "Sqrt", "Reciprocal", "Exp", "Not", "BitwiseNot", "Shape", "Transpose"]
TWO = ["Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "BitwiseXor", "And", "Equal", "Less", "GreaterOrEqual", "Mod"]
CASTS = ["INT64", "UINT64", "INT32", "FLOAT", "FLOAT16", "BFLOAT16", "BOOL", "FLOAT8E4M3FN", "INT4"]


def values(name: str) -> Iterator[list[Any]]:
    """The edges of a type, alone and beside others."""
    if name == "STRING":
        yield from ([""], ["a\nb", "\x00", "é"])
    elif name == "BOOL":
        yield from ([True], [False, True])
    elif "COMPLEX" in name:
        yield from ([complex(math.nan, math.inf)], [complex(-0.0, 0.0), 1])
    elif "INT" in name:
        dtype = h.tensor_dtype_to_np_dtype(T.DataType.Value(name))
        least, largest = int(ml_dtypes.iinfo(dtype).min), int(ml_dtypes.iinfo(dtype).max)
        yield from ([least], [largest], [largest, least, 0])
    else:
        yield from ([math.nan], [-math.inf], [-0.0], [5e-324])
        yield [math.nan, math.inf, -math.inf, -0.0, 0.0, 1e-45, 6e-8, 65504.0, 1.7976931348623157e308]


@cache
def runs(op: str, name: str, to: str = "") -> bool:
    """Whether onnxruntime has the operator for the type."""
    try:
        session(model(name, [1], [(op, to)]))
    except Exception:  # it raises many types
        return False
    return True


def constant(name: str, array: list[Any], value: str, dims: tuple[int, ...]) -> onnx.TensorProto:
    code = T.DataType.Value(name)
    if name == "STRING":
        return h.make_tensor(value, code, dims, array * (math.prod(dims) // len(array) if dims else 1))
    with np.errstate(all="ignore"):
        tensor = np.array(array).astype(h.tensor_dtype_to_np_dtype(code))
    return nh.from_array(np.resize(tensor, dims), value)


def model(name: str, array: list[Any], ops: list[tuple[str, str]]) -> onnx.ModelProto:
    """Each operator on a vector, a matrix and, of one element, a scalar; half are initializers."""
    code, size = T.DataType.Value(name), len(array)
    shapes = {"v": (size,), "m": (2, size), **({"s": ()} if size == 1 else {})}
    stored = [constant(name, array, value, dims) for value, dims in shapes.items()]
    nodes = [h.make_node("Constant", [], ["v"], value=stored[0]), h.make_node("Identity", ["x"], ["i"]),
             h.make_node("Neg", ["i"], ["n"])]  # fmt: skip
    outputs = [h.make_tensor_value_info("n", T.FLOAT, ["k"])]
    for number, (op, to) in enumerate(ops):
        for value in shapes:
            out = f"y{number}{value}"
            given = [value, value] if op in TWO else [value]
            more: dict[str, Any] = {"to": T.DataType.Value(to)} if to else {"fmod": 1} if op == "Mod" else {}
            nodes.append(h.make_node(op, given, [out], **more))
            kind = T.DataType.Value(to) if to else T.INT64 if op == "Shape" else code
            kind = T.BOOL if op in ("Equal", "Less", "GreaterOrEqual") else kind
            outputs.append(h.make_tensor_value_info(out, kind, None))
    graph = h.make_graph(nodes, "g", [h.make_tensor_value_info("x", T.FLOAT, ["k"])], outputs, stored[1:])
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 23)], ir_version=11)


def session(proto: onnx.ModelProto) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(proto: onnx.ModelProto) -> list[Any]:
    """The bytes of each output, whatever its type, and its shape."""
    made = session(proto)
    feed = ort.OrtValue.ortvalue_from_numpy(np.ones(2, np.float32))
    found = []
    for value in made.run_with_ort_values([o.name for o in made.get_outputs()], {"x": feed}):
        if "string" in value.data_type():
            found.append((value.shape(), value.numpy().tolist()))
        else:
            found.append((value.shape(), ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())))
    return found


@pytest.mark.parametrize("name", TYPES)
def test_constants(name: str) -> None:
    for array in values(name):
        divided = [] if "INT" in name and (0 in array or len(array) > 1) else ["Div", "Mod"]  # else: a signal
        ops = [(op, "") for op in (*ONE, *TWO) if op in divided or op not in ("Div", "Mod")]
        ops = [(op, to) for op, to in [*ops, *(("Cast", to) for to in CASTS)] if runs(op, name, to)]
        given = model(name, array, ops)
        result = saturate_and_extract(given, strict=True)  # else the sign of a zero may differ
        assert not result.report.unchanged, array
        try:
            want = run(given)
        except Exception:  # onnxruntime has not even a copy of the type
            assert not ops, name
        else:
            assert run(result.model) == want, array


@pytest.mark.parametrize("name", TYPES)
def test_what_onnxruntime_has_no_kernel_for(name: str) -> None:
    """Such a model may be refused, as one that contradicts itself, but in our words."""
    array = next(values(name))
    for op in ("Identity", "Neg", "Transpose", "Shape", "Add", "And", "Equal"):
        if not runs(op, name):
            try:
                saturate_and_extract(model(name, array, [(op, "")]))
            except ModelError:
                continue


BOUNDS = [LEAST, LEAST + 1, -(2**62), -(2**31) - 1, -(2**31), -1, 0, 1, 2**31 - 1, 2**31, 2**62, LARGEST - 1, LARGEST]


def written(body: str, opset: int = 18, more: str = "") -> onnx.ModelProto:
    """A body that makes y of x, of two elements, and something to do."""
    return parser.parse_model(f"""<ir_version: 8, opset_import: ["" : {opset}]>
    g (float[2] x) => (float[k] n, float[r] y) <int64[1] zero = {{0}}, int64[1] one = {{1}} {more}> {{
        i = Identity (x) \n n = Neg (i) \n {body}
    }}""")


def check(given: onnx.ModelProto) -> None:
    try:
        want = run(given)
    except Exception:  # no model that runs, but it must not crash
        want = None
    try:
        result = saturate_and_extract(given)
    except ModelError:
        assert want is None
        return
    if want is not None:
        assert run(result.model) == want


@pytest.mark.parametrize("first", BOUNDS)
def test_bounds_of_slices(first: int) -> None:
    nodes, stored = ["z = Concat <axis = 0> (x, x)"], [f", int64[1] a = {{{first}}}"]
    for place, last in enumerate(BOUNDS):
        stored.append(f"int64[1] b{place} = {{{last}}}")
        nodes.append(f"p{place} = Slice (z, a, b{place})")
        if last:
            nodes.append(f"q{place} = Slice (z, zero, a, zero, b{place})")
            nodes.append(f"r{place} = Slice (z, a, zero, zero, b{place})")
        nodes.append(f"s{place} = Shape (x) \n c{place} = Concat <axis = 0> (s{place}, a, b{place})")
        nodes.append(f"d{place} = Slice (c{place}, one, b{place}) \n e{place} = Slice (c{place}, a, one)")
    nodes.append("y = Neg (z)")
    given = written("\n".join(nodes), more=", ".join(stored))
    made = {o for node in given.graph.node for o in node.output} - {"i", "n", "y"}
    kinds = {o: T.INT64 if o[0] in "scde" else T.FLOAT for o in sorted(made)}
    given.graph.output.extend(h.make_tensor_value_info(o, kind, None) for o, kind in kinds.items())
    result = saturate_and_extract(given)
    assert run(result.model) == run(given)


@pytest.mark.parametrize("number", [LEAST, -1, 0, LARGEST])
def test_attributes(number: int) -> None:
    for body in (
        f"y = Concat <axis = {number}> (x, x)",
        f"y = Softmax <axis = {number}> (x)",
        f"y = Gather <axis = {number}> (x, zero)",
        f"y = Flatten <axis = {number}> (x)",
        f"y, z = Split <axis = {number}, num_outputs = 2> (x)",
        f"s = Shape <start = {number}> (x) \n f = Cast <to = 1> (s) \n y = Neg (f)",
        f"s = Shape <end = {number}> (x) \n f = Cast <to = 1> (s) \n y = Neg (f)",
        f"c = Constant <value_int = {number}> () \n f = Cast <to = 1> (c) \n y = Add (f, x)",
        f"c = Constant <value_ints = [{number}, 1]> () \n d = Mul (c, c) \n e = Sub (d, c) \n f = Cast <to = 1> (e)"
        " \n y = Add (f, x)",
        f"a = Constant <value_int = {number}> () \n r = ReduceSum (x, a) \n y = Add (r, x)",
        f"y = LayerNormalization <axis = {number}> (x, x)",
        f"c = Cast <to = {number}> (x) \n y = Cast <to = 1> (c)",
        f"y = Trilu <upper = {number}> (x)",
        f"y = Transpose <perm = [{number}]> (x)",
        "u = Unsqueeze (x, far) \n y = Squeeze (u, far)",
    ):
        check(written(body, more=f", int64[1] far = {{{number}}}"))
    check(written(f"y = ReduceMean <axes = [{number}]> (x)", 13))
    check(written(f"u = Unsqueeze <axes = [{number}]> (x) \n y = Squeeze <axes = [{number}]> (u)", 12))


@pytest.mark.parametrize("number", [LEAST, 0, LARGEST])
def test_shapes(number: int) -> None:
    if number < 2**31 - 1:  # else the runtime asks for all memory
        for body in (
            "c = ConstantOfShape (far) \n y = Mul (c, c)",
            "y = Expand (x, far)",
            "y = Tile (x, far)",
            "r = Range (zero0, far0, one0) \n f = Cast <to = 1> (r) \n y = Mul (f, f)",
        ):
            more = f", int64[1] far = {{{number}}}, int64 far0 = {{{number}}}, int64 zero0 = {{0}}, int64 one0 = {{1}}"
            check(written(body, more=more))
    for body in (
        "y = Reshape (x, far)",
        "r = Range (far0, far0, one0) \n f = Cast <to = 1> (r) \n y = Mul (f, f)",
        "y = Gather (x, far)",
        "k, l = TopK (x, far) \n y = Neg (k)",
        "c = Clip (far, far0, far0) \n f = Cast <to = 1> (c) \n y = Mul (f, f)",
        "a = Abs (far) \n b = Neg (a) \n f = Cast <to = 1> (a) \n g = Cast <to = 1> (b) \n y = Mul (f, g)",
        "a = Max (far, one) \n b = Min (far, zero) \n c = Sub (a, b) \n f = Cast <to = 1> (c) \n y = Mul (f, f)",
        "a = Cast <to = 6> (far) \n b = Cast <to = 13> (a) \n f = Cast <to = 1> (b) \n y = Mul (f, f)",
        "a = Cast <to = 1> (far) \n b = Cast <to = 7> (a) \n f = Cast <to = 1> (b) \n y = Mul (f, f)",
        "a = Cast <to = 9> (far) \n b = Cast <to = 7> (a) \n f = Cast <to = 1> (b) \n y = Mul (f, f)",
        "b = Less (far, one) \n c = Where (b, far, one) \n f = Cast <to = 1> (c) \n y = Mul (f, f)",
    ):
        more = f", int64[1] far = {{{number}}}, int64 far0 = {{{number}}}, int64 one0 = {{1}}"
        check(written(body, more=more))


def test_sizes_that_no_tensor_has() -> None:
    """In a branch that is never taken."""
    for sizes in ([2**62, 2**62], [2**40, 2**30, 1]):
        dims = ", ".join(map(str, sizes))
        given = parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 18]>
        g (float[1] x, bool c) => (float[n] y)
        <int64[{len(sizes)}] big = {{{dims}}}, int64[1] flat = {{-1}}, int64[2] rows = {{0, -1}}> {{
            i = Identity (x) \n n = Neg (i)
            y = If (c) <
                then_branch = yes () => (float[p] a) {{ e = Expand (n, big) \n a = Reshape (e, flat) }},
                else_branch = no () => (float[q] b) {{ b = Exp (n) }}
            >
        }}""")
        saturate_and_extract(given)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -0.0, 0.0, 1e-45, 3.4028234e38, -3.4028234e38])
def test_float_attributes(number: float) -> None:
    for op, given, name, domain in (
        ("LayerNormalization", ["x", "g", "g"], "epsilon", ""), ("Gelu", ["x"], "", "com.microsoft"),
        ("QuickGelu", ["x"], "alpha", "com.microsoft"), ("LeakyRelu", ["x"], "alpha", ""), ("Elu", ["x"], "alpha", ""),
        ("SimplifiedLayerNormalization", ["x", "g"], "epsilon", ""), ("HardSigmoid", ["x"], "beta", ""),
    ):  # fmt: skip
        attributes = {name: number} if name else {}
        nodes = [
            h.make_node("Identity", ["x"], ["i"]), h.make_node("Neg", ["i"], ["n"]),
            h.make_node(op, given, ["y"], domain=domain, **attributes),
            h.make_node("Constant", [], ["c"], value_float=number), h.make_node("Mul", ["x", "c"], ["z"]),
            h.make_node("Add", ["z", "c"], ["w"]), h.make_node("Pow", ["w", "c"], ["v"]),
            h.make_node("Div", ["v", "c"], ["u"]), h.make_node("Sqrt", ["c"], ["r"]),
            h.make_node("Mul", ["u", "r"], ["t"]),
        ]  # fmt: skip
        outputs = [h.make_tensor_value_info(o, T.FLOAT, [2]) for o in "nytwv"]
        graph = h.make_graph(
            nodes, "g", [h.make_tensor_value_info("x", T.FLOAT, [2])], outputs,
            [nh.from_array(np.ones(2, np.float32), "g")],
        )  # fmt: skip
        imports = [h.make_opsetid("", 18), h.make_opsetid("com.microsoft", 1)]
        made = h.make_model(graph, opset_imports=imports, ir_version=8)
        result = saturate_and_extract(made)
        for a, b in zip(run(made), run(result.model), strict=True):
            np.testing.assert_array_equal(*(np.frombuffer(data, np.float32) for _, data in (a, b)))


def test_a_range_of_indices_that_wraps_around() -> None:
    """Neighbors differ alike only where a difference of 2^64 is none."""
    ids = np.array([2**62, -(2**63)], np.int64)
    more = [nh.from_array(ids, "ids"), nh.from_array(np.array([LARGEST - 1, LARGEST]), "top")]
    made = written("f = Cast <to = 1> (ids) \n t = Cast <to = 1> (top) \n s = Mul (f, t) \n y = Add (s, x)")
    made.graph.initializer.extend(more)
    check(made)
