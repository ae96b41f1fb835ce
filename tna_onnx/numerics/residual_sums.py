"""Residuals of B bins before and after, as one vector x of 2B mean residuals, and the two estimates made of it.

See `numerics.intervals` for what they are for.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.clusters import between_clusters, cluster_sums
from tna_onnx.numerics.metrics import residuals
from tna_onnx.numerics.shares import Shares
from tna_onnx.numerics.stats import SampleScores

__all__ = ["DRAWS", "as_new", "estimates", "moments", "noise"]

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


def moments(
    pair: tuple[SampleScores, SampleScores], bins: int, shares: Callable[[SampleScores, int], Shares]
) -> tuple[FloatArray, FloatArray]:
    """Return mean residuals by bin, before and then after, (2B,), and their covariance matrix (2B, 2B)."""
    n = len(pair[0])
    total = np.zeros(2 * bins)
    products = np.zeros((2 * bins, 2 * bins))
    stated = np.zeros(2 * bins)
    sides = [(residuals(s), s.confidence.astype(np.float64), shares(s, bins)) for s in pair]
    clusters = pair[0].clusters
    parts = []
    for start in range(0, n, _CHUNK):
        rows = slice(start, start + _CHUNK)
        spread = np.hstack([r[rows, None] * inside(rows) for r, _, inside in sides])
        stated += np.concatenate([(p[rows] * (1 - p[rows])) @ inside(rows) for _, p, inside in sides])
        total += spread.sum(axis=0)
        if clusters is None:
            products += spread.T @ spread
        else:  # with the number of samples, which the mean is taken off by
            parts.append((np.unique(clusters[rows]), cluster_sums(np.c_[spread, np.ones(len(spread))], clusters[rows])))
    mean = total / n
    covariance = products / n - np.outer(mean, mean)
    if clusters is not None:
        covariance = between_clusters(parts, mean, n)
    # A few samples in a bin, all of them hits, show too little spread; their confidences state what it is at least.
    # Below a billionth of that, what was found is rounding.
    found = np.maximum(np.diag(covariance), np.maximum(1e-9 * stated / n, np.finfo(np.float64).tiny))
    least = np.maximum(found, stated / n)
    factor = np.sqrt(least / found)
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
