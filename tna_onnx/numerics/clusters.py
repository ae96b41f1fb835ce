"""Samples that come in clusters: several predictions for one text or image depend on one another.

The mean of N values of K clusters is R = sum_g S_g / sum_g n_g, S_g the sum of the values of cluster g and n_g their
number. Only clusters are independent, so its variance is that of the deviations of whole clusters,

    var R = K / (K - 1) sum_g (S_g - n_g R)^2 / N^2

With one value in each cluster that is the variance of a mean, but for K / (K - 1).

Source: W. Cochran, Sampling Techniques (1977), section 2.11 and 9A.2, the ratio estimator of a mean per element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["between_clusters", "cluster_sums", "mean_and_error"]


def cluster_sums(values: NDArray[Any], clusters: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the sums over each cluster, (K,) or (K, B), of (N,) or (N, B) values; clusters in ascending order.

    >>> cluster_sums(np.array([1.0, 2.0, 4.0]), np.array([7, 3, 7])).tolist()
    [2.0, 5.0]
    """
    order = np.argsort(clusters, kind="stable")
    ordered = clusters[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    sums: NDArray[np.float64] = np.add.reduceat(values[order].astype(np.float64), starts, axis=0)
    return sums


def mean_and_error(values: NDArray[np.float64], clusters: NDArray[np.int64] | None = None) -> tuple[float, float]:
    """Return the mean of (N,) values and its standard error, infinite for a single cluster.

    Args:
        values: finite numbers.
        clusters: of the values, (N,); None where they are independent.

    >>> mean_and_error(np.array([1.0, 1.0, 3.0, 3.0]), np.array([0, 0, 1, 1]))
    (2.0, 1.0)
    """
    mean = float(np.mean(values))
    if clusters is None:
        return mean, float(np.std(values)) / math.sqrt(len(values))
    deviations = cluster_sums(values - mean, clusters)
    count = len(deviations)
    if count < 2:
        return mean, math.inf
    return mean, math.sqrt(count / (count - 1) * float(np.sum(deviations**2))) / len(values)


def between_clusters(
    parts: Sequence[tuple[NDArray[np.int64], NDArray[np.float64]]], mean: NDArray[np.float64], n: int
) -> NDArray[np.float64]:
    """Return what stands for the covariance of one sample, (B, B): n times that of the mean of n samples.

    Args:
        parts: clusters of a part of the samples, and their sums (K, B + 1): of B values, and of ones.
        mean: (B,) of the values of all samples.
        n: number of samples.
    """
    # a cluster may reach from one part into the next
    sums = cluster_sums(np.concatenate([each for _, each in parts]), np.concatenate([each for each, _ in parts]))
    deviations = sums[:, :-1] - sums[:, -1:] * mean
    count = len(deviations)
    covariance: NDArray[np.float64] = count / (count - 1) * (deviations.T @ deviations) / n
    return covariance
