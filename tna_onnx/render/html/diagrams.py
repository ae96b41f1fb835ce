"""Drawings of bins: reliability diagrams, and histograms of the confidence.

Each has a title and a description for screen readers; marks have a text that browsers show on hover.
"""

from __future__ import annotations

from dataclasses import dataclass

from tna_onnx.numerics.corp import Curve
from tna_onnx.numerics.reliability import Bins
from tna_onnx.render.html.svg import Axes, Frame, Mark, Segment, range_from_zero, ticks
from tna_onnx.render.reliability import OF_CLASSES, Bar, DiagramWords, bars, short_count

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
    sides: tuple[str, str] = ("right", "wrong"),
) -> Histogram:
    """Share of the samples in each bin of confidence: right predictions below, wrong ones on top.

    Args:
        bins: to draw.
        title: of the drawing.
        highest: percentage up to which the axis goes, so that two drawings can have the same.
        words: names of what is drawn.
        sides: what is true of the lower and of the upper part.
    """
    top = range_from_zero(highest)
    frame = Frame((0, 1), (0, top))
    total = sum(bins.count)
    right = round(sum(bar.count * bar.height for bar in bars(bins)))
    return Histogram(
        title,
        f"{total:,} {words.counted}, {right:,} of them: {sides[0]}.",
        frame.axes(words.against, f"{words.counted}, %", x_ticks=_FIFTHS, y_ticks=ticks(0, top)),
        tuple(_histogram_mark(frame, bar, total, words, sides) for bar in bars(bins) if bar.count),
    )


def _histogram_mark(frame: Frame, bar: Bar, total: int, words: DiagramWords, names: tuple[str, str]) -> Mark:
    sides = (bar.left, bar.right)
    right = round(bar.count * bar.height)
    share = 100 * bar.count / total
    share_right = 100 * right / total
    rects = (
        frame.rect("hit-area", sides, *frame.y),
        frame.rect("accuracy", sides, 0, share_right),
        frame.rect("over", sides, share_right, share),
    )
    return Mark(f"{words.against} {_range(bar)}: {right:,} {names[0]}, {bar.count - right:,} {names[1]}", rects)


def _range(bar: Bar) -> str:
    return f"{bar.left:.2f} to {bar.right:.2f}"
