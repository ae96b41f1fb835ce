"""IROvA as published: scikit-learn's isotonic regression of each class, and what rounding and small samples do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_softmax, softmax
from sklearn.isotonic import IsotonicRegression

import tna_onnx
from tests.conftest import Small
from tests.maps.samples import reduce_of, sample
from tna_onnx.maps.base import apply_map
from tna_onnx.maps.isotonic import IsotonicOneVsAll


def published(logits: np.ndarray, labels: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Probabilities as in the code of Zhang et al., normalised."""
    p, q = softmax(logits, axis=1), softmax(new, axis=1)
    for c in range(p.shape[1]):
        fitted = IsotonicRegression(out_of_bounds="clip").fit(p[:, c], labels == c)
        q[:, c] = fitted.predict(q[:, c]) + 1e-9 * q[:, c]
    return q / q.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("classes", [2, 5, 60])
@pytest.mark.parametrize("size", [50, 3000])
def test_it_is_isotonic_regression_of_each_class(classes: int, size: int) -> None:
    logits, labels, _ = sample(classes=classes, size=size)
    new = sample(classes=classes, size=1000, seed=5)[0]
    fitted = IsotonicOneVsAll.fit(reduce_of(logits, labels))
    for z in (logits, new):
        found = softmax(apply_map(fitted, z.astype(np.float64)), axis=1)
        expected = published(logits, labels, z)
        # a step between samples that lie closer than a ramp is wide, or in the rounding of float32, comes early or late
        assert np.mean(np.abs(found - expected).max(axis=1) > 1e-3) < 0.02
        assert np.abs(found - expected).mean() < 1e-4


def test_a_class_without_samples_is_never_the_answer_where_another_may_be() -> None:
    logits, labels, _ = sample(size=2000)
    labels = np.where(labels == 2, 1, labels)
    fitted = IsotonicOneVsAll.fit(reduce_of(logits, labels))
    log_p = log_softmax(apply_map(fitted, logits.astype(np.float64)), axis=1)
    assert log_p[:, 2].max() < -9
    assert np.isfinite(log_p).all()


def test_samples_of_one_probability_are_one() -> None:
    logits = np.log(np.array([[0.3, 0.7]] * 10 + [[0.8, 0.2]] * 10))
    labels = np.r_[np.repeat([0, 1], [4, 6]), np.repeat([0, 1], [7, 3])]
    fitted = IsotonicOneVsAll.fit(reduce_of(logits, labels))
    found = softmax(apply_map(fitted, logits), axis=1)
    np.testing.assert_allclose(found[[0, 10], 0], [0.4, 0.7], atol=1e-6)


@pytest.mark.parametrize("search", ["none", "sparse"])
def test_the_file_gives_what_was_fitted(small: Small, search: str, tmp_path: Path) -> None:
    """Blocks are many and ramps steep: the check of the written file allows for that, and for no more."""
    words = {"search": search, "map": "irova", "device": "cpu"}
    report = tna_onnx.calibrate(small.model, small.calib, eval=small.test, output=tmp_path / "m.onnx", **words)
    assert report.verification.max_difference < 0.02
    assert tna_onnx.verify(small.model, tmp_path / "m.onnx").intact
