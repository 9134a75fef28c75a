"""Saving replaces what it was asked to replace, all of it or nothing: no weights, no link, no device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from roundtrip_models import SIZE, info, n, run, x
from side_files import listing, many_weights, with_side_file
from typer.testing import CliRunner

from onnx_egraph import cli, saturate_and_extract
from onnx_egraph.egraph.errors import OutputError


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def optimize(*args: str | Path) -> str:
    """The one line of a run that is refused."""
    result = CliRunner().invoke(cli.app, ["optimize", "-q", "--no-verify", *map(str, args)])
    assert result.exit_code == 1, result.output
    assert len(result.stderr.splitlines()) == 1, result.stderr
    return result.stderr


@pytest.mark.parametrize("how", ["name", "hard link", "link"])
@pytest.mark.parametrize("dead", [False, True])
def test_weights_are_never_overwritten(tmp_path: Path, how: str, dead: bool) -> None:
    """By the model or its report; not even those that the result has no use for."""
    source = with_side_file(tmp_path)
    if dead:
        model = onnx.load(source, load_external_data=False)
        model.graph.node.append(n("Identity", "x", "z"))
        model.graph.output[0].CopyFrom(info("z", "batch", SIZE))
        source.write_bytes(model.SerializeToString())
    alias = tmp_path / ("weights.bin" if how == "name" else "alias")
    if how == "link":
        alias.symlink_to("weights.bin")
    elif how == "hard link":
        os.link(tmp_path / "weights.bin", alias)
    before = contents(tmp_path)
    result = saturate_and_extract(source)
    for attempt in (lambda: result.save(alias), lambda: result.save(tmp_path / "out.onnx", report=alias)):
        with pytest.raises(OutputError, match="holds weights"):
            attempt()
    assert "holds weights" in optimize(source, "-o", alias)
    assert "holds weights" in optimize(source, "-o", tmp_path / "out.onnx", "--report", alias)
    assert contents(tmp_path) == before


def test_the_report_takes_no_name_the_weights_get(tmp_path: Path) -> None:
    """A report named like the side file: the side file gets another name."""
    source, far = with_side_file(tmp_path), tmp_path / "far"
    far.mkdir()
    saturate_and_extract(source).save(far / "o.onnx", report=far / "o.onnx.data")
    assert listing(far) == ["o.onnx", "o.onnx.1.data", "o.onnx.data"]
    assert json.loads((far / "o.onnx.data").read_text(encoding="utf-8"))["fused"]
    assert np.isfinite(run(far / "o.onnx", x=x())[0]).all()
    with pytest.raises(OutputError, match="one file"):
        saturate_and_extract(source).save(far / "o.onnx", report=far / "o.onnx")


def test_a_folder_with_the_name_of_the_side_file_stays(tmp_path: Path) -> None:
    source, far = with_side_file(tmp_path), tmp_path / "far"
    (far / "o.onnx.data").mkdir(parents=True)
    (far / "o.onnx.data" / "mine").write_bytes(b"mine")
    saturate_and_extract(source).save(far / "o.onnx")
    assert (far / "o.onnx.data" / "mine").read_bytes() == b"mine"


def fifo(place: Path) -> None:
    os.mkfifo(place)


def loop(place: Path) -> None:
    place.symlink_to(place.name)


@pytest.mark.parametrize(
    ("make", "says"), [(fifo, "no regular file"), (Path.mkdir, "a folder"), (loop, "link to itself")]
)
@pytest.mark.parametrize("report", [False, True])
def test_what_is_no_file_is_not_replaced(
    tmp_path: Path, make: Callable[[Path], None], says: str, report: bool
) -> None:
    source, place = with_side_file(tmp_path), tmp_path / "place"
    make(place)
    kind = place.lstat().st_mode
    result = saturate_and_extract(source)
    with pytest.raises(OutputError, match=says):
        result.save(tmp_path / "o" if report else place, report=place if report else None)
    assert place.lstat().st_mode == kind
    assert listing(tmp_path) == ["in.onnx", "place", "weights.bin"]


@pytest.mark.parametrize("name", ["n" * 300, "a\0b", "n" * 251])
def test_names_no_file_can_have(tmp_path: Path, name: str) -> None:
    """Of 251 characters, the model's name is fine and its side file's is not."""
    source, far = with_side_file(tmp_path), tmp_path / "far"
    far.mkdir()
    with pytest.raises(OutputError, match="cannot write"):
        saturate_and_extract(source).save(far / name)
    assert listing(far) == []


def test_a_report_with_a_long_name(tmp_path: Path) -> None:
    source = with_side_file(tmp_path)
    saturate_and_extract(source).save(tmp_path / "o.onnx", report=tmp_path / ("r" * 255))
    assert (tmp_path / ("r" * 255)).read_text(encoding="utf-8")
    (tmp_path / "o.onnx").unlink()
    assert "File name too long" in optimize(source, "-o", tmp_path / "o.onnx", "--report", tmp_path / ("r" * 256))
    assert not (tmp_path / "o.onnx").exists()


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays_and_leads_to_the_model(tmp_path: Path, exists: bool) -> None:
    source, far = with_side_file(tmp_path), tmp_path / "far"
    far.mkdir()
    if exists:
        (far / "real").write_bytes(b"old")
    link = tmp_path / "link"
    link.symlink_to("far/real")
    saturate_and_extract(source).save(link)
    assert link.is_symlink()
    assert listing(far) == ["real", "real.data"]
    assert np.isfinite(run(far / "real", x=x())[0]).all()


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("old", [True, False])
def test_stopped_at_any_rename(
    tmp_path: Path, error: type[BaseException], at: int, old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renames: the side file in, the model in, the report in."""
    source, far = with_side_file(tmp_path), tmp_path / "far"
    far.mkdir()
    if old:
        for name in ("o.onnx", "o.onnx.data", "r.json"):
            (far / name).write_bytes(name.encode())
    before, replace, calls = contents(far), os.replace, list[object]()

    def stopping(a: Path, b: Path) -> None:
        calls.append(b)
        if len(calls) == at:
            raise error(28, "stopped")
        replace(a, b)

    result = saturate_and_extract(source)
    monkeypatch.setattr(os, "replace", stopping)
    with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else OutputError):
        result.save(far / "o.onnx", report=far / "r.json")
    assert contents(far) == before
    assert listing(far) == sorted(before)
    result.save(far / "o.onnx", report=far / "r.json")
    assert np.isfinite(run(far / "o.onnx", x=x())[0]).all()


def test_an_interrupt_after_the_last_rename_keeps_the_new_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, far = with_side_file(tmp_path), tmp_path / "far"
    far.mkdir()
    result, replace = saturate_and_extract(source), os.replace

    def late(a: Path, b: Path) -> None:
        replace(a, b)
        if Path(b).name == "o.onnx":
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", late)
    with pytest.raises(KeyboardInterrupt):
        result.save(far / "o.onnx")
    assert listing(far) == ["o.onnx", "o.onnx.data"]
    assert np.isfinite(run(far / "o.onnx", x=x())[0]).all()


def test_a_relative_path_and_another_folder_since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_side_file(tmp_path)
    (tmp_path / "far").mkdir()
    monkeypatch.chdir(tmp_path)
    sources = ["in.onnx", onnx.load("in.onnx", load_external_data=False)]
    results = [saturate_and_extract(source) for source in sources]
    monkeypatch.chdir(tmp_path / "far")
    for k, result in enumerate(results):
        result.save(f"{k}.onnx")
        assert np.isfinite(run(tmp_path / "far" / f"{k}.onnx", x=x())[0]).all()


@pytest.mark.parametrize("apart", [False, True])
def test_weights_keep_no_descriptors(tmp_path: Path, apart: bool) -> None:
    """More weights than files may be open, in one side file or as many."""
    source = many_weights(tmp_path, 150, apart)
    code = f"""
import resource, onnx_ir as ir
from onnx_egraph import saturate_and_extract
resource.setrlimit(resource.RLIMIT_NOFILE, (120, 120))
report = saturate_and_extract({str(source)!r}, verify=True).report
assert report.verified, report.verification
report = saturate_and_extract(ir.load({str(source)!r}), verify=True).report
assert report.verified, report.verification
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
