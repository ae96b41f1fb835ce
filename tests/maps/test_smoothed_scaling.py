"""Vector scaling of smoothed log-probabilities: against its definition, SciPy and probmetrics."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from tests.maps.samples import reduce_of, sample
from tests.maps.test_linear_maps import nll, probmetrics  # noqa: F401 - a fixture
from tna_onnx.maps.base import apply_map
from tna_onnx.maps.smoothed_scaling import SmoothedScaling
from tna_onnx.maps.temperature import Temperature

Array = NDArray[Any]


def smoothed(logits: Array, temperature: float, n: int) -> Array:
    """x, from its definition."""
    share = 1 / (n + 1)
    return np.asarray(np.log((1 - share) * softmax(logits / temperature, axis=1) + share / logits.shape[1]))


@pytest.mark.parametrize(("classes", "size"), [(2, 200), (5, 300), (10, 900)])
def test_factors_and_biases_are_the_minimum_of_the_penalised_nll(classes: int, size: int) -> None:
    logits, labels, _ = sample(classes=classes, size=size)
    reduce = reduce_of(logits, labels, None, (size // 3,))
    found = SmoothedScaling.fit(reduce)
    assert found.temperature == Temperature.fit(reduce).temperature
    x = smoothed(logits, found.temperature, size)
    np.testing.assert_allclose(apply_map(found, logits), (1 + found.vector) * x + found.bias, rtol=1e-12, atol=1e-12)

    def loss(theta: Array) -> float:
        scores = (1 + theta[:classes]) * x + theta[classes:]
        rows = np.arange(size)
        return float(-log_softmax(scores, axis=1)[rows, labels].mean() + classes / size * theta @ theta)

    best = minimize(loss, np.zeros(2 * classes), method="BFGS", options={"gtol": 1e-8})
    np.testing.assert_allclose(np.r_[found.vector, found.bias], best.x, atol=1e-4)


@pytest.mark.parametrize("classes", [3, 10])
def test_it_does_what_probmetrics_does(probmetrics: Any, classes: int) -> None:  # noqa: F811 - the fixture
    logits, labels, _ = sample(classes=classes, size=1500)
    train, test = slice(0, 700), slice(700, None)
    ours = softmax(apply_map(SmoothedScaling.fit(reduce_of(logits[train], labels[train])), logits[test]), axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        oracle = probmetrics.SVSCalibrator()
        oracle.fit(softmax(logits[train], axis=1), labels[train])
        theirs = oracle.predict_proba(softmax(logits[test], axis=1))
    # its temperature is the end of thirty bisections, and its steps end at a tolerance
    np.testing.assert_allclose(ours, theirs, atol=2e-3)


def test_one_sample_that_is_sure_and_wrong_costs_little() -> None:
    """A new sample as none before: its loss has a bound, and that of a temperature has none."""
    logits, labels, _ = sample(classes=4, size=400)
    fitted = SmoothedScaling.fit(reduce_of(logits, labels))
    wrong = np.array([[1e4, 0.0, 0.0, 0.0]])
    after = nll(np.asarray(apply_map(fitted, wrong)), np.array([1]))
    assert after < (1 + fitted.vector.max()) * np.log(4 * 401) + np.ptp(fitted.bias) + 1
