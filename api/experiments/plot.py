"""Plots as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_COLORS = ("#3b6fb6", "#d1702a", "#3f9a5f", "#b23a48", "#7a5fb0", "#8a6d3b", "#c06aa1", "#5f6b73", "#9aa52f", "#2aa3b3")


@dataclass(frozen=True, slots=True)
class Point:
    """A mark; `kind` is the series that it belongs to, `label` is shown where a pointer rests on it."""

    x: float
    y: float
    kind: str
    label: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A length with its name; `kind` is the series that it belongs to."""

    name: str
    length: float
    kind: str


def color(kinds: Sequence[str], kind: str) -> str:
    """That of a series; they repeat after ten."""
    return _COLORS[kinds.index(kind) % len(_COLORS)]


def scatter(title: str, points: Sequence[Point], kinds: Sequence[str], across: str, up: str) -> str:
    """Points at logarithmic axes of one scale, and the line on which both are equal. All numbers are above 0."""
    size, edge = 340, 46
    numbers = [n for point in points for n in (point.x, point.y)]
    low, high = (math.floor(math.log10(min(numbers))), math.ceil(math.log10(max(numbers)))) if numbers else (0, 1)
    high = max(high, low + 1)

    def at(number: float) -> float:
        return (math.log10(number) - low) / (high - low) * (size - 2 * edge)

    parts = [f'<text x="{size / 2}" y="18" text-anchor="middle" class="title">{escape(title)}</text>']
    for power in range(low, high + 1):
        place = at(10.0**power)
        x, y, name = edge + place, size - edge - place, f"{10.0**power:g}"
        parts.append(f'<path class="grid" d="M{x:.1f} {edge}V{size - edge}M{edge} {y:.1f}H{size - edge}"/>')
        parts.append(f'<text x="{x:.1f}" y="{size - edge + 14}" text-anchor="middle">{name}</text>')
        parts.append(f'<text x="{edge - 4}" y="{y + 4:.1f}" text-anchor="end">{name}</text>')
    parts.append(f'<path class="even" d="M{edge} {size - edge}L{size - edge} {edge}"/>')
    parts.append(f'<text x="{size / 2}" y="{size - 10}" text-anchor="middle">{escape(across)}</text>')
    parts.append(f'<text transform="translate(12 {size / 2}) rotate(-90)" text-anchor="middle">{escape(up)}</text>')
    parts += [
        f'<circle cx="{edge + at(p.x):.1f}" cy="{size - edge - at(p.y):.1f}" r="4" fill="{color(kinds, p.kind)}">'
        f"<title>{escape(p.label)}</title></circle>"
        for p in points
    ]
    return _svg(size, size, parts)


def bars(title: str, given: Sequence[Bar], kinds: Sequence[str]) -> str:
    """Bars beside each other, and a line at 1."""
    width, names, row, top = 720, 330, 18, 30
    scale = (width - names - 60) / max([1.0, *(bar.length for bar in given)])
    height = top + row * len(given) + 12
    parts = [f'<text x="6" y="18" class="title">{escape(title)}</text>']
    for k, bar in enumerate(given):
        y, long = top + k * row, bar.length * scale
        parts += [
            f'<text x="{names - 6}" y="{y + 12}" text-anchor="end">{escape(_short(bar.name, 52))}'
            f"<title>{escape(bar.name)}</title></text>",
            f'<rect x="{names}" y="{y + 2}" width="{long:.1f}" height="{row - 5}" fill="{color(kinds, bar.kind)}"/>',
            f'<text x="{names + long + 4:.1f}" y="{y + 12}">{bar.length:.2f}</text>',
        ]
    parts.append(f'<path class="even" d="M{names + scale:.1f} {top}V{height - 8}"/>')
    return _svg(width, height, parts)


def legend(kinds: Sequence[str]) -> str:
    """The names of the series in their colors."""
    return " ".join(f'<span><i style="background:{color(kinds, kind)}"></i>{escape(kind)}</span>' for kind in kinds)


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else f"…{text[1 - length :]}"


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">{"".join(parts)}</svg>'
