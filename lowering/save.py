"""Write a model atomically: the file is complete or absent. Side files are copied, not read into memory."""

from __future__ import annotations

import filecmp
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import onnx_ir as ir

from ..egraph.errors import OutputError
from .load import Original
from .tensors import external, moved, side_file

#: Above this, tensors held in memory go to a side file: protobuf cannot hold 2 GiB.
_PROTOBUF_LIMIT = 1_900_000_000

Named = str | os.PathLike[str]


def save(
    model: ir.Model, path: Named, texts: Mapping[Path, str] | None = None, needed: Iterable[Path] = (),
    original: Original | None = None,
) -> None:  # fmt: skip
    """Write `model` to `path`; its external data is copied beside it unless it lies there already.

    `original` is what the model was read from if it is still that: then it is written as it was, if its external
    data can lie beside `path` under the names it has.

    Everything is written to folders beside the targets and then renamed, the model last. `texts` are further
    files, in UTF-8. `needed` are files that must stay as they are, beside those the model's tensors lie in.
    Raises OutputError when a place cannot be written or holds a tensor, or when an external file is gone;
    then, and when the process is interrupted, every file is as it was.
    """
    target = destination(path)
    files = {destination(name): text for name, text in (texts or {}).items()}
    if target in files:
        raise OutputError(f"cannot write {path}: one file cannot hold the model and a text")
    undo: list[Callable[[], None]] = []
    try:
        kept = {identity(p) for p in [*needed, *(side_file(tensor) for tensor, _ in external(model))]}
        for final in (target, *files):
            if identity(final) in kept:
                raise OutputError(f"cannot write {final}: it holds weights of the model; choose another name")
        with _folder(target) as folder:
            place = _Place(model, target, folder, kept | {identity(p) for p in files})
            part = folder / target.name
            if original is not None and original.data is not None and place.keep(original.sides):
                part.write_bytes(original.data)
            else:
                place.copy(undo)
                if _in_memory(model) > _PROTOBUF_LIMIT:
                    ir.save(model, part, format="protobuf", external_data=place.fresh())
                else:
                    part.write_bytes(ir.to_proto(model).SerializeToString(deterministic=True))
            parts = {folder / name: target.with_name(name) for name in place.sides}
            _with_texts([*files.items()], parts | {part: target})
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    except ir.serde.SerdeError as error:
        raise OutputError(f"cannot write {path}: the model cannot be stored ({error.__cause__})") from error
    finally:
        for restore in undo:
            restore()


def destination(path: Named) -> Path:
    """The file that writing to `path` makes or replaces: where a link leads to, so that the link stays.

    Raises OutputError where there is no folder to write to, or something that is no file: a device cannot be
    replaced, and a folder must not be.
    """
    if "\0" in os.fspath(path):
        raise OutputError(f"cannot write {os.fspath(path)!r}: a name has no NUL character")
    target = Path(os.path.realpath(path))
    try:
        if not target.parent.is_dir():
            raise OutputError(f"cannot write {path}: there is no folder {Path(path).parent}")
        mode = os.lstat(target).st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a link to itself" if stat.S_ISLNK(mode) else "no regular file"
        raise OutputError(f"cannot write {path}: it is {kind}")
    if not os.access(target.parent, os.W_OK):
        raise OutputError(f"cannot write {path}: the folder {Path(path).parent} is not writable")
    return target


def identity(path: Path) -> tuple[int, int] | str:
    """Equal for two names of one file, links of either kind included."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return os.path.realpath(path)
    return found.st_dev, found.st_ino


class _Place:
    """The side files of a model on its way to `target`, in a folder beside it until they are published."""

    def __init__(
        self, model: ir.Model, target: Path, folder: Path, taken: set[tuple[int, int] | str]
    ) -> None:  # fmt: skip
        self.target, self.folder, self.taken = target, folder, taken
        self.tensors = list(external(model))
        self.sides: list[str] = []

    def fresh(self) -> str:
        """The name of one more side file; never one of a file that is needed, or that is no file."""
        count = 0
        while True:
            name = f"{self.target.name}.{count}.data" if count else f"{self.target.name}.data"
            final = self.target.with_name(name)
            plain = not os.path.lexists(final) or stat.S_ISREG(os.lstat(final).st_mode)
            if plain and name not in self.sides and identity(final) not in self.taken:
                self.sides.append(name)
                return name
            count += 1

    def keep(self, sides: Mapping[str, Path]) -> bool:
        """Copy the side files of a model that stays as it was, under the locations it has for them; False, and none is
        copied, if that cannot be.
        """
        copies: dict[str, Path] = {}
        for location, source in sides.items():
            final = self.target.parent / location
            if final.is_symlink():  # onnxruntime reads no links
                return False
            if identity(final) == identity(source):
                continue
            plain = location == final.name and final != self.target and identity(final) not in self.taken
            if plain and final.is_file() and filecmp.cmp(source, final, shallow=False):
                continue
            if not plain or os.path.lexists(final):
                return False
            if not source.is_file():
                raise OutputError(f"cannot write {self.target}: external data file {source} is missing")
            copies[location] = source
        for location, source in copies.items():
            shutil.copyfile(source, self.folder / location)
            self.sides.append(location)
        return True

    def copy(self, undo: list[Callable[[], None]]) -> None:
        """Copy each external file that is not beside the target, and point the model at the copies."""
        names: dict[Path, str] = {}
        for tensor, replace in self.tensors:
            if Path(tensor.base_dir).resolve() == self.target.parent:
                continue
            source = side_file(tensor)
            if source not in names:
                if not source.is_file():
                    raise OutputError(
                        f"tensor {tensor.name!r}: external data file {source} is missing; give a path"
                    )
                names[source] = self.fresh()
                shutil.copyfile(source, self.folder / names[source])
            undo.append(partial(replace, tensor))
            replace(moved(tensor, names[source], str(self.folder)))


@contextmanager
def _folder(target: Path) -> Iterator[Path]:
    """A folder beside `target`, hence on the same disk: a file is renamed out of it in one step."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".onnx-egraph-") as folder:
        yield Path(folder)


def _with_texts(texts: list[tuple[Path, str]], parts: dict[Path, Path]) -> None:
    """Write each text beside its place, then publish all."""
    if not texts:
        _publish(parts)
        return
    (final, text), *rest = texts
    with _folder(final) as folder:
        part = folder / final.name
        part.write_text(text, encoding="utf-8")
        _with_texts(rest, {part: final} | parts)


def _publish(parts: Mapping[Path, Path]) -> None:
    """Rename all files into place, the last of which completes the model; on an error, or an interrupt, files that
    were there before are put back.
    """
    done: list[tuple[Path, Path, Path]] = []
    *others, (last, target) = parts.items()
    try:
        for part, final in others:
            (part.parent / "before").mkdir(exist_ok=True)
            old = part.parent / "before" / part.name
            done.append((part, final, old))
            if final.exists():
                os.replace(final, old)
            os.replace(part, final)
        os.replace(last, target)
    except BaseException:
        for part, final, old in reversed(done) if last.exists() else ():
            if old.exists():
                os.replace(old, final)
            elif not part.exists():
                final.unlink(missing_ok=True)
        raise


def _in_memory(model: ir.Model) -> int:
    """Bytes of the initializers that are in no side file."""
    tensors = (v.const_value for g in model.graphs() for v in g.initializers.values())
    return sum(t.nbytes for t in tensors if t is not None and not isinstance(t, ir.ExternalTensor))
