"""Weights outside the model file: they stay or are copied as files, and never pass through memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper as nh
from roundtrip_models import CONSTANTS, SIZE, fused, info, model, n, norm, run, x
from side_files import listing, many_weights, with_side_file

from onnx_egraph import saturate_and_extract
from onnx_egraph.egraph.errors import OutputError


@pytest.mark.parametrize("place", ["", "elsewhere"])
def test_side_files_stay_or_are_copied(tmp_path: Path, place: str) -> None:
    source = with_side_file(tmp_path)
    weights = (tmp_path / "weights.bin").read_bytes()
    folder = tmp_path / place
    folder.mkdir(exist_ok=True)
    result = saturate_and_extract(source)
    assert isinstance(result.model, ir.Model)
    result.save(folder / "out.onnx")
    assert result.model.graph.initializers["big"].const_value is not None
    assert Path(result.model.graph.initializers["big"].const_value.path) == tmp_path / "weights.bin"  # type: ignore[union-attr]
    assert listing(folder) == (["out.onnx", "out.onnx.data"] if place else ["in.onnx", "out.onnx", "weights.bin"])
    assert (folder / ("out.onnx.data" if place else "weights.bin")).read_bytes() == weights
    stored = onnx.load(folder / "out.onnx", load_external_data=False)
    assert fused(stored) == 1
    same = [run(p, x=x()) for p in (source, folder / "out.onnx")]
    rounding = 16 * SIZE * float(np.finfo(np.float32).eps)
    np.testing.assert_allclose(same[1][0], same[0][0], rtol=rounding, atol=rounding)


def test_over_the_input_and_twice(tmp_path: Path) -> None:
    source = with_side_file(tmp_path)
    result = saturate_and_extract(source)
    result.save(source)
    first = source.read_bytes()
    saturate_and_extract(source).save(source)
    assert source.read_bytes() == first
    assert listing(tmp_path) == ["in.onnx", "weights.bin"]
    assert fused(onnx.load(source, load_external_data=False)) == 1


def test_a_side_file_that_is_in_use_is_not_overwritten(tmp_path: Path) -> None:
    """The input keeps its weights under the name the output would choose."""
    (tmp_path / "a").mkdir()
    source = with_side_file(tmp_path / "a")
    saturate_and_extract(source).save(tmp_path / "out.onnx")
    before = (tmp_path / "out.onnx.data").read_bytes()
    saturate_and_extract(tmp_path / "out.onnx").save(tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx.data").read_bytes() == before
    assert listing(tmp_path) == ["a", "out.onnx", "out.onnx.data"]


def test_weights_in_side_files_are_never_read(tmp_path: Path) -> None:
    """400 MB, as a hole in a file: neither optimizing nor saving takes a quarter of that in memory."""
    source = with_side_file(tmp_path, size=400_000_000 // (4 * SIZE))
    (tmp_path / "b").mkdir()
    saturate_and_extract(with_side_file(tmp_path / "b"))  # what the first call takes, whatever the weights
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = saturate_and_extract(source)
    (tmp_path / "far").mkdir()
    result.save(tmp_path / "far" / "out.onnx")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB
    assert (tmp_path / "far" / "out.onnx.data").stat().st_size == (tmp_path / "weights.bin").stat().st_size
    assert result.report.counts()


def test_a_weight_too_large_for_a_table_is_not_looked_at(tmp_path: Path) -> None:
    """400 MB of zeros in rows of 64, which would pass for rows that repeat themselves."""
    rows = 400_000_000 // 256
    source = many_weights(tmp_path, 1, apart=False)
    given = onnx.load(source, load_external_data=False)
    [weight] = given.graph.initializer
    weight.dims[:] = [rows, 64]
    weight.external_data[2].value = str(rows * 256)
    given.graph.input[0].type.tensor_type.shape.dim[1].dim_value = rows
    given.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 64
    os.truncate(tmp_path / "weights.0", 0)
    os.truncate(tmp_path / "weights.0", rows * 256)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    source.write_bytes(given.SerializeToString())
    saturate_and_extract(source)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_the_external_file_went_away(tmp_path: Path) -> None:
    source = with_side_file(tmp_path)
    result = saturate_and_extract(source)
    (tmp_path / "weights.bin").unlink()
    (tmp_path / "far").mkdir()
    with pytest.raises(OutputError, match=r"weights\.bin"):
        result.save(tmp_path / "far" / "out.onnx")
    assert listing(tmp_path / "far") == []


def test_large_weights_in_memory_go_to_a_side_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnx_egraph.lowering.files.save._PROTOBUF_LIMIT", 1000)
    many = nh.from_array(np.arange(SIZE * 100, dtype=np.float32).reshape(SIZE, 100), "many")
    given = model([*norm("x", "s"), n("MatMul", "s many", "y")], None, [info("y", "batch", 100)], [*CONSTANTS, many])
    saturate_and_extract(given).save(tmp_path / "out.onnx")
    assert listing(tmp_path) == ["out.onnx", "out.onnx.data"]
    np.testing.assert_allclose(run(tmp_path / "out.onnx", x=x())[0], run(given, x=x())[0], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("at", ["copyfile", "replace"])
def test_a_process_killed_while_it_writes_leaves_the_old_files(tmp_path: Path, at: str) -> None:
    (tmp_path / "far").mkdir()
    source, target = with_side_file(tmp_path), tmp_path / "far" / "out.onnx"
    target.write_bytes(b"old")
    target.with_name("out.onnx.data").write_bytes(b"old data")
    code = f"""
import os, shutil, time
from onnx_egraph import saturate_and_extract
result = saturate_and_extract({str(source)!r})
def stop(*_):
    print("now", flush=True)
    time.sleep(600)
{"shutil" if at == "copyfile" else "os"}.{at} = stop
result.save({str(target)!r})
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"now\n"
        process.kill()
    visible = {p.name: p.read_bytes() for p in (tmp_path / "far").iterdir() if not p.name.startswith(".")}
    assert visible == {"out.onnx": b"old", "out.onnx.data": b"old data"}
