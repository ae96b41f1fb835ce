"""Reliability diagrams before and after: of the predicted class, and of every class.

The page holds the diagrams of a few classes as drawings; with its script, any class can be chosen and is drawn from
the numbers of its bins.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from tna_onnx.render.html.blocks import figure, key, legend, more, table
from tna_onnx.render.html.sections.words import data_of
from tna_onnx.render.html.svg import reliability_diagram
from tna_onnx.results.details import Bins, ClassBins, Details
from tna_onnx.results.report import Report

__all__ = ["reliability"]

# Classes that have drawings without a script; all are in the table.
_DRAWN = 10


def reliability(report: Report, details: Details) -> str:
    """Write the section."""
    figures = "".join(
        figure(reliability_diagram(bins, f"Reliability {word}"), f"{word.capitalize()}: ECE {100 * bins.ece:.2f} %")
        for word, bins in (("before", details.before), ("after", details.after))
    )
    numbers = _bins_table(details.before, "before") + _bins_table(details.after, "after")
    return (
        "<p>Each bar is the accuracy of the predictions whose confidence falls into the bin. On the dashed line, "
        "confidence is accuracy. The strip below counts the samples of each bin. "
        f"Data: {escape(report.comparison.data)}, {escape(report.comparison.how)}.</p>"
        f"{legend(key('accuracy', 'accuracy'), key('over', 'confidence too high'), key('under', 'too low'))}"
        f'<div class="pair">{figures}</div>'
        f"{more('Numbers of both diagrams', numbers)}"
        f"<h3>Class by class</h3>{_classes(details)}"
    )


def _bins_table(bins: Bins, word: str) -> str:
    width = 1 / len(bins.count)
    rows = [
        [f"{j * width:.3f} to {(j + 1) * width:.3f}", f"{n:,}", *((f"{c:.4f}", f"{a:.4f}") if n else ("", ""))]
        for j, (n, c, a) in enumerate(zip(bins.count, bins.confidence, bins.accuracy, strict=True))
    ]
    return table(["bin", "samples", "mean confidence", "accuracy"], rows, f"Bins {word}")


def _classes(details: Details) -> str:
    classes = details.classes
    worst = sorted(range(len(classes)), key=lambda k: -classes[k].before.ece)
    drawn = [classes[k] for k in (range(len(classes)) if len(classes) <= _DRAWN else worst[:_DRAWN])]
    which = "" if len(drawn) == len(classes) else f" of the {len(drawn)} classes with the largest gap before"
    drawings = "".join(map(_pair, drawn))
    return (
        "<p>The probability of one class over all samples, against how often it is the label. The gap is the mean "
        f"distance of the two, over bins. {data_of(details)}</p>"
        f"{_picker(classes, worst[0])}"
        f'<div class="plain">{more(f"Diagrams{which}", drawings)}</div>'
        + more(f"Numbers of all {len(classes):,} classes", _classes_table(classes))
    )


def _pair(c: ClassBins) -> str:
    figures = (
        figure(
            reliability_diagram(bins, f"Class {c.name}, {word}", "frequency", "probability"),
            f"Class {c.name} {word}: gap {_gap(bins)} %",
        )
        for word, bins in (("before", c.before), ("after", c.after))
    )
    return f'<div class="pair">{"".join(figures)}</div>'


def _picker(classes: Sequence[ClassBins], start: int) -> str:
    """Let a reader choose a class, where scripts run; the bins of all of them as JSON."""
    options = "".join(
        f'<option value="{k}"{" selected" if k == start else ""} data-name="{escape(c.name)}">'
        f"{escape(c.name)}: gap {_gap(c.before)} % &rarr; {_gap(c.after)} %</option>"
        for k, c in enumerate(classes)
    )
    data = [[_packed(c.before), _packed(c.after)] for c in classes]
    numbers = json.dumps({"bins": len(classes[0].before.count), "classes": data}, separators=(",", ":"))
    return (
        '<div class="picker"><label for="class">Class</label> '
        f'<select id="class">{options}</select>{_pair(classes[start])}'
        f'<script type="application/json">{numbers}</script></div>'
    )


def _packed(bins: Bins) -> list[int]:
    """Bins that hold samples, one after the other: index, samples, probability and frequency in ten-thousandths."""
    rows = zip(bins.count, bins.confidence, bins.accuracy, strict=True)
    return [v for j, (n, p, f) in enumerate(rows) if n for v in (j, n, round(1e4 * p), round(1e4 * f))]


def _classes_table(classes: Sequence[ClassBins]) -> str:
    rows = [[c.name, f"{c.samples:,}", _mean(c.before), _mean(c.after), _gap(c.before), _gap(c.after)] for c in classes]
    heads = ["class", "samples", "probability before, %", "after, %", "gap before, %", "gap after, %"]
    total = sum(classes[0].before.count)
    return table(heads, rows, f"Mean probability and mean gap of each class, {total:,} samples")


def _gap(bins: Bins) -> str:
    """Mean gap in per cent."""
    return f"{100 * bins.ece:.2f}"


def _mean(bins: Bins) -> str:
    """Mean probability in per cent."""
    total = sum(n * p for n, p in zip(bins.count, bins.confidence, strict=True))
    return f"{100 * total / max(1, sum(bins.count)):.2f}"
