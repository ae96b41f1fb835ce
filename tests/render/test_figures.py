"""`--figures`: SVG files that stand alone and show the report's numbers, the same each time."""

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import Small
from tests.render.conftest import SEARCHED
from tests.support import ok, words_of
from tna_onnx.numerics.reliability import Bins
from tna_onnx.render.charts import bars
from tna_onnx.render.figures import figure_file, write_figures
from tna_onnx.render.html.blocks import chart_panel
from tna_onnx.render.html.pages import page_of
from tna_onnx.results.report import Report
from tna_onnx.results.study import Chart, Line

ALL = {"reliability", "confidence", "risk-coverage", "search"}
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def files(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all figures of the same run, as the command writes them."""
    folder = tmp_path_factory.mktemp("command")
    figures = folder / "new" / "figures"
    words = ["--eval", small.test, "-o", folder / "o.onnx", *words_of(SEARCHED), "--figures", figures, "--quiet"]
    ok("calibrate", small.model, small.calib, *words)
    return figures


def texts(path: Path) -> list[str]:
    """All words of an SVG file."""
    return ["".join(node.itertext()) for node in ElementTree.fromstring(path.read_bytes()).iter(f"{SVG}text")]


def test_the_command_writes_every_figure(files: Path) -> None:
    assert {path.name for path in files.iterdir()} == {f"{name}.svg" for name in ALL}


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_file_stands_alone_on_white(files: Path, name: str) -> None:
    text = (files / f"{name}.svg").read_text("utf-8")
    root = ElementTree.fromstring(text)
    assert root.tag == f"{SVG}svg"
    paper = root.find(f"{SVG}rect")
    assert paper.get("fill") == "#ffffff"
    assert (paper.get("width"), paper.get("height")) == (root.get("width"), root.get("height"))
    # programs that place figures know no variables, and load nothing
    assert "var(" not in text
    assert not re.search(r"href|url\(|@import|:not|:has|:hover", text)
    style = root.findtext(f"{SVG}style") or ""
    drawn = {word for node in root.iter() for word in (node.get("class") or "").split()}
    assert drawn - {"chart", "mark", "rest", "dot"} <= set(re.findall(r"\.([a-z][\w-]*)", style)) | {"hit-area"}


def test_text_is_text_and_says_the_numbers(report: Report, files: Path) -> None:
    details = report.details
    words = texts(files / "reliability.svg")
    for bins, name in ((details.before, "Before"), (details.after, "After")):
        assert f"{name}: ECE {100 * bins.ece:.2f} %" in words
    assert {"confidence", "accuracy", "95 % interval", "accuracy without bins"} <= set(words)
    assert {"samples, %", "right", "wrong"} <= set(texts(files / "confidence.svg"))
    assert f"before: mean error {100 * details.risk_before.area:.2f} %" in texts(files / "risk-coverage.svg")
    assert f"chosen: {report.angle:g}°" in texts(files / "search.svg")
    assert "held-out, 64 members" in texts(files / "search.svg")


def test_the_drawings_are_those_of_the_page(report: Report, files: Path) -> None:
    page = page_of(report)
    for path in files.iterdir():
        drawings = re.findall(r'<svg class="chart".*?</svg>(?=</g>)', path.read_text("utf-8"), re.DOTALL)
        assert drawings, path.name
        assert all(drawing in page for drawing in drawings), path.name


def test_the_same_report_gives_the_same_bytes(report: Report, files: Path, tmp_path: Path) -> None:
    again = write_figures(report, tmp_path)
    assert {path.stem for path in again} == ALL
    assert [path.read_bytes() for path in again] == [(files / path.name).read_bytes() for path in again]


@pytest.mark.parametrize("count", range(1, 8))
@pytest.mark.parametrize("lines", [1, 2, 12])
def test_nothing_leaves_the_paper(count: int, lines: int) -> None:
    series = tuple(Line(f"a line with a <name> & number {k}", (1.0, 2.0), (0.5, k), rank=k % 5) for k in range(lines))
    charts = [Chart("t" * 99, "x", "y", series[: 1 + (k + lines) % lines]) for k in range(count)]
    root = ElementTree.fromstring(figure_file([*map(chart_panel, charts)]))
    width, height = float(root.get("width", "nan")), float(root.get("height", "nan"))

    def walk(node: ElementTree.Element, x: float, y: float) -> None:
        moved = re.fullmatch(r"translate\(([\d.]+) ([\d.]+)\)", node.get("transform", ""))
        if moved:
            x, y = x + float(moved[1]), y + float(moved[2])
        if node.tag == f"{SVG}svg" and node.get("class") == "chart":
            assert x + float(node.get("width", "nan")) <= width
            assert y + float(node.get("height", "nan")) <= height
            return
        if node.tag == f"{SVG}text":
            # letters of 12 pixels are 6 wide on average
            assert x + float(node.get("x", "nan")) + 6 * len(node.text or "") <= width
            assert y + float(node.get("y", "nan")) <= height
        for child in node:
            walk(child, x, y)

    for child in root:
        walk(child, 0, 0)


# --- The bars of a reliability diagram against the samples that they stand for


@given(st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_bars_have_the_samples_between_their_sides(bins: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    confidence = draw.uniform(size=100)
    hit = draw.uniform(size=100) < confidence
    drawn = bars(Bins.of(confidence, hit, bins))
    assert len(drawn) == bins
    assert drawn[0].left == 0
    assert drawn[-1].right == 1
    for bar in drawn:
        inside = (confidence > bar.left) & (confidence <= bar.right)
        assert bar.count == inside.sum()
        if bar.count:
            # the same float64 sums, in another order
            assert bar.confidence == pytest.approx(confidence[inside].mean(), abs=1e-12)
            assert bar.height == pytest.approx(hit[inside].mean(), abs=1e-12)
