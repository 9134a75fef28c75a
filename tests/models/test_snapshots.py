"""What the optimizer makes of each fixture export, as text beside this file, so that a reviewer sees in a diff what a
change does to Qwen3 and the others.

`make snapshots` writes the texts anew.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from onnx_egraph import saturate_and_extract

HERE = Path(__file__).parent
EXPORTS = sorted(p.stem for p in (HERE / "exports").glob("*.onnx"))


def snapshot(source: Path, target: str) -> str:
    """Sizes, costs, rules, assumptions and the whole graph of one result."""
    result = saturate_and_extract(source, target=target)
    model, report = result.model, result.report
    assert isinstance(model, ir.Model)
    size = report.egraph
    lines = [
        f"{source.stem} for {target}",
        f"nodes: {report.nodes_before} -> {report.nodes_after}",
        f"e-graph: {size['classes']} classes, {size['nodes']} nodes, {size['tuples']} tuples,"
        f" {size['iterations']} iterations, {report.stop}",
        f"predicted cost: {report.cost_before} -> {report.cost_after}, {report.extraction}",
        *(f"needs: {n}" for n in report.needs),
        *(f"assumes: {a}" for a in report.assumptions),
    ]
    fused = Counter((f.op, f.written, f.rules) for f in report.fused)
    for (op, written, rules), count in sorted(fused.items()):
        lines.append(f"fused: {count} x {op}" + (f" as {written}" if written not in ("", op) else ""))
        lines += [f"    by {rule}" for rule in rules]
    for graph in model.graphs():
        lines += ["", f"graph of {graph.num_nodes()} nodes", *_operators(graph), *_program(graph)]
    return "\n".join(lines) + "\n"


def _operators(graph: ir.Graph) -> list[str]:
    return [f"{count:5} x {op}" for op, count in sorted(Counter(_type(n) for n in graph).items())]


def _type(node: ir.Node) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def _program(graph: ir.Graph) -> list[str]:
    """One line a node; values are numbered in order, since names say nothing of what changed."""
    numbers: dict[ir.Value, str] = {v: f"%{v.name}" for v in graph.inputs}
    lines = []
    for node in graph:
        operands = ", ".join(_value(v, numbers) for v in node.inputs)
        for out in node.outputs:
            numbers[out] = f"%{len(numbers) - len(graph.inputs)}"
        made = ", ".join(numbers[out] for out in node.outputs)
        attributes = ", ".join(
            f"{a.name}={a.value!r}" for a in sorted(node.attributes.values(), key=lambda a: a.name)
            if a.type not in (ir.AttributeType.GRAPH, ir.AttributeType.TENSOR)
        )  # fmt: skip
        lines.append(f"{made} = {_type(node)}({operands})" + (f" {{{attributes}}}" if attributes else ""))
    lines.append(f"return {', '.join(numbers.get(v, str(v.name)) for v in graph.outputs)}")
    return lines


def _value(value: ir.Value | None, numbers: dict[ir.Value, str]) -> str:
    if value is None:
        return "-"
    if value in numbers:
        return numbers[value]
    tensor = value.const_value
    if tensor is None:
        return f"%{value.name}"  # of an outer graph
    kind = f"{tensor.dtype.name}{list(tensor.shape.numpy())}"
    array: Any = np.asarray(tensor.numpy())
    return f"{kind} {array.tolist()}" if array.size <= 8 else kind


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("name", EXPORTS)
def test_snapshot(name: str, target: str) -> None:
    path = HERE / "snapshots" / f"{name}.{target}.txt"
    text = snapshot(HERE / "exports" / f"{name}.onnx", target)
    if os.environ.get("SNAPSHOTS") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_no_snapshot_is_left_over() -> None:
    wanted = {f"{name}.{target}.txt" for name in EXPORTS for target in ("cpu", "cuda")}
    assert {p.name for p in (HERE / "snapshots").iterdir()} == wanted
