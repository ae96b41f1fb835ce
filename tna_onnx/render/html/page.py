"""Pages from templates: one HTML file with style, script, drawings and pictures inside, and the report's page.

Nothing is loaded, and everything can be read without JavaScript; figures have their numbers in tables. Python computes
plain values; markup is only in `templates/`, where autoescape is on, so text from outside (names, paths, notes) is
escaped. The only text that is not escaped is this package's own style sheet and script.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import PurePath
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tna_onnx.files import printable
from tna_onnx.render.html.blocks import LOOKS
from tna_onnx.render.html.sections.classes import confidence, measured_reliability, reliability, samples
from tna_onnx.render.html.sections.decisions import promised
from tna_onnx.render.html.sections.result import changes, choice, measured, measured_run, result, run
from tna_onnx.render.html.sections.search import angles, search
from tna_onnx.render.html.sections.use import use
from tna_onnx.results.evaluation import Evaluation
from tna_onnx.results.report import Report


@dataclass(frozen=True)
class Section:
    """A section of a page.

    Attributes:
        name: its id, which links lead to.
        title: its heading.
        template: macro of `templates/sections.html` that writes `values`.
        values: what it shows; None leaves the section out.
        folds: whether it can be folded, and is on a small screen.
    """

    name: str
    title: str
    template: str
    values: object
    folds: bool = False


def render_page(title: str, sections: Sequence[Section], version: str, facts: Sequence[tuple[str, str]] = ()) -> str:
    """Return a whole page.

    Args:
        title: of the page.
        sections: in their order; the first is the result.
        version: of this package, for the last line.
        facts: what stands below the title: texts, each with a class of the style sheet, or none.
    """
    # Style and script are read here, not at import: a run without a page does not need them.
    folder = files("tna_onnx.render.html")
    style, script = (folder.joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    return (
        environment()
        .get_template("page.html")
        .render(
            title=title,
            facts=facts,
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


def to_html(report: Report, command: str = "", sources: Mapping[str, str] | None = None) -> str:
    """Write a report as a page; a report without details has fewer sections.

    Args:
        report: of `calibrate`.
        command: command line that made it, if there was one.
        sources: settings from files and the environment by flag -> value and source, such as `2 (tna.toml)`.
    """
    sections = sections_of(report, command, sources)
    version = report.versions.get("tna-onnx", "")
    return render_page(f"Calibration of {PurePath(report.model).name}", sections, version, _facts(report))


def _facts(report: Report) -> list[tuple[str, str]]:
    """Return date, samples and verdict."""
    c = report.comparison
    word = "refused" if report.missed else report.standing.word
    facts = [("", f"{c.before.n:,} {c.samples} samples"), ("", f"{report.classes:,} classes")]
    if report.details is not None:
        facts.insert(0, ("", report.details.made.date[:10]))
    look = "worse" if report.missed else LOOKS[report.standing.word]
    return [(look, word), *facts]


def sections_of(report: Report, command: str = "", sources: Mapping[str, str] | None = None) -> list[Section]:
    """Return the sections of the page; the arguments are those of `to_html`."""
    details = report.details
    parts: list[tuple[str, str, object]] = [("result", "Result", result(report))]
    if report.methods:
        parts.append(("choice", "Methods compared", choice(report)))
    if report.guard is not None:
        parts.append(("decisions", "Decisions", promised(report.guard)))
    parts.append(("reliability", "Reliability", reliability(report, details)))
    if details is not None:
        # a file that was not written has not changed
        changes_title = "What changed in the file" if report.output else "What the new file changes"
        parts += [
            ("confidence", "Confidence", confidence(report, details)),
            ("search", "Search over the angle", search(report, details)),
            ("angles", "Angles between features and class vectors", angles(report, details)),
            ("samples", "Samples to look at", samples(details)),
            ("use", "Use it", use(report, details)),
            ("changes", changes_title, changes(report, details)),
        ]
    parts.append(("run", "How it was made", run(report, details, command, sources)))
    return [
        Section(name, title, f"calibration_{name}", values, folds=name not in _ALWAYS_OPEN)
        for name, title, values in parts
    ]


# Sections that a small screen shows too.
_ALWAYS_OPEN = ("result", "choice", "decisions", "reliability")


def evaluation_page(evaluation: Evaluation) -> str:
    """Write an evaluation as a page."""
    name = PurePath(evaluation.model).name
    sections = [
        Section("result", "Result", "evaluation_result", measured(evaluation)),
        Section("reliability", "Reliability", "calibration_reliability", measured_reliability(evaluation)),
        Section("run", "How it was made", "calibration_run", measured_run(evaluation)),
    ]
    return render_page(f"Evaluation of {name}", sections, "")
