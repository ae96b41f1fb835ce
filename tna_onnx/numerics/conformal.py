"""Split conformal prediction: a threshold on scores that new samples stay below at a stated rate.

Scores s_1 ... s_n of calibration samples and s of a new one are exchangeable. Then s <= q with probability level or
more, where q is the k-th smallest of the n scores and k = ceil((n + 1) level); and with at most level + 1/(n + 1) where
no two scores are equal. Given the calibration samples, the share of new ones with s <= q has the distribution
Beta(k, n + 1 - k).

Source: V. Vovk, A. Gammerman, G. Shafer, Algorithmic Learning in a Random World, Springer 2005, section 2.2; V. Vovk,
Conditional validity of inductive conformal predictors, ACML 2012, proposition 2a.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

__all__ = ["coverage_band", "quantile", "ranked_levels", "samples_needed"]

_ROUNDING = 1e-9  # of (n + 1) level: 10 * 0.9 is 9, whatever float64 makes of it


def quantile(scores: NDArray[Any], level: float) -> float:
    """Return q: a new score is at most q with probability `level` or more; infinity where n is too small to say.

    Args:
        scores: (n,) of calibration samples, in any order.
        level: in (0, 1).

    >>> quantile(np.array([3.0, 1.0, 2.0]), 0.5)
    2.0
    >>> quantile(np.array([3.0, 1.0, 2.0]), 0.9)
    inf
    """
    rank = _rank(len(scores), level)
    if rank > len(scores):
        return math.inf
    return float(np.partition(scores, rank - 1)[rank - 1])


def samples_needed(level: float) -> int:
    """Return the smallest n for which `quantile` is finite.

    >>> samples_needed(0.95)
    19
    """
    n = max(0, int(level / (1 - level)) - 1)
    while _rank(n, level) > n:  # two or three steps, with the rounding of `quantile`
        n += 1
    return n


def ranked_levels(n: int) -> NDArray[np.float64]:
    """Return the highest level (n,) for which `quantile` gives each of n scores, from the smallest score up."""
    return np.arange(1, n + 1) / (n + 1)


def coverage_band(n: int, level: float, new: int | None, confidence: float) -> tuple[float, float]:
    """Return the central interval of the share of new scores that are at most q, if they are exchangeable.

    Args:
        n: calibration samples, at least `samples_needed(level)`.
        level: of the quantile.
        new: new samples, at least 1; None for arbitrarily many.
        confidence: of the interval, in (0, 1).

    >>> low, high = coverage_band(1000, 0.95, 1000, 0.95)
    >>> round(low, 3), round(high, 3)
    (0.93, 0.968)
    """
    from scipy import stats  # noqa: PLC0415 - heavy

    rank = _rank(n, level)
    tail = (1 - confidence) / 2
    if new is None:
        share = stats.beta(rank, n + 1 - rank)
        return float(share.ppf(tail)), float(share.ppf(1 - tail))
    counts = stats.betabinom(new, rank, n + 1 - rank)
    return float(counts.ppf(tail)) / new, float(counts.ppf(1 - tail)) / new


def _rank(n: int, level: float) -> int:
    return max(1, math.ceil((n + 1) * level - _ROUNDING))
