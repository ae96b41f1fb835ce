"""Results that show themselves: a short repr, plain values, rows with units, figures and pages; all in one way."""

import importlib
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

import tna_onnx
from tests.conftest import Small
from tests.support import with_options
from tna_onnx.numerics.metric import METRICS
from tna_onnx.results.as_json import Displayed, from_json

KINDS = ("report", "detailed", "evaluation", "modelcomparison", "studies", "study")


@pytest.fixture(scope="module")
def results(small: Small, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("shown")
    words: dict[str, Any] = {"eval": small.test, "device": "cpu", "search": "none", "map": "ts"}
    report = with_options(tna_onnx.calibrate, small.model, small.calib, output=folder / "o.onnx", **words)
    studies = tna_onnx.study(small.model, small.calib, eval=small.test, only=["angles"], repeats=2, device="cpu")
    return {
        "report": report,
        "detailed": with_options(tna_onnx.calibrate, small.model, small.calib, dry_run=True, details=True, **words),
        "evaluation": tna_onnx.evaluate(small.model, small.test, device="cpu"),
        "modelcomparison": tna_onnx.compare([small.model, folder / "o.onnx"], small.test, device="cpu"),
        "studies": studies,
        "study": studies["angles"],
    }


@pytest.mark.parametrize("kind", KINDS)
def test_plain_values_are_those_of_the_json_and_a_result_comes_back_from_them(
    results: dict[str, Any], kind: str
) -> None:
    result = results[kind]
    values = result.to_dict()
    assert json.loads(json.dumps(values)) == values
    assert values["kind"] == kind.replace("detailed", "report")
    assert ("details" in values) == (kind == "detailed")
    again = from_json(type(result), values)
    assert again.to_dict() == values
    assert repr(again) == repr(result)
    if kind == "evaluation":
        values["metrics"]["nll"] = None
        assert math.isnan(from_json(type(result), values).metrics.nll)


def test_rows_have_the_units_of_arguments(results: dict[str, Any], small: Small) -> None:
    rows = {row["metric"]: row for row in results["evaluation"].records()}
    metrics = results["evaluation"].metrics
    assert [*rows] == [*METRICS]
    assert rows["ece"] == {"metric": "ece", "unit": "%", "value": 100 * metrics.ece}
    assert rows["nll"] == {"metric": "nll", "unit": "nats", "value": metrics.nll}
    # the limit of a gate is such a number
    above = rows["ece"]["value"] + 1e-9
    tna_onnx.evaluate(small.model, small.test, device="cpu", gates=tna_onnx.Gates(max_ece=above))
    with pytest.raises(tna_onnx.GateMissed):
        tna_onnx.evaluate(small.model, small.test, device="cpu", gates=tna_onnx.Gates(max_ece=above - 1e-6))
    with pytest.raises(tna_onnx.GateMissed):
        tna_onnx.evaluate(
            small.model, small.test, device="cpu", gates=tna_onnx.Gates(max_nll=rows["nll"]["value"] - 1e-6)
        )


def test_rows_hold_differences_with_intervals(results: dict[str, Any]) -> None:
    report = results["report"]
    row = next(row for row in report.records() if row["metric"] == "accuracy")
    found = report.comparison.differences["accuracy"]
    assert (row["unit"], row["difference_unit"]) == ("%", "points")
    assert row["difference"] == pytest.approx(100 * found.difference)
    assert (row["low"], row["high"]) == (pytest.approx(100 * found.low), pytest.approx(100 * found.high))
    comparison = results["modelcomparison"]
    rows = comparison.records()
    assert len(rows) == len(comparison.models) * len(METRICS)
    baseline = [row for row in rows if row["model"] == comparison.baseline]
    assert {row["difference"] for row in baseline} == {None}
    (other,) = [row for row in rows if row["model"] != comparison.baseline and row["metric"] == "nll"]
    assert other["low"] <= other["difference"] <= other["high"]


@pytest.mark.parametrize("kind", KINDS)
def test_data_frames_hold_the_rows(results: dict[str, Any], kind: str) -> None:
    pandas = pytest.importorskip("pandas")
    result: Displayed = results[kind]
    frame = result.to_pandas()
    if kind == "studies":
        frame, result = frame["angles"], results["study"]
    assert isinstance(frame, pandas.DataFrame)
    rows = result.records()
    assert (len(frame), [*frame.columns]) == (len(rows), [*rows[0]])


def test_without_pandas_the_error_says_what_to_do(results: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def missing(name: str, *rest: Any) -> Any:
        if name == "pandas":
            raise ImportError("No module named 'pandas'")
        return real(name, *rest)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(tna_onnx.UsageError, match=r"pip install pandas, or use records\(\)"):
        results["report"].to_pandas()


@pytest.mark.parametrize("kind", KINDS)
def test_pages_load_nothing_and_stand_in_a_frame(results: dict[str, Any], kind: str, tmp_path: Path) -> None:
    result: Displayed = results[kind]
    saved = result.save_html(tmp_path / "page.html")
    assert saved == tmp_path / "page.html"
    page = saved.read_text("utf-8")
    assert "<svg" in page
    assert not re.search(r'(?:src|href)="(?!#|[a-z]+\.(?:csv|json)"|data:)', page)
    assert result._repr_html_().startswith("<iframe")
    # what is quoted ends where the frame does
    assert result._repr_html_().count("<") == 2
    with pytest.raises(tna_onnx.UsageError, match="cannot be written"):
        result.save_html(tmp_path / "none" / "page.html")


@pytest.mark.parametrize(
    ("kind", "panels"), [("report", 2), ("detailed", 2), ("evaluation", 1), ("modelcomparison", 2)]
)
def test_figures_are_reliability_diagrams(results: dict[str, Any], kind: str, panels: int, tmp_path: Path) -> None:
    files = {path.name: path.read_text("utf-8") for path in results[kind].save_figures(tmp_path)}
    assert len(re.findall(r">[^<]*ECE \d+\.\d+ %<", files["reliability.svg"])) == panels
    assert len(files) > 1 or kind != "detailed"
