"""All that is in a model and is no operator comes through: names, types, metadata, odd values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh
from roundtrip_models import (
    CONSTANTS,
    SIZE,
    WEIGHT,
    data,
    fused,
    good,
    info,
    model,
    n,
    norm,
    ops,
    optimized,
    same_numbers,
    x,
)

from onnx_egraph import EGraphError, saturate_and_extract
from onnx_egraph.lowering.files.constants import lift
from onnx_egraph.lowering.files.load import load
from onnx_egraph.lowering.files.save import save
from onnx_egraph.lowering.space import Choice

ROOT = Path(__file__).parents[2]


# ---- what surrounds the graph


def test_metadata() -> None:
    given = model(
        [n("Relu", "x", "r"), *norm("r", "s"), n("Softplus", "s", "y")],
        [info("x", "batch", SIZE), info("unused", "batch", None)],
        [info("y", "batch", SIZE), info("s", "other name", SIZE)],
    )
    h.set_model_props(given, {"author": "me", "license": "none"})
    given.producer_name, given.producer_version, given.domain = "pytorch", "2.9", "org.example"
    given.model_version, given.doc_string, given.graph.doc_string = 7, "of the model", "of the graph"
    given.opset_import.append(h.make_opsetid("unused.domain", 3))
    given.graph.metadata_props.add(key="graph", value="1")
    given.graph.input[0].doc_string, given.graph.output[0].doc_string = "of x", "of y"
    given.graph.input[0].metadata_props.add(key="input", value="2")
    given.graph.input[0].type.denotation = "IMAGE"
    given.graph.input[0].type.tensor_type.shape.dim[0].denotation = "BATCH"
    given.graph.initializer[0].metadata_props.add(key="weight", value="3")
    for node in given.graph.node:
        node.doc_string = f"doc of {node.name}"
        node.metadata_props.add(key="module", value=node.name)
    result = good(given, x=x(), unused=x())
    assert (result.producer_name, result.producer_version, result.domain) == ("pytorch", "2.9", "org.example")
    assert (result.model_version, result.doc_string, result.ir_version) == (7, "of the model", 9)
    assert (result.graph.name, result.graph.doc_string) == ("main graph", "of the graph")
    assert list(result.metadata_props) == list(given.metadata_props)
    assert list(result.graph.metadata_props) == list(given.graph.metadata_props)
    assert {(o.domain, o.version) for o in result.opset_import} == {("", 18), ("unused.domain", 3)}
    kept = {node.name: node for node in result.graph.node}
    for node in (given.graph.node[0], given.graph.node[-1]):
        assert kept[node.name] == node
    [weight] = [t for t in result.graph.initializer if t.name == "w"]
    assert list(weight.metadata_props) == list(given.graph.initializer[0].metadata_props)
    assert weight.raw_data == WEIGHT.raw_data


def test_quantization_annotation() -> None:
    given = model([n("Relu", "x", "r"), *norm("r", "y")])
    annotation = given.graph.quantization_annotation.add(tensor_name="r")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="two")
    assert good(given).graph.quantization_annotation == given.graph.quantization_annotation


# ---- names


def test_surviving_names() -> None:
    given = model(
        [
            n("Relu", "x", "r", "first"),
            *norm("r", "s", "layer/"),
            n("Elu", "s", "e", "last"),
            n("Abs", "e", "y"),
        ]
    )
    result = good(given)
    outputs = [o for node in result.graph.node for o in node.output]
    assert outputs == ["r", "s", "e", "y"]
    names = [node.name for node in result.graph.node]
    assert [names[0], *names[2:]] == ["first", "last", "node/y"]  # the second is the fused one


@pytest.mark.parametrize("name", ["", "same", "Relu_r", "SimplifiedLayerNormalization_s", "axes", "value"])
def test_nodes_of_one_name(name: str) -> None:
    clean = model([n("Relu", "x", "r"), *norm("r", "s"), n("Elu", "s", "y")])
    given = onnx.ModelProto()
    given.CopyFrom(clean)
    for node in given.graph.node:
        node.name = name
    result = optimized(given)
    assert fused(result) == 1
    same_numbers(clean, result, x=x())  # onnxruntime refuses two nodes of one name


def test_names_of_values_equal_to_ours() -> None:
    constants = [
        nh.from_array(np.linspace(0.5, 1.5, SIZE, dtype=np.float32), "axes"),
        nh.from_array(np.array(2, np.float32), "dims"),
        nh.from_array(np.array(1e-6, np.float32), "scalar"),
        nh.from_array(np.array([-1]), "constant"),
    ]
    nodes = [
        n("Pow", "dims_1 dims", "value"),
        n("ReduceMean", "value constant", "value_1"),
        n("Add", "value_1 scalar", "axes_1"),
        n("Sqrt", "axes_1", "scalar_1"),
        n("Div", "dims_1 scalar_1", "constant_1"),
        n("Mul", "constant_1 axes", "axes_2"),
        n("Shape", "axes_2", "value_2"),
        n("Slice", "axes_2 zero one", "Identity_y"),
        n("Unsqueeze", "Identity_y one", "y"),
    ]
    constants += [nh.from_array(np.array([0]), "zero"), nh.from_array(np.array([1]), "one")]
    outs = [info("y", "m", 1, SIZE), info("value_2", 2, dtype=T.INT64)]
    good(model(nodes, [info("dims_1")], outs, constants), dims_1=x())


# ---- outputs


def test_two_equal_outputs() -> None:
    nodes = [
        *norm("x", "y"),
        *norm("x", "z", "again_"),
        n("Identity", "y", "same"),
        n("Relu", "y", "r"),
        n("Relu", "z", "q"),
    ]
    result = optimized(model(nodes, None, [info(o) for o in ("z", "y", "same", "q", "r")]))
    assert 1 <= fused(result) <= 3
    same_numbers(model(nodes, None, [info(o) for o in ("z", "y", "same", "q", "r")]), result, x=x())


def test_an_input_is_an_output() -> None:
    result = good(
        model([*norm("x", "y"), n("Identity", "x", "copy")], None, [info("y"), info("copy"), info("copy2")][:2])
    )
    assert ops(result.graph).count("Identity") == 1


def test_an_initializer_is_an_output() -> None:
    weights = [*CONSTANTS, nh.from_array(np.linspace(0.5, 1.5, SIZE, dtype=np.float32), "twin")]
    outs = [info("y"), info("w", SIZE), info("twin", SIZE), info("last", 1, dtype=T.INT64)]
    result = good(model(norm("x", "y"), None, outs, weights))
    assert {"w", "twin", "last"} <= {t.name for t in result.graph.initializer}


def test_a_constant_node_is_an_output() -> None:
    constant = n("Constant", "", "c", value=nh.from_array(np.arange(3, dtype=np.float32), "inside"))
    good(model([constant, *norm("x", "y")], None, [info("y"), info("c", 3)]))


def test_an_intermediate_value_is_an_output() -> None:
    result = good(model(norm("x", "y"), None, [info("y"), info("mean", "batch", 1), info("root", "batch", 1)]))
    assert "ReduceMean" in ops(result.graph)


def test_an_initializer_that_can_be_overridden_is_no_constant() -> None:
    given = model(
        norm("x", "y"),
        [info("x"), info("w", SIZE), info("eps", 1)],
        None,
        [*CONSTANTS[:2], nh.from_array(np.array([1e-6], np.float32), "eps"), CONSTANTS[3]],
    )
    result = optimized(given)
    assert {t.name for t in result.graph.initializer} >= {"w", "eps"}
    for feeds in ({}, {"eps": np.array([0.25], np.float32)}, {"w": np.ones(SIZE, np.float32)}):
        same_numbers(given, result, x=x(), **feeds)


def test_unused_inputs_and_dead_nodes() -> None:
    nodes = [n("Abs", "x", "dead"), n("Exp", "dead", "deader"), *norm("x", "y")]
    result = good(model(nodes, [info("x"), info("never", 5)]), x=x(), never=np.zeros(5, np.float32))
    assert len(result.graph.node) == 1


# ---- operands


def test_operands_left_out_in_the_middle() -> None:
    nodes = [
        *norm("x", "s"),
        n("Clip", "s - high", "c"),
        n("Unsqueeze", "c last", "u"),
        n("Resize", "u - scales", "y"),
    ]
    constants = [
        *CONSTANTS,
        nh.from_array(np.array(0.5, np.float32), "high"),
        nh.from_array(np.array([1, 1, 2], np.float32), "scales"),
    ]
    result = good(model(nodes, None, [info("y", "batch", SIZE, 2)], constants))
    [clip] = [node for node in result.graph.node if node.op_type == "Clip"]
    assert list(clip.input) == [clip.input[0], "", "high"]


def test_equal_operators_with_more_and_fewer_operands() -> None:
    nodes = [*norm("x", "s"), n("Clip", "s", "c"), n("Clip", "s low", "d"), n("Clip", "s - high", "e")]
    constants = [
        *CONSTANTS,
        nh.from_array(np.array(0.5, np.float32), "high"),
        nh.from_array(np.array(-0.5, np.float32), "low"),
    ]
    result = good(model(nodes, None, [info("c"), info("d"), info("e")], constants))
    assert [node.name for node in result.graph.node][1:] == ["node/c", "node/d", "node/e"]


def test_outputs_left_out() -> None:
    gru = h.make_node("GRU", ["u", "gru_w", "gru_r"], ["", "y"], name="gru", hidden_size=2)
    constants = [
        *CONSTANTS,
        nh.from_array(np.linspace(-1, 1, 6 * SIZE, dtype=np.float32).reshape(1, 6, SIZE), "gru_w"),
        nh.from_array(np.linspace(-1, 1, 12, dtype=np.float32).reshape(1, 6, 2), "gru_r"),
        nh.from_array(np.array([0]), "zero"),
    ]
    nodes = [*norm("x", "s"), n("Unsqueeze", "s zero", "u"), gru]
    result = good(model(nodes, None, [info("y", 1, "batch", 2)], constants))
    [gru] = [node for node in result.graph.node if node.op_type == "GRU"]
    assert list(gru.output) == ["", "y"]


# ---- values that are no dense numbers


def test_strings() -> None:
    words = h.make_tensor("words", T.STRING, [2], ["größer".encode(), b"\x00z"])
    nodes = [
        *norm("x", "y"),
        n("Concat", "t words constant", "all", axis=0),
        n("Equal", "t word", "found"),
        n("Constant", "", "word", value_string="größer"),
        n("Constant", "", "constant", value_strings=["a", "b"]),
    ]
    nodes = [*nodes[-2:], *nodes[:-2]]
    given = model(
        nodes,
        [info("x"), info("t", "k", dtype=T.STRING)],
        [info("y"), info("all", "m", dtype=T.STRING), info("found", "k", dtype=T.BOOL)],
        [*CONSTANTS, words],
    )
    given.opset_import[0].version = 19  # Equal takes strings
    result = optimized(given)
    assert fused(result) == 1
    [kept] = [t for t in result.graph.initializer if t.name == "words"]
    assert list(kept.string_data) == list(words.string_data)


def test_sequences_and_optionals() -> None:
    tensor = h.make_tensor_type_proto(T.FLOAT, ["batch", SIZE])
    sequence = h.make_value_info("parts", h.make_sequence_type_proto(tensor))
    maybe = h.make_value_info("maybe", h.make_optional_type_proto(tensor))
    nodes = [
        *norm("x", "s"),
        n("SequenceConstruct", "s x", "two_parts"),
        n("SequenceInsert", "parts s", "more"),
        n("SequenceAt", "more zero", "first"),
        n("Optional", "s", "wrapped"),
        n("OptionalGetElement", "maybe", "inside"),
        n("Add", "first inside", "y"),
    ]
    outs = [
        info("y"),
        h.make_value_info("two_parts", h.make_sequence_type_proto(tensor)),
        h.make_value_info("wrapped", h.make_optional_type_proto(tensor)),
    ]
    constants = [*CONSTANTS, nh.from_array(np.array(0), "zero")]
    given = model(nodes, [info("x"), sequence, maybe], outs, constants)
    result = optimized(given)
    assert fused(result) == 1
    assert [node.op_type for node in result.graph.node if "Opt" in node.op_type or "Seq" in node.op_type]


@pytest.mark.parametrize(
    "dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4, np.float16]
)
def test_narrow_initializers(dtype: Any) -> None:
    narrow = nh.from_array(np.arange(-3, 4).astype(dtype), "narrow")
    nodes = [*norm("x", "y"), n("Cast", "narrow", "wide", to=T.FLOAT), n("Identity", "narrow", "as_it_is")]
    given = model(
        nodes,
        None,
        [info("y"), info("wide", 7), info("as_it_is", 7, dtype=narrow.data_type)],
        [*CONSTANTS, narrow],
    )
    given.opset_import[0].version = 21
    given.ir_version = 10
    result = optimized(given)
    assert fused(result) == 1
    [kept] = [t for t in result.graph.initializer if t.name == "narrow"]
    assert nh.to_array(kept).tobytes() == nh.to_array(narrow).tobytes()


# ---- kinds of input


def test_an_ir_model_is_not_changed() -> None:
    given = model([n("Constant", "", "k", value_float=2.0), *norm("x", "s"), n("Mul", "s k", "y")])
    source = ir.from_proto(given)
    before = ir.to_proto(source).SerializeToString()
    uses = {v.name: len(v.uses()) for v in source.graph.inputs}
    result = saturate_and_extract(source)
    assert isinstance(result.model, ir.Model)
    assert result.model is not source
    ir.to_proto(result.model)
    assert ir.to_proto(source).SerializeToString() == before
    assert {v.name: len(v.uses()) for v in source.graph.inputs} == uses
    assert data(ir.to_proto(result.model)) == data(optimized(given))


def test_the_result_has_no_uses_by_nodes_that_are_gone() -> None:
    result = saturate_and_extract(ir.from_proto(model(norm("x", "y")))).model
    assert isinstance(result, ir.Model)
    nodes = set(result.graph)
    for value in (*result.graph.inputs, *result.graph.initializers.values()):
        assert {use.node for use in value.uses()} <= nodes


def test_an_unsorted_ir_model_is_refused_in_one_line() -> None:
    source = ir.from_proto(model([n("Relu", "x", "r"), n("Abs", "r", "y")]))
    last = source.graph[1]
    source.graph.remove(last)
    source.graph.insert_before(source.graph[0], last)
    with pytest.raises(EGraphError) as caught:
        saturate_and_extract(source)
    assert "\n" not in str(caught.value)


def test_an_unsorted_file_is_sorted() -> None:
    good(model([*reversed(norm("r", "y")), n("Relu", "x", "r")]))


def test_opsets_too_old_come_back_as_they_are() -> None:
    given = model([n("Relu", "x", "y")], constants=[])
    given.opset_import[0].version = 6
    result = saturate_and_extract(given)
    assert isinstance(result.model, onnx.ModelProto)
    assert result.model.graph == given.graph
    assert "opset 6" in result.report.unchanged


# ---- the same bytes


def test_an_exported_model_twice_and_again(tmp_path: Path) -> None:
    source = ROOT / "examples" / "qwen3_2layers.onnx"
    for name in ("one", "two"):
        saturate_and_extract(source).save(tmp_path / name)
    saturate_and_extract(tmp_path / "one").save(tmp_path / "again")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert (tmp_path / "one").read_bytes() == (tmp_path / "again").read_bytes()


def test_writing_back_what_was_read_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph with nothing to gain, written all the same: same nodes, names, constants."""
    monkeypatch.setattr(Choice, "better", True)
    nodes = [
        n("Gemm", "x matrix bias", "g", "gemm", alpha=0.5),
        n("Reshape", "g shape", "r", "reshape"),
        n("Split", "r sizes", "p q", "split", axis=-1),
        n("Softmax", "p", "y", "softmax"),
        n("Elu", "q", "z", "elu"),
    ]
    constants = [
        nh.from_array(np.ones((SIZE, SIZE), np.float32), "matrix"),
        nh.from_array(np.ones(SIZE, np.float32), "bias"),
        nh.from_array(np.array([0, 2, 4]), "shape"),
        nh.from_array(np.array([1, 3]), "sizes"),
    ]
    given = model(nodes, None, [info("y", "batch", 2, 1), info("z", "batch", 2, 3)], constants)
    result = optimized(given)
    assert {node.name for node in result.graph.node} == {node.name for node in given.graph.node}
    assert {t.name for t in result.graph.initializer} == {t.name for t in given.graph.initializer}
    assert sorted(o for node in result.graph.node for o in node.output) == sorted("grpqyz")


def test_a_copy_saved_is_what_was_loaded(tmp_path: Path) -> None:
    """Reading and writing alone, without a rule: the model with its Constant nodes as initializers."""
    given = model([n("Constant", "", "k", value=nh.from_array(np.float32(2), "")), n("Mul", "x k", "y")], constants=[])
    loaded = load(given).model
    lift(loaded)
    save(loaded, tmp_path / "out.onnx")
    stored = onnx.load(tmp_path / "out.onnx")
    assert ops(stored.graph) == ["Mul"]
    assert [t.name for t in stored.graph.initializer] == ["k"]
    assert given.graph.node[0].attribute[0].t.name == ""
