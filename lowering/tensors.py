"""Tensors shared with the caller's model: never renamed in place, and found wherever a model keeps them.

onnx-ir keeps a tensor's name in the tensor, sets it when serialising, and shares tensors among clones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx_ir as ir


def renamed(tensor: ir.TensorProtocol, name: str | None) -> ir.TensorProtocol:
    """The same elements under another name, neither copied nor read; the tensor itself where it may stay."""
    # onnx-ir 1.1 writes the metadata of a TensorProto twice
    doubled = isinstance(tensor, ir.serde.TensorProtoTensor) and bool(tensor.metadata_props)
    if tensor.name == name and not doubled:
        return tensor
    if isinstance(tensor, ir.ExternalTensor):
        return moved(tensor, str(tensor.location), str(tensor.base_dir), name)
    doc, metadata = tensor.doc_string, dict(tensor.metadata_props)
    if isinstance(tensor, ir.StringTensor):
        return ir.StringTensor(
            tensor.string_data(),
            shape=ir.Shape(tensor.shape.numpy()),
            name=name,
            doc_string=doc,
            metadata_props=metadata,
        )
    return ir.LazyTensor(
        lambda: tensor,
        tensor.dtype,
        ir.Shape(tensor.shape.numpy()),
        name=name,
        doc_string=doc,
        metadata_props=metadata,
    )


def moved(
    tensor: ir.ExternalTensor, location: str, folder: str, name: str | None = None
) -> ir.ExternalTensor:
    """The same elements read from `location` in `folder`."""
    return ir.ExternalTensor(
        location,
        tensor.offset,
        tensor.length,
        tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=name or tensor.name or "",
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
        base_dir=folder,
    )


def own_names(model: ir.Model) -> None:
    """Give each initializer a tensor of its name: serialising then renames none of another model."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = renamed(value.const_value, value.name)


def external(model: ir.Model) -> Iterator[tuple[ir.ExternalTensor, Callable[[ir.ExternalTensor], None]]]:
    """Each tensor kept in a side file, of an initializer or an attribute, and a function that replaces it."""
    for graph in _graphs(model):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                yield value.const_value, _setter(value)
        for node in graph:
            for key, a in list(node.attributes.items()):
                if a.type == ir.AttributeType.TENSOR and isinstance(a.value, ir.ExternalTensor):
                    yield a.value, _attribute_setter(node, key)


def _graphs(model: ir.Model) -> Iterator[ir.Graph]:
    yield from model.graphs()
    for function in model.functions.values():
        yield function.graph
        yield from function.graph.subgraphs()


def _setter(value: ir.Value) -> Callable[[ir.ExternalTensor], None]:
    def replace(tensor: ir.ExternalTensor) -> None:
        value.const_value = tensor

    return replace


def _attribute_setter(node: ir.Node, key: str) -> Callable[[ir.ExternalTensor], None]:
    def replace(tensor: ir.ExternalTensor) -> None:
        node.attributes[key] = ir.AttrTensor(key, tensor)

    return replace
