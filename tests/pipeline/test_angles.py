"""Angles between features and class vectors, by hand and from their definition."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.conftest import Small
from tests.pipeline.samples import of_logits, outcome_of
from tna_onnx.pipeline import collected_details as angles_module
from tna_onnx.pipeline.collected_details import angle_counts, feature_angles
from tna_onnx.pipeline.job import Task
from tna_onnx.search.candidates import SearchSettings


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


def test_only_the_original_where_nothing_was_tilted(task: Task) -> None:
    shown, samples = feature_angles(task, task.calibration, SearchSettings(), outcome_of(task))
    assert [each.weight for each in shown] == ["original"]
    assert samples == 1500


def test_nothing_without_a_head(small: Small) -> None:
    task = of_logits(small)
    assert feature_angles(task, task.calibration, SearchSettings(), outcome_of(task)) == ((), 0)
