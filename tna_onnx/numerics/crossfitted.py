"""Calibration errors of cross-fitted scores, as the map that is fitted on all N samples has them on N new ones.

A calibration error is sum_j |x_j|, x_j the mean of hit - confidence over the samples of bin j, and other bins' samples
as zeros. With labels drawn from the model, sigma_j^2 / N the variance of x_j without a fit, and eta_j^2 / N what the
fit's own error adds to it, all to first order in 1/N:

    N new samples               sigma_j^2 + eta_j^2     their labels know nothing of the fit's error
    the fitted ones             sigma_j^2 - eta_j^2     a fit by likelihood moves towards the labels it has
    cross-fitted, all folds     sigma_j^2 - eta_j^2     too: the mean of the folds' fits is the fit on all samples

In each fold alone a cross-fitted sample is as good as a new one. Pooled, the folds' errors are against each other: what
a fold's labels have too much of, the fits of the other folds have too little of. So the pooled |x_j| are too small, by
noise of variance 2 eta_j^2 / N, and its mean effect is put back in closed form (F is the mean of a folded normal):

    corrected = sum_j F(x_j, sqrt(2 v_j)),    F(x, s) = E|x + s Z|,    v_j = eta_j^2 / N

This needs no guess of the true error in a bin: x_j plus that noise has the mean and the variance of a new sample's x_j.

v_j is a jackknife that leaves out a fold. With e_i the confidence of sample i under the map fitted on all samples less
the cross-fitted one, and e_kj = K/N sum of e_i over the samples of fold k in bin j,

    v_j = (K - 1)/K sum_k (e_kj - e_j)^2,     e_j = 1/K sum_k e_kj

where e_kj^2 is taken from products of two different samples, as a few samples' own scatter is no error of the fit.
Hits have no part in it: the hit of a sample is as probable, to first order, if two classes change places that tie.

Fits without a fold have a fifth less samples, and are a little more sure of themselves than the fit on all, or less. So
x_j is the mean of the cross-fitted hit less the confidence under the fit on all samples, e_j less than it would be with
the cross-fitted confidence; the bins are those of the cross-fitted confidence, which a sample's own label did not move.

Source: for the jackknife by groups Efron & Tibshirani (1993), "An introduction to the bootstrap", section 11.5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.debiased import folded_mean
from tna_onnx.numerics.metrics import check_bins
from tna_onnx.numerics.shares import SHARES, Shares
from tna_onnx.numerics.stats import SampleScores

__all__ = ["CrossFit", "corrected_errors", "fit_error"]

# Samples that are spread over the bins at once: 2 MB at 15 bins.
_CHUNK = 20_000


@dataclass(frozen=True, eq=False)
class CrossFit:
    """What corrects cross-fitted scores of N samples.

    Attributes:
        fitted: scores of the same samples under the map that is fitted on all of them.
        fold: (N,) integers, the fold of each sample.
    """

    fitted: SampleScores
    fold: NDArray[np.intp]

    @property
    def folds(self) -> int:
        """Number of folds K."""
        return len(np.unique(self.fold))


def corrected_errors(crossed: SampleScores, cross_fit: CrossFit, bins: int = 15) -> dict[str, float]:
    """ECE and AdaECE of cross-fitted scores, corrected, fractions by the names of the metrics.

    Measured on fits to labels drawn from the softmax of normal logits, C = 10, 250 to 300 data sets, against 20 new
    samples of size N each; mean errors in points +- their standard errors, plain and then corrected:

                      ECE                               AdaECE
        ts      400   -0.36 +- 0.07   +0.00 +- 0.07     -0.32 +- 0.07   +0.01 +- 0.07
        bias    400   +0.21 +- 0.09   +0.19 +- 0.09     +0.10 +- 0.09   +0.09 +- 0.09

    Args:
        crossed: scores of N samples, each by a fit without its fold.
        cross_fit: what corrects them.
        bins: of both errors.

    Raises:
        ValueError: different numbers of samples, fewer samples than bins, or one fold only.

    >>> sure, half = np.float32([0.9, 0.9]), np.array([True, False])
    >>> scores = SampleScores(sure, half, sure, sure)
    >>> round(corrected_errors(scores, CrossFit(scores, np.array([0, 1])), bins=1)["ece"], 4)
    0.4
    """
    check_bins(crossed, bins)
    errors = {}
    for name, shares in SHARES.items():
        mean, spread = fit_error(crossed, cross_fit, shares(crossed, bins))
        errors[name] = float(np.sum(folded_mean(np.abs(mean), math.sqrt(2) * np.sqrt(np.sum(spread**2, axis=0)))))
    return errors


def fit_error(
    crossed: SampleScores, cross_fit: CrossFit, shares: Shares
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return x_j, (B,), and how the error of the fit spreads over the bins: (K, B), whose squares add up to v_j.

    Raises:
        ValueError: different numbers of samples, or one fold only.
    """
    n = len(crossed)
    if not n == len(cross_fit.fitted) == len(cross_fit.fold):
        raise ValueError(
            f"cross-fitted and fitted scores and folds of the same samples expected, got {n}, "
            f"{len(cross_fit.fitted)} and {len(cross_fit.fold)}"
        )
    folds = cross_fit.folds
    if folds < 2:
        raise ValueError("at least two folds expected, got one")
    mean, weight, pairs, moved, squares = _sums(crossed, cross_fit, shares)
    # v_j of single folds: e_kj^2 as the mean of products of two samples
    scale = (folds / n) ** 2
    two = weight**2 - pairs
    enough = two > 1e-9 * pairs
    products = np.where(enough, weight**2 * (moved**2 - squares) / np.where(enough, two, 1), 0)
    mean_shift = folds / n * moved.mean(axis=0)
    variance = (folds - 1) * np.maximum(scale * products.mean(axis=0) - mean_shift**2, 0)
    # the folds' own deviations, which say how bins err together, made as large
    deviation = folds / n * moved - mean_shift
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
        inside = shares(rows)
        moved = inside * change[rows, None]
        members = np.asarray(fold[rows] == np.arange(len(labels))[:, None], np.float64)
        total = total + residual[rows] @ inside
        sums = [sum_ + members @ part for sum_, part in zip(sums, (inside, inside**2, moved, moved**2), strict=True)]
    return np.asarray(total) / len(crossed), *(np.asarray(sum_) for sum_ in sums)
