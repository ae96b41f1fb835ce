"""Keywords of the public functions are the fields of their values, and come to the same; progress that is shown."""

from __future__ import annotations

import dataclasses
import inspect
import json
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import tna_onnx
from tests.conftest import Small
from tests.support import PLAIN
from tna_onnx.api import arguments
from tna_onnx.api import arguments as keywords
from tna_onnx.data.options import Data
from tna_onnx.errors import UsageError
from tna_onnx.fields import hints_of
from tna_onnx.graph.options import ModelOptions
from tna_onnx.guarding.guard_settings import GuardSettings
from tna_onnx.pipeline.settings import Settings
from tna_onnx.render import progress_bars
from tna_onnx.results.gates import Gates

VALUES = (Data, ModelOptions, Settings, Gates)


def test_words_are_the_fields_of_the_values_with_their_types() -> None:
    decisions = get_type_hints(keywords.DecisionWords)
    words = {name: kind for name, kind in get_type_hints(keywords.CalibrateWords).items() if name not in decisions}
    fields = {name: kind for value in VALUES for name, kind in hints_of(value).items() if name != "samples"}
    drop = "max_accuracy_drop"  # a setting of the search, always a number; as a gate it may be None
    assert words.pop("eval_labels") is Any
    assert words.pop(drop) is float
    assert fields.pop(drop) == float | None
    # the class of recipes loads with the first image, so the field does not resolve it
    assert "Recipe" in str(words.pop("preprocessing"))
    names = {field.name for value in VALUES for field in dataclasses.fields(value)} - {"samples", "preprocessing", drop}
    assert words == {name: fields[name] for name in names}


def test_words_on_decisions_are_the_fields_that_the_search_has_not() -> None:
    """Both `calibrate` and `guard` take them; `seed` and the level of intervals are one word for both."""
    own = get_type_hints(GuardSettings)
    shared = {"seed", "confidence_level"}
    words = get_type_hints(keywords.DecisionWords)
    assert shared == {*own} & {*get_type_hints(Settings)}
    assert words.keys() == own.keys() - shared
    assert {name: kind for name, kind in words.items() if name != "add"}.items() <= own.items()
    assert words.keys() <= get_type_hints(keywords.CalibrateWords).keys()


def test_words_of_a_smaller_function_are_words_of_calibrate() -> None:
    everything = get_type_hints(keywords.CalibrateWords)
    for words in (keywords.DataModelWords, keywords.EvaluateWords, keywords.StudyWords):
        assert get_type_hints(words).items() <= everything.items()


@pytest.mark.parametrize("name", ["calibrate", "compare", "evaluate", "features", "study", "verify"])
def test_a_keyword_that_does_not_exist_is_refused_with_a_hint(name: str) -> None:
    function = getattr(tna_onnx, name)
    positional = [p for p in inspect.signature(function).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    with pytest.raises(TypeError, match=rf"{name}\(\) got an unexpected keyword .*did you mean 'classes'"):
        function(*["x"] * len(positional), clases="names.txt")


def test_values_and_keywords_give_the_same_file(small: Small, tmp_path: Path) -> None:
    one, two = tmp_path / "one.onnx", tmp_path / "two.onnx"
    tna_onnx.calibrate(small.model, small.calib, output=one, seed=3, max_nll=9.0, **PLAIN | {"map": "ets"})
    report = tna_onnx.calibrate(
        small.model,
        tna_onnx.Data(small.calib),
        output=two,
        settings=tna_onnx.Settings(search="none", map="ets", seed=3),
        gates=tna_onnx.Gates(max_nll=9.0),
        device="cpu",
    )
    assert one.read_bytes() == two.read_bytes()
    assert report.settings["seed"] == 3
    assert report.settings["gates"] == dataclasses.asdict(tna_onnx.Gates(max_nll=9.0, max_accuracy_drop=0.3))


def test_held_out_data_are_read_like_the_calibration_data_unless_they_say_otherwise() -> None:
    calib = Data("calib/", labels="calib.csv", label_column="y")
    plain = arguments.held_out_of("eval/", calib, {"eval_labels": "eval.csv", "labels": "calib.csv"})
    assert plain is not None
    assert (plain.samples, plain.labels, plain.label_column) == ("eval/", "eval.csv", "y")
    own = Data("eval.parquet", format="table")
    held_out = arguments.held_out_of(own, calib, {"skip_bad": True, "labels": "calib.csv"})
    assert held_out is not None
    assert (held_out.format, held_out.skip_bad, held_out.labels) == ("table", True, None)
    assert arguments.held_out_of(None, calib, {}) is None


def test_the_loss_of_accuracy_is_a_setting_and_a_gate() -> None:
    settings = arguments.with_words(Settings(), {"max_accuracy_drop": 1.5})
    assert settings.for_search.max_accuracy_drop == 0.015
    assert arguments.gates_of({"max_accuracy_drop": 1.5}, settings).max_accuracy_drop == 1.5
    assert arguments.gates_of({}, Settings()).max_accuracy_drop == Settings().max_accuracy_drop
    assert arguments.gates_of({}, Settings(), Gates(max_ece=5)).max_accuracy_drop == Settings().max_accuracy_drop
    assert arguments.gates_of({}, Settings(), Gates(max_accuracy_drop=2)).max_accuracy_drop == 2


def test_several_names_where_one_is_expected(small: Small) -> None:
    with pytest.raises(UsageError, match="head: expected one name, got"):
        tna_onnx.calibrate(small.model, small.calib, head=["a", "b"])  # type: ignore[arg-type]


# ---- What the functions write besides their results: the same files as the command line


def test_calibrate_writes_what_the_command_line_writes(small: Small, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page, file, folder = tmp_path / "r.html", tmp_path / "r.json", tmp_path / "figures"
    report = tna_onnx.calibrate(
        small.model, small.calib, output=tmp_path / "o.onnx", report=page, json=file, figures=folder, **PLAIN
    )
    assert page.read_text().startswith("<!doctype html>") or "<html" in page.read_text()
    stored = json.loads(file.read_text())
    assert (stored["verdict"], "details" in stored) == (report.verdict, True)
    assert {path.suffix for path in folder.iterdir()} == {".svg", ".png", ".pdf"}


def test_a_missed_gate_is_written_too(small: Small, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    with pytest.raises(tna_onnx.GateMissed):
        tna_onnx.calibrate(small.model, small.calib, output=tmp_path / "o.onnx", json=file, max_ece=0, **PLAIN)
    assert json.loads(file.read_text())["missed"] != []
    with pytest.raises(tna_onnx.GateMissed):
        tna_onnx.evaluate(small.model, small.calib, device="cpu", json=file, max_ece=0)
    assert json.loads(file.read_text())["missed"] != []


def test_json_of_the_others(small: Small, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    tna_onnx.verify(small.model, small.model, data=small.calib, device="cpu", json=file)
    assert json.loads(file.read_text())["intact"] is True
    tna_onnx.features(small.model, small.calib, tmp_path / "f", device="cpu", json=file)
    assert json.loads(file.read_text())["folder"]
    tna_onnx.compare([small.model, small.model], small.calib, device="cpu", json=file)
    assert len(json.loads(file.read_text())["models"]) == 2


def test_files_that_cannot_be_written_are_refused_before_the_work(small: Small, tmp_path: Path) -> None:
    for words in ({"json": tmp_path / "no" / "r.json"}, {"json": tmp_path}, {"report": tmp_path / "no" / "r.html"}):
        with pytest.raises(tna_onnx.UsageError, match=r"does not exist|is a folder"):
            tna_onnx.calibrate("missing.onnx", "missing.npz", **words)


def test_progress_is_shown_or_told(
    small: Small, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_bars.Lines.__init__, "__defaults__", (30.0, 0.0))
    tna_onnx.evaluate(small.model, small.calib, device="cpu", progress=True)
    assert "evaluate: " in capfd.readouterr().err
    steps: list[str] = []
    tna_onnx.evaluate(small.model, small.calib, device="cpu", progress=lambda stage, *_: steps.append(stage))
    tna_onnx.evaluate(small.model, small.calib, device="cpu", progress=False)
    assert set(steps) == {"evaluate"}
    assert capfd.readouterr() == ("", "")
