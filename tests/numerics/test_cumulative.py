"""The cumulative-difference test: its statistics against their definition, its p-values against simulated laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.numerics.bernoulli import confidences, scores
from tna_onnx.numerics.reliability import CumulativeTest, kolmogorov_smirnov_p, kuiper_p


@given(st.lists(st.tuples(st.floats(0.0625, 1, width=16), st.booleans()), min_size=1, max_size=30))
def test_the_statistics_are_the_largest_sums_over_intervals_of_confidence(samples: list[tuple[float, bool]]) -> None:
    """Kuiper: any interval of confidence; Kolmogorov-Smirnov: those that begin at the lowest."""
    confidence = np.array([c for c, _ in samples])
    hit = np.array([h for _, h in samples])
    found = CumulativeTest.of(scores(confidence, hit))
    values = np.unique(confidence)
    residual = hit - confidence
    inside = {
        (low, high): abs(residual[(confidence >= low) & (confidence <= high)].sum()) / len(hit)
        for low in values
        for high in values
        if low <= high
    }
    assert found.kuiper == pytest.approx(max(inside.values()), abs=1e-12)
    from_lowest = [inside[values[0], high] for high in values]
    assert found.kolmogorov_smirnov == pytest.approx(max(from_lowest), abs=1e-12)
    assert 0 <= found.kolmogorov_smirnov <= found.kuiper <= 1
    assert 0 <= found.kuiper_p <= 1
    assert 0 <= found.kolmogorov_smirnov_p <= 1


@given(st.permutations(range(8)))
def test_the_order_of_samples_of_one_confidence_does_not_matter(order: list[int]) -> None:
    confidence = np.repeat([0.5, 1.0], 4)
    hit = np.array([1, 0, 0, 0, 1, 1, 0, 1], bool)
    assert CumulativeTest.of(scores(confidence[order], hit[order])) == CumulativeTest.of(scores(confidence, hit))


def test_the_laws_are_those_of_a_brownian_motion() -> None:
    """Simulated with 2,000 steps, which reach about 0.58 steps less far at each border (Siegmund 1985, chapter 10)."""
    steps, paths = 2000, 3000
    walk = np.cumsum(np.random.default_rng(0).standard_normal((paths, steps)) / np.sqrt(steps), axis=1)
    walk = np.hstack([np.zeros((paths, 1)), walk])
    short = 0.5826 / np.sqrt(steps)
    four_errors = 4 * 0.5 / np.sqrt(paths)
    farthest, spread = np.abs(walk).max(axis=1) + short, np.ptp(walk, axis=1) + 2 * short
    for x in (0.7, 0.95, 1.05, 1.5, 2.0, 2.5, 3.0):
        assert np.mean(farthest > x) == pytest.approx(kolmogorov_smirnov_p(x), abs=four_errors)
        assert np.mean(spread > x) == pytest.approx(kuiper_p(x), abs=four_errors)


@pytest.mark.parametrize("law", [kolmogorov_smirnov_p, kuiper_p])
def test_the_two_series_of_a_law_meet(law: object) -> None:
    assert callable(law)
    assert law(1 - 1e-12) == pytest.approx(law(1.0), abs=1e-10)
    values = [law(x) for x in np.linspace(0, 12, 200)]
    assert values[0] == 1
    assert np.all(np.diff(values) <= 1e-15)
    assert 0 < values[-1] < 1e-30  # tiny p-values keep their digits
    assert law(np.inf) == 0


def test_the_test_keeps_its_level_and_has_power() -> None:
    """200 draws under calibration, and of a confidence that is three points too high."""
    fair, high = [], []
    for seed in range(200):
        confidence, hit = confidences(1000, seed)
        fair.append(CumulativeTest.of(scores(confidence, hit)).kuiper_p)
        high.append(CumulativeTest.of(scores(np.minimum(confidence + 0.04, 1), hit)).kuiper_p)
    # four standard errors of a share of 200 at 0.05
    assert abs(np.mean(np.array(fair) < 0.05) - 0.05) < 4 * np.sqrt(0.05 * 0.95 / 200)
    assert np.mean(np.array(high) < 0.05) > 0.9


def test_certain_predictions_leave_nothing_to_chance() -> None:
    ones = np.ones(5)
    assert CumulativeTest.of(scores(ones, np.ones(5, bool))) == CumulativeTest(0.0, 0.0, 1.0, 1.0)
    wrong = CumulativeTest.of(scores(ones, np.array([1, 1, 0, 1, 1], bool)))
    assert (wrong.kuiper_p, wrong.kolmogorov_smirnov_p) == (0, 0)
    assert wrong.kuiper == pytest.approx(0.2)
