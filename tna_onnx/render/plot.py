"""Reliability diagrams for the terminal: a row for each bin, its samples, its gap in numbers, and a bar.

The bar is the accuracy; the gap between accuracy and confidence is shaded, in one way where confidence is too high and
in another where it is too low, so that no colour is needed. Where the encoding of the output has no block characters,
ASCII stands in.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from tna_onnx.results.details import Bins

__all__ = ["ReliabilityPlot"]

# accuracy, confidence too high, confidence too low; their colours on a terminal
_BLOCKS, _ASCII = "█░▒", "#.+"
_STYLES = ("", "red", "blue")
# Rows of a diagram; more bins are merged. Columns of labels, of count and gap, and of a bar where there is room.
_MOST_ROWS = 20
_LABEL, _NUMBERS, _BAR = 8, 14, 18
# A bar that is narrower than this shows nothing.
_LEAST_BAR = 6


class ReliabilityPlot:
    """One diagram, or several side by side if 80 columns allow it and one below the other if they do not."""

    def __init__(self, diagrams: Sequence[tuple[str, Bins]]) -> None:
        """Keep what is drawn.

        Args:
            diagrams: titles and bins; the same number of bins in each.
        """
        self._bins = len(diagrams[0][1].count)
        self._per_row = -(-self._bins // _MOST_ROWS)
        self._diagrams = [(title, _merged(bins, self._per_row)) for title, bins in diagrams]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        marks = _BLOCKS if _holds(options.encoding, _BLOCKS) else _ASCII
        beside = 2 + _NUMBERS + 1
        abreast = max(1, (options.max_width - _LABEL) // (beside + _BAR))
        bar = max(_LEAST_BAR, min(_BAR, options.max_width - _LABEL - beside))
        for start in range(0, len(self._diagrams), abreast):
            yield from self._rows(self._diagrams[start : start + abreast], marks, bar)
        merged = f"; {self._per_row} bins a row" if self._per_row > 1 else ""
        yield Text(
            f"{marks[0] * 2} accuracy, 0 to 100 %  {marks[1] * 2} confidence above it  {marks[2] * 2} below it\n"
            f"gap = confidence - accuracy, points{merged}"
        )

    def _rows(self, diagrams: Sequence[tuple[str, Bins]], marks: str, bar: int) -> RenderResult:
        heads = (f"  {'samples':>7} {'gap':>6} {title[:bar]:{bar}}" for title, _ in diagrams)
        yield Text(f"{'conf., %':>{_LABEL}}{''.join(heads)}".rstrip(), style="bold", no_wrap=True)
        for j in reversed(range(len(diagrams[0][1].count))):
            if not any(bins.count[j] for _, bins in diagrams):
                continue
            line = Text(f"{self._edges(j):>{_LABEL}}", no_wrap=True)
            for _, bins in diagrams:
                line.append("  ").append_text(_bin(bins, j, marks, bar))
            line.rstrip()
            yield line

    def _edges(self, row: int) -> str:
        """Return the confidences of a row in per cent."""
        low, high = (100 * min(k * self._per_row, self._bins) / self._bins for k in (row, row + 1))
        return f"{low:.0f}-{high:.0f}"


def _bin(bins: Bins, j: int, marks: str, width: int) -> Text:
    """Count, gap and bar of one bin."""
    count, confidence, accuracy = bins.count[j], bins.confidence[j], bins.accuracy[j]
    if not count:
        return Text(f"{0:>7} {'':6} {'':{width}}")
    low, high = (round(width * value) for value in sorted((confidence, accuracy)))
    gap = 1 if confidence > accuracy else 2
    line = Text(f"{_short(count):>7} {100 * (confidence - accuracy):+6.1f} ")
    line.append(marks[0] * low).append(marks[gap] * (high - low), style=_STYLES[gap])
    return line.append(" " * (width - high))


def _merged(bins: Bins, size: int) -> Bins:
    """Add up so many neighbouring bins each."""
    starts = range(0, len(bins.count), size)
    count = [sum(bins.count[s : s + size]) for s in starts]

    def mean(values: Sequence[float]) -> tuple[float, ...]:
        sums = (sum(n * v for n, v in zip(bins.count[s : s + size], values[s : s + size], strict=True)) for s in starts)
        return tuple(total / max(1, n) for total, n in zip(sums, count, strict=True))

    return Bins(tuple(count), mean(bins.confidence), mean(bins.accuracy))


def _short(count: int) -> str:
    return f"{count:,}" if count < 10**6 else f"{count / 1e6:.2f}M" if count < 10**9 else f"{count / 1e9:.2f}G"


def _holds(encoding: str, text: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
