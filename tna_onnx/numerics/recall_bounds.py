"""Recall by class before and after a change of predictions, and balanced accuracy, with standard errors.

With n_c samples of class c, of which `won` are right only after and `lost` only before,

    change of recall of c     (won - lost) / n_c
    balanced accuracy         the mean of the recalls of the K classes that have samples

A sample of class c has the weight 1 / (K n_c) in a balanced accuracy. Where samples come in clusters, only clusters are
independent (`numerics.residuals`). Of several labels a sample, the samples with a label are one class, those without it
another; a balanced accuracy then is the mean over labels of that of each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.residuals import cluster_sums
from tna_onnx.numerics.scores import SampleScores

__all__ = ["Recalls"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Recalls:
    """Recall of K classes, those with a sample.

    Attributes:
        classes: (K,) number of each; of C labels, c for the samples with label c and C + c for those without it.
        samples: (K,) how many samples each has.
        before: (K,) share of them that was predicted right.
        after: (K,) share of them that is predicted right now.
        squares: (K,) sums of squared changes, of clusters where there are any: n_c^2 times the variance of the change.
        balanced_error: standard error of the change of the balanced accuracy.
    """

    classes: NDArray[np.int64]
    samples: NDArray[np.int64]
    before: FloatArray
    after: FloatArray
    squares: FloatArray
    balanced_error: float

    @classmethod
    def of(cls, before: SampleScores, after: SampleScores) -> Recalls:
        """Compare the hits of the same samples; `before` has their labels.

        >>> hit, zero = np.array([True, True, False]), np.zeros(3, np.float32)
        >>> old = SampleScores(zero, hit, zero, zero, labels=np.array([0, 0, 2]))
        >>> new = SampleScores(zero, ~hit, zero, zero)
        >>> both = Recalls.of(old, new)
        >>> both.classes.tolist(), both.change.tolist(), both.balanced_before, both.balanced_after
        ([0, 2], [-1.0, 1.0], 0.5, 0.5)
        """
        labels, clusters = _groups(before)
        old, new = (scores.hit.reshape(-1).astype(np.float64) for scores in (before, after))
        classes, own = np.unique(labels, return_inverse=True)
        count = np.bincount(own)
        first, second = (np.bincount(own, hits) / count for hits in (old, new))
        deviations = new - old - (second - first)[own]
        squares = _squares(deviations, own, len(classes), clusters)
        weighted = deviations / (len(classes) * count[own])
        total = weighted if clusters is None else cluster_sums(weighted, clusters)
        return cls(classes, count, first, second, squares, math.sqrt(float(total @ total)))

    @property
    def change(self) -> FloatArray:
        """(K,) recall after less recall before."""
        return self.after - self.before

    @property
    def error(self) -> FloatArray:
        """(K,) standard error of the change."""
        error: FloatArray = np.sqrt(self.squares) / self.samples
        return error

    @property
    def balanced_before(self) -> float:
        """Balanced accuracy before."""
        return float(np.mean(self.before))

    @property
    def balanced_after(self) -> float:
        """Balanced accuracy after."""
        return float(np.mean(self.after))

    def ends(self, z: float) -> tuple[FloatArray, FloatArray]:
        """Return the ends of the intervals of the changes, (K,): z standard errors, with one sample won and one lost.

        Without these two, the interval would be too narrow where few samples of a class change sides, or none.
        Source: Bonett & Price (2012), "Adjusted Wald confidence interval for a difference of binomial proportions
        based on paired data".
        """
        n = self.samples
        middle = self.change * n / (n + 2)
        squares = self.squares + n * self.change**2 + 2 - (n + 2) * middle**2
        reach = z * np.sqrt(squares) / (n + 2)
        return middle - reach, middle + reach

    def balanced_ends(self, z: float) -> tuple[float, float]:
        """Return the same of the balanced accuracy: half a sample of each class that changes sides is added.

        A class of ten samples weighs as much as one of a thousand, and often shows no change where there is one.
        """
        change = self.balanced_after - self.balanced_before
        unseen = float(np.sum(0.5 / self.samples.astype(np.float64) ** 2)) / len(self.samples) ** 2
        reach = z * math.sqrt(self.balanced_error**2 + unseen)
        return change - reach, change + reach


def _groups(scores: SampleScores) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Return the class of each prediction, and which predictions depend on one another."""
    if scores.predicted is None:
        if scores.labels is None:
            raise ValueError("the labels of the samples are needed")
        return scores.labels, scores.clusters
    n, count = scores.hit.shape
    holds = scores.hit == scores.predicted
    ranks = np.where(holds, 0, count) + np.arange(count)
    clusters = np.arange(n) if scores.clusters is None else scores.clusters
    return ranks.reshape(-1), np.repeat(clusters, count)


def _squares(deviations: FloatArray, own: NDArray[Any], k: int, clusters: NDArray[np.int64] | None) -> FloatArray:
    if clusters is None:
        return np.asarray(np.bincount(own, deviations**2, k), np.float64)
    # the sum of each cluster within each class
    _, number = np.unique(clusters, return_inverse=True)
    pairs, pair = np.unique(own * (number.max() + 1) + number, return_inverse=True)
    return np.asarray(np.bincount(pairs // (number.max() + 1), np.bincount(pair, deviations) ** 2, k), np.float64)
