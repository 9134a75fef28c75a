"""Initializers that are listed among the inputs, as all had to be before IR version 4.

onnxruntime lets nobody feed them in such a model: they are constants. From IR version 4 on they are defaults.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

#: The first IR version whose initializers need not be listed.
FREE = 4


def unlist(model: ir.Model) -> list[ir.Value]:
    """Take constants out of the inputs, in place; the inputs as they were, for `relist`."""
    inputs = list(model.graph.inputs)
    if (model.ir_version or 0) < FREE:
        for value in inputs:
            if value.const_value is not None:
                model.graph.inputs.remove(value)
    return inputs


def relist(model: ir.Model, inputs: Iterable[ir.Value]) -> None:
    """Make the inputs what they were, in place: a caller may go by the list, even for what nothing uses any more.

    Such a constant says of what type it is: onnxruntime asks its tensor only if a node uses it.
    """
    model.graph.inputs.clear()
    for value in inputs:
        model.graph.inputs.append(value)
        if value.const_value is not None and value.name not in model.graph.initializers:
            if value.type is None:
                tensor = value.const_value
                value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
            model.graph.register_initializer(value)
