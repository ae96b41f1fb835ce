"""The ECE without most of its bias, and the ECE that chance alone gives.

The ECE adds absolute values, so the noise of a bin raises it: a calibrated model has an ECE above zero on finite data.
For bin b with n_b samples, gap d_b = acc - conf, acc a_b and F(d, s) = E|d + s Z| with Z standard normal,

    debiased ECE = sum_b n_b/N (2 |d_b| - F(d_b, s_b)),        s_b^2 = a_b (1 - a_b) / n_b

takes off what a second portion of the same noise adds. That is nearly all of the bias where gaps are larger than
their noise, and 40 % of it for a calibrated model, so it is never far below the truth. Taking off all that a calibrated
model is expected to have would be: a true ECE of 5 % would read 2.5 % (N = 400).

    expected ECE = sum_b sqrt(2 / pi sum_{i in b} c_i (1 - c_i)) / N

is that expectation, for a model of the same confidences, in the normal approximation.

Source: Kumar, Liang & Ma (2019), "Verified uncertainty calibration", the debiased l1 estimator; the mean over normal
draws in closed form (folded normal distribution).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.reliability import bin_of
from tna_onnx.numerics.stats import SampleScores

__all__ = ["debiased_ece", "expected_ece", "folded_mean"]


def debiased_ece(scores: SampleScores, bins: int = 15) -> float:
    """Debiased ECE over `bins` equal intervals (j/B, (j+1)/B], a fraction; at least 0.

    >>> half = np.float32([0.5] * 4)
    >>> round(debiased_ece(SampleScores(half, np.array([1, 1, 1, 0], bool), half, half)), 4)
    0.2234
    """
    index = bin_of(scores.confidence, bins)
    count = np.bincount(index, minlength=bins)
    filled = count > 0
    size = count[filled]
    confidence = np.bincount(index, scores.confidence.astype(np.float64), bins)[filled] / size
    accuracy = np.bincount(index, scores.hit, bins)[filled] / size
    gap = np.abs(accuracy - confidence)
    noise = np.sqrt(accuracy * (1 - accuracy) / size)
    return max(0.0, float(size @ (2 * gap - folded_mean(gap, noise)) / len(scores)))


def expected_ece(scores: SampleScores, bins: int = 15) -> float:
    """ECE that a calibrated model with these confidences has on average, a fraction."""
    confidence = scores.confidence.astype(np.float64)
    variance = np.bincount(bin_of(confidence, bins), confidence * (1 - confidence), bins)
    return float(np.sum(np.sqrt(2 / np.pi * variance)) / len(scores))


def folded_mean(gap: NDArray[np.float64], noise: NDArray[np.float64]) -> NDArray[np.float64]:
    """E|gap + noise Z|; without noise the gap itself."""
    from scipy.special import ndtr  # noqa: PLC0415 - heavy

    # a bin that is all right or all wrong shows no noise
    ratio = gap / np.where(noise > 0, noise, 1)
    folded = noise * np.sqrt(2 / np.pi) * np.exp(-(ratio**2) / 2) + gap * (1 - 2 * ndtr(-ratio))
    return np.where(noise > 0, folded, gap)
