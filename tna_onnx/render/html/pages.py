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
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tna_onnx.files import printable
from tna_onnx.render import charts, wording
from tna_onnx.render.html import blocks, predictions, summary
from tna_onnx.results.measured import Evaluation, ModelComparison
from tna_onnx.results.report import Report
from tna_onnx.results.study import Studies, Study


@dataclass(frozen=True)
class Section:
    """A section of a page."""

    name: str  # its id, which links lead to
    title: str  # its heading
    template: str  # macro of `templates/sections.html` that writes it
    arguments: tuple[object, ...]  # of the macro
    folds: bool = False  # whether it can be folded, and is on a small screen


def page_of(result: Any, command: str = "") -> str:
    """Return the page of a result. `command`: what was typed."""
    facts: Sequence[tuple[str, str]] = ()
    checks = ""
    if isinstance(result, Report):
        title = f"Calibration of {PurePath(result.model).name}"
        sections = _report_sections(result, command)
        facts = _facts(result)
        checks = summary.checks(result)
    elif isinstance(result, Evaluation):
        title = f"Evaluation of {PurePath(result.model).name}"
        sections = _evaluation_sections(result, command)
    elif isinstance(result, ModelComparison):
        title = f"Comparison of {len(result.models)} models"
        sections = _comparison_sections(result, command)
    elif isinstance(result, Study):
        title = result.title
        sections = [Section(result.name, title, "study", (result, False))]
    else:
        title = f"Studies of {result.model}"
        sections = _study_sections(result, command)
    # read here, not at import: a run without a page does not need them
    folder = files("tna_onnx.render.html")
    page_style, drawing_style, script = (
        folder.joinpath(name).read_text("utf-8") for name in ("page.css", "drawing.css", "page.js")
    )
    style = page_style + drawing_style
    version = getattr(result, "versions", {}).get("tna-onnx", "")
    return (
        environment()
        .get_template("page.html")
        .render(
            title=title,
            facts=facts,
            checks=checks,
            sections=sections,
            version=version,
            style=style,
            script=script,
            policy=_policy(style, script),
        )
    )


def _facts(report: Report) -> list[tuple[str, str]]:
    """Return what stands below the title, each text with a class of the style sheet or none: verdict, date, samples."""
    c = report.comparison
    facts = [(blocks.LOOKS[report.word], str(report.word))]
    if report.missed:
        facts = [("worse", "refused")]
    if report.details is not None:
        facts.append(("", report.details.made.date[:10]))
    kinds = predictions.PLURALS[report.kind]
    return [*facts, ("", f"{c.before.n:,} {c.samples} samples"), ("", f"{report.classes:,} {kinds}")]


def _report_sections(report: Report, command: str) -> list[Section]:
    """Return the sections of the page of a report; one without details has fewer."""
    details = report.details
    titles = {"result": "Result"}
    if report.methods:
        titles["choice"] = "Methods compared"
    if report.guard is not None:
        titles["decisions"] = "Decisions"
    titles["reliability"] = "Reliability"
    # a small screen shows these
    open_sections = [*titles]
    if details is not None:
        titles["confidence"] = "Confidence"
        if report.angle:
            titles["search"] = "Search over the angle"
        if details.overconfident or details.underconfident:
            titles["samples"] = "Samples to look at"
        if report.output and not (report.already_calibrated and report.guard is None):
            titles["use"] = "Use it"
        titles["changes"] = "What changed in the file"
        if not report.output:  # which has not changed
            titles["changes"] = "What the new file changes"
    titles["run"] = "How it was made"
    return [
        Section(name, title, f"report_{name}", (report, details, command), folds=name not in open_sections)
        for name, title in titles.items()
    ]


def _evaluation_sections(evaluation: Evaluation, command: str) -> list[Section]:
    sections = [Section("result", "Result", "evaluation_result", (evaluation,))]
    if evaluation.without_labels is None:
        sections.append(Section("reliability", "Reliability", "reliability", (evaluation,)))
    if evaluation.decisions is not None:
        sections.append(Section("decisions", "Decisions", "measured_decisions", ({"": evaluation.decisions},)))
    terms = [
        *blocks.command_terms(command),
        *summary.model_terms(evaluation),
        blocks.Term("Data", evaluation.data),
    ]
    return [*sections, Section("run", "How it was made", "run", (evaluation, terms))]


def _comparison_sections(comparison: ModelComparison, command: str) -> list[Section]:
    sections = [
        Section("result", "Result", "comparison_result", (comparison,)),
        Section("differences", "Differences", "comparison_differences", (comparison,)),
        Section("reliability", "Reliability", "reliability", (comparison,)),
    ]
    decisions = {model.name: model.decisions for model in comparison.models if model.decisions is not None}
    if decisions:
        sections.append(Section("decisions", "Decisions", "measured_decisions", (decisions,)))
    return [*sections, Section("run", "How it was made", "comparison_run", (comparison, command))]


def _study_sections(studies: Studies, command: str) -> list[Section]:
    sections = [Section("overview", "Overview", "study_overview", (studies, command))]
    linked = bool(studies.folder)
    return sections + [Section(study.name, study.title, "study", (study, linked)) for study in studies.studies]


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
    templates.globals.update(blocks=blocks, charts=charts, predictions=predictions, summary=summary, wording=wording)
    templates.filters["capital"] = blocks.capital
    templates.filters["chart_panel"] = blocks.chart_panel
    templates.filters["file_name"] = lambda path: PurePath(path).name
    templates.filters["file_stem"] = lambda path: PurePath(path).stem
    return templates
