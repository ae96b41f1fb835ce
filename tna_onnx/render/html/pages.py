"""Pages from templates: one HTML file with style, script and drawings inside, for each kind of result.

Nothing is loaded, and all can be read without JavaScript. Markup is only in `templates/`, where autoescape is on; the
only text that is not escaped is this package's own style sheet and script.
"""

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tna_onnx.data.images.preprocess import plain
from tna_onnx.files import printable
from tna_onnx.numerics.metric import JUDGED, METRICS
from tna_onnx.render.html import blocks, predictions, summary
from tna_onnx.render.html.svg import element
from tna_onnx.render.wording import difference_text, metric_cells, metric_title, size_text
from tna_onnx.results.measured import Evaluation, ModelComparison
from tna_onnx.results.report import Report
from tna_onnx.results.study import Studies, Study


@dataclass(frozen=True)
class Section:
    """A section of a page."""

    name: str  # its id, which links lead to
    title: str  # its heading
    template: str  # macro of `templates/sections.html` that writes `values`
    values: object  # what it shows; None leaves the section out
    folds: bool = False  # whether it can be folded, and is on a small screen


def render_page(
    title: str, sections: Sequence[Section], version: str, facts: Sequence[tuple[str, str]] = (), checks: str = ""
) -> str:
    """Return a whole page.

    `facts`: what stands below the title: texts, each with a class of the style sheet, or none. `checks`: a line below.
    """
    # Style and script are read here, not at import: a run without a page does not need them.
    folder = files("tna_onnx.render.html")
    names = ("page.css", "drawing.css", "page.js")
    page_style, drawing_style, script = (folder.joinpath(name).read_text("utf-8") for name in names)
    style = page_style + drawing_style
    return (
        environment()
        .get_template("page.html")
        .render(
            title=title,
            facts=facts,
            checks=checks,
            sections=[section for section in sections if section.values is not None],
            version=version,
            style=style,
            script=script,
            policy=_policy(style, script),
        )
    )


def _policy(style: str, script: str) -> str:
    """Return the Content-Security-Policy: this style and this script, pictures inside the page, and nothing else.

    Markup that a name brings in, if it were not escaped, could neither run nor load anything.
    """
    hashes = []
    for text in (style, script):
        # as the element holds it: the template begins a line, and a browser reads every end of a line as \n
        content = "\n" + text.replace("\r\n", "\n")
        hashes.append(b64encode(hashlib.sha256(content.encode()).digest()).decode())
    return (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _finalized(value: Any) -> Any:
    """Escape text that came from anywhere; markup is this package's own."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value, lines=True)
    return value


@cache
def environment() -> Environment:
    """Return the environment of the templates; a name that a template gets wrong is an error."""
    templates = Environment(
        loader=PackageLoader("tna_onnx.render.html"),
        # names, paths and notes come from outside
        autoescape=True,
        # a change of the writing direction in a name would act on the rest of the line
        finalize=_finalized,
        # a name that is wrong would otherwise print nothing
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # A page holds the bins of every class as JSON: spaces would be a fifth of it.
    templates.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return templates


def page_of(result: Any, command: str = "") -> str:
    """Return the page of a result. `command`: what was typed."""
    if isinstance(result, Report):
        return to_html(result, command)
    if isinstance(result, Evaluation):
        return evaluation_page(result, command)
    if isinstance(result, ModelComparison):
        return comparison_page(result, command)
    return study_page(result, command)


def to_html(report: Report, command: str = "") -> str:
    """Write a report as a page; a report without details has fewer sections."""
    sections = sections_of(report, command)
    version = report.versions.get("tna-onnx", "")
    return render_page(
        f"Calibration of {PurePath(report.model).name}", sections, version, _facts(report), summary.checks(report)
    )


def _facts(report: Report) -> list[tuple[str, str]]:
    """Return date, samples and verdict."""
    c = report.comparison
    word: str = report.word
    look = blocks.LOOKS[report.word]
    if report.missed:
        word, look = "refused", "worse"
    kinds = {"label": "labels", "class": "classes"}[report.kind]
    facts = [("", f"{c.before.n:,} {c.samples} samples"), ("", f"{report.classes:,} {kinds}")]
    if report.details is not None:
        facts.insert(0, ("", report.details.made.date[:10]))
    return [(look, word), *facts]


def sections_of(report: Report, command: str = "") -> list[Section]:
    """Return the sections of the page; the arguments are those of `to_html`."""
    details = report.details
    parts: list[tuple[str, str, object]] = [("result", "Result", summary.result(report))]
    if report.methods:
        parts.append(("choice", "Methods compared", summary.choice(report)))
    if report.guard is not None:
        parts.append(("decisions", "Decisions", predictions.promised(report.guard)))
    parts.append(("reliability", "Reliability", predictions.reliability(report, details)))
    if details is not None:
        changes_title = "What changed in the file"
        if not report.output:  # which has not changed
            changes_title = "What the new file changes"
        parts += [
            ("confidence", "Confidence", predictions.confidence(report, details)),
            ("search", "Search over the angle", predictions.search(report, details)),
            ("samples", "Samples to look at", predictions.samples(details)),
            ("use", "Use it", summary.use(report, details)),
            ("changes", changes_title, summary.changes(report, details)),
        ]
    parts.append(("run", "How it was made", summary.run(report, details, command)))
    return [
        Section(name, title, f"calibration_{name}", values, folds=name not in _ALWAYS_OPEN)
        for name, title, values in parts
    ]


# Sections that a small screen shows too.
_ALWAYS_OPEN = ("result", "choice", "decisions", "reliability")


def evaluation_page(evaluation: Evaluation, command: str = "") -> str:
    """Write an evaluation as a page. `command`: what was typed."""
    name = PurePath(evaluation.model).name
    guarded = None if evaluation.decisions is None else (predictions.decided(evaluation.decisions),)
    diagram = None
    if evaluation.without_labels is None:
        diagram = predictions.measured_reliability(evaluation)
    sections = [
        Section("result", "Result", "evaluation_result", summary.measured(evaluation)),
        Section("reliability", "Reliability", "calibration_reliability", diagram),
        Section("decisions", "Decisions", "comparison_decisions", guarded),
        Section("run", "How it was made", "calibration_run", summary.measured_run(evaluation, command)),
    ]
    return render_page(f"Evaluation of {name}", sections, "")


def comparison_page(comparison: ModelComparison, command: str = "") -> str:
    """Write a comparison as a page."""
    guarded = tuple(
        predictions.decided(model.decisions, model.name) for model in comparison.models if model.decisions is not None
    )
    sections = [
        Section("result", "Result", "comparison_result", _result(comparison)),
        Section("differences", "Differences", "comparison_differences", _differences(comparison)),
        Section("reliability", "Reliability", "calibration_reliability", predictions.compared_reliability(comparison)),
        Section("decisions", "Decisions", "comparison_decisions", guarded or None),
        Section("run", "How it was made", "comparison_run", _provenance(comparison, command)),
    ]
    return render_page(
        f"Comparison of {len(comparison.models)} models", sections, comparison.versions.get("tna-onnx", "")
    )


def _result(comparison: ModelComparison) -> SimpleNamespace:
    metrics = comparison.models[0].metrics
    heads = ("model", *map(blocks.metric_title, METRICS), "Agreement, %")
    caption = f"{comparison.data}: {size_text(metrics)}"
    rows = [(model.name, *metric_cells(model, comparison.baseline)) for model in comparison.models]
    return SimpleNamespace(
        verdicts=tuple(
            SimpleNamespace(name=model.name, text=model.verdict, look=blocks.LOOKS[model.word])
            for model in comparison.others
        ),
        metrics=blocks.table(heads, rows, caption),
        positive=summary.positive_block(
            [model.name for model in comparison.models], [m.metrics for m in comparison.models]
        ),
        baseline=comparison.baseline,
        notes=comparison.notes,
    )


def _differences(comparison: ModelComparison) -> SimpleNamespace:
    """One table, the models of a metric below each other and on one scale."""
    rows: list[tuple[str, ...]] = []
    for name, metric in JUDGED.items():
        if name not in comparison.others[0].differences:
            continue
        # one scale a metric, so that models can be compared by eye
        reach = blocks.reach_of(*(model.differences[name] for model in comparison.others))
        for model in comparison.others:
            d = model.differences[name]
            bar = blocks.interval_cell(name, d, reach, "no significant difference")
            difference = difference_text(name, d)
            title = blocks.capital(metric_title(name, model.metrics))
            rows.append((title, model.name, difference, metric.ends(d.low, d.high), bar))
    interval = f"{comparison.confidence_level:g} % interval"
    heads = ("metric", blocks.PageColumn("model", wraps=True), "difference", interval, blocks.DIRECTIONS)
    intervals = blocks.table(heads, rows, f"Differences to {comparison.baseline}", "metrics changes")
    parts = [blocks.subgroup_blocks(model.subgroups, f"Subgroups, {model.name}: ") for model in comparison.models]
    return SimpleNamespace(
        baseline=comparison.baseline, intervals=intervals, subgroups=tuple(block for model in parts for block in model)
    )


def _provenance(comparison: ModelComparison, command: str) -> SimpleNamespace:
    terms = (
        *blocks.command_terms(command),
        blocks.Term("Data", comparison.data),
        blocks.Term("Versions", blocks.versions_text(comparison.versions)),
    )
    models = tuple((model.name, summary.model_terms(model)) for model in comparison.models)
    return SimpleNamespace(terms=terms, models=models)


# Rows of a table that stand open on the page; longer ones are folded away.
_OPEN_ROWS = 40


def study_page(result: Studies | Study, command: str = "") -> str:
    """Write studies, or one of them, as a page."""
    if isinstance(result, Study):
        section = Section(result.name, result.title, "study", _section(result, linked=False))
        return render_page(result.title, [section], "")
    linked = bool(result.folder)
    sections = [Section("overview", "Overview", "study_overview", _overview(result, command))]
    sections += [Section(study.name, study.title, "study", _section(study, linked)) for study in result.studies]
    return render_page(f"Studies of {result.model}", sections, result.versions.get("tna-onnx", ""))


def _overview(studies: Studies, command: str) -> SimpleNamespace:
    calibration, held_out = studies.samples
    terms = (
        *blocks.command_terms(command),
        blocks.Term("Model", studies.model),
        blocks.Term("SHA-256", studies.model_sha256, code=True),
        blocks.Term("Head", f"{studies.features:,} features, {studies.classes:,} classes"),
        blocks.Term("Calibration", f"{studies.calibration}: N = {calibration:,}"),
        blocks.Term("Held-out", f"{studies.held_out}: N = {held_out:,}"),
        blocks.Term("Settings", ", ".join(f"{name} {plain(value)}" for name, value in studies.settings.items())),
        blocks.Term("Versions", blocks.versions_text(studies.versions)),
    )
    findings = tuple((study.name, study.title, study.sentence) for study in studies.studies)
    return SimpleNamespace(findings=findings, terms=terms, notes=studies.notes)


def _section(study: Study, linked: bool) -> SimpleNamespace:
    files: tuple[str, ...] = ()
    if linked:
        files = tuple(f"{study.name}.{ending}" for ending in ("csv", "json"))
    return SimpleNamespace(
        sentence=study.sentence,
        element=study.element,
        charts=[
            SimpleNamespace(figure=blocks.chart_figure(chart), keys=blocks.chart_keys(chart)) for chart in study.charts
        ],
        numbers=_numbers(study),
        folded=len(study.rows) > _OPEN_ROWS,
        notes=(*(f"{footnote.mark} {footnote.text}" for footnote in study.footnotes), *study.notes),
        files=files,
    )


def _numbers(study: Study) -> blocks.Table:
    columns = study.shown
    best = {column.name: study.best(column) for column in columns}
    rows = []
    for k in range(len(study.rows)):
        cells: list[str] = []
        for column in columns:
            text = study.text(k, column)
            if column is columns[0] and (marks := study.marks(k)):
                text += f" {marks}"
            cells.append(element("strong", text) if k in best[column.name] else text)
        rows.append(cells)
    texts = {column.name for column in columns if any(isinstance(value, str) for value in study.values(column.name))}
    heads = [blocks.PageColumn(column.title, wraps=k > 0 and column.name in texts) for k, column in enumerate(columns)]
    return blocks.table(heads, rows, f"{study.title}: {len(rows):,} rows", "numbers")
