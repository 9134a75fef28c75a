"""Bring a model of an older opset to the oldest one that is read, node by node, so that all else stays as it is.

onnx's own converter takes the whole model apart: it reads weights, drops what nodes say about themselves, leaves the
bodies of nodes as they were, and turns an Upsample into a Resize with another rule for coordinates. Few operators
changed in these opsets, and what they moved was attributes to operands.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import onnx_ir as ir

from ...egraph.terms.norm import UNVERSIONED
from ..model.domains import DEFAULT, schema
from ..model.names import Names
from ..model.tensors import initializer
from ..model.wellformed import label
from ..opsets import same_operator
from ..shapes.inference import Shapes, infer
from .load import OLDEST_OPSET

#: The oldest opset that is raised: before it, operands were broadcast as attributes said.
FIRST_RAISED = 7
#: The definition of OLDEST_OPSET says more, and the same where that is left out.
_GREW = frozenset({"AveragePool", "Constant", "DepthToSpace", "Gemm", "Loop", "MaxPool"})
#: What these said in attributes, or under this name, OLDEST_OPSET says otherwise.
_CHANGED = frozenset({"Scatter", "Slice", "TopK"})


def renew(model: ir.Model) -> str:
    """Raise the model to OLDEST_OPSET, in place, unless it is as new. Why that cannot be, or nothing; then the model
    is unchanged.
    """
    opset = model.opset_imports.setdefault(DEFAULT, OLDEST_OPSET)
    if opset >= OLDEST_OPSET:
        return ""
    old = f"opset {opset} is older than {OLDEST_OPSET}"
    if opset < FIRST_RAISED:
        return f"{old}; convert the model first"
    if model.functions:
        return f"{old}, and some of the model's functions cannot be inlined; convert the model first"
    renewal = _Renewal(model)
    nodes = [node for graph in model.graphs() for node in graph if node.domain == DEFAULT]
    for node in nodes:
        if not renewal.possible(node, opset):
            what = label(node)
            if schema(node.op_type, opset) is None:
                return f"{old}, and {what} is no operator of opset {opset}; correct or convert the model first"
            return f"{old}, in which {what} means something else; convert the model first"
    for node in nodes:
        renewal.renew(node, opset)
    model.opset_imports[DEFAULT] = OLDEST_OPSET
    return ""


class _Renewal:
    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._names = Names.of(model)

    @cached_property
    def _shapes(self) -> Shapes:
        return infer(self._model)

    def possible(self, node: ir.Node, opset: int) -> bool:
        """Whether the node can be said in OLDEST_OPSET."""
        match node.op_type:
            case "Dropout":  # its mask became boolean
                return not any(mask.name for mask in node.outputs[1:])
            case "BatchNormalization":
                return node.attributes.get_int("spatial", 1) == 1 and len(node.outputs) == 1
            case "Clip":
                return self._dtype(node) is not None
            case "Pad":
                return not node.attributes.get_float("value", 0.0) or self._dtype(node) is not None
            case kind:
                return kind in _GREW | _CHANGED | UNVERSIONED or same_operator(kind, opset, OLDEST_OPSET)

    def renew(self, node: ir.Node, opset: int) -> None:
        """Say the node in OLDEST_OPSET, in place."""
        attributes = node.attributes
        match node.op_type:
            case "BatchNormalization":
                attributes.pop("spatial", None)
            case "Clip":
                self._operands(node, self._floats(node, "min"), self._floats(node, "max"))
            case "Pad":
                self._operands(node, self._ints(node, "pads"), self._floats(node, "value"))
            case "Scatter":
                node.op_type = "ScatterElements"
            case "Slice" if opset < 10:
                self._operands(node, *(self._ints(node, name) for name in ("starts", "ends", "axes")))
            case "TopK" if opset < 10:
                k = node.attributes.pop("k").as_int()
                self._operands(node, ir.tensor([k], ir.DataType.INT64))
            case _:
                pass

    def _ints(self, node: ir.Node, name: str) -> ir.TensorProtocol | None:
        given = node.attributes.pop(name, None)
        return None if given is None else ir.tensor(list(given.as_ints()), ir.DataType.INT64)

    def _floats(self, node: ir.Node, name: str) -> ir.TensorProtocol | None:
        given = node.attributes.pop(name, None)
        dtype = self._dtype(node)
        if given is None or dtype is None:
            return None
        return ir.tensor(np.asarray(given.as_float(), np.float32).astype(dtype.numpy()), dtype)

    def _dtype(self, node: ir.Node) -> ir.DataType | None:
        data = node.inputs[0]
        return None if data is None else self._shapes.of(data).dtype

    def _operands(self, node: ir.Node, *more: ir.TensorProtocol | None) -> None:
        """Give a node constants as further operands."""
        while more and more[-1] is None:
            more = more[:-1]
        node.resize_inputs(len(node.inputs) + len(more))
        for place, tensor in enumerate(more, len(node.inputs) - len(more)):
            if tensor is not None:
                name = self._names.values.fresh(f"{node.op_type}_bound")
                value = initializer(tensor, name)
                assert node.graph is not None
                node.graph.register_initializer(value)
                node.replace_input_with(place, value)
