"""The report on several heads as one HTML file: for each head the sections of a report on it alone, under its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from tna_onnx.render.html.calibration import sections_of
from tna_onnx.render.html.page import Section, render_page
from tna_onnx.render.html.sections.run import Run
from tna_onnx.results.heads import HeadReports

__all__ = ["heads_page"]


def heads_page(result: HeadReports, command: str = "", sources: Mapping[str, str] | None = None) -> str:
    """Write the reports as a page.

    Args:
        result: made with details.
        command: command line that made it, if there was one.
        sources: settings from files and the environment by flag -> value and source.

    Raises:
        ValueError: a report has no details.
    """
    sections: list[Section] = []
    version = ""
    for k, (output, report) in enumerate(result.heads.items()):
        version = report.versions.get("tna-onnx", "")
        sections += [
            replace(
                section,
                title=f"{output}: {section.title}",
                prefix=f"head-{k}-",
                values=_of_head(section.values, result.folders[output]),
            )
            for section in sections_of(report, command, sources)
        ]
    return render_page(f"Calibration of {PurePath(result.model).name}", sections, version)


def _of_head(values: Any, name: str) -> Any:
    """Name a head in the files that its sections offer."""
    if isinstance(values, Run):
        return replace(values, name=f"{name}.{values.name}")
    return values
