"""Bring a model in: from a path, a ModelProto or an onnx_ir.Model, checked, inlined and sorted.

Weights in side files stay there: only their presence, place and length are looked at.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx_ir.passes.common import InlinePass, LiftConstantsToInitializersPass, TopologicalSortPass

from ..egraph.errors import ModelError

Source = str | os.PathLike[str] | onnx.ModelProto | ir.Model
#: Models older than this come back unchanged.
OLDEST_OPSET = 11


@dataclass(frozen=True, slots=True)
class Loaded:
    """A private copy of the model, and what kind it came as ("path", "proto" or "ir")."""

    model: ir.Model
    kind: str
    opset: int


def load(source: Source) -> Loaded:
    """Read and check a model. The caller's object is not changed and its weights are not copied.

    Raises ModelError naming the file or node when the model cannot be read: missing, truncated, no outputs, a cycle,
    a value nothing produces, an opset newer than the installed onnx knows, external data missing, too short or
    outside the model's folder.
    """
    if isinstance(source, onnx.ModelProto):
        kind, model = "proto", _deserialize(source, "the ModelProto")
    elif isinstance(source, ir.Model):
        kind, model = "ir", source.clone()
    else:
        kind, model = "path", _read(Path(source))
    opset = _opset(model)
    _check_external(model, Path(source).parent if kind == "path" else None)  # type: ignore[arg-type]
    if not model.graph.outputs:
        raise ModelError("the graph has no outputs, so there is nothing to compute; give a complete model")
    if model.functions:
        model = InlinePass()(model).model
        model.functions.clear()
    _check_graph(model)
    return Loaded(model, kind, opset)


def lift_constants(model: ir.Model) -> None:
    """Turn Constant nodes into initializers, in place."""
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)


def _read(path: Path) -> ir.Model:
    if not path.is_file():
        raise ModelError(f"{path}: no such file")
    if path.stat().st_size == 0:
        raise ModelError(f"{path}: the file is empty")
    try:
        proto = onnx.load_model(str(path), load_external_data=False)
    except (DecodeError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(f"{path}: not a complete ONNX model ({reason}); was it cut short?") from error
    model = _deserialize(proto, str(path))
    for tensor in _external(model):
        tensor.base_dir = str(path.parent)
    return model


def _deserialize(proto: onnx.ModelProto, where: str) -> ir.Model:
    if not proto.HasField("graph"):
        raise ModelError(f"{where}: holds no graph; is it an ONNX model?")
    try:
        return ir.from_proto(proto)
    except Exception as error:  # onnx-ir raises several kinds for malformed protos
        raise ModelError(f"{where}: malformed ONNX model ({str(error).splitlines()[0]})") from error


def _opset(model: ir.Model) -> int:
    imports = model.graph.opset_imports
    opset = imports.get("", imports.get("ai.onnx"))
    if opset is None:
        used = next((n for n in model.graph if n.domain in ("", "ai.onnx")), None)
        if used is not None:
            raise ModelError(f"node {used.name!r} ({used.op_type}): the model imports no opset of the default domain")
        return OLDEST_OPSET
    newest = onnx.defs.onnx_opset_version()
    if opset > newest or opset < 1:
        raise ModelError(f"unknown opset {opset} of the default domain; the installed onnx knows 1 to {newest}")
    return int(opset)


def _external(model: ir.Model) -> list[ir.ExternalTensor]:
    found = []
    for graph in model.graphs():
        found += [v.const_value for v in graph.initializers.values() if isinstance(v.const_value, ir.ExternalTensor)]
        for node in graph:
            for a in node.attributes.values():
                if a.type == ir.AttributeType.TENSOR and isinstance(a.value, ir.ExternalTensor):
                    found.append(a.value)
    return found


def _check_external(model: ir.Model, folder: Path | None) -> None:
    for tensor in _external(model):
        name, location = tensor.name, str(tensor.location)
        if os.path.isabs(location) or ".." in Path(location).parts:
            raise ModelError(f"tensor {name!r}: external data at {location!r} lies outside the model's folder")
        if folder is None:
            continue
        path = folder / location
        if not path.is_file():
            raise ModelError(f"tensor {name!r}: external data file {path} is missing")
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ModelError(f"tensor {name!r}: external data at {location!r} leads outside the model's folder")
        end = (tensor.offset or 0) + (tensor.length if tensor.length is not None else tensor.nbytes)
        if end > path.stat().st_size:
            raise ModelError(f"tensor {name!r}: external data file {path} ends before byte {end}; was it cut short?")


def _check_graph(model: ir.Model) -> None:
    for graph in model.graphs():
        for node in graph:
            for v in node.inputs:
                if v is not None and v.producer() is None and not v.is_graph_input() and v.const_value is None:
                    raise ModelError(f"node {node.name!r} ({node.op_type}): input {v.name!r} is produced by nothing")
        for v in graph.outputs:
            if v.producer() is None and not v.is_graph_input() and v.const_value is None:
                raise ModelError(f"graph output {v.name!r} is produced by nothing")
    try:
        TopologicalSortPass()(model)
    except Exception as error:
        raise ModelError(f"the graph has a cycle through node {_on_cycle(model.graph)}; ONNX graphs are acyclic") from error


def _on_cycle(graph: ir.Graph) -> str:
    """The first node, in file order, that waits for itself."""
    waiting = {n: {v.producer() for v in n.inputs if v is not None and v.producer() is not None} for n in graph}
    done: set[ir.Node] = set()
    while ready := [n for n, needs in waiting.items() if needs <= done]:
        done.update(ready)
        for n in ready:
            del waiting[n]
    return repr(next(iter(waiting)).name) if waiting else "(in a subgraph)"
