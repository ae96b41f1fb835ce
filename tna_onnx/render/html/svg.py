"""Drawings as SVG: reliability diagrams, histograms of the confidence, line charts, intervals.

Colours are classes of the page's style sheet; dashes and markers also tell series apart. A drawing has a title and a
description for screen readers, and texts on hover.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup, escape

from tna_onnx.files import printable
from tna_onnx.numerics.isotonic import Curve
from tna_onnx.numerics.reliability import Bins
from tna_onnx.render.charts import FEW, Bar, DiagramWords, MarkedChart, bars, log_ticks
from tna_onnx.results.study import Chart, Line

WIDTH = 380
"""Width of a drawing, pixels."""

CHART_HEIGHT, DIAGRAM_HEIGHT = 300, 332
"""Heights of line charts and histograms, and of reliability diagrams, pixels."""

MARKERS = ("circle", "square", "triangle", "diamond", "cross")
"""Shapes at the points of a line, so that lines differ without their colours."""

_PATHS = {
    "circle": "m-2.6 0a2.6 2.6 0 1 0 5.2 0a2.6 2.6 0 1 0 -5.2 0z",
    "square": "m-2.6 -2.6h5.2v5.2h-5.2z",
    "triangle": "m0 -3.6l3.5 6h-7z",
    "diamond": "m0 -3.8l3.8 3.8l-3.8 3.8l-3.8 -3.8z",
    "cross": "m-3 -3l6 6m0 -6l-6 6",
}

# Two bars side by side leave this much paper between them, twice.
_BAR_MARGIN = 0.6


def element(name: str, *content: str, **attributes: object) -> Markup:
    """Return an element; text in it is escaped, and `x_anchor` and `class_` stand for `x-anchor` and `class`.

    >>> element("text", "a < b", class_="tick", x=1.5)
    Markup('<text class="tick" x="1.5">a &lt; b</text>')
    """
    words = "".join(f' {key.rstrip("_").replace("_", "-")}="{_escaped(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{words}>{''.join(map(_escaped, content))}</{name}>")  # noqa: S704 - all parts are escaped


def _escaped(value: object) -> Markup:
    # a change of the writing direction in a name would act on the rest of the line
    if isinstance(value, Markup):
        return value
    return escape(printable(str(value), lines=True))


def _joined(parts: Iterable[Markup]) -> Markup:
    return Markup("").join(parts)


def _svg(title: str, description: str, height: int, *parts: Markup) -> Markup:
    """Return a drawing of `WIDTH` pixels by `height`."""
    names = (element("title", title), element("desc", description))
    # `viewBox` has a capital, so it is no keyword of `element`; on a page the style sheet says another size
    box = {"viewBox": f"0 0 {WIDTH} {height}"}
    return element("svg", *names, *parts, class_="chart", role="img", width=WIDTH, height=height, **box)


@dataclass(frozen=True)
class Frame:
    """A rectangle of the drawing, in pixels, and the range of values that it shows; around it are ticks and labels."""

    x: tuple[float, float]
    y: tuple[float, float]
    top: float = 10
    bottom: float = 260
    left: float = 58
    right: float = 368

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
    ) -> Markup:
        """Return the axes of this frame; an empty label is left out.

        `named`: values on the horizontal axis with texts of their own, in place of `x_ticks`.
        """
        parts = []
        for value in y_ticks:
            y = self.at_y(value)
            parts.append(_line("grid", self.left, y, self.right, y))
            parts.append(_text("tick", self.left - 6, y + 4, "end", f"{value:.6g}"))
        for value, text in named or [(value, f"{value:.6g}") for value in x_ticks]:
            x = self.at_x(value)
            parts.append(_line("axis", x, self.bottom, x, self.bottom + 4))
            parts.append(_text("tick", x, self.bottom + 17, "middle", text))
        parts.append(_line("axis", self.left, self.bottom, self.right, self.bottom))
        if x_label:
            parts.append(_text("label", (self.left + self.right) / 2, self.bottom + 35, "middle", x_label))
        if y_label:
            place = f"translate(12 {(self.top + self.bottom) / 2}) rotate(-90)"
            parts.append(element("text", y_label, class_="label", transform=place, text_anchor="middle"))
        return _joined(parts)

    def segment(self, look: str, start: tuple[float, float], end: tuple[float, float]) -> Markup:
        """Return the line between two points (x, y)."""
        return _line(look, self.at_x(start[0]), self.at_y(start[1]), self.at_x(end[0]), self.at_y(end[1]))

    def area(self, x: Sequence[float], low: Sequence[float], high: Sequence[float]) -> str:
        """Return the points of the polygon between two curves over the same values of x."""
        return f"{self.line(x, high)} {self.line(x[::-1], low[::-1])}"

    def line(self, x: Sequence[float], y: Sequence[float]) -> str:
        """Return the points of a curve."""
        return " ".join(f"{self.at_x(a)},{self.at_y(b)}" for a, b in zip(x, y, strict=True))

    def rect(self, look: str, sides: tuple[float, float], low: float, high: float) -> Markup:
        """Return a bar between two values of x and two of y."""
        x, y = self.at_x(sides[0]) + _BAR_MARGIN, self.at_y(high)
        width, height = self.at_x(sides[1]) - _BAR_MARGIN - x, self.at_y(low) - y
        return element("rect", class_=look, x=f"{x:.2f}", y=f"{y:.2f}", width=f"{width:.2f}", height=f"{height:.2f}")


def _line(look: str, x1: float, y1: float, x2: float, y2: float) -> Markup:
    return element("line", class_=look, x1=x1, y1=y1, x2=x2, y2=y2)


def _text(look: str, x: float, y: float, anchor: str, text: str) -> Markup:
    return element("text", text, class_=look, x=x, y=y, text_anchor=anchor)


# Intervals in the cells of tables


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
) -> Markup:
    """Draw an interval on an axis for a cell of a table; what lies outside of its ends is cut off."""
    frame = Frame(reach, (0, 1), left=2, right=98)
    # places in per cent of the width
    zero, start, end, point = (f"{frame.at_x(min(max(x, reach[0]), reach[1]))}%" for x in (mark, low, high, value))
    parts = (
        element("line", class_="axis", x1=zero, x2=zero, y1=0, y2=16),
        element("line", class_=f"span {look}", x1=start, x2=end, y1=8, y2=8),
        element("circle", class_=f"point {look}", cx=point, cy=8, r=3.5),
    )
    size = "interval"
    if wide:
        size = "interval wide"
    drawing = element("svg", *parts, class_=size, aria_hidden="true", focusable="false")
    return drawing + element("span", word, class_="unseen")


# Line charts

# An inner SVG cuts off what lies outside; so much more is seen, for dots on the border.
_DOT_MARGIN = 3


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
    if high > 0:
        return high * 1.08
    return 1.0


def line_chart(chart: Chart) -> Markup:
    """Draw a chart; what lies outside of its ranges is cut off."""
    marks = chart if isinstance(chart, MarkedChart) else MarkedChart(**vars(chart))
    named: list[tuple[float, str]] = []
    if chart.log_x:
        marks = _in_log(marks)
        named = [(math.log10(value), f"{value:,g}") for value in log_ticks(chart)]
    frame = _frame(marks)
    labels = (chart.x_label, chart.y_label)
    guides = [
        frame.segment("limit", (frame.x[0], value), (frame.x[1], value))
        + _text("note", frame.left + 4, frame.at_y(value) + 15, "start", text)
        for value, text in marks.horizontal
    ]
    if marks.vertical is not None:
        guides.insert(0, _vertical_guide(frame, *marks.vertical, marks.text_on_top))
    lines = [_polyline(frame, line, drawn, labels) for line, drawn in zip(chart.lines, marks.lines, strict=True)]
    rings = [element("circle", class_="ring", cx=frame.at_x(x), cy=frame.at_y(y), r=6) for x, y in marks.rings]
    return _svg(
        chart.title,
        "; ".join(_described(line, *labels) for line in chart.lines if line.x) + ".",
        CHART_HEIGHT,
        frame.axes(*labels, x_ticks=ticks(*frame.x), y_ticks=ticks(*frame.y), named=named),
        *guides,
        _clipped(frame, *lines, *rings),
    )


def _in_log(chart: MarkedChart) -> MarkedChart:
    """Return a chart over the logarithm of x, with room for the labels at its ends."""
    lines = tuple(replace(line, x=tuple(map(math.log10, line.x))) for line in chart.lines)
    values = [value for line in lines for value in line.x]
    room = 0.04 * (max(values) - min(values)) or 0.1
    return replace(chart, lines=lines, x_range=(min(values) - room, max(values) + room))


def line_look(line: Line) -> str:
    """Return the classes of the style sheet that a line has."""
    look = f"m{line.rank}"
    if line.rank >= len(MARKERS):
        look = "key"
    if line.dashed:
        return f"{look} dashed"
    return look


def line_marker(line: Line) -> str:
    """Return the shape at the points of a line; empty for none."""
    if not (line.marked and line.rank < len(MARKERS)):
        return ""
    return MARKERS[line.rank]


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


def _vertical_guide(frame: Frame, value: float, text: str, on_top: bool) -> Markup:
    """Mark a value of x; its text stands on the side with more room."""
    line = frame.segment("pick", (value, frame.y[0]), (value, frame.y[1]))
    y = frame.bottom - 6
    if on_top:
        y = frame.top + 12
    # past the middle there is more room on the left
    if value > sum(frame.x) / 2:
        return line + _text("note", frame.at_x(value) - 5, y, "end", text)
    return line + _text("note", frame.at_x(value) + 5, y, "start", text)


def _clipped(frame: Frame, *parts: Markup) -> Markup:
    x, y = frame.left - _DOT_MARGIN, frame.top - _DOT_MARGIN
    width, height = frame.right - frame.left + 2 * _DOT_MARGIN, frame.bottom - frame.top + 2 * _DOT_MARGIN
    return element("svg", *parts, x=x, y=y, width=width, height=height, viewBox=f"{x} {y} {width} {height}")


def _polyline(frame: Frame, line: Line, drawn: Line, labels: tuple[str, str]) -> Markup:
    """Draw a line, whose hovers tell its own values of x, at those of `drawn`."""
    look, marker = line_look(line), line_marker(line)
    parts = [element("polyline", class_=f"line {look}", points=frame.line(drawn.x, drawn.y))]
    parts += [
        frame.segment(f"line {look} span-of", (x, low), (x, high))
        for x, low, high in zip(drawn.x, drawn.low, drawn.high, strict=False)
    ]
    if marker:
        for place, x, y in zip(drawn.x, line.x, line.y, strict=True):
            path = marker_path(marker, frame.at_x(place), frame.at_y(y))
            hover = element("title", f"{line.name}: {labels[0]} {x:.4g}, {labels[1]} {y:.4g}")
            parts.append(element("path", hover, class_=f"mark dot {look}", d=path))
    return _joined(parts)


def _described(line: Line, x_label: str, y_label: str) -> str:
    return (
        f"{line.name}: {y_label} {min(line.y):.4g} to {max(line.y):.4g} "
        f"over {x_label} {line.x[0]:.4g} to {line.x[-1]:.4g}"
    )


# Diagrams of bins

_FIFTHS = (0, 0.2, 0.4, 0.6, 0.8, 1)
# Narrower bars have no room for the digits of their count; page.js has the same limit, 20 bins.
_MIN_COUNTED_WIDTH = 0.05
# Height of the line of counts, pixels.
_COUNTS = 257
# Half the length of the strokes that end an interval, pixels.
_CAP = 2.5


def reliability_diagram(bins: Bins, title: str, words: DiagramWords, curve: Curve | None = None) -> Markup:
    """Draw the share that came true against confidence, per bin, with gap, interval and number of samples."""
    frame = Frame((0, 1), (0, 1), bottom=236)
    # Without any samples the strip still needs a scale. Above it there is a line of counts.
    # the root of counts, so that a bin of few is seen beside one of thousands
    strip = Frame((0, 1), (0, math.sqrt(max(bins.count) or 1)), top=262, bottom=292)
    # an empty bin has no accuracy: a bar of height 0 would claim one
    filled = [bar for bar in bars(bins) if bar.count]
    marks = [_reliability_mark(frame, strip, bar, sum(bins.count), words, not curve) for bar in filled]
    if curve:
        # the band lies behind the bars, so that their colours stay; its border lies before them
        band = frame.area(curve.confidence, curve.low, curve.high)
        marks.insert(0, element("polygon", class_="band", points=band))
        marks.append(element("polygon", class_="border", points=band))
        marks.append(element("polyline", class_="line fit", points=frame.line(curve.confidence, curve.accuracy)))
    listed = "; ".join(
        f"{_range(bar)}: {bar.count:,} {words.counted}, {words.height} {bar.height:.2f}" for bar in filled
    )
    return _svg(
        title,
        f"Bars of {words.height} per bin of {words.against}. {listed}.",
        DIAGRAM_HEIGHT,
        frame.axes("", words.height, y_ticks=_FIFTHS),
        *marks,
        frame.segment("diagonal", (0, 0), (1, 1)),
        strip.axes(words.against, "", x_ticks=_FIFTHS),
        _text("tick", strip.left - 6, _COUNTS, "end", "count"),
    )


def _mark(hover: str, *parts: Markup, weak: bool = False) -> Markup:
    """Return parts that share a text on hover; `weak` where they stand for few samples."""
    look = "mark"
    if weak:
        look = "mark weak"
    return element("g", element("title", hover), *parts, class_=look)


def _reliability_mark(
    frame: Frame, strip: Frame, bar: Bar, total: int, words: DiagramWords, consistent: bool
) -> Markup:
    """Draw a bar with its gap and interval; `consistent` adds where calibration would put it."""
    sides = (bar.left, bar.right)
    # The hit area comes first: it is as high as the axes, so that small bars can be hovered.
    parts = [frame.rect("hit-area", sides, 0, 1)]
    if consistent:
        # behind the bars, so that their colours stay; its border lies before them
        parts.append(frame.rect("consistent", sides, *bar.consistent))
    parts += [
        frame.rect("accuracy", sides, 0, bar.height),
        frame.rect("over" if bar.confidence > bar.height else "under", sides, *sorted((bar.confidence, bar.height))),
        strip.rect("count", sides, 0, math.sqrt(bar.count)),
    ]
    if consistent:
        parts.append(frame.rect("consistent-border", sides, *bar.consistent))
    parts += _whisker(frame, bar)
    if bar.width >= _MIN_COUNTED_WIDTH:
        parts.append(_text("n rest", strip.at_x(bar.middle), _COUNTS, "middle", short_count(bar.count)))
    low, high = bar.interval
    hover = (
        f"{words.against} {_range(bar)}: {bar.count:,} {words.counted} ({100 * bar.count / total:.1f} %), "
        f"mean {words.against} {bar.confidence:.3f}, {words.height} {bar.height:.3f} ({low:.3f} to {high:.3f})"
    )
    return _mark(hover, *parts, weak=bar.count < FEW)


def short_count(number: int) -> str:
    """Write a count in at most four characters.

    >>> [short_count(n) for n in (999, 1_901, 9_999, 84_210, 1_234_567)]
    ['999', '1.9k', '10k', '84k', '1.2M']
    """
    for factor, suffix in ((1, ""), (1_000, "k"), (1_000_000, "M")):
        short = number / factor
        # 999.5 thousand is a million, not 1000 thousand
        if round(short) < 1_000:
            # below 10 there is room for a digit behind the point
            digits = int(round(short, 1) < 10)
            return f"{short:.{digits}f}".removesuffix(".0") + suffix
    return f"{number:.0e}"


def _whisker(frame: Frame, bar: Bar) -> tuple[Markup, ...]:
    """Return the interval of a bar's height, and the two strokes that end it."""
    x = frame.at_x(bar.middle)
    low, high = map(frame.at_y, bar.interval)
    ends = (_line("whisker", x - _CAP, y, x + _CAP, y) for y in (low, high))
    return (_line("whisker", x, low, x, high), *ends)


def confidence_histogram(bins: Bins, title: str, highest: float, words: DiagramWords) -> Markup:
    """Draw the share of the samples in each bin of confidence: right predictions below, wrong ones on top.

    `highest`: percentage up to which the axis goes, so that two drawings can have the same.
    """
    top = range_from_zero(highest)
    frame = Frame((0, 1), (0, top))
    total = sum(bins.count)
    right = round(sum(bar.count * bar.height for bar in bars(bins)))
    return _svg(
        title,
        f"{total:,} {words.counted}, {right:,} of them: {words.sides[0]}.",
        CHART_HEIGHT,
        frame.axes(words.against, f"{words.counted}, %", x_ticks=_FIFTHS, y_ticks=ticks(0, top)),
        *(_histogram_mark(frame, bar, total, words) for bar in bars(bins) if bar.count),
    )


def _histogram_mark(frame: Frame, bar: Bar, total: int, words: DiagramWords) -> Markup:
    sides = (bar.left, bar.right)
    right = round(bar.count * bar.height)
    share, share_right = 100 * bar.count / total, 100 * right / total
    names = words.sides
    return _mark(
        f"{words.against} {_range(bar)}: {right:,} {names[0]}, {bar.count - right:,} {names[1]}",
        frame.rect("hit-area", sides, *frame.y),
        frame.rect("accuracy", sides, 0, share_right),
        frame.rect("over", sides, share_right, share),
    )


def _range(bar: Bar) -> str:
    return f"{bar.left:.2f} to {bar.right:.2f}"
