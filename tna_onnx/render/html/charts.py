"""The drawings of a page: reliability diagrams, histograms of the confidence, and lines over a pair of axes.

Each has a title and a description for screen readers; marks have a text that browsers show on hover.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tna_onnx.numerics.reliability import Bins
from tna_onnx.render.html.svg import Axes, Frame, Mark, Rect, Segment, marker_path, range_from_zero, ticks
from tna_onnx.render.reliability import Bar, bars

__all__ = [
    "Histogram",
    "LineChart",
    "ReliabilityDiagram",
    "Series",
    "chart_x",
    "confidence_histogram",
    "line_chart",
    "reliability_diagram",
]

_FIFTHS = (0, 0.2, 0.4, 0.6, 0.8, 1)
# Narrower bars have no room for the digits of their count.
_MIN_COUNTED_WIDTH = 0.04
# An inner SVG cuts off what lies outside; so much more is seen, for dots on the border.
_DOT_MARGIN = 3


@dataclass(frozen=True)
class ReliabilityDiagram:
    """Bars of accuracy per bin with their gaps, and a strip below that counts the samples.

    `edges` tells the page's script where both are: left, right, top, bottom, top and bottom of the strip.
    """

    title: str
    description: str
    axes: Axes
    strip: Axes
    marks: tuple[Mark, ...]
    diagonal: Segment
    edges: str


@dataclass(frozen=True)
class Histogram:
    """Stacked bars."""

    title: str
    description: str
    axes: Axes
    marks: tuple[Mark, ...]


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
class Dot:
    """A marker: its path data and its text on hover."""

    path: str
    hover: str


@dataclass(frozen=True)
class Polyline:
    """A series in pixels; `points` as SVG writes them."""

    look: str
    points: str
    dots: tuple[Dot, ...]


@dataclass(frozen=True)
class Guide:
    """A marked value of x or y, and its text."""

    line: Segment
    text: str
    x: float
    y: float
    anchor: str = "start"


@dataclass(frozen=True)
class LineChart:
    """Lines over a pair of axes. `box` is the x, y, width and height outside of which they are cut off."""

    title: str
    description: str
    axes: Axes
    guides: tuple[Guide, ...]
    box: tuple[float, float, float, float]
    cursor: bool
    lines: tuple[Polyline, ...]
    rings: tuple[tuple[float, float], ...]


def reliability_diagram(
    bins: Bins, title: str, what: str = "accuracy", against: str = "confidence"
) -> ReliabilityDiagram:
    """Share that came true against confidence, per bin, with the gap to the diagonal and the samples of each bin.

    Args:
        bins: to draw.
        title: of the drawing.
        what: name of the vertical axis.
        against: name of the horizontal axis.
    """
    frame = Frame((0, 1), (0, 1), bottom=236)
    strip = Frame((0, 1), (0, max(bins.count) or 1), top=250, bottom=292)
    filled = [bar for bar in bars(bins) if bar.count]
    total = sum(bins.count)
    listed = "; ".join(f"{_range(bar)}: {bar.count:,} samples, {what} {bar.height:.2f}" for bar in filled)
    return ReliabilityDiagram(
        title,
        f"Bars of {what} per bin of {against}. {listed}.",
        frame.axes("", what, y_ticks=_FIFTHS),
        strip.axes(against, "", x_ticks=_FIFTHS),
        tuple(_reliability_mark(frame, strip, bar, total, what, against) for bar in filled),
        frame.segment("diagonal", (0, 0), (1, 1)),
        f"{frame.left} {frame.right} {frame.top} {frame.bottom} {strip.top} {strip.bottom}",
    )


def _reliability_mark(frame: Frame, strip: Frame, bar: Bar, total: int, what: str, against: str) -> Mark:
    sides = (bar.left, bar.right)
    rects = (
        frame.rect("hit-area", sides, 0, 1),
        frame.rect("accuracy", sides, 0, bar.height),
        frame.rect("over" if bar.sign > 0 else "under", sides, *bar.span),
        strip.rect("count", sides, 0, bar.count),
    )
    hover = (
        f"{against} {_range(bar)}: {bar.count:,} samples ({bar.count / total:.1%}), "
        f"mean {against} {bar.confidence:.3f}, {what} {bar.height:.3f}"
    )
    if bar.width < _MIN_COUNTED_WIDTH:
        return Mark(hover, rects)
    # Upwards from the bottom of the strip; 3.5 pixels to the right is the middle of the digits.
    place = f"translate({strip.at_x(bar.middle) + 3.5:.2f} {strip.bottom - 3}) rotate(-90)"
    return Mark(hover, rects, f"{bar.count:,}", place)


def confidence_histogram(bins: Bins, title: str, highest: float) -> Histogram:
    """Share of the samples in each bin of confidence: right predictions below, wrong ones on top.

    Args:
        bins: to draw.
        title: of the drawing.
        highest: percentage up to which the axis goes, so that two drawings can have the same.
    """
    top = range_from_zero(highest)
    frame = Frame((0, 1), (0, top))
    total = sum(bins.count)
    right = round(sum(bar.count * bar.height for bar in bars(bins)))
    return Histogram(
        title,
        f"{total:,} samples, {right:,} of them right.",
        frame.axes("confidence", "samples, %", x_ticks=_FIFTHS, y_ticks=ticks(0, top)),
        tuple(_histogram_mark(frame, bar, total) for bar in bars(bins) if bar.count),
    )


def _histogram_mark(frame: Frame, bar: Bar, total: int) -> Mark:
    sides = (bar.left, bar.right)
    right = round(bar.count * bar.height)
    share = 100 * bar.count / total
    share_right = 100 * right / total
    rects: tuple[Rect, ...] = (
        frame.rect("hit-area", sides, *frame.y),
        frame.rect("accuracy", sides, 0, share_right),
        frame.rect("over", sides, share_right, share),
    )
    return Mark(f"confidence {_range(bar)}: {right:,} right, {bar.count - right:,} wrong", rects)


def _range(bar: Bar) -> str:
    return f"{bar.left:.2f} to {bar.right:.2f}"


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
) -> LineChart:
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
    frame = _frame(series, x_range, y_range)
    guides = [_horizontal_guide(frame, value, text) for value, text in horizontal]
    if vertical is not None:
        guides.insert(0, _vertical_guide(frame, *vertical, text_on_top))
    return LineChart(
        title,
        "; ".join(_described(line, x_label, y_label) for line in series if line.points) + ".",
        frame.axes(x_label, y_label, x_ticks=ticks(*frame.x), y_ticks=ticks(*frame.y), named=x_ticks),
        tuple(guides),
        _box(frame),
        cursor,
        tuple(_polyline(frame, line, x_label, y_label) for line in series),
        tuple((frame.at_x(x), frame.at_y(y)) for x, y in rings),
    )


def chart_x(value: float, x_range: tuple[float, float]) -> float:
    """Return where `line_chart` has a value of x, in its own pixels."""
    return Frame(x_range, (0, 1)).at_x(value)


def _frame(series: Sequence[Series], x_range: tuple[float, float] | None, y_range: tuple[float, float] | None) -> Frame:
    """Choose the ranges that were not asked for."""
    points = [point for line in series for point in line.points]
    if x_range is None:
        x_range = min(x for x, _ in points), max(x for x, _ in points)
    if y_range is None:
        y_range = 0.0, range_from_zero(max(y for _, y in points))
    low, high = x_range
    if high <= low:
        # One value of x would make a scale without length.
        high = low + 1
    return Frame((low, high), y_range)


def _vertical_guide(frame: Frame, value: float, text: str, on_top: bool) -> Guide:
    """Mark a value of x; its text stands on the side with more room."""
    line = frame.segment("pick", (value, frame.y[0]), (value, frame.y[1]))
    y = frame.top + 12 if on_top else frame.bottom - 6
    if value > sum(frame.x) / 2:
        return Guide(line, text, frame.at_x(value) - 5, y, "end")
    return Guide(line, text, frame.at_x(value) + 5, y)


def _horizontal_guide(frame: Frame, value: float, text: str) -> Guide:
    line = frame.segment("limit", (frame.x[0], value), (frame.x[1], value))
    return Guide(line, text, frame.left + 4, frame.at_y(value) + 15)


def _box(frame: Frame) -> tuple[float, float, float, float]:
    width = frame.right - frame.left + 2 * _DOT_MARGIN
    height = frame.bottom - frame.top + 2 * _DOT_MARGIN
    return frame.left - _DOT_MARGIN, frame.top - _DOT_MARGIN, width, height


def _polyline(frame: Frame, series: Series, x_label: str, y_label: str) -> Polyline:
    places = [(frame.at_x(x), frame.at_y(y)) for x, y in series.points]
    path = " ".join(f"{x},{y}" for x, y in places)
    if not series.marker:
        return Polyline(series.look, path, ())
    dots = (
        Dot(marker_path(series.marker, *place), f"{series.name}: {x_label} {x:.4g}, {y_label} {y:.4g}")
        for place, (x, y) in zip(places, series.points, strict=True)
    )
    return Polyline(series.look, path, tuple(dots))


def _described(series: Series, x_label: str, y_label: str) -> str:
    heights = [y for _, y in series.points]
    return (
        f"{series.name}: {y_label} {min(heights):.4g} to {max(heights):.4g} "
        f"over {x_label} {series.points[0][0]:.4g} to {series.points[-1][0]:.4g}"
    )
