"""Element types by their ONNX number, without importing onnx."""

from __future__ import annotations

import numpy as np

#: ONNX TensorProto.DataType number -> numpy name (bfloat16 and the 8-bit floats have no numpy type of their own).
NAMES: dict[int, str] = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16",
}  # fmt: skip
CODES: dict[str, int] = {name: code for code, name in NAMES.items()}

FLOAT32, INT64, BOOL, FLOAT16, FLOAT64, INT32, BFLOAT16, STRING = 1, 7, 9, 10, 11, 6, 16, 8


def code(array: np.ndarray) -> int:
    """The ONNX number of a numpy array's element type. Raises KeyError for types ONNX does not have."""
    return CODES[str(array.dtype)]


def eps(dtype: str) -> float:
    """Spacing of 1.0 in a floating type; 0 for types that compare exactly."""
    return {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}.get(dtype, 0.0)


def masking(itemsize: float) -> float:
    """The bias of a score, in a floating type of so many bytes, at or below which nothing of the score is left."""
    return -6e4 if itemsize == 2 else -1e30
