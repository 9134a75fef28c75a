"""What a call returns: the model, the report, and what can be asked of them later."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import onnx
import onnx_ir as ir

from .costs import CostTable, table
from .egraph.budget import Budget, Limits
from .egraph.errors import ModelError, one_line
from .egraph.explanation.explain import Derivation
from .lowering.explain import Explainer
from .lowering.files.load import Loaded, Original
from .lowering.files.save import save
from .lowering.files.staging import Stamp, stamp
from .lowering.model.tensors import content, is_small
from .report import Report

M = TypeVar("M", bound=ir.Model | onnx.ModelProto)


@dataclass(frozen=True, slots=True)
class Result(Generic[M]):
    """The optimized model, of the same kind as the input (a path gives an onnx_ir.Model), and the report.

    Where the report says unchanged, it is the model as it was given.
    """

    model: M
    report: Report
    _ir: ir.Model = field(repr=False)
    _sides: Mapping[Path, Stamp] = field(repr=False)  # files with weights of the model that was read, as they were
    _explainers: Sequence[Explainer] = field(default=(), repr=False)
    _original: Original | None = field(default=None, repr=False)  # if the result is the model as it was given
    _limits: Limits = field(default_factory=Limits, repr=False)
    _read: Path | None = field(default=None, repr=False)  # the file that was read
    _table: Callable[[], CostTable] = field(default=partial(table, (), ()), repr=False)

    def __repr__(self) -> str:
        return f"Result({self.report.nodes_before} -> {self.report.nodes_after} nodes, fused: {self.report.counts()})"

    def explain(self, node: str) -> Derivation:
        """The chain of rules that made a node of the result (`report.fused` lists the fused ones), replayed and
        checked, within the limits, which hold for this call anew.

        Raises ModelError for any other name.
        """
        for explainer in self._explainers:
            made = explainer.others | explainer.nodes
            if node in made:
                return explainer.derivation(made[node])
        raise ModelError(f"no fused node of the result is named {node!r}, nor another new one; the report lists them")

    def costs(self) -> CostTable:
        """What each node of the result is predicted to cost at each workload; nothing of a model that was not read."""
        return self._table()

    def drawn(self) -> Hashable:
        """All nodes, with what they take and give, and small constants: what tells two graphs of one model apart."""
        nodes = tuple(
            (n.domain, n.op_type, *(v and v.name for v in (*n.inputs, *n.outputs)), *map(str, n.attributes.values()))
            for n in self._ir.graph.all_nodes()
        )
        stored = ((name, value.const_value) for name, value in self._ir.graph.initializers.items())
        small = {(name, content(tensor)) for name, tensor in stored if tensor is not None and is_small(tensor)}
        return nodes, frozenset(small)

    def find(self, name: str) -> list[str]:
        """Fused nodes of the result that are named so, or that took in the original node or value of that name."""
        return [
            node for explainer in self._explainers for node, cls in explainer.nodes.items()
            if name == node or name in explainer.absorbed(cls)
        ]  # fmt: skip

    def save(self, path: str | os.PathLike[str], *, report: str | os.PathLike[str] | None = None) -> None:
        """Write the model atomically, its external data beside it; with `report`, the report there, as JSON.

        A file that was left unchanged is written as it was read, byte for byte, unless its external data needs other
        names beside `path`. May be called again, for this place or another. Raises OutputError, and then every file
        is as it was.
        """
        texts = {} if report is None else {Path(report): self.report.to_json()}
        save(self._ir, path, texts, self._sides, self._original, self._read)

    def knows(self, name: str) -> bool:
        """Whether a node or value of the model, or of the result, is named so."""
        if any(name in explainer.names() for explainer in self._explainers):
            return True
        graphs = list(self._ir.graphs())
        nodes = [node for graph in graphs for node in graph]
        values = {v.name for graph in graphs for v in (*graph.inputs, *graph.initializers.values())}
        return name in values or any(name == n.name or name in {v.name for v in n.outputs} for n in nodes)

    def near_misses(self, progress: Callable[[str], None] | None = None) -> list[str]:
        """What was not fused and why, one line each; also kept in `report.missed`. Saturates once more, and the limits
        hold for this call anew.
        """
        if not self.report.missed:
            budget = Budget(self._limits)
            if self.report.limits and not self._explainers:
                self.report.missed.append(f"no graph was optimized ({self.report.stop}): with more, more may be fused")
            last = {e.reading.graph: e for e in self._explainers}
            lines: dict[str, None] = {}  # passes over one graph may miss the same
            for explainer in self._explainers:
                graph = explainer.reading.graph
                if progress is not None:
                    progress(f"looking for near misses in {graph.name or 'the graph'}")
                misses = explainer.misses(budget, again=last[graph] is not explainer)
                lines.update(dict.fromkeys(map(one_line, misses)))
            self.report.missed += lines
        return self.report.missed


def stamps(loaded: Loaded) -> dict[Path, Stamp]:
    """The files with weights of a model, as they are now."""
    return {side: stamp(side) for side in loaded.sides}


def as_given(
    report: Report,
    loaded: Loaded,
    explainers: Sequence[Explainer] = (),
    limits: Limits | None = None,
    costs: Callable[[], CostTable] | None = None,
) -> Result[ir.Model | onnx.ModelProto]:
    """The result that is the model as it was given, a copy if it came as an object."""
    given: ir.Model | onnx.ModelProto
    given = model = loaded.original.model()
    if loaded.kind == "proto" and isinstance(loaded.original.given, onnx.ModelProto):
        given = onnx.ModelProto()
        given.CopyFrom(loaded.original.given)
    original, limits = loaded.original, limits or Limits()
    of_nodes = costs or partial(table, (), ())
    return Result(given, report, model, stamps(loaded), explainers, original, limits, original.path, of_nodes)
