"""The debiased ECE: against the package of its authors, against simulation, and that it is nearer to the truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.numerics.bernoulli import confidences, scores
from tests.support import ece
from tna_onnx.numerics.metrics import debiased_ece, expected_ece
from tna_onnx.numerics.reliability import bin_of


def test_the_estimator_of_its_authors() -> None:
    """Theirs draws the mean that is a closed form here."""
    calibration = pytest.importorskip("calibration.utils")
    np.random.seed(0)  # noqa: NPY002 - that package draws from the global generator
    confidence, hit = confidences(600, seed=1)
    confidence = np.float32(0.3 + 0.7 * confidence)
    index = bin_of(confidence, 10)
    binned = [list(zip(confidence[index == j].tolist(), hit[index == j].tolist(), strict=True)) for j in range(10)]
    drawn = calibration.normal_debiased_ce([b for b in binned if len(b) > 1], resamples=20_000)
    kept = np.isin(index, [j for j in range(10) if len(binned[j]) > 1])
    # 20,000 draws of a mean with a standard deviation of about 0.015
    assert debiased_ece(scores(confidence[kept], hit[kept]), 10) == pytest.approx(
        drawn, abs=5 * 0.015 / np.sqrt(20_000)
    )


@pytest.mark.parametrize("shift", [0.0, 0.02, 0.05])
@pytest.mark.parametrize("n", [400, 2000])
def test_it_is_nearer_to_the_truth_than_the_ece_and_not_below_it(n: int, shift: float) -> None:
    plain, debiased = [], []
    for seed in range(200):
        confidence, hit = confidences(n, seed)
        given_ = scores(confidence + shift, hit)
        plain.append(ece(given_))
        debiased.append(debiased_ece(given_))
    assert shift < np.mean(plain)
    error = np.std(debiased) / np.sqrt(200)
    assert shift - 3 * error < np.mean(debiased) < np.mean(plain)


def test_the_expected_ece_is_that_of_labels_drawn_from_the_confidences() -> None:
    confidence, _ = confidences(3000, seed=5)
    rng = np.random.default_rng(0)
    drawn = [ece(scores(confidence, rng.random(3000) < confidence)) for _ in range(1000)]
    expected = expected_ece(scores(confidence, np.ones(3000, bool)))
    assert np.mean(drawn) == pytest.approx(expected, abs=4 * np.std(drawn) / np.sqrt(1000))


@given(st.lists(st.tuples(st.floats(0.0625, 1, width=16), st.booleans()), min_size=15, max_size=40))
def test_it_lies_between_zero_and_the_ece(samples: list[tuple[float, bool]]) -> None:
    made = scores(np.array([c for c, _ in samples]), np.array([h for _, h in samples]))
    assert 0 <= debiased_ece(made) <= ece(made) + 1e-12
    assert 0 <= expected_ece(made) <= 1
