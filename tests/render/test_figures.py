"""`--figures`: files that show the report's numbers, whole and the same each time, and refusals before the work."""

import importlib
import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st

import tna_onnx
from tests.conftest import Small
from tests.support import TILTED, WALKED, cli, words_of
from tna_onnx.numerics.reliability import Bins
from tna_onnx.render import figures
from tna_onnx.render.charts import OF_CLASSES, bars, reliability_chart
from tna_onnx.render.figures import write_figures
from tna_onnx.results.report import Report

# A search whose steps and members there is something to draw of.
SEARCHED: dict[str, Any] = WALKED | {"objective": "ece", "angle_step": 2.0, "ensemble_size": 64}
ALL = {"reliability", "confidence", "risk-coverage", "search", "members", "angles"}
SVG = "{http://www.w3.org/2000/svg}"

needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)


@pytest.fixture(scope="module")
def report(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Report:
    output = tmp_path_factory.mktemp("figures") / "o.onnx"
    return tna_onnx.calibrate(small.model, small.calib, eval=small.test, output=output, details=True, **SEARCHED)


def calibrate(small: Small, folder: Path, *flags: object) -> Result:
    data = ["--calib", small.calib, "--eval", small.test]
    return cli("calibrate", small.model, *data, "-o", folder / "o.onnx", *words_of(SEARCHED), "--quiet", *flags)


@pytest.fixture(scope="module")
def files(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all figures of the same run, in all formats, as the command writes them."""
    folder = tmp_path_factory.mktemp("command")
    result = calibrate(small, folder, "--figures", folder / "new" / "figures")
    assert result.exit_code == 0, result.output
    return folder / "new" / "figures"


def texts(path: Path) -> list[str]:
    """All words of an SVG file."""
    return ["".join(node.itertext()) for node in ElementTree.fromstring(path.read_bytes()).iter(f"{SVG}text")]


# The files


@needs_matplotlib
def test_the_command_writes_every_figure_in_every_format(files: Path) -> None:
    endings = {".svg", ".png", ".pdf"}
    assert {path.name for path in files.iterdir()} == {f"{name}{ending}" for name in ALL for ending in endings}
    for path in files.iterdir():
        start = {".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF"}[path.suffix]
        assert path.read_bytes().startswith(start)


@needs_matplotlib
def test_text_is_text_and_says_the_numbers(report: Report, files: Path) -> None:
    details = report.details
    assert details is not None
    words = texts(files / "reliability.svg")
    for bins, name in ((details.before, "before"), (details.after, "after")):
        assert f"{name}: ECE {100 * bins.ece:.2f} %" in words
    assert {"confidence", "accuracy", "bins, 95 % interval", "accuracy without bins"} <= set(words)
    assert {"samples, %", "right", "wrong"} <= set(texts(files / "confidence.svg"))
    assert f"before: mean {100 * details.risk_before.area:.2f} %" in texts(files / "risk-coverage.svg")
    assert f"chosen: {report.angle:g}°" in texts(files / "search.svg")
    assert "held-out, 64 members" in texts(files / "search.svg")
    assert "average of tilted weights" in texts(files / "angles.svg")
    for name in ALL:
        assert b"/FontFile2" in (files / f"{name}.pdf").read_bytes()  # TrueType: text can be searched and copied


@needs_matplotlib
def test_nothing_is_told_by_colour_alone(files: Path) -> None:
    for name in ALL:
        drawing = (files / f"{name}.svg").read_text("utf-8")
        lines = set(re.findall(r"stroke-dasharray: ?([0-9. ,]+)", drawing))
        assert lines, name  # dashes beside the solid lines


def drawn(report: Report, name: str) -> Any:
    """Draw one of the figures and return it."""
    details = report.details
    assert details is not None
    figure = importlib.import_module("matplotlib.figure").Figure()
    figures._draw_abreast(figure, figures._figures(report, details)[name])
    return figure


def looks_of(axes: Any) -> dict[str, tuple[str, str]]:
    """Legend entries of the calibration data -> colour and marker."""
    lines = zip(*axes.get_legend_handles_labels(), strict=True)
    return {
        label.removeprefix("calibration, "): (line.get_color(), line.get_marker())
        for line, label in lines
        if label.startswith("calibration, ")
    }


@needs_matplotlib
def test_many_numbers_of_members_are_told_apart(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    details = report.details
    assert details is not None
    sizes = [10, 10, 10, 20, 40, 80, 160, 160, 320, 320, 512]
    steps = (details.steps[0], *(replace(details.steps[1], members=m, angle=1.0 + k) for k, m in enumerate(sizes)))
    many = replace(report, details=replace(details, steps=steps, chosen=1 + sizes.index(40)))
    for axes in drawn(many, "search").axes:
        found = looks_of(axes)
        assert list(found)[-1] == "other numbers of members"
        assert {"10 members", "40 members"} <= set(found)
        assert len(found) == len(set(found.values())) == 5
        shown = [line for line in axes.lines if line.get_linestyle() == "--" and line.get_marker() != "None"]
        assert len(shown) == len(set(sizes))  # each number has a line, with a name or without
    search = figures._figures(many, many.details)["search"]
    monkeypatch.setattr(figures, "_figures", lambda *_: {"search": search})  # the others are as before
    write_figures(many, tmp_path, ("png",))
    image = pytest.importorskip("PIL.Image")
    with image.open(tmp_path / "search.png") as opened:
        pixels = np.asarray(opened.convert("L"))
    assert min(pixels[:, 0].min(), pixels[:, -1].min(), pixels[-1].min()) == 255  # the legend fits


@needs_matplotlib
def test_pictures_are_not_blank_and_large_enough_for_print(files: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for path in files.glob("*.png"):
        with image.open(path) as opened:
            pixels = np.asarray(opened.convert("L"))
        assert pixels.shape[1] >= 1300  # 6.6 inches
        assert np.mean(pixels < 128) > 0.003, path.name
        assert pixels[0].min() == pixels[:, 0].min() == 255, path.name  # nothing is cut off at the border


@needs_matplotlib
def test_the_same_report_gives_the_same_bytes_and_matplotlib_is_left_as_it_was(
    report: Report, files: Path, tmp_path: Path
) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    again = write_figures(report, tmp_path)
    assert len(again) == 18
    assert [path.read_bytes() for path in again] == [(files / path.name).read_bytes() for path in again]
    assert dict(matplotlib.rcParams) == before


@needs_matplotlib
@pytest.mark.parametrize(
    ("options", "held_out"),
    [
        ({"search": "none"}, False),
        ({"search": "complete", "max_accuracy_drop": 5.0, "map": "ets"}, False),
        ({"ensemble_size": 10, "map": "none", "max_accuracy_drop": 5.0}, True),
        ({"bins": 1}, True),
    ],
    ids=str,
)
def test_every_kind_of_run_has_figures(
    small: Small, tmp_path: Path, options: dict[str, object], held_out: bool
) -> None:
    data = small.test if held_out else None
    made = tna_onnx.calibrate(
        small.model, small.calib, eval=data, output=tmp_path / "o", details=True, **TILTED | options
    )
    names = {path.stem for path in write_figures(made, tmp_path / "f", ("svg",))}
    assert names >= {"reliability", "confidence", "risk-coverage", "angles"}
    assert ("search" in names) == (options.get("search") != "none")


# Refusals


def test_a_missing_matplotlib_is_said_before_any_work(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr("tna_onnx.api.calibrate.calibrate", lambda **_: pytest.fail("work was done"))
    result = calibrate(small, tmp_path, "--figures", tmp_path / "f")
    assert result.exit_code == 2
    assert "drawing figures needs matplotlib" in result.output
    assert "pip install 'tna-onnx[plot]'" in result.output
    assert list(tmp_path.iterdir()) == []


def test_bins_have_the_intervals_of_the_page() -> None:
    bins = Bins((0, 4, 250, 1000), (0.0, 0.4, 0.7, 0.95), (0.0, 0.5, 0.5, 0.9))
    figure = pytest.importorskip("matplotlib.figure").Figure()
    figures._draw_abreast(figure, [reliability_chart("model", bins, bins.ece, OF_CLASSES)])
    diagram = figure.axes[0]
    strokes, band = diagram.collections
    filled = [bar for bar in bars(bins) if bar.count]
    np.testing.assert_allclose([line[:, 1] for line in strokes.get_segments()], [bar.interval for bar in filled])
    corners = band.get_paths()[0].vertices
    for bar in filled:
        ends = corners[np.isclose(corners[:, 0], bar.confidence), 1]
        assert (ends.min(), ends.max()) == pytest.approx(bar.consistent)
    assert "bins, 95 % interval" in diagram.get_legend_handles_labels()[1]


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
