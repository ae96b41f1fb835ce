"""The figures of a page as files: SVG that stands alone, on white, for papers, wikis and model cards.

A file has drawings of the page side by side, with titles and legends. Colours are written out, and text stays text. The
same result gives the same bytes.
"""

import re
import textwrap
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tna_onnx.errors import writing
from tna_onnx.files import write_file
from tna_onnx.render.html import predictions
from tna_onnx.render.html.blocks import Key, Panel, chart_panel
from tna_onnx.render.html.svg import WIDTH, element
from tna_onnx.results.measured import Evaluation
from tna_onnx.results.report import Report
from tna_onnx.results.study import Studies, Study


def write_figures(result: Any, folder: Path) -> tuple[Path, ...]:
    """Write the figures of a result, NAME.svg for each, and return the files.

    `result`: a report, evaluation, comparison, study or studies. `folder`: made if it is missing; files of the same
    names are replaced. Raises ResultError: a file cannot be written.
    """
    written = []
    for name, panels in panels_of(result).items():
        path = folder / f"{name}.svg"
        with writing(path):
            folder.mkdir(parents=True, exist_ok=True)
            write_file(path, figure_file(panels).encode())
        written.append(path)
    return tuple(written)


def panels_of(result: Any) -> dict[str, list[Panel]]:
    """Return the panels of each file by its name: `reliability`, and of a report with details, or studies, further."""
    if isinstance(result, Studies):
        return {study.name: [*map(chart_panel, study.charts)] for study in result.studies if study.charts}
    if isinstance(result, Study):
        return {result.name: [*map(chart_panel, result.charts)]} if result.charts else {}
    if isinstance(result, Evaluation) and result.without_labels is not None:
        return {}
    named = {"reliability": [predictions.reliability(result).panel]}
    if isinstance(result, Report) and result.details is not None:
        named["confidence"] = [predictions.confidence(result, result.details)]
        named["risk-coverage"] = [predictions.risk(result, result.details)]
        if result.angle:
            named["search"] = [predictions.search(result, result.details)]
    return named


# Pixels: paper around panels and above a legend, a line of a title, a line of a legend.
_MARGIN, _TITLE, _LEGEND = 14, 17, 19
# Of a legend: from a symbol to its text, of a letter at most, between entries; letters in a line of a title.
_SYMBOL, _LETTER, _GAP, _TITLE_LETTERS = 34, 6.4, 16, 46
_MAX_COLUMNS = 3


def figure_file(panels: Sequence[Panel]) -> str:
    """Return an SVG file with figures side by side: at most three in a row, four in a square.

    A legend that all panels have in common stands once, below them.
    """
    figures = [(figure, panel.keys) for panel in panels for figure in panel.figures]
    columns = min(_MAX_COLUMNS, len(figures))
    if len(figures) == 4:
        columns = 2
    rows = -(-len(figures) // columns)
    width = columns * (WIDTH + _MARGIN) + _MARGIN
    shared = all(panel.keys == panels[0].keys for panel in panels)
    room = WIDTH
    if shared:
        room = width - 2 * _MARGIN
    legends = [_legend(keys, room) for _, keys in figures]
    below = max(height for _, height in legends)
    titles = [textwrap.wrap(figure.caption, _TITLE_LETTERS) for figure, _ in figures]
    top = _TITLE * max(map(len, titles)) + 6
    bottom = top + max(figure.height for figure, _ in figures) + 4
    step = bottom
    if not shared:
        step += below
    parts = []
    for k, (figure, _) in enumerate(figures):
        x, y = _MARGIN + k % columns * (WIDTH + _MARGIN), _MARGIN + k // columns * step
        parts += [_placed(x, y, _lines(titles[k])), _placed(x, y + top, figure.drawing)]
        if not shared:
            parts.append(_placed(x, y + bottom, legends[k][0]))
    height = rows * step + 2 * _MARGIN
    if shared:
        parts.append(_placed(_MARGIN, _MARGIN + rows * step, legends[0][0]))
        height += below
    paper = element("rect", width=width, height=height, fill="#ffffff")
    size = {"xmlns": "http://www.w3.org/2000/svg", "width": width, "height": height, "viewBox": f"0 0 {width} {height}"}
    font = {"font_family": "Helvetica, Arial, sans-serif", "font_size": 12}
    return str(element("svg", element("style", _style()), paper, *parts, **size, **font)) + "\n"


def _placed(x: float, y: float, *parts: Markup) -> Markup:
    return element("g", *parts, transform=f"translate({x:g} {y:g})")


def _lines(title: Sequence[str]) -> Markup:
    """Return a title, which may have several lines."""
    lines = (element("text", line, x=0, y=12 + k * _TITLE, font_weight="bold") for k, line in enumerate(title))
    return Markup("").join(lines)


def _legend(keys: Sequence[Key], width: float) -> tuple[Markup, int]:
    """Return a legend, broken into lines of at most `width` pixels, and its height."""
    parts = []
    x, line = 0.0, 0
    for key in keys:
        wide = _SYMBOL + _LETTER * len(key.text)
        if x and x + wide > width:
            x, line = 0.0, line + 1
        text = element("text", key.text, x=_SYMBOL, y=10)
        parts.append(_placed(x, line * _LEGEND, key.drawing, text))
        x += wide + _GAP
    return Markup("").join(parts), (line + 1) * _LEGEND if keys else 0


def _style() -> Markup:
    """Return the style of drawings with the light colours of the page in the place of their names."""
    folder = files("tna_onnx.render.html")
    page, drawing = (folder.joinpath(name).read_text("utf-8") for name in ("page.css", "drawing.css"))
    light = page.partition("}")[0]
    colours = dict(re.findall(r"--(\w+): (#\w+);", light))
    return Markup(re.sub(r"var\(--(\w+)\)", lambda name: colours[name[1]], drawing))  # noqa: S704 - our own text
