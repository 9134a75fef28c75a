"""Give a real TorchScript export of a layered model another depth.

    python bench/deepen.py IN.onnx LAYERS OUT.onnx

Depth is what a growth benchmark varies, and an exporter needs torch, time and memory for each depth.
Here layers beyond those of the export are copies of its layer 1 with names and weights of their own,
and a model can be cut short the same way: the tail (final norm, head) is joined to another layer.
"""

import argparse
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike

import numpy as np
import onnx
from onnx import numpy_helper

_LAYER = re.compile(r"(?<=\blayers\.)\d+(?=[./])")


@dataclass(frozen=True)
class Layers:
    """Which nodes of a graph belong to which layer, and how the layers hang together.

    `home[i]` is the layer of node i, or None for what lies before, between or after the layers;
    `carry[k]` is the value by which layer k hands its result on.
    """

    home: list[int | None]
    carry: list[str]

    @property
    def count(self) -> int:
        return len(self.carry)

    def nodes(self, layer: int) -> list[int]:
        return [i for i, home in enumerate(self.home) if home == layer]


def find_layers(graph: onnx.GraphProto) -> Layers:
    """Divide `graph` into layers by its node names `.../layers.K/...`.

    Raises ValueError for fewer than two layers, for gaps in their numbers, for a graph with subgraphs,
    and where a layer from 1 on hands on more than one value (a key-value cache for instance).
    """
    if any(a.HasField("g") or a.graphs for node in graph.node for a in node.attribute):
        raise ValueError("models with subgraphs cannot be deepened")
    home = [_named_layer(node.name) for node in graph.node]
    numbers = {layer for layer in home if layer is not None}
    if len(numbers) < 2 or numbers != set(range(len(numbers))):
        raise ValueError(f"expected node names with layers.0, layers.1, ...; found layers {sorted(numbers)}")

    readers: dict[str, list[int]] = {}
    for i, node in enumerate(graph.node):
        for name in node.input:
            readers.setdefault(name, []).append(i)
    results = {value.name for value in graph.output}
    # The exporter leaves constants it folded itself unnamed (Constant_752): they live with their readers.
    for i in reversed(range(len(home))):
        node = graph.node[i]
        if home[i] is None and node.op_type == "Constant":
            layers = {home[reader] for name in node.output for reader in readers.get(name, [])}
            if len(layers) == 1:
                home[i] = layers.pop()

    carry: list[str] = []
    for layer in range(1, len(numbers)):
        leaving = [
            name
            for i, node in enumerate(graph.node)
            if home[i] == layer
            for name in node.output
            if name in results or any(home[reader] != layer for reader in readers.get(name, []))
        ]
        if len(leaving) != 1:
            raise ValueError(f"layer {layer} hands on {leaving}, expected one value")
        carry.extend(leaving)
    # Layer 0 also computes what all layers share (cos and sin with one more axis), so go by the name.
    first = _rename(carry[0], 0)
    if not any(home[reader] == 1 for reader in readers.get(first, [])):
        raise ValueError(f"layer 1 does not read {first!r}, the counterpart of its own result {carry[0]!r}")
    return Layers(home, [first, *carry])


def deepen(model: onnx.ModelProto | str | PathLike[str], layers: int, *, spread: float = 2.0**-6) -> onnx.ModelProto:
    """The architecture of `model` with `layers` layers; `model` itself is left alone.

    Layers of the model come first, as many as are wanted; each further one copies layer 1. Weights
    (floating-point initializers with more than one element) of a copy are new initializers of the same
    shape and dtype: w * (1 + spread * r) with r in [-1, 1), drawn from source name and layer alone, so
    layers differ in every value and in no scale. Scalars and integers stay shared. A path is loaded with
    its external data.

    Raises ValueError where `layers` < 1 or where the model has no repeatable layers (see `find_layers`).
    """
    if layers < 1:
        raise ValueError(f"a model needs at least one layer, not {layers}")
    source = model if isinstance(model, onnx.ModelProto) else onnx.load(model)
    found = find_layers(source.graph)
    weights = {tensor.name: tensor for tensor in source.graph.initializer}

    result = onnx.ModelProto()
    result.CopyFrom(source)
    graph = result.graph
    for field in ("node", "initializer", "value_info"):
        graph.ClearField(field)

    names = _Names(source.graph)
    nodes: list[onnx.NodeProto] = []
    kept = [
        node for node, home in zip(source.graph.node, found.home, strict=True) if home is not None and home < layers
    ]
    outside = [node for node, home in zip(source.graph.node, found.home, strict=True) if home is None]
    nodes.extend(kept)
    carry = found.carry[min(layers, found.count) - 1]
    for layer in range(found.count, layers):
        copied, carry = _copy_layer(source.graph, found, layer, carry, names, weights, graph, spread)
        nodes.extend(copied)
    # Only the tail can read the last layer's result; everything else outside keeps its inputs.
    nodes.extend(_rewired(node, {found.carry[-1]: carry}) for node in outside)

    used = {name for node in nodes for name in node.input} | {value.name for value in graph.output}
    graph.initializer.extend(tensor for tensor in source.graph.initializer if tensor.name in used)
    graph.node.extend(_in_order(nodes))
    return result


def _named_layer(name: str) -> int | None:
    match = _LAYER.search(name)
    return int(match.group()) if match else None


def _rename(name: str, layer: int) -> str:
    return _LAYER.sub(str(layer), name)


class _Names:
    """Names for copies: the layer's number replaced, or a new suffix where there is none to replace."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._taken = {value.name for value in [*graph.input, *graph.output, *graph.initializer]}
        self._taken.update(name for node in graph.node for name in [node.name, *node.output])

    def copy(self, name: str, layer: int) -> str:
        wanted = _rename(name, layer)
        if wanted in self._taken:
            wanted = f"{name}_layer{layer}"
        if wanted in self._taken:
            raise ValueError(f"cannot name the copy of {name!r} in layer {layer}: {wanted!r} is taken")
        self._taken.add(wanted)
        return wanted


def _copy_layer(
    graph: onnx.GraphProto,
    found: Layers,
    layer: int,
    entry: str,
    names: _Names,
    weights: Mapping[str, onnx.TensorProto],
    target: onnx.GraphProto,
    spread: float,
) -> tuple[list[onnx.NodeProto], str]:
    """Copy layer 1 as `layer`, reading `entry`; adds its weights to `target`; returns nodes and result."""
    values = {found.carry[0]: entry}
    template = [graph.node[i] for i in found.nodes(1)]
    for node in template:
        values.update((name, names.copy(name, layer)) for name in node.output if name)
        for name in node.input:
            tensor = weights.get(name)
            if tensor is not None and name not in values and _is_weight(tensor):
                values[name] = names.copy(name, layer)
                target.initializer.append(_vary(tensor, values[name], layer, spread))
    copies = []
    for node in template:
        copied = _rewired(node, values)
        if node.name:
            copied.name = names.copy(node.name, layer)
        copies.append(copied)
    return copies, values[found.carry[1]]


def _is_weight(tensor: onnx.TensorProto) -> bool:
    floating = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE}
    return tensor.data_type in floating and int(np.prod(tensor.dims)) > 1


def _vary(tensor: onnx.TensorProto, name: str, layer: int, spread: float) -> onnx.TensorProto:
    values = numpy_helper.to_array(tensor)
    random = np.random.default_rng([zlib.crc32(tensor.name.encode()), layer])
    noise = random.uniform(-1.0, 1.0, values.shape)
    return numpy_helper.from_array((values * (1.0 + spread * noise)).astype(values.dtype), name)


def _rewired(node: onnx.NodeProto, values: Mapping[str, str]) -> onnx.NodeProto:
    copied = onnx.NodeProto()
    copied.CopyFrom(node)
    copied.input[:] = [values.get(name, name) for name in node.input]
    copied.output[:] = [values.get(name, name) for name in node.output]
    return copied


def _in_order(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """`nodes`, each after what it reads; otherwise in the order given. Raises ValueError on a cycle."""
    maker = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    waiting = [0] * len(nodes)
    readers: dict[int, list[int]] = {}
    for i, node in enumerate(nodes):
        for j in {maker[name] for name in node.input if name in maker}:
            readers.setdefault(j, []).append(i)
            waiting[i] += 1
    ready = [i for i in reversed(range(len(nodes))) if not waiting[i]]
    done = 0
    while ready:
        i = ready.pop()
        done += 1
        yield nodes[i]
        for reader in reversed(readers.get(i, [])):
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    if done != len(nodes):
        raise ValueError("the graph has a cycle")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("layers", type=int)
    parser.add_argument("target")
    options = parser.parse_args()
    model = deepen(options.source, options.layers)
    onnx.save(model, options.target)
    kinds = Counter(node.op_type for node in model.graph.node)
    print(f"{options.target}: {options.layers} layers, {len(model.graph.node)} nodes, {kinds.most_common(5)}")


if __name__ == "__main__":
    main()
