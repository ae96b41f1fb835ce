"""What `--json` writes, against the schema that is shipped: every key of every kind of result, with its unit."""

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tna_onnx
from tests.conftest import Demo, Small
from tests.pipeline.samples import few
from tests.support import PLAIN, TILTED, cli, words_of
from tna_onnx.api.schema import json_schema
from tna_onnx.graph.parts import Difference
from tna_onnx.numerics.metric import METRICS
from tna_onnx.results.as_json import to_json
from tna_onnx.results.inspection import Collection, Inspection, ModelDifference
from tna_onnx.results.measured import Evaluation, ModelComparison
from tna_onnx.results.outcomes import Guard, Shift
from tna_onnx.results.report import Report
from tna_onnx.results.study import Studies, Study
from tna_onnx.search.candidates import SearchSettings

jsonschema = pytest.importorskip("jsonschema")

FAST = [*words_of(PLAIN), "--quiet"]
SEARCHED = [*words_of(TILTED), "--quiet"]
KINDS = [
    "report", "evaluation", "collection", "inspection", "modeldifference", "modelcomparison", "guard",
    "shift", "studies", "study",
]  # fmt: skip


def valid(text: str) -> dict[str, Any]:
    """Parse a result and hold it against the schema of its own kind."""

    def refuse(word: str) -> None:
        raise AssertionError(f"bare {word}")

    data: dict[str, Any] = json.loads(text, parse_constant=refuse)
    assert data["schema"] == f"tna-onnx/{data['kind']}/1"
    jsonschema.Draft202012Validator(json_schema(data["kind"])).validate(data)
    return data


def written(folder: Path, *arguments: object, code: int = 0) -> dict[str, Any]:
    """Run a command with --json and return what it wrote."""
    file = folder / "result.json"
    result = cli(*arguments, "--json", file)
    assert result.exit_code == code, result.output
    return valid(file.read_text("utf-8"))


# The schema


def test_the_schema_is_one_and_each_kind_has_its_own() -> None:
    assert [choice["$ref"].rpartition("/")[2] for choice in json_schema()["oneOf"]] == KINDS
    jsonschema.Draft202012Validator.check_schema(json_schema())
    assert len({json_schema(kind)["$id"] for kind in KINDS}) == len(KINDS)
    with pytest.raises(ValueError, match="no result of kind 'nonsense'; expected report, evaluation"):
        json_schema("nonsense")


def parts(schema: Any, name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every sub-schema with the key that it describes."""
    if isinstance(schema, dict):
        yield name, schema
        for key, value in schema.items():
            if key in ("properties", "$defs"):
                for word, part in value.items():
                    yield from parts(part, word)
            else:
                yield from parts(value, name)
    elif isinstance(schema, list):
        for part in schema:
            yield from parts(part, name)


UNITS = ("fraction", "per cent", "percentage points", "nats", "degrees", "radians", "no unit", "unit of the metric",
         "units of", "number of rotations", "lengths of", "seconds")  # fmt: skip


def test_every_key_has_a_description_and_every_number_its_unit() -> None:
    for name, schema in parts(json_schema()):
        if "properties" in schema:
            assert schema["additionalProperties"] is False, name
            assert set(schema["required"]) <= set(schema["properties"])
            for key, part in schema["properties"].items():
                assert part["description"].endswith("."), (name, key)
        kinds = schema.get("type", ())
        if "number" in ([kinds] if isinstance(kinds, str) else kinds) and "description" in schema:
            assert any(unit in schema["description"].lower() for unit in UNITS), (name, schema["description"])


def fields(cls: type) -> set[str]:
    return {field.name for field in dataclasses.fields(cls)}


RESULTS = (Report, Evaluation, Collection, Inspection, ModelDifference, ModelComparison, Guard, Shift, Studies, Study)


def test_the_schema_follows_the_dataclasses() -> None:
    defined = json_schema()["$defs"]
    for kind, cls in zip(KINDS, RESULTS, strict=True):
        in_memory = {"recalibrated", "patch"} if cls is Report else set()
        expected = fields(cls) - in_memory | {"schema", "kind"}
        assert set(defined[kind]["properties"]) - {"verdict"} == expected
    assert {kind for kind in KINDS if "verdict" in defined[kind]["properties"]} == {"report", "modeldifference"}
    assert set(defined["differences"]["properties"]) == set(METRICS)
    assert set(defined["settings"]["properties"]) == fields(SearchSettings) | {
        "batch_size", "computed_on", "confidence_level", "device", "ensemble_size_asked", "ets_loss", "fold", "gates",
        "keep_decision", "map", "map_objective", "method", "predictions", "quantized_head", "search", "trust_labels",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"surprise": 1}, "'surprise' was unexpected"),
        ({"opset": "17"}, "is not of type 'integer'"),
        ({"schema": "tna-onnx/inspection/2"}, "was expected"),
    ],
)
def test_a_validator_can_fail(small: Small, change: dict[str, Any], message: str) -> None:
    data = valid(to_json(tna_onnx.inspect(small.model)))
    with pytest.raises(jsonschema.ValidationError, match=message):
        jsonschema.validate(data | change, json_schema("inspection"))


# Results


@pytest.mark.parametrize(
    ("flags", "held_out"),
    [
        (["--search", "none", "--map", "auto"], True),
        (["--search", "complete", "--map", "ets", "--max-accuracy-drop", "5"], True),
        (["--map", "none", "--ensemble-size", "inf", "--dry-run"], False),
        (["--map", "aar", "--objective", "nll"], False),
    ],
    ids=str,
)
def test_calibrate(small: Small, tmp_path: Path, flags: list[str], held_out: bool) -> None:
    data = ["--eval", small.test] if held_out else []
    command = ["calibrate", small.model, "--calib", small.calib, *data, "-o", tmp_path / "o.onnx"]
    report = written(tmp_path, *command, *SEARCHED, *flags)
    assert report["kind"] == "report"
    for side in ("before", "after"):
        bins, metrics = report["reliability"][side], report["comparison"][side]
        assert sum(bins["count"]) == metrics["n"] == 1500
        assert len(bins["count"]) == len(bins["confidence"]) == len(bins["accuracy"]) == metrics["bins"]
        gaps = zip(bins["count"], bins["confidence"], bins["accuracy"], strict=True)
        if (
            held_out or side == "before"
        ):  # the ECE of cross-fitted scores is corrected, the diagram shows them as they are
            assert sum(n * abs(c - a) for n, c, a in gaps) / metrics["n"] == pytest.approx(metrics["ece"], abs=1e-12)
    assert "details" not in report


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], {"method": "auto", "search": "auto", "map": "auto", "fold": True, "ensemble_size_asked": "auto"}),
        (
            ["--ensemble-size", "inf", "--quantized-head", "float"],
            {"ensemble_size_asked": "inf", "ensemble_size": 0, "quantized_head": "float"},
        ),
    ],
    ids=str,
)
def test_settings_are_those_asked_for(
    small: Small, tmp_path: Path, flags: list[str], expected: dict[str, object]
) -> None:
    np.savez(tmp_path / "calib.npz", **few(small.calib))
    np.savez(tmp_path / "test.npz", **few(small.test))
    data = ["--calib", tmp_path / "calib.npz", "--eval", tmp_path / "test.npz"]  # which spare the cross-fitting
    command = ["calibrate", small.model, *data, "-o", tmp_path / "o.onnx", "--device", "cpu", "--quiet", *flags]
    settings = written(tmp_path, *command)["settings"]
    expected = {"device": "cpu", "computed_on": "NumPy on the CPU", **expected}
    assert {key: settings[key] for key in expected} == expected


def test_missed_gates(small: Small, tmp_path: Path) -> None:
    command = ["calibrate", small.model, "--calib", small.calib, "-o", tmp_path / "o.onnx", "--max-ece", "0.001"]
    report = written(tmp_path, *command, *FAST, code=1)
    assert len(report["missed"]) == 1
    assert report["settings"]["gates"]["max_ece"] == 0.001
    command = ["evaluate", small.model, "--data", small.test, "--max-ece", "0.001", "--quiet", "--device", "cpu"]
    assert len(written(tmp_path, *command, code=1)["missed"]) == 1


def test_verify(small: Small, tmp_path: Path) -> None:
    output = tmp_path / "o.onnx"
    data = ["--calib", small.calib, "--eval", small.test]
    written(tmp_path, "calibrate", small.model, *data, "-o", output, *SEARCHED)
    flags = ["--quiet", "--device", "cpu"]
    found = written(tmp_path, "verify", small.model, output, "--data", small.test, *flags)
    assert found["recalibrated"].endswith("o.onnx")
    assert found["outputs"]["samples"] == 1500
    assert written(tmp_path, "verify", small.model, output, *flags)["outputs"] is None
    assert written(tmp_path, "verify", output, small.model, *flags, code=1)["intact"] is False


def test_inspect(small: Small, demo: Demo, tmp_path: Path) -> None:
    output = tmp_path / "o.onnx"
    written(tmp_path, "calibrate", small.model, "--calib", small.calib, "--eval", small.test, "-o", output, *FAST)
    for model in (small.model, demo.model, output):
        valid(cli("inspect", model, "--json").stdout)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_null(small: Small, value: float) -> None:
    found = tna_onnx.verify(small.model, small.model)
    change = Difference("tensor", "w", "values", largest=value, relative=value)
    data = valid(to_json(dataclasses.replace(found, differences=(change,))))
    assert data["differences"][0]["largest"] is None
