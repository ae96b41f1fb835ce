"""Building blocks of a page as plain values: tables, figures, legends, lists of terms.

`templates/blocks.html` has a macro of the same name for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tna_onnx.render.html.charts import LineChart
from tna_onnx.render.html.diagrams import Histogram, ReliabilityDiagram
from tna_onnx.render.html.svg import IntervalBar, marker_path

__all__ = ["Column", "Figure", "Key", "Strong", "Table", "Term", "area_key", "interval_key", "line_key", "table"]


@dataclass(frozen=True)
class Column:
    """Head of a column; `wraps` for text, which stands at the left and may take several lines."""

    title: str
    wraps: bool = False


@dataclass(frozen=True)
class Strong:
    """A cell that stands out."""

    strong: str


Cell: TypeAlias = str | Strong | IntervalBar
"""A cell of a table."""


@dataclass(frozen=True)
class Table:
    """A table whose first column names the rows; it scrolls sideways on its own.

    Attributes:
        columns: their heads.
        rows: cells of each row, as text, as text that stands out, or as an interval.
        caption: also the name of the region that scrolls.
        look: class of the style sheet.
        chosen: index of the row that stands out; None for none.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str
    look: str = ""
    chosen: int | None = None


def table(
    columns: Sequence[str | Column],
    rows: Iterable[Sequence[Cell]],
    caption: str,
    look: str = "",
    chosen: int | None = None,
) -> Table:
    """Return a table; a column can be given as the text of its head."""
    heads = tuple(map(_column, columns))
    return Table(heads, tuple(map(tuple, rows)), caption, look, chosen)


def _column(head: str | Column) -> Column:
    if isinstance(head, str):
        return Column(head)
    return head


@dataclass(frozen=True)
class Figure:
    """A drawing with a caption above; empty for none."""

    drawing: ReliabilityDiagram | Histogram | LineChart
    caption: str = ""


@dataclass(frozen=True)
class Key:
    """An entry of a legend: an area, or a line and the marker of its points.

    Attributes:
        look: class of the style sheet.
        text: that explains it.
        line: whether it is a line.
        capped: whether the line ends in strokes, as an interval does.
        marker: path data; empty for none.
    """

    look: str
    text: str
    line: bool
    marker: str = ""
    capped: bool = False


def interval_key(look: str, text: str) -> Key:
    """Explain an interval."""
    return Key(look, text, line=True, capped=True)


def area_key(look: str, text: str) -> Key:
    """Explain an area."""
    return Key(look, text, line=False)


def line_key(look: str, text: str, marker: str = "") -> Key:
    """Explain a line, and the marker of its points: one of `svg.MARKERS`."""
    if not marker:
        return Key(look, text, line=True)
    # The entry's drawing is 28 by 12 pixels, the marker in its middle.
    return Key(look, text, line=True, marker=marker_path(marker, 14, 6))


@dataclass(frozen=True)
class Term:
    """A name and what it stands for; in the font of code if it is that."""

    name: str
    text: str
    code: bool = False
