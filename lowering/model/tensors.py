"""Tensors shared with the caller's model: never renamed in place, and found wherever a model keeps them.

onnx-ir keeps a tensor's name in the tensor, sets it when serializing, and shares tensors among clones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

#: Bytes of the largest constants that are compared by content, and computed with.
SMALL = 1024
#: Files mapped at a time. A map keeps a descriptor, of which a process may have as few as 256 (macOS).
_MAPS = 64
#: Bytes of joined tensors that are put together at a time.
_CHUNK = 2**24


def renamed(tensor: ir.TensorProtocol, name: str | None) -> ir.TensorProtocol:
    """The same elements under another name, neither copied nor read; the tensor itself where it may stay."""
    # onnx-ir 1.1 writes the metadata of a TensorProto twice
    doubled = isinstance(tensor, ir.serde.TensorProtoTensor) and bool(tensor.metadata_props)
    if tensor.name == name and not doubled:
        return tensor
    if isinstance(tensor, ir.ExternalTensor):
        return moved(tensor, str(tensor.location), str(tensor.base_dir), name)
    if isinstance(tensor, Joined):
        return Joined(tensor.parts, name)
    shape, doc, metadata = ir.Shape(tensor.shape.numpy()), tensor.doc_string, dict(tensor.metadata_props)
    if isinstance(tensor, ir.StringTensor):
        return ir.StringTensor(tensor.string_data(), shape=shape, name=name, doc_string=doc, metadata_props=metadata)
    return ir.LazyTensor(lambda: tensor, tensor.dtype, shape, name=name, doc_string=doc, metadata_props=metadata)


def moved(tensor: ir.ExternalTensor, location: str, folder: str, name: str | None = None) -> ir.ExternalTensor:
    """The same elements read from `location` in `folder`."""
    return outside(tensor, location, folder, tensor.offset, tensor.length, name)


def outside(
    tensor: ir.TensorProtocol, location: str, folder: str, start: int | None, length: int | None,
    name: str | None = None,
) -> ir.ExternalTensor:  # fmt: skip
    """The same elements read from `length` bytes at `start` of the file `location` in `folder`."""
    return ir.ExternalTensor(
        location, start, length, tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name or tensor.name or "",
        doc_string=tensor.doc_string, metadata_props=dict(tensor.metadata_props), base_dir=folder,
    )  # fmt: skip


class Joined(ir.LazyTensor):
    """The matrices `parts`, of one element type and one number of rows, side by side.

    They are put together when somebody looks, or a few rows at a time when they are saved.
    """

    def __init__(self, parts: Sequence[ir.TensorProtocol], name: str | None = None) -> None:
        self.parts = tuple(parts)
        dtype, sizes = self.parts[0].dtype, [part.shape.numpy() for part in self.parts]
        shape = ir.Shape([*map(int, sizes[0][:-1]), sum(int(size[-1]) for size in sizes)])
        super().__init__(
            lambda: ir.Tensor(self._rows(0, None).reshape(self.shape.numpy()), dtype), dtype, shape, name=name
        )

    @property
    def outside(self) -> bool:
        """Whether a part lies in a side file."""
        return any(isinstance(part, ir.ExternalTensor) for part in self.parts)

    def _rows(self, first: int, last: int | None) -> npt.NDArray[np.generic]:
        """A vector has one row."""
        arrays = [elements(part) for part in self.parts]
        return np.concatenate([a.reshape(math.prod(a.shape[:-1]), a.shape[-1])[first:last] for a in arrays], axis=-1)

    def tofile(self, file: BinaryIO) -> None:
        rows = math.prod(self.shape.numpy()[:-1])
        step = max(1, _CHUNK * rows // max(1, self.nbytes))
        for first in range(0, rows, step):
            file.write(ir.Tensor(self._rows(first, first + step), self.dtype).tobytes())


def stream(tensor: ir.TensorProtocol, file: BinaryIO) -> None:
    """Write the elements to a file; those of files and of joined tensors come by pieces."""
    if isinstance(tensor, ir.ExternalTensor | ir.LazyTensor):
        tensor.tofile(file)
    else:
        file.write(tensor.tobytes())


def initializer(tensor: ir.TensorProtocol, name: str) -> ir.Value:
    """A value of that name that holds the tensor."""
    return ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()),
                    const_value=renamed(tensor, name))  # fmt: skip


def like(value: ir.Value, name: str | None) -> ir.Value:
    """A value that says the same about itself, of another name."""
    shape = None if value.shape is None else value.shape.copy()
    made = ir.Value(name=name, type=value.type, shape=shape, doc_string=value.doc_string,
                    metadata_props=dict(value.metadata_props))  # fmt: skip
    made.meta.update(value.meta)  # onnx-ir keeps quantization annotations there
    return made


def content(tensor: ir.TensorProtocol) -> tuple[ir.DataType, tuple[int, ...], bytes]:
    """Equal for tensors of the same elements."""
    return tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes()


def is_small(tensor: ir.TensorProtocol) -> bool:
    """Whether it is looked at as numbers: it is in memory, of few bytes and no strings."""
    return tensor.nbytes <= SMALL and not isinstance(tensor, ir.ExternalTensor | ir.StringTensor)


def side_file(tensor: ir.ExternalTensor) -> Path:
    """The file the elements lie in."""
    return Path(tensor.base_dir) / str(tensor.location)


class SideFiles:
    """The elements of tensors, each side file mapped once."""

    def __init__(self) -> None:
        self._maps: dict[Path, npt.NDArray[np.uint8]] = {}

    def array(self, tensor: ir.TensorProtocol) -> npt.NDArray[np.generic]:
        """The elements; what lies in a side file is mapped, and read where it is looked at."""
        if not isinstance(tensor, ir.ExternalTensor):
            return np.asarray(tensor.numpy())
        if tensor.dtype.bitwidth < 8:  # packed: onnx-ir unpacks into memory, and a copy of its own can be released
            own = moved(tensor, str(tensor.location), str(tensor.base_dir))
            array: npt.NDArray[np.generic] = np.array(own.numpy())
            own.release()
            return array
        shape, start = tuple(tensor.shape.numpy()), tensor.offset or 0
        if not tensor.nbytes:
            return np.zeros(shape, tensor.dtype.numpy())
        path = side_file(tensor)
        if path in self._maps or len(self._maps) < _MAPS:
            whole = self._maps.setdefault(path, np.memmap(path, np.uint8, "r").view(np.ndarray))
            found = whole[start : start + tensor.nbytes]
        else:
            found = np.fromfile(path, np.uint8, tensor.nbytes, offset=start)
        return found.view(tensor.dtype.numpy()).reshape(shape)


def elements(tensor: ir.TensorProtocol) -> npt.NDArray[np.generic]:
    """The elements; those in a side file are mapped for as long as the array lives.

    onnx-ir's own map lives as long as the tensor, and the caller's model may hold that.
    """
    return SideFiles().array(tensor)


def own_names(model: ir.Model) -> None:
    """Give each initializer a tensor of its name: serializing then renames none of another model."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = renamed(value.const_value, value.name)


def external(
    model: ir.Model, parts: bool = True
) -> Iterator[tuple[ir.ExternalTensor, Callable[[ir.ExternalTensor], None]]]:  # fmt: skip
    """Each tensor kept in a side file, of an initializer or an attribute, and a function that replaces it.

    With `parts`, those of joined ones, too.
    """
    for graph in _graphs(model):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                yield value.const_value, partial(setattr, value, "const_value")
            elif parts and isinstance(value.const_value, Joined):
                for k, part in enumerate(value.const_value.parts):
                    if isinstance(part, ir.ExternalTensor):
                        yield part, partial(_set_part, value, k)
        for node in graph:
            for key, a in list(node.attributes.items()):
                if a.type == ir.AttributeType.TENSOR and isinstance(a.value, ir.ExternalTensor):
                    yield a.value, partial(_set_attribute, node, key)


def _graphs(model: ir.Model) -> Iterator[ir.Graph]:
    yield from model.graphs()
    for function in model.functions.values():
        yield function.graph
        yield from function.graph.subgraphs()


def _set_part(value: ir.Value, place: int, part: ir.ExternalTensor) -> None:
    whole = value.const_value
    if isinstance(whole, Joined):
        value.const_value = Joined([*whole.parts[:place], part, *whole.parts[place + 1 :]], whole.name)


def _set_attribute(node: ir.Node, key: str, tensor: ir.ExternalTensor) -> None:
    node.attributes[key] = ir.AttrTensor(key, tensor)
