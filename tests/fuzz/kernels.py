"""Element types: which of them an operator takes in onnxruntime."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h


@cache
def kernels() -> dict[tuple[str, str], list[Any]]:
    """onnxruntime's kernels on the CPU, by domain and operator."""
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def

    found: dict[tuple[str, str], list[Any]] = {}
    for k in get_all_opkernel_def():
        if k.provider == "CPUExecutionProvider":
            found.setdefault((k.domain, k.op_name), []).append(k)
    return found


@cache
def types_of(domain: str, op: str, opset: int, place: int = 0) -> tuple[int, ...]:
    """Element types that an operand may have, by operator definition and kernel; () if there is no such operator."""
    try:
        schema = onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError:
        foreign = domain or op == "SimplifiedLayerNormalization"  # which onnxruntime has in the default domain
        return (T.FLOAT,) if foreign and (domain, op) in kernels() else ()
    if schema.deprecated:
        return ()
    name = schema.inputs[min(place, len(schema.inputs) - 1)].type_str
    allowed = next((set(c.allowed_type_strs) for c in schema.type_constraints if c.type_param_str == name), {name})
    runs: set[str] = set()
    for k in kernels().get((domain, op), ()):
        if k.version_range[0] <= schema.since_version <= k.version_range[1]:
            runs |= set(k.type_constraints.get(name, allowed))
    if (schema.has_function or schema.has_context_dependent_function) and not runs:
        runs = allowed
    pairs = (t.removeprefix("tensor(").removesuffix(")") for t in allowed & runs if t.startswith("tensor("))
    rename = {"float": "FLOAT", "double": "DOUBLE"}
    numbers = (T.DataType.Value(rename.get(t, t.upper())) for t in pairs)
    return tuple(sorted(n for n in numbers if (n <= 13 and n != T.STRING) or n == T.BFLOAT16))


def numpy_type(dtype: int) -> np.dtype[Any]:
    return h.tensor_dtype_to_np_dtype(dtype)


def is_float(dtype: int) -> bool:
    return dtype in (T.FLOAT, T.FLOAT16, T.DOUBLE, T.BFLOAT16)
