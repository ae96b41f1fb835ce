"""Results as text for a terminal or a pipe, through rich."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from tna_onnx.graph.difference import Difference
from tna_onnx.numerics.metric import METRICS
from tna_onnx.printable import printable
from tna_onnx.render.bin_free import bin_free_lines
from tna_onnx.render.guard_text import decision_lines, guard_lines
from tna_onnx.render.plot import ReliabilityPlot
from tna_onnx.results.collection import Collection
from tna_onnx.results.difference import ModelDifference, OtherOutput, OutputDifference
from tna_onnx.results.evaluation import Evaluation
from tna_onnx.results.inspection import LABELS, HeadInfo, Inspection
from tna_onnx.results.report import Comparison, Report
from tna_onnx.results.standing import Word, changed

__all__ = ["collection_text", "difference_text", "evaluation_text", "inspection_text", "report_text", "show"]

# Columns that every table fits into.
_MIN_WIDTH = 100
# Unexplained differences that are listed; another model altogether has thousands.
_MAX_LINES = 40
# Values of a fitted parameter that are listed.
_MAX_VALUES = 4
# Where a map went, by whether it was folded.
_PLACES = {True: "folded into weight and bias", False: "appended as nodes"}
# Colours of a difference by its standing: significantly better, open, worse.
_STYLES = {1: "green", 0: "", -1: "red"}
_WORD_STYLES: dict[Word, str] = {"improved": "green", "no significant change": "", "worse": "red"}


def show(console: Console, content: RenderableType) -> None:
    """Print without wrapping sentences at the width of a pipe.

    What the encoding cannot hold is escaped, and so is what would act on a terminal.
    """
    # A name with letters that the terminal's encoding lacks must not end a run that has written its files.
    if hasattr(console.file, "reconfigure"):
        console.file.reconfigure(errors="backslashreplace")
    console.print(_Escaped(content), soft_wrap=not console.is_terminal, highlight=False, crop=False)


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
        f"(bound {checked.bound:.1e}) on {report.provider}",
        *bin_free_lines(report.bin_free_before, report.bin_free_after),
        *(guard_lines(report.guard) if report.guard else ()),
        *_note_lines(report.notes),
        f"wrote    {report.output or 'nothing'}",
    ]
    summary = Text(f"{report.summary}.", style=f"bold {_WORD_STYLES[report.standing.word]}".strip())
    if report.missed:
        # the error that follows is red, and green above it would contradict it
        summary.stylize("not bold default")
    verdict = Text(report.verdict, style="bold")
    return Group(summary, Text(), *_comparison_table(report.comparison), *diagrams, Text(), _lines(lines), verdict)


def evaluation_text(evaluation: Evaluation, *, plot: bool = False) -> RenderableType:
    """Metrics of one model, and its reliability diagram if asked."""
    metrics = evaluation.metrics
    title = _lines([f"{evaluation.model} on {evaluation.data}: N = {metrics.n:,}, {metrics.bins} bins"])
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for name, metric in METRICS.items():
        table.add_row(metric.title, metric.number(getattr(metrics, name)))
    diagram: list[RenderableType] = []
    if plot:
        diagram = [Text(), ReliabilityPlot([("", evaluation.reliability)])]
    decisions = decision_lines(evaluation.decisions) if evaluation.decisions else ()
    lines = [*bin_free_lines(evaluation.bin_free), *decisions, *_note_lines(evaluation.notes)]
    return Group(title, table, *diagram, *([_lines(lines)] if lines else []))


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
        *_note_lines(collection.notes),
        f"store    {collection.folder}",
    ]
    return _lines(lines)


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
        if refusal.reason == LABELS and inspection.heads:  # as it should be, beside scores that were found
            lines += ["", f"labels   output '{refusal.output}', from {refusal.node}"]
        else:
            lines += ["", f"refused  output '{refusal.output}', at {refusal.node}: {refusal.reason}"]
    if inspection.provenance:
        lines += ["", "recalibrated by tna-onnx:", *(f"  {k}: {v}" for k, v in inspection.provenance.items())]
    return _lines(lines)


def difference_text(result: ModelDifference) -> RenderableType:
    """What differs between two files, explained or not, how far the outputs moved, verdict."""
    lines = [
        f"original {result.original}",
        f"new file {result.recalibrated}",
        f"head     {result.head or 'none'}",
        *_explained_lines(result),
        f"the same {_untouched(result, 'node', result.nodes)}, {_untouched(result, 'tensor', result.tensors)}",
        *_unexplained_lines(result),
    ]
    if result.outputs:
        lines += _output_lines(result.outputs)
    lines += _note_lines(result.notes)
    return Group(_lines(lines), Text(result.verdict, style="bold"))


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
    return _lines([title]), table


def _lines(lines: Sequence[str]) -> Text:
    """Join lines; a break inside one of them came out of a file, and must not look like one of ours."""
    return Text("\n".join(map(printable, lines)))


@dataclass(frozen=True)
class _Escaped:
    """Anything, with the characters escaped that would act on a terminal; styles are applied behind this."""

    content: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.content, options):
            yield segment._replace(text=printable(segment.text, lines=True))


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


def _note_lines(notes: Sequence[str]) -> list[str]:
    return [f"note     {note}" for note in notes]


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


def _explained_lines(result: ModelDifference) -> list[str]:
    """Each explained difference; the nodes and tensors of the appended block as counts."""
    # A map can append dozens of nodes; which ones is in the JSON.
    block = [d for d in result.differences if d.explained == "appended block"]
    decisions = [d for d in result.differences if d.explained == "decisions"]
    shown = [d for d in result.differences if d.explained and d not in block and d not in decisions]
    lines = [f"changed  {_difference_line(d)}" for d in shown]
    if block:
        nodes = sum(d.part == "node" for d in block)
        tensors = sum(d.part == "tensor" for d in block)
        lines.append(f"appended {_count(nodes, 'node')}, {_count(tensors, 'tensor')}")
    if decisions:
        made = ", ".join(d.name for d in decisions if d.part in ("output", "input"))
        lines.append(f"decides  {made}")
    return lines


def _unexplained_lines(result: ModelDifference) -> list[str]:
    lines = [f"DIFFERS  {_difference_line(d)}" for d in result.unexplained[:_MAX_LINES]]
    more = len(result.unexplained) - _MAX_LINES
    if more > 0:
        lines.append(f"DIFFERS  {more:,} more: --json")
    return lines


def _untouched(result: ModelDifference, part: str, total: int) -> str:
    # added parts are not of the original, whose parts are counted
    changed = {d.name for d in result.differences if d.part == part and d.change != "added"}
    return f"{max(0, total - len(changed)):,} of {_count(total, part)}"


def _difference_line(d: Difference) -> str:
    size = ""
    if d.largest is not None:
        size = f"largest change {d.largest:.3g}"
    if d.relative is not None:
        size += f", {d.relative:.3g} of the largest value"
    text = f"{d.part} {d.name}: {d.change}"
    if d.explained:
        text += f" [{d.explained}]"
    return text + "".join(f" ({remark})" for remark in (d.detail, size) if remark)


def _output_lines(o: OutputDifference) -> list[str]:
    return [
        f"data     {o.data}, output '{o.output}' ({o.output_kind}) on {o.provider}",
        f"moved    largest |p - p'| {o.largest:.2e}, mean {o.mean:.2e}",
        f"class    the same for {o.same_class:,} of {_count(o.samples, 'sample')} ({o.agreement:.2%})",
        f"before   mean confidence {o.confidence_before:.2%}, accuracy {o.accuracy_before:.2%}",
        f"after    mean confidence {o.confidence_after:.2%}, accuracy {o.accuracy_after:.2%}",
        *map(_other_output_line, o.others),
    ]


def _other_output_line(other: OtherOutput) -> str:
    """Say how an output that does not classify differs."""
    name = f"output   '{other.name}'"
    if not other.depends_on_head:
        name += " (does not depend on the head)"
    if not other.differing:
        return f"{name}: the same"
    text = f"{name}: {other.differing:,} of {_count(other.values, 'value')} differ"
    if other.largest is not None:
        text += f", largest change {other.largest:.2e}"
    return text


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
