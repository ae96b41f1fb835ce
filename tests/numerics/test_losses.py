"""Losses of single samples: their mean is the metric, whatever the order of the samples, and ties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tna_onnx.numerics.metric import OBJECTIVES
from tna_onnx.numerics.metrics import metric_value, sample_losses
from tna_onnx.numerics.scores import SampleScores

Array = NDArray[Any]

# sums of up to 300 terms of at most 2, in float64
ROUNDING = 1e-12


def drawn(seed: int, n: int, levels: int) -> SampleScores:
    """Scores whose confidences take so many levels at most, 0 and 1 among them."""
    rng = np.random.default_rng(seed)
    confidence = np.float32(rng.integers(0, levels + 1, n) / levels)
    return SampleScores(confidence, rng.random(n) < 0.6, np.float32(rng.gamma(1, 1, n)), np.float32(2 * rng.random(n)))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(20, 300), st.sampled_from([1, 2, 7, 15, 10**6]), st.integers(1, 20))
def test_their_mean_is_the_metric(seed: int, n: int, levels: int, bins: int) -> None:
    scores = drawn(seed, n, levels)
    for objective in OBJECTIVES:
        losses = sample_losses(scores, objective, bins)
        assert (losses.shape, losses.dtype) == ((n,), np.float64)
        assert np.mean(losses) == pytest.approx(metric_value(scores, objective, bins), abs=ROUNDING)


@pytest.mark.parametrize("objective", ["ece", "adaece"])
def test_a_bin_errs_to_one_side(objective: Any) -> None:
    """Two bins: the lower one is too modest, the upper one too sure."""
    confidence = np.float32([0.2, 0.2, 0.3, 0.8, 0.8, 0.9])
    hit = np.array([True, False, True, False, False, True])
    scores = SampleScores(confidence, hit, confidence, confidence)
    expected = np.where(confidence < 0.5, hit - confidence, confidence - hit)
    np.testing.assert_allclose(sample_losses(scores, objective, 2), expected, rtol=0, atol=1e-7)  # float32 confidences


def test_samples_of_one_confidence_on_two_sides_of_a_border_share_their_sides() -> None:
    """Ranks 3 and 4 of 6 have one confidence: one lies in each of two bins of three, which err to opposite sides."""
    confidence = np.float32([0.1, 0.2, 0.5, 0.5, 0.8, 0.9])
    hit = np.array([True, True, True, False, False, False])
    scores = SampleScores(confidence, hit, confidence, confidence)
    losses = sample_losses(scores, "adaece", 2)
    np.testing.assert_allclose(losses, [0.9, 0.8, 0, 0, 0.8, 0.9], rtol=0, atol=1e-7)  # float32 confidences
