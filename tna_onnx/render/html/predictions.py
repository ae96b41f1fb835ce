"""Sections on predictions: reliability, classes, samples, confidence, the search over the angle, and decisions.

Reliability is drawn of the predicted class and of single classes, those with the largest gaps where there are many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tna_onnx.numerics.isotonic import Curve
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.numerics.reliability import Bins
from tna_onnx.render import charts
from tna_onnx.render.html import blocks
from tna_onnx.render.html.blocks import Figure, Panel, Table, capital
from tna_onnx.render.html.svg import DIAGRAM_HEIGHT, confidence_histogram, line_chart, reliability_diagram
from tna_onnx.render.wording import (
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

PLURALS = {"class": "classes", "label": "labels"}
"""What a sample may have, by `Report.kind`."""

# Longer tables are folded away until they are asked for.
_MAX_ROWS = 20


def classes_table(classes: Sequence[ClassBins], kind: str) -> Table:
    """Return a row for each class, or label; accuracy, precision and recall are those after recalibration."""
    total = sum(classes[0].before.count)
    # what keeps every prediction has one precision and one recall
    moved = any(c.result_before != c.result_after for c in classes)
    heads = [kind, "N", "accuracy, %", "precision, %", "recall, %"]
    if moved:
        heads += ["precision before, %", "recall before, %"]
    heads += ["probability before, %", "probability after, %", "gap before, %", "gap after, %"]
    rows = [_row(c, total, moved) for c in classes]
    caption = f"Each {kind}, {total:,} samples; click a column head to sort"
    folded = ""
    if len(rows) > _MAX_ROWS:
        folded = f"Numbers of all {len(rows):,} {PLURALS[kind]}"
    confused = blocks.PageColumn("most often taken for", wraps=True)
    return blocks.table((*heads, confused), rows, caption, "sortable numbers", folded=folded)


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


# Coverages in the table, per cent.
_COVERAGES = (10, 25, 50, 75, 90, 95, 100)
# A curve that begins below this coverage looks whole, and needs no explanation.
_MIN_TIED = 0.02


def confidence(report: Report, details: Details) -> Panel:
    """Return the histograms of the confidence."""
    words = charts.words_of(report.labels)
    sides = {"Before": details.before, "After": details.after}
    # one axis for both, so that their heights can be compared
    highest = 100 * max(max(bins.count) / sum(bins.count) for bins in sides.values())
    if report.is_copy:  # both sides are the same
        sides.pop("After")
    figures = [
        Figure(confidence_histogram(bins, f"Confidences {side.lower()}", highest, words), side)
        for side, bins in sides.items()
    ]
    keys = tuple(map(blocks.Key, ("accuracy", "over"), words.sides))
    return Panel(tuple(figures), keys)


def risk(report: Report, details: Details) -> Panel:
    """Return the errors among the most confident share of the samples."""
    chart = charts.risk_chart(details)
    if report.is_copy:
        chart = replace(chart, lines=chart.lines[:1])
    return Panel((Figure(line_chart(chart)),), tuple(map(blocks.key_of, chart.lines)))


def tied(report: Report, details: Details) -> list[str]:
    """Say where a curve of risk begins, if many samples share the highest confidence."""
    shares = {side: curve.coverage[0] for side, curve in _curves(report, details).items()}
    return [
        f"{side.capitalize()}, {100 * share:.0f} % of samples share the highest confidence: the curve begins there."
        for side, share in shares.items()
        if share > _MIN_TIED
    ]


def _curves(report: Report, details: Details) -> dict[str, RiskCoverage]:
    curves = {"before": details.risk_before, "after": details.risk_after}
    if report.is_copy:
        curves.pop("after")
    return curves


def risk_table(report: Report, details: Details) -> Table:
    """Return the errors at some coverages, and over all."""
    curves = _curves(report, details)
    rows = [(f"{q} %", *(_risk_at(curve, q / 100) for curve in curves.values())) for q in _COVERAGES]
    # the area under the curve is the mean error rate over all coverages
    rows.append(("mean over all", *(f"{100 * curve.area:.2f}" for curve in curves.values())))
    caption = f"Errors among the most confident of {report.comparison.before.n:,} samples, %"
    return blocks.table(("coverage", *curves), rows, caption)


def _risk_at(curve: RiskCoverage, coverage: float) -> str:
    """Write the risk at the first point that covers so much, in per cent; 1e-9 forgives rounding."""
    points = zip(curve.coverage, curve.risk, strict=True)
    risk = next((r for c, r in points if c >= coverage - 1e-9), curve.risk[-1])
    return f"{100 * risk:.2f}"


# Classes that have drawings; all are in the table.
_MAX_DRAWN = 10


def reliability(result: Report | Evaluation | ModelComparison) -> Reliability:
    """Return the diagrams of a result: before and after, of one model, or of several."""
    if isinstance(result, ModelComparison):
        first = result.models[0]
        words = charts.words_of(first.output_kind.startswith("label_"), first.metrics.positive)
        parts = {f"of {it.name}": Diagram.of(it.metrics, it.reliability, it.bin_free) for it in result.models}
        return Reliability(parts, words, result.data)
    if isinstance(result, Evaluation):
        words = charts.words_of(result.labels, result.metrics.positive)
        return Reliability({"": Diagram.of(result.metrics, result.reliability, result.bin_free)}, words, result.data)
    c = result.comparison
    # the ECE of the first table: cross-fitted, it is corrected, and is not what the bars add up to
    before = Diagram.of(c.before, result.reliability.before, result.bin_free_before)
    after = Diagram.of(c.after, result.reliability.after, result.bin_free_after)
    tested = {
        "before": bin_free_sentence(result.bin_free_before, cross_fitted=False),
        "after": bin_free_sentence(result.bin_free_after, cross_fitted=c.how == "cross-fitted"),
    }
    parts = {"before": before, "after": after}
    if result.is_copy:  # both sides are the same
        parts = {"": before}
        tested = {"": tested["before"]}
    return Reliability(parts, charts.words_of(result.labels, c.before.positive), f"{c.data}, {c.how}", tested)


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


@dataclass(frozen=True)
class Reliability:
    """Diagrams and their numbers, by what they are of: `before`, `after`, `of NAME`, or nothing."""

    parts: dict[str, Diagram]
    words: charts.DiagramWords
    data: str
    tested: dict[str, str] = field(default_factory=dict)  # sentences on a test without bins

    @property
    def fitted(self) -> bool:
        """Whether a fit without bins is drawn."""
        return any(diagram.curve for diagram in self.parts.values())

    @property
    def panel(self) -> Panel:
        """The diagrams."""
        figures = []
        for part, diagram in self.parts.items():
            # the name of a model is written as it is
            name = part.removeprefix("of ") if part.startswith("of ") else capital(part)
            drawing = reliability_diagram(diagram.bins, f"Reliability {part}".rstrip(), self.words, diagram.curve)
            caption = f"{name}: ECE {100 * diagram.ece:.2f} %".removeprefix(": ")
            figures.append(Figure(drawing, caption, DIAGRAM_HEIGHT))
        return Panel(tuple(figures), blocks.diagram_keys(self.words, fitted=self.fitted))

    @property
    def tables(self) -> list[Table]:
        """Calibration without bins, and the bins of each diagram."""
        heads = ("", *(part.removeprefix("of ") or "value" for part in self.parts))
        rows = bin_free_rows(*(diagram.bin_free for diagram in self.parts.values()))
        return [
            blocks.table(heads, rows, "Without bins"),
            *(blocks.bins_table(it.bins, f"Bins {part}".rstrip(), self.words) for part, it in self.parts.items()),
        ]

    @property
    def sentences(self) -> list[str]:
        """What the test says of each part."""
        return [capital(f"{part}: {text}".removeprefix(": ")) for part, text in self.tested.items()]


def drawn_classes(classes: Sequence[ClassBins], kind: str) -> tuple[str, list[Panel]]:
    """Return what diagrams are drawn, and those of each class; of many classes those with the largest gaps before."""
    summary = "Diagrams"
    if len(classes) > _MAX_DRAWN:
        # by the gap before: the same classes, whatever recalibration made of them
        classes = sorted(classes, key=lambda c: -c.before.ece)[:_MAX_DRAWN]
        summary = f"Diagrams of the {_MAX_DRAWN} {PLURALS[kind]} with the largest gap before"
    keys = blocks.diagram_keys(charts.OF_ONE_CLASS, fitted=False)
    return summary, [Panel(_pair(it, kind), keys) for it in classes]


def _pair(c: ClassBins, kind: str) -> tuple[Figure, ...]:
    return tuple(
        Figure(
            reliability_diagram(bins, f"{capital(kind)} {c.name}, {word}", charts.OF_ONE_CLASS),
            f"{capital(kind)} {c.name} {word}: gap {100 * bins.ece:.2f} %",
            DIAGRAM_HEIGHT,
        )
        for word, bins in (("before", c.before), ("after", c.after))
    )


def search(report: Report, details: Details) -> Panel:
    """Return objective and accuracy over the angle."""
    drawn = charts.search_charts(report, details)
    # lines that share a look share an entry
    keys = tuple(dict.fromkeys(map(blocks.key_of, drawn[0].lines)))
    return Panel(tuple(Figure(line_chart(chart), chart.title) for chart in drawn), keys)


def candidates_table(report: Report, details: Details) -> Table:
    """Return all candidates of the search."""
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
    folded = "Numbers of all candidates"
    return blocks.table(heads, rows, f"Objective: {report.objective.upper()}", stressed=details.chosen, folded=folded)


# Decisions

# Rows of a table of classes; models may have thousands.
_MAX_CLASSES = 1000
_MAX_CONFUSION = 20  # columns that a page has place for


def promises_table(guard: Guard) -> Table:
    """Return the outputs that were added."""
    rows = [(output.name, output.promise, _limit(output.threshold)) for output in guard.outputs]
    if guard.operating_point is not None:
        rows += [("cost", line, "-") for line in cost_lines(guard.operating_point)]
    heads = ("name", blocks.PageColumn("what it is", wraps=True), "threshold")
    return blocks.table(heads, rows, "Outputs that were added")


def _limit(threshold: tuple[float | None, ...]) -> str:
    if not threshold:
        return "-"
    if len(threshold) > 1:
        return "several"
    if threshold[0] is None:
        return "none"
    return f"{threshold[0]:.6g}"


def decision_tables(decisions: Decisions) -> list[Table]:
    """Return what a file decides on samples, by confidence and by class."""
    measured = [(name.rstrip(":,"), text) for name, text in decision_parts(decisions)]
    tables = [blocks.table(("", blocks.PageColumn("", wraps=True)), measured, "What the file decides")]
    if decisions.by_confidence:
        rows = [
            (f"{part.low:.4f} to {part.high:.4f}", f"{part.n:,}", per_cent(part.coverage), f"{part.mean_set_size:.2f}")
            for part in decisions.by_confidence
        ]
        heads = ("confidence", "samples", "sets that hold the class", "classes in a set")
        tables.append(blocks.table(heads, rows, "By confidence"))
    if decisions.class_coverage and decisions.class_set_size:
        pairs = zip(decisions.class_coverage, decisions.class_set_size, strict=True)
        sets = [
            (str(k), per_cent(share), "-" if size is None else f"{size:.2f}") for k, (share, size) in enumerate(pairs)
        ]
        columns = ("class", "sets that hold it", "classes in a set")
        caption = "Coverage and size of sets by class"
        tables.append(blocks.table(columns, sets[:_MAX_CLASSES], caption, folded=caption))
    if decisions.decision is not None:
        tables += _decided_classes(decisions.decision)
    return tables


def _decided_classes(scores: DecisionScores) -> list[Table]:
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
    tables = [blocks.table(heads, rows, "Decisions by class", folded="Decisions by class")]
    if scores.confusion is not None and len(scores.classes) <= _MAX_CONFUSION:
        names = [point.name for point in scores.classes]
        cells = [(name, *map(str, row)) for name, row in zip(names, scores.confusion, strict=True)]
        caption = "True class and decision"
        tables.append(blocks.table(("true", *names, "none"), cells, caption, folded=caption))
    return tables
