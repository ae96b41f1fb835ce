"""Studies as a page: a sentence, charts and a table for each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tna_onnx.render.html.blocks import Column as Head
from tna_onnx.render.html.blocks import Figure, Key, Strong, Table, Term, line_key, table
from tna_onnx.render.html.charts import Series, line_chart
from tna_onnx.render.html.page import Section, render_page
from tna_onnx.render.html.svg import MARKERS
from tna_onnx.render.html.words import plain, versions_text
from tna_onnx.results.study import Chart, Line, Studies, Study

__all__ = ["study_page"]

# Rows of a table that stand open on the page; longer ones are folded away.
_OPEN_ROWS = 40
# Ticks on a logarithmic axis lie at least so far apart, as a factor.
_APART = 1.5


@dataclass(frozen=True)
class Drawn:
    """A chart and its legend."""

    figure: Figure
    keys: tuple[Key, ...]


@dataclass(frozen=True)
class StudySection:
    """What a study's section shows; `files` are links to what lies beside the page."""

    sentence: str
    element: str
    charts: tuple[Drawn, ...]
    numbers: Table
    folded: bool
    notes: tuple[str, ...]
    files: tuple[str, ...]


@dataclass(frozen=True)
class Overview:
    """A sentence for each study, and what was run."""

    findings: tuple[tuple[str, str, str], ...]
    terms: tuple[Term, ...]
    notes: tuple[str, ...]


def study_page(result: Studies | Study, command: str = "") -> str:
    """Write studies, or one of them, as a page.

    Args:
        result: of `study`.
        command: command line that made it, if there was one.
    """
    if isinstance(result, Study):
        section = Section(result.name, result.title, "study/study.html", _section(result, beside=False))
        return render_page(result.title, [section], "")
    beside = bool(result.folder)
    sections = [Section("overview", "Overview", "study/overview.html", _overview(result, command))]
    sections += [
        Section(study.name, study.title, "study/study.html", _section(study, beside)) for study in result.studies
    ]
    return render_page(f"Studies of {result.model}", sections, result.versions.get("tna-onnx", ""))


def _overview(studies: Studies, command: str) -> Overview:
    calibration, held_out = studies.samples
    terms = [
        Term("Model", studies.model),
        Term("SHA-256", studies.model_sha256, code=True),
        Term("Head", f"{studies.features:,} features, {studies.classes:,} classes"),
        Term("Calibration", f"{studies.calibration}: N = {calibration:,}"),
        Term("Held-out", f"{studies.held_out}: N = {held_out:,}"),
        Term("Settings", ", ".join(f"{name} {plain(value)}" for name, value in studies.settings.items())),
        Term("Versions", versions_text(studies.versions)),
    ]
    if command:
        terms.insert(0, Term("Command", command, code=True))
    findings = tuple((study.name, study.title, study.sentence) for study in studies.studies)
    return Overview(findings, tuple(terms), studies.notes)


def _section(study: Study, beside: bool) -> StudySection:
    files: tuple[str, ...] = ()
    if beside:
        files = tuple(f"{study.name}.{ending}" for ending in ("csv", "json", "tex"))
    return StudySection(
        study.sentence,
        study.element,
        tuple(map(_drawn, study.charts)),
        _numbers(study),
        len(study.rows) > _OPEN_ROWS,
        study.notes,
        files,
    )


def _numbers(study: Study) -> Table:
    columns = study.shown
    best = {column.name: study.best(column) for column in columns}
    rows = []
    for k in range(len(study.rows)):
        cells: list[str | Strong] = []
        for column in columns:
            text = study.text(k, column)
            cells.append(Strong(text) if k in best[column.name] else text)
        rows.append(cells)
    heads = [Head(column.title, wraps=k > 0 and _is_text(study, column.name)) for k, column in enumerate(columns)]
    return table(heads, rows, f"{study.title}: {len(rows):,} rows", "numbers")


def _is_text(study: Study, name: str) -> bool:
    return any(isinstance(value, str) for value in study.values(name))


def _drawn(chart: Chart) -> Drawn:
    x_range = None
    if chart.log_x:
        x_range = _log_range(chart.lines)
    figure = line_chart(
        [_series(line, chart.log_x) for line in chart.lines],
        chart.title,
        chart.x_label,
        chart.y_label,
        x_range=x_range,
        y_range=chart.y_range,
        x_ticks=_ticks(chart),
    )
    keys = tuple(line_key(_look(line), line.name, _marker(line)) for line in chart.lines)
    # a line alone needs no legend
    if len(keys) == 1:
        keys = ()
    return Drawn(Figure(figure, chart.title), keys)


def _series(line: Line, log_x: bool) -> Series:
    x = line.x
    if log_x:
        x = tuple(map(math.log10, x))
    points = tuple(zip(x, line.y, strict=True))
    return Series(line.name, points, _look(line), _marker(line), tuple(zip(line.low, line.high, strict=True)))


def _look(line: Line) -> str:
    look = "key"
    if line.rank < len(MARKERS):
        look = f"m{line.rank}"
    if line.dashed:
        look += " dashed"
    return look


def _marker(line: Line) -> str:
    if not line.marked or line.rank >= len(MARKERS):
        return ""
    return MARKERS[line.rank]


def _ticks(chart: Chart) -> Sequence[tuple[float, str]]:
    if chart.x_names:
        return [(float(k), name) for k, name in enumerate(chart.x_names, start=1)]
    if chart.log_x:
        return _log_ticks(chart.lines)
    return ()


def _log_range(lines: Sequence[Line]) -> tuple[float, float]:
    """Return a range with room for the labels at its ends."""
    values = [math.log10(value) for line in lines for value in line.x]
    room = 0.04 * (max(values) - min(values)) or 0.1
    return min(values) - room, max(values) + room


def _log_ticks(lines: Sequence[Line]) -> list[tuple[float, str]]:
    kept: list[float] = []
    for value in sorted({value for line in lines for value in line.x}):
        if not kept or value >= _APART * kept[-1]:
            kept.append(value)
    return [(math.log10(value), f"{value:g}") for value in kept]
