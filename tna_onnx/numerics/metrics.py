"""Metrics of scored samples: accuracy, NLL, Brier score, ECE and AdaECE, with their bias and what chance explains.

With r_i = hit_i - confidence_i, bins (j/B, (j+1)/B] or of equal mass, and F(d, s) = E|d + s Z|, Z standard normal:

    ECE = 1/N sum_j | sum_{i in bin j} r_i |        as a mean of single losses: 1/N sum_i sign_j(i) r_i
    debiased ECE = sum_b n_b/N (2 |d_b| - F(d_b, s_b)),        s_b^2 = a_b (1 - a_b) / n_b,  gap d_b, accuracy a_b
    expected ECE = sum_b sqrt(2 / pi sum_{i in b} c_i (1 - c_i)) / N        of a calibrated model

Of several labels, the mean over labels, of their probabilities (Kull et al. 2019). Source: Kumar, Liang & Ma (2019).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.metric import METRICS, POSITIVE_ECE, Objective
from tna_onnx.numerics.reliability import Bins, bin_of, normal_cdf, ties_of
from tna_onnx.numerics.scores import SampleScores, cluster_sums, weighted_mean

MIN_GROUPS = 10
"""With fewer groups of samples no difference is called significant: their spread is not known well enough."""

MIN_EACH = 10
"""Samples that are right, and samples that are wrong, from which an interval is believed: they decide a log loss."""

Shares = Callable[[slice], NDArray[np.float64]]
"""(S, B) share of each of a slice of samples that each bin holds."""


@dataclass(frozen=True)
class Estimate:
    """A number and its interval.

    Attributes:
        value: in the unit of the metric, of a calibration error without its bias; slope and intercept have no unit.
        low: lower end of the interval, in the unit of the metric; null where too few samples are right, or wrong.
        high: upper end of the interval, in the unit of the metric; null likewise.
        level: level of the interval, a fraction.
    """

    value: float
    low: float | None
    high: float | None
    level: float


@dataclass(frozen=True)
class Positive:
    """The probability of the positive class beside how often it occurs; of several labels, that of the worst label.

    Attributes:
        name: of the class, or of the label with the largest ECE.
        mean: mean P(positive), a fraction.
        frequency: share of the samples that are positive, a fraction.
        ece: ECE of P(positive) over bins of equal width, a fraction; of several labels the largest.
        ece_expected: ECE that right probabilities have by chance, on average, a fraction; of several labels the largest
            of as many.
        ece_mean: mean over labels of their ECE, a fraction; of one class `ece`.
        p: how often chance alone gives right probabilities as large an ECE, or as large a distance between mean and
            frequency, a fraction; of several labels adjusted for their number.
        slope: calibration slope with its interval, no unit; null where fewer than ten samples are positive, or
            negative, and where nothing fits best.
        intercept: calibration intercept with its interval, no unit; null likewise.
        labels: number of labels, of which this is the worst; 1 for one class.
        reliability: how often it occurs at each probability, in the bins of the ECE; null beside other labels.
    """

    name: str
    mean: float
    frequency: float
    ece: float
    ece_expected: float
    ece_mean: float
    p: float
    slope: Estimate | None = None
    intercept: Estimate | None = None
    labels: int = 1
    reliability: Bins | None = None

    @property
    def off(self) -> bool:
        """Whether the probability is off by more than chance explains."""
        return self.p < BEYOND_CHANCE


BEYOND_CHANCE = 0.05
"""p-values below it are called more than chance."""


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
        groups: groups of samples that depend on one another; None where each sample is independent of others.
        design_effect: variance of the mean NLL over what it would be if samples were independent, no unit; None without
            groups.
        effective_n: how many samples of equal weight know a mean as well, (sum w)^2 / sum w^2, no unit; None without
            weights.
        accuracy_of_likeliest: share of the samples whose likeliest class is the label, a fraction, where the model
            gives its own decision in an output with labels, whose share of right ones `accuracy` is; None elsewhere.
        positive: the probability of the positive class; None but of two classes, and of several labels.
    """

    n: int
    bins: int
    accuracy: float
    ece: float
    adaece: float
    nll: float
    brier: float
    groups: int | None = None
    design_effect: float | None = None
    effective_n: float | None = None
    accuracy_of_likeliest: float | None = None
    positive: Positive | None = None

    def value(self, name: str) -> float:
        """Return a metric by its name in `metric.JUDGED`."""
        if name == POSITIVE_ECE and self.positive is not None:
            return self.positive.ece
        return float(getattr(self, name))

    @classmethod
    def of(cls, scores: SampleScores, bins: int = 15) -> Metrics:
        """Reduce scores; sums in float64."""
        check_bins(scores, bins)
        values: dict[str, Any] = {name: metric_value(scores, name, bins) for name in METRICS}
        if scores.decided is not None:
            values["accuracy_of_likeliest"] = scores.mean("hit")
        return cls(n=len(scores), bins=bins, **values, **_dependence(scores))

    @classmethod
    def unknown(cls, n: int) -> Metrics:
        """Return the metrics of n samples without labels: NaN."""
        values: dict[str, Any] = dict.fromkeys(METRICS, math.nan)
        return cls(n=n, bins=0, **values)


def _dependence(scores: SampleScores) -> dict[str, Any]:
    """Return groups, design effect of the mean NLL and effective number of samples, as fields of `Metrics`."""
    fields: dict[str, Any] = {}
    if scores.weights is not None:
        fields["effective_n"] = effective_size(scores.weights)
    count = group_count(scores)
    if count is None or scores.clusters is None:
        return fields
    fields["groups"] = count
    nll = scores.nll.astype(np.float64).reshape(len(scores), -1).mean(axis=1)
    deviations = scores.weigh(nll - weighted_mean(nll, scores.weights))
    alone = float(np.sum(deviations**2))
    if count > 1 and alone:
        together = count / (count - 1) * float(np.sum(cluster_sums(deviations, scores.clusters) ** 2))
        fields["design_effect"] = together / alone
    return fields


def group_count(scores: SampleScores) -> int | None:
    """Return how many groups samples come in; None where each is independent of others."""
    if scores.clusters is None:
        return None
    count = len(np.unique(scores.clusters))
    # weighted samples are in clusters of one
    if scores.weights is not None and count == len(scores):
        return None
    return count


def independent_count(scores: SampleScores) -> int | None:
    """Return how many groups of equal weight know a mean as well; None where samples are independent and alike."""
    if scores.weights is None:
        return group_count(scores)
    return int(_independent_size(scores))


def _independent_size(scores: SampleScores) -> float:
    """Return how many independent samples of equal weight know a mean as well."""
    if scores.clusters is None:
        return len(scores)
    _, number = np.unique(scores.clusters, return_inverse=True)
    if scores.weights is None:
        return float(len(np.unique(number)))
    if not np.any(scores.weights):
        return 0.0
    return effective_size(np.asarray(np.bincount(number, scores.weights), np.float64))


def decisive_count(*stages: SampleScores) -> int:
    """Return how many samples one of the scores has wrong, or has right where these are fewer; of groups, how many.

    >>> hit = np.array([True, True, False])
    >>> decisive_count(SampleScores(np.ones(3), hit, np.zeros(3), np.zeros(3)))
    1
    """
    pooled = [scores.pooled() for scores in stages]
    right_once = np.any([scores.hit for scores in pooled], axis=0)
    wrong_once = ~np.all([scores.hit for scores in pooled], axis=0)
    return round(min(_independent_size(pooled[0].take(rows)) for rows in (wrong_once, right_once)))


def effective_size(weights: NDArray[np.float64]) -> float:
    """Return how many samples of equal weight know a mean as well: (sum w)^2 / sum w^2.

    Source: Kish (1965), "Survey sampling", section 11.7.

    >>> effective_size(np.array([1.0, 1.0, 0.0]))
    2.0
    """
    return float(np.sum(weights) ** 2 / np.sum(weights**2))


@dataclass(frozen=True)
class Interval:
    """A paired difference after - before with its interval.

    Attributes:
        difference: after - before, in the unit of the metric; of a calibration error without the bias of both.
        low: lower end of the interval, in the unit of the metric.
        high: upper end of the interval, in the unit of the metric.
        level: level of the interval, a fraction: 0.95 is 95 %.
        groups: groups of samples that it is made of, or with weights how many of equal weight would know as much; None
            where samples are independent and count alike.
        errors: samples that one of the two models gets wrong, or that one gets right where these are fewer; of groups,
            those that have one. Below ten nothing is called significant. None where it is not counted.
        likelier: whether cross-fitted samples are 100 times as likely after as before, of an NLL of independent
            samples: then it is called better, wherever the interval ends.
    """

    difference: float
    low: float
    high: float
    level: float
    groups: int | None = None
    errors: int | None = None
    likelier: bool = False

    @property
    def speaks(self) -> bool:
        """Whether enough groups and enough errors are behind it."""
        enough_groups = self.groups is None or self.groups >= MIN_GROUPS
        return enough_groups and (self.errors is None or self.errors >= MIN_EACH)

    def holding(self, second: Interval) -> Interval:
        """Return the same difference with the interval that holds another one, too.

        >>> Interval(0.1, 0.0, 0.2, 0.95).holding(Interval(-0.1, -0.3, 0.1, 0.95))
        Interval(difference=0.1, low=-0.3, high=0.2, level=0.95, groups=None, errors=None, likelier=False)
        """
        likelier = self.likelier and second.likelier
        return replace(self, low=min(self.low, second.low), high=max(self.high, second.high), likelier=likelier)


# Samples whose shares of the bins are in memory at once.
_CHUNK = 2**16


def _chunks(scores: SampleScores) -> list[slice]:
    return [slice(start, start + _CHUNK) for start in range(0, len(scores), _CHUNK)]


def _bin_sums(scores: SampleScores, inside: Shares) -> NDArray[np.float64]:
    """Sums of residuals over each bin, (B,)."""
    residual = residuals(scores)
    return np.asarray(np.sum([residual[rows] @ inside(rows) for rows in _chunks(scores)], axis=0))


def shares_by_width(scores: SampleScores, bins: int) -> Shares:
    """Each sample lies in one bin of equal width, (j/B, (j+1)/B]: the bins of the ECE.

    Source: Naeini et al. (2015); the paper, section "Evaluation Metrics".
    """
    index = bin_of(scores.confidence, bins)
    return lambda rows: np.asarray(index[rows, None] == np.arange(bins), np.float64)


def shares_by_mass(scores: SampleScores, bins: int) -> Shares:
    """Bins of equal mass in ascending confidence, those of AdaECE.

    Samples of one confidence, to rounding, share the ranks start..stop, as their order is arbitrary: each lies in every
    bin by one fraction. With weights a rank is a sum of weights, and a border may cut a sample.
    Source: Mukhoti et al. (2020); the paper, section "Evaluation Metrics".
    """
    tie = ties_of(scores.confidence)
    count: NDArray[Any] = np.bincount(tie)
    # bins differ by one sample at most
    edges: NDArray[Any] = np.arange(bins + 1) * len(scores) // bins
    if scores.weights is not None:
        count = np.maximum(np.bincount(tie, scores.weights), np.finfo(np.float64).tiny)
        edges = np.linspace(0, scores.total, bins + 1)
    stop = np.cumsum(count)
    start = stop - count

    def shares(rows: slice) -> NDArray[np.float64]:
        t = tie[rows]
        ranks = np.minimum(stop[t, None], edges[1:]) - np.maximum(start[t, None], edges[:-1])
        return np.asarray(np.maximum(ranks, 0) / count[t, None], np.float64)

    return shares


# A metric is the mean of a field of the scores, or a calibration error with bins of its own: one row here or in
# `SHARES`, one in `numerics.metric`, and a field of `Metrics`.
MEANS = {"accuracy": "right", "nll": "nll", "brier": "brier"}
"""The property of `SampleScores` whose mean a metric is, by its name."""

SHARES: dict[str, Callable[[SampleScores, int], Shares]] = {"ece": shares_by_width, "adaece": shares_by_mass}
"""The bins of each calibration error, by its name."""


def metric_value(scores: SampleScores, name: str, bins: int = 15) -> float:
    """Return a metric by its name; of several labels, the mean of theirs.

    >>> scores = SampleScores(np.float32([0.75, 0.75]), np.array([True, False]), np.zeros(2), np.zeros(2))
    >>> metric_value(scores, "ece", 2), metric_value(scores, "accuracy", 2)
    (0.25, 0.5)
    """
    if name not in SHARES:
        return scores.mean(MEANS[name])
    check_bins(scores, bins)
    # |B_j| of a bin's weight and of its two means cancel
    by_label = [np.abs(_bin_sums(label, SHARES[name](label, bins))).sum() / label.total for label in scores.by_label()]
    return float(np.mean(by_label))


def residuals(scores: SampleScores) -> NDArray[np.float64]:
    """Return hit - confidence of each sample times its weight, (N,)."""
    return scores.weigh(scores.hit - scores.confidence.astype(np.float64))


def check_bins(scores: SampleScores, bins: int) -> None:
    """Check that there are at least as many samples as bins."""
    if bins < 1 or len(scores) < bins:
        raise ValueError(f"at least one bin and as many samples as bins needed, got {len(scores)} samples, {bins} bins")


def sample_losses(scores: SampleScores, objective: Objective = "nll", bins: int = 15) -> NDArray[np.float64]:
    """Return (N,) losses whose weighted mean is the objective: nats for the NLL, no unit otherwise.

    Of several labels a sample, the loss of a sample is the mean of those of its labels.

    >>> one = SampleScores(np.float32([0.75, 0.75]), np.array([True, False]), np.float32([0, 0]), np.float32([0, 0]))
    >>> sample_losses(one, "ece", 2).tolist()
    [-0.25, 0.75]
    """
    if scores.predicted is not None:
        by_label = [sample_losses(label_scores, objective, bins) for label_scores in scores.by_label()]
        mean: NDArray[np.float64] = np.mean(by_label, axis=0)
        return mean
    if objective in MEANS:
        return getattr(scores, MEANS[objective]).astype(np.float64)  # type: ignore[no-any-return]  # by the field's name
    inside = SHARES[objective](scores, bins)
    signs = np.sign(_bin_sums(scores, inside))
    sides = np.concatenate([inside(rows) @ signs for rows in _chunks(scores)])
    losses: NDArray[np.float64] = sides * (scores.hit - scores.confidence.astype(np.float64))
    return losses


def debiased_ece(scores: SampleScores, bins: int = 15) -> float:
    """Debiased ECE over `bins` equal intervals (j/B, (j+1)/B], a fraction; at least 0.

    >>> half = np.float32([0.5] * 4)
    >>> round(debiased_ece(SampleScores(half, np.array([1, 1, 1, 0], bool), half, half)), 4)
    0.2234
    """
    index = bin_of(scores.confidence, bins)
    count = np.bincount(index, scores.weights, bins)
    filled = count > 0
    size = count[filled]
    confidence = np.bincount(index, scores.weigh(scores.confidence.astype(np.float64)), bins)[filled] / size
    accuracy = np.bincount(index, scores.weigh(scores.hit), bins)[filled] / size
    gap = np.abs(accuracy - confidence)
    noise = np.sqrt(_of_groups(scores, index, count * 0.0)[filled]) / size
    effective = size if scores.weights is None else size**2 / np.bincount(index, scores.weights**2, bins)[filled]
    noise = np.maximum(noise, np.sqrt(accuracy * (1 - accuracy) / effective))
    return max(0.0, float(size @ (2 * gap - folded_mean(gap, noise)) / scores.total))


def _of_groups(scores: SampleScores, bin_: NDArray[np.intp], least: NDArray[Any]) -> NDArray[np.float64]:
    """Return the variance of the sum of residuals in each bin, (B,): where samples come in groups, that of their sums.

    `bin_`: of each sample, (N,); `least`: variance of independent samples, (B,), which it is not below.
    """
    if scores.clusters is None or group_count(scores) is None:
        return np.asarray(least, np.float64)
    _, number = np.unique(scores.clusters, return_inverse=True)
    residual = residuals(scores)
    sizes = np.bincount(bin_, scores.weights, len(least))
    means = np.bincount(bin_, residual, len(least)) / np.where(sizes > 0, sizes, 1)
    residual = residual - scores.weigh(means[bin_])
    sums = np.zeros((int(number.max()) + 1, len(least)))
    np.add.at(sums, (number, bin_), residual)
    return np.asarray(np.maximum(least, np.sum(sums**2, axis=0)))


@dataclass(frozen=True)
class ChanceEce:
    """ECE of right probabilities: a gamma distribution with this mean and variance (Satterthwaite 1946)."""

    mean: float  # a fraction
    variance: float

    @classmethod
    def of(cls, scores: SampleScores, bins: int = 15) -> ChanceEce:
        """Derive it from confidences: the sum of residuals of a bin is normal, with the variance that they state."""
        # shares of trees may add up to a little more than 1
        confidence = np.minimum(scores.confidence.astype(np.float64), 1)
        bin_ = bin_of(confidence, bins)
        chance = scores.weigh(scores.weigh(confidence * (1 - confidence)))
        variances = _of_groups(scores, bin_, np.bincount(bin_, chance, bins))
        mean = float(np.sum(np.sqrt(2 / np.pi * variances)) / scores.total)
        return cls(mean, float((1 - 2 / np.pi) * np.sum(variances) / scores.total**2))

    def p(self, ece: float) -> float:
        """Return how often chance alone gives as large an ECE, a fraction.

        The cube root of a gamma variate is close to normal (Wilson and Hilferty, 1931).

        >>> half = np.float32([0.5] * 100)
        >>> scores = SampleScores(half, np.arange(100) < 50, half, half)
        >>> [round(ChanceEce.of(scores).p(ece), 2) for ece in (0.0, 0.5)]
        [1.0, 0.0]
        """
        if not self.variance:
            return float(ece <= self.mean)
        ninth = self.variance / (9 * self.mean**2)
        return NormalDist().cdf((1 - ninth - (ece / self.mean) ** (1 / 3)) / ninth**0.5)


def folded_mean(gap: NDArray[np.float64], noise: NDArray[np.float64]) -> NDArray[np.float64]:
    """E|gap + noise Z|; without noise the gap itself."""
    # a bin that is all right or all wrong shows no noise
    ratio = gap / np.where(noise > 0, noise, 1)
    folded = noise * np.sqrt(2 / np.pi) * np.exp(-(ratio**2) / 2) + gap * (1 - 2 * normal_cdf(-ratio))
    return np.where(noise > 0, folded, gap)
