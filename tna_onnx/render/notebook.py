"""Results in a notebook: a page in a frame of its own, so that its style stays inside; figures; files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import escape

from tna_onnx.errors import UsageError
from tna_onnx.files import write_file
from tna_onnx.numerics.metric import METRICS
from tna_onnx.render.html.calibration import to_html
from tna_onnx.render.html.page import environment
from tna_onnx.render.html.study import study_page
from tna_onnx.render.study_figures import figure_of
from tna_onnx.results.report import Report

__all__ = ["figure", "fragment", "save_page"]


def fragment(result: Any) -> str:
    """Return HTML for the output of a notebook's cell: the page, or a table where the page's numbers are missing."""
    if isinstance(result, Report) and result.details is None:
        return _table(result)
    return (
        f'<iframe title="tna-onnx" style="width:100%;height:40rem;border:0" srcdoc="{escape(page(result))}"></iframe>'
    )


def figure(result: Any) -> Any:
    """Return a matplotlib figure: of a study, or one for each study by its name."""
    studies = getattr(result, "studies", None)
    if studies is None:
        return figure_of(result)
    return {study.name: drawn for study in studies if (drawn := figure_of(study)) is not None}


def _table(report: Report) -> str:
    c = report.comparison
    rows = [
        (
            metric.title,
            metric.number(getattr(c.before, name)),
            metric.number(getattr(c.after, name)),
            f"{metric.change(d.difference)} ({metric.change(d.low)} to {metric.change(d.high)})",
        )
        for name, metric in METRICS.items()
        for d in (c.differences[name],)
    ]
    data = f"{c.data}, {c.how}: N = {c.before.n:,}"
    template = environment().get_template("notebook.html")
    return template.render(summary=report.summary, data=data, rows=rows, verdict=report.verdict)


def page(result: Any) -> str:
    """Return the page of a result."""
    if isinstance(result, Report):
        return to_html(result)
    return study_page(result)


def save_page(result: Any, path: Path) -> Path:
    """Write the page of a result.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        write_file(path, page(result).encode())
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error
    return path
