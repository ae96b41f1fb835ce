"""Histograms of the confidence, and the risk-coverage curve."""

from __future__ import annotations

from tna_onnx.render.html.blocks import dash, figure, key, legend, table
from tna_onnx.render.html.svg import Series, confidence_histogram, line_chart
from tna_onnx.results.details import Details, RiskCoverage

__all__ = ["confidence"]

# Coverages in the table, per cent.
_COVERAGES = (10, 25, 50, 75, 90, 95, 100)


def confidence(details: Details) -> str:
    """Write the section."""
    highest = 100 * max(max(b.count) / sum(b.count) for b in (details.before, details.after))
    histograms = "".join(
        figure(confidence_histogram(bins, f"Confidences {word}", highest), word.capitalize())
        for word, bins in (("before", details.before), ("after", details.after))
    )
    return (
        "<p>How many predictions are made with which confidence.</p>"
        f'{legend(key("accuracy", "right"), key("over", "wrong"))}<div class="pair">{histograms}</div>'
        f"<h3>Risk and coverage</h3>{_ranking(details)}"
    )


def _ranking(details: Details) -> str:
    risks = (("before", details.risk_before), ("after", details.risk_after))
    chart = line_chart(
        [
            Series(name, tuple((100 * c, 100 * r) for c, r in zip(curve.coverage, curve.risk, strict=True)), name)
            for name, curve in risks
        ],
        "Risk and coverage",
        "coverage, %",
        "errors among them, %",
        x_range=(0, 100),
    )
    rows = [[f"{q} %", *(_risk_at(curve, q / 100) for _, curve in risks)] for q in _COVERAGES]
    rows.append(["mean over all", *(f"{100 * curve.area:.2f}" for _, curve in risks)])
    return (
        "<p>Answer only the most confident share of the samples: how many of these answers are wrong? It tells how "
        f"well confidence ranks the samples; lower is better.{_tied(details)}</p>"
        f'{legend(dash("before", "before"), dash("after", "after"))}<div class="pair">{figure(chart)}'
        f"<div>{table(['coverage', 'before', 'after'], rows, 'Errors among the most confident, %')}</div></div>"
    )


def _tied(details: Details) -> str:
    """Say why a curve begins late."""
    first = {"before": details.risk_before.coverage[0], "after": details.risk_after.coverage[0]}
    return "".join(
        f" {word.capitalize()}, {100 * share:.0f} % of samples share the highest confidence: the curve begins there."
        for word, share in first.items()
        if share > 0.02
    )


def _risk_at(curve: RiskCoverage, coverage: float) -> str:
    found = next((r for c, r in zip(curve.coverage, curve.risk, strict=True) if c >= coverage - 1e-9), curve.risk[-1])
    return f"{100 * found:.2f}"
