"""Operators of onnxruntime that neither ONNX nor `library` knows: what a quantizer or onnxruntime itself leaves behind.

Source: onnxruntime/docs/ContribOperators.md. What follows one of them is optimized if its type and shape are known.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from .moves import matmul, same
from .values import Function, Known, Operation, Outputs, arange


def quantized(node: Operation) -> Outputs:
    """The first operand in the type of its zero point, which is uint8 if left out."""
    return [Known(ir.DataType.UINT8 if node.get(2) is None else node[2].dtype, node[0].dims)]


def product_of_blocks(node: Operation) -> Outputs:
    """x times a matrix of attributes K rows and N columns."""
    dims = node[0].dims
    if not dims or not node.has("N") or node.attribute("transB", 1) == 0:
        return [Known(node[0].dtype)]
    return [Known(node[0].dtype, (*dims[:-1], node.attribute("N", 0)))]


def gathered_blocks(node: Operation) -> Outputs:
    """Rows of a table of blocks in the type of their scales; a byte holds several numbers along the last axis."""
    data, indices, dtype = node[0], node[1], node[2].dtype
    axis = node.attribute("gather_axis", 0)
    if data.dims is None or indices.dims is None or axis not in range(len(data.dims) - 1):
        return [Known(dtype)]
    held = 8 // node.attribute("bits", 4) if data.dtype == ir.DataType.UINT8 else 1
    *rows, last = data.dims[axis + 1 :]
    return [Known(dtype, (*data.dims[:axis], *indices.dims, *rows, node.dims.mul(last, held)))]


#: By their names in com.microsoft.
TABLE: Mapping[str, Function] = {
    "DequantizeLinear": lambda node: [Known(node[1].dtype, node[0].dims)],
    "QuantizeLinear": quantized,
    "DynamicQuantizeMatMul": lambda node: [Known(node[0].dtype, matmul(node)[0].dims)],
    "MatMulIntegerToFloat": lambda node: [Known(node[2].dtype, matmul(node)[0].dims)],
    "MatMulInteger16": lambda node: [Known(ir.DataType.INT32, matmul(node)[0].dims)],
    "MatMulBnb4": product_of_blocks,
    "GatherBlockQuantized": gathered_blocks,
    "BiasSoftmax": same,
    "Inverse": same,
    "Trilu": same,
    "Range": arange,
}
#: Those that take and give what another operator does, by its domain and name, and compute more.
LIKE: Mapping[str, tuple[str, str]] = {
    "FusedGemm": ("", "Gemm"),
    "FusedConv": ("", "Conv"),
    "GatherND": ("", "GatherND"),
}
