"""Text of `compare` (metrics, each model's differences and its verdict) and of `study`."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tna_onnx.files import printable
from tna_onnx.numerics.metric import METRICS
from tna_onnx.render.guard_text import decision_lines
from tna_onnx.results.comparison import ComparedModel, ModelComparison
from tna_onnx.results.study import Studies

__all__ = ["model_comparison_text", "study_text"]


def model_comparison_text(comparison: ModelComparison) -> RenderableType:
    """Metrics of every model, paired differences to the baseline, notes, one verdict a model."""
    blocks: list[RenderableType] = [_metrics_table(comparison)]
    for model in comparison.others:
        blocks += [Text(), _difference_table(model, comparison)]
    blocks.append(Text())
    for model in comparison.models:
        if model.decisions is not None:
            blocks.append(Text(printable(f"decisions of {model.name}")))
            blocks += [Text(printable(line)) for line in decision_lines(model.decisions)]
    blocks += [Text(printable(f"note     {note}")) for note in comparison.notes]
    # last: where the reader of a terminal is when the command ends
    verdicts = "\n".join(printable(f"{model.name}: {model.verdict}") for model in comparison.others)
    return Group(*blocks, Text(verdicts, style="bold"))


def _metrics_table(comparison: ModelComparison) -> Table:
    metrics = comparison.models[0].metrics
    table = _table(f"{comparison.data}: N = {metrics.n:,}, {metrics.bins} bins")
    table.add_column("", overflow="fold")
    for metric in METRICS.values():
        table.add_column(metric.title, justify="right", no_wrap=True)
    table.add_column("agree, %", justify="right", no_wrap=True)
    for model in comparison.models:
        values = (metric.number(getattr(model.metrics, name)) for name, metric in METRICS.items())
        agreement = f"{100 * model.agreement:.2f}"
        if model.name == comparison.baseline:
            agreement = "baseline"
        table.add_row(Text(printable(model.name)), *values, agreement)
    return table


def _difference_table(model: ComparedModel, comparison: ModelComparison) -> Table:
    table = _table(f"{model.name} minus {comparison.baseline}")
    table.add_column("", justify="left", no_wrap=True)
    for head in ("difference", f"{comparison.confidence_level:g}% interval"):
        table.add_column(head, justify="right", no_wrap=True)
    for name, metric in METRICS.items():
        d = model.differences[name]
        table.add_row(metric.title, metric.change(d.difference), f"{metric.change(d.low)} to {metric.change(d.high)}")
    return table


def _table(title: str) -> Table:
    # rich would take [brackets] in a name for markup
    return Table(title=escape(printable(title)), title_justify="left", box=None, pad_edge=False)


def study_text(studies: Studies) -> RenderableType:
    """Say what each study found, and where the files are."""
    calibration, held_out = studies.samples
    head = (
        f"{studies.model}: n = {studies.features:,}, {studies.classes:,} classes; {calibration:,} calibration and "
        f"{held_out:,} held-out samples"
    )
    width = max(len(study.name) for study in studies.studies)
    lines = [f"{study.name:<{width}}  {study.sentence}" for study in studies.studies]
    notes = [f"note: {note}" for note in studies.notes]
    wrote = [f"wrote {studies.folder}: index.html"] if studies.folder else []
    return Text("\n".join(printable(line) for line in [head, "", *lines, *notes, *wrote]))
