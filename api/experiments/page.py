"""The findings of an experiment as one HTML page that loads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from .agreement import Agreement, groups
from .finding import Finding
from .plot import Bar, Point, bars, legend, scatter

_STYLE = """
body { font: 14px system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em; color: #222; }
table { border-collapse: collapse; margin: 1em 0; } td, th { padding: .2em .7em; border-bottom: 1px solid #ddd; }
th { text-align: left; } td.number { text-align: right; font-variant-numeric: tabular-nums; }
td.wide { max-width: 34em; font-size: 12px; } svg { max-width: 100%; height: auto; font: 11px system-ui, sans-serif; }
svg .title { font-weight: 600; font-size: 13px; } .grid { stroke: #e4e4e4; }
.even { stroke: #888; stroke-dasharray: 4; } .legend span { margin-right: 1.2em; }
.legend i { display: inline-block; width: .8em; height: .8em; margin-right: .4em; }
"""


def page(rows: Sequence[Finding], agreements: Iterable[Agreement], failures: Mapping[str, str]) -> str:
    """Cost models compared, predicted against measured time, and how fast the graphs are that they choose."""
    models, costs = (list(dict.fromkeys(names)) for names in ([r.model for r in rows], [r.cost for r in rows]))
    measured = [row for row in rows if row.measured and row.predicted > 0]
    plots = [
        scatter(
            cost,
            [_point(row) for row in measured if row.cost == cost], models, "measured, milliseconds",
            "predicted, milliseconds",
        )
        for cost in costs
    ]  # fmt: skip
    chosen = [
        Bar(f"{', '.join(where)}: {row.cost}", row.speed, row.cost)
        for where, alike in groups(rows).items() for row in alike if row.rank == 1 and row.speed
    ]  # fmt: skip
    body = [
        "<h1>Cost models compared</h1>",
        _table(
            ("cost model", "graphs", "error", "pairs", "ordered rightly", "rank correlation"),
            [
                (a.cost, a.graphs, _percent(a.error), a.pairs, _percent(a.ordered), _number(a.correlation))
                for a in agreements
            ],
        ),
        "<p>Error: how far predicted time is off, in the median. Pairs: graphs of one model, target and workload whose"
        " measured times are more than 5 % apart. Rank correlation: Spearman's, in the mean.</p>",
        "<h2>Predicted against measured</h2>",
        f'<p class="legend">{legend(models)}</p>',
        *plots,
        "<h2>What they choose</h2>",
        bars("how many times as fast as the input the chosen graph is", chosen, costs),
        "<h2>Graphs</h2>",
        _table(("model", "target", "graph", "nodes", "operators"), _graphs(rows)),
        "<h2>Rows</h2>",
        _table(
            ("model", "target", "workload", "graph", "cost model", "rank", "predicted", "measured", "speed", "from"),
            [
                (r.model, r.target, r.workload, r.graph, r.cost, r.rank or "", _ms(r.predicted), _ms(r.measured),
                 _number(r.speed), "" if r.low is None or r.high is None else f"{r.low:.3f} to {r.high:.3f}")
                for r in rows
            ],
        ),
    ]  # fmt: skip
    if failures:
        body += ["<h2>Models without findings</h2>", _table(("model", "why"), list(failures.items()))]
    machines = "; ".join(dict.fromkeys(row.machine for row in rows))
    body.append(f"<p>Measured on {escape(machines)}. CPU time of one thread.</p>")
    head = '<meta charset="utf-8"><title>onnx-egraph experiment</title>'
    return f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head>\n<body>' + "\n".join(
        [*body, "</body></html>\n"]
    )


def _point(row: Finding) -> Point:
    measured, predicted = 1e3 * (row.measured or 0.0), 1e3 * row.predicted
    label = f"{row.model}, {row.target}, {row.workload}, {row.graph}: {predicted:.4g} ms predicted, {measured:.4g}"
    return Point(measured, predicted, row.model, label)


def _graphs(rows: Iterable[Finding]) -> list[Sequence[object]]:
    found = {(r.model, r.target, r.graph): (r.nodes, r.operators) for r in rows}
    return [(*key, *value) for key, value in found.items()]


def _table(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    text = [f"<table><tr>{cells}</tr>"]
    text += [f"<tr>{''.join(map(_cell, line))}</tr>" for line in lines]
    return "\n".join([*text, "</table>"])


def _cell(content: object) -> str:
    text = str(content)
    kind = "number" if text[:1].isdigit() or text[:1] == "-" else "wide" if len(text) > 60 else ""
    return f'<td class="{kind}">{escape(text)}</td>' if kind else f"<td>{escape(text)}</td>"


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.4g} ms"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"
