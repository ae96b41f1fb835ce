"""Results in a notebook: a page in a frame of its own, so that its style stays inside; figures; files."""

from pathlib import Path, PurePath
from typing import Any

from markupsafe import escape

from tna_onnx.errors import UsageError, writing
from tna_onnx.files import write_file
from tna_onnx.render.charts import reliability_chart, reliability_charts, words_of
from tna_onnx.render.figures import figure_of
from tna_onnx.render.html.pages import comparison_page, evaluation_page, study_page, to_html
from tna_onnx.results.measured import Evaluation, ModelComparison
from tna_onnx.results.report import Report
from tna_onnx.results.study import Studies, Study


def fragment(result: Any) -> str:
    """Return HTML for the output of a notebook's cell."""
    return (
        f'<iframe title="tna-onnx" style="width:100%;height:40rem;border:0" srcdoc="{escape(page(result))}"></iframe>'
    )


def figure(result: Any) -> Any:
    """Return a matplotlib figure: of a study, or one for each study by its name; else the reliability diagrams."""
    if isinstance(result, Studies):
        return {study.name: figure_of(study.charts) for study in result.studies if study.charts}
    if isinstance(result, Study):
        return figure_of(result.charts)
    if isinstance(result, Report):
        return figure_of(reliability_charts(result))
    if isinstance(result, Evaluation):
        name = PurePath(result.model).name
        curve = result.bin_free.corp.curve
        return figure_of(
            [reliability_chart(name, result.reliability, result.metrics.ece, words_of(result.labels), curve)]
        )
    words = words_of(result.models[0].output_kind.startswith("label_"))
    return figure_of(
        [reliability_chart(model.name, model.reliability, model.metrics.ece, words) for model in result.models]
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


def save_page(result: Any, path: Path) -> Path:
    """Write the page of a result."""
    with writing(path, UsageError):
        write_file(path, page(result).encode())
    return path
