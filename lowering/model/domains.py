"""The domains of operators, under one name each: "ai.onnx" is another name of the default domain, which is "".

onnx-ir gives nodes the one name; a model's and its functions' imports, and functions, keep what was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx
import onnx_ir as ir

DEFAULT = ""
#: That of onnxruntime.
RUNTIME = "com.microsoft"


def plain(domain: str) -> str:
    """The one name of a domain."""
    return DEFAULT if domain == "ai.onnx" else domain


def as_read(version: int) -> int:
    """The version of an operator set that onnxruntime takes a file to name: it keeps the last 32 bits."""
    return (version + 2**31) % 2**32 - 2**31


def schema(op: str, opset: int) -> onnx.defs.OpSchema | None:
    """ONNX's definition of an operator in this opset of the default domain; None where it has none."""
    try:
        return onnx.defs.get_schema(op, opset, DEFAULT)
    except onnx.defs.SchemaError:
        return None


def imported(versions: Mapping[str, int] | Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """The version of each domain, by its one name. Of several of one domain onnxruntime takes the last."""
    pairs = versions.items() if isinstance(versions, Mapping) else [(o.domain, o.version) for o in versions]
    return {plain(domain): version for domain, version in pairs}


def keep_order(model: ir.Model, proto: onnx.ModelProto) -> None:
    """Order the imports as the file does by the last of each domain: onnx-ir orders them by the first."""
    versions = model.graph.opset_imports
    for entry in proto.opset_import:
        versions[entry.domain] = (versions.pop(entry.domain), entry.version)[1]


def unify(model: ir.Model) -> None:
    """Give every domain its one name, in place."""
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        versions = imported(graph.opset_imports)
        graph.opset_imports.clear()
        graph.opset_imports.update(versions)
    for key, function in list(model.functions.items()):
        if function.domain != plain(function.domain):
            del model.functions[key]
            function.domain = plain(function.domain)
            model.functions[function.identifier()] = function
