"""Write a model atomically: the file is complete or absent, side files are copied as files, never through memory."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import onnx_ir as ir

from ..egraph.errors import OutputError

#: Above this, tensors held in memory go to a side file: protobuf cannot hold 2 GiB.
_PROTOBUF_LIMIT = 1_900_000_000


def save(model: ir.Model, path: str | os.PathLike[str]) -> None:
    """Write `model` to `path`; its external data is copied beside it unless it lies there already.

    Raises OutputError when the place cannot be written or an external file is gone; nothing is left half-written.
    """
    target = Path(path)
    if target.is_dir() or not target.parent.is_dir():
        raise OutputError(f"{target}: cannot be written, {'it is a folder' if target.is_dir() else 'its folder does not exist'}")
    made: list[Path] = []
    moved: list[tuple[ir.Value, ir.TensorProtocol]] = []
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".onnx-egraph-") as folder:
            part = Path(folder) / target.name
            sides = _side_files(model, target, Path(folder), moved)
            if sum(v.const_value.nbytes for v in _in_memory(model)) > _PROTOBUF_LIMIT:
                ir.save(model, part, external_data=f"{target.name}.data")
                sides[part.with_name(f"{target.name}.data")] = target.with_name(f"{target.name}.data")
            else:
                ir.save(model, part)
            for source, final in sides.items():
                os.replace(source, final)
                made.append(final)
            os.replace(part, target)
    except OSError as error:
        for side in made:
            side.unlink(missing_ok=True)
        raise OutputError(f"{target}: cannot be written ({error.strerror or error})") from error
    finally:
        for value, tensor in moved:
            value.const_value = tensor


def _in_memory(model: ir.Model) -> list[ir.Value]:
    return [
        v for g in model.graphs() for v in g.initializers.values()
        if v.const_value is not None and not isinstance(v.const_value, ir.ExternalTensor)
    ]  # fmt: skip


def _side_files(
    model: ir.Model, target: Path, folder: Path, moved: list[tuple[ir.Value, ir.TensorProtocol]]
) -> dict[Path, Path]:
    """Copy each external file not already beside the target, and point the model at the copies."""
    names: dict[Path, str] = {}
    copies: dict[Path, Path] = {}
    for graph in model.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if not isinstance(tensor, ir.ExternalTensor):
                continue
            source = Path(tensor.base_dir) / str(tensor.location)
            if Path(tensor.base_dir).resolve() == target.parent.resolve():
                continue
            if not source.is_file():
                raise OutputError(f"tensor {value.name!r}: external data file {source} is not there; give the model as a path")
            if source not in names:
                names[source] = f"{target.name}.data" if not names else f"{target.name}.{len(names)}.data"
                copy = folder / names[source]
                shutil.copyfile(source, copy)
                copies[copy] = target.with_name(names[source])
            moved.append((value, tensor))
            value.const_value = ir.ExternalTensor(
                names[source], tensor.offset, tensor.length, tensor.dtype, shape=tensor.shape, name=tensor.name or "",
                base_dir=str(folder),
            )  # fmt: skip
    return copies
