"""Geometry of the drawings on a page: scales, ticks, bars, lines and points as plain values, in pixels.

`templates/drawings.html` writes them as inline SVG. Colours and fonts are classes of the page's style sheet, which
fields called `look` name; series also differ by dashes and markers, for readers who see no colours. A chart has a title
and a description for screen readers; its points have a text that browsers show on hover.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tna_onnx.numerics.corp import Curve
from tna_onnx.numerics.reliability import Bins
from tna_onnx.render.charts import OF_CLASSES, Bar, DiagramWords, MarkedChart, bars, log_ticks
from tna_onnx.results.study import Chart, Line

MARKERS = ("circle", "square", "triangle", "diamond", "cross")
"""Shapes at the points of a line, so that lines differ without their colours."""

# Rectangle between the axes. The drawing is 380 by 300 in `templates/drawings.html`; the rest is for ticks and labels.
_LEFT = 58
_RIGHT = 368
_TOP = 10
_BOTTOM = 260

_PATHS = {
    "circle": "m-2.6 0a2.6 2.6 0 1 0 5.2 0a2.6 2.6 0 1 0 -5.2 0z",
    "square": "m-2.6 -2.6h5.2v5.2h-5.2z",
    "triangle": "m0 -3.6l3.5 6h-7z",
    "diamond": "m0 -3.8l3.8 3.8l-3.8 3.8l-3.8 -3.8z",
    "cross": "m-3 -3l6 6m0 -6l-6 6",
}

# Two bars side by side leave this much paper between them, twice.
_BAR_MARGIN = 0.6


@dataclass(frozen=True)
class Tick:
    """A labelled place on an axis."""

    at: float
    text: str


@dataclass(frozen=True)
class Axes:
    """A pair of axes: the rectangle between them, ticks and labels."""

    left: float
    right: float
    top: float
    bottom: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    x_label: str
    y_label: str


@dataclass(frozen=True)
class Segment:
    """A straight line."""

    look: str
    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(frozen=True)
class Rect:
    """A rectangle; numbers as text with two digits."""

    look: str
    x: str
    y: str
    width: str
    height: str


@dataclass(frozen=True)
class Mark:
    """Rectangles and lines that share a text on hover.

    `count` is a short number in the middle of the bar, at pixel `count_x`; `weak` marks stand for few samples.
    """

    hover: str
    rects: tuple[Rect, ...]
    lines: tuple[Segment, ...] = ()
    count: str = ""
    count_x: float = 0.0
    weak: bool = False


@dataclass(frozen=True)
class Frame:
    """A rectangle of the drawing, in pixels, and the range of values that it shows."""

    x: tuple[float, float]
    y: tuple[float, float]
    top: float = _TOP
    bottom: float = _BOTTOM
    left: float = _LEFT
    right: float = _RIGHT

    def at_x(self, value: float) -> float:
        """Pixel of a value of x."""
        low, high = self.x
        # two digits are far below what a screen shows
        return round(self.left + (value - low) / (high - low) * (self.right - self.left), 2)

    def at_y(self, value: float) -> float:
        """Pixel of a value of y; SVG counts downwards."""
        low, high = self.y
        return round(self.bottom - (value - low) / (high - low) * (self.bottom - self.top), 2)

    def axes(
        self,
        x_label: str,
        y_label: str,
        *,
        x_ticks: Sequence[float] = (),
        y_ticks: Sequence[float] = (),
        named: Sequence[tuple[float, str]] = (),
    ) -> Axes:
        """Return the axes of this frame.

        Args:
            x_label: of the horizontal axis.
            y_label: of the vertical axis; empty for none.
            x_ticks: values on the horizontal axis.
            y_ticks: values on the vertical axis.
            named: values on the horizontal axis with texts of their own, in place of `x_ticks`.
        """
        below = named or [(value, f"{value:.6g}") for value in x_ticks]
        return Axes(
            self.left,
            self.right,
            self.top,
            self.bottom,
            tuple(Tick(self.at_x(value), text) for value, text in below),
            tuple(Tick(self.at_y(value), f"{value:.6g}") for value in y_ticks),
            x_label,
            y_label,
        )

    def segment(self, look: str, start: tuple[float, float], end: tuple[float, float]) -> Segment:
        """Return the line between two points (x, y)."""
        return Segment(look, self.at_x(start[0]), self.at_y(start[1]), self.at_x(end[0]), self.at_y(end[1]))

    def area(self, x: Sequence[float], low: Sequence[float], high: Sequence[float]) -> str:
        """Return the points of the polygon between two curves over the same values of x."""
        return f"{self.line(x, high)} {self.line(x[::-1], low[::-1])}"

    def line(self, x: Sequence[float], y: Sequence[float]) -> str:
        """Return the points of a curve."""
        return " ".join(f"{self.at_x(a)},{self.at_y(b)}" for a, b in zip(x, y, strict=True))

    def rect(self, look: str, sides: tuple[float, float], low: float, high: float) -> Rect:
        """Return a bar between two values of x and two of y."""
        start = self.at_x(sides[0]) + _BAR_MARGIN
        right = self.at_x(sides[1]) - _BAR_MARGIN
        top = self.at_y(high)
        bottom = self.at_y(low)
        return Rect(look, f"{start:.2f}", f"{top:.2f}", f"{right - start:.2f}", f"{bottom - top:.2f}")


@dataclass(frozen=True)
class IntervalBar:
    """An interval, its point and a mark on one axis, for a cell of a table.

    Attributes:
        mark: place of a value to compare with, in per cent of the width.
        low: lower end of the interval, likewise.
        high: upper end, likewise.
        x: the point, likewise.
        look: class of the style sheet.
        word: says what it shows to those who do not see it.
        wide: whether it is the main thing of its table.
    """

    mark: float
    low: float
    high: float
    x: float
    look: str
    word: str
    wide: bool = False


def interval_bar(
    value: float,
    low: float,
    high: float,
    reach: tuple[float, float],
    look: str,
    word: str,
    *,
    mark: float = 0.0,
    wide: bool = False,
) -> IntervalBar:
    """Place an interval on an axis; what lies outside of its ends is cut off.

    Args:
        value: the point.
        low: lower end of the interval.
        high: upper end.
        reach: ends of the axis.
        look: `better`, `worse` or `open`.
        word: that says what the bar shows.
        mark: a value that has a line.
        wide: whether the bar is the main thing of its table.
    """
    frame = Frame(reach, (0, 1), left=2, right=98)

    def at(number: float) -> float:
        return frame.at_x(min(max(number, reach[0]), reach[1]))

    return IntervalBar(at(mark), at(low), at(high), at(value), look, word, wide)


def marker_path(shape: str, x: float, y: float) -> str:
    """Return the path data of a marker around a point.

    >>> marker_path("triangle", 1, 2)
    'M1 2m0 -3.6l3.5 6h-7z'
    """
    return f"M{x:g} {y:g}{_PATHS[shape]}"


def ticks(low: float, high: float) -> list[float]:
    """Return two to six round values in [low, high].

    >>> ticks(0, 100)
    [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]
    """
    # about five steps; the next larger round one leaves at least two ticks
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    # 0.999 and 1e-9: rounding errors neither skip a step nor lose the tick at an end
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 10) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def range_from_zero(high: float) -> float:
    """Return the upper end of an axis from zero: a little above the highest value, 1 if that is zero."""
    return high * 1.08 if high > 0 else 1.0


# An inner SVG cuts off what lies outside; so much more is seen, for dots on the border.
_DOT_MARGIN = 3


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
    lines: tuple[Polyline, ...]
    rings: tuple[tuple[float, float], ...]


def line_chart(chart: Chart) -> LineChart:
    """Draw a chart; what lies outside of its ranges is cut off."""
    marks = chart if isinstance(chart, MarkedChart) else MarkedChart(**vars(chart))
    if chart.log_x:
        marks = _in_log(marks)
    frame = _frame(marks)
    guides = [_horizontal_guide(frame, value, text) for value, text in marks.horizontal]
    if marks.vertical is not None:
        guides.insert(0, _vertical_guide(frame, *marks.vertical, marks.text_on_top))
    named = [(float(k), name) for k, name in enumerate(chart.x_names, start=1)]
    if chart.log_x:
        named = [(math.log10(value), f"{value:,g}") for value in log_ticks(chart)]
    labels = (chart.x_label, chart.y_label)
    return LineChart(
        chart.title,
        "; ".join(_described(line, *labels) for line in chart.lines if line.x) + ".",
        frame.axes(*labels, x_ticks=ticks(*frame.x), y_ticks=ticks(*frame.y), named=named),
        tuple(guides),
        _box(frame),
        tuple(_polyline(frame, line, drawn, labels) for line, drawn in zip(chart.lines, marks.lines, strict=True)),
        tuple((frame.at_x(x), frame.at_y(y)) for x, y in marks.rings),
    )


def _in_log(chart: MarkedChart) -> MarkedChart:
    """Return a chart over the logarithm of x, with room for the labels at its ends."""
    lines = tuple(replace(line, x=tuple(map(math.log10, line.x))) for line in chart.lines)
    values = [value for line in lines for value in line.x]
    room = 0.04 * (max(values) - min(values)) or 0.1
    return replace(chart, lines=lines, x_range=(min(values) - room, max(values) + room))


def line_look(line: Line) -> str:
    """Return the classes of the style sheet that a line has."""
    look = "key" if line.rank >= len(MARKERS) else f"m{line.rank}"
    return f"{look} dashed" if line.dashed else look


def line_marker(line: Line) -> str:
    """Return the shape at the points of a line; empty for none."""
    return MARKERS[line.rank] if line.marked and line.rank < len(MARKERS) else ""


def _frame(chart: MarkedChart) -> Frame:
    """Choose the ranges that are not given."""
    x_range, y_range = chart.x_range, chart.y_range
    # the points' own range; y begins at 0, so that heights can be compared
    if x_range is None:
        values = [value for line in chart.lines for value in line.x]
        x_range = min(values), max(values)
    if y_range is None:
        y_range = 0.0, range_from_zero(max(value for line in chart.lines for value in (*line.high, *line.y)))
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


def _polyline(frame: Frame, line: Line, drawn: Line, labels: tuple[str, str]) -> Polyline:
    """Draw a line, whose hovers tell its own values of x, at those of `drawn`."""
    look = line_look(line)
    places = [(frame.at_x(x), frame.at_y(y)) for x, y in zip(drawn.x, drawn.y, strict=True)]
    spans = tuple(
        frame.segment(f"line {look} span-of", (x, low), (x, high))
        for x, low, high in zip(drawn.x, drawn.low, drawn.high, strict=False)
    )
    marker = line_marker(line)
    dots = (
        Dot(marker_path(marker, *place), f"{line.name}: {labels[0]} {x:.4g}, {labels[1]} {y:.4g}")
        for place, x, y in zip(places, line.x, line.y, strict=True)
    )
    return Polyline(look, " ".join(f"{x},{y}" for x, y in places), tuple(dots) if marker else (), spans)


def _described(line: Line, x_label: str, y_label: str) -> str:
    return (
        f"{line.name}: {y_label} {min(line.y):.4g} to {max(line.y):.4g} "
        f"over {x_label} {line.x[0]:.4g} to {line.x[-1]:.4g}"
    )


_FIFTHS = (0, 0.2, 0.4, 0.6, 0.8, 1)
# Narrower bars have no room for the digits of their count; page.js has the same limit, 20 bins.
_MIN_COUNTED_WIDTH = 0.05
# Half the length of the strokes that end an interval, pixels.
_CAP = 2.5


@dataclass(frozen=True)
class ReliabilityDiagram:
    """Bars of accuracy per bin with their gaps and intervals, and a strip below that counts the samples.

    `band` and `curve` are the points of the area of calibrated models and of the fit without bins; empty for none.
    """

    title: str
    description: str
    axes: Axes
    strip: Axes
    marks: tuple[Mark, ...]
    diagonal: Segment
    band: str = ""
    curve: str = ""


@dataclass(frozen=True)
class Histogram:
    """Stacked bars."""

    title: str
    description: str
    axes: Axes
    marks: tuple[Mark, ...]


def reliability_diagram(
    bins: Bins, title: str, words: DiagramWords = OF_CLASSES, curve: Curve | None = None
) -> ReliabilityDiagram:
    """Share that came true against confidence, per bin, with the gap to the diagonal and the samples of each bin.

    Args:
        bins: to draw.
        title: of the drawing.
        words: names of the axes, and of what is counted.
        curve: the same without bins.
    """
    frame = Frame((0, 1), (0, 1), bottom=236)
    # Without any samples the strip still needs a scale. Above it there is a line of counts.
    strip = Frame((0, 1), (0, max(bins.count) or 1), top=262, bottom=292)
    # an empty bin has no accuracy: a bar of height 0 would claim one
    filled = [bar for bar in bars(bins) if bar.count]
    total = sum(bins.count)
    listed = "; ".join(f"{_range(bar)}: {bar.count:,} {words.counted}, {words.what} {bar.height:.2f}" for bar in filled)
    return ReliabilityDiagram(
        title,
        f"Bars of {words.what} per bin of {words.against}. {listed}.",
        frame.axes("", words.what, y_ticks=_FIFTHS),
        strip.axes(words.against, "", x_ticks=_FIFTHS),
        tuple(_reliability_mark(frame, strip, bar, total, words, not curve) for bar in filled),
        frame.segment("diagonal", (0, 0), (1, 1)),
        frame.area(curve.confidence, curve.low, curve.high) if curve else "",
        frame.line(curve.confidence, curve.accuracy) if curve else "",
    )


def _reliability_mark(frame: Frame, strip: Frame, bar: Bar, total: int, words: DiagramWords, consistent: bool) -> Mark:
    """Draw a bar with its gap and interval; `consistent` adds where calibration would put it."""
    sides = (bar.left, bar.right)
    # The hit area comes first: it is as high as the axes, so that small bars can be hovered.
    rects = [frame.rect("hit-area", sides, 0, 1)]
    if consistent:
        # behind the bars, so that their colours stay; its border lies before them
        rects.append(frame.rect("consistent", sides, *bar.consistent))
    rects += [
        frame.rect("accuracy", sides, 0, bar.height),
        frame.rect("over" if bar.sign > 0 else "under", sides, *bar.span),
        strip.rect("count", sides, 0, bar.count),
    ]
    if consistent:
        rects.append(frame.rect("consistent-border", sides, *bar.consistent))
    low, high = bar.interval
    hover = (
        f"{words.against} {_range(bar)}: {bar.count:,} {words.counted} ({bar.count / total:.1%}), "
        f"mean {words.against} {bar.confidence:.3f}, {words.what} {bar.height:.3f} ({low:.3f} to {high:.3f})"
    )
    count = ""
    if bar.width >= _MIN_COUNTED_WIDTH:
        count = short_count(bar.count)
    lines = _whisker(frame, bar)
    return Mark(hover, tuple(rects), lines, count, strip.at_x(bar.middle), bar.weak)


def short_count(number: int) -> str:
    """Write a count in at most four characters.

    >>> [short_count(n) for n in (999, 1_901, 9_999, 84_210, 1_234_567)]
    ['999', '1.9k', '10k', '84k', '1.2M']
    """
    for factor, suffix in ((1, ""), (1_000, "k"), (1_000_000, "M")):
        # 999.5 thousand is a million, not 1000 thousand
        if round(number / factor) < 1_000:
            return _short(number / factor) + suffix
    return f"{number:.0e}"


def _short(number: float) -> str:
    """Write a number below 1,000 with one digit behind the point where there is room: below 10, if it has one."""
    text = f"{number:.1f}"
    if len(text) > len("9.9") or text.endswith(".0"):
        return f"{number:.0f}"
    return text


def _whisker(frame: Frame, bar: Bar) -> tuple[Segment, ...]:
    """Return the interval of a bar's height, and the two strokes that end it."""
    x = frame.at_x(bar.middle)
    low, high = map(frame.at_y, bar.interval)
    ends = tuple(Segment("whisker", x - _CAP, y, x + _CAP, y) for y in (low, high))
    return (Segment("whisker", x, low, x, high), *ends)


def confidence_histogram(
    bins: Bins,
    title: str,
    highest: float,
    words: DiagramWords = OF_CLASSES,
) -> Histogram:
    """Share of the samples in each bin of confidence: right predictions below, wrong ones on top.

    Args:
        bins: to draw.
        title: of the drawing.
        highest: percentage up to which the axis goes, so that two drawings can have the same.
        words: names of what is drawn.
    """
    top = range_from_zero(highest)
    frame = Frame((0, 1), (0, top))
    total = sum(bins.count)
    right = round(sum(bar.count * bar.height for bar in bars(bins)))
    return Histogram(
        title,
        f"{total:,} {words.counted}, {right:,} of them: {words.sides[0]}.",
        frame.axes(words.against, f"{words.counted}, %", x_ticks=_FIFTHS, y_ticks=ticks(0, top)),
        tuple(_histogram_mark(frame, bar, total, words) for bar in bars(bins) if bar.count),
    )


def _histogram_mark(frame: Frame, bar: Bar, total: int, words: DiagramWords) -> Mark:
    sides = (bar.left, bar.right)
    right = round(bar.count * bar.height)
    share = 100 * bar.count / total
    share_right = 100 * right / total
    rects = (
        frame.rect("hit-area", sides, *frame.y),
        frame.rect("accuracy", sides, 0, share_right),
        frame.rect("over", sides, share_right, share),
    )
    names = words.sides
    return Mark(f"{words.against} {_range(bar)}: {right:,} {names[0]}, {bar.count - right:,} {names[1]}", rects)


def _range(bar: Bar) -> str:
    return f"{bar.left:.2f} to {bar.right:.2f}"
