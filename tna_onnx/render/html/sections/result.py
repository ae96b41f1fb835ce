"""Verdict, or the refusal with its reasons; metrics before and after with their intervals; notes."""

from __future__ import annotations

from dataclasses import dataclass

from tna_onnx.numerics.metric import METRICS
from tna_onnx.render.html.blocks import Table, table
from tna_onnx.render.html.svg import IntervalBar
from tna_onnx.render.html.words import LOOKS, capital, interval_cell, metric_title, reach_of
from tna_onnx.render.labels import label_heads, label_rows
from tna_onnx.results.report import Comparison, Report

__all__ = ["Result", "result"]

_HOW = {
    "held-out": "held-out samples, which neither the search nor the fit has seen",
    "cross-fitted": "the calibration samples, cross-fitted: each is scored by a fit that has not seen it",
    "fitted": "the calibration samples, which were used for fitting",
    "unchanged": "the calibration samples; nothing was changed",
}


@dataclass(frozen=True)
class Result:
    """What the section shows.

    Attributes:
        missed: a line for each gate that was missed; no file was written then.
        dry_run: no file was written because none was asked for.
        summary: one sentence for readers who know no metric.
        verdict: one sentence with the numbers.
        look: `better`, `worse` or `open`.
        measured_on: the samples, in words.
        metrics: before, after and differences.
        labels: each label of samples with several; None for one class a sample.
        notes: what the user should know.
    """

    missed: tuple[str, ...]
    dry_run: bool
    summary: str
    verdict: str
    look: str
    measured_on: str
    metrics: Table
    labels: Table | None
    notes: tuple[str, ...]


def result(report: Report) -> Result:
    """Return the values of the section."""
    c = report.comparison
    look = LOOKS[report.standing.word]
    if report.missed:
        # red above green would contradict itself
        look = "open"
    return Result(
        tuple(map(capital, report.missed)),
        report.dry_run,
        report.summary,
        capital(report.verdict.replace(" -> ", " → ")),
        look,
        _HOW[c.how],
        _metrics(c),
        _labels(report),
        report.notes,
    )


def _metrics(c: Comparison) -> Table:
    level = next(iter(c.differences.values())).level
    heads = ("", "before", "after", f"difference ({100 * level:g}% interval)", "better | worse")
    caption = f"{c.data}: N = {c.before.n:,}, {c.before.bins} bins"
    return table(heads, [_row(c, name) for name in METRICS], caption, "metrics")


def _labels(report: Report) -> Table | None:
    labels = report.labels
    if not labels:
        return None
    caption = f"Each label: N = {report.comparison.before.n:,}, {report.comparison.before.bins} bins"
    return table(label_heads(labels), label_rows(labels), caption, "sortable numbers")


def _row(c: Comparison, name: str) -> tuple[str | IntervalBar, ...]:
    metric = METRICS[name]
    d = c.differences[name]
    return (
        metric_title(name),
        metric.number(getattr(c.before, name)),
        metric.number(getattr(c.after, name)),
        f"{metric.change(d.difference)} ({metric.change(d.low)} to {metric.change(d.high)})",
        # a scale of its own in each row: metrics have different units
        interval_cell(name, d, reach_of(d), "no significant change"),
    )
