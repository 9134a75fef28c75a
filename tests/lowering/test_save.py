"""Saving replaces what it was asked to replace, all of it or nothing: no weights, no link, no device."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
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
def test_what_is_no_file_is_not_replaced(tmp_path: Path, make: Callable[[Path], None], says: str, report: bool) -> None:
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


# ---- what a save leaves, keeps and removes


def other(folder: Path) -> Path:
    """A model with weights of the same names, and other numbers."""
    source = with_side_file(folder)
    data = np.fromfile(folder / "weights.bin", np.float32)
    (2 * data).tofile(folder / "weights.bin")
    return source


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Two models in folders of their own, and an empty folder."""
    for name in ("a", "b", "far"):
        (tmp_path / name).mkdir()
    return with_side_file(tmp_path / "a"), other(tmp_path / "b"), tmp_path / "far"


def test_new_weights_get_a_name_of_their_own(two: tuple[Path, Path, Path]) -> None:
    """Each of two models in turn, over the other: its numbers, and nothing of the other. Again: the same bytes."""
    a, b, far = two
    out = far / "o.onnx"
    expected = {source: run(source, x=x())[0] for source in (a, b)}
    names = []
    for source in (a, b, b, a, b):
        saturate_and_extract(source).save(out)
        first = contents(far)
        saturate_and_extract(source).save(out)
        assert contents(far) == first
        np.testing.assert_allclose(run(out, x=x())[0], expected[source], rtol=1e-5, atol=1e-5)
        [name] = {*first} - {"o.onnx"}
        names.append(name)
    assert names == ["o.onnx.data", "o.onnx.1.data", "o.onnx.1.data", "o.onnx.data", "o.onnx.1.data"]


def test_weights_that_another_model_uses_stay(two: tuple[Path, Path, Path]) -> None:
    """Of a result optimized once more to a name beside it, and of a model that is no longer the last of its name."""
    a, b, far = two
    saturate_and_extract(a).save(far / "o.onnx")
    saturate_and_extract(far / "o.onnx").save(far / "p.onnx")
    (far / "o.onnx.1.data").write_bytes(b"somebody's")
    before = run(far / "p.onnx", x=x())[0]
    saturate_and_extract(b).save(far / "o.onnx")
    assert listing(far) == ["o.onnx", "o.onnx.1.data", "o.onnx.2.data", "o.onnx.data", "p.onnx"]
    assert (far / "o.onnx.1.data").read_bytes() == b"somebody's"
    assert np.array_equal(run(far / "p.onnx", x=x())[0], before)


def test_a_model_without_its_weights_gets_no_others(two: tuple[Path, Path, Path]) -> None:
    """The name of weights that are missing is not given to those of another model."""
    a, b, far = two
    saturate_and_extract(a).save(far / "o.onnx")
    (far / "o.onnx.data").unlink()
    saturate_and_extract(b).save(far / "o.onnx")
    assert listing(far) == ["o.onnx", "o.onnx.1.data"]


def test_weights_that_changed_since_are_not_mixed_in(two: tuple[Path, Path, Path]) -> None:
    a, _, far = two
    result = saturate_and_extract(a)
    other(a.parent)
    for place in (far, a.parent):
        with pytest.raises(OutputError, match=r"weights\.bin has changed"):
            result.save(place / "o.onnx")
    assert listing(far) == []


def test_a_result_is_saved_to_two_places(two: tuple[Path, Path, Path]) -> None:
    a, b, far = two
    result = saturate_and_extract(a)
    result.save(far / "o.onnx")
    result.save(b.parent / "o.onnx")
    assert {k: v for k, v in contents(b.parent).items() if k.startswith("o.")} == contents(far)


@pytest.mark.parametrize("name", ["a\nb.onnx", "ü 猫 'q\".onnx", "-o", " ", os.fsdecode(b"\xff.onnx"), "%s{}.onnx"])
def test_odd_names(two: tuple[Path, Path, Path], name: str) -> None:
    a, _, far = two
    result = saturate_and_extract(a)
    result.save(far / name, report=far / f"{name}.json")
    stored = onnx.load(far / name)
    assert len(stored.graph.initializer) == len(onnx.load(a).graph.initializer) - 3
    with pytest.raises(OutputError) as caught:
        result.save(far / name / "o.onnx")
    assert len(str(caught.value).splitlines()) == 1
    str(caught.value).encode()


def test_what_a_dead_process_left_goes_and_a_live_one_s_stays(two: tuple[Path, Path, Path]) -> None:
    """A live process waits in the midst of its save, a dead one did; and somebody has folders named alike."""
    a, b, far = two
    code = f"""
import shutil, time
from onnx_egraph import saturate_and_extract
result = saturate_and_extract({str(a)!r})
def stop(*_):
    print("now", flush=True)
    time.sleep(600)
shutil.copyfile = stop
result.save({str(far / "o.onnx")!r})
"""
    (far / ".onnx-egraph-mine").mkdir()
    (far / ".onnx-egraph-0123456789abcdef").write_bytes(b"mine")
    left = []
    with contextlib.ExitStack() as stack:
        for dies in (True, False):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE))
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == b"now\n"
            left.append({*listing(far)} - {name for names in left for name in names})
            if dies:
                process.kill()
                process.wait()
        saturate_and_extract(b).save(far / "p.onnx")
        mine = {".onnx-egraph-mine", ".onnx-egraph-0123456789abcdef"}
        assert {*listing(far)} == left[1] | mine | {"p.onnx", "p.onnx.data"}
    saturate_and_extract(b).save(far / "p.onnx")
    assert {*listing(far)} == mine | {"p.onnx", "p.onnx.data"}


@pytest.mark.parametrize("refused", ["mkdir", "link", "flock"])
def test_disks_that_refuse(two: tuple[Path, Path, Path], refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that turns out to be read-only is an error; without links or locks, all is saved."""
    a, _, far = two
    result = saturate_and_extract(a)
    (far / "o.onnx").write_bytes(b"old")
    (far / "r.json").write_bytes(b"old")

    def refuse(*args: object, **options: object) -> None:
        raise OSError(errno.EROFS if refused == "mkdir" else errno.ENOTSUP, "refused")

    monkeypatch.setattr(fcntl if refused == "flock" else os, refused, refuse)
    if refused == "mkdir":
        with pytest.raises(OutputError, match=r"cannot write .*: refused"):
            result.save(far / "o.onnx", report=far / "r.json")
        assert contents(far) == {"o.onnx": b"old", "r.json": b"old"}
    else:
        result.save(far / "o.onnx", report=far / "r.json")
        assert listing(far) == ["o.onnx", "o.onnx.data", "r.json"]


def test_places_on_different_disks(two: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights from one, the model to another and the report to a third: nothing is renamed across folders."""
    a, b, far = two
    replace = os.replace

    def near(old: Path, new: Path) -> None:
        if Path(old).parent.parent != Path(new).parent:
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        replace(old, new)

    monkeypatch.setattr(os, "replace", near)
    saturate_and_extract(a).save(far / "o.onnx", report=b.parent / "r.json")
    assert listing(far) == ["o.onnx", "o.onnx.data"]
    assert listing(b.parent) == ["in.onnx", "r.json", "weights.bin"]


def test_without_locks_as_on_windows(tmp_path: Path) -> None:
    source = with_side_file(tmp_path)
    code = f"""
import sys
sys.modules["fcntl"] = None
from onnx_egraph import saturate_and_extract
saturate_and_extract({str(source)!r}).save({str(tmp_path / "o.onnx")!r})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert listing(tmp_path) == ["in.onnx", "o.onnx", "weights.bin"]


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


def test_a_report_does_not_replace_the_model_that_was_read(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[k] x) => (float[k] y) { y = Neg(x) }'
    )
    onnx.save(model, tmp_path / "m.onnx")
    before = contents(tmp_path)
    result = saturate_and_extract(tmp_path / "m.onnx")
    with pytest.raises(OutputError, match="the model was read from it"):
        result.save(tmp_path / "out.onnx", report=tmp_path / "m.onnx")
    assert contents(tmp_path) == before
