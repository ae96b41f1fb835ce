"""Results as text for a terminal or a pipe, through rich."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from tna_onnx.numerics.metric import METRICS
from tna_onnx.printable import printable
from tna_onnx.render.bin_free import bin_free_lines
from tna_onnx.render.guard_text import decision_lines, guard_lines
from tna_onnx.render.labels import MAX_ROWS, label_heads, label_rows, label_title
from tna_onnx.render.lines import lines_text, note_lines, tied
from tna_onnx.render.plot import ReliabilityPlot
from tna_onnx.results.collection import Collection
from tna_onnx.results.evaluation import Evaluation
from tna_onnx.results.label_metrics import LabelMetrics
from tna_onnx.results.report import Comparison, Report
from tna_onnx.results.standing import Word, changed

__all__ = ["collection_text", "evaluation_text", "report_text"]

# Columns that every table fits into.
_MIN_WIDTH = 100
# Values of a fitted parameter that are listed.
_MAX_VALUES = 4
# Where a map went, by whether it was folded.
_PLACES = {True: "folded into weight and bias", False: "appended as nodes"}
# Colours of a difference by its standing: significantly better, open, worse.
_STYLES = {1: "green", 0: "", -1: "red"}
_WORD_STYLES: dict[Word, str] = {"improved": "green", "no significant change": "", "worse": "red"}


def report_text(report: Report, *, plot: bool = False) -> RenderableType:
    """Table, reliability diagrams if asked, what was chosen, how it was checked, verdict."""
    diagrams: list[RenderableType] = []
    if plot:
        sides = [("before", report.reliability.before), ("after", report.reliability.after)]
        diagrams = [Text(), ReliabilityPlot(sides)]
    checked = report.verification
    lines = [
        f"head     {_head_text(report)}",
        f"weight   {_weight_text(report)}",
        f"map      {_map_text(report)}",
        f"checked  {checked.samples:,} samples: largest |p - p'| {checked.max_difference:.1e} "
        f"(bound {checked.bound:.1e}){tied(checked)} on {report.provider}",
        *bin_free_lines(report.bin_free_before, report.bin_free_after),
        *(guard_lines(report.guard) if report.guard else ()),
        *note_lines(report.notes),
        f"wrote    {report.output or 'nothing'}",
    ]
    summary = Text(f"{report.summary}.", style=f"bold {_WORD_STYLES[report.standing.word]}".strip())
    if report.missed:
        # the error that follows is red, and green above it would contradict it
        summary.stylize("not bold default")
    verdict = Text(report.verdict, style="bold")
    tables = (*_comparison_table(report.comparison), *_label_table(report.labels))
    return Group(summary, Text(), *tables, *diagrams, Text(), lines_text(lines), verdict)


def evaluation_text(evaluation: Evaluation, *, plot: bool = False) -> RenderableType:
    """Metrics of one model, and its reliability diagram if asked."""
    metrics = evaluation.metrics
    title = lines_text([f"{evaluation.model} on {evaluation.data}: N = {metrics.n:,}, {metrics.bins} bins"])
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for name, metric in METRICS.items():
        table.add_row(metric.title, metric.number(getattr(metrics, name)))
    diagram: list[RenderableType] = []
    if plot:
        diagram = [Text(), ReliabilityPlot([("", evaluation.reliability)])]
    decisions = decision_lines(evaluation.decisions) if evaluation.decisions else ()
    lines = [*bin_free_lines(evaluation.bin_free), *decisions, *note_lines(evaluation.notes)]
    return Group(title, table, *_label_table(evaluation.labels), *diagram, *([lines_text(lines)] if lines else []))


def collection_text(collection: Collection) -> RenderableType:
    """What a feature store holds, and where it lies."""
    source = f"output   {collection.tensor}"
    kind = "logits"
    if collection.head:
        source = f"head     {collection.head}"
        kind = "features"
    lines = [
        f"data     {collection.data}",
        source,
        f"kept     {kind} '{collection.tensor}' {collection.shape}, {collection.dtype}, "
        f"computed on {collection.provider}",
        *note_lines(collection.notes),
        f"store    {collection.folder}",
    ]
    return lines_text(lines)


def _comparison_table(c: Comparison) -> tuple[Text, Table]:
    """Title, and a table of before, after and the paired difference with its interval."""
    level = c.differences["ece"].level
    # N and bins beside every ECE: without them it means nothing
    title = f"{c.data}, {c.how}: N = {c.before.n:,}, {c.before.bins} bins"
    table = _Table(pad_edge=False)
    table.add_column("", justify="left", no_wrap=True)
    for head in ("before", "after", f"difference ({100 * level:g}% interval)"):
        table.add_column(head, justify="right", no_wrap=True)
    for name, metric in METRICS.items():
        d = c.differences[name]
        change = f"{metric.change(d.difference)} ({metric.change(d.low)} to {metric.change(d.high)})"
        table.add_row(
            metric.title,
            metric.number(getattr(c.before, name)),
            metric.number(getattr(c.after, name)),
            # by the rule of the verdict, so that both have one colour
            Text(change, style=_STYLES[changed(name, d)]),
        )
    return lines_text([title]), table


def _label_table(labels: Sequence[LabelMetrics]) -> tuple[RenderableType, ...]:
    """Title and table of each label; nothing for one class a sample."""
    if not labels:
        return ()
    table = _Table(pad_edge=False)
    for k, head in enumerate(label_heads(labels)):
        table.add_column(head, justify="right" if k else "left", no_wrap=True)
    for row in label_rows(labels, MAX_ROWS):
        table.add_row(*map(printable, row))
    return Text(), lines_text([label_title(labels, MAX_ROWS)]), table


class _Table(Table):
    """A table with a rule below its head on a terminal; never squeezed, since half a number misleads."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # no rule in a pipe, where other programs read
        self.box = box.SIMPLE_HEAD if console.is_terminal else None
        yield from super().__rich_console__(console, options.update_width(max(options.max_width, _MIN_WIDTH)))


def _head_text(report: Report) -> str:
    if not report.head:
        return "none"
    return f"{report.head}: weight ({report.classes}, {report.features})"


def _weight_text(report: Report) -> str:
    if report.angle == 0:
        return f"{report.untilted} weight"
    rotation = f"mRC {report.reached:.3g} degrees"
    if not report.ensemble_size:
        return f"{rotation}, the limit of many members"
    return f"{rotation}, {report.ensemble_size} members, {report.rotations:.0f} rotations each"


def _map_text(report: Report) -> str:
    text = report.map
    if report.map != "none":
        text += f", {_PLACES[report.folded]}"
    fitted = ", ".join(f"{name} {_parameter(value)}" for name, value in report.parameters.items())
    return f"{text} ({fitted})" if fitted else text


def _parameter(value: float | list[float]) -> str:
    if not isinstance(value, list):
        return f"{value:.4g}"
    if len(value) > _MAX_VALUES:
        return f"of {len(value)} values"
    return ", ".join(f"{v:.4g}" for v in value)
