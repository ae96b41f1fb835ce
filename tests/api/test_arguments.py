"""Keywords of the public functions are the fields of their values, and come to the same."""

from __future__ import annotations

import dataclasses
import inspect
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
