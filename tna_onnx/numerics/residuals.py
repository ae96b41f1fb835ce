"""Mean residuals of bins before and after, for the calibration errors of `numerics.intervals`.

Only clusters are independent (Cochran 1977, 9A.2): with S_g the sum of the n_g values of cluster g,

    R = sum_g S_g / sum_g n_g        var R = K / (K - 1) sum_g (S_g - n_g R)^2 / N^2

Over folds pooled, the errors of the fits cancel: a residual x_j of variance s_j without a fit, which the fit moves by
v_j, has s_j - v_j in place of the s_j + v_j of new samples, to first order. So

    corrected = sum_j F(x_j, sqrt(2 v_j)),        F(x, s) = E|x + s Z|, Z standard normal
    v_j = (K - 1)/K sum_k (e_kj - e_j)^2,         e_j = 1/K sum_k e_kj

e_kj is K/N times the sum over fold k in bin j of the confidence under the fit on all samples less the cross-fitted one;
products of two different samples stand for e_kj^2 (Efron & Tibshirani 1993, section 11.5). x_j takes the confidence of
the fit on all samples; hits and bins are cross-fitted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.metrics import SHARES, Shares, check_bins, folded_mean, residuals
from tna_onnx.numerics.scores import SampleScores, cluster_sums

FloatArray = NDArray[np.float64]

# Four times as many after reflections; they know a standard error to 2 %.
DRAWS = 500
"""Draws of noise; `noise` reflects them."""

# Samples whose residuals are spread over the bins at once: 5 MB at 15 bins.
_CHUNK = 20_000

# g, by a linear program: of all corrections by these three Gaussians (variances as shown, factors up to 1/2) the one
# whose largest bias is least. Larger factors lower the bias, to 0.15, and raise the standard error by a half.
_VARIANCES = np.array([0.1, 0.2, 0.5])
_FACTORS = np.array([0.5, 0.5, 0.383])

# Standard errors of shares: below this they are rounding.
_NOTHING = 1e-12

# A bin alone decides its sign beyond this many standard errors.
_OWN_SIGN = 2.0


def as_new(sums: FloatArray, spread: FloatArray, seed: int) -> FloatArray:
    """Mean residuals with the noise that new samples have beyond cross-fitted ones; once where there is none."""
    if not spread.any():
        return sums[None]
    normal = np.random.default_rng(seed).standard_normal((DRAWS, len(spread)))
    noise = math.sqrt(2) * np.concatenate([normal, -normal]) @ spread
    return sums + np.hstack([np.zeros_like(noise), noise])


def moments(pair: Sequence[SampleScores], diagrams: Sequence[Shares]) -> tuple[FloatArray, FloatArray]:
    """Return mean residuals by bin, before and then after, (2B,), and their covariance matrix (2B, 2B).

    B is the number of columns of the shares: an error may have fewer bins than were asked for.
    """
    n = pair[0].total
    sides = list(zip(pair, diagrams, strict=True))
    columns = sum(inside(slice(0, 1)).shape[1] for inside in diagrams)
    total = np.zeros(columns)
    products = np.zeros((columns, columns))
    stated = np.zeros(columns)
    clusters = pair[0].clusters
    weights = pair[0].weigh(np.ones(len(pair[0])))
    numbers = []
    cluster_parts = []
    for start in range(0, len(pair[0]), _CHUNK):
        rows = slice(start, start + _CHUNK)
        # of these rows alone: in double precision all of very many samples would take gigabytes
        chunks = [(scores.take(rows), inside(rows)) for scores, inside in sides]
        spread = np.hstack([residuals(part)[:, None] * inside for part, inside in chunks])
        confidences = [part.confidence.astype(np.float64) for part, _ in chunks]
        stated += np.concatenate(
            [(weights[rows] ** 2 * p * (1 - p)) @ inside for p, (_, inside) in zip(confidences, chunks, strict=True)]
        )
        total += spread.sum(axis=0)
        if clusters is None:
            products += spread.T @ spread
        else:
            numbers.append(np.unique(clusters[rows]))
            cluster_parts.append(cluster_sums(np.c_[spread, weights[rows]], clusters[rows]))
    mean = total / n
    covariance = products / n - np.outer(mean, mean)
    if clusters is not None:
        # a cluster may reach from one part into the next
        sums = cluster_sums(np.concatenate(cluster_parts), np.concatenate(numbers))
        deviations = sums[:, :-1] - sums[:, -1:] * mean
        covariance = len(sums) / (len(sums) - 1) * (deviations.T @ deviations) / n
    # A few samples in a bin, all of them hits, show too little spread; their confidences state what it is at least.
    # Below a billionth of that, what was found is rounding.
    variances = np.maximum(np.diag(covariance), np.maximum(1e-9 * stated / n, np.finfo(np.float64).tiny))
    least = np.maximum(variances, stated / n)
    factor = np.sqrt(least / variances)
    covariance *= factor * factor[:, None]
    np.fill_diagonal(covariance, least)
    return mean, covariance / n


def estimates(values: FloatArray, sigma: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return both estimates of the difference from (R, 2B) mean residuals, (R,) each."""
    bins = len(sigma) // 2
    distance = np.abs(np.subtract.outer(np.arange(bins), np.arange(bins)))
    # a bin does not vote on its own sign: it would always find itself right
    votes = np.where(distance > 0, np.exp(-distance / 2), 0)
    pooled, single = np.zeros((2, len(values)))
    for part, side in ((slice(0, bins), -1), (slice(bins, None), 1)):
        x = values[:, part]
        scale = sigma[part]
        size = np.abs(x)
        pooled += side * np.where(size > _OWN_SIGN * scale, size, np.sign(x @ votes) * x).sum(axis=1)
        # an empty bin has no error but rounding, and nothing to take off
        u = x / np.where(scale > _NOTHING, scale, 1)
        excess = sum(c * np.exp(-u * u / (2 * v)) for c, v in zip(_FACTORS, _VARIANCES, strict=True))
        single += side * (size - scale * excess).sum(axis=1)
    return pooled, single


def noise(covariance: FloatArray, seed: int) -> FloatArray:
    """Draws of (2B,) noise with a covariance, closed under a change of sides: what is drawn favours none."""
    half = len(covariance) // 2
    values, vectors = np.linalg.eigh(covariance)
    # the symmetric root: it changes sides with the matrix
    root = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    normal = np.random.default_rng(seed).standard_normal((DRAWS, 2 * half))
    normal = np.concatenate([normal, np.roll(normal, half, axis=1)])
    drawn: FloatArray = np.concatenate([normal, -normal]) @ root
    return drawn


@dataclass(frozen=True, eq=False)
class CrossFit:
    """What corrects cross-fitted scores of N samples."""

    fitted: SampleScores  # scores of the same samples under the map that is fitted on all of them
    fold: NDArray[np.intp]  # (N,) integers, the fold of each sample

    @property
    def folds(self) -> int:
        """Number of folds K."""
        return len(np.unique(self.fold))


def corrected_errors(crossed: SampleScores, cross_fit: CrossFit, bins: int = 15) -> dict[str, float]:
    """ECE and AdaECE of cross-fitted scores, corrected, fractions by the names of the metrics.

    `crossed`: scores of N samples, each by a fit without its fold.

    >>> sure, half = np.float32([0.9, 0.9]), np.array([True, False])
    >>> scores = SampleScores(sure, half, sure, sure)
    >>> round(corrected_errors(scores, CrossFit(scores, np.array([0, 1])), bins=1)["ece"], 4)
    0.4
    """
    check_bins(crossed, bins)
    errors: dict[str, list[float]] = {name: [] for name in SHARES}
    # of several labels a sample, the mean over labels
    for label, fitted in zip(crossed.by_label(), cross_fit.fitted.by_label(), strict=True):
        for name, shares in SHARES.items():
            mean, spread = fit_error(label, CrossFit(fitted, cross_fit.fold), shares(label, bins))
            noise = math.sqrt(2) * np.sqrt(np.sum(spread**2, axis=0))
            errors[name].append(float(np.sum(folded_mean(np.abs(mean), noise))))
    return {name: float(np.mean(values)) for name, values in errors.items()}


def fit_error(
    crossed: SampleScores, cross_fit: CrossFit, shares: Shares
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return x_j, (B,), and how the error of the fit spreads over the bins: (K, B), whose squares add up to v_j."""
    n = crossed.total
    folds = cross_fit.folds
    mean, weight, weight_squares, moved, moved_squares = _sums(crossed, cross_fit, shares)
    # e_kj^2 from pairs; a single sample, whose pairs have a weight of rounding, has none
    pairs = weight**2 - weight_squares
    enough = pairs > 1e-9 * weight_squares
    squares = np.where(enough, weight**2 * (moved**2 - moved_squares) / np.where(enough, pairs, 1), 0)
    common = folds / n * moved.mean(axis=0)
    variance = (folds - 1) * np.maximum((folds / n) ** 2 * squares.mean(axis=0) - common**2, 0)
    # the folds' own deviations say how bins err together; here they get the size above
    deviation = folds / n * moved - common
    size = np.sum(deviation**2, axis=0)
    spread = deviation * np.sqrt(np.where(size > 0, variance / np.where(size > 0, size, 1), 0))
    return mean, spread


def _sums(crossed: SampleScores, cross_fit: CrossFit, shares: Shares) -> tuple[NDArray[np.float64], ...]:
    """Return x_j, (B,), and (K, B) sums by fold and bin: of shares w, of w^2, of w e and of (w e)^2."""
    labels, fold = np.unique(cross_fit.fold, return_inverse=True)
    fitted = cross_fit.fitted.confidence.astype(np.float64)
    change = fitted - crossed.confidence
    residual = crossed.hit - fitted
    total: NDArray[np.float64] | float = 0.0
    sums: list[NDArray[np.float64] | float] = [0.0] * 4
    for start in range(0, len(crossed), _CHUNK):
        rows = slice(start, start + _CHUNK)
        inside = crossed.take(rows).weigh(shares(rows))
        moved = inside * change[rows, None]
        members = np.asarray(fold[rows] == np.arange(len(labels))[:, None], np.float64)
        total = total + residual[rows] @ inside
        sums = [sum_ + members @ part for sum_, part in zip(sums, (inside, inside**2, moved, moved**2), strict=True)]
    return np.asarray(total) / crossed.total, *(np.asarray(sum_) for sum_ in sums)
