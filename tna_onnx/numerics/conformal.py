"""Split conformal prediction: the threshold that scores of new samples stay below at a stated rate (`quantile`), and
the scores of prediction sets in NumPy (`set_scores`), as `graph.decisions` writes them as nodes.

Scores s_1 ... s_n of calibration samples and s of a new one are exchangeable. Then s <= q with probability level or
more, where q is the k-th smallest of the n scores and k = ceil((n + 1) level); and with at most level + 1/(n + 1) where
no two scores are equal. Given the calibration samples, the share of new ones with s <= q has the distribution
Beta(k, n + 1 - k).

Source: V. Vovk, A. Gammerman, G. Shafer, Algorithmic Learning in a Random World, Springer 2005, section 2.2; V. Vovk,
Conditional validity of inductive conformal predictors, ACML 2012, proposition 2a.

Sets are only measured here, to choose a temperature and a penalty by their size; thresholds come from what the graph
computes.

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
    "quantile",
    "rank_penalty",
    "ranked_levels",
    "samples_needed",
    "set_scores",
    "set_sizes",
    "small_set_penalty",
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

_PENALTIES = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5)
"""Of `raps`: what Angelopoulos et al., appendix E, search over, and 0.05."""


def tempered(p: NDArray[Any], temperature: float) -> NDArray[np.float64]:
    """Return p^(1/T) / sum, (N, C)."""
    with np.errstate(divide="ignore"):
        logs = np.log(p) / temperature
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def set_scores(
    p: NDArray[Any], name: str, penalty: NDArray[Any] | None = None, *, allow_empty: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the classes from the likeliest down and their scores, both (N, C).

    Args:
        p: (N, C) probabilities.
        name: `lac`; or anything else for the sum of larger probabilities and half of the class's own.
        penalty: (C,) that is added to these sums by rank, if any.
        allow_empty: whether the likeliest class has a score like the others, in place of 0.
    """
    order = np.argsort(-p, axis=1, kind="stable")
    # float32, as ties of the graph count
    falling = np.take_along_axis(p, order, axis=1).astype(np.float32)
    scores: NDArray[Any] = 1 - falling
    if name != "lac":
        scores = np.cumsum(falling, axis=1, dtype=np.float32) - falling / 2
        if penalty is not None:
            scores += penalty.astype(np.float32)
    if not allow_empty:
        scores[falling == falling[:, :1]] = 0
    return order, scores


def set_sizes(
    p: NDArray[Any],
    labels: NDArray[np.int64],
    level: float,
    name: str,
    penalty: NDArray[Any] | None = None,
    *,
    allow_empty: bool = False,
) -> NDArray[np.int64]:
    """Return how many classes each set holds, (N,), where the threshold comes from the same samples.

    Args:
        p: as of `set_scores`, and the others as well.
        labels: (N,).
        level: of the coverage, in (0, 1); one that N is too small for gives sets of all classes.
        name: of the score.
        penalty: (C,) by rank.
        allow_empty: see `set_scores`.
    """
    order, scores = set_scores(p, name, penalty, allow_empty=allow_empty)
    ranks = np.argmax(order == labels[:, None], axis=1)
    threshold = quantile(scores[np.arange(len(p)), ranks], level)
    return np.asarray(np.sum(scores <= np.float32(threshold), axis=1))


def small_set_temperature(
    p: NDArray[Any], labels: NDArray[np.int64], level: float, name: str, *, allow_empty: bool = False
) -> float:
    """Return the temperature nearest to 1 whose sets are at most one standard error larger than the smallest ones.

    Arguments are those of `set_sizes`. The number is one that float32 holds.
    """
    temperatures = sorted({1.0, *map(float, _TEMPERATURES)}, key=lambda each: abs(math.log(each)))
    sizes = [set_sizes(tempered(p, each), labels, level, name, allow_empty=allow_empty) for each in temperatures]
    smallest = min(sizes, key=np.mean)
    for temperature, size in zip(temperatures, sizes, strict=True):
        larger = size - smallest
        if larger.mean() <= larger.std() / math.sqrt(len(larger)):
            return temperature
    raise AssertionError  # the smallest is one of them


def small_set_penalty(
    p: NDArray[Any], labels: NDArray[np.int64], level: float, *, allow_empty: bool = False
) -> tuple[int, float]:
    """Return how many classes are free and the penalty of each class behind them with which `raps` has small sets.

    Free is one class, or as many as hold the true one at the level. Arguments are those of `set_sizes`.

    Source: A. Angelopoulos et al., ICLR 2021, section 2.3 and appendix E.
    """
    order = np.argsort(-p, axis=1, kind="stable")
    ranks = 1 + np.argmax(order == labels[:, None], axis=1)
    at_level = int(min(quantile(ranks, level), p.shape[1]))
    choices = [(free, weight) for free in sorted({1, at_level}) for weight in _PENALTIES]

    def size(choice: tuple[int, float]) -> float:
        penalty = rank_penalty(p.shape[1], *choice)
        return float(set_sizes(p, labels, level, "raps", penalty, allow_empty=allow_empty).mean())

    return min(choices, key=size)


def rank_penalty(classes: int, free: int, weight: float) -> NDArray[np.float64]:
    """Return what `raps` adds at each rank, (C,): `weight` for each class behind the first `free` ones."""
    return np.asarray(weight * np.maximum(np.arange(1, classes + 1) - free, 0))
