"""The pages of `compare` and `study`: one HTML file each, which loads nothing and needs no script.

A study's page has one sentence, its charts and its table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.reliability import Bins
from tna_onnx.render.html.blocks import (
    LOOKS,
    Column,
    Figure,
    Key,
    Strong,
    Table,
    Term,
    bins_table,
    diagram_keys,
    interval_cell,
    line_key,
    metric_title,
    plain,
    reach_of,
    recipe_text,
    subgroup_table,
    table,
    versions_text,
)
from tna_onnx.render.html.blocks import Column as Head
from tna_onnx.render.html.diagrams import reliability_diagram
from tna_onnx.render.html.page import Section, render_page
from tna_onnx.render.html.sections.decisions import decided
from tna_onnx.render.html.svg import MARKERS, IntervalBar, Series, line_chart
from tna_onnx.render.lines import size_text
from tna_onnx.render.reliability import OF_LABELS, DiagramWords, words_of
from tna_onnx.render.text import bin_free_rows
from tna_onnx.results.model_comparison import ComparedModel, ModelComparison
from tna_onnx.results.study import Chart, Line, Studies, Study

__all__ = ["comparison_page", "study_page"]


# Colours of the style sheet for lines; twice as many lines can be told apart, by dashes.
_COLOURS = 5
# Bins with fewer samples jump about in the overlay; they are in the diagrams and tables.
_MIN_SAMPLES = 10


@dataclass(frozen=True)
class Verdict:
    """One sentence on a model; `look` is `better`, `worse` or `open`."""

    name: str
    text: str
    look: str


@dataclass(frozen=True)
class Result:
    """Verdicts, metrics of every model, notes."""

    verdicts: tuple[Verdict, ...]
    metrics: Table
    baseline: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Differences:
    """Each model minus the baseline, and each model in subgroups."""

    baseline: str
    intervals: Table
    subgroups: tuple[Table, ...] = ()


@dataclass(frozen=True)
class Reliability:
    """Diagrams of every model, and the first ones as lines; `left_out` models have no line."""

    several: bool
    keys: tuple[Key, ...]
    figures: tuple[Figure, ...]
    bin_free: Table
    min_samples: int
    overlaid: int
    left_out: int
    overlay_keys: tuple[Key, ...]
    overlay: Figure
    numbers: tuple[Table, ...]


@dataclass(frozen=True)
class Provenance:
    """What was run, and each model by name."""

    terms: tuple[Term, ...]
    models: tuple[tuple[str, tuple[Term, ...]], ...]


def comparison_page(comparison: ModelComparison, command: str = "") -> str:
    """Write a comparison as a page.

    Args:
        comparison: result of `compare`.
        command: command line that made it, if there was one.
    """
    guarded = tuple(decided(model.decisions, model.name) for model in comparison.models if model.decisions is not None)
    parts = (
        ("result", "Result", _result(comparison)),
        ("differences", "Differences", _differences(comparison)),
        ("reliability", "Reliability", _reliability(comparison)),
        *([("decisions", "Decisions", guarded)] if guarded else ()),
        ("run", "How it was made", _provenance(comparison, command)),
    )
    sections = [Section(name, title, f"comparison/{name}.html", values) for name, title, values in parts]
    return render_page(
        f"Comparison of {len(comparison.models)} models", sections, comparison.versions.get("tna-onnx", "")
    )


def _result(comparison: ModelComparison) -> Result:
    metrics = comparison.models[0].metrics
    heads = ("model", *map(metric_title, METRICS), "Agreement, %")
    caption = f"{comparison.data}: {size_text(metrics)}"
    rows = [_metrics_row(model, comparison.baseline) for model in comparison.models]
    return Result(
        tuple(Verdict(model.name, model.verdict, LOOKS[model.word]) for model in comparison.others),
        table(heads, rows, caption),
        comparison.baseline,
        comparison.notes,
    )


def _metrics_row(model: ComparedModel, baseline: str) -> tuple[str, ...]:
    values = (metric.number(getattr(model.metrics, name)) for name, metric in METRICS.items())
    agreement = f"{100 * model.agreement:.2f}"
    if model.name == baseline:
        agreement = "baseline"
    return model.name, *values, agreement


def _differences(comparison: ModelComparison) -> Differences:
    """One table, the models of a metric below each other and on one scale."""
    rows = []
    for name in METRICS:
        # one scale a metric, so that models can be compared by eye
        reach = reach_of(*(model.differences[name] for model in comparison.others))
        rows += [_difference_row(name, model, reach) for model in comparison.others]
    interval = f"{comparison.confidence_level:g}% interval"
    heads = ("metric", Column("model", wraps=True), "difference", interval, "better | worse")
    intervals = table(heads, rows, f"Differences to {comparison.baseline}", "metrics")
    parts = [subgroup_table(model.subgroups, f"Subgroups, {model.name}: ") for model in comparison.models]
    return Differences(comparison.baseline, intervals, tuple(part for part in parts if part is not None))


def _difference_row(name: str, model: ComparedModel, reach: float) -> tuple[str | IntervalBar, ...]:
    metric = METRICS[name]
    d = model.differences[name]
    return (
        metric_title(name),
        model.name,
        metric.change(d.difference),
        f"{metric.change(d.low)} to {metric.change(d.high)}",
        interval_cell(name, d, reach, "no significant difference"),
    )


def _reliability(comparison: ModelComparison) -> Reliability:
    words = words_of(comparison.models[0].output_kind.startswith("label_"))
    # colours, then colours with dashes: further lines could not be told apart
    drawn = comparison.models[: 2 * _COLOURS]
    # said on the page: a model without a line must not be missed
    left_out = len(comparison.models) - len(drawn)
    lines = [line for k, model in enumerate(drawn) if (line := _line(k, model)).points]
    diagonal = Series(f"{words.against} is {words.what}", ((0.0, 0.0), (1.0, 1.0)), "key dashed")
    overlay = line_chart(
        [diagonal, *lines],
        "Reliability of all models",
        f"mean {words.against}",
        words.what,
        x_range=(0.0, 1.0),
        y_range=(0.0, 1.0),
    )
    return Reliability(
        words == OF_LABELS,
        diagram_keys(words),
        tuple(_diagram(model, words) for model in comparison.models),
        _bin_free(comparison),
        _MIN_SAMPLES,
        len(drawn),
        left_out,
        tuple(line_key(line.look, line.name) for line in (*lines, diagonal)),
        Figure(overlay),
        tuple(bins_table(model.reliability, f"Bins of {model.name}", words) for model in comparison.models),
    )


def _bin_free(comparison: ModelComparison) -> Table:
    rows = bin_free_rows(*(model.bin_free for model in comparison.models))
    return table(("", *(model.name for model in comparison.models)), rows, "Without bins")


def _diagram(model: ComparedModel, words: DiagramWords) -> Figure:
    curve = model.bin_free.corp.curve
    drawing = reliability_diagram(model.reliability, f"Reliability of {model.name}", words, curve=curve)
    return Figure(drawing, f"{model.name}: ECE {100 * model.metrics.ece:.2f} %")


def _line(rank: int, model: ComparedModel) -> Series:
    look = f"m{rank % _COLOURS}"
    if rank >= _COLOURS:
        look += " dashed"
    return Series(model.name, _points(model.reliability), look, MARKERS[rank % len(MARKERS)])


def _points(bins: Bins) -> tuple[tuple[float, float], ...]:
    rows = zip(bins.count, bins.confidence, bins.accuracy, strict=True)
    return tuple((confidence, accuracy) for count, confidence, accuracy in rows if count >= _MIN_SAMPLES)


def _provenance(comparison: ModelComparison, command: str) -> Provenance:
    terms = [Term("Data", comparison.data), Term("Versions", versions_text(comparison.versions))]
    if command:
        terms.insert(0, Term("Command", command, code=True))
    return Provenance(tuple(terms), tuple((model.name, _model_terms(model)) for model in comparison.models))


def _model_terms(model: ComparedModel) -> tuple[Term, ...]:
    return (
        Term("File", model.model),
        Term("SHA-256", model.model_sha256, code=True),
        Term("Output", f"{model.output} ({model.output_kind.replace('_', ' ')})"),
        Term("Preprocessing", recipe_text(model.preprocessing)),
        Term("Provider obtained", model.provider),
    )


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
        section = Section(result.name, result.title, "study/study.html", _section(result, linked=False))
        return render_page(result.title, [section], "")
    linked = bool(result.folder)
    sections = [Section("overview", "Overview", "study/overview.html", _overview(result, command))]
    sections += [
        Section(study.name, study.title, "study/study.html", _section(study, linked)) for study in result.studies
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


def _section(study: Study, linked: bool) -> StudySection:
    files: tuple[str, ...] = ()
    if linked:
        files = tuple(f"{study.name}.{ending}" for ending in ("csv", "json", "tex"))
    return StudySection(
        study.sentence,
        study.element,
        tuple(map(_drawn, study.charts)),
        _numbers(study),
        len(study.rows) > _OPEN_ROWS,
        (*(f"{footnote.mark} {footnote.text}" for footnote in study.footnotes), *study.notes),
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
            if column is columns[0] and (marks := study.marks(k)):
                text += f" {marks}"
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
    labelled: list[float] = []
    for value in sorted({value for line in lines for value in line.x}):
        if not labelled or value >= _APART * labelled[-1]:
            labelled.append(value)
    return [(math.log10(value), f"{value:g}") for value in labelled]
