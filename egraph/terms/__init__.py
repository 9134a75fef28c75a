"""The terms of the e-graph: one declaration for each, and the table of all."""

from .op import (
    CLASSES,
    DIM,
    FLOAT,
    INT,
    INTS,
    LIST,
    NODE,
    TENSOR,
    Assumed,
    Form,
    IllFormed,
    NodeView,
    Op,
    declare,
    form,
    signature,
)  # fmt: skip
from .table import CONSTANTS, FUSED, LAYOUT, LEAVES, NUMBERS, OPAQUE, OPS, SILENT, names

__all__ = [
    "CLASSES", "CONSTANTS", "DIM", "FLOAT", "FUSED", "INT", "INTS", "LAYOUT", "LEAVES", "LIST", "NODE",
    "NUMBERS", "OPAQUE", "OPS", "SILENT", "TENSOR", "Assumed", "Form", "IllFormed", "NodeView", "Op", "declare", "form",
    "names", "signature",
]  # fmt: skip
