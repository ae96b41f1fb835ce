"""Split conformal thresholds against their definition: ranks of exchangeable scores."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tna_onnx.numerics.conformal import coverage_band, quantile, samples_needed

LEVELS = st.sampled_from(["0.5", "0.8", "0.9", "0.95", "0.99"])


@given(st.lists(st.integers(0, 8), min_size=1, max_size=60), LEVELS)
def test_each_of_n_plus_one_exchangeable_scores_is_covered_often_enough(scores: list[int], level: str) -> None:
    """Any of the n + 1 may be the new one, with equal probability: that is the guarantee, ties included."""
    covered = 0
    for k, new in enumerate(scores):
        rest = np.array(scores[:k] + scores[k + 1 :], np.float64)
        covered += new <= quantile(rest, float(level))
    assert Fraction(covered, len(scores)) >= Fraction(level)


@given(st.integers(1, 400), LEVELS)
def test_the_rank_is_the_smallest_that_will_do(n: int, level: str) -> None:
    rank = math.ceil((n + 1) * Fraction(level))
    found = quantile(np.arange(1, n + 1, dtype=np.float64), float(level))
    assert found == (rank if rank <= n else math.inf)


@given(LEVELS)
def test_samples_needed(level: str) -> None:
    n = samples_needed(float(level))
    assert math.isfinite(quantile(np.zeros(n), float(level)))
    assert math.isinf(quantile(np.zeros(n - 1), float(level)))


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_the_band_holds_what_it_says(level: float) -> None:
    """4,000 draws: five standard errors of a share of 95 % are 1.7 points; the band itself is rounded outwards."""
    rng = np.random.default_rng(0)
    low, high = coverage_band(200, level, 500, 0.95)
    inside = 0
    for _ in range(4000):
        threshold = quantile(rng.random(200), level)
        inside += low <= np.mean(rng.random(500) <= threshold) <= high
    assert 0.95 - 0.017 <= inside / 4000 <= 0.985


@pytest.mark.parametrize("n", [20, 500])
def test_of_many_new_samples_the_band_is_that_of_arbitrarily_many(n: int) -> None:
    np.testing.assert_allclose(coverage_band(n, 0.9, 20_000, 0.95), coverage_band(n, 0.9, None, 0.95), atol=2e-3)
