"""Results in a notebook: a page in a frame of its own, so that its style stays inside; figures; files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import escape

from tna_onnx.errors import UsageError
from tna_onnx.files import write_file
from tna_onnx.render.html.study import study_page
from tna_onnx.render.study_figures import figure_of

__all__ = ["figure", "fragment", "save_page"]


def fragment(result: Any) -> str:
    """Return HTML for the output of a notebook's cell."""
    return (
        f'<iframe title="tna-onnx" style="width:100%;height:40rem;border:0" srcdoc="{escape(page(result))}"></iframe>'
    )


def figure(result: Any) -> Any:
    """Return a matplotlib figure: of a study, or one for each study by its name."""
    studies = getattr(result, "studies", None)
    if studies is None:
        return figure_of(result)
    return {study.name: drawn for study in studies if (drawn := figure_of(study)) is not None}


def page(result: Any) -> str:
    """Return the page of a result."""
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
