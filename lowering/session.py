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
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NotImplementedHere

from ..egraph.budget import Budget, Limits
from .feeds import Array, Model
from .tensors import SideFiles, elements, external

CPU = "CPUExecutionProvider"
# Element types of a whole byte or more that numpy has not, by onnxruntime's names.
_COARSE: Mapping[str, ir.DataType] = MappingProxyType(
    {
        "tensor(bfloat16)": ir.DataType.BFLOAT16,
        "tensor(float8e4m3fn)": ir.DataType.FLOAT8E4M3FN,
        "tensor(float8e4m3fnuz)": ir.DataType.FLOAT8E4M3FNUZ,
        "tensor(float8e5m2)": ir.DataType.FLOAT8E5M2,
        "tensor(float8e5m2fnuz)": ir.DataType.FLOAT8E5M2FNUZ,
    }
)


class Source(NamedTuple):
    """What a session is made from: a path or serialised bytes, and the tensors those bytes leave out."""

    model: str | bytes
    tensors: Mapping[str, ir.TensorProtocol]


class Session:
    """A loaded model. `weights` replace initializers of the same name.

    Loading and running raise LimitReached where the longest of its kind so far does not fit into the budget.
    """

    def __init__(
        self, source: Source, optimise: bool, weights: Mapping[str, Array] | None = None, budget: Budget | None = None
    ) -> None:
        self._budget = budget or Budget(Limits())
        with self._budget.step("verifying", "load"):
            self._load(source, optimise, weights)

    def _load(self, source: Source, optimise: bool, weights: Mapping[str, Array] | None) -> None:
        level = ort.GraphOptimizationLevel
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
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
        self._options = ort.RunOptions()
        self._options.log_severity_level = 4
        self._session = ort.InferenceSession(source.model, options, providers=[CPU])
        self._inputs = {i.name for i in self._session.get_inputs()}
        self._inputs |= {i.name for i in self._session.get_overridable_initializers()}
        self._outputs = [o.name for o in self._session.get_outputs()]
        self._coarse = any(o.type in _COARSE for o in self._session.get_outputs())

    def run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Output arrays by name. Raises what onnxruntime raises; TypeError for a sequence or map."""
        with self._budget.step("verifying", "run"):
            return self._run(feed)

    def _run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        given = {n: a for n, a in feed.items() if n in self._inputs}
        if self._coarse or any(a.dtype.isbuiltin != 1 for a in given.values()):
            return self._run_values(given)
        results = self._session.run(self._outputs, given, self._options)
        if any(isinstance(result, (list, dict)) for result in results):
            raise TypeError("only tensors can be compared")
        return dict(zip(self._outputs, map(np.asarray, results), strict=True))

    def _run_values(self, given: Mapping[str, Array]) -> dict[str, Array]:
        """The same for element types numpy has not, such as bfloat16."""
        values = {n: to_value(np.asarray(a)) for n, a in given.items()}
        results = self._session.run_with_ort_values(self._outputs, values, self._options)
        if any(not value.is_tensor() for value in results):
            raise TypeError("only tensors can be compared")
        return {name: _to_array(value) for name, value in zip(self._outputs, results, strict=True)}


def _to_array(value: ort.OrtValue) -> Array:
    coarse = _COARSE.get(value.data_type())
    if coarse is None:
        return np.asarray(value.numpy())
    kind, shape = coarse.numpy(), value.shape()
    # onnxruntime hands out no array of such a type, only where its elements lie
    data = ctypes.string_at(value.data_ptr(), math.prod(shape) * kind.itemsize)
    return np.frombuffer(data, kind).reshape(shape)


def to_value(array: Array) -> ort.OrtValue:
    array = np.ascontiguousarray(array).reshape(array.shape)
    if array.dtype.isbuiltin == 1:
        return ort.OrtValue.ortvalue_from_numpy(array)
    bits = array.view(f"u{array.dtype.itemsize}")
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, ir.DataType.from_numpy(array.dtype).value)


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


__all__ = ["CPU", "NotImplementedHere", "Session", "Source", "source_of", "to_value"]
