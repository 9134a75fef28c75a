"""What the CPU provider has no kernel for, as steps it has: for comparing numbers, never for a file."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from ..model.operators import INNER_NORM, NORMED, full_name


def for_cpu(model: ir.Model) -> ir.Model:
    """The model itself, or a copy in which the norms inside a fused attention stand in front of it.

    Weights are shared with the model, which is left as it is.
    """
    if not any(True for _ in _normed(model)):
        return model
    copy = model.clone()
    for count, node in enumerate(list(_normed(copy))):
        _take_out(node, f"{node.name or node.op_type}@{count}")
    return copy


def _normed(model: ir.Model) -> Iterator[ir.Node]:
    for node in model.graph.all_nodes():
        inner = NORMED.get(full_name(node), {})
        apart = all(_given(node, i) for i in range(3))  # not packed into one operand
        if apart and any(_given(node, weight) for weight, _ in inner.values()):
            yield node


def _given(node: ir.Node, index: int) -> bool:
    return index < len(node.inputs) and node.inputs[index] is not None


def _take_out(node: ir.Node, base: str) -> None:
    graph = node.graph
    assert graph is not None
    epsilon = node.attributes.get_float("qk_norm_epsilon", 1e-6)
    for operand, (at, heads) in NORMED[full_name(node)].items():
        value, weight = node.inputs[operand], node.inputs[at] if at < len(node.inputs) else None
        if value is None or weight is None:
            continue
        count = node.attributes[heads].as_int()
        split, join = ([0, 0, count, -1], [0, 0, -1])
        steps: list[ir.Node] = []

        def step(
            op: str, inputs: list[ir.Value], attributes: list[ir.Attr], to: list[ir.Node] = steps, k: int = operand
        ) -> ir.Value:
            made = ir.Node("", op, inputs, attributes, outputs=[ir.Value(name=f"{base}.{k}.{len(to)}")])
            to.append(made)
            return made.outputs[0]

        dims = [step("Constant", [], [ir.AttrInt64s("value_ints", shape)]) for shape in (split, join)]
        attributes = [ir.AttrInt64("axis", -1), ir.AttrFloat32("epsilon", epsilon), ir.AttrInt64("stash_type", 1)]
        normed = step(INNER_NORM, [step("Reshape", [value, dims[0]], []), weight], attributes)
        node.replace_input_with(operand, step("Reshape", [normed, dims[1]], []))
        node.replace_input_with(at, None)
        graph.insert_before(node, steps)
    node.attributes.pop("qk_norm_epsilon", None)
