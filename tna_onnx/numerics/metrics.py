"""Calibration metrics of scored samples, and the paired bootstrap that compares two of them.

Each calibration error is one signed residual sum per bin: with r_i = hit_i - confidence_i,

    ECE = 1/N sum_j | sum_{i in bin j} r_i |

(the paper's sum_j |B_j|/N |acc(B_j) - conf(B_j)|, multiplied out). ECE has B equal intervals (j/B, (j+1)/B], so that
confidence 1.0 lies in the last bin; AdaECE has B bins of equal mass in ascending confidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.metric import METRICS, Objective
from tna_onnx.numerics.reliability import bin_of
from tna_onnx.numerics.stats import SampleScores

__all__ = [
    "Interval",
    "Metrics",
    "ada_ece",
    "differences_to",
    "ece",
    "objective_value",
    "paired_differences",
]

# Bootstrap resamples. Quantiles far out need more of them: at least `_MIN_BEYOND` beyond each end of the interval.
_MIN_RESAMPLES = 1000
_MAX_RESAMPLES = 10_000
_MIN_BEYOND = 25

# Each sample is its own group up to this many; above it, the time and memory of a resample stay as they are.
_MAX_GROUPS = 20_000


@dataclass(frozen=True)
class Metrics:
    """Metrics of N samples.

    Attributes:
        n: number of samples N, at least 1.
        bins: bins of ECE, AdaECE and the diagrams, at least 1.
        accuracy: share of the samples whose predicted class is the label, a fraction.
        ece: expected calibration error over bins of equal width, a fraction (not per cent).
        adaece: calibration error over bins of equal mass, a fraction (not per cent).
        nll: mean negative log-likelihood of the label, nats.
        brier: mean squared distance of the probabilities from the one-hot label, 0 to 2; no unit.
    """

    n: int
    bins: int
    accuracy: float
    ece: float
    adaece: float
    nll: float
    brier: float

    @classmethod
    def of(cls, scores: SampleScores, bins: int = 15) -> Metrics:
        """Reduce scores; sums in float64.

        Raises:
            ValueError: no samples, or fewer samples than bins.
        """
        _check(scores, bins)
        return cls(n=len(scores), bins=bins, **{name: _value(scores, name, bins) for name in METRICS})


@dataclass(frozen=True)
class Interval:
    """A paired difference after - before with its bootstrap interval.

    Attributes:
        difference: after - before, in the unit of the metric.
        low: lower end of the interval, in the unit of the metric.
        high: upper end of the interval, in the unit of the metric.
        level: level of the interval, a fraction: 0.95 is 95 %.
    """

    difference: float
    low: float
    high: float
    level: float


def ece(scores: SampleScores, bins: int = 15) -> float:
    """Expected calibration error over `bins` equal intervals (j/B, (j+1)/B].

    Raises:
        ValueError: no samples, or fewer samples than bins.

    Source: Naeini et al. (2015); the paper, section "Evaluation Metrics".

    >>> right, wrong = np.array([True]), np.array([False])
    >>> one = lambda p, hit: SampleScores(np.float32([p]), hit, np.float32([0]), np.float32([0]))
    >>> round(ece(one(0.75, right) + one(0.75, wrong), bins=2), 6)
    0.25
    """
    # sums of r_i: |B_j| of the weight and of the two means cancel
    sums = np.bincount(_equal_width(scores, bins), _residuals(scores), bins)
    return float(np.sum(np.abs(sums)) / len(scores))


def ada_ece(scores: SampleScores, bins: int = 15) -> float:
    """Calibration error over `bins` bins of equal mass, in ascending confidence.

    Samples of one confidence can fall on both sides of a border; each then counts with their mean residual, so that
    the value does not depend on the order of the samples.

    Raises:
        ValueError: no samples, or fewer samples than bins.

    Source: Mukhoti et al. (2020); the paper, section "Evaluation Metrics".
    """
    _check(scores, bins)
    order = np.argsort(scores.confidence, kind="stable")
    confidence = scores.confidence[order]
    residual = _residuals(scores)[order]
    # samples of one confidence share their mean residual: their order is arbitrary
    starts = np.flatnonzero(np.r_[True, confidence[1:] != confidence[:-1]])
    counts = np.diff(np.r_[starts, len(confidence)])
    residual = np.repeat(np.add.reduceat(residual, starts) / counts, counts)
    edges = _equal_mass_edges(len(scores), bins)
    # every bin holds a sample, as there are at least as many samples as bins: reduceat needs that
    return float(np.sum(np.abs(np.add.reduceat(residual, edges[:-1]))) / len(scores))


def objective_value(scores: SampleScores, objective: Objective, bins: int = 15) -> float:
    """Value of the metric that the search minimises."""
    return _value(scores, objective, bins)


# A metric is the mean of a field of the scores, or a calibration error with bins of its own: one row here, one in
# `numerics.metric`, and a field of `Metrics`.
_MEANS = {"accuracy": "hit", "nll": "nll", "brier": "brier"}
_ERRORS: dict[str, Callable[[SampleScores, int], float]] = {"ece": ece, "adaece": ada_ece}


def _value(scores: SampleScores, name: str, bins: int) -> float:
    """Return a metric by its name."""
    if name in _ERRORS:
        return _ERRORS[name](scores, bins)
    return float(np.mean(getattr(scores, _MEANS[name]), dtype=np.float64))


def paired_differences(
    before: SampleScores, after: SampleScores, bins: int = 15, *, level: float = 0.95, seed: int = 0
) -> dict[str, Interval]:
    """Differences `after - before` on the same samples, with basic bootstrap intervals, per name in `METRICS`.

    Samples are resampled in pairs. The interval is the basic one, [2d - q_high, 2d - q_low]: a resample adds
    noise to every bin and so raises a calibration error; reflecting the quantiles takes 40 % of that bias out. The rest
    raises the error of a calibrated model more than that of another, so an improvement looks smaller than it is: with a
    true ECE of 0 after and 0.2 before, 400 samples, 84 % of the ECE intervals held the truth and all others lay above
    (AdaECE: 68 %); with both models miscalibrated, 99 %. Above 20,000
    samples random groups of samples are resampled in place of single ones. Equal-mass bins keep the borders of the
    full data; samples of one confidence across a border are shared out evenly, as in `ada_ece`.

    1,000 resamples up to a level of 0.95; above it as many as leave 25 beyond each end, 10,000 at most.

    Raises:
        ValueError: different numbers of samples, fewer samples than bins, or a level outside of 0 to 1.

    Source: Efron & Tibshirani (1993), sections 13 and 14.
    """
    return differences_to(before, [after], bins, level=level, seed=seed)[0]


def differences_to(
    before: SampleScores, others: Sequence[SampleScores], bins: int = 15, *, level: float = 0.95, seed: int = 0
) -> list[dict[str, Interval]]:
    """Return `paired_differences` of several to one, to the bit; what is drawn, and its sums, are shared by all.

    Raises:
        ValueError: see `paired_differences`.
    """
    for after in others:
        if len(before) != len(after):
            raise ValueError(f"paired samples expected, got {len(before)} before and {len(after)} after")
    if not 0 < level < 1:
        raise ValueError(f"a confidence level between 0 and 1 expected, got {level}")
    tail = (1 - level) / 2
    resamples = min(max(_MIN_RESAMPLES, math.ceil(_MIN_BEYOND / tail)), _MAX_RESAMPLES)
    n = len(before)
    rng = np.random.default_rng(seed)
    groups = min(n, _MAX_GROUPS)
    group = np.arange(n)
    if groups < n:
        # groups of equal size up to one sample, whatever order the samples come in
        group = rng.permutation(n) % groups
    first, *sums = (_Sums.of(scores, bins, group, groups) for scores in (before, *others))

    # both models see the same resamples: what they share cancels in the difference
    def minus(weights: NDArray[np.float64]) -> list[dict[str, NDArray[np.float64]]]:
        errors = first.errors(weights)
        return [each.minus(first, errors, weights, n) for each in sums]

    full = minus(np.ones((1, groups)))
    share = np.full(groups, 1 / groups)
    drawn = [  # a hundred at a time: 16 MB of weights at 20,000 groups
        minus(rng.multinomial(groups, share, size=100).astype(np.float64)) for _ in range(0, resamples, 100)
    ]
    return [_intervals(full[k], [blocks[k] for blocks in drawn], level) for k in range(len(sums))]


def _intervals(
    full: dict[str, NDArray[np.float64]], drawn: Sequence[dict[str, NDArray[np.float64]]], level: float
) -> dict[str, Interval]:
    """Basic bootstrap intervals of the differences of all samples (1,) and of blocks of resamples (R,)."""
    result = {}
    tail = (1 - level) / 2
    for name in METRICS:
        low, high = np.quantile(np.concatenate([block[name] for block in drawn]), [tail, 1 - tail])
        d = float(full[name][0])
        # the basic interval: quantiles reflected about the difference
        result[name] = Interval(d, 2 * d - float(high), 2 * d - float(low), level)
    return result


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums per group of samples: fields of the scores (G, 3), and per calibration error residuals by bin (G, B)."""

    plain: NDArray[np.float64]
    binned: dict[str, NDArray[np.float64]]

    @classmethod
    def of(cls, scores: SampleScores, bins: int, group: NDArray[Any], groups: int) -> _Sums:
        # terms are float32 and sums float64: any split of the data gives the same bits
        fields = [getattr(scores, name).astype(np.float64) for name in _MEANS.values()]
        plain: NDArray[np.float64] = np.stack([np.bincount(group, values, groups) for values in fields], axis=1)
        return cls(plain, {name: sums(scores, bins, group, groups) for name, sums in _SUMS.items()})

    def errors(self, weights: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """N times the calibration errors under (R, G) resampling weights: name -> (R,)."""
        return {name: np.abs(weights @ sums).sum(axis=1) for name, sums in self.binned.items()}

    def minus(
        self, other: _Sums, errors: dict[str, NDArray[np.float64]], weights: NDArray[np.float64], n: int
    ) -> dict[str, NDArray[np.float64]]:
        """Metric differences `self - other` under (R, G) resampling weights: name -> (R,); `errors` are the other's."""
        # means are linear: the difference is resampled at once. Calibration errors are not
        plain = weights @ (self.plain - other.plain) / n
        differences = {name: plain[:, k] for k, name in enumerate(_MEANS)}
        for name, mine in self.errors(weights).items():
            differences[name] = (mine - errors[name]) / n
        return differences


def _sums_by_width(scores: SampleScores, bins: int, group: NDArray[Any], groups: int) -> NDArray[np.float64]:
    """Residuals per group and bin of equal width, (G, B)."""
    cell = group * bins + _equal_width(scores, bins)
    return np.bincount(cell, _residuals(scores), groups * bins).astype(np.float64).reshape(groups, bins)


def _sums_by_mass(scores: SampleScores, bins: int, group: NDArray[Any], groups: int) -> NDArray[np.float64]:
    """Residuals per group and bin of equal mass, (G, B)."""
    residual = _residuals(scores)
    # samples of one confidence share the ranks start..stop: each lies in every bin by the same fraction
    _, tie, count = np.unique(scores.confidence, return_inverse=True, return_counts=True)
    stop = np.cumsum(count)
    start = stop - count
    edges = _equal_mass_edges(len(scores), bins)
    sums = np.empty((groups, bins))
    for j in range(bins):
        ranks = np.minimum(stop, edges[j + 1]) - np.maximum(start, edges[j])
        sums[:, j] = np.bincount(group, residual * (np.maximum(ranks, 0) / count)[tie], groups)
    return sums


# How the residuals of each of `_ERRORS` are summed for the bootstrap.
_SUMS = {"ece": _sums_by_width, "adaece": _sums_by_mass}


def _residuals(scores: SampleScores) -> NDArray[np.float64]:
    return scores.hit - scores.confidence.astype(np.float64)


def _equal_width(scores: SampleScores, bins: int) -> NDArray[np.intp]:
    """Bin j of each confidence, with j/B < confidence <= (j+1)/B; a confidence of 0 lies in bin 0."""
    _check(scores, bins)
    return bin_of(scores.confidence, bins)


def _equal_mass_edges(n: int, bins: int) -> NDArray[np.intp]:
    """Borders of `bins` runs of n sorted samples whose sizes differ by one at most."""
    return np.arange(bins + 1) * n // bins


def _check(scores: SampleScores, bins: int) -> None:
    if bins < 1 or len(scores) < bins:
        raise ValueError(f"at least one bin and as many samples as bins needed, got {len(scores)} samples, {bins} bins")
