"""The numbers behind figures: diagrams of classes against a loop and scikit-learn, worst samples, and angles."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.calibration import calibration_curve

from tests.data.samples import write_folder
from tests.pipeline.samples import outcome_of, probabilities, scores_of
from tna_onnx.data import InputSpec, open_source
from tna_onnx.engine.logits import StoredLogits
from tna_onnx.extraction.collect import FeatureTable
from tna_onnx.extraction.opened_samples import Samples
from tna_onnx.maps.isotonic import SmoothedIsotonic
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.reliability import Bins
from tna_onnx.numerics.scores import SampleScores
from tna_onnx.pipeline import collected_details as angles_module
from tna_onnx.pipeline.collected_details import (
    angle_counts,
    class_bins,
    class_names,
    class_sums,
    feature_angles,
    worst_rows,
    worst_samples,
)
from tna_onnx.pipeline.job import Collected, Task
from tna_onnx.search.candidates import SearchSettings


def test_class_sums_are_those_of_a_loop_however_the_samples_are_split() -> None:
    rng = np.random.default_rng(1)
    logits, labels, bins = 3 * rng.standard_normal((40, 3)), rng.integers(0, 3, 40), 5
    whole = class_sums(logits, labels, bins)
    parts = class_sums(logits[:7], labels[:7], bins) + class_sums(logits[7:], labels[7:], bins)
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for c in range(3):
        expected = Bins.of(p[:, c], labels == c, bins)
        for found in (whole.bins(c), parts.bins(c)):
            assert found.count == expected.count
            np.testing.assert_allclose(found.confidence, expected.confidence, atol=1e-12)
            np.testing.assert_allclose(found.accuracy, expected.accuracy, atol=1e-12)


def test_diagrams_before_and_after_are_those_of_scikit_learn() -> None:
    """`calibration_curve` cuts [0, 1] into the same bins, closed above, and leaves the empty ones out."""
    rng = np.random.default_rng(2)
    logits = (3 * rng.standard_normal((500, 3))).astype(np.float32)
    labels = rng.integers(0, 3, 500)
    stored = StoredLogits(FeatureTable(logits, labels, 64))
    diagrams = class_bins(("a", "b", "c"), (stored, None), (stored, Temperature(3.0)), 10)
    assert [each.name for each in diagrams] == ["a", "b", "c"]
    assert [each.samples for each in diagrams] == np.bincount(labels).tolist()
    for c, diagram in enumerate(diagrams):
        for bins, p in ((diagram.before, probabilities(logits)), (diagram.after, probabilities(logits / 3))):
            share, mean = calibration_curve(labels == c, p[:, c], n_bins=10)
            full = np.array(bins.count) > 0
            np.testing.assert_allclose(np.array(bins.accuracy)[full], share, atol=1e-12)
            # sums of a few hundred probabilities, in float64; the map may round logits to float32
            np.testing.assert_allclose(np.array(bins.confidence)[full], mean, atol=1e-6)


# ---- The worst samples of a result, and what they and their classes are called


IMAGE = InputSpec("image", (None, 3, None, None), np.dtype(np.float32))


def test_worst_rows() -> None:
    over, under = worst_rows(scores_of([0.9, 0.8, 0.2, 0.99, 0.1], [False, True, True, False, True]), 2)
    assert (over.tolist(), under.tolist()) == ([3, 0], [4, 2])
    over, under = worst_rows(scores_of([0.9], [True]))
    assert (over.tolist(), under.tolist()) == ([], [0])


def collected(task: Task, source: Any) -> Collected:
    table = FeatureTable(np.zeros((len(source), 1), np.float32), source.labels)
    return Collected(Samples(source, task.readout), table)


def test_samples_are_named_by_the_classes_that_the_map_predicts(task: Task) -> None:
    logits = np.log(np.float32([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]))
    labels = np.array([1, 0, 1])
    source = open_source(
        {"x": np.zeros((3, 4), np.float32), "labels": labels}, [InputSpec("x", (None, 4), IMAGE.dtype)], 2
    )
    swapped = SmoothedIsotonic((((0.5,), (-9.0,)), ((0.5,), (9.0,))))  # always the second class
    after = SampleScores.of_logits(np.log(np.float32([[0.3, 0.7]] * 3)), labels)
    stored = StoredLogits(FeatureTable(logits, labels, 2))
    before = stored.scores()
    over, under = worst_samples(collected(task, source), ("no", "yes"), before, after, stored, swapped)
    assert [(s.row, s.label, s.predicted) for s in over] == [(1, "no", "yes")]
    assert [(s.row, s.label, s.predicted) for s in under] == [(0, "yes", "yes"), (2, "yes", "yes")]
    assert [s.before for s in under] == pytest.approx([0.9, 0.8], abs=1e-6)
    assert [s.after for s in under] == pytest.approx([0.7, 0.7], abs=1e-6)
    assert {s.file for s in (*over, *under)} == {""}


@pytest.mark.parametrize(
    ("files", "labels", "expected"),
    [
        (["cat/1.png", "dog/1.png"], None, ("cat", "dog", "2", "3", "4")),
        (["a/1.png", "a/2.png", "b/1.png"], [0, 1, 1], ("0", "1", "2", "3", "4")),  # a folder of two classes
        (["a/1.png", "b/1.png", "c/1.png"], [0, 1, 1], ("0", "1", "2", "3", "4")),  # a class in two folders
        (["1.png", "b/1.png"], [0, 1], ("0", "1", "2", "3", "4")),  # an image in no folder
    ],
)
def test_folders_name_classes_only_one_to_one(
    task: Task, tmp_path: Path, files: list[str], labels: list[int] | None, expected: tuple[str, ...]
) -> None:
    write_folder(tmp_path, files)
    classes = 2 if labels is None else 5
    source = open_source(tmp_path, [IMAGE], classes, labels=labels)
    assert class_names(task, collected(task, source)) == expected


# ---- Angles between features and class vectors, by hand and from their definition


def test_counts_are_those_of_a_loop() -> None:
    rng = np.random.default_rng(0)
    features, weight, bias = rng.standard_normal((30, 4)), rng.standard_normal((3, 4)), rng.standard_normal(3)
    expected = np.zeros((2, 90))
    for z in features:
        first = max(range(3), key=lambda c: float(z @ weight[c] + bias[c]))
        for c, w in enumerate(weight):
            angle = math.degrees(math.acos(float(z @ w) / math.hypot(*z) / math.hypot(*w)))
            expected[int(c != first), int(angle / 2)] += 1
    np.testing.assert_array_equal(angle_counts(features, weight, bias), expected)


def test_shares_and_lengths_of_the_three_weights(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(angles_module, "_MAX_SAMPLES", 100)
    assert task.weight is not None
    outcome = outcome_of(task, weight=task.weight / 2, angle=30.0)
    shown, samples = feature_angles(task, task.calibration, SearchSettings(angle_step=30.0), outcome)
    assert samples == 100  # every fifteenth of 1500
    assert [each.weight for each in shown] == ["original", "tilted", "averaged"]
    for each in shown:
        assert sum(each.predicted) == pytest.approx(1)
        assert sum(each.others) == pytest.approx(1)
    # a rotation keeps lengths, up to float32; the average of this test is half as long, in the same directions
    assert [each.length for each in shown] == pytest.approx([1, 1, 0.5], abs=1e-5)
    assert task.head is not None
    counts = angle_counts(task.calibration.table.features[::15], task.weight, task.head.bias)
    np.testing.assert_allclose(shown[0].predicted, counts[0] / counts[0].sum(), rtol=1e-12)
