"""Lines over a pair of axes, as plain values in pixels.

A chart has a title and a description for screen readers; its points have a text that browsers show on hover.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tna_onnx.render.html.svg import Axes, Frame, Segment, marker_path, range_from_zero, ticks

__all__ = ["LineChart", "Series", "chart_x", "line_chart"]

# An inner SVG cuts off what lies outside; so much more is seen, for dots on the border.
_DOT_MARGIN = 3


@dataclass(frozen=True)
class Series:
    """A line of a chart.

    Attributes:
        name: for legend and hover.
        points: (x, y), in ascending x.
        look: classes of the style sheet, which have its colour and dashes.
        marker: shape at each point, one of `MARKERS`; none by default.
        spans: (low, high) of y at each point; none by default.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    look: str
    marker: str = ""
    spans: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Dot:
    """A marker: its path data and its text on hover."""

    path: str
    hover: str


@dataclass(frozen=True)
class Polyline:
    """A series in pixels; `points` as SVG writes them, and a vertical line for each span."""

    look: str
    points: str
    dots: tuple[Dot, ...]
    spans: tuple[Segment, ...] = ()


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
    # the range of y does not matter for x
    return Frame(x_range, (0, 1)).at_x(value)


def _frame(series: Sequence[Series], x_range: tuple[float, float] | None, y_range: tuple[float, float] | None) -> Frame:
    """Choose the ranges that were not asked for."""
    points = [point for line in series for point in line.points]
    # the points' own range; y begins at 0, so that heights can be compared
    if x_range is None:
        x_range = min(x for x, _ in points), max(x for x, _ in points)
    if y_range is None:
        ends = [high for line in series for _, high in line.spans]
        y_range = 0.0, range_from_zero(max([*ends, *(y for _, y in points)]))
    low, high = x_range
    if high <= low:
        # One value of x would make a scale without length.
        high = low + 1
    return Frame((low, high), y_range)


def _vertical_guide(frame: Frame, value: float, text: str, on_top: bool) -> Guide:
    """Mark a value of x; its text stands on the side with more room."""
    line = frame.segment("pick", (value, frame.y[0]), (value, frame.y[1]))
    y = frame.top + 12 if on_top else frame.bottom - 6
    # past the middle there is more room on the left
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
    spans = tuple(
        frame.segment(f"line {series.look} span-of", (x, low), (x, high))
        for (x, _), (low, high) in zip(series.points, series.spans, strict=False)
    )
    if not series.marker:
        return Polyline(series.look, path, (), spans)
    dots = (
        Dot(marker_path(series.marker, *place), f"{series.name}: {x_label} {x:.4g}, {y_label} {y:.4g}")
        for place, (x, y) in zip(places, series.points, strict=True)
    )
    return Polyline(series.look, path, tuple(dots), spans)


def _described(series: Series, x_label: str, y_label: str) -> str:
    heights = [y for _, y in series.points]
    return (
        f"{series.name}: {y_label} {min(heights):.4g} to {max(heights):.4g} "
        f"over {x_label} {series.points[0][0]:.4g} to {series.points[-1][0]:.4g}"
    )
