"""Reliability diagrams, cumulative differences, and counts of which class was taken for which.

Bin j holds j/B < confidence <= (j+1)/B; bin 0 holds 0 as well. In order of confidence, with hits h_i,

    C_k = 1/N sum_{i <= k} (h_i - c_i)        Kolmogorov-Smirnov max_k |C_k|        Kuiper max_k C_k - min_k C_k

C over sigma, sigma^2 = 1/N^2 sum c_i (1 - c_i), tends to a Brownian motion for a calibrated model, which gives the
p-values; they are a little too large for few samples.
Source: Arrieta-Ibarra et al. (2022), "Metrics of calibration for probabilistic predictions", JMLR 23(351); Feller
(1951).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.ops import rows_of
from tna_onnx.numerics.scores import SampleScores


@dataclass(frozen=True)
class Bins:
    """A reliability diagram of B bins: bin j holds j/B < confidence <= (j+1)/B, bin 0 holds 0 as well.

    Attributes:
        count: samples in each bin; with weights, the bin's share of the weight times the number of samples, rounded.
        confidence: mean confidence in each bin, a fraction; 0 where it is empty.
        accuracy: share of each bin that came true, a fraction; 0 where it is empty.
    """

    count: tuple[int, ...]
    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]

    @classmethod
    def of(
        cls, confidence: NDArray[Any], hit: NDArray[np.bool_], bins: int, weights: NDArray[np.float64] | None = None
    ) -> Bins:
        """Bin (N,) confidences and whether each came true, with weights (N,) if not all count the same."""
        # the bins of the ECE, so that a diagram shows what the number sums up
        index = bin_of(confidence, bins)
        columns: tuple[NDArray[Any], ...] = (confidence.astype(np.float64), hit)
        if weights is not None:
            weights = weights * (len(weights) / np.sum(weights))
            columns = (weights * columns[0], weights * hit)
        sums = [np.bincount(index, values, bins) for values in columns]
        return cls.of_sums(np.bincount(index, weights, bins), *sums)

    @classmethod
    def of_scores(cls, scores: SampleScores, bins: int) -> Bins:
        """Bin scores; of several labels a sample, all of them together."""
        together = scores.pooled()
        return cls.of(together.confidence, together.hit, bins, together.weights)

    @classmethod
    def of_sums(cls, count: NDArray[Any], confidence: NDArray[Any], hits: NDArray[Any]) -> Bins:
        """Divide (B,) sums by their counts."""
        size = np.where(count > 0, count, 1)  # sums of an empty bin are 0, and stay 0
        return cls(
            tuple(np.rint(count).astype(int).tolist()),
            tuple((confidence / size).tolist()),
            tuple((hits / size).tolist()),
        )

    @property
    def ece(self) -> float:
        """Sum over bins of count / N * |accuracy - confidence|."""
        gap = sum(n * abs(a - c) for n, a, c in zip(self.count, self.accuracy, self.confidence, strict=True))
        return gap / max(1, sum(self.count))


@dataclass(frozen=True)
class Reliability:
    """Top-label reliability diagrams before and after, of the same samples.

    Attributes:
        before: diagram of the input model.
        after: diagram of the recalibrated model.
    """

    before: Bins
    after: Bins

    @classmethod
    def of(cls, before: SampleScores, after: SampleScores, bins: int) -> Reliability:
        """Bin paired scores."""
        return cls(Bins.of_scores(before, bins), Bins.of_scores(after, bins))


SAME = 2.0**-20
"""Probabilities that are no further apart are equal: float32, and a softmax of float32 logarithms, say no more."""


def bin_of(values: NDArray[Any], bins: int) -> NDArray[np.intp]:
    """Bin of each value in [0, 1]; one that rounding has put beyond a border is on it."""
    return np.searchsorted(np.arange(1, bins) / bins + SAME, values.astype(np.float64), side="left")


def ties_of(values: NDArray[Any]) -> NDArray[np.intp]:
    """Return numbers of equal values, ascending with them, (N,): of a run of near ones, each piece as wide as `SAME`.

    >>> ties_of(np.float32([0.6, 0.2, 0.1 + 0.5, 0.6000001])).tolist()
    [1, 0, 1, 1]
    """
    distinct, at = np.unique(values.astype(np.float64), return_inverse=True)
    first = np.r_[True, np.diff(distinct) > SAME]
    piece = (distinct - distinct[first][np.cumsum(first) - 1]) // SAME
    number = np.cumsum(first | np.r_[False, np.diff(piece) != 0]) - 1
    return np.asarray(number[at])


# Terms of each series. Below `_SWITCH` one converges fast, above it the other; there the tenth term is below 1e-20.
_TERMS = 20
_SWITCH = 1.0
_SIGNS = np.where(np.arange(_TERMS) % 2, -1.0, 1.0)


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
        """Test N >= 1 scores; samples of one confidence, to rounding, count together, as their order is arbitrary."""
        order = np.argsort(scores.confidence, kind="stable")
        # probabilities are scored as a model gives them, and may round to more than 1
        confidence = np.minimum(scores.confidence[order].astype(np.float64), 1)
        weights = scores.weigh(np.ones(len(scores)))[order]
        total: NDArray[np.float64] = np.cumsum(weights * (scores.hit[order] - confidence))
        ends = np.r_[np.diff(ties_of(confidence)) > 0, True]
        walk = np.r_[0.0, total[ends]] / scores.total
        sigma = float(np.sqrt(np.sum(weights**2 * confidence * (1 - confidence)))) / scores.total
        largest = float(np.max(np.abs(walk)))
        extent = float(np.ptp(walk))
        return cls(largest, extent, kolmogorov_smirnov_p(_ratio(largest, sigma)), kuiper_p(_ratio(extent, sigma)))


def normal_cdf(x: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return the probability that a standard normal variable is below each number; for few of them.

    >>> normal_cdf(np.array([-1.96, 0.0])).round(3).tolist()
    [0.025, 0.5]
    """
    return np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in x.ravel().tolist()]).reshape(x.shape)


def kolmogorov_smirnov_p(x: float) -> float:
    """Probability that the absolute value of a Brownian motion on [0, 1] exceeds x >= 0.

    >>> round(kolmogorov_smirnov_p(2.241), 3)
    0.05
    """
    if x == 0:
        return 1.0
    if x < _SWITCH:
        odd = 2 * np.arange(_TERMS) + 1
        inside = 4 / np.pi * np.sum(_SIGNS / odd * np.exp(-((odd * np.pi / x) ** 2) / 8))
        return min(1.0, float(1 - inside))
    # reflection at both borders
    return float(4 * np.sum(_SIGNS * normal_cdf(-(2 * np.arange(_TERMS) + 1) * x)))


def kuiper_p(x: float) -> float:
    """Probability that the range of a Brownian motion on [0, 1] exceeds x >= 0.

    >>> round(kuiper_p(2.498), 3)
    0.05
    """
    if x == 0:
        return 1.0
    if x < _SWITCH:
        half = (np.arange(_TERMS) + 0.5) * np.pi
        inside = np.sum((8 / x**2 + 2 / half**2) * np.exp(-2 * (half / x) ** 2))
        return min(1.0, float(1 - inside))
    k = np.arange(_TERMS) + 1
    return float(8 * np.sum(_SIGNS * k * normal_cdf(-k * x)))


def _ratio(value: float, sigma: float) -> float:
    """Divide; where every confidence is 0 or 1 nothing is left to chance."""
    if sigma > 0:
        return value / sigma
    if value > 0:
        return np.inf
    return 0.0


@dataclass(frozen=True, eq=False)
class ClassCounts:
    """Counts of N samples of C classes."""

    predicted: NDArray[Any]  # (C,) samples that each class was predicted for
    right: NDArray[Any]  # (C,) of these, samples whose label it is
    # (label, prediction) -> samples, where the two differ. A matrix of all pairs would not fit many classes.
    errors: Counter[tuple[int, int]]

    @classmethod
    def of(
        cls,
        predicted: NDArray[Any],
        labels: NDArray[np.int64],
        classes: int,
        weights: NDArray[np.float64] | None = None,
    ) -> ClassCounts:
        """Count (N,) predictions against (N,) labels; with weights (N,) the counts are their sums."""
        wrong = predicted != labels
        pairs, places = np.unique(labels[wrong] * classes + predicted[wrong], return_inverse=True)
        counts = np.bincount(places, rows_of(weights, wrong), len(pairs)).tolist()
        errors = Counter({divmod(int(pair), classes): n for pair, n in zip(pairs, counts, strict=True)})
        right = np.bincount(labels[~wrong], rows_of(weights, ~wrong), classes)
        return cls(np.bincount(predicted, weights, classes), right, errors)

    def __add__(self, addend: ClassCounts) -> ClassCounts:
        return ClassCounts(self.predicted + addend.predicted, self.right + addend.right, self.errors + addend.errors)

    def confused(self, max_classes: int) -> dict[int, list[tuple[int, int]]]:
        """Return what each label is most often taken for: label -> (prediction, samples), most samples first."""
        listed: dict[int, list[tuple[int, int]]] = {}
        # ties in the order of the classes, whatever the order of the chunks
        for (label, predicted), n in sorted(self.errors.items(), key=lambda item: (-item[1], item[0])):
            row = listed.setdefault(label, [])
            if len(row) < max_classes:
                row.append((predicted, n))
        return listed
