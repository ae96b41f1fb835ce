"""Atypicality-aware recalibration (AAR): the temperature depends on how unusual a sample's features are.

    a(x) = -max_c log N(z; mu_c, Sigma), standardised on the calibration data
    s'   = (p_2 a^2 + p_1 a + p_0) s + v                      v: one bias per class; the result is log softmax(s')

With one covariance for all classes, a is half the least squared Mahalanobis distance up to a constant, which
standardising takes away. With Sigma^-1 = L L' and u = (z - m) L (m the overall mean, nu_c = (mu_c - m) L):

    d_c^2 = |u|^2 - 2 u . nu_c + |nu_c|^2

one n x n product, one n x C product, no loop over classes. L is scaled by 1/sqrt(n), so that d^2 is about one.

Sigma is the pooled within-class covariance, shrunk to a multiple of the identity by OAS (Chen et al. 2010): with N not
far above n the sample covariance is nearly singular. OAS rather than Ledoit-Wolf because it needs nothing but the
covariance and N, which are sums over samples, so that chunks and machines can be added up; it is the better of the two
on Gaussian data.

p and v minimise the mean NLL + 1e-3 |v|^2 / C by L-BFGS with exact gradients (`scipy.optimize`), from p = (1, 0, 0)
and v = 0.
Source: Yuksekgonul et al. (2023), "Beyond Confidence: Reliable Models Should Also Consider Atypicality", section 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import array_api_compat
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from tna_onnx.errors import DataError
from tna_onnx.maps.base import Reduce
from tna_onnx.numerics.ops import ArrayOps, Ops

__all__ = ["AtypicalityAware"]

FloatArray = NDArray[np.float64]

_RIDGE = 1e-3


@dataclass(frozen=True, eq=False)
class FeatureSpace:
    """Distances from class means under one shrunk covariance.

    Attributes:
        mean: (n,) overall mean m.
        whitening: (n, n) L / sqrt(n).
        centres: (n, K) -2 nu_c of the K classes that have samples.
        squares: (K,) |nu_c|^2.
        shift: mean of min_c d_c^2 over the calibration data.
        scale: its standard deviation.
        shrinkage: weight of the identity in Sigma, from OAS.
    """

    mean: FloatArray
    whitening: FloatArray
    centres: FloatArray
    squares: FloatArray
    shift: float
    scale: float
    shrinkage: float

    def atypicality(self, op: Ops, features: Any) -> Any:
        """Return the standardised atypicality, (N, 1)."""
        u = op.matmul(op.add(features, op.const(-self.mean)), op.const(self.whitening))
        cross = op.add(op.matmul(u, op.const(self.centres)), op.const(self.squares))
        least = op.add(op.sum_square(u), op.min(cross))
        return op.mul(op.add(least, op.const(-self.shift)), op.const(1 / self.scale))

    @classmethod
    def fit(cls, reduce: Reduce) -> FeatureSpace:
        """Fit means and covariance in one pass, the standardisation in a second one.

        Raises:
            DataError: the features do not vary within the classes.
        """
        moments = reduce(lambda logits, labels, features, *_: _Moments.of(features, labels, logits.shape[1]))
        present = moments.count > 0
        n_samples, n = float(moments.count.sum()), len(moments.origin)
        means = moments.total[present] / moments.count[present, None]  # around the origin
        mean = moments.total.sum(axis=0) / n_samples
        within = moments.outer - (means * moments.count[present, None]).T @ means
        covariance, shrinkage = _oas(within / n_samples, n_samples)
        values, vectors = np.linalg.eigh(covariance)
        if not values[-1] > 0:
            raise DataError("aar: the features do not vary within the classes; use another map")
        whitening = vectors / np.sqrt(np.maximum(values, 1e-12 * values[-1]) * n)
        nu = (means - mean) @ whitening
        space = cls(moments.origin + mean, whitening, -2 * nu.T, np.sum(nu * nu, axis=1), 0.0, 1.0, shrinkage)
        least = _atypicalities(space, reduce)
        shift, scale = least.mean(), max(least.std(), 1e-6)
        return cls(space.mean, whitening, space.centres, space.squares, float(shift), float(scale), shrinkage)


@dataclass(frozen=True, eq=False)
class AtypicalityAware:
    """Logits times a polynomial of the atypicality, plus a bias per class.

    Attributes:
        polynomial: (p_0, p_1, p_2).
        bias: (C,) v.
        space: where atypicality is measured.
    """

    polynomial: FloatArray
    bias: FloatArray
    space: FeatureSpace

    needs_features: ClassVar[bool] = True

    @property
    def parameters(self) -> dict[str, Any]:
        """Polynomial, bias and feature space."""
        space = {name: _plain(value) for name, value in vars(self.space).items()}
        return {"polynomial": self.polynomial.tolist(), "bias": self.bias.tolist(), "space": space}

    @property
    def brief(self) -> dict[str, Any]:
        """The polynomial (p_0, p_1, p_2), the bias, and the shrinkage of the covariance."""
        return {
            "polynomial": self.polynomial.tolist(),
            "bias": self.bias.tolist(),
            "shrinkage": self.space.shrinkage,
        }

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any]) -> AtypicalityAware:
        """Return the map with these parameters."""
        space: dict[str, Any] = {k: np.array(v) if isinstance(v, list) else v for k, v in parameters["space"].items()}
        return cls(np.array(parameters["polynomial"]), np.array(parameters["bias"]), FeatureSpace(**space))

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:
        """Return log softmax(s'), cut at the smallest normal number of the dtype."""
        a = self.space.atypicality(op, features)
        p0, p1, p2 = (op.const(float(p)) for p in self.polynomial)
        factor = op.add(op.mul(op.add(op.mul(a, p2), p1), a), p0)  # Horner
        p = op.softmax(op.add(op.mul(logits, factor), op.const(self.bias)))
        return op.log(op.clip(p, op.tiny, 1.0))

    @classmethod
    def fit(cls, reduce: Reduce, *, start: AtypicalityAware | None = None) -> AtypicalityAware:
        """Fit the feature space, then p and v.

        Args:
            reduce: runs over chunks of (logits, labels, features).
            start: a map fitted on the same features; its space is taken over, its p and v are where L-BFGS starts.

        Raises:
            DataError: the features do not vary within the classes, or the fit does not end in finite values.
        """
        space = start.space if start else FeatureSpace.fit(reduce)

        atypicality = _atypicalities(space, reduce)

        size, classes, spread = reduce(lambda logits, *_: _shape_sums(logits)).tolist()
        classes = round(classes / size)
        # one unit of p moves the loss as much as one unit of v: a fifth of the steps
        unit = np.r_[np.full(3, 1 / max(np.sqrt(spread / size), 1e-12)), np.ones(classes)]

        def loss(theta: FloatArray) -> tuple[float, FloatArray]:
            p_and_v = theta * unit
            sums = reduce(lambda logits, labels, _, a: _loss_sums(p_and_v, logits, labels, a), atypicality)
            bias, gradient = p_and_v[3:], sums[1:] / size
            gradient[4:] += 2 * _RIDGE * bias / classes
            return float(gradient[0]) + _RIDGE * float(bias @ bias) / classes, gradient[1:] * unit

        first = np.r_[start.polynomial, start.bias] if start else np.r_[1.0, np.zeros(2 + classes)]
        # stops far below what matters, so that the end does not depend on how the data were cut into chunks
        stop: Any = {"maxiter": 1000, "maxfun": 2000, "gtol": 1e-6, "ftol": 1e-10}
        result = minimize(loss, first / unit, jac=True, method="L-BFGS-B", options=stop)
        if not np.all(np.isfinite(result.x)):
            raise DataError("aar: the fit does not end in finite values; use another map")
        p_and_v = result.x * unit
        return cls(p_and_v[:3], p_and_v[3:], space)


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
    def of(cls, features: Any, labels: NDArray[np.int64], classes: int) -> _Moments:
        z = np.asarray(array_api_compat.to_device(features, "cpu"), np.float64)
        origin = z.mean(axis=0)
        z = z - origin  # a new array: float64 features are the caller's
        total = np.zeros((classes, z.shape[1]))
        np.add.at(total, labels, z)
        return cls(origin, np.bincount(labels, minlength=classes).astype(np.float64), total, z.T @ z)

    def __add__(self, other: _Moments) -> _Moments:
        moved = other.around(self.origin)
        return _Moments(self.origin, self.count + moved.count, self.total + moved.total, self.outer + moved.outer)

    def around(self, origin: FloatArray) -> _Moments:
        """Return the same samples' sums around another origin."""
        d, summed, n = self.origin - origin, self.total.sum(axis=0), self.count.sum()
        cross = np.outer(summed, d)
        outer = self.outer + cross + cross.T + n * np.outer(d, d)
        return _Moments(origin, self.count, self.total + self.count[:, None] * d, outer)


def _oas(covariance: FloatArray, n_samples: float) -> tuple[FloatArray, float]:
    """Oracle approximating shrinkage: (1 - r) S + r tr(S)/n I. Source: Chen et al. (2010), equation 23."""
    n = len(covariance)
    trace, square = float(np.trace(covariance)), float(np.sum(covariance * covariance))
    mu = trace / n
    # as in scikit-learn's `oas`, with alpha = tr(S^2) / n^2
    alpha = square / n**2
    top, bottom = alpha + mu**2, (n_samples + 1) * (alpha - mu**2 / n)
    shrinkage = 1.0 if bottom <= 0 else min(top / bottom, 1.0)
    shrunk = (1 - shrinkage) * covariance
    shrunk.flat[:: n + 1] += shrinkage * mu
    return shrunk, float(shrinkage)


@dataclass(frozen=True, eq=False)
class _Column:
    """A value per sample; `+` joins."""

    values: FloatArray

    def __add__(self, other: _Column) -> _Column:
        return _Column(np.concatenate([self.values, other.values]))


def _atypicalities(space: FeatureSpace, reduce: Reduce) -> FloatArray:
    """Return the atypicality of all samples, (N,)."""

    def of(_logits: Any, _labels: Any, features: Any) -> _Column:
        a = space.atypicality(ArrayOps(features), features)
        return _Column(np.asarray(array_api_compat.to_device(a, "cpu"), np.float64)[:, 0])

    values: FloatArray = reduce(of).values
    return values


def _shape_sums(logits: Any) -> FloatArray:
    """Sums over samples of (1, C, mean over classes of (s - mean s)^2)."""
    xp = array_api_compat.array_namespace(logits)
    centred = logits - xp.mean(logits, axis=1, keepdims=True)
    n, classes = logits.shape
    return np.array([n, n * classes, float(xp.sum(centred * centred, dtype=xp.float64)) / classes])


def _loss_sums(theta: FloatArray, logits: Any, labels: NDArray[np.int64], atypicality: NDArray[Any]) -> FloatArray:
    """Sums over samples of (1, NLL, d NLL / d p_0..2, d NLL / d v)."""
    xp = array_api_compat.array_namespace(logits)
    logits = xp.astype(logits, xp.float64)  # a line search on float32 losses stops early
    op = ArrayOps(logits)
    a = op.const(atypicality[:, None])
    powers = [xp.ones_like(a), a, a * a]
    factor = float(theta[0]) * powers[0] + float(theta[1]) * powers[1] + float(theta[2]) * powers[2]
    scores = logits * factor + op.const(theta[3:])
    own = xp.asarray(labels)[:, None]
    top = xp.max(scores, axis=1, keepdims=True)
    weights = xp.exp(scores - top)
    total = xp.sum(weights, axis=1, keepdims=True)
    nll = xp.log(total) + top - xp.take_along_axis(scores, own, axis=1)
    p = weights / total  # d NLL / d scores = p - onehot
    inner = xp.sum(p * logits, axis=1, keepdims=True) - xp.take_along_axis(logits, own, axis=1)
    by_power = [float(xp.sum(inner * power)) for power in powers]
    by_class = np.asarray(array_api_compat.to_device(xp.sum(p, axis=0), "cpu"))
    by_class = by_class - np.bincount(labels, minlength=logits.shape[1])
    head = [float(logits.shape[0]), float(xp.sum(nll)), *by_power]
    return np.concatenate([np.array(head), by_class])


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
