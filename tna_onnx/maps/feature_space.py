"""How unusual features are: the distance from the closest class mean, under one covariance for all classes.

    a(x) = -max_c log N(z; mu_c, Sigma), standardised on samples that mu and Sigma have not seen

a is half the least squared Mahalanobis distance up to a constant, which standardising takes away. With
Sigma^-1 = L L' and u = (z - m) L (m the overall mean, nu_c = (mu_c - m) L):

    d_c^2 = |u|^2 - 2 u . nu_c + |nu_c|^2

one n x n product, one n x C product, no loop over classes. L is scaled by 1/sqrt(n), so that d^2 is about one.

Sigma is the pooled within-class covariance, shrunk to a multiple of the identity by OAS (Chen et al. 2010): with N not
far above n the sample covariance is nearly singular. OAS rather than Ledoit-Wolf because it needs nothing but the
covariance and N, which are sums over samples, so that chunks and machines can be added up; it is the better of the two
on Gaussian data.

Samples are closer to Gaussians that were fitted on them than new samples are, by several standard deviations where N is
not far above n. The source fits its Gaussians on training data. From the calibration data alone, each sample's distance
is measured in the space without that sample, and the standardisation is that of these distances. The space itself is
fitted on all samples. So new samples have mean 0 and standard deviation 1.

Leaving out sample i takes one term from the covariance and moves its class mean. With v = z - mu_y, N_y samples in its
class, f = N_y / (N_y - 1), and the shrinkage r and its multiple of the identity as they are:

    Sigma_-i = Sigma - k v v'    k = f (1 - r) / N          mu_y,-i = mu_y - v / (N_y - 1)

so that by Sherman and Morrison, with <a, b> = a' Sigma^-1 b,

    d_c,-i^2 = <z - mu_c, z - mu_c> + k <z - mu_c, v>^2 / (1 - k <v, v>)      c != y
    d_y,-i^2 = f^2 <v, v> / (1 - k <v, v>)

Sources: Yuksekgonul et al. (2023), section 4; Sherman & Morrison (1950).
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError
from tna_onnx.maps.base import Reduce, Rows
from tna_onnx.numerics.ops import Ops, to_host
from tna_onnx.numerics.outliers import inverse_root, oas, whitened
from tna_onnx.numerics.threads import several_threads

FloatArray = NDArray[np.float64]

# Smallest standard deviation of the distances: equal ones would be divided by zero.
_MIN_SCALE = 1e-6


@dataclass(frozen=True, eq=False)
class FeatureSpace:
    """Distances from class means under one shrunk covariance."""

    mean: FloatArray  # (n,) overall mean m
    whitening: FloatArray  # (n, n) L / sqrt(n)
    centres: FloatArray  # (n, K) -2 nu_c of the K classes that have samples
    squares: FloatArray  # (K,) |nu_c|^2
    shift: float  # mean of min_c d_c^2 over samples that the space has not seen
    scale: float  # its standard deviation
    shrinkage: float  # weight of the identity in Sigma, from OAS
    measured: FloatArray | None = None  # (N,) atypicality of these samples; None before a standardisation

    def atypicality(self, op: Ops, features: Any) -> Any:
        """Return the standardised atypicality, (N, 1)."""
        # u = (z - m) L of the module docstring
        # 8 bits are too few for these products: squares of n differences are added up
        u = op.matmul(op.add(features, op.const(-self.mean)), op.in_float(self.whitening))
        # -2 u . nu_c + |nu_c|^2 for all classes at once; |u|^2 does not depend on the class
        cross = op.add(op.matmul(u, op.in_float(self.centres)), op.const(self.squares))
        distance = op.add(op.sum_square(u), op.min(cross))
        return op.mul(op.add(distance, op.const(-self.shift)), op.const(1 / self.scale))

    def standardised(self, distance: FloatArray) -> FeatureSpace:
        """Return the space whose atypicality has mean 0 and standard deviation 1 over (N,) values in this one."""
        mean = float(distance.mean())
        deviation = max(float(distance.std()), _MIN_SCALE)
        return dataclasses.replace(
            self,
            shift=self.shift + self.scale * mean,
            scale=self.scale * deviation,
            measured=(distance - mean) / deviation,
        )

    def between(self) -> FloatArray | None:
        """Return nu_c . nu_d, (K, K); None if they would take more memory than the centres."""
        features, classes = self.centres.shape
        if classes > features:
            return None
        products: FloatArray = self.centres.T @ self.centres / 4
        return products

    @classmethod
    def fit(cls, reduce: Reduce) -> FeatureSpace:
        """Fit means and covariance on all samples, and the standardisation on distances without the sample itself."""
        moments = reduce(_Moments.of)
        space = cls.of_moments(moments)
        of = functools.partial(_distance_without_itself, space, space.between(), moments.count)
        (distance,) = reduce(of).columns
        return space.standardised(distance)

    @classmethod
    def of_moments(cls, moments: _Moments) -> FeatureSpace:
        """Return the space of means and covariance, not standardised."""
        # classes without samples have no mean to be close to
        present = moments.count > 0
        n_samples = float(moments.count.sum())
        n = len(moments.origin)
        means = moments.total[present] / moments.count[present, None]  # around the origin
        mean = moments.total.sum(axis=0) / n_samples
        # sum (z - mu_y)(z - mu_y)' = sum z z' - sum_c N_c mu_c mu_c'
        rooted = means * np.sqrt(moments.count[present, None])
        with several_threads(n, n, n):
            within = rooted.T @ rooted
            np.subtract(moments.outer, within, out=within)
            within /= n_samples
            covariance, shrinkage = oas(within, n_samples)
            try:
                # over sqrt(n), so that d^2 is about one
                whitening = inverse_root(covariance) / np.sqrt(n)
            except np.linalg.LinAlgError:
                raise DataError("aar: the features do not vary within the classes; use another map") from None
            # whitened class means: squared distances are Mahalanobis's then
            nu = (means - mean) @ whitening
        return cls(moments.origin + mean, whitening, -2 * nu.T, np.sum(nu * nu, axis=1), 0.0, 1.0, shrinkage)


@dataclass(frozen=True, eq=False)
class _Moments:
    """Sums over samples around an origin: count (C,), total (C, n) by class, outer (n, n); float64.

    The origin is the first chunk's mean: sums of squares around a far-away zero would lose digits.
    """

    origin: FloatArray
    count: FloatArray
    total: FloatArray
    outer: FloatArray

    @classmethod
    def of(cls, logits: Any, labels: NDArray[np.int64], features: Any) -> _Moments:
        classes = logits.shape[1]
        z = np.asarray(to_host(features), np.float64)
        origin = z.mean(axis=0)
        z = z - origin
        total = np.zeros((classes, z.shape[1]))
        # runs of one label are summed at once
        order = np.argsort(labels, kind="stable")
        present, first = np.unique(labels[order], return_index=True)
        total[present] = np.add.reduceat(z[order], first, axis=0)
        with several_threads(*z.shape, z.shape[1]):
            outer = z.T @ z
        return cls(origin, np.bincount(labels, minlength=classes).astype(np.float64), total, outer)

    def __add__(self, addend: _Moments) -> _Moments:
        moved = addend.around(self.origin)
        outer = moved.outer
        outer += self.outer
        return _Moments(self.origin, self.count + moved.count, self.total + moved.total, outer)

    def around(self, origin: FloatArray) -> _Moments:
        """Return the same samples' sums around another origin, in arrays of their own.

        With d = old - new: sum (z + d) = total + count d, sum (z + d)(z + d)' = outer + c + c', c = (sum z + N/2 d) d'.
        """
        d = self.origin - origin
        c = self.total.sum(axis=0) + self.count.sum() / 2 * d
        outer = np.stack([c, d], axis=1) @ np.stack([d, c])
        outer += self.outer
        return _Moments(origin, self.count, self.total + self.count[:, None] * d, outer)


def _distance_without_itself(
    space: FeatureSpace, between: FloatArray | None, count: FloatArray, _: Any, labels: NDArray[np.int64], features: Any
) -> Rows:
    """Least d_c,-i^2 of each sample, (N,); `count` (C,) is the samples of each class."""
    rows = np.arange(len(labels))
    z = np.asarray(to_host(features), np.float64) - space.mean
    with several_threads(*z.shape, z.shape[1]):
        u = whitened(z, space.whitening)
        cross = u @ space.centres
    length = np.einsum("if,if->i", u, u)[:, None]
    # classes without samples have no centre
    class_of = (np.cumsum(count > 0) - 1)[labels]
    class_cross = cross[rows, class_of][:, None]
    # v = u - nu_y, and <z - mu_c, v> = (u - nu_c) . v multiplied out
    with_v = cross / 2
    with_v += length + class_cross / 2
    with_v += space.centres[:, class_of].T @ space.centres / 4 if between is None else between[class_of]
    # the only sample of its class is its mean, and leaves none behind
    alone = count[labels] == 1
    f = np.where(alone, 1, count[labels] / np.where(alone, 1, count[labels] - 1))
    # distances are over n
    k = f * (1 - space.shrinkage) / count.sum() * len(space.mean)
    square = (length + class_cross)[:, 0] + space.squares[class_of]
    remainder = 1 - k * square
    distance = cross
    distance += space.squares
    distance += length
    with_v *= with_v
    with_v *= (k / remainder)[:, None]
    distance += with_v
    distance[rows, class_of] = np.where(alone, np.inf, f**2 * square / remainder)
    return Rows.of(distance.min(axis=1))
