"""Verdict, or the refusal with its reasons; metrics before and after with their intervals; notes."""

from __future__ import annotations

from html import escape

from tna_onnx.numerics.metric import METRICS
from tna_onnx.render.html.blocks import Raw, bullets, table
from tna_onnx.render.html.sections.words import LABELS, PERCENT
from tna_onnx.render.html.svg import interval_bar
from tna_onnx.results.report import Report

__all__ = ["result"]

_HOW = {
    "held-out": "held-out samples, which neither the search nor the fit has seen",
    "cross-fitted": "the calibration samples, cross-fitted: each is scored with what was fitted without it",
    "fitted": "the calibration samples, which were fitted",
    "unchanged": "the calibration samples; nothing was changed",
}


def result(report: Report) -> str:
    """Write the section."""
    c = report.comparison
    level = next(iter(c.differences.values())).level
    heads = ["", "before", "after", f"difference ({100 * level:g}% interval)", "better | worse"]
    caption = f"{c.data}: N = {c.before.n:,}, {c.before.bins} bins"
    notes = bullets(report.notes)
    return (
        f"{_refusal(report)}{_verdict(report)}"
        f"<p>Measured on {escape(_HOW[c.how])}. Differences are paired; an interval on one side of zero is a "
        "significant change. ECE and AdaECE are the mean gap between confidence and accuracy, over bins of equal width "
        "and of equal mass; even a perfectly calibrated model shows some on finite data.</p>"
        f"{table(heads, [_row(report, name) for name in METRICS], caption, 'metrics')}"
        f"{f'<h3>Notes</h3>{notes}' if notes else ''}"
    )


def _refusal(report: Report) -> str:
    """Say that no file was written, and why; nothing if one was."""
    if report.missed:
        why = "a gate was" if len(report.missed) == 1 else f"{len(report.missed)} gates were"
        return (
            f'<div class="verdict worse"><p>Refused: no file was written, {why} missed.</p>'
            f"{bullets(line[:1].upper() + line[1:] for line in report.missed)}</div>"
        )
    return '<p class="verdict">Dry run: no file was written.</p>' if report.dry_run else ""


def _verdict(report: Report) -> str:
    look = {-1: "better", 0: "open", 1: "worse"}[report.comparison.changed(report.objective)]
    verdict = report.verdict.replace(" -> ", " → ")
    return f'<p class="verdict {look}">{escape(verdict[:1].upper() + verdict[1:])}</p>'


def _word(low: float, high: float) -> str:
    """Say what the bar shows, of a difference whose better side is below zero."""
    return "better" if high < 0 else "worse" if low > 0 else "no significant change"


def _row(report: Report, name: str) -> list[str]:
    scale, digits = (100, 2) if name in PERCENT else (1, 4)
    c, d = report.comparison, report.comparison.differences[name]
    sign = -1 if name == "accuracy" else 1  # so that left and green are better in every row
    low, high = sorted((sign * d.low, sign * d.high))
    reach = max(abs(d.low), abs(d.high), abs(d.difference), 1e-12) * 1.05
    return [
        LABELS[name],
        f"{scale * getattr(c.before, name):.{digits}f}",
        f"{scale * getattr(c.after, name):.{digits}f}",
        f"{scale * d.difference:+.{digits}f} ({scale * d.low:+.{digits}f} to {scale * d.high:+.{digits}f})",
        Raw(f'{interval_bar(sign * d.difference, low, high, reach)}<span class="unseen">{_word(low, high)}</span>'),
    ]
