"""A model that is left unchanged is the model as it was given: the same bytes, or an equal object."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from onnx_egraph import saturate_and_extract


def info(name: str) -> onnx.ValueInfoProto:
    return h.make_tensor_value_info(name, T.FLOAT, ["batch", 4])


def model(opset: int = 18, outside: str = "") -> onnx.ModelProto:
    """Calls of functions, a Constant node, names and metadata that reading and writing would tidy up."""
    opsets = [h.make_opsetid("", opset), h.make_opsetid("own", 1)]
    inner = h.make_function("own", "Inner", ["a"], ["b"], [h.make_node("Exp", ["a"], ["b"])], opsets)
    outer = h.make_function(
        "own", "Outer", ["a"], ["b", "c"],
        [h.make_node("Inner", ["a"], ["b"], domain="own"), h.make_node("Neg", ["b"], ["c"])], opsets,
    )  # fmt: skip
    unused = h.make_function("own", "Unused", ["a"], ["b"], [h.make_node("Abs", ["a"], ["b"])], opsets)
    weight = nh.from_array(np.linspace(1, 2, 16, dtype=np.float32).reshape(4, 4), "w")
    if outside:
        weight.ClearField("raw_data")
        weight.data_location = T.EXTERNAL
        weight.external_data.add(key="location", value=outside)
    nodes = [
        h.make_node("Outer", ["x"], ["s", "u"], domain="own"),
        h.make_node("Constant", [], ["k"], value=nh.from_array(np.array([3, 4, 5, 6], np.float32), "odd name")),
        h.make_node("Pow", ["s", "k"], ["t"], doc_string="kept"),
        h.make_node("MatMul", ["t", "w"], ["m"]),
        h.make_node("Max", ["m", "u"], ["y"]),
    ]
    graph = h.make_graph(nodes, "", [info("x")], [info("y")], [weight], value_info=[info("t")])
    made = h.make_model(graph, opset_imports=opsets, functions=[outer, inner, unused], ir_version=8)
    made.metadata_props.add(key="z", value="1")
    made.metadata_props.add(key="a", value="2")
    return made


def odd_bytes(given: onnx.ModelProto) -> bytes:
    """The model as another writer may have it: fields out of order, one given twice, one that onnx does not know."""
    parts = [onnx.ModelProto(producer_name="first"), onnx.ModelProto(graph=given.graph)]
    rest = onnx.ModelProto()
    rest.CopyFrom(given)
    rest.ClearField("graph")
    return b"".join(p.SerializeToString() for p in (*parts, rest)) + bytes([0xFA, 0x3E, 2, 7, 7])


def test_a_file_is_written_byte_for_byte(tmp_path: Path) -> None:
    data = odd_bytes(model())
    (tmp_path / "in.onnx").write_bytes(data)
    result = saturate_and_extract(tmp_path / "in.onnx", verify=True)
    assert result.report.unchanged
    assert result.report.verified
    result.near_misses()
    result.save(tmp_path / "out.onnx", report=tmp_path / "report.json")
    assert (tmp_path / "out.onnx").read_bytes() == data
    assert isinstance(result.model, ir.Model)
    assert len(result.model.functions) == 3
    assert [node.op_type for node in result.model.graph] == ["Outer", "Constant", "Pow", "MatMul", "Max"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.onnx", "out.onnx", "report.json"]


@pytest.mark.parametrize("then", ["written over", "gone"])
def test_what_was_read_is_written(tmp_path: Path, then: str) -> None:
    """The file is read once: what becomes of it afterwards does not matter."""
    data = odd_bytes(model())
    (tmp_path / "in.onnx").write_bytes(data)
    result = saturate_and_extract(tmp_path / "in.onnx")
    (tmp_path / "in.onnx").write_bytes(b"") if then == "written over" else (tmp_path / "in.onnx").unlink()
    result.save(tmp_path / "in.onnx")
    assert (tmp_path / "in.onnx").read_bytes() == data


@pytest.mark.parametrize("opset", [9, 18])
def test_a_proto_and_a_model_are_equal(opset: int) -> None:
    given = model(opset)
    before = given.SerializeToString()
    result = saturate_and_extract(given)
    assert result.report.unchanged
    assert isinstance(result.model, onnx.ModelProto)
    assert result.model is not given
    assert result.model.SerializeToString() == given.SerializeToString() == before
    loaded = ir.from_proto(given)
    again = saturate_and_extract(loaded)
    assert isinstance(again.model, ir.Model)
    assert again.model is not loaded
    want = ir.to_proto(loaded).SerializeToString(deterministic=True)
    assert ir.to_proto(again.model).SerializeToString(deterministic=True) == want


@pytest.mark.parametrize(
    ("place", "names"),
    [
        ("", ["in.onnx", "out.onnx", "weights.bin"]),
        ("elsewhere", ["out.onnx", "weights.bin"]),
    ],
)
def test_side_files_keep_their_names(tmp_path: Path, place: str, names: list[str]) -> None:
    source, weights = with_side_file(tmp_path)
    folder = tmp_path / place
    folder.mkdir(exist_ok=True)
    result = saturate_and_extract(source)
    assert result.report.unchanged
    for _ in range(2):
        result.save(folder / "out.onnx")
        assert (folder / "out.onnx").read_bytes() == source.read_bytes()
        assert (folder / "weights.bin").read_bytes() == weights
        assert sorted(p.name for p in folder.iterdir() if p.is_file()) == names
    assert agree(source, folder / "out.onnx")


@pytest.mark.parametrize("taken", ["by a file", "by a link", "by the model", "by the report"])
def test_a_name_that_is_taken_is_not_used(tmp_path: Path, taken: str) -> None:
    source, weights = with_side_file(tmp_path)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    out, report = folder / "out.onnx", None
    match taken:
        case "by a file":
            (folder / "weights.bin").write_bytes(b"of another model")
        case "by a link":
            os.symlink(tmp_path / "weights.bin", folder / "weights.bin")
        case "by the model":
            out = folder / "weights.bin"
        case _:
            report = folder / "weights.bin"
    result = saturate_and_extract(source)
    result.save(out, report=report)
    assert agree(source, out)
    assert (folder / f"{out.name}.data").read_bytes() == weights
    assert (tmp_path / "weights.bin").read_bytes() == weights
    if taken == "by a file":
        assert (folder / "weights.bin").read_bytes() == b"of another model"


def test_a_proto_with_weights_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, weights = with_side_file(tmp_path)
    monkeypatch.chdir(tmp_path)
    given = onnx.load(source, load_external_data=False)
    result = saturate_and_extract(given)
    assert isinstance(result.model, onnx.ModelProto)
    assert result.model.SerializeToString() == given.SerializeToString()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    result.save("out.onnx")
    assert agree(source, tmp_path / "elsewhere" / "out.onnx")
    assert weights in {p.read_bytes() for p in (tmp_path / "elsewhere").iterdir()}


def with_side_file(folder: Path) -> tuple[Path, bytes]:
    weights = np.linspace(1, 2, 16, dtype=np.float32).tobytes()
    (folder / "weights.bin").write_bytes(weights)
    (folder / "in.onnx").write_bytes(odd_bytes(model(outside="weights.bin")))
    return folder / "in.onnx", weights


def agree(*paths: Path) -> bool:
    import onnxruntime as ort

    feed: dict[str, Any] = {"x": np.full((2, 4), 0.25, np.float32)}
    found = [ort.InferenceSession(p, providers=["CPUExecutionProvider"]).run(None, feed)[0] for p in paths]
    return all(np.array_equal(found[0], other) for other in found)
