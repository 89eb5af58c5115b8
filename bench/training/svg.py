"""The few plots of the page, as SVG. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from bench.training.stats import Interval

ROW, LABEL, PLOT, VALUE = 26, 165, 450, 205
"""Pixels: height of a row; widths of the labels, the plot, and the values beside it."""
TOP, BOTTOM = 8, 26
COLOURS = {"fdl": "var(--own)", "ablation": "var(--own-soft)", "peer": "var(--peer)", "reference": "var(--quiet)"}


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a plot.

    Attributes:
        label: left of it.
        values: a dot for each.
        interval: bar and whiskers; None for an empty line.
        family: colour.
        note: right of it.
    """

    label: str
    values: tuple[float, ...]
    interval: Interval | None
    family: str
    note: str = ""


def ticks(low: float, high: float) -> list[float]:
    """Round numbers between two others, some five of them."""
    span = max(high - low, 1e-9)
    step = next(size for size in (0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 100.0, 1e9) if span / size <= 6.5)
    first = round(low / step) * step
    marks = []
    while first <= high + 1e-9:
        if first >= low - 1e-9:
            marks.append(round(first, 4))
        first += step
    return marks


def dots(
    rows: Sequence[Row], *, low: float, high: float, lines: Sequence[tuple[float, str]], title: str, unit: str
) -> str:
    """Values, medians and intervals, one line each.

    Args:
        rows: from top to bottom.
        low: left end of the axis.
        high: right end.
        lines: vertical reference lines with their words.
        title: for those who do not see it.
        unit: of the values, under the axis.
    """

    def x(value: float) -> float:
        return LABEL + PLOT * (min(max(value, low), high) - low) / (high - low)

    height = TOP + ROW * len(rows)
    parts = [_open(LABEL + PLOT + VALUE, height + BOTTOM, title)]
    for mark in ticks(low, high):
        parts.append(f'<line class="grid" x1="{x(mark):.1f}" x2="{x(mark):.1f}" y1="{TOP}" y2="{height}"/>')
        parts.append(f'<text class="tick" x="{x(mark):.1f}" y="{height + 14}" text-anchor="middle">{mark:g}</text>')
    parts.append(f'<text class="tick" x="{LABEL + PLOT + 12}" y="{height + 14}">{escape(unit)}</text>')
    for value, words in lines:
        parts.append(
            f'<line class="mark" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{TOP}" y2="{height}">'
            f"<title>{escape(words)}</title></line>"
        )
    for number, row in enumerate(rows):
        y = TOP + ROW * (number + 0.5)
        colour = COLOURS[row.family]
        parts.append(f'<text x="{LABEL - 10}" y="{y + 4:.1f}" text-anchor="end">{escape(row.label)}</text>')
        for value in row.values:
            parts.append(f'<circle cx="{x(value):.1f}" cy="{y:.1f}" r="3" fill="{colour}" opacity="0.35"/>')
        if row.interval is not None:
            one = row.interval
            parts.append(
                f'<line x1="{x(one.low):.1f}" x2="{x(one.high):.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}" '
                f'stroke-width="3" stroke-linecap="round"/>'
            )
            parts.append(
                f'<rect x="{x(one.value) - 2:.1f}" y="{y - 8:.1f}" width="4" height="16" rx="1" fill="{colour}"/>'
            )
        parts.append(f'<text class="value" x="{LABEL + PLOT + 12}" y="{y + 4:.1f}">{escape(row.note)}</text>')
    return "".join(parts) + "</svg>"


def stacks(rows: Sequence[tuple[str, Sequence[float]]], names: Sequence[str], title: str) -> str:
    """Shares of 1 as bars; a negative share is drawn as nothing.

    Args:
        rows: label and shares.
        names: of the shares.
        title: for those who do not see it.
    """
    height = TOP + ROW * len(rows)
    parts = [_open(LABEL + PLOT + VALUE, height + BOTTOM, title)]
    for number, (label, shares) in enumerate(rows):
        y = TOP + ROW * number + 4
        parts.append(f'<text x="{LABEL - 10}" y="{y + 13}" text-anchor="end">{escape(label)}</text>')
        left = float(LABEL)
        scale = PLOT / max(1.0, sum(max(0.0, share) for share in shares))
        for place, share in enumerate(shares):
            width = max(0.0, share) * scale
            parts.append(
                f'<rect class="part{place}" x="{left:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 8}">'
                f"<title>{escape(names[place])}: {share:.1%}</title></rect>"
            )
            left += width
    left = float(LABEL)
    for place, name in enumerate(names):
        parts.append(f'<rect class="part{place}" x="{left:.0f}" y="{height + 8}" width="11" height="11"/>')
        parts.append(f'<text class="tick" x="{left + 16:.0f}" y="{height + 18}">{escape(name)}</text>')
        left += 34 + 6.6 * len(name)
    return "".join(parts) + "</svg>"


COLUMN = 190
"""Pixels of a legend beside lines."""
SHADES = (
    "#0b6bcb", "#c4661f", "#1a9f6b", "#9b4fc0", "#c0392b", "#8a7a1f", "#2aa5b8", "#d1578f", "#6b7785", "#5f8f2f",
)  # fmt: skip
"""Colours of lines that are told apart by a legend."""


def curves(series: Sequence[tuple[str, Sequence[tuple[float, float]]]], *, target: float, title: str, unit: str) -> str:
    """A line for each label, over seconds from 0, with a horizontal line at a target.

    Args:
        series: label, and (seconds, value) pairs.
        target: value.
        title: for those who do not see it.
        unit: of the values.
    """
    width, height, left = LABEL + PLOT + VALUE, 60 + max(170, 17 * len(series)), 44
    last = max((seconds for _, line in series for seconds, _ in line), default=1.0)
    high = max((value for _, line in series for _, value in line), default=1.0)

    def x(seconds: float) -> float:
        return left + (width - left - COLUMN) * seconds / last

    def y(value: float) -> float:
        return 24 + (height - 60) * (1.0 - min(max(value, 0.0), high) / high)

    parts = [_open(width, height, title), f'<text class="tick" x="{left - 34}" y="12">{escape(unit)}</text>']
    for mark in ticks(0.0, high):
        parts.append(f'<line class="grid" x1="{left}" x2="{width - COLUMN}" y1="{y(mark):.1f}" y2="{y(mark):.1f}"/>')
        parts.append(f'<text class="tick" x="{left - 6}" y="{y(mark) + 4:.1f}" text-anchor="end">{mark:g}</text>')
    for mark in ticks(0.0, last):
        parts.append(f'<text class="tick" x="{x(mark):.1f}" y="{height - 18}" text-anchor="middle">{mark:g}</text>')
    parts.append(f'<text class="tick" x="{width - COLUMN + 8}" y="{height - 18}">seconds</text>')
    parts.append(
        f'<line class="mark" x1="{left}" x2="{width - COLUMN}" y1="{y(target):.1f}" y2="{y(target):.1f}">'
        f"<title>target {target:g}</title></line>"
    )
    for number, (label, line) in enumerate(series):
        colour = SHADES[number % len(SHADES)]
        points = " ".join(f"{x(seconds):.1f},{y(value):.1f}" for seconds, value in line)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        top = 24 + 17 * number
        parts.append(f'<rect x="{width - COLUMN + 12}" y="{top}" width="14" height="4" fill="{colour}"/>')
        parts.append(f'<text class="tick" x="{width - COLUMN + 32}" y="{top + 7}">{escape(label)}</text>')
    return "".join(parts) + "</svg>"


def trace(series: Sequence[Sequence[tuple[float, float]]], *, high: float, title: str) -> str:
    """Lines over seconds, with 0 as the moment of interest.

    Args:
        series: (seconds, value) pairs of each line.
        high: upper end of the axis.
        title: for those who do not see it.
    """
    width, height = LABEL + PLOT, 150
    times = [moment for line in series for moment, _ in line] or [0.0]
    first, last = min(*times, 0.0), max(*times, 0.1)

    def x(moment: float) -> float:
        return 50 + (width - 70) * (moment - first) / (last - first)

    def y(value: float) -> float:
        return 10 + (height - 30) * (1.0 - min(value, high) / high)

    parts = [_open(width, height, title)]
    for mark in ticks(0.0, high):
        parts.append(f'<line class="grid" x1="50" x2="{width - 20}" y1="{y(mark):.1f}" y2="{y(mark):.1f}"/>')
        parts.append(f'<text class="tick" x="44" y="{y(mark) + 4:.1f}" text-anchor="end">{mark:g}</text>')
    parts.append(f'<line class="mark" x1="{x(0):.1f}" x2="{x(0):.1f}" y1="10" y2="{height - 20}"/>')
    parts.append(f'<text class="tick" x="{x(0):.1f}" y="{height - 6}" text-anchor="middle">swap</text>')
    parts.append(f'<text class="tick" x="50" y="{height - 6}">{first:.0f} s</text>')
    parts.append(f'<text class="tick" x="{width - 20}" y="{height - 6}" text-anchor="end">{last:.0f} s</text>')
    for line in series:
        points = " ".join(f"{x(moment):.1f},{y(value):.1f}" for moment, value in line)
        parts.append(f'<polyline points="{points}" fill="none" stroke="var(--own)" stroke-width="1.5" opacity="0.7"/>')
    return "".join(parts) + "</svg>"


def _open(width: int, height: int, title: str) -> str:
    return f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img"><title>{escape(title)}</title>'
