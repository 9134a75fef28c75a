"""Symbolic facts: naming, trust, control flow, and agreement with what onnxruntime computes."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from cases import BOOL, FAR, FLOAT, INT64, Case, const, is_fresh, node, tensor
from onnx import TensorProto

from onnx_egraph.lowering.shapes.inference import ValueFacts, infer

# ---- names


def test_first_axis_of_integer_inputs_is_their_own() -> None:
    case = Case(
        [node("Cast", "ids", "a", to=FLOAT), node("Cast", "pos", "b", to=FLOAT), node("Add", "a b", "c")],
        [
            tensor("ids", INT64, ["batch", "seq"]),
            tensor("pos", INT64, ["batch", "seq"]),
            tensor("x", FLOAT, ["batch", "seq"]),
        ],
        ["c"],
    )
    assert case["ids"].dims == ("batch@ids", "seq")
    assert case["pos"].dims == ("batch@pos", "seq")
    assert case["x"].dims == ("batch", "seq")
    assert case["c"].dims == ("broadcast(batch@ids, batch@pos)", "seq")
    assert case.shapes.sources == {
        "batch@ids": (case.values["ids"], 0),
        "batch@pos": (case.values["pos"], 0),
        "batch": (case.values["x"], 0),
        "seq": (case.values["ids"], 1),
    }
    assert case.shapes.readable["batch@ids"] == "batch@ids"


HOSTILE = [
    "a*b",
    "seq-1",
    "seq - 1",
    "1",
    "for",
    "max",
    "floordiv(a, b)",
    "?1",
    "@1",
    "ü",
    "a\nb",
    "",
    "b@x",
    "a b",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_one_atom(name: str) -> None:
    case = Case(
        [node("Concat", "x x", "y", axis=0), node("Shape", "y", "s")],
        [tensor("x", FLOAT, [name, "seq", "a", "b"]), tensor("ids " + name, INT64, [name, name])],
        ["s"],
    )
    dims = case.dims("x")
    assert len(set(dims)) == 4
    first = str(dims[0])
    assert not set(first) & set(" *+-()\n")
    assert case["y"].dims == (f"2*{first}", "seq", "a", "b")
    assert case["s"].elems == case["y"].dims
    assert case.shapes.evaluate(f"2*{first}", {first: 7}) == 14
    if name:
        assert case.shapes.readable[first] == name
        # the same name on the first axis of an integer input is another size; elsewhere it is this one
        ids = case.dims("ids " + name)
        assert ids[0] != first
        assert ids[1] == first


def test_axes_without_a_name_are_all_different() -> None:
    case = Case([node("Add", "x y", "z")], [tensor("x", FLOAT, [None, None]), tensor("y", FLOAT, None)], ["z"])
    dims = case.dims("x")
    assert all(map(is_fresh, dims))
    assert dims[0] != dims[1]
    assert case["y"].dims is None
    assert case["z"].dims is None
    assert case["z"].dtype == ir.DataType.FLOAT


# ---- proofs


def test_concat_that_executes_proves_its_other_axes_equal() -> None:
    inputs = [tensor("past", FLOAT, ["batch", 4, "past", 8]), tensor("ids", INT64, ["batch", "seq"])]
    constants = [const("shape", [0, 0, 4, 8]), const("table", np.zeros((10, 32)), np.float32)]
    nodes = [
        node("Gather", "table ids", "h"),
        node("Reshape", "h shape", "r"),
        node("Transpose", "r", "new", perm=[0, 2, 1, 3]),
        node("Concat", "past new", "all", axis=2),
        node("Identity", "ids", "keep"),
    ]
    used = Case(nodes, inputs, ["all", "keep"], constants)
    assert used["all"].dims == ("batch", 4, "past + seq", 8)
    assert used["ids"].dims == ("batch", "seq")
    assert used.shapes.sources["batch"] == (used.values["past"], 0)
    dead = Case(nodes, inputs, ["keep"], constants)
    assert dead["ids"].dims == ("batch@ids", "seq")


def test_reshapes_with_another_inputs_batch_are_resolved_where_only_equal_batches_run() -> None:
    # the batch of the mask shapes tensors computed from the ids, as exporters that keep one size per symbol
    # do
    nodes = [
        node("Shape", "mask", "b", start=0, end=1),
        node("Shape", "mask", "s", start=1, end=2),
        node("Gather", "table ids", "h"),
        node("Concat", "b s minus d", "view", axis=0),
        node("Reshape", "h view", "q"),
        node("MatMul", "h wk", "hk"),
        node("Reshape", "hk view", "k"),
        node("Unsqueeze", "k two", "k5"),
        node("Concat", "b s two two d", "grow", axis=0),
        node("Expand", "k5 grow", "kk"),
        node("Concat", "b s four d", "flat", axis=0),
        node("Reshape", "kk flat", "kr"),
        node("Mul", "q kr", "out"),
    ]
    inputs = [tensor("ids", INT64, ["batch", "seq"]), tensor("mask", INT64, ["batch", "seq"])]
    constants = [
        const("minus", [-1]),
        const("d", [16]),
        const("two", [2]),
        const("four", [4]),
        const("table", np.zeros((10, 64)), np.float32),
        const("wk", np.zeros((64, 32)), np.float32),
    ]
    case = Case(nodes, inputs, ["out"], constants)
    batch, *_ = case.dims("ids")
    assert case["mask"].dims == (batch, "seq")
    assert case["q"].dims == (batch, "seq", 4, 16)
    assert case["k"].dims == (batch, "seq", 2, 16)
    # without the second use a batch that is half as large runs too
    weaker = Case(nodes[:-1], inputs, ["q", "kr"], constants)
    assert weaker["mask"].dims == ("batch@mask", "seq")
    assert weaker["q"].dims == ("batch@mask", "seq", "floordiv(4*batch@ids, batch@mask)", 16)


# ---- trust


def test_declared_shapes_do_not_override_inference() -> None:
    case = Case(
        [node("Relu", "x", "y"), node("Transpose", "y", "z", perm=[1, 0])],
        [tensor("x", FLOAT, ["n", 3])],
        [tensor("z", FLOAT, ["wrong", 7])],
        value_info=[tensor("y", FLOAT, [5, 5, 5])],
    )
    assert case["y"].dims == ("n", 3)
    assert case["z"].dims == (3, "n")


def test_declarations_fill_in_for_unknown_operators(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    case = Case(
        [
            node("Mystery", "x", "a", domain="custom"),
            node("Mystery", "x", "b", domain="custom"),
            node("Add", "a x", "c"),
            node("Squeeze", "x axes", "d"),
        ],
        [tensor("x", FLOAT, ["n", 3]), tensor("axes", INT64, ["k"])],
        ["b", "c", tensor("d", FLOAT, [3])],
        value_info=[tensor("a", FLOAT, ["n", 3])],
    )
    assert case["b"] == ValueFacts(None, None, None)
    dims = case.dims("a")
    assert is_fresh(dims[0])
    assert dims[1] == 3
    assert case.dims("c")[1] == 3
    assert case.dims("c")[0] != "n"
    assert is_fresh(case.dims("d")[0])
    assert capfd.readouterr() == ("", "")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_an_initializer_that_is_an_input_is_no_constant() -> None:
    case = Case(
        [node("Reshape", "x shape", "y"), node("Reshape", "x fixed", "z")],
        [tensor("x", FLOAT, ["n", 6]), tensor("shape", INT64, [2])],
        ["y", "z"],
        [const("shape", [-1, 3]), const("fixed", [-1, 3])],
    )
    assert case["shape"].dims == (2,)
    assert all(map(is_fresh, case.elems("shape")))
    assert all(map(is_fresh, case.dims("y")))
    assert case["z"].dims == ("2*n", 3)


def test_external_weights_are_neither_read_nor_needed(tmp_path: Path) -> None:
    weights = [const("w", np.ones((4, 5)), np.float32)]
    case = Case([node("MatMul", "x w", "y")], [tensor("x", FLOAT, ["n", 4])], ["y"], weights)
    path = tmp_path / "m.onnx"
    onnx.save_model(
        case.proto,
        str(path),
        save_as_external_data=True,
        location="m.bin",
        size_threshold=0,
        convert_attribute=False,
    )
    (tmp_path / "m.bin").unlink()
    model = ir.load(path)
    shapes = infer(model)
    assert shapes.of(model.graph.outputs[0]).dims == ("n", 5)
    assert shapes.of(model.graph.initializers["w"]).dims == (4, 5)


def test_the_model_is_left_unchanged() -> None:
    case = Case(
        [node("Shape", "x", "s"), node("Resize", "x _ _ sizes", "y"), node("Reshape", "y s", "z")],
        [tensor("x", FLOAT, ["n", 3, None, None])],
        ["z"],
        [const("sizes", [1, 3, 4, 4])],
    )
    untouched = ir.to_proto(ir.from_proto(case.proto))
    assert ir.to_proto(case.model).SerializeToString() == untouched.SerializeToString()
    assert all(not value.metadata_props for value in case.values.values())


# ---- contents


def test_dimension_arithmetic_of_exporters() -> None:
    case = Case(
        [
            node("Shape", "x", "s"),
            node("Gather", "s last", "d"),
            node("Div", "d two", "half"),
            node("Cast", "half", "half32", to=TensorProto.INT32),
            node("Cast", "half32", "half64", to=INT64),
            node("Unsqueeze", "half64 zero", "end"),
            node("Slice", "x zero end zero", "cut"),
            node("ConstantOfShape", "rank", "ones", value=const("", [1])),
            node("Slice", "s zero one", "first"),
            node("Slice", "s one far", "tail"),
            node("Concat", "first tail", "target", axis=0),
            node("Mul", "ones minus", "minus_ones"),
            node("Equal", "target minus_ones", "keep"),
            node("Where", "keep ones target", "wanted"),
            node("Expand", "one_f wanted", "y"),
            node("ReduceProd", "s", "count", keepdims=0),
            node("Size", "x", "size"),
            node("Range", "none d step", "range"),
        ],
        [tensor("x", FLOAT, ["n", "m", "2*k"])],
        ["cut", "y", "count", "size", "range"],
        [
            const("last", -2),
            const("two", 2),
            const("zero", [0]),
            const("one", [1]),
            const("far", [FAR]),
            const("rank", [3]),
            const("minus", [-1]),
            const("none", 0),
            const("step", 3),
            const("one_f", [[[1.0]]], np.float32),
        ],
    )
    odd = case.dims("x")[2]
    assert case["s"].elems == ("n", "m", odd)
    assert case["half64"].elems == ("floordiv(m, 2)",)
    assert case["cut"].dims == ("min(floordiv(m, 2), n)", "m", odd)
    assert case["keep"].elems == (0, 0, 0)
    assert case["wanted"].elems == case["s"].elems
    assert case["y"].dims == case["x"].dims
    assert case["count"].elems == case["size"].elems
    assert case["range"].dims == ("floordiv(m + 2, 3)",)


def test_a_size_may_be_zero() -> None:
    case = Case(
        [
            node("Slice", "x one far zero", "rest"),
            node("Shape", "x", "s"),
            node("Max", "s one", "some"),
            node("Greater", "s zero", "any"),
            node("GreaterOrEqual", "s zero", "always"),
            node("Equal", "s zero", "none"),
        ],
        [tensor("x", FLOAT, ["n"])],
        ["rest", "some", "any", "always", "none"],
        [const("zero", [0]), const("one", [1]), const("far", [FAR])],
    )
    (rest,) = case.dims("rest")
    assert [case.shapes.evaluate(rest, {"n": n}) for n in (0, 1, 5)] == [0, 0, 4]
    assert case["some"].elems == ("max(1, n)",)
    assert case["always"].elems == (1,)
    assert is_fresh(case.elems("any")[0])
    assert is_fresh(case.elems("none")[0])


def test_what_would_be_wrong_is_unknown() -> None:
    case = Case(
        [
            node("Mul", "big big", "over"),
            node("Cast", "big", "wrapped", to=TensorProto.INT32),
            node("Shape", "x", "s"),
            node("Sub", "s five", "below"),
            node("Div", "below two", "toward_zero"),
            node("Slice", "x below far zero", "from_the_end"),
            node("Slice", "x far back zero minus", "backwards"),
            node("Gather", "s far", "outside"),
            node("Div", "five zero", "infinite"),
            node("Cast", "five", "small", to=TensorProto.INT8),
        ],
        [tensor("x", FLOAT, ["n"])],
        "over wrapped toward_zero from_the_end backwards outside infinite small".split(),
        [
            const("big", [2**40]),
            const("five", [5]),
            const("two", [2]),
            const("zero", [0]),
            const("far", [FAR]),
            const("back", [-3]),
            const("minus", [-1]),
        ],
    )
    for name in "over wrapped toward_zero outside infinite".split():
        assert is_fresh(case.elems(name)[0]), name
    for name in "from_the_end backwards".split():
        assert is_fresh(case.dims(name)[0]), name
    assert case["below"].elems == ("n - 5",)
    assert case["small"].elems == (5,)


def test_elements_that_are_not_known_are_each_their_own_symbol() -> None:
    case = Case(
        [
            node("Unsqueeze", "n zero", "row"),
            node("Concat", "row row", "two", axis=0),
            node("Add", "m m", "sum"),
        ],
        [
            tensor("n", INT64, []),
            tensor("m", BOOL, [3]),
            tensor("wide", INT64, [65]),
            tensor("any", INT64, ["k"]),
        ],
        ["two", "sum"],
        [const("zero", [0])],
    )
    assert is_fresh(case.elems("n")[0])
    assert case["two"].elems == case.elems("n") * 2
    assert len(set(case.elems("m"))) == 3
    assert case["wide"].elems is None
    assert case["any"].elems is None


# ---- operators the library answers


def test_the_library_answers_for_other_operators() -> None:
    case = Case(
        [
            node("Conv", "x w", "conv", pads=[1, 1, 1, 1]),
            node("AveragePool", "x", "pool", kernel_shape=[2, 2], strides=[2, 2]),
            node("TopK", "x k", "top at", axis=3),
            node("NonZero", "x", "places"),
            node("Tile", "x repeats", "tiled"),
        ],
        [tensor("x", FLOAT, ["a*b", 3, "h", "w-1"])],
        "conv pool top at places tiled".split(),
        [const("w", np.zeros((8, 3, 3, 3)), np.float32), const("k", [5]), const("repeats", [1, 1, 1, 2])],
    )
    n, _, h, w = case.dims("x")
    assert case["conv"].dims == (n, 8, h, w)
    sizes = {str(n): 2, str(h): 7, str(w): 9}
    assert [case.shapes.evaluate(dim, sizes) for dim in case.dims("pool")] == [2, 3, 3, 4]
    assert case["top"].dims == (n, 3, h, 5)
    assert case["at"].dtype == ir.DataType.INT64
    assert case.dims("places")[0] == 4
    assert is_fresh(case.dims("places")[1])
    assert case["tiled"].dims == (n, 3, h, f"2*{w}")


def test_expressions_that_grow_without_bound_are_given_up() -> None:
    nodes = []
    last = "x"
    for step in range(40):
        nodes += [
            node("Reshape", f"{last} column", f"c{step}"),
            node("Reshape", f"{last} row", f"r{step}"),
            node("MatMul", f"c{step} r{step}", f"m{step}"),
        ]
        last = f"m{step}"
    inputs = [tensor("x", FLOAT, ["n", "m"])]
    case = Case(nodes, inputs, [last], [const("column", [-1, 1]), const("row", [1, -1])])
    assert case["m0"].dims == ("m*n", "m*n")
    assert all(len(str(dim)) < 4000 for step in range(40) for dim in case.dims(f"m{step}"))


def test_what_is_behind_a_window_is_a_size() -> None:
    """Lengths of convolutions over strides, which their arithmetic alone would let be negative: a view by such a length
    has it, and so have positions counted to it and a slice that takes off what was padded.
    """
    case = Case(
        [
            node("Conv", "x w", "c0", strides=[5]),
            node("Conv", "c0 v", "c1", strides=[2]),
            node("MaxPool", "c1", "p", kernel_shape=[3], strides=[2]),
            node("Transpose", "p", "t", perm=[0, 2, 1]),
            node("Shape", "t", "shape"),
            node("Slice", "shape zero two", "lengths"),
            node("Concat", "lengths split", "target", axis=0),
            node("Reshape", "t target", "heads"),
            node("Conv", "p v", "padded", pads=[1, 2]),
            node("Slice", "padded zero minus last", "cut"),
            node("Add", "cut p", "sum"),
            node("Gather", "shape one", "length"),
            node("Range", "start length step", "places"),
        ],
        [tensor("x", FLOAT, ["b", 1, "t"])],
        "heads sum places".split(),
        [
            const("w", np.zeros((8, 1, 10)), np.float32), const("v", np.zeros((8, 8, 3)), np.float32),
            const("zero", [0]), const("two", [2]), const("minus", [-1]), const("last", [2]), const("split", [2, 4]),
            const("one", 1), const("start", 0), const("step", 1),
        ],
    )  # fmt: skip
    batch, _, length = case.dims("p")
    assert case.dims("heads") == (batch, length, 2, 4)
    assert case.dims("places") == (length,)
    assert case.dims("sum") == case.dims("p")


def test_a_size_that_only_arithmetic_gives_may_still_be_negative() -> None:
    """No window is moved over what has this length, so it may end before the axis starts."""
    case = Case(
        [
            node("Shape", "x", "length", start=1, end=2),
            node("Sub", "length one", "less"),
            node("Concat", "less minus", "target", axis=0),
            node("Reshape", "x target", "y"),
        ],
        [tensor("x", FLOAT, ["b", "t"])],
        ["y"],
        [const("one", [1]), const("minus", [-1])],
    )
    assert all(is_fresh(d) for d in case.dims("y"))


@pytest.mark.parametrize("op", ["LayerNormalization", "RMSNormalization"])
def test_the_weight_of_a_norm_tells_the_axis_it_norms(op: str) -> None:
    case = Case(
        [node("Reshape", "x target", "y"), node(op, "y w", "z")],
        [tensor("x", FLOAT, ["b", "s"]), tensor("target", INT64, [3])],
        ["z"],
        [const("w", np.ones(64), np.float32)],
        opset=23,
    )
    assert case.dims("y")[-1] == 64
    assert case.dims("z")[-1] == 64
