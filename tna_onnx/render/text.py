"""Results of `calibrate`, `evaluate`, `compare`, `features` and `study` as text for a terminal or a pipe, by rich."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from tna_onnx.files import printable
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Interval
from tna_onnx.render.guard_text import decision_lines, guard_lines
from tna_onnx.render.lines import lines_text, note_lines, size_text, tied
from tna_onnx.results.details import BinFree, LabelMetrics
from tna_onnx.results.evaluation import Collection, Evaluation
from tna_onnx.results.model_comparison import ComparedModel, ModelComparison
from tna_onnx.results.recall import Recall
from tna_onnx.results.report import Comparison, MethodScores, Report, Taught
from tna_onnx.results.study import Studies
from tna_onnx.results.subgroups import Estimate, Subgroup
from tna_onnx.results.verdict import Word, changed

# Rows of a table in a terminal; a page and `--json` have all of them.
_MAX_ROWS = 20

_SHOWN = ("accuracy", "ece", "nll", "brier")

# Whether a map by label shares its numbers for a label.
_FITS = {True: "shared", False: "own"}


def _teacher_lines(taught: Taught) -> list[str]:
    """Say how the model follows its teacher, and how good that is."""
    low, high = taught.kl_change
    lines = [
        f"teacher  {taught.model}, {taught.samples:,} samples: KL {taught.kl_before:.4f} -> {taught.kl_after:.4f} nats "
        f"({low:+.4f} to {high:+.4f})",
    ]
    least, most = (METRICS["accuracy"].change(end) for end in taught.agreement_change)
    same = f"{_percent(taught.agreement_before)} -> {_percent(taught.agreement_after)} % ({least} to {most} points)"
    lines.append(f"         the same class {same}")
    if taught.top5_before is not None and taught.top5_after is not None:
        lines[-1] += f"; the same five {_percent(taught.top5_before)} -> {_percent(taught.top5_after)} %"
    if taught.metrics is not None:
        values = (f"{METRICS[name].title} {METRICS[name].number(getattr(taught.metrics, name))}" for name in _SHOWN[:3])
        lines.append(f"         the teacher on the same samples: {', '.join(values)}")
    return lines


def label_heads(labels: Sequence[LabelMetrics]) -> tuple[str, ...]:
    """Return the heads of the columns."""
    if labels[0].after is None:
        return ("label", "N with it", *(METRICS[name].title for name in _SHOWN))
    pairs = (f"{METRICS[name].title}: {when}" for name in _SHOWN[1:3] for when in ("before", "after"))
    heads = ("label", "N with it", *pairs)
    return (*heads, "fit") if _some_shared(labels) else heads


def label_rows(labels: Sequence[LabelMetrics], max_rows: int | None = None) -> list[tuple[str, ...]]:
    """Return a row for each label; of more than `max_rows` those with the largest ECE before, in the model's order."""
    rows = list(range(len(labels)))
    if max_rows is not None and len(labels) > max_rows:
        rows = sorted(sorted(rows, key=lambda c: -labels[c].before.ece)[:max_rows])
    shared = _some_shared(labels)
    return [_row(labels[c], shared=shared) for c in rows]


def label_title(labels: Sequence[LabelMetrics], max_rows: int | None = None) -> str:
    """Return what stands over the table."""
    title = f"each label, {labels[0].before.bins} bins"
    if max_rows is not None and len(labels) > max_rows:
        title += f"; the {max_rows} of {len(labels):,} with the largest ECE before"
    return title


def _some_shared(labels: Sequence[LabelMetrics]) -> bool:
    return any(label.shared for label in labels)


def _row(label: LabelMetrics, *, shared: bool) -> tuple[str, ...]:
    cells = [label.label, f"{label.positives:,} of {label.before.n:,}"]
    if label.after is None:
        return (*cells, *(METRICS[name].number(getattr(label.before, name)) for name in _SHOWN))
    for name in _SHOWN[1:3]:
        cells += [METRICS[name].number(getattr(side, name)) for side in (label.before, label.after)]
    if shared:
        cells.append(_FITS[label.shared])
    return tuple(cells)


# p-values below it are called more than chance.
_LEVEL = 0.05

Row = tuple[str, Callable[[BinFree], str]]


def p_text(p: float | None) -> str:
    """Write a p-value in two digits; below a thousandth none of them matters.

    >>> p_text(0.0421), p_text(1e-9), p_text(None)
    ('0.042', '< 0.001', 'none')
    """
    if p is None:
        return "none"
    if p < 0.001:
        return "< 0.001"
    return f"{p:.2g}"


def bin_free_lines(*stages: BinFree) -> list[str]:
    """Return two lines; what chance alone gives is that of the last stage."""

    def listed(write: Callable[[BinFree], str]) -> str:
        return " -> ".join(map(write, stages))

    kuiper = listed(lambda it: f"{_percent(it.cumulative.kuiper)} %")
    p_value = _p_values(*stages)
    ece = listed(lambda it: f"{_percent(it.ece_debiased)} %")
    lost = listed(lambda it: _nats(it.corp.nll.miscalibration))
    last = stages[-1]
    return [
        f"bin-free Kuiper {kuiper} (p {p_value}); ECE with less bias {ece}, by chance alone "
        f"{_percent(last.ece_expected)} %",
        f"NLL      of it miscalibrated confidence {lost} nats, by chance alone {_nats(last.corp.nll.expected)}",
    ]


def _p_values(*stages: BinFree) -> str:
    p_values = [p_text(it.cumulative.kuiper_p) for it in stages if it.cumulative.kuiper_p is not None]
    if not p_values:
        return "not defined"
    # cross-fitted scores have none
    if len(p_values) < len(stages):
        return f"{p_values[0]} before"
    return " -> ".join(p_values)


def bin_free_sentence(bin_free: BinFree, *, cross_fitted: bool) -> str:
    """Say whether confidence and accuracy differ by more than chance, with the p-value of Kuiper's test.

    Without a p-value, say why: the scores are `cross_fitted`, or a sample has several predictions.
    """
    p = bin_free.cumulative.kuiper_p
    if p is None and not cross_fitted:
        return "there is no p-value, because the predictions of one sample depend on one another"
    if p is None:
        return "cross-fitted samples have no p-value, because the errors of the folds partly cancel"
    text = p_text(p)
    if p >= 0.001:
        # three digits: 0.0496 must not read 0.05 beside a level of 0.05
        text = f"= {p:.3f}"
    if p < _LEVEL:
        return f"confidence and accuracy differ by more than chance explains (p {text})"
    return f"chance explains the differences between confidence and accuracy (p {text})"


_ROWS: tuple[Row, ...] = (
    ("ECE with less bias, %", lambda it: _percent(it.ece_debiased)),
    ("ECE by chance alone, %", lambda it: _percent(it.ece_expected)),
    ("Kuiper, %", lambda it: _percent(it.cumulative.kuiper)),
    ("p-value of Kuiper", lambda it: p_text(it.cumulative.kuiper_p)),
    ("Kolmogorov-Smirnov, %", lambda it: _percent(it.cumulative.kolmogorov_smirnov)),
    ("p-value of Kolmogorov-Smirnov", lambda it: p_text(it.cumulative.kolmogorov_smirnov_p)),
    ("NLL: miscalibration, nats", lambda it: _nats(it.corp.nll.miscalibration)),
    ("NLL: miscalibration by chance alone, nats", lambda it: _nats(it.corp.nll.expected)),
    ("NLL: discrimination, nats", lambda it: _nats(it.corp.nll.discrimination)),
    ("NLL: uncertainty, nats", lambda it: _nats(it.corp.nll.uncertainty)),
    ("NLL: among the other classes, nats", lambda it: _nats(it.corp.others)),
)


def bin_free_rows(*stages: BinFree) -> list[tuple[str, ...]]:
    """Return the rows of a table: what it is, then its value in each stage."""
    return [(title, *map(write, stages)) for title, write in _ROWS]


def _percent(value: float) -> str:
    return METRICS["ece"].number(value)


def _nats(value: float) -> str:
    return METRICS["nll"].number(value)


# Columns that every table fits into.
_MIN_WIDTH = 132
# Values of a fitted parameter that are listed.
_MAX_VALUES = 4
# Where a map went, by whether it was folded.
_PLACES = {True: "folded into weight and bias", False: "appended as nodes"}
# Colours of a difference by its standing: significantly better, open, worse.
_STYLES = {1: "green", 0: "", -1: "red"}
_WORD_STYLES: dict[Word, str] = {"improved": "green", "no significant change": "", "worse": "red"}


def report_text(report: Report, *, detailed: bool = False) -> RenderableType:
    """A sentence, a table, notes, and what to do next.

    Args:
        report: of `calibrate`.
        detailed: whether the methods that were compared, what was fitted and how it was checked are shown too.
    """
    lines: list[str] = []
    if report.teacher:
        lines += _teacher_lines(report.teacher)
    if detailed:
        lines += _detail_lines(report)
    if report.guard:
        lines += guard_lines(report.guard)
    lines += [*note_lines(report.notes), f"wrote    {report.output or 'nothing'}"]
    if not report.missed:
        lines.append(f"next     {_next_step(report)}")
    summary = Text(f"{report.summary}.", style=f"bold {_WORD_STYLES[report.standing.word]}".strip())
    if report.missed:
        # the error that follows is red, and green above it would contradict it
        summary.stylize("not bold default")
    tables: list[RenderableType] = [*_comparison_table(report.comparison, report.recall), *_label_table(report.labels)]
    if detailed and report.methods:
        tables += [Text(), *_methods_table(report)]
    return Group(summary, Text(), *tables, Text(), lines_text(lines))


def _detail_lines(report: Report) -> list[str]:
    """Say what was fitted, how the file was checked, and what the metrics of the table leave out."""
    checked = report.verification
    return [
        f"head     {head_text(report)}",
        f"weight   {weight_text(report)}",
        f"map      {map_text(report)}",
        f"checked  {checked.samples:,} samples: largest |p - p'| {checked.max_difference:.1e} "
        f"(bound {checked.bound:.1e}){tied(checked)} on {report.provider}",
        *bin_free_lines(report.bin_free_before, report.bin_free_after),
        *_recall_lines(report),
        f"verdict  {report.verdict}",
    ]


def _next_step(report: Report) -> str:
    """Say in one line what to do with the result."""
    if report.dry_run:
        return "run it again without --dry-run to write the file"
    if not report.output:
        return "keep the new model, which is in memory"
    if report.already_calibrated:
        return "keep the model that you have: the file is a copy of it"
    if report.standing.word == "worse":
        return "keep the model that you have: the new one is worse"
    return f"use it in place of {report.model}: inputs and outputs are the same; -v shows how it was made"


METHOD_HEADS = ("method", "NLL", "± error", "predictions", "in the file", "left out, as it")
"""Columns of a table of methods."""

# The last may also cost a class recall.
_LEFT_OUT = {"": "", "accuracy": "costs accuracy", "error": "raises the ECE", "predictions": "changes predictions"}


def method_rows(report: Report) -> list[tuple[str, ...]]:
    """Return a row for each method that was compared, the lowest NLL first; of a path, that of its best strength."""
    rows: list[tuple[str, ...]] = []
    for method in best_methods(report):
        chosen = " (chosen)" if method.method == report.method else ""
        rows.append(
            (
                f"{method.words}{chosen}",
                METRICS["nll"].number(method.metrics.nll),
                METRICS["nll"].number(method.error),
                "kept" if method.keeps_predictions else "may change",
                "folded" if method.folds else "nodes",
                _LEFT_OUT[method.left_out],
            )
        )
    return rows


def best_methods(report: Report) -> list[MethodScores]:
    """Return the methods from the lowest NLL on; of a path of strengths the chosen one, or else the best."""
    by_kind: dict[str, MethodScores] = {}
    for method in sorted(report.methods, key=lambda method: (method.method != report.method, method.metrics.nll)):
        by_kind.setdefault(method.words.partition(", strength")[0], method)
    return sorted(by_kind.values(), key=lambda method: method.metrics.nll)


def _methods_table(report: Report) -> tuple[RenderableType, ...]:
    """Title and table of the methods that were compared."""
    table = _Table(METHOD_HEADS, right=(1, 2))
    for row in method_rows(report):
        table.add_row(*map(printable, row), style="bold" if "(chosen)" in row[0] else "")
    return lines_text(["methods, cross-validated; the error is that of the difference to the lowest NLL"]), table


def evaluation_text(evaluation: Evaluation) -> RenderableType:
    """Metrics of one model."""
    metrics = evaluation.metrics
    title = lines_text([f"{evaluation.model} on {evaluation.data}: {size_text(metrics)}"])
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for name, metric in METRICS.items():
        table.add_row(metric.title, metric.number(getattr(metrics, name)))
    lines = bin_free_lines(evaluation.bin_free)
    if evaluation.subgroups and "slope" in evaluation.estimates and "intercept" in evaluation.estimates:
        lines.append(f"slope    {_slope_text(evaluation.estimates)}")
    if evaluation.decisions:
        lines += decision_lines(evaluation.decisions)
    lines += note_lines(evaluation.notes)
    parts = _subgroup_tables("subgroups", evaluation.subgroups)
    if parts:
        parts.append(Text())
    return Group(title, table, *_label_table(evaluation.labels), *parts, lines_text(lines))


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


def _comparison_table(c: Comparison, recall: Recall) -> tuple[Text, Table]:
    """Title, and a table of before, after and the paired difference with its interval."""
    level = c.differences["ece"].level
    # N and bins beside every ECE: without them it means nothing
    title = f"{c.data}, {c.how}: {size_text(c.before)}"
    table = _Table(("", "before", "after", f"difference ({100 * level:g}% interval)"))
    for name, metric in METRICS.items():
        sides = (getattr(c.before, name), getattr(c.after, name))
        table.add_row(*_change_row(metric.title, name, *sides, c.differences[name]))
        if name == "accuracy":
            sides = (recall.balanced_before, recall.balanced_after)
            table.add_row(*_change_row("balanced accuracy, %", name, *sides, recall.balanced))
    return lines_text([title]), table


def _change_row(title: str, name: str, before: float, after: float, d: Interval) -> tuple[str | Text, ...]:
    metric = METRICS[name]
    change = change_text(name, d)
    # by the rule of the verdict, so that both have one colour
    return title, metric.number(before), metric.number(after), Text(change, style=_STYLES[changed(name, d)])


def change_text(name: str, d: Interval) -> str:
    """Write the difference of a metric and its interval."""
    metric = METRICS[name]
    return f"{metric.change(d.difference)} ({metric.change(d.low)} to {metric.change(d.high)})"


def _label_table(labels: Sequence[LabelMetrics]) -> tuple[RenderableType, ...]:
    """Title and table of each label; nothing for one class a sample."""
    if not labels:
        return ()
    table = _Table(label_heads(labels))
    for row in label_rows(labels, _MAX_ROWS):
        table.add_row(*map(printable, row))
    return Text(), lines_text([label_title(labels, _MAX_ROWS)]), table


class _Table(Table):
    """A table with a rule below its head on a terminal; never squeezed, since half a number misleads."""

    least = _MIN_WIDTH

    def __init__(self, heads: Sequence[str], right: Sequence[int] | None = None) -> None:
        """Make the columns; those of `right` are numbers, or all but the first."""
        super().__init__(pad_edge=False)
        for k, head in enumerate(heads):
            numbers = k > 0 if right is None else k in right
            self.add_column(head, justify="right" if numbers else "left", no_wrap=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # no rule in a pipe, where other programs read
        self.box = box.SIMPLE_HEAD if console.is_terminal else None
        yield from super().__rich_console__(console, options.update_width(max(options.max_width, self.least)))


def _recall_lines(report: Report) -> tuple[str, ...]:
    """Say which class loses most recall, where predictions change."""
    recall = report.recall
    lowest = recall.lowest
    if lowest.difference.difference >= 0:
        return ()
    one, kind = ("label", "labels") if report.labels else ("class", "classes")
    chance = "" if lowest.loses else ", which may be chance"
    return (f"recall   most is lost, of {len(recall.classes):,} {kind}, by {one} {lowest.text()}{chance}",)


def head_text(report: Report) -> str:
    """Write the head and the shape of its weight."""
    if not report.head:
        return "none"
    return f"{report.head}: weight ({report.classes}, {report.features})"


def weight_text(report: Report) -> str:
    """Write what became of the weight."""
    if report.angle == 0:
        return "original weight"
    rotation = f"mRC {report.reached:.3g} degrees"
    if not report.ensemble_size:
        return f"{rotation}, the limit of many members"
    return f"{rotation}, {report.ensemble_size} members, {report.rotations:.0f} rotations each"


def map_text(report: Report) -> str:
    """Write the map, where it went and what was fitted."""
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


def model_comparison_text(comparison: ModelComparison) -> RenderableType:
    """Metrics of every model, paired differences to the baseline, notes, one verdict a model."""
    blocks: list[RenderableType] = [_metrics_table(comparison)]
    for model in comparison.others:
        blocks += [Text(), _difference_table(model, comparison)]
    for model in comparison.models:
        blocks += _subgroup_tables(f"subgroups, {model.name}", model.subgroups)
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
    table = _table(f"{comparison.data}: {size_text(metrics)}")
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


def _subgroup_tables(title: str, subgroups: Sequence[Subgroup]) -> list[RenderableType]:
    """Title and table of the subgroups with their estimates, and of their differences to a baseline; none for none."""
    if not subgroups:
        return []
    kinds = {"estimates": "the worst ECE first"}
    if any(part.differences for part in subgroups):
        kinds["differences"] = "differences to the baseline"
    blocks: list[RenderableType] = []
    for kind, what in kinds.items():
        names = [name for name in SUBGROUP_COLUMNS if kind == "estimates" or name in METRICS]
        table = _Table(("", "N", *(SUBGROUP_COLUMNS[name] for name in names)))
        table.least = _MIN_WIDTH + max(len(part.name) for part in subgroups) + 80
        for part in subgroups:
            table.add_row(*map(printable, subgroup_row(part, kind, names)))
        blocks += [Text(), lines_text([f"{title}: {what}"]), table]
    return blocks


SUBGROUP_COLUMNS = {name: METRICS[name].title for name in ("accuracy", "ece", "nll")} | {
    "slope": "slope",
    "intercept": "intercept",
}
"""Columns of a table of subgroups: what each holds, and its head."""


def subgroup_row(part: Subgroup, kind: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the cells of a subgroup: its name and size, and each estimate or difference with its interval."""
    size = f"{part.metrics.n:,}" + (f" in {part.metrics.groups:,}" if part.metrics.groups else "")
    cells = [part.name, size]
    for name in names:
        if kind == "differences":
            cells.append(change_text(name, part.differences[name]))
            continue
        estimate = part.estimates.get(name)
        write = METRICS[name].number if name in METRICS else "{:.2f}".format
        cells.append("-" if estimate is None else _estimate_text(estimate, write))
    return tuple(cells)


def _estimate_text(estimate: Estimate, write: Callable[[float], str]) -> str:
    """Write a value and the ends of its interval."""
    return f"{write(estimate.value)} {_ends(write, estimate.low, estimate.high)}"


def _slope_text(estimates: Mapping[str, Estimate]) -> str:
    """Write slope and intercept of calibration with their intervals."""
    words = {"slope": "of calibration", "intercept": "intercept"}
    parts = [f"{word} {_estimate_text(estimates[name], '{:.2f}'.format)}" for name, word in words.items()]
    return f"{', '.join(parts)}; calibrated: 1 and 0"


def _ends(write: Callable[[float], str], low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "(no interval)"
    return f"({write(low)} to {write(high)})"
