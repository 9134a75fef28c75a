"""Write a model atomically: the file is complete or absent. Side files are copied, not read into memory."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir

from ..egraph.errors import OutputError
from .tensors import external, moved

#: Above this, tensors held in memory go to a side file: protobuf cannot hold 2 GiB.
_PROTOBUF_LIMIT = 1_900_000_000


def save(model: ir.Model, path: str | os.PathLike[str]) -> None:
    """Write `model` to `path`; its external data is copied beside it unless it lies there already.

    Everything is written to a folder beside the target and then renamed, the model last.
    Raises OutputError when the place cannot be written or an external file is gone; nothing is half-written.
    """
    target = Path(path)
    if target.is_dir():
        raise OutputError(f"{target}: cannot be written, it is a folder")
    if not target.parent.is_dir():
        raise OutputError(f"{target}: cannot be written, there is no folder {target.parent}")
    undo: list[Callable[[], None]] = []
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".onnx-egraph-") as folder:
            place = _Place(model, target, Path(folder))
            place.copy(undo)
            part = Path(folder) / target.name
            if _in_memory(model) > _PROTOBUF_LIMIT:
                ir.save(model, part, format="protobuf", external_data=place.fresh())
            else:
                part.write_bytes(ir.to_proto(model).SerializeToString(deterministic=True))
            place.publish(part)
    except OSError as error:
        raise OutputError(f"{target}: cannot be written ({error.strerror or error})") from error
    except ir.serde.SerdeError as error:
        raise OutputError(f"{target}: the model cannot be stored ({error.__cause__})") from error
    finally:
        for restore in undo:
            restore()


class _Place:
    """The side files of a model on its way to `target`, in a folder beside it until they are published."""

    def __init__(self, model: ir.Model, target: Path, folder: Path) -> None:
        self.target, self.folder = target, folder
        self.tensors = list(external(model))
        home = target.parent.resolve()
        self.staying = {str(t.location) for t, _ in self.tensors if Path(t.base_dir).resolve() == home}
        self.sides: list[str] = []

    def fresh(self) -> str:
        """The name of one more side file; never one that a tensor that stays in its file needs."""
        count = 0
        while True:
            name = f"{self.target.name}.{count}.data" if count else f"{self.target.name}.data"
            if name not in self.sides and name not in self.staying:
                self.sides.append(name)
                return name
            count += 1

    def copy(self, undo: list[Callable[[], None]]) -> None:
        """Copy each external file that is not beside the target, and point the model at the copies."""
        names: dict[Path, str] = {}
        home = self.target.parent.resolve()
        for tensor, replace in self.tensors:
            if Path(tensor.base_dir).resolve() == home:
                continue
            source = Path(tensor.base_dir) / str(tensor.location)
            if source not in names:
                if not source.is_file():
                    raise OutputError(
                        f"tensor {tensor.name!r}: external data file {source} is missing; give a path"
                    )
                names[source] = self.fresh()
                shutil.copyfile(source, self.folder / names[source])
            undo.append(lambda put=replace, old=tensor: put(old))  # type: ignore[misc]
            replace(moved(tensor, names[source], str(self.folder)))

    def publish(self, part: Path) -> None:
        """Rename all files into place; on an error, files that were there before are put back."""
        done: list[tuple[Path, Path | None]] = []
        try:
            for name in [*self.sides, part.name]:
                final, old = self.target.with_name(name), None
                if final.exists() and name != part.name:
                    old = self.folder / f"{name}.before"
                    os.replace(final, old)
                done.append((final, old))
                os.replace(self.folder / name, final)
        except OSError:
            for final, old in reversed(done):
                if old is not None:
                    os.replace(old, final)
                elif final.name != part.name:
                    final.unlink(missing_ok=True)
            raise


def _in_memory(model: ir.Model) -> int:
    """Bytes of the initializers that are in no side file."""
    tensors = (v.const_value for g in model.graphs() for v in g.initializers.values())
    return sum(t.nbytes for t in tensors if t is not None and not isinstance(t, ir.ExternalTensor))
