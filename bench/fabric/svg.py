"""Plots as SVG text: bars in groups, and lines over the hours of a day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 320, 60, 16, 40, 56
_COLORS = ("#2f6fde", "#e07b39", "#4aa564", "#9b59b6")


def bars(title: str, unit: str, groups: Mapping[str, Sequence[float]], names: Sequence[str]) -> str:
    """Return a bar chart: one group for each key, with a bar for each of `names`."""
    highest = max(max(values) for values in groups.values()) or 1.0
    width = (WIDTH - LEFT - RIGHT) / len(groups)
    bar = width * 0.8 / len(names)
    parts = []
    for index, (label, values) in enumerate(groups.items()):
        x = LEFT + index * width + width * 0.1
        for number, value in enumerate(values):
            height = (HEIGHT - TOP - BOTTOM) * value / highest
            y = HEIGHT - BOTTOM - height
            parts.append(
                f'<rect x="{x + number * bar:.1f}" y="{y:.1f}" width="{bar * 0.92:.1f}" height="{height:.1f}" '
                f'fill="{_COLORS[number]}"/>'
                f'<text x="{x + (number + 0.46) * bar:.1f}" y="{y - 4:.1f}" text-anchor="middle">{value:.3g}</text>'
            )
        parts.append(
            f'<text x="{x + width * 0.4:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{escape(label)}</text>'
        )
    return _document(title, unit, highest, names, parts)


def lines(title: str, unit: str, series: Mapping[str, Sequence[float]]) -> str:
    """Return a line chart over the 24 hours of a day."""
    highest = max(max(values) for values in series.values()) or 1.0
    parts = []
    for number, values in enumerate(series.values()):
        points = " ".join(
            f"{LEFT + (WIDTH - LEFT - RIGHT) * index / (len(values) - 1):.1f},"
            f"{HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / highest:.1f}"
            for index, value in enumerate(values)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{_COLORS[number]}" stroke-width="2"/>')
    for hour in range(0, 25, 4):
        x = LEFT + (WIDTH - LEFT - RIGHT) * hour / 24
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{hour}:00 UTC</text>')
    return _document(title, unit, highest, list(series), parts)


def _document(title: str, unit: str, highest: float, names: Sequence[str], parts: Sequence[str]) -> str:
    legend = "".join(
        f'<rect x="{LEFT + 170 * number}" y="{HEIGHT - 22}" width="12" height="12" fill="{_COLORS[number]}"/>'
        f'<text x="{LEFT + 170 * number + 18}" y="{HEIGHT - 12}">{escape(name)}</text>'
        for number, name in enumerate(names)
    )
    baseline = HEIGHT - BOTTOM
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="11" fill="#444"><rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="{LEFT}" y="20" font-size="14" fill="#111">{escape(title)}</text>'
        f'<text x="{LEFT - 8}" y="{TOP + 4}" text-anchor="end">{highest:.3g}</text>'
        f'<text x="{LEFT - 8}" y="{baseline}" text-anchor="end">0</text>'
        f'<text x="8" y="{HEIGHT // 2}" transform="rotate(-90 14 {HEIGHT // 2})">{escape(unit)}</text>'
        f'<line x1="{LEFT}" y1="{baseline}" x2="{WIDTH - RIGHT}" y2="{baseline}" stroke="#999"/>'
        f"{''.join(parts)}{legend}</svg>\n"
    )
