"""Operators of onnxruntime that neither ONNX nor `library` knows: what a quantizer or onnxruntime itself leaves behind.

Source: onnxruntime/docs/ContribOperators.md. What follows one of them is optimized if its type and shape are known.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from .moves import matmul, same
from .values import Function, Known, Operation, Outputs, arange


def dequantized(node: Operation) -> Outputs:
    """The first operand in the type of its scale."""
    return [Known(node[1].dtype, node[0].dims)]


def quantized(node: Operation) -> Outputs:
    """The first operand in the type of its zero point, which is uint8 if left out."""
    return [Known(ir.DataType.UINT8 if node.get(2) is None else node[2].dtype, node[0].dims)]


def _product(node: Operation, dtype: ir.DataType | None) -> Outputs:
    found = matmul(node)
    return None if found is None else [Known(dtype, found[0].dims)]


def product_of_type(operand: int) -> Function:
    """A product of the first two operands in the type of another one."""
    return lambda node: _product(node, node[operand].dtype)


def product_of_integers(node: Operation) -> Outputs:
    return _product(node, ir.DataType.INT32)


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
    "DequantizeLinear": dequantized,
    "QuantizeLinear": quantized,
    "DynamicQuantizeMatMul": product_of_type(0),
    "MatMulIntegerToFloat": product_of_type(2),
    "MatMulInteger16": product_of_integers,
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
#: Operators of the default domain that onnxruntime has before ONNX: name -> the operator set that ONNX has it since.
EARLY: Mapping[str, int] = {"LayerNormalization": 17}
