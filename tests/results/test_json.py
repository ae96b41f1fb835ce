"""What `--json` writes: the fields of the result's dataclass, no more and no fewer, with the types that these say."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tna_onnx
from docs.generated import RESULTS, field_lines, json_fields
from tests.conftest import Demo, Small
from tests.pipeline.samples import few
from tests.support import TILTED, cli, words_of
from tna_onnx.graph.options import Difference
from tna_onnx.results.as_json import from_json, to_json

SEARCHED = [*words_of(TILTED), "--quiet"]
KINDS = {kind.__name__.lower(): kind for kind in RESULTS}


def valid(text: str) -> dict[str, Any]:
    """Parse a result. Read as its dataclass and written again it is the same, so it has all keys and no other."""

    def refuse(word: str) -> None:
        raise AssertionError(f"bare {word}")

    data: dict[str, Any] = json.loads(text, parse_constant=refuse)
    assert data["schema"] == f"tna-onnx/{data['kind']}/1"
    again = to_json(from_json(KINDS[data["kind"]], data), details="details" in data)
    assert json.loads(again) == data
    return data


def written(folder: Path, *arguments: object, code: int = 0) -> dict[str, Any]:
    """Run a command with --json and return what it wrote."""
    file = folder / "result.json"
    result = cli(*arguments, "--json", file)
    assert result.exit_code == code, result.output
    return valid(file.read_text("utf-8"))


# The page of the reference


def test_the_page_describes_each_key_that_is_written(small: Small) -> None:
    """Every field has a line in its dataclass, or this raises; what is not in JSON has no row."""
    page = json_fields()
    sections = dict(part.split("\n", 1) for part in page.split("### ")[1:])
    assert set(KINDS) <= set(sections)
    result = tna_onnx.inspect(small.model)
    for key in json.loads(to_json(result)):
        assert f"\n| `{key}` |" in sections["inspection"]
    assert "`recalibrated`" not in sections["report"]
    assert "`max_ece`" in sections["gates"]
    assert "(#gates)" in sections["run_settings"]


def test_a_field_without_a_line_is_found() -> None:
    @dataclasses.dataclass
    class Silent:
        """A result.

        Attributes:
            said: what it is.
        """

        said: int
        unsaid: int

    with pytest.raises(ValueError, match="differ in unsaid"):
        field_lines(Silent)


@pytest.mark.parametrize(
    "change", [{"surprise": 1}, {"opset": "17"}, {"opset": None}, {"schema": "tna-onnx/inspection/2"}, {"kind": "x"}]
)
def test_the_check_can_fail(small: Small, change: dict[str, Any]) -> None:
    data = json.loads(to_json(tna_onnx.inspect(small.model)))
    with pytest.raises((AssertionError, ValueError, KeyError)):
        valid(json.dumps(data | change))


# Results


@pytest.mark.parametrize(
    ("flags", "held_out"),
    [
        (["--search", "complete", "--map", "ets", "--max-accuracy-drop", "5"], True),
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


def test_settings_are_those_asked_for(small: Small, tmp_path: Path) -> None:
    flags = ["--ensemble-size", "inf", "--quantized-head", "float"]
    expected = {"method": "auto", "fold": True, "ensemble_size_asked": "inf", "quantized_head": "float"}
    np.savez(tmp_path / "calib.npz", **few(small.calib))
    np.savez(tmp_path / "test.npz", **few(small.test))
    data = ["--calib", tmp_path / "calib.npz", "--eval", tmp_path / "test.npz"]  # which spare the cross-fitting
    command = ["calibrate", small.model, *data, "-o", tmp_path / "o.onnx", "--device", "cpu", "--quiet", *flags]
    settings = written(tmp_path, *command)["settings"]
    expected = {"device": "cpu", "computed_on": "NumPy on the CPU", **expected}
    assert {key: settings[key] for key in expected} == expected


def test_inspect(demo: Demo) -> None:
    valid(cli("inspect", demo.model, "--json", "-").stdout)


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_numbers_that_are_not_finite_are_null(small: Small, value: float) -> None:
    found = tna_onnx.verify(small.model, small.model)
    change = Difference("tensor", "w", "values", largest=value, relative=value)
    data = valid(to_json(dataclasses.replace(found, differences=(change,))))
    assert data["differences"][0]["largest"] is None
