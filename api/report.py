"""What was done to a model and why: an object, a text and JSON."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from dataclasses import dataclass, field

from .egraph.budget import Limit
from .egraph.errors import one_line


@dataclass(frozen=True, slots=True)
class Fused:
    """A fused operator in the result: its node, the operator, the graph it is in, and the rules that led to it."""

    node: str
    op: str
    graph: str
    rules: tuple[str, ...]
    written: str = ""  # the operator as the file has it, "domain::Type" outside the default domain


@dataclass(slots=True)
class Report:
    """`times` are CPU seconds per stage; costs are picoseconds at the reference sizes, 0 where a limit left some graph
    without a price.

    `egraph` counts e-classes and e-nodes of all graphs, tuples of the largest e-graph and iterations of the longest
    saturation. `stop` is "saturated", or which limits were reached while doing what.
    """

    fused: list[Fused] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    nodes_before: int = 0
    nodes_after: int = 0
    cost_before: int = 0
    cost_after: int = 0
    predicts: str = "CPU time"  # what the costs are
    workloads: list[str] = field(default_factory=list)  # whose costs they are the sum of, by weight
    gap: float = 0.0
    extraction: str = ""
    egraph: dict[str, int] = field(default_factory=lambda: {"tuples": 0, "classes": 0, "nodes": 0, "iterations": 0})
    stop: str = "saturated"
    limits: list[Limit] = field(default_factory=list)  # the limits that `stop` tells of
    unchanged: str = ""
    opset: int = 0
    times: dict[str, float] = field(default_factory=dict)
    assumptions: list[str] = field(default_factory=list)
    verification: str = ""
    verified: bool | None = None  # None: not asked for; False: could not be compared
    calls: list[str] = field(default_factory=list)  # local functions whose calls were not looked into, and why
    needs: list[str] = field(default_factory=list)  # operator sets the result imports that the model did not

    def counts(self) -> dict[str, int]:
        """Fused operators by type."""
        return dict(sorted(Counter(f.op for f in self.fused).items()))

    def to_json(self) -> str:
        return json.dumps({**dataclasses.asdict(self), "counts": self.counts()}, indent=1, sort_keys=True)

    def text(self) -> str:
        """The report as plain lines."""
        lines = [f"nodes: {self.nodes_before} -> {self.nodes_after}"]
        if self.limits:
            lines.append(f"stopped early: {self.stop}")
        if self.unchanged:
            lines.append(f"unchanged: {self.unchanged}")
        for op, n in self.counts().items():
            written = sorted({f.written for f in self.fused if f.op == op and f.written not in ("", op)})
            lines.append(f"fused: {n} x {op}" + (f", written as {', '.join(written)}" if written else ""))
            seen: Counter[tuple[str, ...]] = Counter(f.rules for f in self.fused if f.op == op)
            often = sorted(seen.items(), key=lambda i: (-i[1], i[0]))
            lines += [f"    {k} by {', '.join(rules)}" for rules, k in often]
        lines += [f"not fused: {m}" for m in self.missed]
        lines += [f"not looked into: {c}" for c in self.calls]
        lines += [f"needs: {n}" for n in self.needs]
        if self.cost_before:
            saved = 1 - self.cost_after / self.cost_before
            costs = f"{_us(self.cost_before)} -> {_us(self.cost_after)}"
            lines.append(f"predicted {self.predicts}: {costs} ({saved:.0%} less)")
        e, ended = self.egraph, "stopped" if self.limits else "saturated"
        lines.append(f"e-graph: {e['classes']:,} e-classes, {e['nodes']:,} e-nodes, {e['tuples']:,} tuples;"
                     f" {ended} after {e['iterations']} iterations")  # fmt: skip
        if self.extraction:
            lines.append(f"extraction: {self.extraction}, optimality gap {self.gap:.2%}")
        lines += [f"assumes: {a}" for a in self.assumptions]
        if self.verification:
            lines.append(f"verification on CPU: {self.verification}")
        if self.times:
            lines.append("CPU seconds: " + ", ".join(f"{k} {v:.2f}" for k, v in self.times.items()))
        return "\n".join(map(one_line, lines))


def _us(picoseconds: int) -> str:
    return f"{picoseconds / 1e6:,.1f} us"
