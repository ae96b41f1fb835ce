"""What the labels of a run look like before anything is searched, through the public function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tna_onnx
from tests.api.test_choice import logits_of
from tests.conftest import Small
from tna_onnx.errors import DataError

FAST: dict[str, Any] = {"search": "none"}
PER_CLASS = ("bias", "svs", "sms", "isotonic", "aar", "refit")


def drawn(small: Small, classes: int = 5, size: int = 600, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Labels drawn from overconfident logits; only the first classes occur."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((4 * size, 8)).astype(np.float32)
    logits = logits_of(small.model, x)
    labels = np.argmax(logits / 2 + rng.gumbel(size=logits.shape), axis=1)
    kept = np.flatnonzero(labels < classes)[:size]
    return {"x": x[kept], "labels": labels[kept]}


def test_classes_that_are_missing_leave_what_keeps_predictions(small: Small, tmp_path: Path) -> None:
    data = drawn(small, classes=3)
    every = drawn(small, seed=1)
    report = tna_onnx.calibrate(small.model, data, eval=every, output=tmp_path / "o.onnx", **FAST)
    assert {each.method for each in report.methods} <= {"none", "ts", "ets"}
    assert report.comparison.after.accuracy == report.comparison.before.accuracy
    assert report.classes_unseen == (3, 4)
    first = report.notes[0]
    assert first.startswith("the calibration data have no sample of 2 of 5 classes (3, 4): maps with numbers")


@pytest.mark.parametrize("name", PER_CLASS)
def test_a_map_by_name_that_would_unlearn_classes_is_refused(small: Small, tmp_path: Path, name: Any) -> None:
    with pytest.raises(DataError, match=f"map {name}: the calibration data have no sample of 1 of 5 classes"):
        tna_onnx.calibrate(small.model, drawn(small, classes=4), output=tmp_path / "o.onnx", map=name, **FAST)
    assert list(tmp_path.iterdir()) == []


def test_few_samples_of_a_class_are_named(small: Small, tmp_path: Path) -> None:
    data = drawn(small)
    kept = np.flatnonzero((data["labels"] != 2) | (np.cumsum(data["labels"] == 2) <= 3))
    few = {name: values[kept] for name, values in data.items()}
    report = tna_onnx.calibrate(small.model, few, output=tmp_path / "o.onnx", map="ts", **FAST)
    assert (report.classes_unseen, report.classes_scarce) == ((), (2,))
    assert "the calibration data have fewer than 5 of 1 of 5 classes (2)" in report.notes


@pytest.mark.parametrize("which", ["calib", "eval"])
def test_labels_in_another_order_end_the_run(small: Small, tmp_path: Path, which: str) -> None:
    data = {"calib": drawn(small), "eval": drawn(small, seed=1)}
    data[which] = {**data[which], "labels": (data[which]["labels"] + 1) % 5}
    with pytest.raises(DataError, match=f"{which}: accuracy is .* in another order.*trust_labels"):
        tna_onnx.calibrate(small.model, data["calib"], eval=data["eval"], output=tmp_path / "o.onnx", map="ts", **FAST)
    assert list(tmp_path.iterdir()) == []
