"""Cumulative differences: a test of top-label calibration that needs no bins.

In order of confidence c_1 <= ... <= c_N, with hits h_i, the cumulative differences are

    C_k = 1/N sum_{i <= k} (h_i - c_i),        C_0 = 0

Where confidence is too high, C falls; where it is too low, C rises. Two numbers say how far it goes:

    Kolmogorov-Smirnov   max_k |C_k|
    Kuiper               max_k C_k - min_k C_k

Kuiper's is the largest |sum of h - c| / N over any interval of confidence, so over- and underconfidence in different
places do not cancel. If the model is calibrated, h_i is 1 with probability c_i, and C / sigma with
sigma^2 = 1/N^2 sum c_i (1 - c_i) tends to a Brownian motion on [0, 1]. Its largest absolute value and its range give
the p-values; for few samples they are a little too large, because a walk of N steps goes less far.

Source: Arrieta-Ibarra, Gujral, Tannen, Tygert & Xu (2022), "Metrics of calibration for probabilistic predictions",
JMLR 23(351); Feller (1951), "The asymptotic distribution of the range of sums of independent random variables".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.stats import SampleScores

__all__ = ["CumulativeTest", "kolmogorov_smirnov_p", "kuiper_p"]

# Terms of each series. Below `_SWITCH` one converges fast, above it the other; there the tenth term is below 1e-20.
_TERMS = 20
_SWITCH = 1.0


@dataclass(frozen=True)
class CumulativeTest:
    """How far the cumulative differences of hits and confidences go, and whether that may be chance.

    Attributes:
        kolmogorov_smirnov: largest absolute cumulative difference, a fraction.
        kuiper: largest minus smallest cumulative difference, a fraction.
        kolmogorov_smirnov_p: probability that a calibrated model has a larger one, a fraction; None if it is not known.
        kuiper_p: the same for Kuiper's statistic, a fraction.
    """

    kolmogorov_smirnov: float
    kuiper: float
    kolmogorov_smirnov_p: float | None
    kuiper_p: float | None

    @classmethod
    def of(cls, scores: SampleScores) -> CumulativeTest:
        """Test N >= 1 scores; samples of one confidence are taken together, as their order is arbitrary."""
        order = np.argsort(scores.confidence, kind="stable")
        # probabilities are scored as a model gives them, and may round to more than 1
        confidence = np.minimum(scores.confidence[order].astype(np.float64), 1)
        total: NDArray[np.float64] = np.cumsum(scores.hit[order] - confidence)
        ends = np.r_[confidence[1:] != confidence[:-1], True]
        walk = np.r_[0.0, total[ends]] / len(scores)
        sigma = float(np.sqrt(np.sum(confidence * (1 - confidence)))) / len(scores)
        largest = float(np.max(np.abs(walk)))
        extent = float(np.ptp(walk))
        return cls(largest, extent, kolmogorov_smirnov_p(_ratio(largest, sigma)), kuiper_p(_ratio(extent, sigma)))


def kolmogorov_smirnov_p(x: float) -> float:
    """Probability that the absolute value of a Brownian motion on [0, 1] exceeds x >= 0.

    >>> round(kolmogorov_smirnov_p(2.241), 3)
    0.05
    """
    from scipy.special import ndtr  # noqa: PLC0415 - heavy

    if x == 0:
        return 1.0
    if x < _SWITCH:
        odd = 2 * np.arange(_TERMS) + 1
        inside = 4 / np.pi * np.sum(_signs() / odd * np.exp(-((odd * np.pi / x) ** 2) / 8))
        return min(1.0, float(1 - inside))
    # reflection at both borders
    return float(4 * np.sum(_signs() * ndtr(-(2 * np.arange(_TERMS) + 1) * x)))


def kuiper_p(x: float) -> float:
    """Probability that the range of a Brownian motion on [0, 1] exceeds x >= 0.

    >>> round(kuiper_p(2.498), 3)
    0.05
    """
    from scipy.special import ndtr  # noqa: PLC0415 - heavy

    if x == 0:
        return 1.0
    if x < _SWITCH:
        half = (np.arange(_TERMS) + 0.5) * np.pi
        inside = np.sum((8 / x**2 + 2 / half**2) * np.exp(-2 * (half / x) ** 2))
        return min(1.0, float(1 - inside))
    k = np.arange(_TERMS) + 1
    return float(8 * np.sum(_signs() * k * ndtr(-k * x)))


def _signs() -> NDArray[np.float64]:
    return np.where(np.arange(_TERMS) % 2, -1.0, 1.0)


def _ratio(value: float, sigma: float) -> float:
    """Divide; where every confidence is 0 or 1 nothing is left to chance."""
    if sigma > 0:
        return value / sigma
    if value > 0:
        return np.inf
    return 0.0
