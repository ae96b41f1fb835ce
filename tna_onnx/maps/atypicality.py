"""Atypicality-aware recalibration (AAR): the temperature depends on how unusual a sample's features are.

    s' = (p_2 a^2 + p_1 a + p_0) s + v        the result is log softmax(s')
    a(x) = min_c d_c^2 / 2 up to a constant, standardised on samples that the space has not seen (`FeatureSpace`)

p and v minimise the mean NLL plus 1e-3 |v|^2 / C, a convex function, by Newton steps from p = (1, 0, 0), v = 0. The
factor of s stays above 0, since a negative one would turn the order of the classes round: a is cut to the range of the
calibration samples, and the factor at a twentieth of p_0. `fit_published` does neither.
Source: Yuksekgonul et al. (2023), "Beyond Confidence: Reliable Models Should Also Consider Atypicality", section 4.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError
from tna_onnx.maps.base import CalibrationMap, FloatArray, Reduce, SampleColumns, without_features
from tna_onnx.numerics.fitting import DENSE, Curvature, MatrixCurvature, convex_minimum
from tna_onnx.numerics.ops import (
    ArrayOps,
    Blocked,
    Ops,
    namespace,
    own_column,
    row_dot,
    row_max,
    row_sum,
    several_threads,
    to_host,
)
from tna_onnx.numerics.outliers import inverse_root, oas, whitened

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
        # d_c^2 = |u|^2 - 2 u . nu_c + |nu_c|^2, u = (z - m) L, nu_c = (mu_c - m) L, Sigma^-1 = n L L'
        # 8 bits are too few for these products: squares of n differences are added up
        u = op.matmul(op.add(features, op.const(-self.mean)), op.in_float(self.whitening))
        # for all classes at once; |u|^2 does not depend on the class
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
        z = _host(features)
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
) -> SampleColumns:
    """Least squared distance of each sample from a class of the others, (N,); `count` (C,): samples of each class.

    Without sample i of class y, v = z - mu_y, f = N_y / (N_y - 1), k = f (1 - shrinkage) / N (Sherman & Morrison 1950):

        Sigma_-i = Sigma - k v v'       d_y^2 = f^2 <v, v> / (1 - k <v, v>)
        d_c^2 = <z - mu_c, z - mu_c> + k <z - mu_c, v>^2 / (1 - k <v, v>),   <a, b> = a' Sigma^-1 b
    """
    rows = np.arange(len(labels))
    z = _host(features) - space.mean
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
    return SampleColumns.of(distance.min(axis=1))


# Weight of |v|^2 / C in the loss: without it the biases are free to move together.
_RIDGE = 1e-3

# Least factor, over that at the mean atypicality.
_LEAST_SHARE = 0.05
# Where that is no more than nothing: labels that do not go with the scores.
_LEAST_FACTOR = 1e-3

# Smallest curvature: far below any that matters. v has 2e-3 / C, p about one where anything is uncertain.
_MIN_CURVATURE = 1e-12

# Length of the gradient at which a fit ends, and where one more step follows, which squares it (`convex_minimum`).
_END = 1e-7
_BEFORE_LAST = 1e-5

# Least eigenvalue of the preconditioner's block, of the largest; smaller ones are rounding.
_MIN_EIGENVALUE = 1e-3

# Logits less the largest that weigh anything: below it, the least exponential times their square would.
_LEAST = -1e6

# Samples that are added up in the dtype of the logits: more of them would add more rounding than is in each.
_RUN = 256


@dataclass(frozen=True, eq=False)
class AtypicalityLoss:
    """The loss as a function of x = (p, v) / unit."""

    reduce: Reduce  # runs over chunks of (logits, labels, features)
    atypicality: FloatArray  # (N,)
    size: float  # number of samples N
    classes: int  # number of classes C
    unit: FloatArray  # (3 + C,) one unit of p moves the loss as much as one unit of v
    ridge: FloatArray  # (3 + C,) diagonal of the ridge's Hessian
    frequency: FloatArray  # (C,) share of the samples with each label

    @classmethod
    def of(cls, reduce: Reduce, atypicality: FloatArray) -> AtypicalityLoss:
        """Look at the samples once."""
        sums = reduce(Blocked(_shape_sums))
        if not np.all(np.isfinite(sums)):
            raise DataError("aar: the logits are too large for a fit; use another map")
        size = float(sums[0])
        classes = len(sums) - 2
        # 1e-12: logits that are all equal have no spread
        unit = np.r_[np.full(3, 1 / max(math.sqrt(sums[1] / size), 1e-12)), np.ones(classes)]
        ridge = np.r_[np.zeros(3), np.full(classes, 2 * _RIDGE / classes)]
        return cls(reduce, atypicality, size, classes, unit, ridge, sums[2:] / size)

    @property
    def plain(self) -> FloatArray:
        """(3 + C,) p and v that leave the logits as they are."""
        theta: FloatArray = np.r_[1.0, np.zeros(2 + self.classes)]
        return theta

    @property
    def constant(self) -> FloatArray:
        """(3 + C,) p and v that give every sample the frequencies of the labels, those without samples nearly none."""
        theta: FloatArray = np.r_[np.zeros(3), np.log(np.maximum(self.frequency, 0.5 / self.size))]
        return theta

    def at(self, x: FloatArray) -> tuple[float, FloatArray, Curvature]:
        """Return the value, the gradient and the curvature."""
        theta = x * self.unit
        dense = len(theta) <= DENSE
        of = Blocked(functools.partial(_loss_sums, theta, dense))
        passed: _Passed = self.reduce(of, self.atypicality)
        means = passed.sums / self.size
        shares, squares = means[13 : 13 + 2 * self.classes].reshape(2, self.classes)
        gradient = np.r_[means[1:4], shares - self.frequency] + self.ridge * theta
        value = float(means[0] + theta @ (self.ridge * theta) / 2)
        if dense:
            hessian = means[13 + 2 * self.classes :].reshape(len(theta), len(theta)) + np.diag(self.ridge)
            return value, gradient * self.unit, MatrixCurvature(hessian * self.unit * self.unit[:, None])
        # in float32 the curvature may vanish where the slope does not
        by_class = np.maximum(shares - squares + self.ridge[3:], _MIN_CURVATURE)
        by_power = _inverse(means[4:13].reshape(3, 3) * self.unit[0] ** 2)
        return value, gradient * self.unit, _Curvature(self, theta, passed.by_sample, shares, by_power, by_class)


def _inverse(block: FloatArray) -> FloatArray:
    """Return the inverse of a symmetric matrix, scaled to a unit diagonal and with its eigenvalues made positive."""
    scale = 1 / np.sqrt(np.maximum(np.diag(block), _MIN_CURVATURE))
    scaled = block * scale * scale[:, None]
    # sums that are not finite have no eigenvalues; what comes of them is not finite either
    values, vectors = np.linalg.eigh(scaled if np.all(np.isfinite(scaled)) else np.eye(len(scaled)))
    sizes = np.maximum(values, max(_MIN_EIGENVALUE * values.max(), _MIN_CURVATURE))
    inverse: FloatArray = (vectors / sizes) @ vectors.T * scale * scale[:, None]
    return inverse


@dataclass(frozen=True, eq=False)
class _Curvature:
    """The Hessian at theta, and its preconditioner: a block for p, and the diagonal for v."""

    loss: AtypicalityLoss  # of which it is the Hessian
    theta: FloatArray  # (3 + C,) p and v
    by_sample: FloatArray  # (N, 4) max s, the logarithm of sum exp s', E_q[z], E_q[z^2]; s' without p(a) max s
    shares: FloatArray  # (C,) mean of q
    by_power: FloatArray  # (3, 3) inverse of the block
    by_class: FloatArray  # (C,) diagonal

    def times(self, d: FloatArray) -> FloatArray:
        """Return the Hessian times d, (3 + C,)."""
        along = d * self.loss.unit
        of = Blocked(functools.partial(_hessian_sums, self.theta, along))
        means = self.loss.reduce(of, self.loss.atypicality, self.by_sample) / self.loss.size
        means[3:] += self.shares * along[3:]
        turned: FloatArray = (means + self.loss.ridge * along) * self.loss.unit
        return turned

    def divide(self, r: FloatArray) -> FloatArray:
        """Return M^-1 r, (3 + C,)."""
        return np.concatenate([self.by_power @ r[:3], r[3:] / self.by_class])


@dataclass(frozen=True, eq=False)
class _Passed:
    """What a pass gives: sums over samples are added, numbers by sample are joined."""

    sums: FloatArray
    by_sample: FloatArray

    def __add__(self, addend: _Passed) -> _Passed:
        return _Passed(self.sums + addend.sums, np.concatenate([self.by_sample, addend.by_sample]))


def _shape_sums(logits: Any, labels: NDArray[np.int64], *_: Any) -> FloatArray:
    """Sums over samples of (1, mean over classes of (s - mean s)^2, samples of each class)."""
    xp = namespace(logits)
    classes = logits.shape[1]
    centred = logits - row_sum(logits) / classes
    with np.errstate(over="ignore"):
        spread = float(xp.sum(row_dot(centred, centred), dtype=xp.float64)) / classes
    return np.concatenate([[len(labels), spread], np.bincount(labels, minlength=classes)])


def _loss_sums(
    theta: FloatArray, dense: bool, logits: Any, labels: NDArray[np.int64], _features: Any, atypicality: FloatArray
) -> _Passed:
    """Sums over samples of (NLL, d NLL / d p_k, A, q, q^2), and the numbers by sample of `_Curvature`.

    z = s - max s, q = softmax(s'), d NLL / d p_k = a^k (E_q[z] - z_y), A = a^(k+l) Var_q[z]. `dense`: the Hessian, too.
    """
    xp = namespace(logits)
    op = ArrayOps(logits)
    powers = _powers(atypicality)
    largest = row_max(logits)
    z = logits - largest
    factor = powers @ theta[:3]
    scores = z * op.const(factor[:, None])
    scores += op.const(theta[3:])
    top = row_max(scores)
    scores -= top
    weights = _exponentials(op, scores)
    label_logits = _host(own_column(z, labels))[:, 0]
    z = _bounded(z)
    total, first, second = (
        _host(row) for row in (row_sum(weights)[:, 0], row_dot(weights, z), row_dot(weights * z, z))
    )
    mean = first / total
    square = second / total
    normaliser = np.log(total) + _host(top)[:, 0]
    nll = normaliser - (factor * label_logits + theta[3:][labels])
    by_power = (mean - label_logits) @ powers
    block = (powers * np.maximum(square - mean**2, 0)[:, None]).T @ powers
    shares = _over_rows(1 / total, weights)
    squares = _over_rows(1 / total**2, weights * weights)
    sums = np.concatenate([[nll.sum()], by_power, block.ravel(), shares, squares])
    if dense:
        q = weights / op.const(total[:, None])
        across = _host(op.const(powers).T @ (q * (z - op.const(mean[:, None]))))
        hessian = np.block([[block, across], [across.T, np.diag(shares) - _host(q.T @ q)]])
        # where rows are saturated, rounding is all that is left
        rounded = 10 * float(xp.finfo(q.dtype).eps) * np.append(square @ powers**2, shares) + _MIN_CURVATURE
        sums = np.append(sums, hessian + np.diag(rounded))
    by_sample = np.stack([_host(largest)[:, 0], normaliser, mean, square], axis=1)
    return _Passed(sums, by_sample)


def _hessian_sums(
    theta: FloatArray,
    d: FloatArray,
    logits: Any,
    _labels: Any,
    _features: Any,
    atypicality: FloatArray,
    by_sample: FloatArray,
) -> FloatArray:
    """Sums over samples of the Hessian of the NLL in (p, v) at theta, times d; without sum q w, which is known.

    With c = d_2 a^2 + d_1 a + d_0, w = d_3: and moved = c E_q[z] + E_q[w]: q w + c q z - q moved for v, and
    a^k (c E_q[z^2] + E_q[w z] - moved E_q[z]) for p_k.
    """
    op = ArrayOps(logits)
    powers = _powers(atypicality)
    largest, normaliser, mean, square = by_sample.T
    z = logits - op.const(largest[:, None])
    scores = z * op.const(powers @ theta[:3, None])
    scores -= op.const(normaliser[:, None])
    scores += op.const(theta[3:])
    q = _exponentials(op, scores)
    weighted = q * _bounded(z)
    w = op.const(d[3:])
    c = powers @ d[:3]
    moved = c * mean + _host(q @ w)
    inner = c * square + _host(weighted @ w) - moved * mean
    return np.concatenate([inner @ powers, _host(op.const(c) @ weighted - op.const(moved) @ q)])


def _powers(atypicality: FloatArray) -> FloatArray:
    """Return (1, a, a^2), (B, 3)."""
    return np.stack([np.ones_like(atypicality), atypicality, atypicality * atypicality], axis=1)


def _exponentials(op: ArrayOps, scores: Any) -> Any:
    """Return exp of scores that are not positive, up to rounding; the scores may be overwritten."""
    # two bounds: NumPy is slow with one
    low = math.ceil(math.log(op.tiny) / 2)
    if isinstance(scores, np.ndarray):
        return np.exp(np.clip(scores, low, 0.0, out=scores), out=scores)
    xp = namespace(scores)
    return xp.exp(xp.clip(scores, low, 0.0))


def _bounded(z: Any) -> Any:
    """Return z where it weighs anything: a class that is masked by -1e9 would with the least exponential."""
    xp = namespace(z)
    if not z.shape[0] or float(xp.min(z)) >= _LEAST:
        return z
    return xp.clip(z, _LEAST, 0.0)


def _over_rows(factors: FloatArray, values: Any) -> FloatArray:
    """Return the sums (C,) of (B, C) values times (B,) factors."""
    xp = namespace(values)
    dtype = values.dtype if len(factors) <= _RUN else xp.float64
    rows = xp.asarray(factors, dtype=dtype, device=array_api_compat.device(values))
    return _host(rows @ xp.astype(values, dtype, copy=False))


def _host(array: Any) -> FloatArray:
    return np.asarray(to_host(array), np.float64)


@dataclass(frozen=True, eq=False)
class AtypicalityAware(CalibrationMap):
    """Logits times a polynomial of the atypicality, plus a bias per class."""

    polynomial: FloatArray  # (p_0, p_1, p_2)
    bias: FloatArray  # (C,) v
    space: FeatureSpace  # where atypicality is measured
    low: float = -math.inf  # range that a is cut to; infinite as published
    high: float = math.inf
    least: float = -math.inf  # what the factor is held above; infinite as published

    name: ClassVar[str] = "aar"
    title: ClassVar[str] = "temperature by how unusual a sample is"
    rank: ClassVar[int] = 130
    needs_features: ClassVar[bool] = True
    # the best in 1 of 249 choices, of whose time it took a sixth
    max_classes_of_auto: ClassVar[int | None] = 0

    def __post_init__(self) -> None:
        """Refuse numbers that are not finite, but for the range, which is infinite as published."""
        self.require_finite("polynomial", "bias")

    @property
    def brief(self) -> dict[str, Any]:
        """The polynomial (p_0, p_1, p_2), the bias, and the shrinkage of the covariance."""
        brief = {"polynomial": self.polynomial.tolist(), "bias": self.bias.tolist(), "shrinkage": self.space.shrinkage}
        if not self._is_bounded:
            return brief
        return {**brief, "atypicality_range": [self.low, self.high], "least_factor": self.least}

    @property
    def _is_bounded(self) -> bool:
        return math.isfinite(self.least)

    @property
    def _largest(self) -> float:
        """Largest factor within the range."""
        p0, p1, p2 = self.polynomial.tolist()
        places = [self.low, self.high]
        if p2:
            places.append(min(max(-p1 / (2 * p2), self.low), self.high))
        return float(max(self.least, *(p0 + (p1 + p2 * a) * a for a in places)))

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:
        """Return log softmax(s'), cut at the smallest normal number of the dtype."""
        a = self.space.atypicality(op, features)
        if self._is_bounded:
            a = op.clip(a, self.low, self.high)
        p0, p1, p2 = (op.const(float(p)) for p in self.polynomial)
        factor = op.add(op.mul(op.add(op.mul(a, p2), p1), a), p0)  # Horner
        if self._is_bounded:
            factor = op.clip(factor, self.least, self._largest)
        p = op.softmax(op.add(op.mul(logits, factor), op.const(self.bias)))
        # law 1: logits again. A probability that underflowed keeps a finite logarithm
        return op.log(op.clip(p, op.tiny, 1.0))

    @classmethod
    def fit(cls, reduce: Reduce, *, start: AtypicalityAware | None = None) -> AtypicalityAware:
        """Fit the map as published, then hold its factor above 0."""
        fitted = cls.fit_published(reduce, start=start)
        mean_factor = float(fitted.polynomial[0])
        measured = fitted.space.measured
        assert measured is not None  # noqa: S101 - a fit has measured its samples
        low, high = float(measured.min()), float(measured.max())
        return dataclasses.replace(fitted, low=low, high=high, least=max(_LEAST_SHARE * mean_factor, _LEAST_FACTOR))

    @classmethod
    def fit_published(cls, reduce: Reduce, *, start: AtypicalityAware | None = None) -> AtypicalityAware:
        """Fit the feature space, in which the atypicality of each sample is measured without itself, then p and v."""
        space = start.space if start else FeatureSpace.fit(reduce)
        assert space.measured is not None  # noqa: S101 - it was fitted to these samples
        objective = AtypicalityLoss.of(without_features(reduce), space.measured)
        first = np.r_[start.polynomial, start.bias] if start else objective.plain
        # the same for all samples: saturated probabilities hide where the loss falls
        refuge = objective.constant / objective.unit
        # steps in x = theta / unit: one tolerance then fits p and v
        tolerance = _BEFORE_LAST if len(first) <= DENSE else _END
        end = convex_minimum(objective.at, first / objective.unit, refuge=refuge, tolerance=tolerance)
        theta = end * objective.unit
        if not np.all(np.isfinite(theta)):
            raise DataError("aar: the fit does not end in finite values; use another map")
        return cls(theta[:3], theta[3:], space)
