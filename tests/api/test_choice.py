"""The choice of a method, end to end: a calibrated model stays as it is, and what is asked for by name is done."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

import tna_onnx
from tests.conftest import Small
from tna_onnx.results.gates import GateMissed

Array = NDArray[Any]

# Nothing is said of search and map; the members are never drawn, which is quick.
FAST: dict[str, Any] = {"ensemble_size": "inf", "angle_step": 15.0, "device": "cpu"}


def logits_of(model: Path, x: Array) -> Array:
    """Compute the small classifier's logits with NumPy."""
    w = {t.name: numpy_helper.to_array(t) for t in onnx.load(model).graph.initializer}
    return np.asarray(np.maximum(x @ w["hidden"], 0) @ w["weight"].T + w["bias"])


def drawn(small: Small, temperature: float = 1.0, seed: int = 7, samples: int = 1000) -> dict[str, Array]:
    """Samples whose labels come from the model's own probabilities, at a temperature."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((samples, 8)).astype(np.float32)
    logits = logits_of(small.model, x)
    return {"x": x, "labels": np.argmax(logits / temperature + rng.gumbel(size=logits.shape), axis=1)}


def run(model: Path | onnx.ModelProto, x: Array) -> Array:
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


@pytest.fixture(scope="module")
def own(small: Small) -> dict[str, Array]:
    return drawn(small)


# --- already calibrated


@pytest.mark.parametrize("held_out", [False, True])
def test_the_output_is_the_input_byte_for_byte(
    small: Small, own: dict[str, Array], tmp_path: Path, *, held_out: bool
) -> None:
    test = drawn(small, seed=8) if held_out else None
    report = tna_onnx.calibrate(small.model, own, eval=test, output=tmp_path / "o.onnx", **FAST)
    assert (tmp_path / "o.onnx").read_bytes() == small.model.read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["o.onnx"]
    assert report.already_calibrated
    others = len(report.methods) - 1  # the input is one of them
    samples = f"{report.comparison.before.n:,} {'held-out' if held_out else 'calibration'} samples"
    assert report.verdict.startswith(
        f"already calibrated, as far as {samples} can tell: none of {others} methods does significantly better than "
        "the input model"
    )
    assert (report.method, report.map, report.angle, report.folded, report.parameters) == ("none", "none", 0, False, {})
    assert report.changes is not None
    assert (report.changes.tensors, report.changes.added, report.changes.nodes) == ((), (), ())
    assert (report.changed_predictions, report.missed) == (0.0, ())
    assert report.comparison.before == report.comparison.after
    assert all((d.low, d.high) == (0, 0) for d in report.comparison.differences.values())
    assert report.verification.max_difference <= report.verification.bound


def test_external_data_are_the_same_bytes(small: Small, own: dict[str, Array], tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    onnx.save_model(
        onnx.load(small.model), source, save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    report = tna_onnx.calibrate(source, own, output=tmp_path / "o.onnx", **FAST)
    assert report.already_calibrated
    (data,) = tmp_path.glob("o.onnx.*.data")
    assert {path.name for path in tmp_path.iterdir()} == {*before, "o.onnx", data.name}
    assert all((tmp_path / name).read_bytes() == data for name, data in before.items())
    old, new = onnx.load(source), onnx.load(tmp_path / "o.onnx")
    assert old == new  # the data loaded
    (tmp_path / "weights.bin").unlink()  # the new model has data of its own
    np.testing.assert_array_equal(run(tmp_path / "o.onnx", own["x"][:9]), run(small.model, own["x"][:9]))


def test_who_requires_an_improvement_gets_none(small: Small, own: dict[str, Array], tmp_path: Path) -> None:
    with pytest.raises(GateMissed) as caught:
        tna_onnx.calibrate(small.model, own, output=tmp_path / "o.onnx", require_improvement=True, **FAST)
    assert caught.value.result.already_calibrated
    assert any("--require-improvement missed" in line for line in caught.value.result.missed)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words", [{"search": "none", "map": "ts"}, {"method": "tna"}, {"search": "none", "map": "bias"}]
)
def test_what_was_asked_for_by_name_is_done_all_the_same(
    small: Small, own: dict[str, Array], tmp_path: Path, words: dict[str, Any]
) -> None:
    report = tna_onnx.calibrate(small.model, own, output=tmp_path / "o.onnx", fail_if_worse=False, **FAST, **words)
    assert not report.already_calibrated
    assert report.map == words.get("map", "ts")
    assert report.methods == ()
    assert (tmp_path / "o.onnx").read_bytes() != small.model.read_bytes()
    assert not report.verdict.startswith("already calibrated")


# --- method


# --- predictions


def shifted(small: Small) -> dict[str, Array]:
    """Labels of a world in which one class has become rare and one frequent: a bias is worth much accuracy."""
    rng = np.random.default_rng(9)
    x = rng.standard_normal((1000, 8)).astype(np.float32)
    logits = logits_of(small.model, x) / 3 + np.array([3.0, 0, 0, 0, -3.0])
    return {"x": x, "labels": np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)}


def test_predictions_may_change_and_are_counted(small: Small, tmp_path: Path) -> None:
    data = shifted(small)
    report = tna_onnx.calibrate(small.model, data, output=tmp_path / "o.onnx", predictions="change", **FAST)
    old, new = run(small.model, data["x"]).argmax(axis=1), run(tmp_path / "o.onnx", data["x"]).argmax(axis=1)
    assert report.changed_predictions == pytest.approx(np.mean(old != new), abs=0.002)  # ties by rounding
    assert report.changed_predictions > 0.05
    assert report.comparison.after.accuracy > report.comparison.before.accuracy
    assert any(
        note == f"{report.changed_predictions:.1%} of the predicted classes change; --predictions keep changes none"
        for note in report.notes
    )


def test_a_class_that_would_lose_keeps_all_predictions_and_the_price_is_said(small: Small, tmp_path: Path) -> None:
    """The class that has become rare would hardly be predicted any more."""
    data = shifted(small)
    report = tna_onnx.calibrate(small.model, data, output=tmp_path / "o.onnx", **FAST)
    old, new = run(small.model, data["x"]), run(tmp_path / "o.onnx", data["x"])
    np.testing.assert_array_equal(old.argmax(axis=1), new.argmax(axis=1))
    (note,) = (note for note in report.notes if "--predictions change" in note)
    assert re.search(r"accuracy \+\d+\.\d\d points", note)
    assert re.search(r"class 4 would lose \d+\.\d\d points of recall", note)


def test_predictions_are_kept(small: Small, tmp_path: Path) -> None:
    data = shifted(small)
    report = tna_onnx.calibrate(small.model, data, output=tmp_path / "o.onnx", predictions="keep", **FAST)
    old, new = run(small.model, data["x"]), run(tmp_path / "o.onnx", data["x"])
    np.testing.assert_array_equal(old.argmax(axis=1), new.argmax(axis=1))
    assert report.changed_predictions == 0.0
    assert report.comparison.after.accuracy == report.comparison.before.accuracy
    assert report.angle == 0
    assert report.map in ("ts", "ets", "aar", "none")
    assert not any("predicted classes change" in note for note in report.notes)
