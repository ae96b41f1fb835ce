"""Sections on predictions: reliability diagrams, the table of classes, extreme samples, confidence and risk-coverage.

Reliability diagrams, before and after, are of the predicted class and of single classes: all of them, or those with the
largest gaps where there are many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tna_onnx.numerics.reliability import Bins
from tna_onnx.render.html.blocks import (
    CONSISTENT_KEY,
    Column,
    Figure,
    Key,
    Table,
    area_key,
    bins_table,
    diagram_keys,
    gap_keys,
    line_key,
    table,
)
from tna_onnx.render.html.diagrams import confidence_histogram, reliability_diagram
from tna_onnx.render.html.sections.result import data_text
from tna_onnx.render.html.svg import Series, line_chart
from tna_onnx.render.reliability import OF_CLASSES, OF_EACH, OF_LABELS, DiagramWords, words_of
from tna_onnx.render.text import bin_free_rows, bin_free_sentence
from tna_onnx.results.details import BinFree, ClassBins, ClassResult, Details, RiskCoverage, Sample
from tna_onnx.results.evaluation import Evaluation
from tna_onnx.results.report import Report

__all__ = [
    "Confidence",
    "Reliability",
    "Samples",
    "classes_table",
    "confidence",
    "measured_reliability",
    "reliability",
    "samples",
]


_HEADS = ("class", "N", "accuracy, %", "precision, %", "recall, %")
_BEFORE = ("precision before, %", "recall before, %")
_CALIBRATION = (
    "probability before, %",
    "probability after, %",
    "gap before, %",
    "gap after, %",
    Column("most often taken for", wraps=True),
)


def classes_table(classes: Sequence[ClassBins]) -> Table:
    """Return a row for each class; accuracy, precision and recall are those after recalibration."""
    total = sum(classes[0].before.count)
    # what keeps every prediction has one precision and one recall
    moved = any(c.result_before != c.result_after for c in classes)
    heads = (*_HEADS, *(_BEFORE if moved else ()), *_CALIBRATION)
    rows = [_row(c, total, moved) for c in classes]
    caption = f"Each class, {total:,} samples; click a column head to sort"
    return table(heads, rows, caption, "sortable numbers")


def _row(c: ClassBins, total: int, moved: bool) -> tuple[str, ...]:
    before: tuple[str, ...] = ()
    if moved:
        before = (_precision(c.result_before), _recall(c.result_before, c.samples))
    after = c.result_after
    # "this class or not": neither missed nor predicted in vain
    wrong = c.samples + after.predicted - 2 * after.right
    return (
        c.name,
        f"{c.samples:,}",
        _per_cent(total - wrong, total),
        _precision(after),
        _recall(after, c.samples),
        *before,
        _mean(c.before),
        _mean(c.after),
        f"{100 * c.before.ece:.2f}",
        f"{100 * c.after.ece:.2f}",
        ", ".join(f"{confusion.predicted} ({confusion.samples:,})" for confusion in after.confused),
    )


def _precision(result: ClassResult) -> str:
    return _per_cent(result.right, result.predicted)


def _recall(result: ClassResult, samples: int) -> str:
    return _per_cent(result.right, samples)


def _per_cent(part: int, total: int) -> str:
    """Write a share; a dash where there is nothing to take one of."""
    return f"{100 * part / total:.1f}" if total else "–"


def _mean(bins: Bins) -> str:
    """Mean probability in per cent."""
    total = sum(n * p for n, p in zip(bins.count, bins.confidence, strict=True))
    return f"{100 * total / max(1, sum(bins.count)):.2f}"


@dataclass(frozen=True)
class Card:
    """One sample; `truth` is empty where the prediction is right."""

    name: str
    predicted: str
    truth: str
    before: str
    after: str


@dataclass(frozen=True)
class Group:
    """Samples of one kind."""

    title: str
    text: str
    cards: tuple[Card, ...]


@dataclass(frozen=True)
class Samples:
    """What the section shows."""

    shown_data: str
    groups: tuple[Group, ...]


def samples(details: Details) -> Samples | None:
    """Return the values of the section; None if there are no such samples."""
    kinds = (
        (
            "Wrong, and confident",
            "Wrong predictions with the highest confidence after recalibration.",
            details.overconfident,
        ),
        (
            "Right, and unsure",
            "Right predictions with the lowest confidence after recalibration.",
            details.underconfident,
        ),
    )
    groups = tuple(Group(title, text, tuple(map(_card, worst))) for title, text, worst in kinds if worst)
    # a section without cards would be an empty heading
    if not groups:
        return None
    return Samples(data_text(details), groups)


def _card(sample: Sample) -> Card:
    name = f"row {sample.row}"
    if sample.file:
        name = f"{name}, {sample.file}"
    truth = ""
    if sample.label != sample.predicted:
        truth = sample.label
    before = f"{100 * sample.before:.1f}"
    after = f"{100 * sample.after:.1f}"
    return Card(name, sample.predicted, truth, before, after)


# Coverages in the table, per cent.
_COVERAGES = (10, 25, 50, 75, 90, 95, 100)
# A curve that begins below this coverage looks whole, and needs no explanation.
_MIN_TIED = 0.02


@dataclass(frozen=True)
class Confidence:
    """What the section shows. `tied` are sentences that say why a curve begins late."""

    several: bool
    keys: tuple[Key, ...]
    histograms: tuple[Figure, Figure]
    tied: tuple[str, ...]
    risk: Figure
    risks: Table


def confidence(report: Report, details: Details) -> Confidence:
    """Return the values of the section."""
    words = OF_CLASSES
    sides = ("right", "wrong")
    if report.labels:
        # a label that rightly does not hold is no error
        words = OF_LABELS
        sides = ("holds", "does not hold")
    # One axis for both, so that their heights can be compared.
    highest = 100 * max(max(bins.count) / sum(bins.count) for bins in (details.before, details.after))
    curves = {"before": details.risk_before, "after": details.risk_after}
    return Confidence(
        bool(report.labels),
        (
            area_key("accuracy", sides[0]),
            area_key("over", sides[1]),
            line_key("before", "before"),
            line_key("after", "after"),
        ),
        (
            Figure(confidence_histogram(details.before, "Confidences before", highest, words, sides), "Before"),
            Figure(confidence_histogram(details.after, "Confidences after", highest, words, sides), "After"),
        ),
        tuple(text for word, curve in curves.items() for text in _tied(word, curve)),
        _risk_chart(curves),
        _risk_table(curves),
    )


def _tied(word: str, curve: RiskCoverage) -> tuple[str, ...]:
    share = curve.coverage[0]
    if share <= _MIN_TIED:
        return ()
    return (
        f"{word.capitalize()}, {100 * share:.0f} % of samples share the highest confidence: the curve begins there.",
    )


def _risk_chart(curves: dict[str, RiskCoverage]) -> Figure:
    series = []
    for word, curve in curves.items():
        points = tuple((100 * c, 100 * r) for c, r in zip(curve.coverage, curve.risk, strict=True))
        series.append(Series(word, points, word))
    return Figure(
        line_chart(series, "Risk and coverage", "coverage, %", "errors among them, %", x_range=(0, 100)),
        "Risk and coverage",
    )


def _risk_table(curves: dict[str, RiskCoverage]) -> Table:
    rows = [(f"{q} %", *(_risk_at(curve, q / 100) for curve in curves.values())) for q in _COVERAGES]
    # the area under the curve is the mean error rate over all coverages
    rows.append(("mean over all", *(f"{100 * curve.area:.2f}" for curve in curves.values())))
    return table(("coverage", "before", "after"), rows, "Errors among the most confident, %")


def _risk_at(curve: RiskCoverage, coverage: float) -> str:
    """Write the risk at the first point that covers so much, in per cent; 1e-9 forgives rounding."""
    points = zip(curve.coverage, curve.risk, strict=True)
    risk = next((r for c, r in points if c >= coverage - 1e-9), curve.risk[-1])
    return f"{100 * risk:.2f}"


# Classes that have drawings; all are in the table.
_MAX_DRAWN = 10

# Longer tables are folded away until they are asked for.
_MAX_ROWS = 20

Pair = tuple[Figure, Figure]


@dataclass(frozen=True)
class Classes:
    """Diagrams of every class.

    Attributes:
        shown_data: the shown data, in a sentence.
        keys: legend of the diagrams.
        summary: heads the drawings.
        drawn: the drawings.
        numbers: a row for each class.
        folded: heads the table where it is long; empty for one that is shown at once.
    """

    shown_data: str
    keys: tuple[Key, ...]
    summary: str
    drawn: tuple[Pair, ...]
    numbers: Table
    folded: str


@dataclass(frozen=True)
class Reliability:
    """What the section shows: of one model, or of both before and after; `tested` and `classes` may be missing."""

    data: str
    how: str
    tested: tuple[str, ...]
    several: bool
    keys: tuple[Key, ...]
    figures: tuple[Figure, ...]
    numbers: tuple[Table, ...]
    bin_free: Table
    classes: Classes | None


def reliability(report: Report, details: Details | None) -> Reliability:
    """Return the values of the section; single classes are drawn from the details."""
    words = words_of(report.labels)
    cross_fitted = report.comparison.how == "cross-fitted"
    return Reliability(
        report.comparison.data,
        report.comparison.how,
        (
            bin_free_sentence(report.bin_free_before, cross_fitted=False),
            bin_free_sentence(report.bin_free_after, cross_fitted=cross_fitted),
        ),
        bool(report.labels),
        diagram_keys(words),
        (
            _top_label(
                report.reliability.before, report.bin_free_before, report.comparison.before.ece, "before", words
            ),
            _top_label(report.reliability.after, report.bin_free_after, report.comparison.after.ece, "after", words),
        ),
        (
            bins_table(report.reliability.before, "Bins before", words),
            bins_table(report.reliability.after, "Bins after", words),
        ),
        table(("", "before", "after"), bin_free_rows(report.bin_free_before, report.bin_free_after), "Without bins"),
        None if details is None else _classes(details),
    )


def measured_reliability(evaluation: Evaluation) -> Reliability:
    """Return the values of the section for one model."""
    words = words_of(bool(evaluation.labels))
    return Reliability(
        evaluation.data,
        "",
        (),
        bool(evaluation.labels),
        diagram_keys(words),
        (_top_label(evaluation.reliability, evaluation.bin_free, evaluation.metrics.ece, "", words),),
        (bins_table(evaluation.reliability, "Bins", words),),
        table(("", "value"), bin_free_rows(evaluation.bin_free), "Without bins"),
        None,
    )


def _top_label(bins: Bins, bin_free: BinFree, ece: float, word: str, words: DiagramWords) -> Figure:
    drawing = reliability_diagram(bins, f"Reliability {word}".rstrip(), words, curve=bin_free.corp.curve)
    # the ECE of the first table: cross-fitted, it is corrected, and is not what the bars add up to
    return Figure(drawing, f"{f'{word.capitalize()}: ' if word else ''}ECE {100 * ece:.2f} %")


def _classes(details: Details) -> Classes:
    """Draw every class, or those with the largest gaps before where there are many."""
    classes = details.classes
    drawn = classes
    summary = "Diagrams"
    if len(classes) > _MAX_DRAWN:
        # by the gap before: the same classes, whatever recalibration made of them
        drawn = tuple(sorted(classes, key=lambda c: -c.before.ece)[:_MAX_DRAWN])
        summary = f"Diagrams of the {_MAX_DRAWN} classes with the largest gap before"
    return Classes(
        data_text(details),
        (*gap_keys(OF_EACH), CONSISTENT_KEY),
        summary,
        tuple(map(_pair, drawn)),
        classes_table(classes),
        f"Numbers of all {len(classes):,} classes" if len(classes) > _MAX_ROWS else "",
    )


def _pair(c: ClassBins) -> Pair:
    return _class_figure(c.name, "before", c.before), _class_figure(c.name, "after", c.after)


def _class_figure(name: str, word: str, bins: Bins) -> Figure:
    drawing = reliability_diagram(bins, f"Class {name}, {word}", OF_EACH)
    return Figure(drawing, f"Class {name} {word}: gap {_gap(bins)} %")


def _gap(bins: Bins) -> str:
    """Mean gap in per cent."""
    return f"{100 * bins.ece:.2f}"
