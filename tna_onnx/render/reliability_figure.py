"""Reliability diagrams as a figure of matplotlib; who asks for it gives it its style and its file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tna_onnx.numerics.corp import BAND_LEVEL, Curve
from tna_onnx.numerics.reliability import Bins
from tna_onnx.render.reliability import OF_CLASSES, Bar, DiagramWords, bars

__all__ = ["BAR", "MOST_ABREAST", "OVER", "Panel", "draw_reliability"]

BAR = {"color": "#c8d4e6", "edgecolor": "#333333", "linewidth": 0.5}
OVER = {"facecolor": "#f6c6bd", "edgecolor": "#a02c1c", "hatch": "////", "linewidth": 0.5}
UNDER = {"facecolor": "#ffffff", "edgecolor": "#1d5c2f", "hatch": "....", "linewidth": 0.5}
_WHISKER = {"fmt": "none", "ecolor": "#111111", "elinewidth": 0.8, "capsize": 1.5, "capthick": 0.8, "zorder": 3}
_CONSISTENT = {"facecolor": "#d4d4d4", "edgecolor": "#555555", "linewidth": 0.5, "zorder": 0.9}
_PALE = 0.35
# More bins are too narrow for their counts.
_MAX_COUNTED = 20

MOST_ABREAST = 3
"""Diagrams beside each other."""


@dataclass(frozen=True)
class Panel:
    """A diagram: its title, its bins, the ECE of the metrics, and the fit without bins where there is one."""

    title: str
    bins: Bins
    ece: float
    curve: Curve | None = None


def draw_reliability(figure: Any, panels: Sequence[Panel], words: DiagramWords = OF_CLASSES) -> None:
    """Accuracy of each bin and its gap to the confidence, and the fit without bins; below, the samples of each bin."""
    abreast = min(MOST_ABREAST, len(panels))
    rows = -(-len(panels) // abreast)
    ratios = [4, 1.2] * rows
    grid = figure.subplots(2 * rows, abreast, sharex=True, sharey="row", height_ratios=ratios, squeeze=False)
    # Room above the highest bar for its count.
    highest = 1.9 * max(1, *(max(panel.bins.count) for panel in panels))
    for k in range(rows * abreast):
        diagram = grid[2 * (k // abreast), k % abreast]
        strip = grid[2 * (k // abreast) + 1, k % abreast]
        if k >= len(panels):
            diagram.set_visible(False)
            strip.set_visible(False)
            continue
        _panel(diagram, strip, panels[k], words)
        strip.set(ylim=(0, highest))
        if k % abreast == 0:
            diagram.set_ylabel(words.what)
            strip.set_ylabel(words.counted)
    # three columns are as wide as two diagrams
    columns = 3 if abreast > 1 else 2
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=columns)


def _panel(diagram: Any, strip: Any, panel: Panel, words: DiagramWords) -> None:
    drawn = bars(panel.bins)
    _diagram(diagram, drawn, words)
    if panel.curve is not None:
        _without_bins(diagram, panel.curve, words)
    else:
        _consistent(diagram, drawn)
    _intervals(diagram, drawn)
    diagram.set_title(f"{panel.title}: ECE {100 * panel.ece:.2f} %")
    _counts(strip, drawn)
    strip.set(xlabel=words.against)


def _diagram(axes: Any, drawn: Sequence[Bar], words: DiagramWords) -> None:
    """Bars of the accuracy, and on them the gaps to the confidence."""
    width = drawn[0].width
    patches = axes.bar([bar.middle for bar in drawn], [bar.height for bar in drawn], width, label=words.what, **BAR)
    _fade(patches, drawn)
    for label, look, sign in ((f"{words.against} too high", OVER, 1), ("too low", UNDER, -1)):
        gaps = [bar for bar in drawn if bar.count and bar.sign == sign]
        bottoms = [bar.height for bar in gaps]
        patches = axes.bar([bar.middle for bar in gaps], [bar.gap for bar in gaps], width, bottoms, label=label, **look)
        _fade(patches, gaps)
    axes.plot((0, 1), (0, 1), color="#333333", linestyle="--", linewidth=0.9, label=f"{words.against} = {words.what}")
    axes.set(xlim=(0, 1), ylim=(0, 1))


def _fade(patches: Sequence[Any], drawn: Sequence[Bar]) -> None:
    """Draw bars of few samples pale."""
    for patch, bar in zip(patches, drawn, strict=True):
        if bar.weak:
            patch.set_alpha(_PALE)


def _intervals(axes: Any, drawn: Sequence[Bar]) -> None:
    """The 95 % interval of each bar's accuracy, as on the page."""
    filled = [bar for bar in drawn if bar.count]
    heights = [bar.height for bar in filled]
    below = [bar.height - bar.interval[0] for bar in filled]
    above = [bar.interval[1] - bar.height for bar in filled]
    axes.errorbar([bar.middle for bar in filled], heights, (below, above), label="95 % interval", **_WHISKER)


def _consistent(axes: Any, drawn: Sequence[Bar]) -> None:
    """Where each bar would end if confidences were right; the fit without bins has a band for that."""
    filled = [bar for bar in drawn if bar.count]
    lows = [bar.consistent[0] for bar in filled]
    heights = [bar.consistent[1] - bar.consistent[0] for bar in filled]
    label = "consistent with calibration (95 %)"
    axes.bar([bar.middle for bar in filled], heights, drawn[0].width, lows, label=label, **_CONSISTENT)


def _without_bins(axes: Any, curve: Curve, words: DiagramWords) -> None:
    """The isotonic fit, and behind the bars the band in which it lies for a calibrated model."""
    label = f"consistent with calibration ({100 * BAND_LEVEL:g} %)"
    axes.fill_between(curve.confidence, curve.low, curve.high, color="#d4d4d4", linewidth=0, zorder=0.9, label=label)
    for border in (curve.low, curve.high):
        axes.plot(curve.confidence, border, color="#555555", linewidth=0.5)
    axes.plot(curve.confidence, curve.accuracy, color="#111111", label=f"{words.what} without bins")


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
