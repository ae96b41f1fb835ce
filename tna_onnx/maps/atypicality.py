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

p and v minimise the mean NLL + 1e-3 |v|^2 / C, a convex function, by Newton steps from p = (1, 0, 0) and v = 0. With
q = softmax(s') and a direction (d, w), t = (d_2 a^2 + d_1 a + d_0) s + w is how s' moves, and the Hessian turns it into
sums over samples of r = q (t - E_q[t]), for v, and of a^k (r . s), for p_k.
Source: Yuksekgonul et al. (2023), "Beyond Confidence: Reliable Models Should Also Consider Atypicality", section 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError
from tna_onnx.maps.base import Reduce
from tna_onnx.numerics.fitting import convex_minimum
from tna_onnx.numerics.ops import ArrayOps, Ops, blocked, own_column, to_host

__all__ = ["AtypicalityAware"]

FloatArray = NDArray[np.float64]

_RIDGE = 1e-3
_FLAT = 1e-12  # far below any curvature that matters: v has 2e-3 / C, p about one where anything is uncertain


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
    def fit(cls, reduce: Reduce) -> tuple[FeatureSpace, FloatArray]:
        """Fit means and covariance in one pass, the standardisation in a second one.

        Returns:
            The space, and the atypicality of all samples, (N,).

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
        shift, scale = float(least.mean()), max(float(least.std()), 1e-6)
        space = cls(space.mean, whitening, space.centres, space.squares, shift, scale, shrinkage)
        return space, (least - shift) / scale


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

    name: ClassVar[str] = "aar"
    keeps_order: ClassVar[bool] = False
    foldable: ClassVar[bool] = False
    needs_features: ClassVar[bool] = True
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    @property
    def brief(self) -> dict[str, Any]:
        """The polynomial (p_0, p_1, p_2), the bias, and the shrinkage of the covariance."""
        return {
            "polynomial": self.polynomial.tolist(),
            "bias": self.bias.tolist(),
            "shrinkage": self.space.shrinkage,
        }

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:
        """Return log softmax(s'), cut at the smallest normal number of the dtype."""
        a = self.space.atypicality(op, features)
        p0, p1, p2 = (op.const(float(p)) for p in self.polynomial)
        factor = op.add(op.mul(op.add(op.mul(a, p2), p1), a), p0)  # Horner
        p = op.softmax(op.add(op.mul(logits, factor), op.const(self.bias)))
        return op.log(op.clip(p, op.tiny, 1.0))

    def folded(self) -> None:
        """Return None: the formula needs nodes of its own."""

    @classmethod
    def fit(cls, reduce: Reduce, *, start: AtypicalityAware | None = None) -> AtypicalityAware:
        """Fit the feature space, then p and v.

        Args:
            reduce: runs over chunks of (logits, labels, features).
            start: a map fitted on the same features; its space is taken over, its p and v are where the steps start.

        Raises:
            DataError: the features do not vary within the classes, or the fit does not end in finite values.
        """
        if start:
            space, atypicality = start.space, _atypicalities(start.space, reduce)
        else:
            space, atypicality = FeatureSpace.fit(reduce)
        size, classes, spread = reduce(blocked(lambda logits, *_: _shape_sums(logits))).tolist()
        classes = round(classes / size)
        # one unit of p moves the loss as much as one unit of v
        unit = np.r_[np.full(3, 1 / max(np.sqrt(spread / size), 1e-12)), np.ones(classes)]
        ridge = np.r_[np.zeros(3), np.full(classes, 2 * _RIDGE / classes)]

        def loss(x: FloatArray) -> tuple[float, FloatArray, FloatArray]:
            theta = x * unit
            of = blocked(lambda logits, labels, _, a: _loss_sums(theta, logits, labels, a))
            nll, gradient, diagonal = np.split(reduce(of, atypicality) / size, [1, 4 + classes])
            # in float32 the curvature may vanish where the slope does not
            diagonal = np.maximum((diagonal + ridge) * unit**2, _FLAT)
            return float(nll[0] + theta @ (ridge * theta) / 2), (gradient + ridge * theta) * unit, diagonal

        def product(x: FloatArray, d: FloatArray) -> FloatArray:
            of = blocked(lambda logits, _labels, _, a: _hessian_sums(x * unit, d * unit, logits, a))
            turned: FloatArray = (reduce(of, atypicality) / size + ridge * d * unit) * unit
            return turned

        first = np.r_[start.polynomial, start.bias] if start else np.r_[1.0, np.zeros(2 + classes)]
        theta = convex_minimum(loss, product, first / unit) * unit
        if not np.all(np.isfinite(theta)):
            raise DataError("aar: the fit does not end in finite values; use another map")
        return cls(theta[:3], theta[3:], space)


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
        cross = np.outer(summed + n / 2 * d, d)
        outer = self.outer + cross
        outer += cross.T
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


def _loss_sums(theta: FloatArray, logits: Any, labels: NDArray[np.int64], atypicality: FloatArray) -> FloatArray:
    """Sums over samples of (NLL, d NLL / d p_0..2, d NLL / d v, and the second derivatives of each of these)."""
    xp = array_api_compat.array_namespace(logits)
    op = ArrayOps(logits)
    powers = _powers(op, atypicality)
    scores = _scores(op, theta, logits, powers)
    top = xp.max(scores, axis=1, keepdims=True)
    q = xp.exp(scores - top)
    total = xp.sum(q, axis=1, keepdims=True, dtype=xp.float64)
    nll = xp.log(total) + top - own_column(scores, labels)
    q = q / xp.astype(total, q.dtype)
    weighted = q * logits
    mean = xp.sum(weighted, axis=1, keepdims=True)
    spread = xp.vecdot(weighted, logits)[:, None] - mean * mean
    inner = mean - own_column(logits, labels)  # d NLL / d scores = q - onehot
    by_power = [[float(xp.sum(x, dtype=xp.float64)) for x in (inner * p, spread * p * p)] for p in powers]
    hits = np.bincount(labels, minlength=logits.shape[1])
    by_class, squares = (_host(xp.sum(x, axis=0, dtype=xp.float64)) for x in (q, q * q))
    slopes, bends = zip(*by_power, strict=True)
    return np.concatenate([[float(xp.sum(nll))], slopes, by_class - hits, bends, by_class - squares])


def _hessian_sums(theta: FloatArray, d: FloatArray, logits: Any, atypicality: FloatArray) -> FloatArray:
    """Sums over samples of the Hessian of the NLL in (p, v) at theta, times d.

    With t = c s + w: E_q[t] = c E_q[s] + E_q[w], and r = q (t - E_q[t]) is never written down.
    """
    xp = array_api_compat.array_namespace(logits)
    op = ArrayOps(logits)
    powers = _powers(op, atypicality)
    q = op.softmax(_scores(op, theta, logits, powers))
    weighted = q * logits
    c, w = _factor(d, powers)[:, 0], op.const(d[3:])
    mean = xp.sum(weighted, axis=1)
    moved = c * mean + q @ w
    inner = c * xp.vecdot(weighted, logits) + weighted @ w - moved * mean  # r . s
    by_power = [float(xp.sum(inner * p[:, 0], dtype=xp.float64)) for p in powers]
    return np.concatenate([by_power, _host(c @ weighted - moved @ q + xp.sum(q, axis=0) * w)])


def _powers(op: ArrayOps, atypicality: FloatArray) -> list[Any]:
    """Return (1, a, a^2), (N, 1) each, in the dtype of the logits."""
    return [op.const(atypicality[:, None] ** k) for k in range(3)]


def _factor(theta: FloatArray, powers: list[Any]) -> Any:
    return sum(float(p) * power for p, power in zip(theta, powers, strict=False))


def _scores(op: ArrayOps, theta: FloatArray, logits: Any, powers: list[Any]) -> Any:
    return logits * _factor(theta, powers) + op.const(theta[3:])


def _host(array: Any) -> FloatArray:
    return np.asarray(to_host(array), np.float64)
