"""Confidence intervals of paired differences `after - before` on the same N samples, as every report states them.

Means are +- z standard errors, corrected for skewness. A calibration error is sum_j |mu_j|, of which samples show
x_j = mu_j + noise of standard error sigma_j. Two estimates; the centre is their mean, and half of their distance (for
means over labels, all of it) is added to z standard errors:

    pooled  sum_j s_j x_j, where s_j is the sign of the bins beside j, or of x_j itself beyond two standard errors
    single  sum_j sigma_j g(x_j / sigma_j), g(u) = |u| - (e^(-5 u^2) + e^(-2.5 u^2)) / 2 - 0.383 e^(-u^2)

With K clusters, z is a quantile of Student's t with K - 1 degrees. Errors of several labels have draws of whole samples
(multiplier bootstrap: van der Vaart & Wellner 1996, section 2.9). `top_label_errors` is the distance from a reference
that is sure of what happens.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import (
    MEANS,
    MIN_EACH,
    SHARES,
    Interval,
    Shares,
    check_bins,
    decisive_count,
    effective_size,
    independent_count,
    residuals,
)
from tna_onnx.numerics.residuals import DRAWS, CrossFit, as_new, estimates, fit_error, moments, noise
from tna_onnx.numerics.scores import SampleScores, cluster_sums, mean_and_error

FloatArray = NDArray[np.float64]

# Samples whose residuals are spread over bins, and get draws, at once: 8 MB of draws.
_CHUNK = 2000

# Beyond so many labels a mean over them needs fewer draws: these know a standard error to 7 %.
_MANY_LABELS = 50
_FEW_DRAWS = 100


def paired_differences(
    before: SampleScores,
    after: SampleScores,
    bins: int = 15,
    *,
    level: float = 0.95,
    seed: int = 0,
    cross_fit: CrossFit | None = None,
    same_predictions: bool = False,
    names: Iterable[str] = tuple(METRICS),
) -> dict[str, Interval]:
    """Differences `after - before` on the same samples with their intervals, per name in `names`, of `METRICS`.

    The difference of a calibration error is the centre of its interval: that of the plug-in values has their bias.
    How often they hold the true difference, docs/explanation/intervals.md says.

    Source: for accuracy Bonett & Price (2012).

    `before`: scores of N samples, with their clusters if they have any. `level`: confidence level, a fraction. `seed`:
    of the draws behind the standard errors of calibration errors. `cross_fit`: where `after` is cross-fitted in five
    folds, the fit on all N samples, which the intervals are then for. Mean losses then have the noise of the folds'
    fits, too (`_mean`); hits do not follow a fit, and residuals are corrected by `numerics.residuals`.
    `same_predictions`: whether both models are known to predict the same classes: accuracy then cannot differ.
    """
    if len(before) != len(after):
        raise ValueError(f"paired samples expected, got {len(before)} before and {len(after)} after")
    if not 0 < level < 1:
        raise ValueError(f"a confidence level between 0 and 1 expected, got {level}")
    check_bins(before, bins)
    z = quantile((1 + level) / 2, before.clusters, before.weights)
    fitted, likelier = after, False
    if cross_fit is not None:
        fitted, likelier = cross_fit.fitted, _likelier(before, after)
    differences = {}
    groups, errors = independent_count(before), decisive_count(before, after)
    for name in names:
        if name == "accuracy":
            ends = _accuracy(before, after, z, same_predictions)
        elif name in SHARES:
            ends = _calibration_error(before, after, bins, z, seed, SHARES[name], cross_fit)
        else:
            losses = _by_sample(after, MEANS[name])
            change, of_fits = (losses - _by_sample(reference, MEANS[name]) for reference in (before, fitted))
            ends = _mean(change, of_fits, z, before.clusters, before.weights)
        differences[name] = Interval(*ends, level, groups, errors, likelier and name == "nll")
    return differences


def quantile(p: float, clusters: NDArray[np.int64] | None, weights: NDArray[np.float64] | None = None) -> float:
    """Return the quantile for an interval: of clusters there may be few, so that their spread is not well known.

    Clusters of samples with weights count as many as would know a mean as well if they weighed the same.
    """
    if clusters is None:
        return NormalDist().inv_cdf(p)
    from scipy.special import stdtrit  # noqa: PLC0415 - heavy

    count = float(len(np.unique(clusters)))
    if count < 2:
        raise ValueError("at least two clusters of samples expected, got one")
    if weights is not None:
        count = max(2.0, effective_size(cluster_sums(weights, clusters)))
    return float(stdtrit(count - 1, p))


def _by_sample(scores: SampleScores, name: str) -> NDArray[np.float64]:
    """Return a field of the scores, (N,): of several labels a sample, the mean over them."""
    values: NDArray[np.float64] = getattr(scores, name).astype(np.float64)
    return values if scores.predicted is None else values.mean(axis=1)


# A cross-fitted mean has the noise of five fits of p numbers beyond that of its samples: to second order 1.38 p / N^2.
# Losses under them less those under the fit on all samples have a mean of variance p / (4 N^2), 5.5 times less.
_OF_FITS = 5.5

# If the input's probabilities are right, E[p'(y) / p(y)] = 1 under a fit to other samples, and the product over samples
# is above 100 once in 100 times (Markov). No sample adds more than that, so none decides alone.
_DECISIVE = math.log(100)


def _likelier(before: SampleScores, after: SampleScores) -> bool:
    """Whether independent samples are 100 times as likely after as before."""
    if before.clusters is not None or before.weights is not None or before.predicted is not None:
        return False
    gain = before.nll.astype(np.float64) - after.nll
    return float(np.sum(np.minimum(gain, _DECISIVE))) > _DECISIVE


def _mean(
    change: FloatArray, of_fits: FloatArray, z: float, clusters: NDArray[np.int64] | None, weights: FloatArray | None
) -> tuple[float, float, float]:
    """Return the mean of (N,) differences and its ends.

    Few samples decide an NLL: its differences are skewed, and so are the ends. `of_fits`: (N,) losses of cross-fitted
    samples above those under the fit on all.
    """
    mean, error = mean_and_error(change, clusters, weights)
    if error == 0:
        return mean, mean, mean
    deviations = change - mean if weights is None else weights * (change - mean)
    if clusters is not None:
        deviations = cluster_sums(deviations, clusters)
    _, error_of_fits = mean_and_error(of_fits, clusters, weights)
    total_error = math.hypot(error, math.sqrt(_OF_FITS) * error_of_fits)
    # what fits add is not skewed
    skewness = float(np.sum(deviations**3) / np.sum(deviations**2) ** 1.5) * (error / total_error) ** 3
    reach = [_unskewed(q, skewness) * total_error for q in (z, -z)]
    return mean, mean - reach[0], mean - reach[1]


def _unskewed(quantile: float, skewness: float) -> float:
    """Quantile of a studentised mean, of a normal quantile and the skewness of the mean (Hall 1992, section 3.2)."""
    # the limit; further down, digits cancel
    if abs(skewness) < 1e-6:
        return quantile
    return 3 / skewness * (float(np.cbrt(1 + skewness * (quantile - skewness / 6))) - 1)


def _accuracy(before: SampleScores, after: SampleScores, z: float, same: bool) -> tuple[float, float, float]:
    """Return the difference of accuracies and its ends.

    Where few samples change sides, or none, the normal interval would be too narrow, or of width zero: one sample is
    added that is won, and one that is lost. These two can draw the middle away from the difference.
    """
    # folds can still differ where the whole does not
    if same and np.array_equal(before.right, after.right):
        return 0.0, 0.0, 0.0
    n = len(before) if before.weights is None else effective_size(before.weights)
    change = _by_sample(after, "right") - _by_sample(before, "right")
    mean, error = mean_and_error(change, before.clusters, before.weights)
    middle = mean * n / (n + 2)
    if before.predicted is None and before.clusters is None:
        squares = float(np.sum(change**2)) + 2 - (n + 2) * middle**2
    else:
        labels = 1
        if before.predicted is not None:
            labels = before.hit.shape[1]
        squares = (error * n) ** 2 + 2 / labels**2
    reach = z * math.sqrt(squares) / (n + 2)
    return mean, min(mean, middle - reach), max(mean, middle + reach)


def _calibration_error(
    before: SampleScores,
    after: SampleScores,
    bins: int,
    z: float,
    seed: int,
    shares: Callable[[SampleScores, int], Shares],
    cross_fit: CrossFit | None,
) -> tuple[float, float, float]:
    """Return a difference of calibration errors, of several labels the mean over them, and its ends."""
    pairs = list(zip(before.by_label(), after.by_label(), strict=True))
    diagrams = [tuple(shares(side, bins) for side in pair) for pair in pairs]
    fits: list[CrossFit | None] = [None] * len(pairs)
    if cross_fit is not None:
        fits = [CrossFit(label_fit, cross_fit.fold) for label_fit in cross_fit.fitted.by_label()]
    # the same residuals in the same bins: rounding alone would give a width
    same = np.array_equal(before.confidence, after.confidence) and np.array_equal(before.hit, after.hit)
    if same and (cross_fit is None or np.array_equal(cross_fit.fitted.confidence, after.confidence)):
        return 0.0, 0.0, 0.0
    draws: Iterable[FloatArray | None] = [None]
    if before.predicted is not None:
        draws = _moved(pairs, diagrams, seed)
    centres = []
    drawn = []
    for pair, fit, inside, moved in zip(pairs, fits, diagrams, draws, strict=True):
        sums, covariance = moments(pair, inside)
        sigma = np.sqrt(np.diag(covariance))
        half = len(sums) // 2
        # without folds, a fit that errs by nothing
        spread = np.zeros((1, half))
        if fit is not None:
            sums[half:], spread = fit_error(pair[1], fit, inside[1])
        centres.append([float(np.mean(values)) for values in estimates(as_new(sums, spread, seed), sigma)])
        noises = noise(covariance, seed) if moved is None else _widened(moved, sigma)
        drawn.append(np.stack(estimates(sums + noises, sigma)))
    pooled, single = np.mean(centres, axis=0).tolist()
    # of the two, not of their mean: draws around x show more noise than samples, and these errors are not quite normal
    error = math.sqrt(float(np.mean(np.var(np.mean(drawn, axis=0), axis=1))))
    # of labels the whole distance: noise averages out over them, and what bias is left does not
    distance = abs(pooled - single) / (2 if before.predicted is None else 1)
    centre = (pooled + single) / 2
    reach = z * error + distance
    return centre, centre - reach, centre + reach


def _moved(
    pairs: Sequence[tuple[SampleScores, SampleScores]], diagrams: Sequence[tuple[Shares, ...]], seed: int
) -> FloatArray:
    """Return (C, R, 2B) changes of the mean residuals of C labels, by the same R draws of samples for each."""
    draws = np.random.default_rng(seed)
    count = DRAWS if len(pairs) <= _MANY_LABELS else _FEW_DRAWS
    n = pairs[0][0].total
    ones = pairs[0][0].weigh(np.ones(len(pairs[0][0])))
    clusters = pairs[0][0].clusters
    if clusters is not None:  # samples of one have the same draw
        numbers, clusters = np.unique(clusters, return_inverse=True)
        of_clusters = draws.standard_normal((count, len(numbers))) * math.sqrt(len(numbers) / (len(numbers) - 1))
    sides = [[residuals(side) for side in pair] for pair in pairs]
    moved = means = np.zeros(1)
    weights = np.zeros((count, 1))
    for start in range(0, len(ones), _CHUNK):
        rows = slice(start, start + _CHUNK)
        g = draws.standard_normal((count, len(ones[rows]))) if clusters is None else of_clusters[:, clusters[rows]]
        weights += (g * ones[rows]).sum(axis=1, keepdims=True)
        spreads = [
            np.hstack([r[rows, None] * share(rows) for r, share in zip(side, inside, strict=True)])
            for side, inside in zip(sides, diagrams, strict=True)
        ]
        moved = moved + np.stack([g @ spread for spread in spreads])
        means = means + np.stack([spread.sum(axis=0) for spread in spreads])
    return np.asarray((moved - weights * means[:, None] / n) / n)


def _widened(moved: FloatArray, sigma: FloatArray) -> FloatArray:
    """Return (2R, 2B) noise of changes and of their opposites, whose spread is at least sigma."""
    # few samples in a bin show too little spread, which `moments` has made up for
    resampled = moved.std(axis=0)
    scaled = moved * np.where(resampled > 0, np.maximum(1, sigma / np.where(resampled > 0, resampled, 1)), 1)
    return np.concatenate([scaled, -scaled])


# A confidence of 1 that is wrong would have an infinite NLL: float32 tells no smaller doubt.
_DOUBT = 2.0**-24

_BINS = 15


@dataclass(frozen=True)
class TopLabelErrors:
    """ECE and NLL of the top label."""

    ece: float  # over 15 bins of equal width, without the bias of noise, a fraction
    ece_interval: tuple[float, float] | None  # its interval, fractions; None below 2 samples
    nll: float  # nats
    # its interval, nats; None below 10 samples that are right, or 10 that are wrong
    nll_interval: tuple[float, float] | None


def top_label_errors(
    confidence: NDArray[np.floating],
    hit: NDArray[np.bool_],
    level: float,
    clusters: NDArray[np.int64] | None = None,
) -> TopLabelErrors:
    """Return the errors of the top label with their intervals.

    With few errors that of the NLL would not hold: in 75 % where 1 % of 200 samples are wrong. It is left out there.

    `confidence`: (N,) stated probabilities that the sample is classified right. `hit`: (N,) whether it is. `level`: of
    the intervals, a fraction. `clusters`: numbers of the groups that samples come in, (N,); None where they are
    independent.
    """
    stated = np.clip(np.asarray(confidence, np.float64), _DOUBT, 1 - _DOUBT)
    loss = -np.log(np.where(hit, stated, 1 - stated)).astype(np.float32)
    nothing = np.zeros_like(loss)
    reference = SampleScores(hit.astype(np.float32), hit, nothing, nothing).clustered(clusters)
    stated32 = np.asarray(confidence, np.float32)
    difference = paired_differences(
        reference, SampleScores(stated32, hit, loss, nothing), min(_BINS, len(hit)), level=level
    )
    ece, nll = difference["ece"], difference["nll"]
    return TopLabelErrors(
        max(0.0, ece.difference),
        _within(ece, 1.0) if len(hit) > 1 else None,
        nll.difference,
        _within(nll, np.inf) if decisive_count(reference) >= MIN_EACH else None,
    )


def _within(interval: Interval, limit: float) -> tuple[float, float]:
    """Return the interval of what is between 0 and `limit`."""
    return min(max(0.0, interval.low), limit), min(max(0.0, interval.high), limit)
