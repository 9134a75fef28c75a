"""Write a model so that its place always holds a whole one, the old or the new. Side files are copied, not read
into memory.

Weights get a name that nothing has, then the model is renamed into place, which is the one moment the result changes,
then the texts; last, the weights that only the old model used are removed (`staging.py`). So a process may be killed
anywhere: weights never change under a model, and no text is ever beside a model older than itself. Files are flushed to
the disk before they are renamed, or a power cut could leave their names and not their bytes; next to writing them,
that costs little.
"""

from __future__ import annotations

import errno
import filecmp
import itertools
import os
import re
import shutil
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]  # ships no types

from ...egraph.errors import OutputError
from ..model.tensors import Joined, external, outside, side_file, stream
from .load import Original
from .staging import Stage, Stamp, stamp

#: Above this, tensors held in memory go to a side file: protobuf cannot hold 2 GiB.
_PROTOBUF_LIMIT = 1_900_000_000
#: Of those, the ones of at most so many bytes stay.
_SMALL = 256

Named = str | os.PathLike[str]


def save(
    model: ir.Model, path: Named, texts: Mapping[Path, str] | None = None, needed: Mapping[Path, Stamp] | None = None,
    original: Original | None = None, source: Path | None = None,
) -> None:  # fmt: skip
    """Write `model` to `path`; its external data is copied beside it unless it lies there already.

    `texts` are further files, in UTF-8. `needed` are files that must stay as they are, beside those the model's tensors
    lie in, each with its stamp when the model was read. The model is not changed, not even meanwhile. `original` is
    what the model was read from if it is still that: then it is written as it was, if its external data can lie beside
    `path` under the names it has. No text takes the place of `source`, from which the model was read.
    Saves to one folder wait for each other, where the system has locks on folders. Raises OutputError when a place
    cannot be written or holds a tensor, or when an external file is gone, or another than it was; then, and when the
    process is interrupted, every file is as it was.
    """
    target = destination(path)
    files = {destination(name): text for name, text in (texts or {}).items()}
    if target in files:
        raise OutputError(f"cannot write {shown(path)}: one file cannot hold the model and a text")
    stages = {place: Stage(place) for place in (target.parent, *(final.parent for final in files))}
    try:
        kept = {identity(p) for p in [*(needed or ()), *(side_file(tensor) for tensor, _ in external(model))]}
        for final in (target, *files):
            if identity(final) in kept:
                raise OutputError(f"cannot write {shown(final)}: it holds weights of the model; choose another name")
        if source is not None and any(identity(final) == identity(source) for final in files):
            raise OutputError(f"cannot write {shown(source)}: the model was read from it; choose another name")
        _check_sources(model, needed or {})
        for stage in stages.values():
            stage.open()
        written = {}
        for count, (final, text) in enumerate(files.items()):
            part = stages[final.parent].folder / f"text-{count}"
            written[part] = final
            _write(part, text.encode())
        stage = stages[target.parent]
        weights = None if original is not None and original.data else _Weights(model, target.parent, stage.folder)
        stage.enter()
        names = None if original is None else _as_they_are(original.sides, target, stage.folder, written, kept)
        if original is not None and original.data and names is not None:
            _publish(original.data, names, original.sides, target, stage, written, kept)
        else:
            weights = weights or _Weights(model, target.parent, stage.folder)
            _place(weights, target, stage, written, kept)
    except OSError as error:
        raise OutputError(f"cannot write {shown(path)}: {error.strerror or error}") from error
    except ir.serde.SerdeError as error:
        raise OutputError(f"cannot write {shown(path)}: the model cannot be stored ({error.__cause__})") from error
    except EncodeError as error:
        raise OutputError(f"cannot write {shown(path)}: it has more than 2 GiB beside its weights") from error
    finally:
        try:
            for stage in stages.values():
                stage.close()
        except BaseException:  # an interrupt
            for stage in stages.values():
                stage.close()
            raise


def put(path: Named, content: str | bytes) -> None:
    """Write bytes, or a text, in UTF-8, in the place of another file or as a new one.

    Raises OutputError; then all is as it was.
    """
    target = destination(path)
    stage = Stage(target.parent)
    try:
        stage.open()
        part = stage.folder / "text"
        _write(part, content.encode() if isinstance(content, str) else content)
        os.replace(part, target)
    except OSError as error:
        raise OutputError(f"cannot write {shown(path)}: {error.strerror or error}") from error
    finally:
        stage.close()


def destination(path: Named) -> Path:
    """The file that writing to `path` makes or replaces: where a link leads to, so that the link stays.

    Raises OutputError where there is no folder to write to, or something that is no file: a device cannot be
    replaced, and a folder must not be.
    """
    if not isinstance(path, str | os.PathLike):
        raise OutputError(f"cannot write to {path!r}: a path is wanted")
    if "\0" in os.fspath(path):
        raise OutputError(f"cannot write {shown(path)}: a name has no NUL character")
    target = Path(os.path.realpath(path))
    try:
        if not target.parent.is_dir():
            raise OutputError(f"cannot write {shown(path)}: there is no folder {shown(Path(path).parent)}")
        mode = os.lstat(target).st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    except OSError as error:
        raise OutputError(f"cannot write {shown(path)}: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a link to itself" if stat.S_ISLNK(mode) else "no regular file"
        raise OutputError(f"cannot write {shown(path)}: it is {kind}")
    if not os.access(target.parent, os.W_OK):
        raise OutputError(f"cannot write {shown(path)}: the folder {shown(Path(path).parent)} is not writable")
    return target


def identity(path: Path) -> tuple[int, int] | str:
    """Equal for two names of one file, links of either kind included."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return os.path.realpath(path)
    return found.st_dev, found.st_ino


def shown(path: Named) -> str:
    """The path on one line of text that any stream takes: quoted and escaped if it must be."""
    text = os.fspath(path)
    return text if text.isprintable() else repr(text)


def _check_sources(model: ir.Model, stamps: Mapping[Path, Stamp]) -> None:
    """Raises OutputError for a tensor whose side file is not the one it was read from."""
    seen = set()
    for tensor, _ in external(model):
        if (source := side_file(tensor)) in seen:
            continue
        seen.add(source)
        if not source.is_file():
            raise OutputError(f"tensor {tensor.name!r}: external data file {shown(source)} is missing; give a path")
        then, now = stamps.get(source.resolve()), stamp(source.resolve())
        if then and now and then[1:] != now[1:]:  # not by number: some network disks number files anew
            raise OutputError(
                f"tensor {tensor.name!r}: external data file {shown(source)} has changed since the model was read; "
                "optimize the model again"
            )


class _Weights:
    """What of a model goes to new side files in `place`: written to `folder` as `parts`, to be named later.

    Weights that are joined of some in side files are written by now, and of the others in their files those only that
    the model still needs.
    """

    def __init__(self, model: ir.Model, place: Path, folder: Path) -> None:
        self.parts: list[Path] = []
        self._place, self._model = place, model
        self._moves: list[tuple[Path, Callable[[str], None]]] = []
        tensors = [v.const_value for g in model.graphs() for v in g.initializers.values()]
        large = sum(t.nbytes for t in tensors if t is not None and _movable(t)) > _PROTOBUF_LIMIT
        joined = any(isinstance(t, Joined) and t.outside for t in tensors)
        if not (large or joined) and all(_beside(tensor, place) for tensor, _ in external(model)):
            return
        self._model = model.clone()  # shares the tensors; another thread may be saving the same model
        if not joined:
            self._copy(folder)
        if large or joined:
            self._store(folder, large)

    def placed(self, names: Mapping[Path, str]) -> ir.Model:
        """The model with each part at its name."""
        for part, move in self._moves:
            move(names[part])
        return self._model

    def _part(self, folder: Path) -> Path:
        self.parts.append(folder / f"weights-{len(self.parts)}")
        return self.parts[-1]

    def _copy(self, folder: Path) -> None:
        """Copy each external file that is not beside the target."""
        copies: dict[Path, Path] = {}
        for tensor, replace in external(self._model):
            if _beside(tensor, self._place):
                continue
            source = side_file(tensor)
            if source not in copies:
                copies[source] = self._part(folder)
                shutil.copyfile(source, copies[source])
                _flush(copies[source])
            self._moves.append((copies[source], self._mover(tensor, replace, tensor.offset, tensor.length)))

    def _store(self, folder: Path, large: bool) -> None:
        """Write to one file the joined initializers, the others held in memory if they are `large`, and what is left
        in files elsewhere.
        """
        part = self._part(folder)
        places: dict[object, int] = {}
        with part.open("wb") as file:
            for tensor, replace in [*external(self._model, parts=False), *self._held(large)]:
                key: object = id(tensor)
                if isinstance(tensor, ir.ExternalTensor):
                    if _beside(tensor, self._place):
                        continue
                    key = side_file(tensor), tensor.offset, tensor.nbytes
                if key not in places:
                    places[key] = file.tell()
                    stream(tensor, file)
                self._moves.append((part, self._mover(tensor, replace, places[key], tensor.nbytes)))
        _flush(part)

    def _held(self, large: bool) -> Iterator[tuple[ir.TensorProtocol, Callable[[ir.ExternalTensor], None]]]:
        """The initializers held in memory that go to a file, and a function that replaces each."""
        for graph in self._model.graphs():
            for value in graph.initializers.values():
                tensor = value.const_value
                needs = large or (isinstance(tensor, Joined) and tensor.outside)
                if needs and tensor is not None and _movable(tensor) and tensor.nbytes > _SMALL:
                    yield tensor, partial(setattr, value, "const_value")

    def _mover(
        self, tensor: ir.TensorProtocol, replace: Callable[[ir.ExternalTensor], None], start: int | None,
        length: int | None,
    ) -> Callable[[str], None]:  # fmt: skip
        return lambda name: replace(outside(tensor, name, str(self._place), start, length))


def _beside(tensor: ir.ExternalTensor, place: Path) -> bool:
    return Path(tensor.base_dir).resolve() == place


def _movable(tensor: ir.TensorProtocol) -> bool:
    """Whether it is in memory and may lie in a file: strings may not."""
    return not isinstance(tensor, ir.ExternalTensor) and tensor.dtype != ir.DataType.STRING


# ---- names


def _side_name(target: Path, count: int) -> str:
    stem = target.name.encode("utf-8", "replace").decode()  # a model can name no other file than in UTF-8
    return f"{stem}.{count}.data" if count else f"{stem}.data"


def _existing(target: Path) -> list[str]:
    """The files there that are named as its side files, in order."""
    stem, end = re.escape(_side_name(target, 0).removesuffix(".data")), r"(?:\.([1-9]\d*))?\.data"
    counts = {}
    with suppress(PermissionError), os.scandir(target.parent) as entries:
        for entry in entries:
            if (found := re.fullmatch(stem + end, entry.name)) and entry.is_file(follow_symlinks=False):
                counts[entry.name] = int(found[1] or 0)
    return sorted(counts, key=lambda name: counts[name])


def _named(
    parts: Iterable[Path], target: Path, existing: Iterable[str], before: Iterable[str], texts: Collection[Path]
) -> dict[Path, str]:
    """A name for each: of a file with the same bytes, so that saving again gives the same model, or else the first
    that nothing has and the model in place does not know, so that no model gets other weights.
    """
    for name in (_side_name(target, 0), _side_name(target, 1)):
        with suppress(FileNotFoundError):
            target.with_name(name).lstat()  # says if a name is too long
    there = [name for name in existing if target.with_name(name) not in texts]
    taken = {text.name.casefold() for text in texts if text.parent == target.parent}
    taken |= {location.casefold() for location in before}
    names: dict[Path, str] = {}
    for part in parts:
        same = (n for n in there if filecmp.cmp(part, target.with_name(n), shallow=False))
        names[part] = next(same, "")
        if names[part]:
            there.remove(names[part])
    unused = (_side_name(target, count) for count in itertools.count())
    for part in [part for part, name in names.items() if not name]:
        names[part] = next(n for n in unused if not os.path.lexists(target.with_name(n)) and n.casefold() not in taken)
    return names


def _locations(target: Path) -> set[str]:
    """Where the model in place keeps its weights; nowhere if it is no model."""
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(target.read_bytes())
        return {str(tensor.location) for tensor, _ in external(ir.from_proto(proto))}
    except (FileNotFoundError, DecodeError, ir.serde.SerdeError, ValueError):
        return set()


# ---- publishing


def _as_they_are(
    sides: Mapping[str, Path], target: Path, folder: Path, texts: Mapping[Path, Path], kept: set[tuple[int, int] | str]
) -> dict[Path, str] | None:
    """Copies of the side files of a model that stays as it was, each with the location it has for it; None, and there
    are none, if one cannot lie there.
    """
    copies: dict[str, Path] = {}
    taken = kept | {identity(final) for final in texts.values()}
    for location, source in sides.items():
        final = target.parent / location
        if final.is_symlink():  # onnxruntime reads no links
            return None
        if identity(final) == identity(source):
            continue
        plain = location == final.name and final != target and identity(final) not in taken
        if plain and final.is_file() and filecmp.cmp(source, final, shallow=False):
            continue
        if not plain or os.path.lexists(final):
            return None
        copies[location] = source
    names: dict[Path, str] = {}
    for location, source in copies.items():
        part = folder / f"weights-{len(names) + 1}"
        shutil.copyfile(source, part)
        _flush(part)
        names[part] = location
    return names


def _place(
    weights: _Weights, target: Path, stage: Stage, texts: Mapping[Path, Path], kept: set[tuple[int, int] | str]
) -> None:
    """Name the weights, write the model that names them so, and publish all. The folder is ours until the end."""
    existing = _existing(target)
    before = _locations(target) if existing or weights.parts else set()
    names = _named(weights.parts, target, existing, before, texts.values())
    data = ir.to_proto(weights.placed(names)).SerializeToString(deterministic=True)
    _publish(data, names, names.values(), target, stage, texts, kept)


def _publish(
    data: bytes, names: Mapping[Path, str], used: Iterable[str], target: Path, stage: Stage, texts: Mapping[Path, Path],
    kept: set[tuple[int, int] | str],
) -> None:  # fmt: skip
    """Publish the model `data`, which keeps its weights under the names `used`, those that are new among `names`."""
    existing = _existing(target)
    before = _locations(target) if existing else set()
    model = stage.folder / "model"
    _write(model, data)
    fresh = {part: target.with_name(name) for part, name in names.items() if name not in existing}
    still = set(used)
    old = [target.with_name(name) for name in existing if name in before and name not in still]
    unused = {final.name: part for part, final in fresh.items()} | {o.name: o for o in old if identity(o) not in kept}
    stage.note(target, model, texts, unused)
    publish(fresh, model, target, texts)


def publish(weights: Mapping[Path, Path], model: Path, target: Path, texts: Mapping[Path, Path]) -> None:
    """Rename all parts into place: weights, whose names nothing has, then the model, then texts.

    Where a text cannot follow, or an interrupt comes before the last, what was there before is put back, but for
    weights, which no model names then.
    """
    for part, final in weights.items():
        os.replace(part, final)
    if weights:
        _flush_folder(target.parent)
    steps = {model: target} | {**texts}
    before = {part: part.with_name(f"{part.name}-before") for part, final in steps.items() if texts and final.exists()}
    for part, backup in before.items():
        _linked(steps[part], backup)
    try:
        for part, final in steps.items():
            os.replace(part, final)
    except BaseException:
        if any(part.exists() for part in steps):
            for part, final in reversed(steps.items()):
                if part in before:
                    if before[part].exists():
                        os.replace(before[part], final)
                elif texts and not part.exists():
                    final.unlink(missing_ok=True)
        raise
    for place in {final.parent for final in steps.values()}:
        _flush_folder(place)


def _linked(file: Path, name: Path) -> None:
    """A second name for the file, or a copy where the disk knows no second names."""
    try:
        os.link(file, name)
    except OSError:
        shutil.copy2(file, name)


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    _flush(path)


def _flush(path: Path) -> None:
    """Wait until the disk has the file; on some, only this says that it is full."""
    with path.open("r+b") as file:
        try:
            os.fsync(file.fileno())
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system without
                raise


def _flush_folder(folder: Path) -> None:
    """Wait until the disk has the names, as far as folders can be flushed."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
