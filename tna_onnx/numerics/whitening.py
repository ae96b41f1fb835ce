"""Whitening: the inverse root of a covariance that is shrunk to a multiple of the identity."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["inverse_root", "oas", "whitened"]

FloatArray = NDArray[np.float64]

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

    Raises:
        numpy.linalg.LinAlgError: they are.
    """
    from scipy.linalg.lapack import dtrtri  # noqa: PLC0415 - heavy

    factor = np.linalg.cholesky(covariance)
    # the factor's transpose is what Fortran sees, and the inverse of an upper triangle comes back
    root: FloatArray = dtrtri(factor.T)[0]
    return root


def oas(covariance: FloatArray, n_samples: float) -> tuple[FloatArray, float]:
    """Oracle approximating shrinkage: (1 - r) S + r tr(S)/n I. Source: Chen et al. (2010), equation 23."""
    n = len(covariance)
    mu = float(np.trace(covariance)) / n
    # as in scikit-learn's `oas`, with alpha = tr(S^2) / n^2
    alpha = float(np.sum(covariance * covariance)) / n**2
    top = alpha + mu**2
    # zero for a multiple of the identity, which shrinking does not change
    bottom = (n_samples + 1) * (alpha - mu**2 / n)
    shrinkage = 1.0 if bottom <= 0 else min(top / bottom, 1.0)
    shrunk = (1 - shrinkage) * covariance
    shrunk.flat[:: n + 1] += shrinkage * mu
    return shrunk, float(shrinkage)
