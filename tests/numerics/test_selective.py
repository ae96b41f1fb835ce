"""Thresholds on the confidence: the tests that they passed, and how often their promise fails."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tna_onnx.numerics.conformal import accept_above, errorless_needed, lowest_risk


def drawn(n: int, seed: int, slope: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Confidences, and whether the samples are right: with the probability confidence^slope."""
    rng = np.random.default_rng(seed)
    confidence = np.maximum(0.1, 1 - rng.exponential(0.05, n)).astype(np.float32)
    return confidence, rng.random(n) < confidence.astype(np.float64) ** slope


@given(st.integers(1, 3000), st.integers(0, 2**16), st.sampled_from([0.01, 0.05, 0.2]))
@settings(max_examples=50)
def test_counts_and_the_test_by_definition(n: int, seed: int, risk: float) -> None:
    confidence, hit = drawn(n, seed)
    found = accept_above(confidence, hit, risk, 0.1)
    if found is None:
        return
    above = confidence >= np.float32(found.threshold)
    assert (found.accepted, found.wrong) == (int(above.sum()), int((above & ~hit).sum()))
    p = sum(stats.binom.pmf(k, found.accepted, risk) for k in range(found.wrong + 1))
    assert p <= 0.1 + 1e-12


def test_the_promise_fails_no_more_often_than_it_may() -> None:
    """R(t) is known here: the mean of 1 - c^2 over confidences c >= t."""
    many, _ = drawn(400_000, 10**6)
    failures = found = 0
    for seed in range(400):
        chosen = accept_above(*drawn(1500, seed, slope=2), 0.05, 0.1)
        if chosen is None:
            continue
        found += 1
        taken = many[many >= np.float32(chosen.threshold)].astype(np.float64)
        failures += float(np.mean(1 - taken**2)) > 0.05
    assert found > 300
    assert stats.binomtest(failures, 400, 0.1, "greater").pvalue > 1e-3


def test_samples_of_one_confidence_are_accepted_together() -> None:
    confidence = np.round(drawn(3000, 1)[0], 2)
    hit = np.random.default_rng(1).random(3000) < confidence.astype(np.float64) ** 0.3
    found = accept_above(confidence, hit, 0.05, 0.1)
    assert found.accepted == np.sum(confidence >= np.float32(found.threshold))
    # all are right, and all are accepted: so is every new one
    assert accept_above(confidence, np.ones(3000, bool), 0.05, 0.1).threshold == 0


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
