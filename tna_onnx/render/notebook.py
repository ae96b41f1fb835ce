"""Results in a notebook: a page in a frame of its own, so that its style stays inside; figures; files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

from markupsafe import escape

from tna_onnx.data.files import optional
from tna_onnx.errors import UsageError
from tna_onnx.files import write_file
from tna_onnx.render.figures import MOST_ABREAST, STYLE, Panel, draw_reliability, figure_of
from tna_onnx.render.html.comparison import comparison_page, study_page
from tna_onnx.render.html.page import evaluation_page, to_html
from tna_onnx.render.reliability import DiagramWords, words_of
from tna_onnx.results.evaluation import Evaluation
from tna_onnx.results.model_comparison import ModelComparison
from tna_onnx.results.report import Report
from tna_onnx.results.study import Studies

# Inches of one diagram with its strip, and of the legend below all of them.
_WIDTH = 3.3
_HEIGHT = 2.9
_LEGEND = 0.4


def fragment(result: Any) -> str:
    """Return HTML for the output of a notebook's cell."""
    return (
        f'<iframe title="tna-onnx" style="width:100%;height:40rem;border:0" srcdoc="{escape(page(result))}"></iframe>'
    )


def figure(result: Any) -> Any:
    """Return a matplotlib figure: of a study, or one for each study by its name; else the reliability diagrams.

    Raises:
        UsageError: matplotlib is missing.
    """
    if isinstance(result, Report):
        words = words_of(result.labels)
        curves = (result.bin_free_before.corp.curve, result.bin_free_after.corp.curve)
        sides = (result.reliability.before, result.reliability.after)
        errors = (result.comparison.before.ece, result.comparison.after.ece)
        return _reliability(
            [Panel(*arguments) for arguments in zip(("before", "after"), sides, errors, curves, strict=True)], words
        )
    if isinstance(result, Evaluation):
        words = words_of(result.labels)
        name = PurePath(result.model).name
        return _reliability([Panel(name, result.reliability, result.metrics.ece, result.bin_free.corp.curve)], words)
    if isinstance(result, ModelComparison):
        words = words_of(result.models[0].output_kind.startswith("label_"))
        return _reliability([Panel(model.name, model.reliability, model.metrics.ece) for model in result.models], words)
    if isinstance(result, Studies):
        return {study.name: drawn for study in result.studies if (drawn := figure_of(study)) is not None}
    return figure_of(result)


def _reliability(panels: Sequence[Panel], words: DiagramWords) -> Any:
    matplotlib = optional("matplotlib", "plot", "drawing figures")
    make = optional("matplotlib.figure", "plot", "drawing figures").Figure  # no pyplot: global state
    abreast = min(MOST_ABREAST, len(panels))
    width = _WIDTH * abreast if abreast > 1 else 1.5 * _WIDTH
    with matplotlib.rc_context(STYLE):
        drawn = make(figsize=(width, _HEIGHT * -(-len(panels) // abreast) + _LEGEND))
        draw_reliability(drawn, panels, words)
    return drawn


def page(result: Any) -> str:
    """Return the page of a result."""
    if isinstance(result, Report):
        return to_html(result)
    if isinstance(result, Evaluation):
        return evaluation_page(result)
    if isinstance(result, ModelComparison):
        return comparison_page(result)
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
