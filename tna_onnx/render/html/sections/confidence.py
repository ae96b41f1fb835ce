"""Histograms of the confidence, and the risk-coverage curve."""

from __future__ import annotations

from dataclasses import dataclass

from tna_onnx.render.html.blocks import Figure, Key, Table, area_key, line_key, table
from tna_onnx.render.html.charts import Series, line_chart
from tna_onnx.render.html.diagrams import confidence_histogram
from tna_onnx.render.reliability import OF_CLASSES, OF_LABELS
from tna_onnx.results.details import Details
from tna_onnx.results.report import Report
from tna_onnx.results.risk_coverage import RiskCoverage

__all__ = ["Confidence", "confidence"]

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
