"""Building blocks of a page as plain values: tables, figures, legends, lists of terms, and texts that pages share.

`templates/blocks.html` has a macro of the same name for each block.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from tna_onnx.data.images import preprocess
from tna_onnx.numerics.isotonic import BAND_LEVEL
from tna_onnx.numerics.metric import JUDGED
from tna_onnx.numerics.metrics import Interval
from tna_onnx.numerics.reliability import Bins
from tna_onnx.render.charts import FEW, DiagramWords, bars
from tna_onnx.render.html import svg
from tna_onnx.render.wording import TextTable, subgroup_tables
from tna_onnx.results.measured import Subgroup
from tna_onnx.results.study import Chart, Line
from tna_onnx.results.verdict import Word, changed


@dataclass(frozen=True)
class PageColumn:
    """Head of a column; `wraps` for text, which stands at the left and may take several lines."""

    title: str
    wraps: bool = False


@dataclass(frozen=True)
class Table:
    """A table whose first column names the rows; it scrolls sideways on its own."""

    columns: tuple[PageColumn, ...]  # their heads
    rows: tuple[tuple[str, ...], ...]  # cells of each row: text, or markup
    caption: str  # also the name of the region that scrolls
    look: str = ""  # class of the style sheet
    stressed: int | None = None  # index of the row that stands out; None for none
    folded: str = ""  # what stands in its place until it is asked for; empty where it stands open


def table(
    columns: Sequence[str | PageColumn], rows: Iterable[Sequence[str]], caption: str, look: str = "", **more: Any
) -> Table:
    """Return a table; a column can be given as the text of its head. `more` are further fields of `Table`."""
    heads = tuple(head if isinstance(head, PageColumn) else PageColumn(head) for head in columns)
    cells = tuple(tuple(map(_with_minus, row)) for row in rows)
    return Table(heads, cells, caption, look, **more)


def text_table(content: TextTable | None, look: str = "metrics") -> list[Table]:
    """Return a table that the terminal has too; nothing for none."""
    if content is None:
        return []
    caption, heads, rows = content
    return [table(heads, rows, capital(caption), look)]


_NUMBERS = re.compile(r"(debiased )?[-+\d.,()% ]+(to [-+\d.,()% ]+)*")


def _with_minus(cell: str) -> str:
    """Return a cell of numbers with the signs that typography has for minus and arrow."""
    cell = cell.replace(" -> ", " → ")
    if not _NUMBERS.fullmatch(cell):
        return cell
    return re.sub(r"(?<!\d)-(?=\d)", "−", cell)


def subgroup_blocks(
    subgroups: Sequence[Subgroup], title: str = "Subgroups: ", difference: str = "differences to the baseline"
) -> list[Table]:
    """Return tables of subgroups with their estimates, and with differences if there are any; none for none."""
    tables = subgroup_tables(subgroups, difference)
    return [table(heads, cells, f"{title}{caption}") for caption, heads, cells in tables]


@dataclass(frozen=True)
class Figure:
    """A drawing with a caption above; empty for none."""

    drawing: Markup
    caption: str = ""
    height: int = svg.CHART_HEIGHT  # of the drawing, pixels


@dataclass(frozen=True)
class Key:
    """An entry of a legend: an area, or a line and the marker of its points."""

    look: str  # class of the style sheet
    text: str  # that explains it
    line: bool = False  # whether it is a line
    marker: str = ""  # path data; empty for none
    capped: bool = False  # whether the line ends in strokes, as an interval does

    @property
    def drawing(self) -> Markup:
        """What it explains, 28 by 12 pixels."""
        if not self.line:
            return svg.element("rect", class_=self.look, width=28, height=12)
        parts = [svg.element("line", class_=f"line {self.look}", x1=0, x2=28, y1=6, y2=6)]
        if self.capped:
            parts.append(svg.element("path", class_=self.look, d="M1 2v8M27 2v8"))
        if self.marker:
            parts.append(svg.element("path", class_=f"dot {self.look}", d=self.marker))
        return Markup("").join(parts)

    @property
    def rest(self) -> bool:
        """Whether a reliability diagram shows it on demand."""
        return self.look in ("over", "under", "whisker", "fit", "accuracy weak")


def key_of(line: Line) -> Key:
    """Explain a line of a chart."""
    marker = svg.line_marker(line)
    if marker:
        # the entry's drawing is 28 by 12 pixels, the marker in its middle
        marker = svg.marker_path(marker, 14, 6)
    return Key(svg.line_look(line), line.name, line=True, marker=marker)


@dataclass(frozen=True)
class Panel:
    """Figures that share a legend."""

    figures: tuple[Figure, ...]
    keys: tuple[Key, ...] = ()


def chart_panel(chart: Chart) -> Panel:
    """Return the drawing of a chart below its title; a line alone needs no legend."""
    keys: tuple[Key, ...] = ()
    if len(chart.lines) > 1:
        keys = tuple(map(key_of, chart.lines))
    return Panel((Figure(svg.line_chart(chart), chart.title),), keys)


@dataclass(frozen=True)
class Term:
    """A name and what it stands for; in the font of code if it is that."""

    name: str
    text: str
    code: bool = False


def command_terms(command: str, name: str = "Command") -> tuple[Term, ...]:
    """Return what was typed; nothing where that is not known."""
    if not command:
        return ()
    return (Term(name, command, code=True),)


LOOKS: dict[Word, str] = {"improved": "better", "no significant change": "open", "worse": "worse", "still off": "open"}
"""Class of the style sheet for a verdict, by what a result comes to."""


def capital(text: str) -> str:
    """Begin a text with a capital, and leave the rest as it is.

    >>> capital("accuracy, %")
    'Accuracy, %'
    """
    return text[:1].upper() + text[1:]


def metric_title(name: str) -> str:
    """Label and unit of a metric as the head of a row or column."""
    return capital(JUDGED[name].title)


def diagram_keys(words: DiagramWords, *, fitted: bool) -> tuple[Key, ...]:
    """Return the legend of a reliability diagram. `fitted`: whether there is a fit without bins, with its band."""
    consistent: tuple[Key, ...] = (Key("consistent", "consistent with calibration (95 %)"),)
    if fitted:
        consistent = (
            Key("fit", f"{words.height} without bins", line=True),
            Key("band", f"consistent with calibration ({100 * BAND_LEVEL:g} %)"),
        )
    return (
        Key("accuracy", words.height),
        Key("over", f"{words.against} too high"),
        Key("under", "too low"),
        Key("whisker", "95 % interval", line=True, capped=True),
        Key("accuracy weak", f"fewer than {FEW} {words.counted}"),
        *consistent,
    )


def bins_table(bins: Bins, caption: str, words: DiagramWords) -> Table:
    """Return the numbers of a reliability diagram."""
    rows = []
    for bar in bars(bins):
        means = ("", "", "")
        if bar.count:
            low, high = bar.interval
            means = (f"{bar.confidence:.4f}", f"{bar.height:.4f}", f"{low:.4f} to {high:.4f}")
        rows.append((f"{bar.left:.3f} to {bar.right:.3f}", f"{bar.count:,}", *means))
    return table(("bin", words.counted, f"mean {words.against}", words.height, "95 % interval"), rows, caption)


DIRECTIONS = "falls | rises"
"""Head of a column of `interval_cell`."""


def interval_cell(name: str, d: Interval, reach: float, open_word: str, *, wide: bool = False) -> Markup:
    """Draw the interval of a metric's difference the way its signs go; green is better."""
    looks = {1: "better", 0: "open", -1: "worse"}
    words = {1: "better", 0: open_word, -1: "worse"}
    # by the rule of the verdict, so that both have one colour
    standing = changed(name, d)
    return svg.interval_bar(d.difference, d.low, d.high, (-reach, reach), looks[standing], words[standing], wide=wide)


def reach_of(*differences: Interval) -> float:
    """Return the ends of an axis around zero that holds all of these; 1e-12 where they are all zero."""
    ends = (abs(value) for d in differences for value in (d.low, d.high, d.difference))
    # 5 % of paper at both ends, so that the outermost point is whole
    return 1.05 * max(1e-12, *ends)


def preprocessing_text(recipe: Mapping[str, object] | None) -> str:
    """Write the preprocessing of images; there is none for arrays."""
    if recipe is None:
        return "none, used as stored"
    return preprocess.recipe_text(recipe)


def versions_text(versions: Mapping[str, str]) -> str:
    """Write the versions of what took part."""
    return ", ".join(f"{name} {version}" for name, version in versions.items())
