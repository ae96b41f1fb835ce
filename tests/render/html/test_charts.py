"""Drawings of a page: their geometry against the numbers, and SVG that is well formed and escaped."""

import base64
import hashlib
import re
from xml.etree import ElementTree

import pytest

from tna_onnx.numerics.reliability import Bins
from tna_onnx.render.charts import OF_CLASSES, MarkedChart
from tna_onnx.render.html.pages import page_of
from tna_onnx.render.html.svg import Frame, confidence_histogram, line_chart, reliability_diagram, ticks
from tna_onnx.results.report import Report
from tna_onnx.results.study import Chart, Line


@pytest.mark.parametrize(
    "bins",
    [Bins((0, 3), (0.0, 0.9), (0.0, 1.0)), Bins((1,), (1.0,), (0.0,)), Bins((0,) * 50, (0.0,) * 50, (0.0,) * 50)],
)
def test_diagrams_are_well_formed(bins: Bins) -> None:
    for value in (
        reliability_diagram(bins, "<a & b>", OF_CLASSES),
        confidence_histogram(bins, "<a & b>", 100.0, OF_CLASSES),
    ):
        drawing = ElementTree.fromstring(value)
        assert drawing.find("title").text == "<a & b>"
        assert drawing.find("desc").text


def test_heights_are_the_numbers() -> None:
    drawing = ElementTree.fromstring(reliability_diagram(Bins((10, 30), (0.4, 0.9), (0.3, 0.95)), "t", OF_CLASSES))
    bars: dict[str, list[float]] = {}
    for bar in drawing.iter("rect"):
        bars.setdefault(bar.get("class", ""), []).append(float(bar.get("height", "nan")))
    full = bars["accuracy"][0] / 0.3
    assert bars["accuracy"][1] == pytest.approx(0.95 * full, abs=0.02)
    assert bars["over"] == pytest.approx([0.1 * full], abs=0.02)
    assert bars["under"] == pytest.approx([0.05 * full], abs=0.02)
    assert bars["count"][0] == pytest.approx(bars["count"][1] / 3**0.5, abs=0.02)  # on a scale of roots
    assert "10 samples (25.0 %)" in next(drawing.iter("g")).find("title").text


@pytest.mark.parametrize("points", [((0.0, 0.0),), ((1.0, 5.0), (1.0, 5.0)), ((0.0, 1e-9), (90.0, 1e9))])
def test_charts_of_odd_numbers(points: tuple[tuple[float, float], ...]) -> None:
    x, y = zip(*points, strict=True)
    text = line_chart(Chart("t", "x", "y", (Line("s", x, y),)))
    assert "nan" not in text
    assert "inf" not in text
    ElementTree.fromstring(text)


def test_values_have_their_pixels() -> None:
    frame = Frame((0, 10), (0, 4), top=0, bottom=100, left=20, right=220)
    assert [frame.at_x(value) for value in (0, 5, 10)] == [20, 120, 220]
    assert [frame.at_y(value) for value in (0, 1, 4)] == [100, 75, 0]  # upwards
    rect = ElementTree.fromstring(frame.rect("count", (0, 5), 0, 2))
    # bars leave 0.6 pixels on each side
    assert [rect.get(name) for name in ("x", "width", "y", "height")] == ["20.60", "98.80", "50.00", "50.00"]


@pytest.mark.parametrize("low", [0.0, -3.7, 1e-9, 86.2])
@pytest.mark.parametrize("length", [1e-6, 0.37, 1.0, 7.3, 9.9, 1e9])
def test_ticks_are_few_and_inside(low: float, length: float) -> None:
    found = ticks(low, low + length)
    assert 2 <= len(found) <= 6  # a step is 1/5 of the range, or up to twice that
    slack = 1e-8 * length
    assert low - slack <= found[0]
    assert found[-1] <= low + length + slack


def test_lines_of_one_point_and_marked_values() -> None:
    text = line_chart(
        MarkedChart(
            "t",
            "x",
            "y",
            (Line("<s>", (1.0, 3.0), (2.0, 4.0), rank=1),),
            vertical=(3.0, "chosen"),
            horizontal=((3.0, "<allowed>"),),
            rings=((3.0, 4.0),),
        )
    )
    drawing = ElementTree.fromstring(text)
    anchors = {node.text: node.get("text-anchor") for node in drawing.iter("text") if node.get("class") == "note"}
    assert anchors == {"chosen": "end", "<allowed>": "start"}  # on the side with more room
    [line] = [node for node in drawing.iter("line") if node.get("class") == "pick"]
    [ring] = drawing.iter("circle")
    assert line.get("x1") == line.get("x2") == ring.get("cx")
    assert [node.find("title").text for node in drawing.iter("path")] == ["<s>: x 1, y 2", "<s>: x 3, y 4"]


# --- The Content-Security-Policy of a page lets its own style and script in, and nothing else


def test_a_page_allows_its_own_style_and_script_alone(report: Report) -> None:
    page = page_of(report)
    policy = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    # before anything that it is about
    assert policy.start() < page.index("<style>")
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].replace("&#39;", "'").split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    for element in ("style", "script"):
        (content,) = re.findall(f"<{element}>(.*?)</{element}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[f"{element}-src"] == f"'sha256-{digest}'"
    # what the policy would stop is not there: styles and handlers in attributes, sources elsewhere
    assert not re.search(r'<[^>]*\s(style|on\w+)="', page)
    assert not re.search(r'(src|href)="(?!#|data:)', page.replace('href="data:,"', ""))
