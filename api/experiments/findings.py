"""What came of an experiment, as text, CSV, Parquet and HTML."""

from __future__ import annotations

import importlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..egraph.errors import EGraphError
from ..lowering.files.save import Named, destination, put
from .agreement import Agreement, agreements, groups
from .finding import COLUMNS, Finding, as_csv
from .page import page


@dataclass(frozen=True, slots=True)
class Findings:
    """The rows, in the order of the experiment, and why models have none."""

    rows: tuple[Finding, ...]
    failures: Mapping[str, str] = field(default_factory=dict)

    def agreements(self) -> list[Agreement]:
        """How far each cost model agrees with what was measured."""
        return agreements(self.rows)

    def text(self) -> str:
        """A table of the graphs of each model, target and workload; what the graphs hold; the cost models compared."""
        lines = list[str]()
        for (model, target, workload), rows in groups(self.rows).items():
            costs = list(dict.fromkeys(row.cost for row in rows))
            noise = rows[0].noise
            said = "" if noise is None else f"; the input differs from itself by up to {noise:.1%}"
            lines += [f"{model} for {target}, {workload}{said}", _line("", "measured", "speed", "interval", costs)]
            by_graph: dict[str, list[Finding]] = {}
            for row in rows:
                by_graph.setdefault(row.graph, []).append(row)
            for graph, of_it in by_graph.items():
                first = of_it[0]
                bounds = "" if first.low is None or first.high is None else f"[{first.low:.3f}, {first.high:.3f}]"
                speed = "" if first.speed is None else f"{first.speed:.3f}"
                ranks = [f"{_ms(row.predicted)}{f' #{row.rank}' if row.rank else '':4}" for row in of_it]
                lines.append(_line(graph, _ms(first.measured), speed, bounds, ranks))
            lines.append("")
        for (model, target), graphs in self._graphs().items():
            lines.append(f"{model} for {target}")
            lines += [f"  {graph}: {row.nodes} nodes: {row.operators}" for graph, row in graphs.items()]
        lines += ["", f"{'cost model':20} {'graphs':>8} {'error':>8} {'pairs':>8} {'ordered':>8} {'rank corr.':>10}"]
        for a in self.agreements():
            error, ordered = ("" if part is None else f"{part:.0%}" for part in (a.error, a.ordered))
            correlation = "" if a.correlation is None else f"{a.correlation:.2f}"
            lines.append(f"{a.cost[:20]:20} {a.graphs:8} {error:>8} {a.pairs:8} {ordered:>8} {correlation:>10}")
        return "\n".join(lines)

    def _graphs(self) -> dict[tuple[str, str], dict[str, Finding]]:
        found: dict[tuple[str, str], dict[str, Finding]] = {}
        for row in self.rows:
            found.setdefault((row.model, row.target), {}).setdefault(row.graph, row)
        return found

    def csv(self) -> str:
        """The rows."""
        return as_csv(self.rows)

    def html(self) -> str:
        """A page that needs nothing but itself."""
        return page(self.rows, self.agreements(), self.failures)

    def parquet(self) -> bytes:
        """The rows. Raises EGraphError where pyarrow is not installed."""
        arrow, writer = parquet_library()
        table = arrow.table({name: [getattr(row, name) for row in self.rows] for name in COLUMNS})
        out = io.BytesIO()
        writer.write_table(table, out)
        return out.getvalue()

    def save(self, *, csv: Named | None = None, parquet: Named | None = None, html: Named | None = None) -> None:
        """Write each of them that has a path, each whole or not at all. Raises OutputError, EGraphError."""
        wanted = [(path, make) for path, make in ((csv, self.csv), (parquet, self.parquet), (html, self.html)) if path]
        for path, _ in wanted:
            destination(path)
        for path, content in [(path, make()) for path, make in wanted]:
            put(path, content)


def parquet_library() -> tuple[Any, Any]:
    """pyarrow and pyarrow.parquet. Raises EGraphError where they are not installed."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise EGraphError('Parquet is written by pyarrow: pip install "onnx-egraph[experiment]"') from error


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.4g} ms"


def _line(graph: str, measured: str, speed: str, interval: str, costs: list[str]) -> str:
    cells = "".join(f" {cost[:18]:>18}" for cost in costs)
    return f"  {graph[:12]:12} {measured:>12} {speed:>8} {interval:>16}{cells}".rstrip()
