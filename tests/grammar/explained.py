"""Does the explanation of each fused operator replay, and does each of its steps keep the numbers?"""

from __future__ import annotations

from collections.abc import Sequence

from grammar.judge import model_of
from grammar.writer import Spelling

from onnx_egraph import saturate_and_extract


def unexplained(spellings: Sequence[Spelling]) -> tuple[int, list[str]]:
    """How many operators are fused in these spellings, of one operator set, and what is wrong with explanations."""
    result = saturate_and_extract(model_of(spellings))
    faults = []
    for fused in result.report.fused:
        told = result.explain(fused.node)
        false = next((step for step in told.steps if step.false), None)
        if false is not None or not told.complete:
            faults.append(f"{fused.op} {fused.node}: {false or told.text()}")
    return len(result.report.fused), faults
