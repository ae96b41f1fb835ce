"""Results as text for a terminal or a pipe, through rich."""

from __future__ import annotations

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from tna_onnx.graph.difference import Difference
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.render.plot import ReliabilityPlot
from tna_onnx.results.collection import Collection
from tna_onnx.results.difference import ModelDifference, OutputDifference
from tna_onnx.results.evaluation import Evaluation
from tna_onnx.results.inspection import HeadInfo, Inspection
from tna_onnx.results.report import Comparison, Report

__all__ = ["difference_text", "evaluation_text", "inspection_text", "report_text", "show"]

_LABELS = {"accuracy": "accuracy, %", "ece": "ECE, %", "adaece": "AdaECE, %", "nll": "NLL, nats", "brier": "Brier"}
_PERCENT = ("accuracy", "ece", "adaece")
# Columns that every table fits into.
_WIDEST = 100


def show(console: Console, content: RenderableType) -> None:
    """Print without wrapping sentences at the width of a pipe; what the encoding cannot hold is escaped."""
    if hasattr(console.file, "reconfigure"):
        console.file.reconfigure(errors="backslashreplace")
    console.print(content, soft_wrap=not console.is_terminal, highlight=False, crop=False)


def report_text(report: Report, *, plot: bool = False) -> RenderableType:
    """Table, reliability diagrams if asked, what was chosen, how it was checked, verdict."""
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
    diagrams: list[RenderableType] = []
    if plot:
        sides = [("before", report.reliability.before), ("after", report.reliability.after)]
        diagrams = [Text(), ReliabilityPlot(sides)]
    return Group(*comparison_table(c), *diagrams, Text(), body, Text(report.verdict, style="bold"))


def comparison_table(c: Comparison) -> tuple[Text, Table]:
    """Title, and a table of before, after and the paired difference with its interval."""
    level = c.differences["ece"].level
    title = f"{c.data}, {c.how}: N = {c.before.n:,}, {c.before.bins} bins"
    table = _Table(pad_edge=False)
    for name in ("", "before", "after", f"difference ({100 * level:g}% interval)"):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    for name in METRICS:
        scale, digits = (100, 2) if name in _PERCENT else (1, 4)
        d = c.differences[name]
        values = [f"{scale * getattr(m, name):.{digits}f}" for m in (c.before, c.after)]
        interval = f"{scale * d.low:+.{digits}f} to {scale * d.high:+.{digits}f}"
        better = c.changed(name) * (1 if name == "accuracy" else -1)
        difference = Text(f"{scale * d.difference:+.{digits}f} ({interval})", style=("", "green", "red")[better])
        table.add_row(_LABELS[name], *values, difference)
    return Text(title), table


class _Table(Table):
    """A table with a rule below its head on a terminal; never squeezed, since half a number misleads."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.box = box.SIMPLE_HEAD if console.is_terminal else None
        yield from super().__rich_console__(console, options.update_width(max(options.max_width, _WIDEST)))


def evaluation_text(evaluation: Evaluation, *, plot: bool = False) -> RenderableType:
    """Metrics of one model, and its reliability diagram if asked."""
    m = evaluation.metrics
    title = f"{evaluation.model} on {evaluation.data}: N = {m.n:,}, {m.bins} bins"
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for name in METRICS:
        table.add_row(_LABELS[name], _value(m, name))
    diagram: list[RenderableType] = [Text(), ReliabilityPlot([("", evaluation.reliability)])] if plot else []
    return Group(Text(title), table, *diagram, *(Text(f"note     {note}") for note in evaluation.notes))


def collection_text(collection: Collection) -> RenderableType:
    """What a feature store holds, and where it lies."""
    kind = f"features '{collection.tensor}'" if collection.head else f"logits '{collection.tensor}'"
    lines = [
        f"data     {collection.data}",
        f"{'head' if collection.head else 'output':8} {collection.head or collection.tensor}",
        f"kept     {kind} {collection.shape}, {collection.dtype}, computed on {collection.provider}",
        *(f"note     {note}" for note in collection.notes),
        f"store    {collection.folder}",
    ]
    return Text("\n".join(lines))


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


def difference_text(found: ModelDifference) -> RenderableType:
    """What differs between two files, explained or not, how far the outputs moved, verdict."""
    unexplained, block = found.unexplained, [d for d in found.differences if d.explained == "appended block"]
    changed = [d for d in found.differences if d.explained and d not in block]
    counts = [sum(d.part == part for d in block) for part in ("node", "tensor")]
    lines = [
        f"original {found.original}",
        f"new file {found.recalibrated}",
        f"head     {found.head or 'none'}",
        *(f"changed  {_difference_line(d)}" for d in changed),
        *([f"appended {_count(counts[0], 'node')}, {_count(counts[1], 'tensor')}"] if block else []),
        f"the same {_untouched(found, 'node', found.nodes)}, {_untouched(found, 'tensor', found.tensors)}",
        *(f"DIFFERS  {_difference_line(d)}" for d in unexplained[:_MOST_LINES]),
        *([f"DIFFERS  {len(unexplained) - _MOST_LINES:,} more: --json"] if len(unexplained) > _MOST_LINES else []),
        *(_output_lines(found.outputs) if found.outputs else []),
        *(f"note     {note}" for note in found.notes),
    ]
    return Group(Text("\n".join(lines)), Text(found.verdict, style="bold"))


# Unexplained differences that are listed; another model altogether has thousands.
_MOST_LINES = 40


def _difference_line(d: Difference) -> str:
    size = "" if d.largest is None else f"largest change {d.largest:.3g}"
    size += "" if d.relative is None else f", {d.relative:.3g} of the largest value"
    role = f" [{d.explained}]" if d.explained else ""
    return f"{d.part} {d.name}: {d.change}{role}{''.join(f' ({text})' for text in (d.detail, size) if text)}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _untouched(found: ModelDifference, part: str, total: int) -> str:
    changed = {d.name for d in found.differences if d.part == part and d.change != "added"}
    return f"{max(0, total - len(changed)):,} of {_count(total, part)}"


def _output_lines(o: OutputDifference) -> list[str]:
    lines = [
        f"data     {o.data}, output '{o.output}' ({o.output_kind}) on {o.provider}",
        f"moved    largest |p - p'| {o.largest:.2e}, mean {o.mean:.2e}",
        f"class    the same for {o.same_class:,} of {_count(o.samples, 'sample')} ({o.agreement:.2%})",
        f"before   mean confidence {o.confidence_before:.2%}, accuracy {o.accuracy_before:.2%}",
        f"after    mean confidence {o.confidence_after:.2%}, accuracy {o.accuracy_after:.2%}",
    ]
    for other in o.others:
        size = "" if other.largest is None else f", largest change {other.largest:.2e}"
        what = f"{other.differing:,} of {_count(other.values, 'value')} differ{size}" if other.differing else "the same"
        expected = "" if other.depends_on_head else " (does not depend on the head)"
        lines.append(f"output   '{other.name}'{expected}: {what}")
    return lines


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
