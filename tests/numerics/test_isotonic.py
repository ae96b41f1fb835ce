"""Isotonic regression in cells of log-odds: scikit-learn and SciPy on the definition, and what holds on any data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression
from scipy.special import expit, logit, ndtr
from scipy.stats import beta
from sklearn.isotonic import IsotonicRegression

from tna_onnx.numerics.monotone import CENTRES, TOLERANCE, cells, isotonic_log_odds, pool, thinned
from tna_onnx.numerics.reliability import normal_cdf

Array = np.ndarray
P = expit(CENTRES)

seeds = st.integers(0, 2**32 - 1)
# all probabilities near 0 and 1, all equally often, all near 0.5
shapes = st.sampled_from([0.02, 0.5, 1.0, 20.0])


def drawn(seed: int, size: int, shape: float) -> tuple[Array, Array]:
    """Probabilities and outcomes, at other odds than these."""
    rng = np.random.default_rng(seed)
    p = rng.beta(shape, shape, size)
    return p, rng.random(size) < expit(rng.normal() + rng.uniform(0.3, 2) * logit(np.clip(p, 1e-12, 1 - 1e-12)))


def by_definition(p: Array, outcome: Array) -> Array:
    """Cells by comparing with their borders, scikit-learn's pooling, and the mean of a beta posterior."""
    borders = expit(np.arange(-8.75, 9, 0.25))
    cell = (p[:, None] >= borders).sum(axis=1)
    filled = np.unique(cell)
    count = np.array([(cell == c).sum() for c in filled])
    hits = np.array([outcome[cell == c].sum() for c in filled])
    frequency = IsotonicRegression().fit(filled, hits / count, sample_weight=count).predict(filled)
    f, strength = [], []
    for c, y in zip(filled, frequency, strict=True):
        block = count[np.isclose(frequency, y, rtol=0, atol=1e-12)].sum()
        m = 4 / (P[c] * (1 - P[c]))
        f.append(beta(m * P[c] + block * y, m * (1 - P[c]) + block * (1 - y)).mean())
        strength.append(m)
    weight = count + np.array(strength)
    pooled = IsotonicRegression().fit(filled, f, sample_weight=weight).predict(filled)
    return CENTRES + np.interp(CENTRES, CENTRES[filled], logit(pooled) - CENTRES[filled])


@settings(max_examples=20, deadline=None)
@given(seeds, st.integers(1, 1500), shapes)
def test_it_is_the_definition(seed: int, size: int, shape: float) -> None:
    p, outcome = drawn(seed, size, shape)
    # the means of blocks are sums in another order, and their log-odds magnify that by up to 1 / (f (1 - f))
    np.testing.assert_allclose(isotonic_log_odds(p, outcome), by_definition(p, outcome), rtol=0, atol=1e-7)


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 3000), shapes)
def test_pooling_is_scikit_learns(seed: int, size: int, shape: float) -> None:
    count, hits = cells(*drawn(seed, size, shape))
    filled = np.flatnonzero(count)
    y, weight = hits[filled] / count[filled], count[filled]
    found, sizes = pool(y, weight)
    expected = IsotonicRegression().fit(filled, y, sample_weight=weight).predict(filled)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)  # means of up to 3,000 terms
    assert sizes.max() <= size
    np.testing.assert_allclose(np.sum(weight / sizes), len(np.unique(sizes * 7919 + found)), atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(seeds, st.integers(1, 2000), shapes, st.sampled_from(["drawn", "never", "always"]))
def test_any_data_give_a_finite_non_decreasing_function(seed: int, size: int, shape: float, outcomes: str) -> None:
    p, outcome = drawn(seed, size, shape)
    p[: size // 4] = 0.0
    p[size // 2 : 3 * size // 4] = 1.0
    if outcomes != "drawn":
        outcome[:] = outcomes == "always"
    f = isotonic_log_odds(p, outcome)
    assert np.all(np.isfinite(f))
    assert np.all(np.diff(f) >= -1e-9)  # log-odds of equal values


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 500), shapes)
def test_no_outcome_becomes_impossible(seed: int, size: int, shape: float) -> None:
    """N samples without one outcome lower the odds of p by 1 + N p / 4, and so on the other side."""
    f = isotonic_log_odds(*drawn(seed, size, shape))
    assert np.all(np.abs(f - CENTRES) <= np.log1p(size / 4) + 1e-9)


def test_with_many_samples_it_is_scikit_learns_isotonic_regression() -> None:
    rng = np.random.default_rng(0)
    inner = np.abs(CENTRES) < 4
    p = np.repeat(P[inner], 100_000)
    outcome = rng.random(len(p)) < 0.2 + 0.6 * p**2
    expected = IsotonicRegression().fit(p, outcome).predict(P[inner])
    # the prior counts as at most 4 / (p (1 - p)) = 226 samples
    np.testing.assert_allclose(expit(isotonic_log_odds(p, outcome))[inner], expected, atol=226 / 100_226)


@settings(max_examples=40, deadline=None)
@given(seeds, st.integers(1, 2000), shapes)
def test_thinning_keeps_the_function_within_its_tolerance(seed: int, size: int, shape: float) -> None:
    f = isotonic_log_odds(*drawn(seed, size, shape))
    x, y = thinned(f, f - CENTRES)
    error = np.abs(np.interp(P, x, y) - (f - CENTRES))
    assert np.all(error <= 0.05 + 1e-12)
    assert np.all(error * expit(f) * expit(-f) <= TOLERANCE + 1e-12)
    # a ramp's constants, 1 / (x_{k+1} - x_k), in float16, which ends at 65,504
    assert np.max(1 / np.diff(x)) < 2**15


@pytest.mark.parametrize("kind", ["outcomes", "ties", "many rounds", "one", "falling"])
def test_pooling_is_that_of_scipy(kind: str) -> None:
    """By rounds of runs, or from some round on by SciPy itself."""
    rng = np.random.default_rng(0)
    y = {
        "outcomes": (rng.random(5000) < np.sort(rng.random(5000))).astype(float),
        "ties": np.repeat([1.0, 1.0, 0.5, 2.0, 2.0], 40),
        "many rounds": np.r_[np.arange(500.0), -10 * np.arange(500.0)],
        "one": np.ones(1),
        "falling": -np.arange(100.0),
    }[kind]
    weight = rng.uniform(0.5, 2, len(y))
    fitted = isotonic_regression(y, weights=weight)
    found, sizes = pool(y, weight)
    np.testing.assert_allclose(found, fitted.x, rtol=0, atol=1e-12 * np.abs(y).max())
    np.testing.assert_allclose(sizes, np.repeat(fitted.weights, np.diff(fitted.blocks)), rtol=1e-12)


def test_the_normal_distribution_is_that_of_scipy() -> None:
    x = np.linspace(-30, 10, 401)
    np.testing.assert_allclose(normal_cdf(x), ndtr(x), rtol=1e-12)
