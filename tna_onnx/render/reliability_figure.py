"""The reliability diagrams before and after as a figure of matplotlib; `figures` gives it its style and its file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tna_onnx.numerics.corp import BAND_LEVEL, Curve
from tna_onnx.render.reliability import Bar, bars
from tna_onnx.results.details import Details
from tna_onnx.results.report import Report

__all__ = ["BAR", "OVER", "draw_reliability"]

BAR = {"color": "#c8d4e6", "edgecolor": "#333333", "linewidth": 0.5}
OVER = {"facecolor": "#f6c6bd", "edgecolor": "#a02c1c", "hatch": "////", "linewidth": 0.5}
UNDER = {"facecolor": "#ffffff", "edgecolor": "#1d5c2f", "hatch": "....", "linewidth": 0.5}
# More bins are too narrow for their counts.
_MAX_COUNTED = 20


def draw_reliability(figure: Any, report: Report, details: Details) -> None:
    """Accuracy of each bin and its gap to the confidence, and the fit without bins; below, the samples of each bin."""
    diagrams, strips = figure.subplots(2, 2, sharex=True, sharey="row", height_ratios=[4, 1.2])
    # Room above the highest bar for its count.
    highest = 1.9 * max(*details.before.count, *details.after.count, 1)
    sides = (
        ("before", details.before, report.bin_free_before.corp.curve),
        ("after", details.after, report.bin_free_after.corp.curve),
    )
    for (word, bins, curve), diagram, strip in zip(sides, diagrams, strips, strict=True):
        drawn = bars(bins)
        _diagram(diagram, drawn)
        _without_bins(diagram, curve)
        diagram.set_title(f"{word}: ECE {100 * bins.ece:.2f} %")
        _counts(strip, drawn)
        strip.set(xlabel="confidence", ylim=(0, highest))
    diagrams[0].set_ylabel("accuracy")
    strips[0].set_ylabel("samples")
    figure.legend(*diagrams[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)


def _diagram(axes: Any, drawn: Sequence[Bar]) -> None:
    """Bars of the accuracy, and on them the gaps to the confidence."""
    width = drawn[0].width
    axes.bar([bar.middle for bar in drawn], [bar.height for bar in drawn], width, label="accuracy", **BAR)
    for label, look, sign in (("confidence too high", OVER, 1), ("too low", UNDER, -1)):
        gaps = [bar for bar in drawn if bar.count and bar.sign == sign]
        bottoms = [bar.height for bar in gaps]
        axes.bar([bar.middle for bar in gaps], [bar.gap for bar in gaps], width, bottoms, label=label, **look)
    axes.plot((0, 1), (0, 1), color="#333333", linestyle="--", linewidth=0.9, label="confidence = accuracy")
    axes.set(xlim=(0, 1), ylim=(0, 1))


def _without_bins(axes: Any, curve: Curve) -> None:
    """The isotonic fit, and behind the bars the band in which it lies for a calibrated model."""
    label = f"consistent with calibration ({100 * BAND_LEVEL:g} %)"
    axes.fill_between(curve.confidence, curve.low, curve.high, color="#d4d4d4", linewidth=0, zorder=0.9, label=label)
    for border in (curve.low, curve.high):
        axes.plot(curve.confidence, border, color="#555555", linewidth=0.5)
    axes.plot(curve.confidence, curve.accuracy, color="#111111", label="accuracy without bins")


def _counts(axes: Any, drawn: Sequence[Bar]) -> None:
    """Samples of each bin, written upwards where they have room."""
    axes.bar([bar.middle for bar in drawn], [bar.count for bar in drawn], drawn[0].width, **BAR)
    axes.grid(visible=False)
    if len(drawn) > _MAX_COUNTED:
        return
    for bar in drawn:
        if bar.count:
            axes.annotate(f"{bar.count}", (bar.middle, bar.count), (0, 1.5), textcoords="offset points", ha="center",
                          va="bottom", rotation=90, fontsize=5.5)  # fmt: skip
