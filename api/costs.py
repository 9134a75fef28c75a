"""What the nodes of a result are predicted to cost, and what else could stand in their place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from .lowering.model.operators import full_name
from .lowering.space import Choice, Priced

Chosen = tuple[Choice, Mapping[int, Sequence[ir.Node]] | None]


@dataclass(frozen=True, slots=True)
class NodeCost:
    """A node, its operator ("domain::Type" outside the default domain), its cost at each workload, and the part of the
    whole that is, by weight, in [0, 1].
    """

    node: str
    op: str
    costs: tuple[int, ...]
    share: float
    graph: str = ""


@dataclass(frozen=True, slots=True)
class CostTable(Sequence[NodeCost]):
    """The nodes in the order of the file. `workloads` are the columns; costs are picoseconds, or what a cost model of
    the caller's counts in.
    """

    workloads: tuple[str, ...]
    rows: tuple[NodeCost, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # an int gives a row, a slice a tuple of rows
        return self.rows[index]

    def __iter__(self) -> Iterator[NodeCost]:
        return iter(self.rows)

    def by_operator(self) -> list[NodeCost]:
        """Sums over the nodes of one operator, the dearest first; `node` says how many they are."""
        sums: dict[str, list[NodeCost]] = {}
        for row in self.rows:
            sums.setdefault(row.op, []).append(row)
        found = [
            NodeCost(f"{len(rows)} nodes", op, tuple(map(sum, zip(*(r.costs for r in rows), strict=True))),
                     sum(r.share for r in rows))
            for op, rows in sums.items()
        ]  # fmt: skip
        return sorted(found, key=lambda row: -row.share)

    def text(self, count: int = 20) -> str:
        """The operators, and the dearest nodes, with their costs in microseconds."""
        dearest = sorted(self.rows, key=lambda row: -row.share)[:count]
        head = f"{'':40} {'':28}" + "".join(f" {name[:12]:>12}" for name in self.workloads) + "  share"
        lines = [head]
        for rows in (self.by_operator(), dearest):
            for row in rows:
                costs = "".join(f" {cost / 1e6:12,.1f}" for cost in row.costs)
                lines.append(f"{row.node[:40]:40} {row.op[:28]:28}{costs} {row.share:6.1%}")
            lines.append("")
        return "\n".join(lines[:-1])


def table(workloads: Sequence[str], chosen: Iterable[tuple[ir.Graph, Chosen]]) -> CostTable:
    """The costs of the nodes of all graphs, as they were chosen."""
    return _table(workloads, [(g, choice.priced, choice.costs(written)) for g, (choice, written) in chosen])


def standing(workloads: Sequence[str], priced: Iterable[Priced]) -> CostTable:
    """The costs of the nodes of all graphs, as they stand in the model that was read."""
    return _table(workloads, [(each.space.reading.graph, each, each.costs()) for each in priced])


def _table(
    workloads: Sequence[str], graphs: Iterable[tuple[ir.Graph, Priced, Iterable[tuple[ir.Node, tuple[int, ...]]]]]
) -> CostTable:
    found = [
        (graph.name or "", node, costs, priced.pricer.total(costs))
        for graph, priced, nodes in graphs for node, costs in nodes
    ]  # fmt: skip
    whole = sum(total for *_, total in found) or 1
    rows = (
        NodeCost(node.name or "", full_name(node), costs, total / whole, graph) for graph, node, costs, total in found
    )
    return CostTable(tuple(workloads), tuple(rows))


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to compute a value: by `op` of `operands`, which are named where the model has a name for them.

    `costs` are the operator's own, at each workload; `more` is what the whole graph would cost more with it than the
    cheapest one does, or None if no graph can hold it.
    """

    op: str
    operands: tuple[str, ...]
    costs: tuple[int, ...]
    more: int | None
    chosen: bool

    def __str__(self) -> str:
        said = "chosen" if self.chosen else "no graph holds it" if self.more is None else f"{self.more / 1e6:+,.1f} us"
        own = ", ".join(f"{cost / 1e6:,.1f}" for cost in self.costs)
        return f"{self.op}({', '.join(self.operands)}): {own} us; {said}"
