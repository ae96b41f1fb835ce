"""Diagrams of each class, against a loop and scikit-learn."""

from __future__ import annotations

import numpy as np
from sklearn.calibration import calibration_curve

from tests.pipeline.samples import probabilities
from tna_onnx.engine.logits import StoredLogits
from tna_onnx.extraction.table import FeatureTable
from tna_onnx.maps.temperature import Temperature
from tna_onnx.numerics.reliability import Bins
from tna_onnx.pipeline.collected_details import class_bins, class_sums


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
