"""Drawings of a report as inline SVG: text in, text out, no library.

Every drawing has a title and a description for screen readers. Marks carry a <title>, which browsers show on hover.
Colours and fonts are classes of the page's style sheet; series also differ by dashes, for readers who see no colours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from tna_onnx.results.details import Bins

__all__ = [
    "MARKERS",
    "Series",
    "chart_x",
    "confidence_histogram",
    "interval_bar",
    "line_chart",
    "marker_path",
    "reliability_diagram",
]

MARKERS = ("circle", "square", "triangle", "diamond", "cross")
"""Shapes at the points of a line, so that lines differ without their colours."""

_WIDTH, _HEIGHT = 380, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 10, 40


@dataclass(frozen=True)
class Series:
    """A line of a chart.

    Attributes:
        name: for legend and hover.
        points: (x, y), in ascending x.
        look: classes of the style sheet, which have its colour and dashes.
        marker: shape at each point, one of `MARKERS`; none by default.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    look: str
    marker: str = ""


@dataclass(frozen=True)
class _Frame:
    """A rectangle of the drawing, in pixels, and the range of values that it shows."""

    x: tuple[float, float]
    y: tuple[float, float]
    top: float = _TOP
    bottom: float = _HEIGHT - _BOTTOM
    left: float = _LEFT
    right: float = _WIDTH - _RIGHT

    def at_x(self, value: float) -> float:
        low, high = self.x
        return round(self.left + (value - low) / (high - low) * (self.right - self.left), 2)

    def at_y(self, value: float) -> float:
        low, high = self.y
        return round(self.bottom - (value - low) / (high - low) * (self.bottom - self.top), 2)

    def axes(
        self,
        x_ticks: Sequence[float] | Sequence[tuple[float, str]],
        y_ticks: Sequence[float],
        x_label: str,
        y_label: str,
    ) -> str:
        parts = []
        for value in y_ticks:
            y = self.at_y(value)
            parts.append(f'<line class="grid" x1="{self.left}" x2="{self.right}" y1="{y}" y2="{y}"/>')
            parts.append(f'<text class="tick" x="{self.left - 6}" y="{y + 4}" text-anchor="end">{value:.6g}</text>')
        for tick in x_ticks:
            value, text = tick if isinstance(tick, tuple) else (tick, f"{tick:.6g}")
            x = self.at_x(value)
            parts.append(f'<line class="axis" x1="{x}" x2="{x}" y1="{self.bottom}" y2="{self.bottom + 4}"/>')
            parts.append(f'<text class="tick" x="{x}" y="{self.bottom + 17}" text-anchor="middle">{text}</text>')
        middle_x, middle_y = (self.left + self.right) / 2, (self.top + self.bottom) / 2
        parts.append(
            f'<line class="axis" x1="{self.left}" x2="{self.right}" y1="{self.bottom}" y2="{self.bottom}"/>'
            f'<text class="label" x="{middle_x}" y="{self.bottom + 35}" text-anchor="middle">{escape(x_label)}</text>'
            f'<text class="label" transform="translate(12 {middle_y}) rotate(-90)" text-anchor="middle">'
            f"{escape(y_label)}</text>"
        )
        return "".join(parts)


def reliability_diagram(bins: Bins, title: str, what: str = "accuracy", against: str = "confidence") -> str:
    """Share that came true against confidence, per bin, with the gap to the diagonal and the samples of each bin.

    Args:
        bins: to draw.
        title: of the drawing.
        what: name of the vertical axis.
        against: name of the horizontal axis.
    """
    width, total = 1 / len(bins.count), max(1, sum(bins.count))
    frame = _Frame((0, 1), (0, 1), bottom=236)
    strip = _Frame((0, 1), (0, max(bins.count) or 1), top=250, bottom=292)
    marks = [frame.axes((), (0, 0.2, 0.4, 0.6, 0.8, 1), "", what)]
    for j, (count, confidence, accuracy) in enumerate(zip(bins.count, bins.confidence, bins.accuracy, strict=True)):
        if not count:
            continue
        low, high = sorted((confidence, accuracy))
        hover = (
            f"{against} {j * width:.2f} to {(j + 1) * width:.2f}: {count:,} samples ({count / total:.1%}), "
            f"mean {against} {confidence:.3f}, {what} {accuracy:.3f}"
        )
        marks.append(
            f'<g class="mark"><title>{escape(hover)}</title>'
            f"{_bar(frame, j * width, width, 0, 1, 'hit-area')}"
            f"{_bar(frame, j * width, width, 0, accuracy, 'accuracy')}"
            f"{_bar(frame, j * width, width, low, high, 'over' if confidence > accuracy else 'under')}"
            f"{_bar(strip, j * width, width, 0, count, 'count')}{_upright(strip, (j + 0.5) * width, count, width)}</g>"
        )
    marks.append(_segment(frame, (0, 0), (1, 1), "diagonal"))
    marks.append(strip.axes((0, 0.2, 0.4, 0.6, 0.8, 1), (), against, ""))
    marks.append(f'<text class="tick" x="{_LEFT - 6}" y="275" text-anchor="end">count</text>')
    said = "; ".join(
        f"{j * width:.2f} to {(j + 1) * width:.2f}: {n:,} samples, {what} {a:.2f}"
        for j, (n, a) in enumerate(zip(bins.count, bins.accuracy, strict=True))
        if n
    )
    edges = f"{frame.left} {frame.right} {frame.top} {frame.bottom} {strip.top} {strip.bottom}"
    return _drawing(marks, title, f"Bars of {what} per bin of {against}. {said}.", 332, f' data-frame="{edges}"')


def confidence_histogram(bins: Bins, title: str, highest: float) -> str:
    """Share of the samples in each bin of confidence: right predictions below, wrong ones on top.

    Args:
        bins: to draw.
        title: of the drawing.
        highest: percentage up to which the axis goes, so that two drawings can have the same.
    """
    width, total = 1 / len(bins.count), max(1, sum(bins.count))
    y_high, y_ticks = _range_from_zero(highest)
    frame = _Frame((0, 1), (0, y_high))
    marks = [frame.axes((0, 0.2, 0.4, 0.6, 0.8, 1), y_ticks, "confidence", "samples, %")]
    for j, (count, accuracy) in enumerate(zip(bins.count, bins.accuracy, strict=True)):
        if not count:
            continue
        right = round(count * accuracy)
        hover = f"confidence {j * width:.2f} to {(j + 1) * width:.2f}: {right:,} right, {count - right:,} wrong"
        share, of_right = 100 * count / total, 100 * right / total
        marks.append(
            f'<g class="mark"><title>{hover}</title>{_bar(frame, j * width, width, 0, y_high, "hit-area")}'
            f"{_bar(frame, j * width, width, 0, of_right, 'accuracy')}"
            f"{_bar(frame, j * width, width, of_right, share, 'over')}</g>"
        )
    right_all = round(sum(n * a for n, a in zip(bins.count, bins.accuracy, strict=True)))
    return _drawing(marks, title, f"{total:,} samples, {right_all:,} of them right.")


def line_chart(
    series: Sequence[Series],
    title: str,
    x_label: str,
    y_label: str,
    *,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    vertical: tuple[float, str] | None = None,
    horizontal: Sequence[tuple[float, str]] = (),
    x_ticks: Sequence[tuple[float, str]] = (),
    rings: Sequence[tuple[float, float]] = (),
    cursor: bool = False,
    text_on_top: bool = False,
) -> str:
    """Draw lines over one pair of axes.

    Args:
        series: the lines; at least one point in all.
        title: of the drawing.
        x_label: of the horizontal axis.
        y_label: of the vertical axis.
        x_range: of the horizontal axis; that of the points by default.
        y_range: of the vertical axis; from 0 to the highest point by default. What lies outside is cut off.
        vertical: a value of x to mark, and its text.
        horizontal: values of y to mark, and their texts.
        x_ticks: values of x to label, and their texts; round numbers by default.
        rings: points (x, y) to mark.
        text_on_top: put the text of `vertical` there, and not at the bottom.
        cursor: add a vertical line that the page's script moves; see `chart_x`.
    """
    xs = [x for s in series for x, _ in s.points]
    low_x, high_x = x_range or (min(xs), max(xs))
    high_x = high_x if high_x > low_x else low_x + 1
    low_y, high_y = y_range or (0.0, _range_from_zero(max(y for s in series for _, y in s.points))[0])
    frame = _Frame((low_x, high_x), (low_y, high_y))
    marks = [frame.axes(x_ticks or _ticks(low_x, high_x), _ticks(low_y, high_y), x_label, y_label)]
    if vertical is not None:
        marks.append(_segment(frame, (vertical[0], low_y), (vertical[0], high_y), "pick"))
        end, text_y = vertical[0] > (low_x + high_x) / 2, frame.top + 12 if text_on_top else frame.bottom - 6
        marks.append(
            f'<text class="note" x="{frame.at_x(vertical[0]) + (-5 if end else 5)}" y="{text_y}" '
            f'text-anchor="{"end" if end else "start"}">{escape(vertical[1])}</text>'
        )
    for value, text in horizontal:
        marks.append(_segment(frame, (low_x, value), (high_x, value), "limit"))
        marks.append(f'<text class="note" x="{_LEFT + 4}" y="{frame.at_y(value) + 15}">{escape(text)}</text>')
    # an inner svg cuts off what lies outside; 3 pixels more, for dots on the border
    width, height = frame.right - frame.left + 6, frame.bottom - frame.top + 6
    box = f"{frame.left - 3} {frame.top - 3} {width} {height}"
    x, y = frame.left - 3, frame.top - 3
    marks.append(f'<svg x="{x}" y="{y}" width="{width}" height="{height}" viewBox="{box}">')
    if cursor:
        marks.append(f'<line class="cursor" x1="0" x2="0" y1="{frame.top}" y2="{frame.bottom}"/>')
    marks += [_line(frame, s, x_label, y_label) for s in series]
    marks += [f'<circle class="ring" cx="{frame.at_x(x)}" cy="{frame.at_y(y)}" r="6"/>' for x, y in rings]
    marks.append("</svg>")
    described = [
        f"{s.name}: {y_label} {min(y for _, y in s.points):.4g} to "
        f"{max(y for _, y in s.points):.4g} over {x_label} {s.points[0][0]:.4g} to {s.points[-1][0]:.4g}"
        for s in series
        if s.points
    ]
    return _drawing(marks, title, "; ".join(described) + ".")


def chart_x(value: float, x_range: tuple[float, float]) -> float:
    """Return where `line_chart` has a value of x, in its own pixels."""
    return _Frame(x_range, (0, 1)).at_x(value)


def marker_path(shape: str, x: float, y: float) -> str:
    """Return the path of a marker around a point."""
    shapes = {
        "circle": "m-2.6 0a2.6 2.6 0 1 0 5.2 0a2.6 2.6 0 1 0 -5.2 0z",
        "square": "m-2.6 -2.6h5.2v5.2h-5.2z",
        "triangle": "m0 -3.6l3.5 6h-7z",
        "diamond": "m0 -3.8l3.8 3.8l-3.8 3.8l-3.8 -3.8z",
        "cross": "m-3 -3l6 6m0 -6l-6 6",
    }
    return f"M{x:g} {y:g}{shapes[shape]}"


def _line(frame: _Frame, s: Series, x_label: str, y_label: str) -> str:
    path = " ".join(f"{frame.at_x(x)},{frame.at_y(y)}" for x, y in s.points)
    line = f'<polyline class="line {s.look}" points="{path}"/>'
    if not s.marker:
        return line
    return line + "".join(
        f'<path class="mark dot {s.look}" d="{marker_path(s.marker, frame.at_x(x), frame.at_y(y))}">'
        f"<title>{escape(s.name)}: {escape(x_label)} {x:.4g}, {escape(y_label)} {y:.4g}</title></path>"
        for x, y in s.points
    )


def interval_bar(difference: float, low: float, high: float, reach: float) -> str:
    """Draw an interval and its point on an axis from -reach to reach, with a line at 0; for a cell of a table."""
    frame = _Frame((-reach, reach), (0, 1), top=0, bottom=16, left=2, right=118)
    side = "better" if high < 0 else "worse" if low > 0 else "open"
    low, high = max(low, -reach), min(high, reach)
    return (
        '<svg class="interval" viewBox="0 0 120 16" width="120" height="16" aria-hidden="true" focusable="false">'
        f"{_segment(frame, (0, 0), (0, 1), 'axis')}{_segment(frame, (low, 0.5), (high, 0.5), f'span {side}')}"
        f'<circle class="point {side}" cx="{frame.at_x(difference)}" cy="8" r="3.5"/></svg>'
    )


def _drawing(marks: Sequence[str], title: str, description: str, height: int = _HEIGHT, attributes: str = "") -> str:
    return (
        f'<svg class="chart" role="img" viewBox="0 0 {_WIDTH} {height}"{attributes}><title>{escape(title)}</title>'
        f"<desc>{escape(description)}</desc>{''.join(marks)}</svg>"
    )


def _bar(frame: _Frame, x: float, width: float, low: float, high: float, look: str) -> str:
    left, right = frame.at_x(x) + 0.6, frame.at_x(x + width) - 0.6
    top, bottom = frame.at_y(high), frame.at_y(low)
    return f'<rect class="{look}" x="{left:.2f}" y="{top:.2f}" width="{right - left:.2f}" height="{bottom - top:.2f}"/>'


def _upright(frame: _Frame, x: float, count: int, width: float) -> str:
    """Write a count upwards from the bottom, where bins are wide enough to read it."""
    if width < 0.04:
        return ""
    place = f"translate({frame.at_x(x) + 3.5:.2f} {frame.bottom - 3}) rotate(-90)"
    return f'<text class="n" transform="{place}">{count:,}</text>'


def _segment(frame: _Frame, start: tuple[float, float], end: tuple[float, float], look: str) -> str:
    (x1, y1), (x2, y2) = ((frame.at_x(x), frame.at_y(y)) for x, y in (start, end))
    return f'<line class="{look}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'


def _ticks(low: float, high: float) -> list[float]:
    """Return four to nine round values in [low, high]."""
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 10) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _range_from_zero(high: float) -> tuple[float, list[float]]:
    high = high * 1.08 if high > 0 else 1.0
    return high, _ticks(0, high)
