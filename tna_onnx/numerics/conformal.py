"""Split conformal prediction: a threshold on scores that new samples stay below at a stated rate.

Scores s_1 ... s_n of calibration samples and s of a new one are exchangeable. Then s <= q with probability level or
more, where q is the k-th smallest of the n scores and k = ceil((n + 1) level); and with at most level + 1/(n + 1) where
no two scores are equal. Given the calibration samples, the share of new ones with s <= q has the distribution
Beta(k, n + 1 - k).

Source: V. Vovk, A. Gammerman, G. Shafer, Algorithmic Learning in a Random World, Springer 2005, section 2.2; V. Vovk,
Conditional validity of inductive conformal predictors, ACML 2012, proposition 2a.

Scores of which conformal sets are made, in NumPy: what `graph.decisions` writes as nodes.

Only sizes are computed here, to choose a temperature; thresholds come from what the graph itself computes.

Source: as in `graph.decisions.SetScore`; L. Dabah, T. Tirer, On Temperature Scaling and Conformal Prediction of Deep
Classifiers, arXiv:2402.05806, section 3 (a temperature that calibrates enlarges adaptive sets).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

__all__ = [
    "coverage_band",
    "mean_size",
    "quantile",
    "ranked_levels",
    "samples_needed",
    "small_set_temperature",
    "tempered",
]


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


# From 1/4 to 4: beyond, probabilities round to 0 and 1, or are equal for all classes.
# As float32, which is what the graph divides by.
_TEMPERATURES = np.geomspace(0.25, 4, 25).astype(np.float32)


def tempered(p: NDArray[Any], temperature: float) -> NDArray[np.float64]:
    """Return p^(1/T) / sum, (N, C)."""
    with np.errstate(divide="ignore"):
        logs = np.log(p) / temperature
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def mean_size(
    p: NDArray[Any], labels: NDArray[np.int64], level: float, name: str, penalty: NDArray[Any] | None = None
) -> float:
    """Return the mean number of classes in sets whose threshold comes from the same samples; infinity if too few.

    Args:
        p: (N, C) probabilities.
        labels: (N,).
        level: of the coverage, in (0, 1).
        name: `lac`; or anything else for sums from the largest probability down.
        penalty: (C,) that is added to these sums by rank, if any.
    """
    rows = np.arange(len(p))
    # scores from the likeliest class down; float32, as ties of the graph count
    order = np.argsort(-p, axis=1, kind="stable")
    falling = np.take_along_axis(p, order, axis=1).astype(np.float32)
    scores = 1 - falling
    if name != "lac":
        scores = np.cumsum(falling, axis=1, dtype=np.float32)
        if penalty is not None:
            scores = scores + penalty.astype(np.float32)
    ranks = np.argmax(order == labels[:, None], axis=1)
    threshold = quantile(scores[rows, ranks], level)
    if math.isinf(threshold):
        return math.inf
    return float(np.mean(np.sum(scores <= np.float32(threshold), axis=1)))


def small_set_temperature(
    p: NDArray[Any], labels: NDArray[np.int64], level: float, name: str, penalty: NDArray[Any] | None = None
) -> float:
    """Return the temperature with the smallest sets, as a number that float32 holds; 1 where none has smaller ones.

    Arguments are those of `mean_size`.
    """
    best = 1.0
    smallest = mean_size(p, labels, level, name, penalty)
    for temperature in map(float, _TEMPERATURES):
        size = mean_size(tempered(p, temperature), labels, level, name, penalty)
        if size < smallest:
            best, smallest = temperature, size
    return best
