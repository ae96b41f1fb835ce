"""Model cards: read back by the libraries that others read them with."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tna_onnx
from tests.pipeline import test_label_models as label_models
from tests.support import cli, ok, refused
from tna_onnx.files import printable
from tna_onnx.numerics.metric import METRICS
from tna_onnx.render.model_card import model_card
from tna_onnx.results.as_json import to_json
from tna_onnx.results.report import Report


@pytest.fixture
def result(report: Report, tmp_path: Path) -> Path:
    path = tmp_path / "result.json"
    path.write_text(to_json(report), "utf-8")
    return path


def header(text: str) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    found: dict[str, Any] = yaml.safe_load(text.split("---\n")[1])
    return found


def test_the_metrics_are_those_of_the_report(report: Report, result: Path, tmp_path: Path) -> None:
    ok("card", result, "-o", tmp_path / "README.md", "--license", "mit", "--task", "tabular-classification")
    text = (tmp_path / "README.md").read_text("utf-8")
    values = header(text)
    assert values["license"] == "mit"
    assert values["pipeline_tag"] == "tabular-classification"
    [model] = values["model-index"]
    [found] = model["results"]
    assert model["name"] == "small.tna.onnx"
    assert found["dataset"]["name"] == report.comparison.data
    for entry in found["metrics"]:
        assert entry["value"] == getattr(report.comparison.after, entry["type"])
    assert [entry["type"] for entry in found["metrics"]] == [*METRICS]
    assert "\n| accuracy, % |" in text


def test_the_hub_reads_it(result: Path, tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub")
    path = tmp_path / "README.md"
    cli("card", result, "-o", path)
    card = hub.ModelCard.load(path)
    assert {entry.metric_type for entry in card.data.eval_results} == {*METRICS}
    assert card.data.library_name == "onnx"


def test_a_base_model_is_named(result: Path) -> None:
    known = header(ok("card", result, "--base-model", "my-org/net").stdout)
    assert (known["base_model"], known["base_model_relation"]) == ("my-org/net", "finetune")
    assert "base_model_relation" not in header(ok("card", result).stdout)


def test_a_text_of_a_person_is_kept(result: Path, tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text("# Ours\n", "utf-8")
    refused(2, "--overwrite", "card", result, "-o", path)
    assert path.read_text("utf-8") == "# Ours\n"
    ok("card", result, "-o", path, "--overwrite")
    assert header(path.read_text("utf-8"))["library_name"] == "onnx"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda v: v.pop("comparison"), "is not the JSON of a calibration"),
        (lambda v: v.update(model=3), "is not the JSON of a calibration"),
        (lambda v: v.update(comparison=[]), "is not the JSON of a calibration"),
        (lambda v: v["comparison"]["before"].pop("nll"), "'nll' is missing"),
        (lambda v: v["comparison"].update(before={"n": "many"}), "Report.comparison.before.n: expected int"),
        (lambda v: v.update(dry_run=True), "wrote no model"),
        (lambda v: v.update(missed=["ECE"]), "wrote no model"),
    ],
)
def test_what_is_no_report_of_a_written_model_is_refused(result: Path, change: Any, expected: str) -> None:
    values = json.loads(result.read_text("utf-8"))
    change(values)
    result.write_text(json.dumps(values), "utf-8")
    done = cli("card", result)
    assert done.exit_code == 2
    assert expected in done.output


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000])
def test_what_is_no_json_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(content, "utf-8")
    refused(2, "", "card", path)
    refused(2, "", "card", tmp_path / "missing.json")


def test_names_cannot_leave_their_place(report: Report) -> None:
    evil = 'x"\n---\nlicense: gpl\n`` <script>alert(1)</script> [a](b) \x85\u2028'
    measured = dataclasses.replace(report.comparison, data=evil)
    renamed = dataclasses.replace(report, comparison=measured, model=evil, output=evil, notes=(evil,))
    text = model_card(renamed, {})
    assert "license" not in header(text)
    body = re.sub(r"```.*?```|`[^`\n]*`", "", text.split("---\n", 2)[2], flags=re.DOTALL)
    assert "<script>" not in body.replace("\\<", "")
    assert "](b)" not in body.replace("\\]", "")


@settings(max_examples=10)
@given(st.text(max_size=20), st.floats(0, 1))
@example("\x85\u2028\U0001f600 # no: comment", 1e-7)
@example("a: {b}", 0.0)
def test_yaml_reads_what_was_written(report: Report, name: str, value: float) -> None:
    c = report.comparison
    measured = dataclasses.replace(c, data=name, after=dataclasses.replace(c.after, ece=value))
    [model] = header(model_card(dataclasses.replace(report, comparison=measured), {"license": name}))["model-index"]
    [found] = model["results"]
    assert found["dataset"]["name"] == printable(name)
    assert {entry["type"]: entry["value"] for entry in found["metrics"]}["ece"] == value


def test_several_labels_a_sample_are_said(tmp_path: Path) -> None:
    """A mean over labels is another number than the metric of classes under that name."""
    report = tna_onnx.calibrate(
        label_models.model(),
        label_models.samples(600, 1),
        search="none",
        map="ts",
        output=tmp_path / "o.onnx",
        device="cpu",
    )
    text = model_card(report, {})
    assert "Each metric is the mean over the labels" in text
