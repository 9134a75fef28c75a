"""The fused operators of a written graph, entered into the report with the rules that led to them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx_ir as ir

from .egraph.terms import FUSED, OPS
from .lowering.explain import Explainer
from .lowering.model.operators import full_name
from .report import Fused, Report


def enter(
    report: Report, explainer: Explainer, written: Mapping[int, list[ir.Node]], declared: Collection[str]
) -> None:
    """Enter each new fused operator of a written graph, and what its rules assume; tell the explainer its nodes.

    `written` are the nodes of each class; `declared` the terms that a caller declared: a node of one counts as fused.
    """
    rules, assumed = explainer.rules, set(report.assumptions)
    assumes = {r.name: r.assumes for r in rules}
    merging = {k for k, r in enumerate(rules) if not r.roots()[1]}  # their product is an operand
    for c, r in explainer.choice.items():
        if r in explainer.old:
            silent = explainer.frozen.why.get(c, set()) & merging
            assumed.update(a for k in silent for a in rules[k].assumes)
            continue
        by = explainer.rules_of(c)
        assumed.update(a for name in by for a in assumes[name])
        if r.op not in FUSED and r.op not in declared:
            explainer.others.update((n.name or "", c) for n in written.get(c, ()))
            continue
        for n in written.get(c, ()):
            explainer.values.setdefault(c, n.outputs[0].name or "")
            explainer.nodes[n.name or ""] = c
            graph = explainer.reading.graph.name or ""
            title = OPS[r.op].title if r.op in FUSED else n.op_type
            report.fused.append(Fused(n.name or "", title, graph, by, full_name(n)))
    report.assumptions = sorted(assumed)
