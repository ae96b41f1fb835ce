"""What a sample's scores are made of, against the definition in float64."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax

from tests.support import pairwise
from tna_onnx.numerics.scores import numpy_terms


@pytest.mark.parametrize(
    ("dtype", "spread", "classes"), pairwise(["float32", "float64"], [1.0, 20.0, 300.0], [3, 64, 65, 256, 700])
)
def test_terms_are_the_definition_where_most_exponentials_are_tiny(dtype: str, spread: float, classes: int) -> None:
    rng = np.random.default_rng(classes)
    logits = (spread * rng.standard_normal((50, classes))).astype(dtype)
    labels = rng.integers(0, classes, 50)
    confidence, hits, nll, brier = numpy_terms(logits, labels)
    log_p = log_softmax(logits.astype(np.float64), axis=1)
    p = np.exp(log_p)
    rtol = 1e-5 if dtype == "float32" else 3e-7  # of float32 results
    np.testing.assert_allclose(confidence, p.max(axis=1), rtol=rtol)
    np.testing.assert_array_equal(hits, p.argmax(axis=1) == labels)
    np.testing.assert_allclose(nll, -log_p[np.arange(50), labels], rtol=rtol, atol=1e-6)
    expected = np.sum((p - np.eye(classes)[labels]) ** 2, axis=1)
    np.testing.assert_allclose(brier, expected, rtol=rtol, atol=1e-6)


def test_a_class_that_is_masked_out_is_no_exception() -> None:
    logits = np.full((1, 70), -np.inf, np.float32)
    logits[0, :2] = 1.0, 0.0
    confidence, hits, nll, _ = numpy_terms(logits, np.array([0]))
    assert hits[0]
    assert nll[0] == pytest.approx(np.log1p(np.exp(-1)), rel=1e-6)
    assert confidence[0] == pytest.approx(1 / (1 + np.exp(-1)), rel=1e-6)


@pytest.mark.parametrize("classes", [3, 70])
def test_an_infinite_logit_has_no_scores(classes: int) -> None:
    logits = np.zeros((2, classes), np.float32)
    logits[0, 1] = np.inf
    with np.errstate(invalid="ignore"):
        confidence, _, nll, brier = numpy_terms(logits, np.zeros(2, np.int64))
    assert np.isnan([confidence[0], nll[0], brier[0]]).all()
    assert np.isfinite([confidence[1], nll[1], brier[1]]).all()
