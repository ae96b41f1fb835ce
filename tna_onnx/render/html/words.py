"""Words, tables and figures that both pages have."""

from __future__ import annotations

from collections.abc import Mapping

from tna_onnx.numerics.corp import BAND_LEVEL
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Interval
from tna_onnx.numerics.reliability import Bins
from tna_onnx.render.html.blocks import Key, Table, area_key, interval_key, line_key, table
from tna_onnx.render.html.svg import IntervalBar, interval_bar
from tna_onnx.render.reliability import FEW, OF_CLASSES, DiagramWords, bars
from tna_onnx.results.standing import Word, changed

__all__ = [
    "CONSISTENT_KEY",
    "LOOKS",
    "bins_table",
    "capital",
    "diagram_keys",
    "gap_keys",
    "interval_cell",
    "metric_title",
    "plain",
    "reach_of",
    "recipe_text",
    "versions_text",
]

CONSISTENT_KEY = area_key("consistent", "consistent with calibration (95 %)")
"""Further entry for diagrams whose bars show where calibrated ones would end."""

LOOKS: dict[Word, str] = {"improved": "better", "no significant change": "open", "worse": "worse"}
"""Class of the style sheet for a verdict, by what a result comes to."""


def capital(text: str) -> str:
    """Begin a text with a capital, and leave the rest as it is.

    >>> capital("accuracy, %")
    'Accuracy, %'
    """
    return text[:1].upper() + text[1:]


def metric_title(name: str) -> str:
    """Label and unit of a metric as the head of a row or column."""
    return capital(METRICS[name].title)


def gap_keys(words: DiagramWords) -> tuple[Key, ...]:
    """Return the legend of a reliability diagram."""
    return (
        area_key("accuracy", words.what),
        area_key("over", f"{words.against} too high"),
        area_key("under", "too low"),
        interval_key("whisker", "95 % interval"),
        area_key("accuracy weak", f"fewer than {FEW} {words.counted}"),
    )


def diagram_keys(words: DiagramWords) -> tuple[Key, ...]:
    """Return the legend where there is a fit without bins too, and where it lies if the model is calibrated."""
    return (
        *gap_keys(words),
        line_key("fit", f"{words.what} without bins"),
        area_key("band", f"consistent with calibration ({100 * BAND_LEVEL:g} %)"),
    )


def bins_table(bins: Bins, caption: str, words: DiagramWords = OF_CLASSES) -> Table:
    """Return the numbers of a reliability diagram."""
    rows = []
    for bar in bars(bins):
        means = ("", "", "")
        if bar.count:
            low, high = bar.interval
            means = (f"{bar.confidence:.4f}", f"{bar.height:.4f}", f"{low:.4f} to {high:.4f}")
        rows.append((f"{bar.left:.3f} to {bar.right:.3f}", f"{bar.count:,}", *means))
    return table(("bin", words.counted, f"mean {words.against}", words.what, "95 % interval"), rows, caption)


def interval_cell(name: str, d: Interval, reach: float, open_word: str) -> IntervalBar:
    """Draw the interval of a metric's difference so that left and green are better, whatever the metric.

    Args:
        name: of the metric.
        d: its difference.
        reach: of the axis; see `reach_of`.
        open_word: what to say of an interval that holds zero.
    """
    metric = METRICS[name]
    # Errors fall to the left, so a metric that is better when larger is mirrored.
    sign = -metric.better
    # mirroring swaps the ends
    low, high = sorted((sign * d.low, sign * d.high))
    looks = {1: "better", 0: "open", -1: "worse"}
    words = {1: "better", 0: open_word, -1: "worse"}
    # by the rule of the verdict, so that both have one colour
    standing = changed(name, d)
    return interval_bar(sign * d.difference, low, high, reach, looks[standing], words[standing])


def reach_of(*differences: Interval) -> float:
    """Return the ends of an axis around zero that holds all of these; 1e-12 where they are all zero."""
    ends = (abs(value) for d in differences for value in (d.low, d.high, d.difference))
    # 5 % of paper at both ends, so that the outermost point is whole
    return 1.05 * max(1e-12, *ends)


def plain(value: object) -> str:
    """Write a setting.

    >>> plain(0.485), plain([224, 224])
    ('0.485', '(224, 224)')
    """
    if isinstance(value, (list, tuple)):
        return "(" + ", ".join(map(plain, value)) + ")"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def recipe_text(recipe: Mapping[str, object] | None) -> str:
    """Write the preprocessing of images; there is none for arrays."""
    if recipe is None:
        return "none, used as stored"
    return ", ".join(f"{name} {plain(value)}" for name, value in recipe.items() if value is not None)


def versions_text(versions: Mapping[str, str]) -> str:
    """Write the versions of what took part."""
    return ", ".join(f"{name} {version}" for name, version in versions.items())
