"""Calibration metrics of scored samples.

Each calibration error is one signed residual sum per bin: with r_i = hit_i - confidence_i,

    ECE = 1/N sum_j | sum_{i in bin j} r_i |

(the paper's sum_j |B_j|/N |acc(B_j) - conf(B_j)|, multiplied out). ECE has B equal intervals (j/B, (j+1)/B], so that
confidence 1.0 lies in the last bin; AdaECE has B bins of equal mass in ascending confidence.

Of several labels a sample, every metric is the mean over labels of that of each. A calibration error then has the
label's probability in place of the confidence, and whether it holds in place of the hit: the class-wise ECE of Kull et
al. (2019), of labels that do not exclude one another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.metric import METRICS, Objective
from tna_onnx.numerics.reliability import bin_of
from tna_onnx.numerics.stats import SampleScores

__all__ = [
    "Interval",
    "Metrics",
    "ada_ece",
    "check_bins",
    "ece",
    "equal_mass_edges",
    "objective_value",
    "residuals",
]


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
        check_bins(scores, bins)
        return cls(n=len(scores), bins=bins, **{name: _value(scores, name, bins) for name in METRICS})


@dataclass(frozen=True)
class Interval:
    """A paired difference after - before with its interval.

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
    if scores.predicted is not None:
        return float(np.mean([ece(each, bins) for each in scores.by_label()]))
    # sums of r_i: |B_j| of the weight and of the two means cancel
    sums = np.bincount(_equal_width(scores, bins), residuals(scores), bins)
    return float(np.sum(np.abs(sums)) / len(scores))


def ada_ece(scores: SampleScores, bins: int = 15) -> float:
    """Calibration error over `bins` bins of equal mass, in ascending confidence.

    Samples of one confidence can fall on both sides of a border; each then counts with their mean residual, so that
    the value does not depend on the order of the samples.

    Raises:
        ValueError: no samples, or fewer samples than bins.

    Source: Mukhoti et al. (2020); the paper, section "Evaluation Metrics".
    """
    check_bins(scores, bins)
    if scores.predicted is not None:
        return float(np.mean([ada_ece(each, bins) for each in scores.by_label()]))
    order = np.argsort(scores.confidence, kind="stable")
    confidence = scores.confidence[order]
    residual = residuals(scores)[order]
    # samples of one confidence share their mean residual: their order is arbitrary
    starts = np.flatnonzero(np.r_[True, confidence[1:] != confidence[:-1]])
    counts = np.diff(np.r_[starts, len(confidence)])
    residual = np.repeat(np.add.reduceat(residual, starts) / counts, counts)
    edges = equal_mass_edges(len(scores), bins)
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


def residuals(scores: SampleScores) -> NDArray[np.float64]:
    """Return hit - confidence of each sample, (N,)."""
    return scores.hit - scores.confidence.astype(np.float64)


def _equal_width(scores: SampleScores, bins: int) -> NDArray[np.intp]:
    """Bin j of each confidence, with j/B < confidence <= (j+1)/B; a confidence of 0 lies in bin 0."""
    check_bins(scores, bins)
    return bin_of(scores.confidence, bins)


def equal_mass_edges(n: int, bins: int) -> NDArray[np.intp]:
    """Borders of `bins` runs of n sorted samples whose sizes differ by one at most."""
    return np.arange(bins + 1) * n // bins


def check_bins(scores: SampleScores, bins: int) -> None:
    """Refuse fewer samples than bins.

    Raises:
        ValueError: no bin, no samples, or fewer samples than bins.
    """
    if bins < 1 or len(scores) < bins:
        raise ValueError(f"at least one bin and as many samples as bins needed, got {len(scores)} samples, {bins} bins")
