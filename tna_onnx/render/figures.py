"""The charts of reports and studies as files for papers and wikis, drawn by matplotlib.

File names are stable: `reliability`, `confidence`, `risk-coverage`, `search`, `members` and `angles`, each with the
ending of its format. Runs without a search, a tilted weight or a plain linear head have fewer. Text stays text in SVG
and PDF. Nothing depends on colour: series differ by dashes and markers. The same report gives the same bytes.
"""

import importlib.util
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from tna_onnx.data.foreign import optional
from tna_onnx.errors import writing
from tna_onnx.files import write_file
from tna_onnx.render.charts import (
    MarkedChart,
    angle_charts,
    confidence_charts,
    log_ticks,
    members_chart,
    reliability_charts,
    risk_chart,
    search_charts,
    words_of,
)
from tna_onnx.results.details import Details
from tna_onnx.results.report import Report
from tna_onnx.results.study import Chart, Studies

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
    """Write a matplotlib figure in the format of the path's ending; its folder is made if it is missing."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:], metadata=_NO_DATE.get(path.suffix[1:]))
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, drawn.getvalue())


# Inches; two panels fill the text width of a page.
_WIDTH = 6.6
_HEIGHT = 3.1


def require_matplotlib() -> None:
    """Check that figures can be drawn."""
    optional("matplotlib.figure", "plot", "drawing figures")


def write_figures(report: Report, folder: Path, formats: Sequence[str] = ("svg", "png", "pdf")) -> tuple[Path, ...]:
    """Write each figure in each format, and return the files.

    `folder`: made if it is missing; files of the same names are replaced.
    """
    details = report.details
    if details is None:
        raise ValueError("the report has no details; call calibrate with details=True")
    written = []
    # The style is in force for these figures only.
    with _style():
        for name, charts in _figures(report, details).items():
            figure = _empty_figure(_WIDTH, _HEIGHT)
            _draw_abreast(figure, charts)
            for ending in formats:
                path = folder / f"{name}.{ending}"
                save_figure(figure, path)
                written.append(path)
    return tuple(written)


def _figures(report: Report, details: Details) -> dict[str, Sequence[Chart]]:
    """File name -> charts beside each other."""
    charts: dict[str, Sequence[Chart]] = {
        "reliability": reliability_charts(report),
        "confidence": confidence_charts(details, words_of(report.labels)),
        "risk-coverage": (risk_chart(details),),
    }
    if len(details.steps) > 1:
        charts["search"] = search_charts(report, details)
    if (chart := members_chart(details)) is not None:
        charts["members"] = (chart,)
    if details.angles:
        charts["angles"] = angle_charts(details)
    return charts


def _style() -> Any:
    """Return the context in which matplotlib draws in the style of all figures."""
    return optional("matplotlib", "plot", "drawing figures").rc_context(STYLE)


def _empty_figure(width: float, height: float) -> Any:
    # no pyplot: it keeps figures in a global state
    return optional("matplotlib.figure", "plot", "drawing figures").Figure(figsize=(width, height))


def _draw_abreast(figure: Any, charts: Sequence[Chart]) -> None:
    """Draw charts beside each other, with one legend below all of them."""
    panels = figure.subplots(1, len(charts), squeeze=False).flatten()
    for axes, chart in zip(panels, charts, strict=True):
        _draw(axes, chart)
    lines = _shared_legend(figure, panels, figure.get_figwidth())
    # without more height the legend would squeeze the panels
    figure.set_figheight(figure.get_figheight() + _LEGEND_LINE * lines)


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
    """Return the formats of the figures: svg by default; none where nobody asked and matplotlib is missing."""
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

    `style`: `paper` for figures of a column's width, with symbols and one legend; `split`: whether each panel has a
    file of its own, NAME-1, NAME-2 and so on.
    """

    def step() -> Sequence[str]:
        if not formats:
            return ["figures  not drawn: matplotlib is not installed; run pip install 'tna-onnx[plot]'"]
        for study in studies.studies:
            parts = {study.name: study.charts} if study.charts else {}
            if split:
                parts = {f"{study.name}-{k}": (chart,) for k, chart in enumerate(study.charts, start=1)}
            for name, charts in parts.items():
                figure = figure_of(charts, style)
                with _style():
                    for ending in formats:
                        save_figure(figure, folder / f"{name}.{ending}")
        return [f"figures  {folder}: {', '.join(formats)}"]

    return step


def figure_of(charts: Sequence[Chart], style: FigureStyle = "page") -> Any:
    """Return a matplotlib figure with charts; None without any."""
    if not charts:
        return None
    paper = style == "paper"
    # four stand in a square
    columns = 2 if len(charts) == 4 else min(3, len(charts))
    rows = -(-len(charts) // columns)
    legend = max(len(chart.lines) for chart in charts) * _LEGEND_LINE
    size = (_STUDY_WIDTH * columns, (_STUDY_HEIGHT + legend) * rows)
    if paper:
        size = (_COLUMN * columns, _COLUMN_HEIGHT * rows + legend)
    with _style():
        figure = _empty_figure(*size)
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
        if line.low and line.marked and isinstance(chart, MarkedChart) and chart.whiskers:
            axes.vlines(line.x, line.low, line.high, color=COLORS[line.rank], linewidth=0.8)
        elif line.low:
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
