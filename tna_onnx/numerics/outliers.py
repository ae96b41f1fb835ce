"""Outlier scores: how far a sample is from those that a model knows, in the words of `numerics.ops`; their ROC curve.

    energy                 -log sum_c exp s_c
    relative Mahalanobis   min_c (z - m_c)' S^-1 (z - m_c) - (z - m)' T^-1 (z - m)
    residual               || N' (z - m) ||, N the half of T's axes of least variance

S is the covariance around the class means m_c, T the one around the mean m, both shrunk (Chen et al. 2010, equation
23). The area under the curve counts ties half (Fawcett 2006, section 7).
Source: Liu et al., NeurIPS 2020, section 3.1; Ren et al., arXiv:2106.09022, section 3; Wang et al., CVPR 2022,
section 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tna_onnx.numerics.ops import Ops

FloatArray = NDArray[np.float64]


class OutlierScore(Protocol):
    """A formula that tells how far away a sample is."""

    def score(self, op: Ops, logits: Any, features: Any) -> Any:
        """Return (N, 1) scores of logits (N, C) and features (N, n)."""


@dataclass(frozen=True)
class Energy:
    """Negative log of the sum of exponentials of the logits."""

    def score(self, op: Ops, logits: Any, features: Any) -> Any:  # noqa: ARG002 - one signature for all
        """Return (N, 1) scores; of the features nothing is read."""
        # log p of the first class is its logit minus the log of the sum
        minus = op.const(-1.0)
        largest = op.mul(op.min(op.mul(logits, minus)), minus)
        probability = op.mul(op.min(op.mul(op.softmax(logits), minus)), minus)
        return op.add(op.log(probability), op.mul(largest, minus))


@dataclass(frozen=True, eq=False)
class Mahalanobis:
    """Distance to the nearest class minus the distance to all samples."""

    center: FloatArray  # (n,) mean of all samples
    within: FloatArray  # (n, n) matrix A with A A' = S^-1
    overall: FloatArray  # (n, n) likewise of T^-1
    means: FloatArray  # (C', n) class means minus the center, times A; classes without samples have none

    @classmethod
    def fit(cls, features: NDArray[Any], labels: NDArray[np.int64]) -> Mahalanobis:
        """Fit to features (N, n) with labels (N,)."""
        z = np.asarray(features, np.float64)
        center = z.mean(axis=0)
        classes, index = np.unique(labels, return_inverse=True)
        means = np.stack([z[index == k].mean(axis=0) for k in range(len(classes))])
        within = _whitening(shrunk_covariance(z - means[index]))
        return cls(center, within, _whitening(shrunk_covariance(z - center)), (means - center) @ within)

    def score(self, op: Ops, logits: Any, features: Any) -> Any:  # noqa: ARG002 - one signature for all
        """Return (N, 1) scores; of the logits nothing is read."""
        z = op.add(features, op.const(-self.center))
        u = op.matmul(z, op.const(self.within))
        # ||u - v||^2 = ||u||^2 - 2 u v + ||v||^2, and the first is the same for all classes
        products = op.matmul(u, op.const(-2 * self.means.T))
        nearest = op.min(op.add(products, op.const((self.means**2).sum(axis=1))))
        background = op.sum_square(op.matmul(z, op.const(self.overall)))
        return op.add(op.add(op.sum_square(u), nearest), op.mul(background, op.const(-1.0)))


@dataclass(frozen=True, eq=False)
class Residual:
    """Length of what lies in the directions in which the samples vary least."""

    center: FloatArray  # (n,) mean of all samples
    axes: FloatArray  # (n, m) orthonormal columns

    @classmethod
    def fit(cls, features: NDArray[Any], labels: NDArray[np.int64]) -> Residual:  # noqa: ARG003 - one signature for all
        """Fit to features (N, n)."""
        z = np.asarray(features, np.float64)
        center = z.mean(axis=0)
        _, axes = np.linalg.eigh(shrunk_covariance(z - center))
        return cls(center, axes[:, : (z.shape[1] + 1) // 2])

    def score(self, op: Ops, logits: Any, features: Any) -> Any:  # noqa: ARG002 - one signature for all
        """Return (N, 1) squared lengths; of the logits nothing is read."""
        z = op.add(features, op.const(-self.center))
        return op.sum_square(op.matmul(z, op.const(self.axes)))


def shrunk_covariance(centred: FloatArray) -> FloatArray:
    """Return the shrunk covariance (n, n) of rows (N, n) that have mean 0."""
    n_samples, n = centred.shape
    covariance = centred.T @ centred / n_samples
    mean = float(np.trace(covariance)) / n
    _, share = oas(covariance, n_samples)
    # the last part: features that never vary would have no inverse
    diagonal = share * mean + max(mean, 1.0) * 1e-9
    return np.asarray((1 - share) * covariance + diagonal * np.eye(n))


def _whitening(covariance: FloatArray) -> FloatArray:
    """Return A with A A' = the inverse."""
    values, axes = np.linalg.eigh(covariance)
    return np.asarray(axes / np.sqrt(values))


# Columns of a product with the triangular whitening at least: narrower ones are slower than what they save.
_NARROWEST = 64


def whitened(z: FloatArray, whitening: FloatArray) -> FloatArray:
    """Return z times the upper triangular (n, n) whitening: little more than half the product."""
    n = len(whitening)
    u = np.empty_like(z)
    step = max(_NARROWEST, -(-n // 8))
    for start in range(0, n, step):
        stop = min(start + step, n)
        np.matmul(z[:, :stop], whitening[:stop, start:stop], out=u[:, start:stop])
    return u


def inverse_root(covariance: FloatArray) -> FloatArray:
    """Return L with Sigma^-1 = L L': the transposed inverse of the Cholesky factor.

    What OAS adds to the diagonal is at least about tr(S) / (n N): Sigma has no direction without variance, unless all
    are such.

    Raises numpy.linalg.LinAlgError: they are.
    """
    return _inverse_of_upper(np.linalg.cholesky(covariance).T)


def _inverse_of_upper(triangle: NDArray[Any]) -> FloatArray:
    """Invert an upper triangular matrix by halves: [[A, B], [0, D]]^-1 = [[A^-1, -A^-1 B D^-1], [0, D^-1]]."""
    n = len(triangle)
    if n <= _NARROWEST:
        return np.triu(np.linalg.inv(triangle))
    half = n // 2
    inverse = np.zeros((n, n))
    inverse[:half, :half] = _inverse_of_upper(triangle[:half, :half])
    inverse[half:, half:] = _inverse_of_upper(triangle[half:, half:])
    inverse[:half, half:] = -inverse[:half, :half] @ triangle[:half, half:] @ inverse[half:, half:]
    return inverse


def oas(covariance: FloatArray, n_samples: float) -> tuple[FloatArray, float]:
    """Oracle approximating shrinkage: (1 - r) S + r tr(S)/n I. Source: Chen et al. (2010), equation 23."""
    n = len(covariance)
    mu = float(np.trace(covariance)) / n
    # as in scikit-learn's `oas`, with alpha = tr(S^2) / n^2
    alpha = float(np.sum(covariance * covariance)) / n**2
    top = alpha + mu**2
    # zero for a multiple of the identity, which shrinking does not change
    bottom = (n_samples + 1) * (alpha - mu**2 / n)
    shrinkage = 1.0
    if not (bottom <= 0):
        shrinkage = min(top / bottom, 1.0)
    shrunk = (1 - shrinkage) * covariance
    shrunk.flat[:: n + 1] += shrinkage * mu
    return shrunk, float(shrinkage)


def area_under(familiar: NDArray[Any], unknown: NDArray[Any]) -> float:
    """Return the area under the ROC curve of scores (N,) and (M,).

    >>> area_under(np.array([1.0, 2.0]), np.array([2.0, 3.0]))
    0.875
    """
    from scipy import stats  # noqa: PLC0415 - heavy

    ranks = stats.rankdata(np.concatenate([familiar, unknown]))[len(familiar) :]
    above = float(ranks.sum()) - len(unknown) * (len(unknown) + 1) / 2
    return above / (len(familiar) * len(unknown))
