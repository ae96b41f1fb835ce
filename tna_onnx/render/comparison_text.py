"""The result of `compare` as text: a table of metrics, then each model's differences and its verdict."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tna_onnx.numerics.metric import METRICS
from tna_onnx.results.comparison import ComparedModel, ModelComparison, label, number

__all__ = ["model_comparison_text"]


def model_comparison_text(found: ModelComparison) -> RenderableType:
    """Metrics of every model, paired differences to the baseline, notes, one verdict a model."""
    blocks: list[RenderableType] = [_metrics_table(found)]
    for model in found.others:
        blocks += [Text(), _difference_table(model, found)]
    notes = [f"note     {note}" for note in found.notes]
    verdicts = Text("\n".join(f"{model.name}: {model.verdict}" for model in found.others), style="bold")
    return Group(*blocks, Text(), *([Text("\n".join(notes))] if notes else []), verdicts)


def _metrics_table(found: ModelComparison) -> Table:
    m = found.models[0].metrics
    title = f"{found.data}: N = {m.n:,}, {m.bins} bins"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("", overflow="fold")
    for head in (*map(label, METRICS), "agree, %"):
        table.add_column(head, justify="right", no_wrap=True)
    for model in found.models:
        same = "baseline" if model.name == found.baseline else f"{100 * model.agreement:.2f}"
        table.add_row(model.name, *(number(metric, getattr(model.metrics, metric)) for metric in METRICS), same)
    return table


def _difference_table(model: ComparedModel, found: ModelComparison) -> Table:
    title = f"{model.name} minus {found.baseline}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for head in ("", "difference", f"{found.confidence_level:g}% interval"):
        table.add_column(head, justify="right" if head else "left", no_wrap=True)
    for metric in METRICS:
        d = model.differences[metric]
        difference, low, high = (number(metric, value, "+") for value in (d.difference, d.low, d.high))
        table.add_row(label(metric), difference, f"{low} to {high}")
    return table
