"""Reliability diagrams for the terminal: a row for each bin, its samples, its gap in numbers, and a bar.

The bar is the accuracy; the gap between accuracy and confidence is shaded, in one way where confidence is too high and
in another where it is too low, so that no colour is needed. Where the encoding of the output has no block characters,
ASCII stands in.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from tna_onnx.numerics.reliability import Bins
from tna_onnx.render.reliability import Bar, bars

__all__ = ["ReliabilityPlot"]

# Accuracy, confidence too high, confidence too low; the colours of the last two on a terminal.
_BLOCKS = ("█", "░", "▒")
_ASCII = ("#", ".", "+")
_OVER_STYLE = "red"
_UNDER_STYLE = "blue"
# Rows of a diagram; more bins are merged.
_MAX_ROWS = 20
# Columns of the bin's edges, of count and gap with the spaces around them, and of a bar where there is room.
_LABEL = 8
_NUMBERS = 17
_MAX_BAR = 18
# A bar that is narrower than this shows nothing.
_MIN_BAR = 6


class ReliabilityPlot:
    """One diagram, or several side by side if 80 columns allow it and one below the other if they do not."""

    def __init__(self, diagrams: Sequence[tuple[str, Bins]]) -> None:
        """Keep what is drawn.

        Args:
            diagrams: titles and bins; the same number of bins in each.
        """
        bins = len(diagrams[0][1].count)
        # rounded up, so that the rows never exceed the limit
        self._per_row = -(-bins // _MAX_ROWS)
        self._diagrams = [(title, bars(diagram, self._per_row)) for title, diagram in diagrams]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        marks = _BLOCKS
        if not _can_encode(options.encoding, "".join(_BLOCKS)):
            marks = _ASCII
        room = options.max_width - _LABEL
        abreast = max(1, room // (_NUMBERS + _MAX_BAR))
        width = max(_MIN_BAR, min(_MAX_BAR, room - _NUMBERS))
        for start in range(0, len(self._diagrams), abreast):
            # Each group of diagrams has a head of its own, so that it can be read by itself.
            yield from _rows(self._diagrams[start : start + abreast], marks, width)
        merged = f"; {self._per_row} bins a row" if self._per_row > 1 else ""
        yield Text(
            f"{marks[0] * 2} accuracy, 0 to 100 %  {marks[1] * 2} confidence above it  {marks[2] * 2} below it\n"
            f"gap = confidence - accuracy, points{merged}"
        )


def _rows(diagrams: Sequence[tuple[str, tuple[Bar, ...]]], marks: tuple[str, str, str], width: int) -> RenderResult:
    """Draw diagrams side by side, high confidences on top; bins that are empty in all of them have no row."""
    heads = (f"  {'samples':>7} {'gap':>6} {title[:width]:{width}}" for title, _ in diagrams)
    yield Text(f"{'conf., %':>{_LABEL}}{''.join(heads)}".rstrip(), style="bold", no_wrap=True)
    for row in reversed(list(zip(*(drawn for _, drawn in diagrams), strict=True))):
        # Most models have no samples at low confidence: these rows would only push the table off the screen.
        if not any(bar.count for bar in row):
            continue
        edges = f"{100 * row[0].left:.0f}-{100 * row[0].right:.0f}"
        line = Text(f"{edges:>{_LABEL}}", no_wrap=True)
        for bar in row:
            line.append("  ").append_text(_bar_text(bar, marks, width))
        line.rstrip()
        yield line


def _bar_text(bar: Bar, marks: tuple[str, str, str], width: int) -> Text:
    """Count, gap and bar of one bin."""
    if not bar.count:
        return Text(f"{0:>7} {'':6} {'':{width}}")
    accuracy, over, under = marks
    # both ends rounded on one scale: neighbouring parts of a bar meet
    low, high = (round(width * value) for value in bar.span)
    line = Text(f"{_count(bar.count):>7} {100 * bar.gap:+6.1f} ")
    line.append(accuracy * low)
    if bar.sign > 0:
        line.append(over * (high - low), style=_OVER_STYLE)
    else:
        line.append(under * (high - low), style=_UNDER_STYLE)
    return line.append(" " * (width - high))


def _count(number: int) -> str:
    """Write a number of samples in seven columns."""
    if number < 10**6:
        return f"{number:,}"
    if number < 10**9:
        return f"{number / 1e6:.2f}M"
    return f"{number / 1e9:.2f}G"


def _can_encode(encoding: str, text: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
