"""Reliability diagrams before and after: of the predicted class, and of every class.

The page holds the diagrams of a few classes as drawings; with its script, any class can be chosen and is drawn from
the numbers of its bins.
"""

from __future__ import annotations

from dataclasses import dataclass

from tna_onnx.numerics.proportions import Z
from tna_onnx.numerics.reliability import Bins
from tna_onnx.render.bin_free import bin_free_rows, bin_free_sentence
from tna_onnx.render.html.blocks import Figure, Key, Table, table
from tna_onnx.render.html.diagrams import reliability_diagram
from tna_onnx.render.html.sections.classes import classes_table
from tna_onnx.render.html.sections.phrases import data_text
from tna_onnx.render.html.words import CONSISTENT_KEY, bins_table, diagram_keys, gap_keys
from tna_onnx.render.reliability import FEW, OF_EACH, DiagramWords, words_of
from tna_onnx.results.bin_free import BinFree
from tna_onnx.results.details import ClassBins, Details
from tna_onnx.results.report import Report

__all__ = ["Reliability", "reliability"]

# Classes that have drawings without a script; all are in the table.
_MAX_DRAWN = 10

# Longer tables are folded away until they are asked for.
_MAX_ROWS = 20

Pair = tuple[Figure, Figure]


@dataclass(frozen=True)
class Choice:
    """A class that a reader can choose: its name, and its mean gaps in per cent."""

    name: str
    before: str
    after: str


@dataclass(frozen=True)
class Classes:
    """Diagrams of every class.

    Attributes:
        shown_data: the shown data, in a sentence.
        choices: every class.
        start: index of the class that is chosen first.
        first: its diagrams.
        packed: bins of every class before and after, for the script.
        bins: number of bins.
        z: quantile of the normal distribution behind every interval, for the script.
        few: samples below which a bin is pale, for the script.
        keys: legend of the diagrams.
        summary: heads the drawings that need no script.
        drawn: these drawings.
        numbers: a row for each class.
        folded: heads the table where it is long; empty for one that is shown at once.
    """

    shown_data: str
    choices: tuple[Choice, ...]
    start: int
    first: Pair
    packed: list[list[list[int]]]
    bins: int
    z: float
    few: int
    keys: tuple[Key, ...]
    summary: str
    drawn: tuple[Pair, ...]
    numbers: Table
    folded: str


@dataclass(frozen=True)
class Reliability:
    """What the section shows."""

    data: str
    how: str
    tested: tuple[str, str]
    several: bool
    keys: tuple[Key, ...]
    figures: Pair
    numbers: tuple[Table, Table]
    bin_free: Table
    classes: Classes


def reliability(report: Report, details: Details) -> Reliability:
    """Return the values of the section."""
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
            _top_label(details.before, report.bin_free_before, report.comparison.before.ece, "before", words),
            _top_label(details.after, report.bin_free_after, report.comparison.after.ece, "after", words),
        ),
        (bins_table(details.before, "Bins before", words), bins_table(details.after, "Bins after", words)),
        table(("", "before", "after"), bin_free_rows(report.bin_free_before, report.bin_free_after), "Without bins"),
        _classes(details),
    )


def _top_label(bins: Bins, bin_free: BinFree, ece: float, word: str, words: DiagramWords) -> Figure:
    drawing = reliability_diagram(bins, f"Reliability {word}", words, curve=bin_free.corp.curve)
    # the ECE of the first table: cross-fitted, it is corrected, and is not what the bars add up to
    return Figure(drawing, f"{word.capitalize()}: ECE {100 * ece:.2f} %")


def _classes(details: Details) -> Classes:
    """Draw every class, or those with the largest gaps before where there are many."""
    classes = details.classes
    # by the gap before: the same classes, whatever recalibration made of them
    worst = sorted(range(len(classes)), key=lambda k: -classes[k].before.ece)
    drawn = classes
    summary = "Diagrams"
    if len(classes) > _MAX_DRAWN:
        drawn = tuple(classes[k] for k in worst[:_MAX_DRAWN])
        summary = f"Diagrams of the {_MAX_DRAWN} classes with the largest gap before"
    return Classes(
        data_text(details),
        tuple(Choice(c.name, _gap(c.before), _gap(c.after)) for c in classes),
        worst[0],
        _pair(classes[worst[0]]),
        [[_packed(c.before), _packed(c.after)] for c in classes],
        len(classes[0].before.count),
        Z,
        FEW,
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


def _packed(bins: Bins) -> list[int]:
    """Bins that hold samples, one after the other: index, samples, probability and frequency in ten-thousandths."""
    rows = zip(bins.count, bins.confidence, bins.accuracy, strict=True)
    # A ten-thousandth is less than a twentieth of a pixel, and has a quarter of a float's characters.
    return [v for j, (n, p, f) in enumerate(rows) if n for v in (j, n, round(1e4 * p), round(1e4 * f))]


def _gap(bins: Bins) -> str:
    """Mean gap in per cent."""
    return f"{100 * bins.ece:.2f}"
