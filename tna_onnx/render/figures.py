"""The figures of a report as files for papers and wikis, drawn by matplotlib from `Report.details`.

File names are stable: `reliability`, `confidence`, `risk-coverage`, `search`, `members` and `angles`, each with the
ending of its format. Runs without a search, a tilted weight or a plain linear head have fewer. Text stays text in SVG
and PDF. Nothing depends on colour: series differ by dashes and markers, areas by hatches. The same report gives the
same bytes.

`save_figure` applies the common style; `draw_reliability` draws reliability diagrams onto any figure.
"""

from __future__ import annotations

import functools
import importlib.util
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tna_onnx.data.files import optional
from tna_onnx.errors import UsageError
from tna_onnx.files import write_file
from tna_onnx.numerics.corp import BAND_LEVEL, Curve
from tna_onnx.numerics.reliability import Bins
from tna_onnx.render.charts import MarkedChart, angle_charts, log_ticks, members_chart, risk_chart, search_charts
from tna_onnx.render.reliability import OF_CLASSES, OF_LABELS, Bar, DiagramWords, bars, words_of
from tna_onnx.results.details import Details
from tna_onnx.results.report import Report
from tna_onnx.results.study import Chart, Studies, Study

STYLE: dict[str, Any] = {
    "axes.edgecolor": "#444444",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 9,
    "figure.constrained_layout.use": True,
    "font.size": 8,
    "grid.color": "#dddddd",
    "hatch.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 3,
    "pdf.fonttype": 42,  # TrueType, so that text stays text
    "savefig.dpi": 200,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "tna-onnx",  # no random ids: the same report gives the same bytes
}
"""Settings of matplotlib."""

# Entries of a file that would differ from run to run.
_NO_DATE = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


def save_figure(figure: Any, path: Path) -> None:
    """Write a matplotlib figure in the format of the path's ending; its folder is made if it is missing.

    Raises:
        UsageError: it cannot be written.
    """
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:], metadata=_NO_DATE.get(path.suffix[1:]))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, drawn.getvalue())
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error


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


# Inches; two panels fill the text width of a page.
_WIDTH = 6.6
_HEIGHT = 3.1


def require_matplotlib() -> None:
    """Check that figures can be drawn.

    Raises:
        UsageError: matplotlib cannot be imported; the message names the extra.
    """
    optional("matplotlib.figure", "plot", "drawing figures")


def write_figures(report: Report, folder: Path, formats: Sequence[str] = ("svg", "png", "pdf")) -> tuple[Path, ...]:
    """Write each figure in each format, and return the files.

    Args:
        report: made with details.
        folder: made if it is missing; files of the same names are replaced.
        formats: endings that matplotlib knows.

    Raises:
        ValueError: the report has no details.
        UsageError: matplotlib is missing, or a file cannot be written.
    """
    details = report.details
    if details is None:
        raise ValueError("the report has no details; call calibrate with details=True")
    matplotlib = optional("matplotlib", "plot", "drawing figures")  # an extra
    make = optional("matplotlib.figure", "plot", "drawing figures").Figure  # no pyplot: global state
    written = []
    # The style is in force for these figures only.
    with matplotlib.rc_context(STYLE):
        for name, draw in _figures(report, details).items():
            figure = make(figsize=(_WIDTH, _HEIGHT))
            draw(figure)
            for ending in formats:
                path = folder / f"{name}.{ending}"
                save_figure(figure, path)
                written.append(path)
    return tuple(written)


def _figures(report: Report, details: Details) -> dict[str, Callable[[Any], None]]:
    """File name -> what draws on a figure."""
    words = words_of(report.labels)
    panels = (
        Panel("before", details.before, report.comparison.before.ece, report.bin_free_before.corp.curve),
        Panel("after", details.after, report.comparison.after.ece, report.bin_free_after.corp.curve),
    )
    drawings: dict[str, Callable[[Any], None]] = {
        "reliability": lambda figure: draw_reliability(figure, panels, words),
        "confidence": lambda figure: _confidence(figure, details, words),
    }
    charts: dict[str, tuple[Chart, ...]] = {"risk-coverage": (risk_chart(details),)}
    if len(details.steps) > 1:
        charts["search"] = search_charts(report, details)
    if (chart := members_chart(details)) is not None:
        charts["members"] = (chart,)
    if details.angles:
        charts["angles"] = angle_charts(details)
    return drawings | {name: functools.partial(_draw_abreast, charts=panels) for name, panels in charts.items()}


def _draw_abreast(figure: Any, charts: Sequence[Chart]) -> None:
    """Draw charts beside each other, with one legend below all of them."""
    panels = figure.subplots(1, len(charts), squeeze=False).flatten()
    for axes, chart in zip(panels, charts, strict=True):
        _draw(axes, chart)
    lines = _shared_legend(figure, panels, figure.get_figwidth())
    # without more height the legend would squeeze the panels
    figure.set_figheight(figure.get_figheight() + _LEGEND_LINE * lines)


def _confidence(figure: Any, details: Details, words: DiagramWords) -> None:
    """Share of the samples in each bin of confidence: right ones below, wrong ones on top."""
    # a label that rightly does not hold is no error
    sides = ("holds", "does not hold") if words == OF_LABELS else ("right", "wrong")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, word, bins in zip(panels, ("before", "after"), (details.before, details.after), strict=True):
        drawn = bars(bins)
        middles = [bar.middle for bar in drawn]
        total = max(1, sum(bins.count))
        right = [100 * bar.count * bar.height / total for bar in drawn]
        wrong = [100 * bar.count / total - share for bar, share in zip(drawn, right, strict=True)]
        axes.bar(middles, right, drawn[0].width, label=sides[0], **BAR)
        axes.bar(middles, wrong, drawn[0].width, right, label=sides[1], **OVER)
        axes.set(xlim=(0, 1), xlabel=words.against, title=word)
    panels[0].set_ylabel(f"{words.counted}, %")
    panels[0].legend(loc="upper left")


# Inches of one panel, and of a line of its legend.
_STUDY_WIDTH = 3.4
_STUDY_HEIGHT = 2.9
_LEGEND_LINE = 0.14
# Characters of a label of which two do not fit beside each other.
_STUDY_LONG_LABEL = 22

# Inches of a panel of the paper's style, which fills a column; of a letter of its legend; letters of a line's mark.
_COLUMN = 3.25
_COLUMN_HEIGHT = 2.3
_LEGEND_LETTER = 0.06
_LEGEND_MARK = 8
_SYMBOLS = {"theta_s": r"$\theta_s$", "n_r": "$n_r$", "n_t": "$n_t$", "n_e": "$n_e$"}

MARKERS = ("o", "s", "^", "D", "x", "")
# those of the page
COLORS = ("#5d6670", "#a3480f", "#1d5fb8", "#1d7a4d", "#b3261e", "#222222")


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


_RING = {"marker": "o", "markersize": 8, "markerfacecolor": "none", "color": "#333333", "linestyle": "none"}

FigureStyle: TypeAlias = Literal["page", "paper"]


def figure_step(
    studies: Studies, folder: Path, formats: Sequence[str], style: FigureStyle = "page", *, split: bool = False
) -> Callable[[], Sequence[str]]:
    """Return a step that draws all figures into a folder, and says which.

    Args:
        studies: what is drawn.
        folder: for the files.
        formats: endings that matplotlib knows; none if it is missing.
        style: `paper` for figures of a column's width, with symbols and one legend.
        split: whether each panel has a file of its own, NAME-1, NAME-2, ...
    """

    def step() -> Sequence[str]:
        if not formats:
            return ["figures  not drawn: matplotlib is not installed; run pip install 'tna-onnx[plot]'"]
        for study in studies.studies:
            parts = {study.name: study.charts} if study.charts else {}
            if split:
                parts = {f"{study.name}-{k}": (chart,) for k, chart in enumerate(study.charts, start=1)}
            for name, charts in parts.items():
                figure = _figure_of(charts, style)
                for ending in formats:
                    save(figure, folder / f"{name}.{ending}")
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
    return _figure_of(study.charts, "page") if study.charts else None


def _figure_of(charts: Sequence[Chart], style: FigureStyle) -> Any:
    paper = style == "paper"
    matplotlib = optional("matplotlib", "plot", "drawing figures")
    make = optional("matplotlib.figure", "plot", "drawing figures").Figure  # no pyplot: global state
    # four stand in a square
    columns = 2 if len(charts) == 4 else min(3, len(charts))
    rows = -(-len(charts) // columns)
    legend = max(len(chart.lines) for chart in charts) * _LEGEND_LINE
    size = (_STUDY_WIDTH * columns, (_STUDY_HEIGHT + legend) * rows)
    if paper:
        size = (_COLUMN * columns, _COLUMN_HEIGHT * rows + legend)
    with matplotlib.rc_context(STYLE):
        figure = make(figsize=size)
        panels = figure.subplots(rows, columns, squeeze=False).flatten()
        for axes, chart in zip(panels, charts, strict=False):
            _draw(axes, chart)
            if paper:
                _as_in_a_paper(axes, chart)
            elif len(chart.lines) > 1:
                _legend_below(axes, chart)
        for axes in panels[len(charts) :]:
            axes.set_visible(False)
        if paper:
            _shared_legend(figure, panels, size[0])
    return figure


def _shared_legend(figure: Any, panels: Sequence[Any], width: float) -> int:
    """Write one legend below all panels, `width` inches, each label once; return its lines."""
    # the first of a label: lines that share their name share their look
    handles: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if len(handles) < 2:
        return 0
    columns = max(1, int(width / (_LEGEND_LETTER * (max(map(len, handles)) + _LEGEND_MARK))))
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=columns, fontsize=7)
    return -(-len(handles) // columns)


def _as_in_a_paper(axes: Any, chart: Chart) -> None:
    """Write symbols, leave the title to the caption, and cut no line off."""
    axes.set(title="", xlabel=_symbols(chart.x_label), ylabel=_symbols(chart.y_label))
    for artist, line in zip(axes.get_lines(), chart.lines, strict=False):
        artist.set_label(_symbols(line.name))
    values = [value for line in chart.lines for value in (*line.y, *line.low, *line.high)]
    room = 0.05 * (max(values) - min(values)) or 0.5
    starts_at_zero = chart.y_range is None or chart.y_range[0] == 0
    axes.set_ylim(0 if starts_at_zero else min(values) - room, max(values) + room)


def _symbols(text: str) -> str:
    """Write names of the paper as symbols.

    >>> _symbols("rotations n_r")
    'rotations $n_r$'
    """
    for name, symbol in _SYMBOLS.items():
        text = text.replace(name, symbol)
    return text


def _draw(axes: Any, chart: Chart) -> None:
    for line in chart.lines:
        look: dict[str, Any] = {"color": COLORS[line.rank], "linestyle": "--" if line.dashed else "-"}
        if line.marked:
            look["marker"] = MARKERS[line.rank]
        if line.marked and line.dashed:
            look["markerfacecolor"] = "white"
        axes.plot(line.x, line.y, label=line.name, **look)
        if line.low:
            axes.fill_between(line.x, line.low, line.high, color=COLORS[line.rank], alpha=0.13, linewidth=0)
    if chart.log_x:
        axes.set_xscale("log")
        axes.set_xticks(log_ticks(chart), [f"{value:g}" for value in log_ticks(chart)])
        axes.minorticks_off()
    if chart.x_names:
        axes.set_xticks(range(1, len(chart.x_names) + 1), chart.x_names)
    axes.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
    if chart.y_range is None:
        axes.set_ylim(bottom=0)
    else:
        axes.set_ylim(*chart.y_range)
    if isinstance(chart, MarkedChart):
        _mark(axes, chart)


def _mark(axes: Any, chart: MarkedChart) -> None:
    """Draw the marked values of a chart."""
    if chart.x_range is not None:
        axes.set_xlim(*chart.x_range)
    if chart.vertical is not None:
        value, text = chart.vertical
        axes.axvline(value, color="#333333", linestyle="-.", linewidth=0.9, label=text)
    for value, text in chart.horizontal:
        axes.axhline(value, color="#333333", linestyle=":", linewidth=1, label=text)
    for x, y in chart.rings:
        axes.plot(x, y, label="_", **_RING)


def _legend_below(axes: Any, chart: Chart) -> None:
    longest = max(len(line.name) for line in chart.lines)
    # below the panel: inside it would hide lines
    axes.legend(
        loc="upper left", bbox_to_anchor=(-0.1, -0.2), ncols=1 if longest > _STUDY_LONG_LABEL else 2, fontsize=7
    )
