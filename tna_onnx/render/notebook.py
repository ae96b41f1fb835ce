"""Results in a notebook: a page in a frame of its own, so that its style stays inside; and as a file."""

from pathlib import Path
from typing import Any

from markupsafe import escape

from tna_onnx.errors import UsageError, writing
from tna_onnx.files import write_file
from tna_onnx.render.html.pages import comparison_page, evaluation_page, study_page, to_html
from tna_onnx.results.measured import Evaluation, ModelComparison
from tna_onnx.results.report import Report


def fragment(result: Any) -> str:
    """Return HTML for the output of a notebook's cell."""
    return (
        f'<iframe title="tna-onnx" style="width:100%;height:40rem;border:0" srcdoc="{escape(page(result))}"></iframe>'
    )


def page(result: Any) -> str:
    """Return the page of a result."""
    if isinstance(result, Report):
        return to_html(result)
    if isinstance(result, Evaluation):
        return evaluation_page(result)
    if isinstance(result, ModelComparison):
        return comparison_page(result)
    return study_page(result)


def save_page(result: Any, path: Path) -> None:
    """Write the page of a result."""
    with writing(path, UsageError):
        write_file(path, page(result).encode())
