"""Rows and lines of results that the terminal and the page share: each number is put into words once; and how lines are
printed, whatever the terminal can show. Light to import: every command prints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from tna_onnx.errors import count_text
from tna_onnx.files import printable
from tna_onnx.numerics.metric import JUDGED, METRICS, POSITIVE_ECE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from tna_onnx.numerics.metrics import Estimate, Interval, Metrics, Positive
    from tna_onnx.results import outcomes
    from tna_onnx.results.details import BinFree, LabelMetrics
    from tna_onnx.results.measured import ComparedModel, Evaluation, Subgroup
    from tna_onnx.results.report import Comparison, MethodScores, Report, Verification
    from tna_onnx.results.verdict import Recall


def lines_text(lines: Sequence[str]) -> Text:
    """Join lines; a break inside one of them came out of a file, and must not look like one of ours."""
    return Text("\n".join(map(printable, lines)))


def note_lines(notes: Sequence[str]) -> list[str]:
    """Write notes, a line each."""
    return [f"note     {note}" for note in notes]


def show(console: Console, content: RenderableType) -> None:
    """Print without wrapping sentences at the width of a pipe.

    What the encoding cannot hold is escaped, and so is what would act on a terminal.
    """
    # A name with letters that the terminal's encoding lacks must not end a run that has written its files.
    if hasattr(console.file, "reconfigure"):
        console.file.reconfigure(errors="backslashreplace")
    console.print(_Escaped(content), soft_wrap=not console.is_terminal, highlight=False, crop=False)


@dataclass(frozen=True)
class _Escaped:
    """Anything, with the characters escaped that would act on a terminal; styles are applied behind this."""

    content: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.content, options):
            yield segment._replace(text=printable(segment.text, lines=True))


def written_text(files: Sequence[str]) -> str:
    """Name the files of the model that was written."""
    return " and ".join(files) or "nothing"


def size_text(metrics: Metrics) -> str:
    """Write what metrics are made of, samples, groups, bins: `N = 200 in 40 groups (design effect 3.1), 15 bins`."""
    groups = ""
    if metrics.groups is not None:
        groups = f" in {count_text(metrics.groups, 'group')}"
    if metrics.design_effect is not None:
        groups += f" (design effect {metrics.design_effect:.2g})"
    if metrics.effective_n is not None:
        groups += f", by weight worth {metrics.effective_n:,.0f}"
    if metrics.bins:  # none without labels
        groups += f", {metrics.bins} bins"
    return f"N = {metrics.n:,}{groups}"


def checked_text(checked: Verification) -> str:
    """Say how far the file is from the numerics, and how many samples it gives another first class."""
    text = f"largest |p - p'| {checked.max_difference:.1e} (bound {checked.bound:.1e})"
    if not checked.other_class:
        return text
    return f"{text}; {count_text(checked.other_class, 'sample')} with another first class, tied to within the bound,"


def change_text(name: str, d: Interval) -> str:
    """Write the difference of a metric and its interval."""
    return f"{difference_text(name, d)} ({JUDGED[name].ends(d.low, d.high)})"


def difference_text(name: str, d: Interval) -> str:
    """Write the difference of a metric, and whether it is not that of the values."""
    metric = JUDGED[name]
    if metric.debiased:
        return f"debiased {metric.change(d.difference)}"
    return metric.change(d.difference)


def metric_title(name: str, metrics: Metrics) -> str:
    """Return label and unit of a metric of these samples, by what their P(positive) is of."""
    if name == POSITIVE_ECE and metrics.positive is not None and metrics.positive.labels > 1:
        return "ECE of the worst label, %"
    return JUDGED[name].title


class ChangeRow(NamedTuple):
    """A metric before and after."""

    metric: str
    title: str
    before: float
    after: float
    d: Interval

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Title, both values, and the difference with its interval."""
        before, after = map(JUDGED[self.metric].number, (self.before, self.after))
        return self.title, before, after, change_text(self.metric, self.d)


def change_rows(comparison: Comparison, recall: Recall) -> Iterator[ChangeRow]:
    """Yield a row for each metric; balanced accuracy is one of them."""
    for name in JUDGED:
        if name not in comparison.differences:
            continue
        sides = (comparison.before.value(name), comparison.after.value(name))
        yield ChangeRow(name, metric_title(name, comparison.before), *sides, comparison.differences[name])
        if name == "accuracy":
            sides = (recall.balanced_before, recall.balanced_after)
            yield ChangeRow(name, "balanced accuracy, %", *sides, recall.balanced)


def metric_cells(model: ComparedModel, baseline: str) -> tuple[str, ...]:
    """Return the metrics of one of several models, and for how many samples it agrees with the baseline."""
    agreement = f"{100 * model.agreement:.2f}"
    if model.name == baseline:
        agreement = "baseline"
    return *(metric.number(getattr(model.metrics, name)) for name, metric in METRICS.items()), agreement


TextTable = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
"""Title, heads and rows."""


def label_table(labels: Sequence[LabelMetrics], max_rows: int | None = None) -> TextTable | None:
    """Return the metrics of each label, of many those with the largest ECE before; None for one class a sample."""
    if not labels:
        return None
    title = f"each label, {labels[0].before.bins} bins"
    if max_rows is not None and len(labels) > max_rows:
        title += f"; the {max_rows} of {len(labels):,} with the largest ECE before"
    # in the model's order
    listed = sorted(sorted(range(len(labels)), key=lambda c: -labels[c].before.ece)[:max_rows])
    rows = [_label_cells(labels[c]) for c in listed]
    if any(label.shared for label in labels):
        for row, c in zip(rows, listed, strict=True):
            row["fit"] = "shared" if labels[c].shared else "own"
    return title, tuple(rows[0]), [tuple(row.values()) for row in rows]


def _label_cells(label: LabelMetrics) -> dict[str, str]:
    """Return the cells of a label by the heads of their columns; of two models, some are for each."""
    sides = {"": label.before}
    names = ["accuracy", "ece", "nll", "brier"]
    if label.after is not None:
        sides = {": before": label.before, ": after": label.after}
        names = ["ece", "nll"]
    positives = {side: it.positive for side, it in sides.items() if it.positive is not None}
    *_, (side, last) = positives.items()
    fits = {f"{name}{side}": _estimate_cell(getattr(last, name), name) for name in ("slope", "intercept")}
    cells = {
        "label": label.label,
        "N with it": f"{label.positives:,} of {label.before.n:,}",
        "frequency, %": _percent(last.frequency),
        **{f"mean p, %{side}": _percent(it.mean) for side, it in positives.items()},
    }
    numbers = {
        f"{METRICS[name].title}{side}": METRICS[name].number(getattr(it, name))
        for name in names
        for side, it in sides.items()
    }
    if label.after is None:
        return cells | fits | numbers
    return cells | numbers | fits


# p-values below it are called more than chance.
_LEVEL = 0.05


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
    kuiper, ece = (
        " -> ".join(f"{_percent(value)} %" for value in values)
        for values in zip(*((it.cumulative.kuiper, it.ece_debiased) for it in stages), strict=True)
    )
    lost = " -> ".join(_nats(it.corp.nll.miscalibration) for it in stages)
    p_values = [p_text(it.cumulative.kuiper_p) for it in stages if it.cumulative.kuiper_p is not None]
    p_value = " -> ".join(p_values) or "not defined"
    if 0 < len(p_values) < len(stages):  # cross-fitted scores have none
        p_value = f"{p_values[0]} before"
    last = stages[-1]
    return [
        f"bin-free Kuiper {kuiper} (p {p_value}); ECE with less bias {ece}, by chance alone "
        f"{_percent(last.ece_expected)} %",
        f"NLL      {lost} nats of it from miscalibrated confidence, by chance alone {_nats(last.corp.nll.expected)}",
    ]


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


_ROWS: tuple[tuple[str, Callable[[BinFree], str]], ...] = (
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


def positive_table(heads: Sequence[str], metrics: Sequence[Metrics]) -> TextTable | None:
    """Return P(positive) of one model or several beside how often it occurs; None for more than two classes."""
    stages = [stage.positive for stage in metrics if stage.positive is not None]
    if not stages:
        return None
    rows = [(title, *map(write, stages)) for title, write in _POSITIVE_ROWS]
    title = f"P({stages[0].name}): {size_text(metrics[0])}"
    if stages[0].labels > 1:
        rows = [("worst label", *(stage.name for stage in stages)), *rows]
        rows.append(("mean ECE of all labels, %", *(_percent(stage.ece_mean) for stage in stages)))
        title = f"the worst of {stages[0].labels:,} labels by the ECE of its probability: {size_text(metrics[0])}"
    return title, ("", *heads), rows


def threshold_table(report: Report) -> TextTable | None:
    """Return the threshold of each label that keeps today's decisions, and what happens at the old one."""
    thresholds = report.kept_decisions
    if not thresholds or report.already_calibrated:
        return None
    heads = ("", f"was {thresholds[0].before:g}", *(f"{name}, %" for name in ("recall", "precision")))
    rows = []
    for one in thresholds:
        shares = ((one.recall_before, one.recall_after), (one.precision_before, one.precision_after))
        changes = (" -> ".join(per_cent(share).removesuffix(" %") for share in pair) for pair in shares)
        rows.append((one.name, "no threshold" if one.threshold is None else repr(one.threshold), *changes))
    return f"thresholds that keep today's decisions, and what happens at {thresholds[0].before:g}", heads, rows


_POSITIVE_ROWS: tuple[tuple[str, Callable[[Positive], str]], ...] = (
    ("mean probability, %", lambda it: _percent(it.mean)),
    ("frequency, %", lambda it: _percent(it.frequency)),
    ("ECE, %", lambda it: _percent(it.ece)),
    ("ECE by chance alone, %", lambda it: _percent(it.ece_expected)),
    ("p-value of right probabilities", lambda it: p_text(it.p)),
    ("calibration slope", lambda it: _estimate_cell(it.slope, "slope")),
    ("calibration intercept", lambda it: _estimate_cell(it.intercept, "intercept")),
)


def _percent(number: float) -> str:
    """Write a fraction in per cent, without the sign."""
    return METRICS["ece"].number(number)


def _nats(number: float) -> str:
    return METRICS["nll"].number(number)


_METHOD_HEADS = ("method", "NLL", "± error", "predictions", "in the file", "left out")

# The last may also cost a class recall.
_LEFT_OUT = {"": "", "accuracy": "costs accuracy", "error": "raises the ECE", "predictions": "changes predictions"}


def method_table(report: Report) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return heads, and a row for each method that was compared, the lowest NLL first; of a path, its best strength.

    The last column says why a method was left out; it is not there where none was.
    """
    nll = METRICS["nll"]
    changes = {True: "kept", False: "may change"}
    places = {True: "folded", False: "nodes"}
    rows: list[tuple[str, ...]] = []
    for method in best_methods(report):
        words = method.words
        if method.method == report.method:
            words += " (chosen)"
        predictions = changes[method.keeps_predictions]
        place = places[method.folds]
        if method.method == "none":
            place = "unchanged"
        left_out = _LEFT_OUT[method.left_out]
        error = nll.number(method.error) if method.error else ""  # the lowest has no difference to itself
        rows.append((words, nll.number(method.metrics.nll), error, predictions, place, left_out))
    if any(row[-1] for row in rows):
        return _METHOD_HEADS, rows
    return _METHOD_HEADS[:-1], [row[:-1] for row in rows]


def best_methods(report: Report) -> list[MethodScores]:
    """Return the methods from the lowest NLL on; of a path of strengths the chosen one, or else the best."""
    by_kind: dict[str, MethodScores] = {}
    for method in sorted(report.methods, key=lambda method: (method.method != report.method, method.metrics.nll)):
        by_kind.setdefault(method.words.partition(", strength")[0], method)
    return sorted(by_kind.values(), key=lambda method: method.metrics.nll)


# Values of a fitted parameter that are listed.
_MAX_VALUES = 4

# Where a map went, by whether it was folded.
_PLACES = {True: "folded into weight and bias", False: "appended as nodes"}


def head_text(report: Report) -> str:
    """Write the head and the shape of its weight."""
    if not report.head:
        return "none"
    return f"{report.head}: weight ({report.classes}, {report.features})"


def weight_text(report: Report) -> str:
    """Write what became of the weight."""
    if report.angle == 0 and report.folded:
        return "not tilted"
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
    fitted = ", ".join(f"{name.replace('_', ' ')} {_parameter(value)}" for name, value in report.parameters.items())
    if fitted:
        return f"{text} ({fitted})"
    return text


def _parameter(value: float | list[float]) -> str:
    if not isinstance(value, list):
        return f"{value:.4g}"
    if len(value) > _MAX_VALUES:
        return f"of {len(value)} values"
    return ", ".join(f"{v:.4g}" for v in value)


def subgroup_tables(
    subgroups: Sequence[Subgroup], difference: str = "differences to the baseline"
) -> Iterator[TextTable]:
    """Yield a table of the estimates of subgroups, and one of their differences if there are any; none for none."""
    if not subgroups:
        return
    error = "ece"
    if POSITIVE_ECE in subgroups[0].estimates:
        error = POSITIVE_ECE
    judged = ("accuracy", error, "nll")
    titles = [JUDGED[name].title for name in judged]
    rows = []
    changes = []
    for part in subgroups:
        estimates = (_estimate_cell(part.estimates.get(name), name) for name in (*judged, "slope", "intercept"))
        rows.append((part.name, _size_cell(part), *estimates))
        if part.differences:
            changes.append(
                (part.name, _size_cell(part), *(change_text(name, part.differences[name]) for name in judged))
            )
    yield "the worst ECE first, with intervals", ("", "N", *titles, "slope", "intercept"), rows
    if changes:
        yield difference, ("", "N", *titles), changes


def _size_cell(part: Subgroup) -> str:
    if part.metrics.groups:
        return f"{part.metrics.n:,} in {part.metrics.groups:,}"
    return f"{part.metrics.n:,}"


def _estimate_cell(estimate: Estimate | None, name: str) -> str:
    """Write a value and the ends of its interval."""
    if estimate is None:
        return "-"
    write = JUDGED[name].number if name in JUDGED else "{:.2f}".format
    if estimate.low is None or estimate.high is None:
        return f"{write(estimate.value)} (no interval)"
    return f"{write(estimate.value)} ({write(estimate.low)} to {write(estimate.high)})"


def slope_text(estimates: Mapping[str, Estimate]) -> str:
    """Write slope and intercept of calibration with their intervals."""
    slope, intercept = (_estimate_cell(estimates[name], name) for name in ("slope", "intercept"))
    return f"of calibration {slope}, intercept {intercept}; calibrated: 1 and 0"


def cost_lines(point: outcomes.OperatingPoint) -> Iterator[str]:
    """What thresholds by counting and by probability cost, and whether they disagree."""
    if point.probability_cost is None or point.cost_gain is None or point.lowest_cost is None:
        return
    for name, cost, threshold in (
        ("probability", point.probability_cost, point.by_probability),
        ("counting, cross-fitted,", point.counting_cost, point.by_counting),
    ):
        if cost is None:
            continue
        place = ""
        if threshold is not None:
            place = f" (threshold {threshold:.4g})"
        regret = max(0.0, cost - point.lowest_cost)
        yield f"by {name}{place}: {cost:.4g} a sample, {regret:.4g} above the lowest that thresholds reach here"
    low, high = point.cost_gain
    if low == high == 0:
        yield "thresholds by counting decide alike, so they do not test the probabilities"
        return
    words = "agree"
    if low > 0:
        words = "disagree"
    if high < 0:
        words = "counting is worse"
    yield f"both {words}: counting costs {low:.3g} to {high:.3g} less"


FRESH = {
    True: ", held-out",
    False: ": these chose the thresholds, so only other samples can test the promises",
    None: "",
}
"""What to say of samples that decisions are measured on, by whether no threshold was chosen on them."""


def decision_parts(decisions: outcomes.Decisions) -> Iterator[tuple[str, str]]:
    """Yield what a file decides on samples: what is measured, and the numbers. Classes and groups have tables."""
    if decisions.calibration is not None:
        yield "confidence:", off(decisions.calibration)
    if decisions.accepted is not None:
        text = f"{per_cent(decisions.accepted)} of samples"
        if decisions.risk is not None and decisions.risk_interval is not None:
            text += f", of which {per_cent(decisions.risk)} wrong {between(decisions.risk_interval)}; without accept "
            text += per_cent(1 - decisions.accuracy)
        yield "accepted", text
    if decisions.coverage is not None and decisions.coverage_interval is not None:
        yield (
            "sets",
            f"hold the true class of {per_cent(decisions.coverage)} {between(decisions.coverage_interval)}; "
            f"{decisions.mean_set_size:.2f} classes on average, one in {per_cent(decisions.single_sets)}, "
            f"none in {per_cent(decisions.empty_sets)}",
        )
        if decisions.full_sets:
            share = per_cent(decisions.full_sets)
            yield "vacuous:", f"{share} of the sets hold all classes, which says nothing"
    if decisions.decision is not None:
        yield "decision:", _scores_text(decisions.decision)
    if decisions.alarms is not None:
        yield "alarm", f"in {per_cent(decisions.alarms)}"
    if decisions.detection is not None:
        detection = decisions.detection
        yield (
            "unknown samples,",
            f"{detection.data}: alarm in {per_cent(detection.detected)} {between(detection.detected_interval)}; "
            f"AUROC {detection.auroc:.4f}",
        )


def _scores_text(scores: outcomes.DecisionScores) -> str:
    text = f"macro F1 {scores.macro_f1:.4f}, balanced accuracy {per_cent(scores.balanced_accuracy)}, MCC "
    text += f"{scores.mcc:.4f}"
    if scores.undecided:
        text += f", undecided {per_cent(scores.undecided)}"
    if scores.cost is not None:
        text += f", cost {scores.cost:.4g} a sample"
    return text


def recall_words(decided: outcomes.ClassDecision) -> str:
    """Write recall, precision and false positive rate of a class."""
    recall = share_text(decided.recall, decided.recall_interval)
    precision = share_text(decided.precision, decided.precision_interval)
    parts = (f"recall {recall}", f"precision {precision}", f"false positives {per_cent(decided.false_positives)}")
    return f"{', '.join(parts)}; {decided.samples:,} samples have it, {decided.decided:,} are decided so"


def off(calibration: outcomes.ConfidenceCalibration) -> str:
    """Say how far the confidence is off."""
    ece = "(one sample: no interval)"
    if calibration.ece_interval is not None:
        ece = between(calibration.ece_interval)
    nll = "(too few errors for an interval)"
    if calibration.nll_interval is not None:
        low, high = calibration.nll_interval
        nll = f"({low:.4f} to {high:.4f})"
    return f"ECE {per_cent(calibration.ece)} {ece}, NLL of being right {calibration.nll:.4f} {nll}"


def per_cent(share: float | None) -> str:
    """Write a share in per cent; a dash where there is none."""
    if share is None:
        return "-"
    return f"{100 * share:.2f} %"


def share_text(share: float | None, interval: tuple[float, float] | None) -> str:
    """Write a share in per cent, with its interval if it has one."""
    if interval is None:
        return per_cent(share)
    return f"{per_cent(share)} {between(interval)}"


def between(interval: tuple[float, float]) -> str:
    """Write the ends of an interval in per cent."""
    return f"({100 * interval[0]:.2f} to {100 * interval[1]:.2f})"


def evaluation_rows(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Return the metrics; on data without labels the expected accuracy, the test, and class frequencies."""
    expected = evaluation.without_labels
    if expected is None:
        return [(metric.title, metric.number(getattr(evaluation.metrics, name))) for name, metric in METRICS.items()]
    test = "no alarm"
    if expected.alarm:
        test = "alarm"
    return [
        ("Expected accuracy, %", _estimate_cell(expected.accuracy, "accuracy")),
        ("Mean confidence", per_cent(expected.confidence)),
        ("Test of other changes at 5 %", f"{test} (p = {expected.other_p:.4f})"),
        *((f"Frequency of class {frequency.name}", frequency_text(frequency)) for frequency in expected.frequencies),
    ]


def frequency_text(frequency: outcomes.ClassFrequency) -> str:
    """Write the frequency of a class before and after, and the interval."""
    return f"{per_cent(frequency.source)} -> {share_text(frequency.target, frequency.interval)}"
