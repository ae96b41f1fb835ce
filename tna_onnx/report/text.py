"""Results as text for a terminal or a pipe, through rich."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tna_onnx.evaluation import Evaluation
from tna_onnx.inspection import HeadInfo, Inspection
from tna_onnx.numerics.metrics import METRICS, Metrics
from tna_onnx.report.report import Comparison, Report

__all__ = ["evaluation_text", "inspection_text", "report_text", "show"]

_LABELS = {"accuracy": "accuracy, %", "ece": "ECE, %", "adaece": "AdaECE, %", "nll": "NLL, nats", "brier": "Brier"}
_PERCENT = ("accuracy", "ece", "adaece")


def show(console: Console, content: RenderableType) -> None:
    """Print without wrapping sentences at the width of a pipe."""
    console.print(content, soft_wrap=not console.is_terminal, highlight=False)


def report_text(report: Report) -> RenderableType:
    """Verdict, table, what was chosen, how it was checked."""
    c = report.comparison
    weight = (
        "original weight"
        if report.angle == 0
        else (
            f"mRC {report.reached:.3g} degrees, "
            + (
                f"{report.ensemble_size} members, {report.rotations:.0f} rotations each"
                if report.ensemble_size
                else "the limit of many members"
            )
        )
    )
    fitted = ", ".join(f"{k} {_short(v)}" for k, v in report.parameters.items())
    how = "" if report.map == "none" else (", folded into weight and bias" if report.folded else ", appended as nodes")
    v = report.verification
    lines = [
        f"head     {report.head}: weight ({report.classes}, {report.features})" if report.head else "head     none",
        f"weight   {weight}",
        f"map      {report.map}{how}{f' ({fitted})' if fitted else ''}",
        f"checked  {v.samples:,} samples: largest |p - p'| {v.max_difference:.1e} (bound {v.bound:.1e}) on "
        f"{report.provider}",
        *(f"note     {note}" for note in report.notes),
        f"wrote    {report.output or 'nothing'}",
    ]
    body = Text("\n".join(lines))
    return Group(comparison_table(c), Text(), body, Text(report.verdict, style="bold"))


def comparison_table(c: Comparison) -> Table:
    """Before, after and the paired difference with its interval."""
    level = c.differences["ece"].level
    title = f"{c.data}, {c.how}: N = {c.before.n:,}, {c.before.bins} bins"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("", "before", "after", f"difference ({level:.0%} interval)"):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    for name in METRICS:
        scale, digits = (100, 2) if name in _PERCENT else (1, 4)
        d = c.differences[name]
        values = [f"{scale * getattr(m, name):.{digits}f}" for m in (c.before, c.after)]
        interval = f"{scale * d.low:+.{digits}f} to {scale * d.high:+.{digits}f}"
        table.add_row(_LABELS[name], *values, f"{scale * d.difference:+.{digits}f} ({interval})")
    return table


def evaluation_text(evaluation: Evaluation) -> RenderableType:
    """Metrics of one model."""
    m = evaluation.metrics
    title = f"{evaluation.model} on {evaluation.data}: N = {m.n:,}, {m.bins} bins"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for name in METRICS:
        table.add_row(_LABELS[name], _value(m, name))
    return table


def inspection_text(inspection: Inspection) -> RenderableType:
    """Heads and refusals of a model."""
    lines = [
        f"model    {inspection.model}",
        f"opset    {inspection.opset} (IR version {inspection.ir_version})",
        *(f"input    {line}" for line in inspection.inputs),
    ]
    for head in inspection.heads:
        lines += ["", *_head_lines(head)]
    for refusal in inspection.refusals:
        lines += ["", f"refused  output '{refusal.output}', at {refusal.node}: {refusal.reason}"]
    if inspection.provenance:
        lines += ["", "recalibrated by tna-onnx:", *(f"  {k}: {v}" for k, v in inspection.provenance.items())]
    return Text("\n".join(lines))


def _head_lines(head: HeadInfo) -> list[str]:
    return [
        f"head     {head.node} ({head.op_type})",
        f"weight   {head.weight} ({head.classes}, {head.n_features}), {head.weight_type}",
        f"bias     {head.bias or 'none'}",
        f"features {head.features}",
        f"logits   {head.logits}, {head.logits_type}",
        f"follows  {', '.join(head.follows) or 'nothing'}",
        f"output   {head.output}",
    ]


def _value(metrics: Metrics, name: str) -> str:
    value = float(getattr(metrics, name))
    return f"{100 * value:.2f}" if name in _PERCENT else f"{value:.4f}"


def _short(value: float | list[float]) -> str:
    if isinstance(value, list) and len(value) > 4:
        return f"of {len(value)} values"
    return ", ".join(f"{v:.4g}" for v in value) if isinstance(value, list) else f"{value:.4g}"
