"""The pages of `compare` and `study`: one HTML file each, which loads nothing and needs no script.

A study's page has one sentence, its charts and its table.
"""

from __future__ import annotations

from types import SimpleNamespace

from tna_onnx.numerics.metric import METRICS
from tna_onnx.render.html.blocks import (
    LOOKS,
    Column,
    Strong,
    Table,
    Term,
    chart_figure,
    interval_cell,
    key_of,
    metric_title,
    plain,
    reach_of,
    subgroup_table,
    table,
    versions_text,
)
from tna_onnx.render.html.blocks import Column as Head
from tna_onnx.render.html.page import Section, render_page
from tna_onnx.render.html.sections.classes import compared_reliability
from tna_onnx.render.html.sections.decisions import decided
from tna_onnx.render.html.sections.result import model_terms
from tna_onnx.render.html.svg import IntervalBar
from tna_onnx.render.rows import size_text
from tna_onnx.results.model_comparison import ComparedModel, ModelComparison
from tna_onnx.results.study import Chart, Studies, Study


def comparison_page(comparison: ModelComparison, command: str = "") -> str:
    """Write a comparison as a page.

    Args:
        comparison: result of `compare`.
        command: command line that made it, if there was one.
    """
    guarded = tuple(decided(model.decisions, model.name) for model in comparison.models if model.decisions is not None)
    sections = [
        Section("result", "Result", "comparison_result", _result(comparison)),
        Section("differences", "Differences", "comparison_differences", _differences(comparison)),
        Section("reliability", "Reliability", "calibration_reliability", compared_reliability(comparison)),
        Section("decisions", "Decisions", "comparison_decisions", guarded or None),
        Section("run", "How it was made", "comparison_run", _provenance(comparison, command)),
    ]
    return render_page(
        f"Comparison of {len(comparison.models)} models", sections, comparison.versions.get("tna-onnx", "")
    )


def _result(comparison: ModelComparison) -> SimpleNamespace:
    metrics = comparison.models[0].metrics
    heads = ("model", *map(metric_title, METRICS), "Agreement, %")
    caption = f"{comparison.data}: {size_text(metrics)}"
    rows = [_metrics_row(model, comparison.baseline) for model in comparison.models]
    return SimpleNamespace(
        verdicts=tuple(
            SimpleNamespace(name=model.name, text=model.verdict, look=LOOKS[model.word]) for model in comparison.others
        ),
        metrics=table(heads, rows, caption),
        baseline=comparison.baseline,
        notes=comparison.notes,
    )


def _metrics_row(model: ComparedModel, baseline: str) -> tuple[str, ...]:
    values = (metric.number(getattr(model.metrics, name)) for name, metric in METRICS.items())
    agreement = f"{100 * model.agreement:.2f}"
    if model.name == baseline:
        agreement = "baseline"
    return model.name, *values, agreement


def _differences(comparison: ModelComparison) -> SimpleNamespace:
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
    return SimpleNamespace(
        baseline=comparison.baseline, intervals=intervals, subgroups=tuple(part for part in parts if part is not None)
    )


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


def _provenance(comparison: ModelComparison, command: str) -> SimpleNamespace:
    terms = [Term("Data", comparison.data), Term("Versions", versions_text(comparison.versions))]
    if command:
        terms.insert(0, Term("Command", command, code=True))
    return SimpleNamespace(
        terms=tuple(terms), models=tuple((model.name, model_terms(model)) for model in comparison.models)
    )


# Rows of a table that stand open on the page; longer ones are folded away.
_OPEN_ROWS = 40


def study_page(result: Studies | Study, command: str = "") -> str:
    """Write studies, or one of them, as a page.

    Args:
        result: of `study`.
        command: command line that made it, if there was one.
    """
    if isinstance(result, Study):
        section = Section(result.name, result.title, "study", _section(result, linked=False))
        return render_page(result.title, [section], "")
    linked = bool(result.folder)
    sections = [Section("overview", "Overview", "study_overview", _overview(result, command))]
    sections += [Section(study.name, study.title, "study", _section(study, linked)) for study in result.studies]
    return render_page(f"Studies of {result.model}", sections, result.versions.get("tna-onnx", ""))


def _overview(studies: Studies, command: str) -> SimpleNamespace:
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
    return SimpleNamespace(findings=findings, terms=tuple(terms), notes=studies.notes)


def _section(study: Study, linked: bool) -> SimpleNamespace:
    files: tuple[str, ...] = ()
    if linked:
        files = tuple(f"{study.name}.{ending}" for ending in ("csv", "json", "tex"))
    return SimpleNamespace(
        sentence=study.sentence,
        element=study.element,
        charts=tuple(map(_drawn, study.charts)),
        numbers=_numbers(study),
        folded=len(study.rows) > _OPEN_ROWS,
        notes=(*(f"{footnote.mark} {footnote.text}" for footnote in study.footnotes), *study.notes),
        files=files,
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


def _drawn(chart: Chart) -> SimpleNamespace:
    # a line alone needs no legend
    keys = tuple(map(key_of, chart.lines)) if len(chart.lines) > 1 else ()
    return SimpleNamespace(figure=chart_figure(chart), keys=keys)
