"""Input that is no model, or a broken one, and output that cannot be written.

Each ends with one line on stderr that names the file or the node, an exit status above zero, and every file
in the folder as it was.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh
from typer.testing import CliRunner

from onnx_egraph import cli, saturate_and_extract
from onnx_egraph.egraph.errors import ModelError


def info(name: str) -> onnx.ValueInfoProto:
    return h.make_tensor_value_info(name, T.FLOAT, ["n", 4])


def good() -> onnx.ModelProto:
    """y = relu(x @ w) + b"""
    nodes = [
        h.make_node("MatMul", ["x", "w"], ["product"], name="first"),
        h.make_node("Relu", ["product"], ["positive"], name="second"),
        h.make_node("Add", ["positive", "b"], ["y"], name="third"),
    ]
    weights = [
        nh.from_array(np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4), "w"),
        nh.from_array(np.ones(4, np.float32), "b"),
    ]
    graph = h.make_graph(nodes, "g", [info("x")], [info("y")], weights)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=9)


def with_side_file(location: str = "weights.bin", **more: int) -> onnx.ModelProto:
    """The same model with w in a side file of 64 bytes."""
    model = good()
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = T.EXTERNAL
    for key, value in {"location": location, "offset": 0, "length": 64, **more}.items():
        entry = weight.external_data.add()
        entry.key, entry.value = key, str(value)
    return model


def contents(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def complaint(folder: Path, output: Path | None = None, status: int = 1) -> str:
    """The line of a run that fails and leaves no trace."""
    before = contents(folder)
    arguments = ["optimize", "-q", str(folder / "in.onnx"), "-o", str(output or folder / "out.onnx")]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    assert contents(folder) == before
    lines = result.stderr.splitlines()
    assert status == 2 or len(lines) == 1, result.stderr
    return lines[-1]


def write(folder: Path, model: onnx.ModelProto) -> None:
    (folder / "in.onnx").write_bytes(model.SerializeToString())


def test_the_good_model_is_good(tmp_path: Path) -> None:
    write(tmp_path, with_side_file())
    (tmp_path / "weights.bin").write_bytes(bytes(64))
    output = tmp_path / "out.onnx"
    result = CliRunner().invoke(cli.app, ["optimize", "-q", str(tmp_path / "in.onnx"), "-o", str(output)])
    assert result.exit_code == 0, result.output
    assert output.is_file()


# ---- what is no model


def test_cut_short_anywhere(tmp_path: Path) -> None:
    whole = good().SerializeToString()
    for kept in range(1, len(whole), 7):
        (tmp_path / "in.onnx").write_bytes(whole[:kept])
        assert "in.onnx" in complaint(tmp_path), kept


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello, this is not a model\n",
        bytes(4096),
        np.random.default_rng(0).bytes(4096),
        b"PK\x03\x04" + bytes(100),
        onnx.ModelProto().SerializeToString(),
        h.make_model(h.make_graph([], "g", [], []), opset_imports=[]).SerializeToString(),
    ],
    ids=["empty", "text", "zeros", "noise", "zip", "no fields", "no nodes"],
)
def test_not_a_model(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "in.onnx").write_bytes(data)
    assert "in.onnx" in complaint(tmp_path)


def test_noise_in_a_model_never_ends_in_a_traceback(tmp_path: Path) -> None:
    whole = bytearray(good().SerializeToString())
    rng = np.random.default_rng(7)
    for _ in range(60):
        data = bytearray(whole)
        for place in rng.integers(len(data), size=3):
            data[place] = rng.integers(256)
        (tmp_path / "in.onnx").write_bytes(bytes(data))
        result = CliRunner().invoke(
            cli.app,
            ["optimize", "-q", "--no-verify", str(tmp_path / "in.onnx"), "-o", str(tmp_path / "out.onnx")],
        )
        assert result.exit_code in (0, 1), bytes(data)
        assert result.exception is None or isinstance(result.exception, SystemExit), bytes(data)


# ---- broken graphs


def broken(change: Callable[[onnx.ModelProto], None]) -> onnx.ModelProto:
    model = good()
    change(model)
    return model


def cycle(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = "positive"


def dangling(model: onnx.ModelProto) -> None:
    model.graph.node[1].input[0] = "nowhere"


def dangling_in_a_body(model: onnx.ModelProto) -> None:
    bodies = [
        h.make_graph([h.make_node("Abs", [source], ["z"], name="inner")], "body", [], [info("z")])
        for source in ("positive", "nowhere")
    ]
    model.graph.initializer.append(nh.from_array(np.array(True), "c"))
    model.graph.node[2].input[0] = "chosen"
    model.graph.node.insert(
        2, h.make_node("If", ["c"], ["chosen"], name="if", then_branch=bodies[0], else_branch=bodies[1])
    )


def unknown_output(model: onnx.ModelProto) -> None:
    model.graph.output[0].name = "nowhere"


def twice(model: onnx.ModelProto) -> None:
    model.graph.node[1].output[0] = "product"


def sparse(model: onnx.ModelProto) -> None:
    tensor = model.graph.sparse_initializer.add()
    tensor.values.name = "rare"
    tensor.dims.append(4)


def training(model: onnx.ModelProto) -> None:
    model.training_info.add().algorithm.name = "descent"


def unknown_opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 99


def endless_opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 2**40


def endless_opset_of_a_function(model: onnx.ModelProto) -> None:
    node, imports = h.make_node("Neg", ["a"], ["r"]), [h.make_opsetid("", -(2**40))]
    model.functions.append(h.make_function("own", "F", ["a"], ["r"], [node], imports))


def no_opset(model: onnx.ModelProto) -> None:
    del model.opset_import[:]


def no_outputs(model: onnx.ModelProto) -> None:
    del model.graph.output[:]


def recursion(model: onnx.ModelProto) -> None:
    call = h.make_node("Again", ["a"], ["r"], domain="own")
    model.functions.append(h.make_function("own", "Again", ["a"], ["r"], [call], [h.make_opsetid("own", 1)]))
    model.opset_import.append(h.make_opsetid("own", 1))
    model.graph.node[1].op_type, model.graph.node[1].domain = "Again", "own"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (cycle, "cycle"),
        (dangling, "'second' (Relu): input 'nowhere'"),
        (dangling_in_a_body, "'inner' (Abs): input 'nowhere'"),
        (unknown_output, "output 'nowhere'"),
        (twice, "'product' is produced twice"),
        (sparse, "'rare' is sparse"),
        (training, "training"),
        (unknown_opset, "opset 99"),
        (endless_opset, f"unknown opset {2**40}"),
        (endless_opset_of_a_function, f"unknown opset -{2**40}"),
        (no_opset, "imports no opset"),
        (no_outputs, "no outputs"),
        (recursion, "own::Again"),
    ],
)
def test_broken_graph(tmp_path: Path, change: Callable[[onnx.ModelProto], None], says: str) -> None:
    write(tmp_path, broken(change))
    line = complaint(tmp_path)
    assert says in line
    assert "in.onnx" in line


def test_the_node_named_is_on_the_cycle_not_behind_it(tmp_path: Path) -> None:
    model = broken(cycle)
    model.graph.node.insert(0, h.make_node("Neg", ["y"], ["after"], name="behind"))
    model.graph.output.append(info("after"))
    write(tmp_path, model)
    line = complaint(tmp_path)
    assert "'first'" in line or "'second'" in line


# ---- side files


@pytest.mark.parametrize(
    "location", ["../weights.bin", "sub/../../weights.bin", "/etc/hostname", "link.bin", "linked/weights.bin"]
)
def test_side_file_outside(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "weights.bin").write_bytes(bytes(64))
    (folder / "sub").mkdir()
    (folder / "link.bin").symlink_to(tmp_path / "weights.bin")
    (folder / "linked").symlink_to(tmp_path)
    write(folder, with_side_file(location))
    line = complaint(folder)
    assert "'w'" in line
    assert "outside" in line


def test_a_model_that_is_a_link_may_keep_its_weights_where_it_leads(tmp_path: Path) -> None:
    """As caches of downloads do: folder/in.onnx and folder/weights.bin lead to blobs/1 and blobs/2."""
    blobs, folder = tmp_path / "blobs", tmp_path / "folder"
    blobs.mkdir()
    folder.mkdir()
    (blobs / "1").write_bytes(with_side_file().SerializeToString())
    (blobs / "2").write_bytes(bytes(64))
    (folder / "in.onnx").symlink_to(blobs / "1")
    (folder / "weights.bin").symlink_to(blobs / "2")
    result = saturate_and_extract(folder / "in.onnx", verify=True)
    assert result.report.verified, result.report.verification
    assert result.report.unchanged
    result.save(tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").read_bytes() == (blobs / "1").read_bytes()
    assert (tmp_path / "weights.bin").read_bytes() == bytes(64)
    assert not (tmp_path / "weights.bin").is_symlink()


@pytest.mark.parametrize(
    ("size", "more", "says"),
    [
        (None, {}, "missing"),
        (63, {}, "byte 64"),
        (0, {}, "byte 64"),
        (64, {"offset": 4}, "byte 68"),
        (64, {"length": 60}, "60 bytes"),
        (64, {"offset": -8}, "'-8'"),
        (64, {"offset": "x"}, "the offset of its external data is 'x'"),
        (64, {"length": 2**62}, "byte"),
    ],
)
def test_side_file_too_short(tmp_path: Path, size: int | None, more: dict[str, object], says: str) -> None:
    write(tmp_path, with_side_file(**more))
    if size is not None:
        (tmp_path / "weights.bin").write_bytes(bytes(size))
    line = complaint(tmp_path)
    assert "'w'" in line
    assert says in line


def test_a_model_in_memory_has_its_weights_somewhere_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ModelProto does not say where; the folder of the process is what onnxruntime takes."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=r"tensor 'w'.*give the model's path"):
        saturate_and_extract(with_side_file(), verify=True)
    with pytest.raises(ModelError, match=r"tensor 'w'.*give the model's path"):
        saturate_and_extract(ir.from_proto(with_side_file()))
    (tmp_path / "weights.bin").write_bytes(bytes(64))
    assert saturate_and_extract(with_side_file(), verify=True).report.verified


# ---- output


@pytest.mark.parametrize("output", ["missing/out.onnx", "folder", "file/out.onnx", "/proc/out.onnx"])
def test_output_that_cannot_be_written(tmp_path: Path, output: str) -> None:
    write(tmp_path, good())
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")
    assert output in complaint(tmp_path, tmp_path / output)


def test_output_is_the_input(tmp_path: Path) -> None:
    write(tmp_path, good())
    (tmp_path / "link.onnx").symlink_to(tmp_path / "in.onnx")
    for output in ("in.onnx", "./in.onnx", "link.onnx"):
        assert "overwrite" in complaint(tmp_path, tmp_path / output, status=2)


def test_disk_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the last step, when the side file is in place already."""
    source = tmp_path / "source"
    source.mkdir()
    write(source, with_side_file())
    (source / "weights.bin").write_bytes(bytes(64))
    target = tmp_path / "target"
    target.mkdir()
    (target / "out.onnx.data").write_bytes(b"of an earlier run")
    before = contents(target)
    replace = os.replace

    def full(a: Path, b: Path) -> None:
        if Path(b).name == "out.onnx":
            raise OSError(28, "No space left on device")
        replace(a, b)

    monkeypatch.setattr(os, "replace", full)
    line = complaint(source, target / "out.onnx")
    assert "No space left" in line
    assert contents(target) == before


def test_a_process_of_its_own_says_one_line_too(tmp_path: Path) -> None:
    """Nothing a library logs gets onto stderr."""
    write(tmp_path, broken(dangling))
    command = [sys.executable, "-m", "onnx_egraph.cli"]
    code = "import sys; from onnx_egraph.cli import main; sys.argv[0] = 'onnx-egraph'; main()"
    command = [
        sys.executable,
        "-c",
        code,
        "optimize",
        "-q",
        str(tmp_path / "in.onnx"),
        "-o",
        str(tmp_path / "o"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "'second'" in done.stderr


def test_what_is_no_model_is_named() -> None:
    with pytest.raises(ModelError, match="not an object of type int"):
        saturate_and_extract(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["the graph", "its doc", "a producer", "own.domain", "a size", "a key", "a note", "of a node"]
)
def test_text_that_is_no_text(tmp_path: Path, text: str) -> None:
    model = good()
    model.graph.name, model.graph.doc_string, model.producer_name = "the graph", "its doc", "a producer"
    model.opset_import.add(domain="own.domain", version=1)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "a size"
    model.metadata_props.add(key="a key", value="a note")
    model.graph.node[0].doc_string = "of a node"
    data = model.SerializeToString().replace(text.encode(), text.encode()[:-1] + b"\xff")
    (tmp_path / "in.onnx").write_bytes(data)
    assert "is not UTF-8" in complaint(tmp_path)


def test_a_side_file_whose_name_begins_with_dots_lies_inside(tmp_path: Path) -> None:
    write(tmp_path, with_side_file("..data"))
    (tmp_path / "..data").write_bytes(bytes(64))
    assert saturate_and_extract(tmp_path / "in.onnx").report.unchanged
