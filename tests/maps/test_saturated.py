"""Fits where probabilities are saturated: next to no curvature, subnormal slopes."""

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp

from tests.maps.samples import reduce_of
from tna_onnx.maps.atypicality import AtypicalityAware
from tna_onnx.maps.temperature import Temperature


@pytest.mark.parametrize(("classes", "scale", "offset"), [(2, 0.3, 30), (10, 0.3, 30), (10, 0.3, 100), (10, 1000, 0)])
def test_the_atypicality_aware_map_is_fitted(classes: int, scale: float, offset: float) -> None:
    """As well as L-BFGS does it in float64, from the definition: NLL of (p_0 + p_1 a + p_2 a^2) s + v, and a ridge."""
    rng = np.random.default_rng(1)
    labels, means = rng.integers(0, classes, 2000), rng.normal(size=(classes, 30))
    features = (means[labels] + 2 * rng.normal(size=(2000, 30))).astype(np.float32)
    logits = ((features @ means.T - 0.5 * np.sum(means**2, axis=1)) * scale / 5).astype(np.float32)
    logits[:, 0] += np.float32(offset)
    fitted = AtypicalityAware.fit(reduce_of(logits, labels, features))
    s, own = logits.astype(np.float64), np.eye(classes)[labels]
    a = fitted.space.measured
    assert a is not None
    powers = np.stack([np.ones_like(a), a, a * a], axis=1)
    unit = np.r_[np.full(3, 1 / np.abs(s).max()), np.ones(classes)]

    def loss(x: Any) -> tuple[float, Any]:
        theta = x * unit
        scores = s * (powers @ theta[:3])[:, None] + theta[3:]
        total = logsumexp(scores, axis=1)
        p = np.exp(scores - total[:, None]) - own
        slopes = np.r_[powers.T @ np.sum(p * s, axis=1), p.sum(axis=0)] / len(s)
        slopes[3:] += 2e-3 * theta[3:] / classes
        value = np.mean(total - np.sum(scores * own, axis=1)) + 1e-3 * theta[3:] @ theta[3:] / classes
        return float(value), slopes * unit

    start = np.r_[1.0, np.zeros(2 + classes)] / unit
    best = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 5000, "maxfun": 10_000})
    found = loss(np.r_[fitted.polynomial, fitted.bias] / unit)[0]
    assert found < best.fun + 1e-4 * (1 + best.fun)
    assert best.fun < 0.2 * loss(start)[0]  # there was much to be fitted


@pytest.mark.parametrize("gap", [1.0, 300.0, 700.0, 720.0, 735.0, 740.0, 745.0, 746.0, 760.0])
def test_a_temperature_where_the_slope_underflows(gap: float) -> None:
    """Two samples of three are right: p = 2/3, so T = gap / ln 2."""
    logits, labels = np.array([[gap, 0.0]] * 3), np.array([0, 0, 1])
    assert Temperature.fit(reduce_of(logits, labels, None)).temperature == pytest.approx(gap / np.log(2), rel=1e-6)
