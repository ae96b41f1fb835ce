"""The charts of studies as files, drawn by matplotlib: one figure a study, `NAME.svg` and so on."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tna_onnx.data.files import optional
from tna_onnx.render.figures import STYLE, require_matplotlib, save_figure
from tna_onnx.results.study import Chart, Studies, Study

__all__ = ["COLORS", "MARKERS", "figure_of", "figure_step", "require_formats"]

# Inches of one panel, and of a line of its legend.
_WIDTH = 3.4
_HEIGHT = 2.9
_LEGEND_LINE = 0.14
# Characters of a label of which two do not fit beside each other.
_LONG_LABEL = 22

MARKERS = ("o", "s", "^", "D", "v", "")
COLORS = ("#1f4e9c", "#a02c1c", "#1d5c2f", "#7a4b9a", "#8a6d00", "#333333")


def require_formats(formats: Sequence[str]) -> tuple[str, ...]:
    """Return the formats of the figures: svg by default; none where nobody asked and matplotlib is missing.

    Raises:
        UsageError: matplotlib is missing, and formats were asked for.
    """
    if formats:
        require_matplotlib()
        return tuple(formats)
    if importlib.util.find_spec("matplotlib"):
        return ("svg",)
    return ()


def figure_step(studies: Studies, folder: Path, formats: Sequence[str]) -> Callable[[], Sequence[str]]:
    """Return a step that draws all figures into a folder, and says which."""

    def step() -> Sequence[str]:
        if not formats:
            return ["figures  not drawn: matplotlib is not installed; run pip install 'tna-onnx[plot]'"]
        for study in studies.studies:
            figure = figure_of(study)
            if figure is not None:
                for ending in formats:
                    save(figure, folder / f"{study.name}.{ending}")
        return [f"figures  {folder}: {', '.join(formats)}"]

    return step


def save(figure: Any, path: Path) -> None:
    """Write a figure in the style of all figures."""
    with optional("matplotlib", "plot", "drawing figures").rc_context(STYLE):
        save_figure(figure, path)


def figure_of(study: Study) -> Any:
    """Return a matplotlib figure with the charts of a study; None if it has none.

    Raises:
        UsageError: matplotlib is missing.
    """
    if not study.charts:
        return None
    matplotlib = optional("matplotlib", "plot", "drawing figures")
    make = optional("matplotlib.figure", "plot", "drawing figures").Figure  # no pyplot: global state
    # four stand in a square
    columns = 2 if len(study.charts) == 4 else min(3, len(study.charts))
    rows = -(-len(study.charts) // columns)
    legend = max(len(chart.lines) for chart in study.charts) * _LEGEND_LINE
    with matplotlib.rc_context(STYLE):
        figure = make(figsize=(_WIDTH * columns, (_HEIGHT + legend) * rows))
        panels = figure.subplots(rows, columns, squeeze=False).flatten()
        for axes, chart in zip(panels, study.charts, strict=False):
            _draw(axes, chart)
        for axes in panels[len(study.charts) :]:
            axes.set_visible(False)
    return figure


def _draw(axes: Any, chart: Chart) -> None:
    for line in chart.lines:
        look: dict[str, Any] = {"color": COLORS[line.rank], "linestyle": "--" if line.dashed else "-"}
        if line.marked:
            look["marker"] = MARKERS[line.rank]
        axes.plot(line.x, line.y, label=line.name, **look)
        if line.low:
            axes.fill_between(line.x, line.low, line.high, color=COLORS[line.rank], alpha=0.13, linewidth=0)
    if chart.log_x:
        axes.set_xscale("log")
        ticks = sorted({value for line in chart.lines for value in line.x})
        axes.set_xticks(_thinned(ticks), [f"{value:g}" for value in _thinned(ticks)])
        axes.minorticks_off()
    if chart.x_names:
        axes.set_xticks(range(1, len(chart.x_names) + 1), chart.x_names)
    axes.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
    if chart.y_range is None:
        axes.set_ylim(bottom=0)
    else:
        axes.set_ylim(*chart.y_range)
    if len(chart.lines) == 1:
        return
    longest = max(len(line.name) for line in chart.lines)
    # below the panel: inside it would hide lines
    axes.legend(loc="upper left", bbox_to_anchor=(-0.1, -0.2), ncols=1 if longest > _LONG_LABEL else 2, fontsize=7)


def _thinned(values: Sequence[float]) -> list[float]:
    """Leave out ticks that would overlap on a logarithmic axis."""
    spaced: list[float] = []
    for value in values:
        if not spaced or value >= 1.6 * spaced[-1]:
            spaced.append(value)
    return spaced
