"""A threshold on the confidence, so that the error among the samples above it is bounded with a stated probability.

Risk R(t) is the probability that a sample with confidence >= t is classified wrong. Of m such calibration samples e are
wrong, so e has a binomial distribution given m, and P(Binomial(m, risk) <= e) is a p-value of R(t) > risk. Thresholds
are tested on a grid that does not depend on the data, downwards from several starting points: each walk has an equal
part of delta and ends at its first failure. All thresholds that passed are at most `risk`, with probability 1 - delta
or more; the lowest of them accepts most samples.

Source: A. Angelopoulos, S. Bates, E. Candes, M. Jordan, L. Lei, Learn then Test, arXiv:2110.01052, section 2.2 (fixed
sequence testing); Y. Geifman, R. El-Yaniv, Selective Classification for Deep Neural Networks, NeurIPS 2017.

How far a share of n samples may be from its probability: the score test of a proportion, from both sides.

With z the quantile of the normal distribution, a share f of n samples agrees with a probability p where

    |f - p| <= z sqrt(p (1 - p) / n)

Solved for p it is Wilson's interval around a share. Solved for f it is where a share lies if p is the probability.

Source: Wilson (1927), "Probable inference, the law of succession, and statistical inference"; Bröcker & Smith (2007),
"Increasing the reliability of reliability diagrams", for the second in a reliability diagram.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

__all__ = [
    "LEVEL",
    "Acceptance",
    "Z",
    "accept_above",
    "accept_at",
    "consistent_range",
    "errorless_needed",
    "wilson_interval",
]


_POINTS = 160
_STARTS = 8
_LEAST_DOUBT = 1e-7  # below, float32 knows only a confidence of 1


@dataclass(frozen=True)
class Acceptance:
    """A threshold that passed.

    Attributes:
        threshold: lowest confidence that is accepted.
        accepted: calibration samples at or above it.
        wrong: those of them that are classified wrong.
    """

    threshold: float
    accepted: int
    wrong: int


def accept_above(
    confidence: NDArray[Any], hit: NDArray[np.bool_], risk: float, delta: float, n_classes: int
) -> Acceptance | None:
    """Return the lowest threshold whose risk is at most `risk`, with probability 1 - `delta`; None if none passes.

    Args:
        confidence: (N,) largest probabilities.
        hit: (N,) whether the sample is classified right.
        risk: largest share of errors among accepted samples, in (0, 1).
        delta: probability with which the risk may be above it, in (0, 1).
        n_classes: number of classes C; no confidence is below 1 / C.
    """
    accepted, wrong, grid = _counts(confidence, hit, n_classes)
    passed = _lowest(accepted, wrong, risk, delta)
    if passed < 0:
        return None
    return Acceptance(float(grid[passed]), int(accepted[passed]), int(wrong[passed]))


def accept_at(
    confidence: NDArray[Any], hit: NDArray[np.bool_], risks: NDArray[Any], delta: float, n_classes: int
) -> NDArray[np.float32]:
    """Return the threshold of `accept_above` for each of several risks (R,); infinity where none passes.

    The promise holds for each risk that is chosen without a look at the samples; not for all of them at once.
    """
    accepted, wrong, grid = _counts(confidence, hit, n_classes)
    passed = [_lowest(accepted, wrong, float(risk), delta) for risk in risks]
    return np.array([grid[at] if at >= 0 else np.inf for at in passed], np.float32)


def _counts(
    confidence: NDArray[Any], hit: NDArray[np.bool_], n_classes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Return how many samples each threshold of the grid accepts, how many of them are wrong, and the grid."""
    order = np.argsort(-confidence, kind="stable")
    errors = np.concatenate([[0], np.cumsum(~hit[order])])
    grid = thresholds(n_classes)
    accepted = np.searchsorted(-confidence[order], -grid, side="right")
    return accepted, errors[accepted], grid


def _lowest(accepted: NDArray[np.int64], wrong: NDArray[np.int64], risk: float, delta: float) -> int:
    """Return the place on the grid of the lowest threshold that passed; -1 for none."""
    from scipy import stats  # noqa: PLC0415 - heavy

    p_values = np.where(accepted > 0, stats.binom.cdf(wrong, accepted, risk), 1.0)
    passed = -1
    for start in range(0, _POINTS, _POINTS // _STARTS):
        at = start
        while at < _POINTS and p_values[at] <= delta / _STARTS:
            passed = max(passed, at)
            at += 1
    return passed


def thresholds(n_classes: int) -> NDArray[np.float32]:
    """Return the grid, falling; what is missing to 1 grows by a constant factor from point to point.

    In float32, as the graph compares: a grid point is then the number that it is compared with.
    """
    doubt = np.geomspace(_LEAST_DOUBT, 1 - 1 / n_classes, _POINTS)
    return (1 - doubt).astype(np.float32)


def errorless_needed(risk: float, delta: float) -> int:
    """Return how many accepted samples without an error it takes for a threshold to pass.

    >>> errorless_needed(0.02, 0.05)
    252
    """
    return math.ceil(math.log(delta / _STARTS) / math.log1p(-risk))


LEVEL = 0.95
"""Level of both intervals, a fraction."""

Z = NormalDist().inv_cdf((1 + LEVEL) / 2)
"""Its quantile of the standard normal distribution, without unit."""


def wilson_interval(share: float, n: int) -> tuple[float, float]:
    """Return the probabilities that agree with a share of n >= 1 samples; fractions.

    >>> tuple(round(end, 3) for end in wilson_interval(1.0, 4))
    (0.51, 1.0)
    """
    weight = Z * Z / n
    middle = (share + weight / 2) / (1 + weight)
    reach = math.sqrt(weight * share * (1 - share) + weight * weight / 4) / (1 + weight)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def consistent_range(p: float, n: int) -> tuple[float, float]:
    """Return the shares of n >= 1 samples that agree with their probability p; fractions.

    For samples with different probabilities around a mean p it is a little too wide.

    >>> tuple(round(end, 3) for end in consistent_range(0.5, 100))
    (0.402, 0.598)
    """
    reach = Z * math.sqrt(p * (1 - p) / n)
    return max(0.0, p - reach), min(1.0, p + reach)
