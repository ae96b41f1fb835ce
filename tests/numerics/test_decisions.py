"""Thresholds and alarms against brute force, independent libraries and their promises."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import logsumexp

from tna_onnx.numerics.conformal import (
    accept_above,
    conformal_quantile,
    coverage_band,
    errorless_needed,
    lowest_risk,
    samples_needed,
)
from tna_onnx.numerics.ops import ArrayOps
from tna_onnx.numerics.outliers import Energy, Mahalanobis, Residual, shrunk_covariance

# --- Split conformal thresholds against their definition: ranks of exchangeable scores


LEVELS = st.sampled_from(["0.5", "0.8", "0.9", "0.95", "0.99"])


@given(st.lists(st.integers(0, 8), min_size=1, max_size=60), LEVELS)
def test_each_of_n_plus_one_exchangeable_scores_is_covered_often_enough(scores: list[int], level: str) -> None:
    """Any of the n + 1 may be the new one, with equal probability: that is the guarantee, ties included."""
    covered = 0
    for k, new in enumerate(scores):
        rest = np.array(scores[:k] + scores[k + 1 :], np.float64)
        covered += new <= conformal_quantile(rest, float(level))
    assert Fraction(covered, len(scores)) >= Fraction(level)


@given(st.integers(1, 400), LEVELS)
def test_the_rank_is_the_smallest_that_will_do(n: int, level: str) -> None:
    rank = math.ceil((n + 1) * Fraction(level))
    found = conformal_quantile(np.arange(1, n + 1, dtype=np.float64), float(level))
    assert found == (rank if rank <= n else math.inf)


@given(LEVELS)
def test_samples_needed(level: str) -> None:
    n = samples_needed(float(level))
    assert math.isfinite(conformal_quantile(np.zeros(n), float(level)))
    assert math.isinf(conformal_quantile(np.zeros(n - 1), float(level)))


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_the_band_holds_what_it_says(level: float) -> None:
    """4,000 draws: five standard errors of a share of 95 % are 1.7 points; the band itself is rounded outwards."""
    rng = np.random.default_rng(0)
    low, high = coverage_band(200, level, 500, 0.95)
    inside = 0
    for _ in range(4000):
        threshold = conformal_quantile(rng.random(200), level)
        inside += low <= np.mean(rng.random(500) <= threshold) <= high
    assert 0.95 - 0.017 <= inside / 4000 <= 0.985


@pytest.mark.parametrize("n", [20, 500])
def test_of_many_new_samples_the_band_is_that_of_arbitrarily_many(n: int) -> None:
    np.testing.assert_allclose(coverage_band(n, 0.9, 20_000, 0.95), coverage_band(n, 0.9, None, 0.95), atol=2e-3)


# --- Thresholds on the confidence: the tests that they passed, and how often their promise fails


def drawn(n: int, seed: int, slope: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Confidences, and whether the samples are right: with the probability confidence^slope."""
    rng = np.random.default_rng(seed)
    confidence = np.maximum(0.1, 1 - rng.exponential(0.05, n)).astype(np.float32)
    return confidence, rng.random(n) < confidence.astype(np.float64) ** slope


@given(st.integers(1, 3000), st.integers(0, 2**16), st.sampled_from([0.01, 0.05, 0.2]))
def test_the_test_by_definition(n: int, seed: int, risk: float) -> None:
    confidence, hit = drawn(n, seed)
    threshold = accept_above(confidence, hit, risk, 0.1)
    if threshold is None:
        return
    above = confidence >= np.float32(threshold)
    p = sum(stats.binom.pmf(k, above.sum(), risk) for k in range(int((above & ~hit).sum()) + 1))
    assert p <= 0.1 + 1e-12


def test_the_promise_fails_no_more_often_than_it_may() -> None:
    """R(t) is known here: the mean of 1 - c^2 over confidences c >= t."""
    many, _ = drawn(100_000, 10**6)
    failures = found = 0
    for seed in range(400):
        chosen = accept_above(*drawn(1500, seed, slope=2), 0.05, 0.1)
        if chosen is None:
            continue
        found += 1
        taken = many[many >= np.float32(chosen)].astype(np.float64)
        failures += float(np.mean(1 - taken**2)) > 0.05
    assert found > 300
    assert stats.binomtest(failures, 400, 0.1, "greater").pvalue > 1e-3


def test_samples_of_one_confidence_are_accepted_together() -> None:
    confidence = np.round(drawn(3000, 1)[0], 2)
    hit = np.random.default_rng(1).random(3000) < confidence.astype(np.float64) ** 0.3
    threshold = np.float32(accept_above(confidence, hit, 0.01, 0.1))
    # above one of the confidences, and not between samples that share it
    assert np.nextafter(threshold, np.float32(0)) in confidence
    # all are right, and all are accepted: so is every new one
    assert accept_above(confidence, np.ones(3000, bool), 0.05, 0.1) == 0


@pytest.mark.parametrize("slope", [1.0, 4.0])
def test_the_lowest_risk_is_the_first_that_passes(slope: float) -> None:
    confidence, hit = drawn(800, 7, slope)
    risk = lowest_risk(confidence, hit, 0.05)
    assert accept_above(confidence, hit, risk, 0.05) is not None
    assert accept_above(confidence, hit, risk - 0.001, 0.05) is None
    assert lowest_risk(confidence[:3], hit[:3], 0.05) is None


def test_errorless() -> None:
    needed = errorless_needed(0.02, 0.05)
    right = np.ones(needed, bool)
    assert accept_above(np.ones(needed, np.float32), right, 0.02, 0.05) is not None
    assert accept_above(np.ones(needed - 1, np.float32), right[1:], 0.02, 0.05) is None


# --- Outlier scores against their definitions, and their covariance against scikit-learn's


def features_and_labels(n: int = 300, width: int = 7, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, n)
    means = 3 * rng.standard_normal((4, width))
    return means[labels] + rng.standard_normal((n, width)) @ rng.standard_normal((width, width)), labels


@pytest.mark.parametrize("n", [5, 40, 1000])
def test_covariance(n: int) -> None:
    oas = pytest.importorskip("sklearn.covariance").OAS
    x, _ = features_and_labels(n)
    x = x - x.mean(axis=0)
    expected = oas(assume_centered=True).fit(x).covariance_
    np.testing.assert_allclose(shrunk_covariance(x), expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


def test_energy() -> None:
    s = np.random.default_rng(0).standard_normal((20, 5)) * 4
    found = Energy().score(ArrayOps(s), s, None)
    np.testing.assert_allclose(found[:, 0], -logsumexp(s, axis=1), atol=1e-12)


def test_mahalanobis() -> None:
    x, labels = features_and_labels()
    new = 5 * np.random.default_rng(1).standard_normal((20, 7))
    found = Mahalanobis.fit(x, labels).score(ArrayOps(new), None, new)
    means = np.stack([x[labels == c].mean(axis=0) for c in range(4)])
    within = np.linalg.inv(shrunk_covariance(x - means[labels]))
    overall = np.linalg.inv(shrunk_covariance(x - x.mean(axis=0)))
    nearest = np.min([[(z - m) @ within @ (z - m) for m in means] for z in new], axis=1)
    background = [(z - x.mean(axis=0)) @ overall @ (z - x.mean(axis=0)) for z in new]
    np.testing.assert_allclose(found[:, 0], nearest - background, rtol=1e-9, atol=1e-9)


def test_residual() -> None:
    x, labels = features_and_labels()
    x[:, 3:] = x[:, :3] @ np.ones((3, 4))  # all in three directions
    residual = Residual.fit(x, labels)
    assert residual.axes.shape == (7, 4)
    assert np.max(residual.score(ArrayOps(x), None, x)) < 1e-9 * np.max(x**2)
    off = x + np.random.default_rng(2).standard_normal(x.shape)
    assert np.min(residual.score(ArrayOps(off), None, off)) > 1e-4


def test_classes_without_samples_and_constant_features() -> None:
    x, labels = features_and_labels()
    x[:, 2] = 1.0
    score = Mahalanobis.fit(x, 2 * labels)
    assert len(score.means) == 4
    assert np.all(np.isfinite(score.score(ArrayOps(x), None, x)))
