"""Short pages: of an evaluation, and of a report without the details that the long page draws from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.reliability import Bins
from tna_onnx.render.html.blocks import (
    Figure,
    Key,
    Table,
    Term,
    bins_table,
    capital,
    diagram_keys,
    metric_title,
    recipe_text,
    table,
    versions_text,
)
from tna_onnx.render.html.diagrams import reliability_diagram
from tna_onnx.render.html.page import Section, render_page
from tna_onnx.render.html.sections.result import result
from tna_onnx.render.reliability import words_of
from tna_onnx.render.text import bin_free_rows
from tna_onnx.results.details import BinFree
from tna_onnx.results.evaluation import Evaluation
from tna_onnx.results.report import Report

__all__ = ["evaluation_page", "report_page"]


@dataclass(frozen=True)
class Measured:
    """Metrics of one model on some data; `missed` has a line for each gate that was missed."""

    missed: tuple[str, ...]
    data: str
    metrics: Table
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Reliability:
    """Diagrams with their numbers, and what there is without bins."""

    data: str
    several: bool
    keys: tuple[Key, ...]
    figures: tuple[Figure, ...]
    numbers: tuple[Table, ...]
    bin_free: Table


def evaluation_page(evaluation: Evaluation) -> str:
    """Write an evaluation as a page."""
    metrics = evaluation.metrics
    rows = [(metric_title(name), METRICS[name].number(getattr(metrics, name))) for name in METRICS]
    data = f"{evaluation.data}: N = {metrics.n:,}, {metrics.bins} bins"
    numbers = table(("", "value"), rows, "Metrics", "metrics")
    measured = Measured(tuple(map(capital, evaluation.missed)), data, numbers, evaluation.notes)
    terms = (
        Term("Model", evaluation.model),
        Term("SHA-256", evaluation.model_sha256, code=True),
        Term("Output", f"{evaluation.output} ({evaluation.output_kind.replace('_', ' ')})"),
        Term("Data", evaluation.data),
        Term("Preprocessing", recipe_text(evaluation.preprocessing)),
        Term("Provider obtained", evaluation.provider),
    )
    sides = [("Reliability", evaluation.reliability, metrics.ece, evaluation.bin_free)]
    sections = [
        Section("result", "Result", "short/result.html", measured),
        Section(
            "reliability",
            "Reliability",
            "short/reliability.html",
            _reliability(evaluation.data, sides, multi_label=bool(evaluation.labels)),
        ),
        Section("run", "How it was made", "short/run.html", terms),
    ]
    return render_page(f"Evaluation of {PurePath(evaluation.model).name}", sections, "")


def report_page(report: Report) -> str:
    """Write a report without details as a page."""
    sides = [
        ("Before", report.reliability.before, report.comparison.before.ece, report.bin_free_before),
        ("After", report.reliability.after, report.comparison.after.ece, report.bin_free_after),
    ]
    data = f"{report.comparison.data}, {report.comparison.how}"
    terms = (
        Term("Model", report.model),
        Term("SHA-256", report.model_sha256, code=True),
        Term("Method", report.method),
        Term("Calibration data", f"{report.calibration.data} (N = {report.calibration.before.n:,})"),
        Term("Preprocessing", recipe_text(report.preprocessing)),
        Term("Seed", str(report.settings["seed"])),
        Term("Provider obtained", report.provider),
        Term("Versions", versions_text(report.versions)),
    )
    sections = [
        Section("result", "Result", "calibration/result.html", result(report)),
        Section(
            "reliability",
            "Reliability",
            "short/reliability.html",
            _reliability(data, sides, multi_label=bool(report.labels)),
        ),
        Section("run", "How it was made", "short/run.html", terms),
    ]
    return render_page(f"Calibration of {PurePath(report.model).name}", sections, report.versions.get("tna-onnx", ""))


def _reliability(data: str, sides: list[tuple[str, Bins, float, BinFree]], *, multi_label: bool) -> Reliability:
    words = words_of(multi_label)
    heads = ("", *(word.lower() for word, _, _, _ in sides)) if len(sides) > 1 else ("", "value")
    figures = []
    for word, bins, ece, bin_free in sides:
        drawing = reliability_diagram(bins, f"Reliability {word.lower()}", words, curve=bin_free.corp.curve)
        figures.append(Figure(drawing, f"{word}: ECE {100 * ece:.2f} %"))
    return Reliability(
        data,
        multi_label,
        diagram_keys(words),
        tuple(figures),
        tuple(bins_table(bins, f"Bins {word.lower()}", words) for word, bins, _, _ in sides),
        table(heads, bin_free_rows(*(bin_free for _, _, _, bin_free in sides)), "Without bins"),
    )
