"""Sections on predictions: reliability, classes, samples, confidence, the search over the angle, and decisions.

Reliability is drawn of the predicted class and of single classes, those with the largest gaps where there are many.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace

from tna_onnx.numerics.isotonic import Curve
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.numerics.reliability import Bins
from tna_onnx.render import charts
from tna_onnx.render.html import blocks
from tna_onnx.render.html.summary import data_text
from tna_onnx.render.html.svg import DIAGRAM_HEIGHT, confidence_histogram, reliability_diagram
from tna_onnx.render.wording import (
    FRESH,
    bin_free_rows,
    bin_free_sentence,
    cost_lines,
    decision_parts,
    per_cent,
    share_text,
)
from tna_onnx.results.details import BinFree, ClassBins, ClassResult, Details, RiskCoverage
from tna_onnx.results.measured import Evaluation, ModelComparison
from tna_onnx.results.outcomes import Decisions, DecisionScores, Guard
from tna_onnx.results.report import Report

_HEADS = ("N", "accuracy, %", "precision, %", "recall, %")
_BEFORE = ("precision before, %", "recall before, %")
_CALIBRATION = (
    "probability before, %",
    "probability after, %",
    "gap before, %",
    "gap after, %",
    blocks.PageColumn("most often taken for", wraps=True),
)


def classes_table(classes: Sequence[ClassBins], kind: str = "class") -> blocks.Table:
    """Return a row for each class, or label; accuracy, precision and recall are those after recalibration."""
    total = sum(classes[0].before.count)
    # what keeps every prediction has one precision and one recall
    moved = any(c.result_before != c.result_after for c in classes)
    heads = (kind, *_HEADS, *(_BEFORE if moved else ()), *_CALIBRATION)
    rows = [_row(c, total, moved) for c in classes]
    caption = f"Each {kind}, {total:,} samples; click a column head to sort"
    return blocks.table(heads, rows, caption, "sortable numbers")


def _row(c: ClassBins, total: int, moved: bool) -> tuple[str, ...]:
    before: tuple[str, ...] = ()
    if moved:
        before = _precision_and_recall(c.result_before, c.samples)
    after = c.result_after
    # "this class or not": neither missed nor predicted in vain
    wrong = c.samples + after.predicted - 2 * after.right
    return (
        c.name,
        f"{c.samples:,}",
        _per_cent(total - wrong, total),
        *_precision_and_recall(after, c.samples),
        *before,
        _mean(c.before),
        _mean(c.after),
        f"{100 * c.before.ece:.2f}",
        f"{100 * c.after.ece:.2f}",
        ", ".join(f"{confusion.predicted} ({confusion.samples:,})" for confusion in after.confused),
    )


def _precision_and_recall(counts: ClassResult, samples: int) -> tuple[str, str]:
    return _per_cent(counts.right, counts.predicted), _per_cent(counts.right, samples)


def _per_cent(part: int, total: int) -> str:
    """Write a share; a dash where there is nothing to take one of."""
    if total:
        return f"{100 * part / total:.1f}"
    return "–"


def _mean(bins: Bins) -> str:
    """Mean probability in per cent."""
    total = sum(n * p for n, p in zip(bins.count, bins.confidence, strict=True))
    return f"{100 * total / max(1, sum(bins.count)):.2f}"


def samples(details: Details) -> SimpleNamespace | None:
    """Return the values of the section; None if there are no such samples."""
    kinds = (
        ("Wrong, and confident", "Wrong predictions with the highest", details.overconfident),
        ("Right, and unsure", "Right predictions with the lowest", details.underconfident),
    )
    groups = tuple(
        SimpleNamespace(title=title, text=f"{text} confidence after recalibration.", samples=worst)
        for title, text, worst in kinds
        if worst
    )
    # a section without cards would be an empty heading
    if not groups:
        return None
    return SimpleNamespace(shown_data=data_text(details), groups=groups)


# Coverages in the table, per cent.
_COVERAGES = (10, 25, 50, 75, 90, 95, 100)
# A curve that begins below this coverage looks whole, and needs no explanation.
_MIN_TIED = 0.02


def confidence(report: Report, details: Details) -> SimpleNamespace:
    """Return the values of the section."""
    words = charts.words_of(report.labels)
    # One axis for both, so that their heights can be compared.
    highest = 100 * max(max(bins.count) / sum(bins.count) for bins in (details.before, details.after))
    histograms = [
        blocks.Figure(confidence_histogram(details.before, "Confidences before", highest, words), "Before"),
        blocks.Figure(confidence_histogram(details.after, "Confidences after", highest, words), "After"),
    ]
    curves = {"before": details.risk_before, "after": details.risk_after}
    risk = charts.risk_chart(details)
    if report.is_copy:  # both sides are the same
        histograms, curves = histograms[:1], {"before": details.risk_before}
        risk = replace(risk, lines=risk.lines[:1])
    return SimpleNamespace(
        several=bool(report.labels),
        keys=(
            blocks.area_key("accuracy", words.sides[0]),
            blocks.area_key("over", words.sides[1]),
        ),
        risk_keys=tuple(map(blocks.key_of, risk.lines)),
        histograms=histograms,
        tied=tuple(
            f"{word.capitalize()}, {100 * curve.coverage[0]:.0f} % of samples share the highest confidence: the curve "
            "begins there."
            for word, curve in curves.items()
            if curve.coverage[0] > _MIN_TIED
        ),
        risk=blocks.Figure(blocks.chart_figure(risk).drawing),
        risks=_risk_table(curves, report.comparison.before.n),
    )


def _risk_table(curves: dict[str, RiskCoverage], samples: int) -> blocks.Table:
    rows = [(f"{q} %", *(_risk_at(curve, q / 100) for curve in curves.values())) for q in _COVERAGES]
    # the area under the curve is the mean error rate over all coverages
    rows.append(("mean over all", *(f"{100 * curve.area:.2f}" for curve in curves.values())))
    return blocks.table(("coverage", *curves), rows, f"Errors among the most confident of {samples:,} samples, %")


def _risk_at(curve: RiskCoverage, coverage: float) -> str:
    """Write the risk at the first point that covers so much, in per cent; 1e-9 forgives rounding."""
    points = zip(curve.coverage, curve.risk, strict=True)
    risk = next((r for c, r in points if c >= coverage - 1e-9), curve.risk[-1])
    return f"{100 * risk:.2f}"


# Classes that have drawings; all are in the table.
_MAX_DRAWN = 10

# Longer tables are folded away until they are asked for.
_MAX_ROWS = 20


def reliability(report: Report, details: Details | None) -> SimpleNamespace:
    """Return the values of the section; single classes are drawn from the details."""
    c = report.comparison
    cross_fitted = c.how == "cross-fitted"
    # the ECE of the first table: cross-fitted, it is corrected, and is not what the bars add up to
    parts = {
        "before": Diagram.of(c.before, report.reliability.before, report.bin_free_before),
        "after": Diagram.of(c.after, report.reliability.after, report.bin_free_after),
    }
    tested = {
        "before": bin_free_sentence(report.bin_free_before, cross_fitted=False),
        "after": bin_free_sentence(report.bin_free_after, cross_fitted=cross_fitted),
    }
    if report.is_copy:  # both sides are the same
        parts = {"": parts["before"]}
        tested = {"": tested["before"]}
    classes = None
    if details is not None:
        classes = _classes(details, report.kind)
    words = charts.words_of(report.labels, c.before.positive)
    return _diagrams(parts, words, f"{c.data}, {c.how}", tested=tested, classes=classes)


def measured_reliability(evaluation: Evaluation) -> SimpleNamespace:
    """Return the values of the section for one model."""
    metrics = evaluation.metrics
    part = Diagram.of(metrics, evaluation.reliability, evaluation.bin_free)
    return _diagrams({"": part}, charts.words_of(evaluation.labels, metrics.positive), evaluation.data)


def compared_reliability(comparison: ModelComparison) -> SimpleNamespace:
    """Return the values of the section for several models."""
    first = comparison.models[0]
    words = charts.words_of(first.output_kind.startswith("label_"), first.metrics.positive)
    parts = {f"of {it.name}": Diagram.of(it.metrics, it.reliability, it.bin_free) for it in comparison.models}
    return _diagrams(parts, words, comparison.data)


@dataclass(frozen=True)
class Diagram:
    """What a diagram shows: of two classes the positive one, of several labels all together, else the top label."""

    bins: Bins
    ece: float
    bin_free: BinFree
    curve: Curve | None  # the fit without bins, which is of the top label

    @classmethod
    def of(cls, metrics: Metrics, bins: Bins, bin_free: BinFree) -> Diagram:
        """Choose. `bins`: of the top label, or of all labels."""
        positive = metrics.positive
        if positive is None or positive.labels > 1 or positive.reliability is None:
            return cls(bins, metrics.ece, bin_free, bin_free.corp.curve)
        return cls(positive.reliability, positive.ece, bin_free, None)


def _diagrams(
    parts: Mapping[str, Diagram],
    words: charts.DiagramWords,
    data: str,
    *,
    tested: Mapping[str, str] | None = None,
    classes: SimpleNamespace | None = None,
) -> SimpleNamespace:
    """Return diagrams and their numbers, by what they are of."""
    names = {part: part.removeprefix("of ") for part in parts}
    # the name of a model is written as it is
    captions = {part: name if part.startswith("of ") else blocks.capital(name) for part, name in names.items()}
    heads = ("", *(name or "value" for name in names.values()))
    fitted = any(part.curve for part in parts.values())
    return SimpleNamespace(
        data=data,
        tested=tuple(blocks.capital(f"{part}: {text}".removeprefix(": ")) for part, text in (tested or {}).items()),
        few=charts.FEW,
        several=words == charts.OF_LABELS,
        against=words.against,
        fitted=fitted,
        keys=blocks.diagram_keys(words, fitted=fitted),
        figures=tuple(
            blocks.Figure(
                reliability_diagram(diagram.bins, f"Reliability {part}".rstrip(), words, curve=diagram.curve),
                f"{captions[part]}: ECE {100 * diagram.ece:.2f} %".removeprefix(": "),
                DIAGRAM_HEIGHT,
            )
            for part, diagram in parts.items()
        ),
        numbers=tuple(
            blocks.bins_table(diagram.bins, f"Bins {part}".rstrip(), words) for part, diagram in parts.items()
        ),
        bin_free=blocks.table(heads, bin_free_rows(*(part.bin_free for part in parts.values())), "Without bins"),
        classes=classes,
    )


def _classes(details: Details, kind: str) -> SimpleNamespace:
    """Draw every class, or those with the largest gaps before where there are many."""
    classes = details.classes
    drawn = classes
    summary = "Diagrams"
    plural = {"class": "classes", "label": "labels"}[kind]
    if len(classes) > _MAX_DRAWN:
        # by the gap before: the same classes, whatever recalibration made of them
        drawn = tuple(sorted(classes, key=lambda c: -c.before.ece)[:_MAX_DRAWN])
        summary = f"Diagrams of the {_MAX_DRAWN} {plural} with the largest gap before"
    return SimpleNamespace(
        shown_data=data_text(details),
        keys=blocks.diagram_keys(charts.OF_ONE_CLASS, fitted=False),
        summary=summary,
        kind=kind,
        drawn=tuple(_pair(it, kind) for it in drawn),
        numbers=classes_table(classes, kind),
        folded=f"Numbers of all {len(classes):,} {plural}" if len(classes) > _MAX_ROWS else "",
    )


def _pair(c: ClassBins, kind: str) -> tuple[blocks.Figure, ...]:
    return tuple(
        blocks.Figure(
            reliability_diagram(bins, f"{blocks.capital(kind)} {c.name}, {word}", charts.OF_ONE_CLASS),
            f"{blocks.capital(kind)} {c.name} {word}: gap {100 * bins.ece:.2f} %",
            DIAGRAM_HEIGHT,
        )
        for word, bins in (("before", c.before), ("after", c.after))
    )


def search(report: Report, details: Details) -> SimpleNamespace | None:
    """Return the values of the section; None where nothing was tilted."""
    if not report.angle:
        return None
    objective, accuracy = charts.search_charts(report, details)
    return SimpleNamespace(
        mapped={True: "each with the map fitted for it", False: "before any map"}[details.with_map],
        max_drop=f"{100 * charts.MAX_DROP:.0f}",
        max_times=charts.MAX_TIMES,
        shown_data=data_text(details),
        # lines that share a look share an entry
        keys=tuple(dict.fromkeys(map(blocks.key_of, objective.lines))),
        objective=blocks.chart_figure(objective),
        accuracy=blocks.chart_figure(accuracy),
        candidates=_candidates_table(report, details),
    )


def _candidates_table(report: Report, details: Details) -> blocks.Table:
    title = METRICS[report.objective].title
    heads = ["angle, °", "reached, °", "members", f"calibration {title}", "calibration accuracy, %"]
    if details.held_out:
        heads += [f"held-out {title}", "held-out accuracy, %"]
    rows = []
    for step in details.steps:
        row = [f"{step.angle:g}", f"{step.reached:.2f}", charts.members_text(step.members) if step.angle else ""]
        for scored in filter(None, (step.calibration, step.held_out)):
            row += [METRICS[report.objective].number(scored.objective), METRICS["accuracy"].number(scored.accuracy)]
        rows.append(row)
    rows[details.chosen][0] += " (chosen)"
    return blocks.table(heads, rows, f"Objective: {report.objective.upper()}", stressed=details.chosen)


# Decisions

# Rows of a table of classes; models may have thousands.
_MAX_CLASSES = 1000
_MAX_CONFUSION = 20  # columns that a page has place for


def promised(guard: Guard) -> SimpleNamespace:
    """Return the values of a section on decisions that were added."""
    rows = [(output.name, output.promise, _limit(output.threshold)) for output in guard.outputs]
    if guard.operating_point is not None:
        rows += [("cost", line, "-") for line in cost_lines(guard.operating_point)]
    heads = ("name", blocks.PageColumn("what it is", wraps=True), "threshold")
    return decided(guard.decisions, "", (blocks.table(heads, rows, "Outputs that were added"),))


def _limit(threshold: tuple[float | None, ...]) -> str:
    if not threshold:
        return "-"
    if len(threshold) > 1:
        return "several"
    if threshold[0] is None:
        return "none"
    return f"{threshold[0]:.6g}"


def decided(decisions: Decisions, title: str = "", promises: tuple[blocks.Table, ...] = ()) -> SimpleNamespace:
    """Return what a section shows of the decisions of one file."""
    measured = [(name.rstrip(":,"), text) for name, text in decision_parts(decisions)]
    groups = []
    if decisions.by_confidence:
        rows = [
            (f"{part.low:.4f} to {part.high:.4f}", f"{part.n:,}", per_cent(part.coverage), f"{part.mean_set_size:.2f}")
            for part in decisions.by_confidence
        ]
        heads = ("confidence", "samples", "sets that hold the class", "classes in a set")
        groups.append(blocks.table(heads, rows, "By confidence"))
    classes = []
    if decisions.class_coverage and decisions.class_set_size:
        pairs = zip(decisions.class_coverage, decisions.class_set_size, strict=True)
        sets = [
            (str(k), per_cent(share), "-" if size is None else f"{size:.2f}") for k, (share, size) in enumerate(pairs)
        ]
        columns = ("class", "sets that hold it", "classes in a set")
        classes.append(blocks.table(columns, sets[:_MAX_CLASSES], "Coverage and size of sets by class"))
    if decisions.decision is not None:
        classes += _decided_classes(decisions.decision)
    return SimpleNamespace(
        title=title,
        data=f"{decisions.data}{FRESH[decisions.fresh]}.",
        promises=promises,
        figures=blocks.table(("", blocks.PageColumn("", wraps=True)), measured, "What the file decides"),
        groups=groups,
        classes=classes,
    )


def _decided_classes(scores: DecisionScores) -> list[blocks.Table]:
    """Return recall, precision and false positive rate by class, and the confusion matrix of a few."""
    rows = [
        (
            point.name,
            f"{point.samples:,}",
            f"{point.decided:,}",
            share_text(point.recall, point.recall_interval),
            share_text(point.precision, point.precision_interval),
            per_cent(point.false_positives),
        )
        for point in scores.classes[:_MAX_CLASSES]
    ]
    heads = ("decision", "samples", "decided so", "recall", "precision", "false positives")
    tables = [blocks.table(heads, rows, "Decisions by class")]
    if scores.confusion is not None and len(scores.classes) <= _MAX_CONFUSION:
        names = [point.name for point in scores.classes]
        cells = [(name, *map(str, row)) for name, row in zip(names, scores.confusion, strict=True)]
        tables.append(blocks.table(("true", *names, "none"), cells, "True class and decision"))
    return tables
