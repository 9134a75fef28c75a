"""Models in onnxruntime, on the CPU provider.

External data. onnxruntime 1.32 refuses side files that are symbolic links, have several hard links or lie
outside the model's folder, so linking them next to a temporary model cannot work. A model given by path is
opened by onnxruntime; for one in memory the large tensors are handed over as arrays (memory-mapped if they
are external) through `SessionOptions.add_external_initializers`, and nothing is written to disk.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NotImplementedHere

from ..model.tensors import SideFiles, elements, external
from .feeds import Array, Given, Model

CPU = "CPUExecutionProvider"
#: Seconds that a single run may take.
LONGEST = 600.0
# Element types that numpy has not, by onnxruntime's names.
_COARSE: Mapping[str, ir.DataType] = {
    f"tensor({kind.name.lower()})": kind
    for kind in ir.DataType
    if kind.name.startswith(("BFLOAT", "FLOAT8", "FLOAT4", "INT4", "UINT4", "INT2", "UINT2"))
}


class TooLong(Exception):
    """A run was ended."""


class Source(NamedTuple):
    """What a session is made from: a path or serialized bytes, and the tensors those bytes leave out."""

    model: str | bytes
    tensors: Mapping[str, ir.TensorProtocol]


def quiet_options(libraries: Sequence[str]) -> ort.SessionOptions:
    """Options of a session that logs nothing and has the operators of the libraries."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    for library in libraries:
        options.register_custom_ops_library(library)
    return options


class Session:
    """A loaded model. `weights` replace initializers of the same name; `libraries` hold further operators; `patience`
    says how many seconds a run that begins now may take; `threads` are those of one node, 0 for onnxruntime's choice.
    """

    def __init__(
        self, source: Source, optimize: bool, weights: Mapping[str, Array] | None = None, libraries: Sequence[str] = (),
        patience: Callable[[], float] = lambda: math.inf, threads: int = 0, entries: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._patience = patience
        level, options = ort.GraphOptimizationLevel, quiet_options(libraries)
        options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
        options.intra_op_num_threads = threads
        for key, value in (entries or {}).items():
            options.add_session_config_entry(key, value)
        weights = dict(weights or {})
        outside = {n: weights.pop(n, None) for n in source.tensors}
        files = SideFiles()
        arrays = {n: files.array(source.tensors[n]) if a is None else a for n, a in outside.items()}
        # onnxruntime does not own these arrays: they live as long as the session
        self._kept = [to_value(a) for a in (*arrays.values(), *weights.values())]
        if arrays:
            options.add_external_initializers(list(arrays), self._kept[: len(arrays)])
        for name, value in zip(weights, self._kept[len(arrays) :], strict=True):
            options.add_initializer(name, value)
        self._session = ort.InferenceSession(source.model, options, providers=[CPU])
        self._inputs = {i.name for i in self._session.get_inputs()}
        self._inputs |= {i.name for i in self._session.get_overridable_initializers()}
        self._outputs = [o.name for o in self._session.get_outputs()]
        self._coarse = any(o.type in _COARSE for o in self._session.get_outputs())

    def run(self, feed: Mapping[str, Given]) -> dict[str, Array]:
        """Output arrays by name. A sequence gives its length and an entry "name[i]" per element, an
        optional without a value an entry "name (none)". Raises what onnxruntime raises, and TooLong.
        """
        given = {n: a for n, a in feed.items() if n in self._inputs}
        arrays = {n: a for n, a in given.items() if isinstance(a, np.ndarray)}
        if len(arrays) == len(given) and (self._coarse or any(a.dtype.isbuiltin != 1 for a in arrays.values())):
            values = {n: to_value(np.asarray(a)) for n, a in arrays.items()}
            run = self._apart(lambda options: self._session.run_with_ort_values(self._outputs, values, options))
            results: list[object] = [_to_array(v) for v in run]
        else:
            results = [*self._apart(lambda options: self._session.run(self._outputs, given, options))]
        found: dict[str, Array] = {}
        for name, result in zip(self._outputs, results, strict=True):
            found |= _flat(name, result)
        return found

    def seconds(self, feed: Mapping[str, Given], count: int) -> float:
        """CPU seconds of `count` runs, nothing of which is looked at."""
        given = {n: a for n, a in feed.items() if n in self._inputs}
        whole = all(isinstance(a, np.ndarray) and a.dtype.kind not in "OSU" for a in given.values())  # but texts
        values = {n: to_value(np.asarray(a)) for n, a in given.items()} if whole else given
        run = self._session.run_with_ort_values if whole else self._session.run
        begin = time.process_time()
        for _ in range(count):
            run(self._outputs, values)
        return time.process_time() - begin

    def _apart(self, run: Callable[[ort.RunOptions], Iterable[Any]]) -> Iterable[Any]:
        """What a run gives, in a thread of its own: signals reach this one meanwhile, and either can end the run, which
        may be a loop without an end.
        """
        options = ort.RunOptions()
        options.log_severity_level = 4
        given: list[Iterable[Any]] = []
        failed: list[BaseException] = []
        done = threading.Event()

        def work() -> None:
            try:
                given.append(run(options))
            except BaseException as error:  # whatever it is, it belongs to the caller
                failed.append(error)
            finally:
                done.set()

        worker = threading.Thread(target=work, daemon=True)
        try:
            worker.start()
        except RuntimeError:  # the program is ending
            return run(options)
        try:
            if not done.wait(min(self._patience(), LONGEST)):
                raise TooLong
        finally:
            options.terminate = not done.is_set()
            worker.join()
        for error in failed:
            raise error
        return given[0]


def _flat(name: str, result: object) -> dict[str, Array]:
    """An output as arrays."""
    if isinstance(result, list):
        found: dict[str, Array] = {f"{name} (length)": np.asarray(len(result))}
        for index, item in enumerate(result):
            found |= _flat(f"{name}[{index}]", item)
        return found
    return {f"{name} (none)": np.asarray(True)} if result is None else {name: np.asarray(result)}


def _to_array(value: ort.OrtValue) -> Array:
    if not value.is_tensor():
        raise TypeError("a sequence beside element types that numpy has not cannot be compared")
    coarse = _COARSE.get(value.data_type())
    if coarse is None:
        return np.asarray(value.numpy())
    shape = value.shape()
    # onnxruntime hands out no array of such a type, only where its elements lie
    count = -(-math.prod(shape) * coarse.bitwidth // 8)
    data = np.frombuffer(ctypes.string_at(value.data_ptr(), count), np.uint8)
    if coarse.bitwidth < 8:
        return ir.PackedTensor(data, coarse, shape=ir.Shape(shape)).numpy()
    return data.view(coarse.numpy()).reshape(shape)


def to_value(array: Array) -> ort.OrtValue:
    array = np.ascontiguousarray(array).reshape(array.shape)
    if array.dtype.isbuiltin == 1:
        return ort.OrtValue.ortvalue_from_numpy(array)
    kind = ir.DataType.from_numpy(array.dtype)
    bits = array.view(f"u{array.dtype.itemsize}")
    if kind.bitwidth < 8:  # packed; onnxruntime looks at no more bytes than that takes
        packed = np.frombuffer(ir.Tensor(array, kind).tobytes(), np.uint8)
        bits = np.zeros(array.shape, np.uint8)
        bits.reshape(-1)[: packed.size] = packed
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, kind.value)


_DETACH = 1024  # bytes; smaller tensors stay in the graph, where shape inference may want them


def source_of(model: Model, read: ir.Model) -> Source:
    """What onnxruntime reads a model from; `read` is the model as it was read."""
    if isinstance(model, (str, os.PathLike)):
        if all(Path(t.base_dir) == Path(model).absolute().parent for t, _ in external(read)):
            return Source(os.fspath(model), {})
        model = read  # its weights are links
    if isinstance(model, onnx.ModelProto):
        if model.ByteSize() < 2**31 - 1:  # protobuf's own limit
            return Source(model.SerializeToString(), {})
        model = ir.from_proto(model)
    clone = model.clone()
    tensors: dict[str, ir.TensorProtocol] = {}
    listed = {v.name for v in clone.graph.inputs}
    for name, value in clone.graph.initializers.items():
        tensor = value.const_value
        if tensor is None:
            continue
        whole = tensor.dtype != ir.DataType.STRING and tensor.dtype.bitwidth >= 8
        if whole and tensor.nbytes >= _DETACH and name not in listed:
            tensors[name] = tensor
            shape = ir.Shape(tensor.shape.numpy())
            value.const_value = ir.ExternalTensor("", 0, tensor.nbytes, tensor.dtype, shape=shape, name=name)
        else:
            value.const_value = _inline(tensor)
    # elsewhere onnxruntime takes no arrays from outside, so the data goes into the bytes
    functions = clone.functions.values()
    for graph in (*clone.graph.subgraphs(), *(g for function in functions for g in function.subgraphs())):
        for value in graph.initializers.values():
            value.const_value = _inline(value.const_value) if value.const_value is not None else None
    return Source(ir.to_proto(clone).SerializeToString(), tensors)


def _inline(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if not isinstance(tensor, ir.ExternalTensor):
        return tensor
    return ir.Tensor(np.array(elements(tensor)), tensor.dtype, shape=tensor.shape, name=tensor.name)


_RUNNING = re.compile(r"Non-zero status code .* running (\S+) node\. Name:'(.*?)' Status Message: (.*)", re.S)
_PLACE = re.compile(r"(/\S+|\w+)\.(cc|h|cpp):\d+ +(?:\S.*?\) |\S+ )?")  # of onnxruntime's own code


def reason(error: Exception) -> str:
    """What onnxruntime, or numpy, says, on one line that names the node as far as it does."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error).strip())
    running = _RUNNING.search(text)
    if running is not None:
        op, name, text = running.groups()
        node = f"node {name!r} ({op})" if name else f"a node without a name ({op})"
    lines = " ".join(line.strip() for line in text.splitlines()[:3] if line.strip())
    said = _PLACE.sub("", lines).strip() or type(error).__name__
    return f"{node}: {said}" if running is not None else said


__all__ = ["CPU", "LONGEST", "NotImplementedHere", "Session", "Source", "TooLong", "reason", "source_of", "to_value"]
