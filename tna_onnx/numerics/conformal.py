"""Thresholds with a guarantee: split conformal prediction, selective risk, and the score test of a share.

    quantile     P(s <= q) >= level for q the k-th smallest of n scores, k = ceil((n + 1) level) (Vovk et al. 2005,
                 section 2.2); the share of new samples below q is Beta(k, n + 1 - k) (Vovk 2012, proposition 2a)
    risk         of the k samples above the threshold at a rank, e are wrong: P(Binomial(k, risk) <= e) is the p-value
                 of a higher risk. Ranks are tested in order from three starts with a third of delta each, which passes
                 on (Wiens 2003; Learn then Test, arXiv:2110.01052, 2.2); less sure samples must be wrong more often
    share        |f - p| <= z sqrt(p (1 - p) / n); solved for p, Wilson's interval (1927); Bröcker & Smith (2007)

`set_scores` are what `graph.decisions` writes, to choose a penalty.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from tna_onnx.numerics.scores import mean_and_error

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray


_ROUNDING = 1e-9  # of (n + 1) level: 10 * 0.9 is 9, whatever float64 makes of it


def conformal_quantile(scores: NDArray[Any], level: float) -> float:
    """Return q: a new score is at most q with probability `level` or more; infinity where n is too small to say.

    `scores`: (n,) of calibration samples, in any order.

    >>> conformal_quantile(np.array([3.0, 1.0, 2.0]), 0.5)
    2.0
    >>> conformal_quantile(np.array([3.0, 1.0, 2.0]), 0.9)
    inf
    """
    rank = _rank(len(scores), level)
    if rank > len(scores):
        return math.inf
    return float(np.partition(scores, rank - 1)[rank - 1])


def samples_needed(level: float) -> int:
    """Return the smallest n for which `conformal_quantile` is finite.

    >>> samples_needed(0.95)
    19
    """
    n = max(0, int(level / (1 - level)) - 1)
    while _rank(n, level) > n:  # two or three steps, with the rounding of `conformal_quantile`
        n += 1
    return n


def coverage_band(n: int, level: float, new: int | None, confidence: float) -> tuple[float, float]:
    """Return the central interval of the share of new scores that are at most q, if they are exchangeable.

    `new`: new samples, at least 1; None for arbitrarily many.

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


_PENALTIES = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5)
"""Of `raps`: what Angelopoulos et al., appendix E, search over, and 0.05."""


def set_scores(
    p: NDArray[Any], penalty: NDArray[Any], *, allow_empty: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the classes from the likeliest down and their scores, both (N, C): as of `raps`, or of `aps` without.

    `p`: (N, C) probabilities. `penalty`: (C,) that is added to the sum of larger probabilities and half of the class's
    own, by rank. `allow_empty`: whether the likeliest class has a score like the others, in place of 0.
    """
    order = np.argsort(-p, axis=1, kind="stable")
    # float32, as ties of the graph count
    falling = np.take_along_axis(p, order, axis=1).astype(np.float32)
    scores: NDArray[Any] = np.cumsum(falling, axis=1, dtype=np.float32) - falling / 2 + penalty.astype(np.float32)
    if not allow_empty:
        scores[falling == falling[:, :1]] = 0
    return order, scores


def set_sizes(
    p: NDArray[Any], labels: NDArray[np.int64], level: float, penalty: NDArray[Any], *, allow_empty: bool = False
) -> NDArray[np.int64]:
    """Return how many classes each set holds, (N,), where the threshold comes from the same samples.

    `p`, `penalty` and `allow_empty`: as of `set_scores`. `labels`: (N,). `level`: of the coverage, in (0, 1); one that
    N is too small for gives sets of all classes.
    """
    order, scores = set_scores(p, penalty, allow_empty=allow_empty)
    ranks = np.argmax(order == labels[:, None], axis=1)
    threshold = conformal_quantile(scores[np.arange(len(p)), ranks], level)
    return np.asarray(np.sum(scores <= np.float32(threshold), axis=1))


def small_set_penalty(
    p: NDArray[Any], labels: NDArray[np.int64], level: float, *, allow_empty: bool = False
) -> tuple[int, float]:
    """Return how many classes are free and the penalty of each class behind them with which `raps` has small sets.

    Free is one class, or as many as hold the true one at the level. Arguments are those of `set_sizes`.

    Source: A. Angelopoulos et al., ICLR 2021, section 2.3 and appendix E.
    """
    order = np.argsort(-p, axis=1, kind="stable")
    ranks = 1 + np.argmax(order == labels[:, None], axis=1)
    at_level = int(min(conformal_quantile(ranks, level), p.shape[1]))
    choices = [(free, weight) for free in sorted({1, at_level}) for weight in _PENALTIES]

    def size(choice: tuple[int, float]) -> float:
        penalty = rank_penalty(p.shape[1], *choice)
        return float(set_sizes(p, labels, level, penalty, allow_empty=allow_empty).mean())

    return min(choices, key=size)


def rank_penalty(classes: int, free: int, weight: float) -> NDArray[np.float64]:
    """Return what `raps` adds at each rank, (C,): `weight` for each class behind the first `free` ones."""
    return np.asarray(weight * np.maximum(np.arange(1, classes + 1) - free, 0))


_STARTS = 3
_STEP = 200  # ranks are tested one by one, and beyond this in steps of a 200th

_RISKS = np.round(np.arange(0.001, 0.5005, 0.001), 3)


def accept_above(confidence: NDArray[Any], hit: NDArray[np.bool_], risk: float, delta: float) -> float | None:
    """Return the lowest threshold whose risk is at most `risk`, with probability 1 - `delta`; None if none passes.

    `confidence`: (N,) largest probabilities; `hit`: (N,) whether the sample is classified right; `risk`: largest share
    of errors among accepted samples, in (0, 1); `delta`: probability with which the risk may be above it, in (0, 1).
    """
    ranked = _Ranked(confidence, hit)
    count = ranked.accepted(risk, delta)
    if not count:
        return None
    return float(np.float32(ranked.threshold(count)))


def lowest_risk(confidence: NDArray[Any], hit: NDArray[np.bool_], delta: float) -> float | None:
    """Return the lowest risk of 0.1, 0.2 ... 50 % at which a threshold passes, a fraction; None if none does.

    It comes from the samples: a threshold at it, from the same samples, promises less.
    """
    ranked = _Ranked(confidence, hit)
    return next((float(risk) for risk in _RISKS if ranked.accepted(float(risk), delta)), None)


class _Ranked:
    """Samples from the surest down."""

    def __init__(self, confidence: NDArray[Any], hit: NDArray[np.bool_]) -> None:
        order = np.argsort(-confidence, kind="stable")
        # float32, as the graph compares; behind the last one, what is below every confidence
        self._confidence = np.append(confidence[order].astype(np.float32), np.float32(-np.inf))
        # of the k surest, those classified wrong
        self._wrong = np.concatenate([[0], np.cumsum(~hit[order])])
        n = len(order)
        # samples of one confidence are accepted together: for each rank, how many have it or more
        self._together = np.searchsorted(-self._confidence[:n], -self._confidence[:n], side="right")

    def threshold(self, count: int) -> np.float32:
        """Return the smallest number above the confidence of the surest sample that is not accepted."""
        above: np.float32 = np.nextafter(self._confidence[count], np.float32(np.inf))
        return max(above, np.float32(0))

    def accepted(self, risk: float, delta: float) -> int:
        """Return how many samples the lowest threshold that passes accepts; 0 for none."""
        from scipy.special import bdtr  # noqa: PLC0415 - heavy

        counts, levels = self._tests(risk, delta)
        passed = level = 0.0
        for count, more, p in zip(counts, levels, bdtr(self._wrong[counts], counts, risk), strict=True):
            level += more
            if p <= level:
                passed = count
            else:
                level = 0.0
        return int(passed)

    def _tests(self, risk: float, delta: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return how many samples each test accepts, rising, and the level that begins there."""
        n = len(self._together)
        first = errorless_needed(risk, delta)
        if first > n:
            return np.zeros(0, np.int64), np.zeros(0)
        starts = [round(first * (n / first) ** (k / _STARTS)) for k in range(_STARTS)]
        ranks = [*starts, n]
        rank = first
        while rank < n:
            ranks.append(rank)
            rank += max(1, rank // _STEP)
        counts = np.unique(self._together[np.array(ranks) - 1])
        levels = np.zeros(len(counts))
        np.add.at(levels, np.searchsorted(counts, self._together[np.array(starts) - 1]), delta / _STARTS)
        return counts, levels


def errorless_needed(risk: float, delta: float) -> int:
    """Return how many accepted samples without an error it takes for a threshold to pass.

    >>> errorless_needed(0.02, 0.05)
    203
    """
    return math.ceil(math.log(delta / _STARTS) / math.log1p(-risk))


LEVEL = 0.95
"""Level of both intervals, a fraction."""

Z = NormalDist().inv_cdf((1 + LEVEL) / 2)
"""Its quantile of the standard normal distribution, without unit."""


def share_interval(
    holds: NDArray[np.bool_], level: float, clusters: NDArray[np.int64] | None = None
) -> tuple[float, float]:
    """Return the Clopper-Pearson interval of a share of (n,) samples; of groups, for as many independent samples.

    These are n over the design effect, times (t_n / t_K)^2 for what K groups tell of it, and K where all samples agree.

    Source: Korn & Graubard (1998), Survey Methodology 24, "Confidence intervals for proportions with small expected
    number of positive counts estimated from survey data".

    >>> share_interval(np.zeros(100, bool), 0.95)[1].__round__(4)
    0.0362
    """
    from scipy import special  # noqa: PLC0415 - heavy

    share = float(holds.mean())
    n: float = len(holds)
    if clusters is not None and (groups := len(np.unique(clusters))) < len(holds):
        _, error = mean_and_error(holds.astype(np.float64), clusters)
        effect = n * error**2 / (share * (1 - share)) if 0 < share < 1 else n / groups
        tail = (1 + level) / 2
        information = (special.stdtrit(n - 1, tail) / special.stdtrit(max(1, groups - 1), tail)) ** 2
        n = float(n / max(1.0, effect) * information) if np.isfinite(effect) else 1.0
    count = share * n
    low = 0.0
    if share > 0:
        low = float(special.betaincinv(count, n - count + 1, (1 - level) / 2))
    high = 1.0
    if share < 1:
        high = float(special.betaincinv(count + 1, n - count, (1 + level) / 2))
    return low, high


def wilson_interval(share: float, n: float, z: float = Z) -> tuple[float, float]:
    """Return the probabilities that agree with a share of n > 0 samples, up to z standard errors; fractions.

    >>> tuple(round(end, 3) for end in wilson_interval(1.0, 4))
    (0.51, 1.0)
    """
    weight = z * z / n
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
