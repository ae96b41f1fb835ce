"""The report of a recalibration as one HTML file: style, script, drawings and pictures are inside, nothing is loaded.

Without JavaScript all of it can be read: the diagrams of the slider stand side by side, and figures have their numbers
in tables. The templates escape text from outside (names, paths, notes).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

from tna_onnx.render.html.page import Section, render_page
from tna_onnx.render.html.sections.angles import angles
from tna_onnx.render.html.sections.changes import changes
from tna_onnx.render.html.sections.confidence import confidence
from tna_onnx.render.html.sections.decisions import promised
from tna_onnx.render.html.sections.reliability import reliability
from tna_onnx.render.html.sections.result import result
from tna_onnx.render.html.sections.run import run
from tna_onnx.render.html.sections.samples import samples
from tna_onnx.render.html.sections.search import search
from tna_onnx.render.html.sections.use import use
from tna_onnx.results.report import Report

__all__ = ["sections_of", "to_html"]


def to_html(report: Report, command: str = "", sources: Mapping[str, str] | None = None) -> str:
    """Write a report as a page.

    Args:
        report: made with details.
        command: command line that made it, if there was one.
        sources: settings from files and the environment by flag -> value and source, such as `2 (tna.toml)`.

    Raises:
        ValueError: the report has no details.
    """
    sections = sections_of(report, command, sources)
    return render_page(f"Calibration of {PurePath(report.model).name}", sections, report.versions.get("tna-onnx", ""))


def sections_of(report: Report, command: str = "", sources: Mapping[str, str] | None = None) -> list[Section]:
    """Return the sections of the page; the arguments, and what is raised, are those of `to_html`."""
    details = report.details
    if details is None:
        raise ValueError("the report has no details; call calibrate with details=True")
    # a file that was not written has not changed
    changes_title = "What changed in the file" if report.output else "What the new file changes"
    decisions = () if report.guard is None else (("decisions", "Decisions", promised(report.guard)),)
    parts = (
        ("result", "Result", result(report)),
        *decisions,
        ("reliability", "Reliability", reliability(report, details)),
        ("confidence", "Confidence", confidence(report, details)),
        ("search", "Search over the angle", search(report, details)),
        ("angles", "Angles between features and class vectors", angles(report, details)),
        ("samples", "Samples to look at", samples(details)),
        ("use", "Use it", use(report, details)),
        ("changes", changes_title, changes(report, details)),
        ("run", "How it was made", run(report, details, command, sources)),
    )
    return [Section(name, title, f"calibration/{name}.html", values) for name, title, values in parts]
