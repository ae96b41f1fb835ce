"""The result of `study`: tables and charts, one `Study` each, and `Studies` of one model.

A study is a table: `rows` hold the values of `columns`, in stored units (fractions, nats, degrees). A column may name
the columns with its deviation or its interval, which are displayed with it. Charts hold points in the units of their
axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from tna_onnx.results.as_json import Displayed, Record

Cell = str | int | float | None
"""A value of a row; None where there is none."""


@dataclass(frozen=True)
class Column:
    """A column of a study's table.

    Attributes:
        name: key in CSV and JSON.
        title: head of the column, with the unit as shown.
        factor: from a stored number to the one shown, no unit.
        digits: after the decimal point as shown.
        better: 1 if larger values are better, -1 if smaller ones are, 0 if neither.
        beside: columns that are shown with this one: one with the standard deviation, or two with the ends of an
            interval.
        hidden: whether it is shown with another column, or not at all.
    """

    name: str
    title: str
    factor: float = 1.0
    digits: int = 0
    better: Literal[-1, 0, 1] = 0
    beside: tuple[str, ...] = ()
    hidden: bool = False

    def shown(self, value: Cell) -> Cell:
        """Return a stored value in the unit of the column.

        >>> Column("ece", "ECE, %", 100, 2).shown(0.5)
        50.0
        """
        # a count stays a whole number
        if isinstance(value, str) or value is None or self.factor == 1:
            return value
        return self.factor * value

    def number(self, value: Cell) -> str:
        """Write a value in the unit of the column.

        >>> Column("ece", "ECE, %", 100, 2).number(0.0123)
        '1.23'
        """
        if value is None:
            return ""
        if isinstance(value, str):
            return value
        # + 0.0: no "-0.00"
        return f"{round(self.factor * value, self.digits) + 0.0:.{self.digits}f}"


@dataclass(frozen=True)
class Line:
    """A line of a chart.

    Attributes:
        name: for the legend.
        x: places on the horizontal axis, in units of the axis.
        y: values there, in units of the axis.
        low: lower ends of intervals around `y`, in units of the axis; empty for none.
        high: upper ends, in units of the axis.
        rank: of its colour and marker; lines of one rank belong together. From 5 on it is plain.
        dashed: whether it is drawn dashed.
        marked: whether its points have markers.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    rank: int = 0
    dashed: bool = False
    marked: bool = True


@dataclass(frozen=True)
class Chart:
    """Lines over one pair of axes.

    Attributes:
        title: what is drawn.
        x_label: of the horizontal axis, with its unit.
        y_label: of the vertical axis, with its unit.
        lines: that are drawn.
        log_x: whether the horizontal axis is logarithmic.
        y_range: ends of the vertical axis, in units of the axis, where lines are cut off; from zero to the highest
            value where it is None.
    """

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    log_x: bool = False
    y_range: tuple[float, float] | None = None


@dataclass(frozen=True)
class Footnote:
    """What is to be known of some rows of a table.

    Attributes:
        mark: beside the first cell of these rows.
        rows: their places in the table.
        text: what the mark says, in a sentence.
        barred: whether none of them is the best of a column, whatever its value.
    """

    mark: str
    rows: tuple[int, ...]
    text: str
    barred: bool = False


class Found(NamedTuple):
    """What a study found: the fields of `Study` that the table of experiments does not have."""

    sentence: str
    columns: Sequence[Column]
    rows: Sequence[tuple[Cell, ...]]
    charts: Sequence[Chart] = ()
    notes: tuple[str, ...] = ()
    footnotes: tuple[Footnote, ...] = ()


@dataclass(frozen=True)
class Study(Displayed):
    """One study of a model.

    Attributes:
        name: word of the command line.
        title: what is studied.
        element: figure, table or section of the paper that it reproduces.
        sentence: what was found, in words.
        columns: of the table.
        rows: values by column; numbers in units of the column, before its `factor`.
        charts: pictures.
        notes: what the user should know, in sentences.
        footnotes: what is to be known of some rows.
    """

    name: str
    title: str
    element: str
    sentence: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    charts: tuple[Chart, ...] = ()
    notes: tuple[str, ...] = ()
    footnotes: tuple[Footnote, ...] = ()

    def __repr__(self) -> str:
        """Say in one line what it is."""
        return f"<Study {self.name}: {len(self.rows)} rows; {self.sentence}>"

    def values(self, name: str) -> tuple[Any, ...]:
        """Return the values of a column, in stored units.

        Raises:
            KeyError: no such column.
        """
        k = {column.name: k for k, column in enumerate(self.columns)}[name]
        return tuple(row[k] for row in self.rows)

    def records(self) -> list[Record]:
        """Return the rows by the names of their columns, in the units of these; `rows` has stored units."""
        names = [column.name for column in self.columns]
        rows = [[column.shown(value) for column, value in zip(self.columns, row, strict=True)] for row in self.rows]
        return [dict(zip(names, row, strict=True)) for row in rows]

    def best(self, column: Column) -> tuple[int, ...]:
        """Return the rows with the best value as shown of a column; none where neither side is better.

        Rows that a footnote bars are not among them.
        """
        if not column.better:
            return ()
        barred = {row for footnote in self.footnotes if footnote.barred for row in footnote.rows}
        values = [None if row in barred else value for row, value in enumerate(self.values(column.name))]
        numbers = [float(value) for value in values if isinstance(value, (int, float))]
        if len(numbers) < 2:
            return ()
        top = column.number(column.better * max(column.better * number for number in numbers))
        return tuple(k for k, value in enumerate(values) if value is not None and column.number(value) == top)

    def marks(self, row: int) -> str:
        """Return the marks of the footnotes on a row."""
        return "".join(footnote.mark for footnote in self.footnotes if row in footnote.rows)

    def text(self, row: int, column: Column) -> str:
        """Write a cell with what is shown beside it: a deviation, or an interval."""
        text = column.number(self.values(column.name)[row])
        extras = [self.values(name)[row] for name in column.beside]
        if not text or any(value is None for value in extras):
            return text
        if len(extras) == 1:
            return f"{text} ± {column.number(extras[0])}"
        if len(extras) == 2:
            return f"{text} ({column.number(extras[0])} to {column.number(extras[1])})"
        return text

    @property
    def shown(self) -> tuple[Column, ...]:
        """Columns that readers see as such."""
        return tuple(column for column in self.columns if not column.hidden)


@dataclass(frozen=True)
class Studies(Displayed):
    """Studies of one model on calibration and held-out data.

    Attributes:
        model: path of the model.
        model_sha256: SHA-256 of its file.
        calibration: what the calibration samples are, in one line.
        held_out: what the held-out samples are, in one line.
        samples: numbers of calibration and of held-out samples.
        features: length n of the feature vectors.
        classes: number of classes.
        settings: what was asked for.
        versions: of what computed the numbers.
        studies: in the order in which they were asked for.
        notes: what the user should know, in sentences.
        folder: where the files are; empty for none.
    """

    model: str
    model_sha256: str
    calibration: str
    held_out: str
    samples: tuple[int, int]
    features: int
    classes: int
    settings: dict[str, Any]
    versions: dict[str, str]
    studies: tuple[Study, ...]
    notes: tuple[str, ...] = ()
    folder: str = ""

    def __repr__(self) -> str:
        """Say in one line what it is."""
        return f"<Studies of {self.model}: {', '.join(study.name for study in self.studies)}>"

    def __getitem__(self, name: str) -> Study:
        """Return a study by its name.

        Raises:
            KeyError: it was not made.
        """
        return {study.name: study for study in self.studies}[name]

    def __iter__(self) -> Any:
        """Go through the studies."""
        return iter(self.studies)

    def records(self) -> list[Record]:
        """Return a row for each study: what it found, in words."""
        return [{"study": study.name, "title": study.title, "finding": study.sentence} for study in self.studies]

    def to_pandas(self) -> dict[str, Any]:
        """Return a pandas DataFrame for each study, by its name.

        Raises:
            UsageError: pandas is not installed.
        """
        return {study.name: study.to_pandas() for study in self.studies}
