"""Results of every command but `verify` and `inspect` as text for a terminal or a pipe, by rich."""

from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from tna_onnx.data.images.preprocess import recipe_text
from tna_onnx.errors import count_text
from tna_onnx.files import printable
from tna_onnx.numerics.metric import JUDGED, METRICS
from tna_onnx.render import wording
from tna_onnx.results import outcomes
from tna_onnx.results.inspection import Collection
from tna_onnx.results.measured import ComparedModel, Evaluation, ModelComparison, Subgroup
from tna_onnx.results.report import Comparison, Report, Taught
from tna_onnx.results.study import Studies
from tna_onnx.results.verdict import Recall, Word, changed

# Rows of a table in a terminal; a page and `--json` have all of them.
_MAX_ROWS = 20

_WIDEST = 10_000  # columns, which no table fills

# Colours of a difference by its standing: significantly better, open, worse.
_STYLES = {1: "green", 0: "", -1: "red"}

_WORD_STYLES: dict[Word, str] = {
    "improved": "green",
    "no significant change": "",
    "worse": "red",
    "still off": "yellow",
}


class _Table(Table):
    """A table with a rule below its head on a terminal; never squeezed, since half a number misleads.

    Args:
        heads: of the columns.
        rows: texts, which may come out of a file.
        texts: columns of texts; the others are numbers.
    """

    def __init__(
        self, heads: Sequence[str], rows: Iterable[Sequence[str]] = (), *, texts: Sequence[int] = (0,)
    ) -> None:
        super().__init__(pad_edge=False)
        for k, head in enumerate(heads):
            self.add_column(head, justify="left" if k in texts else "right", no_wrap=True)
        for row in rows:
            self.add_row(*map(printable, row))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # no rule in a pipe, where other programs read
        self.box = None
        if console.is_terminal:
            self.box = box.SIMPLE_HEAD
        yield from super().__rich_console__(console, options.update_width(_WIDEST))


def report_text(report: Report, *, detailed: bool = False, next_step: str = "") -> RenderableType:
    """A sentence, a table, notes, and what to do next.

    `detailed`: whether the methods that were compared, what was fitted and how it was checked are shown too.
    `next_step`: how to use a file that takes no model's place.
    """
    lines: list[str] = []
    if report.teacher:
        lines += _teacher_lines(report.teacher)
    if detailed:
        lines += _detail_lines(report)
    if report.guard:
        lines += guard_lines(report.guard)
    lines += [*wording.note_lines(report.notes), f"wrote    {wording.written_text(report.files)}"]
    lines.append(f"tested   in batches of up to {count_text(report.verification.batch, 'sample')}")
    if report.gates_met:
        lines.append(f"gates    met: {', '.join(report.gates_met)}")
    if not report.missed:
        lines.append(f"next     {_next_step(report, next_step)}")
    summary = Text(f"{report.summary}.", style=f"bold {_WORD_STYLES[report.word]}".strip())
    if report.missed:
        # the error that follows is red, and green above it would contradict it
        summary.stylize("not bold default")
    c = report.comparison
    tables: list[RenderableType] = [*_comparison_table(c, report.recall)]
    tables += _titled(wording.positive_table(("before", "after"), (c.before, c.after)))
    tables += _titled(wording.label_table(report.labels, _MAX_ROWS))
    tables += _subgroups(report.subgroups, "subgroups", "after minus before")
    if detailed and report.methods:
        tables += [Text(), *_methods_table(report)]
    return Group(summary, Text(), *tables, Text(), wording.lines_text(lines))


def _teacher_lines(taught: Taught) -> list[str]:
    """Say how the model follows its teacher, and how good that is."""
    low, high = taught.kl_change
    lines = [
        f"teacher  {taught.model}, {taught.samples:,} samples: KL {taught.kl_before:.4f} -> {taught.kl_after:.4f} nats "
        f"({low:+.4f} to {high:+.4f})",
    ]
    accuracy = METRICS["accuracy"]
    number = accuracy.number
    ends = accuracy.ends(*taught.agreement_change)
    same = f"{number(taught.agreement_before)} -> {number(taught.agreement_after)} % ({ends} points)"
    lines.append(f"         the same class {same}")
    if taught.top5_before is not None and taught.top5_after is not None:
        lines[-1] += f"; the same five {number(taught.top5_before)} -> {number(taught.top5_after)} %"
    if taught.metrics is not None:
        values = (
            f"{METRICS[name].title} {METRICS[name].number(getattr(taught.metrics, name))}"
            for name in ("accuracy", "ece", "nll")
        )
        lines.append(f"         the teacher on the same samples: {', '.join(values)}")
    return lines


def _detail_lines(report: Report) -> list[str]:
    """Say what was fitted, how the file was checked, and what the metrics of the table leave out."""
    checked = report.verification
    recall: list[str] = []
    lowest = report.recall.lowest
    if lowest.difference.difference < 0:
        chance = ""
        if not lowest.loses:
            chance = ", which may be chance"
        recall = [f"recall   the largest loss: {report.kind} {lowest.text()}{chance}"]
    return [
        f"head     {wording.head_text(report)}",
        f"weight   {wording.weight_text(report)}",
        f"map      {wording.map_text(report)}",
        f"checked  {checked.samples:,} samples: {wording.checked_text(checked)} on {report.provider}",
        *wording.bin_free_lines(report.bin_free_before, report.bin_free_after),
        *recall,
        f"verdict  {report.verdict}",
    ]


_OF_THE_INPUT = ("layout", "height", "width", "dtype")  # parts of a recipe that the model's input says


def _next_step(report: Report, use: str) -> str:
    """Say in one line what to do with the result; `use`, if it takes no model's place."""
    if report.dry_run:
        return "run it again without --dry-run to write the file"
    if not report.output:
        return "keep the new model, which is in memory"
    keep, copied = "keep the model that you have", "is a copy of it"
    if use:
        keep, copied = "keep the scores that you have", "returns them as they are"
    if report.undecided:
        keep = f"give more samples; until then {keep}"
    if report.already_calibrated and report.guard is None and report.word != "still off":
        return f"{keep}: the file {copied}"
    if report.word == "still off" and report.alternative is not None:
        return "run it again with --predictions change, for probabilities that are right"
    if report.undecided or report.word == "worse":
        return keep
    worst = report.recall.worst
    first = recipe = ""
    if worst is not None:
        first = f"look at {report.kind} {worst.name} first; then "
    them = "use it"
    if len(report.files) > 1:
        them = "use both files, in one folder,"
    if report.recipe_search is not None and report.preprocessing is not None:
        steps = {name: value for name, value in report.preprocessing.items() if name not in _OF_THE_INPUT}
        recipe = f"; serve with the same: {recipe_text(steps)}"
    same = "inputs and outputs are the same"
    if report.guard is not None:
        added = ", ".join(output.name for output in report.guard.outputs)
        same += f"; new: {added}"
    return use or f"{first}{them} in place of {report.model}: {same}{recipe}; -v shows how it was made"


def _methods_table(report: Report) -> tuple[RenderableType, ...]:
    """Title and table of the methods that were compared."""
    heads, rows = wording.method_table(report)
    table = _Table(heads, texts=(0, 3, 4, 5))
    for row in rows:
        table.add_row(*map(printable, row), style="bold" if "(chosen)" in row[0] else "")
    return wording.lines_text(
        ["methods, cross-validated; the error is that of the difference to the lowest NLL"]
    ), table


def _comparison_table(c: Comparison, recall: Recall) -> tuple[Text, Table]:
    """Title, and a table of before, after and the paired difference with its interval."""
    level = c.differences["ece"].level
    # N and bins beside every ECE: without them it means nothing
    title = f"{c.data}, {c.how}: {wording.size_text(c.before)}"
    table = _Table(("", "before", "after", f"difference ({100 * level:g} %)"))
    for row in wording.change_rows(c, recall):
        *cells, change = row.cells
        # by the rule of the verdict, so that both have one colour
        table.add_row(*cells, Text(change, style=_STYLES[changed(row.metric, row.d)]))
    return wording.lines_text([title]), table


def _titled(text_table: wording.TextTable | None, title: str = "") -> list[RenderableType]:
    """Return a blank line, the title and the table; nothing for none."""
    if text_table is None:
        return []
    caption, heads, rows = text_table
    return [Text(), wording.lines_text([f"{title}{caption}"]), _Table(heads, rows)]


def _subgroups(
    subgroups: Sequence[Subgroup], title: str, difference: str = "differences to the baseline"
) -> Iterator[RenderableType]:
    for text_table in wording.subgroup_tables(subgroups, difference):
        yield from _titled(text_table, f"{title}: ")


def evaluation_text(evaluation: Evaluation) -> RenderableType:
    """Metrics of one model."""
    metrics = evaluation.metrics
    summary = Text(f"{evaluation.summary}.", style="bold")
    title = wording.lines_text(["", f"{evaluation.model} on {evaluation.data}: {wording.size_text(metrics)}"])
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for row in wording.evaluation_rows(evaluation):
        table.add_row(*row)
    if evaluation.without_labels is not None:
        return Group(summary, title, table, wording.lines_text(wording.note_lines(evaluation.notes)))
    lines = wording.bin_free_lines(evaluation.bin_free)
    if evaluation.subgroups and "slope" in evaluation.estimates and "intercept" in evaluation.estimates:
        lines.append(f"slope    {wording.slope_text(evaluation.estimates)}")
    if evaluation.decisions:
        lines += decision_lines(evaluation.decisions)
    lines += wording.note_lines(evaluation.notes)
    tables = _titled(wording.positive_table(("",), (metrics,)))
    if tables:
        tables.append(Text())
    tables += _titled(wording.label_table(evaluation.labels, _MAX_ROWS))
    tables += _subgroups(evaluation.subgroups, "subgroups")
    if evaluation.subgroups:
        tables.append(Text())
    return Group(summary, title, table, *tables, wording.lines_text(lines))


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
        *wording.note_lines(collection.notes),
        f"store    {collection.folder}",
    ]
    return wording.lines_text(lines)


def model_comparison_text(comparison: ModelComparison) -> RenderableType:
    """Metrics of every model, paired differences to the baseline, notes, one verdict a model."""
    size = wording.size_text(comparison.models[0].metrics)
    heads = ("", *(metric.title for metric in METRICS.values()), "agree, %")
    rows = [(model.name, *wording.metric_cells(model, comparison.baseline)) for model in comparison.models]
    blocks: list[RenderableType] = [wording.lines_text([f"{comparison.data}: {size}"]), _Table(heads, rows)]
    blocks += _titled(
        wording.positive_table(
            [model.name for model in comparison.models], [model.metrics for model in comparison.models]
        )
    )
    for model in comparison.others:
        blocks += _titled(_difference_table(model, comparison))
    for model in comparison.models:
        blocks += _subgroups(model.subgroups, f"subgroups, {model.name}")
    blocks.append(Text())
    lines: list[str] = []
    for model in comparison.models:
        if model.decisions is not None:
            lines += [f"decisions of {model.name}", *decision_lines(model.decisions)]
    lines += wording.note_lines(comparison.notes)
    if lines:
        blocks.append(wording.lines_text(lines))
    # last: where the reader of a terminal is when the command ends
    verdicts = wording.lines_text([f"{model.name}: {model.verdict}" for model in comparison.others])
    verdicts.stylize("bold")
    return Group(*blocks, verdicts)


def _difference_table(model: ComparedModel, comparison: ModelComparison) -> wording.TextTable:
    heads = ("", "difference", f"{comparison.confidence_level:g} % interval")
    differences = {name: model.differences[name] for name in JUDGED if name in model.differences}
    rows: list[tuple[str, ...]] = [
        (wording.metric_title(name, model.metrics), wording.difference_text(name, d), JUDGED[name].ends(d.low, d.high))
        for name, d in differences.items()
    ]
    return f"{model.name} minus {comparison.baseline}", heads, rows


def study_text(studies: Studies) -> RenderableType:
    """Say what each study found, and where the files are."""
    calibration, held_out = studies.samples
    head = (
        f"{studies.model}: n = {studies.features:,}, {studies.classes:,} classes; {calibration:,} calibration and "
        f"{held_out:,} held-out samples"
    )
    width = max(len(study.name) for study in studies.studies)
    lines = [f"{study.name:<{width}}  {study.sentence}" for study in studies.studies]
    lines += [f"note: {note}" for note in studies.notes]
    if studies.folder:
        lines.append(f"wrote {studies.folder}: index.html")
    return wording.lines_text([head, "", *lines])


_MAX_DECIDED = 12  # classes of a decision, those of the lowest recall

_FEW_CLASSES = 5  # with the lowest coverage, that are listed


def guard_text(guard: outcomes.Guard) -> RenderableType:
    """What was added, what it promises, and what it decides on samples."""
    lines = [f"model    {guard.model}, output '{guard.class_output}'", *guard_lines(guard)]
    changed = "no value changed"
    if guard.max_change:
        changed = f"values changed by {guard.max_change:.1e} at most"
    lines.append(f"checked  {changed} in other outputs; {guard.nodes} nodes, {guard.bytes:,} bytes more")
    return wording.lines_text(
        [*lines, *wording.note_lines(guard.notes), f"wrote    {wording.written_text(guard.files)}"]
    )


def guard_lines(guard: outcomes.Guard) -> list[str]:
    """What thresholds come from, what was added, and what it decides."""
    source = f"data     {guard.data}; {guard.samples:,} samples gave the thresholds"
    if guard.fitted_on:
        source += f"; scores fitted on {guard.fitted_on:,} of them have their thresholds from the others"
    lines = [source]
    for output in guard.outputs:
        limit = ""
        if len(output.threshold) == 1 and output.threshold[0] is not None:
            limit = f" (threshold {output.threshold[0]:.6g})"
        lines.append(f"added    {output.name}: {output.promise}{limit}")
    if guard.operating_point is not None:
        lines += [f"cost     {line}" for line in wording.cost_lines(guard.operating_point)]
    return [*lines, *decision_lines(guard.decisions)]


def decision_lines(decisions: outcomes.Decisions) -> list[str]:
    """Say what a file decides on samples."""
    lines = [f"on {decisions.data}{wording.FRESH[decisions.fresh]}"]
    lines += [f"{name} {text}" for name, text in wording.decision_parts(decisions)]
    if decisions.class_coverage:
        covered = [(share, k) for k, share in enumerate(decisions.class_coverage) if share is not None]
        lowest = ", ".join(f"{k}: {wording.per_cent(share)}" for share, k in sorted(covered)[:_FEW_CLASSES])
        lines.append(f"lowest coverage by class: {lowest}")
    lines += [
        f"at a confidence of {group.low:.4f} to {group.high:.4f}, sets hold the true class of "
        f"{wording.per_cent(group.coverage)}; {group.mean_set_size:.2f} classes on average"
        for group in decisions.by_confidence or ()
    ]
    if decisions.decision is not None:
        lines += _class_decision_lines(decisions.decision.classes)
    return [f"measured {line}" for line in lines]


def _class_decision_lines(classes: Sequence[outcomes.ClassDecision]) -> list[str]:
    # a class without samples has no recall, and comes last
    by_recall = sorted(classes, key=lambda decided: (decided.recall is None, decided.recall or 0.0))
    lines = [f"decision {decided.name}: {wording.recall_words(decided)}" for decided in by_recall[:_MAX_DECIDED]]
    if len(classes) > _MAX_DECIDED:
        lines.append(f"{len(classes) - _MAX_DECIDED:,} further classes have a higher recall")
    return lines


_MAX_CLASSES = 20  # of more, those that change most

_METHODS = {
    "em": "estimated by EM",
    "bbse": "estimated by black-box shift estimation (BBSE)",
    "given": "as given",
}

_PLACES = {"bias": "in the bias of the head; no node is new", "nodes": "in nodes behind the scores"}


def shift_text(shift: outcomes.Shift) -> RenderableType:
    """Which frequencies, how sure they are, and what they do."""
    lines = [f"model    {shift.model}, output '{shift.class_output}'", f"source   {shift.data}"]
    if shift.target_data:
        lines.append(f"target   {shift.target_data}: class frequencies {_METHODS[shift.method]}")
    else:
        lines.append(f"target   class frequencies {_METHODS[shift.method]}")
    lines += [f"class    {line}" for line in _class_lines(shift.classes)]
    if shift.evidence is not None:
        evidence = shift.evidence
        lines += [
            f"tested   a change of frequencies as large as this by noise alone: p = {evidence.changed_p:.2g}",
            f"tested   nothing but class frequencies has changed: p = {evidence.other_p:.2g}",
            f"tested   mean confidence minus what the class frequencies explain: {100 * evidence.surprise:+.2f} points",
        ]
    if shift.effect is not None:
        lines += [f"measured {line}" for line in _effect_lines(shift.effect)]
    lines.append(f"checked  {_PLACES[shift.placed]}; probabilities within {shift.max_difference:.1e} of the formula")
    return wording.lines_text(
        [*lines, *wording.note_lines(shift.notes), f"wrote    {wording.written_text(shift.files)}"]
    )


def _class_lines(frequencies: tuple[outcomes.ClassFrequency, ...]) -> Iterator[str]:
    listed = list(frequencies)
    if len(frequencies) > _MAX_CLASSES:
        listed = sorted(frequencies, key=lambda frequency: -abs(frequency.target - frequency.source))[:_MAX_CLASSES]
        yield f"the {_MAX_CLASSES} of {len(frequencies):,} that change most"
    width = max(len(frequency.name) for frequency in listed)
    for frequency in listed:
        yield f"{frequency.name:{width}}  {wording.frequency_text(frequency)}"


def _effect_lines(effect: outcomes.ShiftEffect) -> Iterator[str]:
    accuracy = METRICS["accuracy"].ends(effect.accuracy.low, effect.accuracy.high)
    nll = METRICS["nll"].ends(effect.nll.low, effect.nll.high)
    yield f"on {effect.data}, which must come from the target"
    sides = (effect.before, effect.after)
    yield f"accuracy {' -> '.join(wording.per_cent(side.accuracy) for side in sides)} ({accuracy} points)"
    yield f"NLL {effect.before.nll:.4f} -> {effect.after.nll:.4f} ({nll})"
    yield f"ECE {' -> '.join(wording.per_cent(side.ece) for side in sides)}"
    yield f"the class frequencies of its labels differ from those written by {100 * effect.distance:.2f} points in all"
