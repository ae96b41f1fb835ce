"""Atypicality-aware recalibration (AAR): the temperature depends on how unusual a sample's features are.

    s' = (p_2 a^2 + p_1 a + p_0) s + v        the result is log softmax(s')

with the atypicality a of `maps.feature_space` and one bias v per class. p and v minimise the mean NLL plus
1e-3 |v|^2 / C, a convex function, by Newton steps from p = (1, 0, 0) and v = 0.
Source: Yuksekgonul et al. (2023), "Beyond Confidence: Reliable Models Should Also Consider Atypicality", section 4.

What the atypicality-aware map minimises: the mean NLL of s' = (p_2 a^2 + p_1 a + p_0) s + v, and 1e-3 |v|^2 / C.

A row of s is taken less its largest, z = s - max s, which changes no probability and keeps the digits of the sums
below. With q = softmax(s'), the gradient consists of sums over samples of q - onehot(y), for v, and of a^k (E_q[z] -
z_y), for p_k. Along a direction (d, w), s' moves by t = c z + w with c = d_2 a^2 + d_1 a + d_0, and the Hessian times
(d, w) consists of sums over samples of

    for v      q (t - E_q[t]) = q w + c q z - q (c E_q[z] + E_q[w])
    for p_k    a^k (c E_q[z^2] + E_q[w z] - (c E_q[z] + E_q[w]) E_q[z])

The pass that finds the gradient keeps max s, log sum exp s', E_q[z] and E_q[z^2], four numbers a sample. A product with
the Hessian then takes one exponential an element, and four products of a matrix and a vector.

The preconditioner is the Hessian without what couples two classes,

    M = [A  B]    A_kl = mean a^(k+l) Var_q[z]    B_kc = mean a^k q_c (z_c - E_q[z])
        [B' D]    D_cc = mean q_c (1 - q_c) + ridge

A and B also come with the gradient; `numerics.multinomial.Arrow` divides by M.

No exponential is taken for less than the root of the smallest normal number (`numerics.scores`).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError
from tna_onnx.maps.base import CalibrationMap, Reduce, without_features
from tna_onnx.maps.feature_space import FeatureSpace
from tna_onnx.numerics.fitting import Curvature, convex_minimum
from tna_onnx.numerics.multinomial import Arrow
from tna_onnx.numerics.ops import ArrayOps, Blocked, Ops, own_column, row_max, row_sum, to_host

FloatArray = NDArray[np.float64]

# Weight of |v|^2 / C in the loss: without it the biases are free to move together.
_RIDGE = 1e-3

# Smallest curvature: far below any that matters. v has 2e-3 / C, p about one where anything is uncertain.
_MIN_CURVATURE = 1e-12

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
        of = Blocked(functools.partial(_loss_sums, theta))
        passed: _Passed = self.reduce(of, self.atypicality)
        means = passed.sums / self.size
        shares, squares, *coupling = means[13:].reshape(5, self.classes)
        gradient = np.r_[means[1:4], shares - self.frequency] + self.ridge * theta
        value = float(means[0] + theta @ (self.ridge * theta) / 2)
        # in float32 the curvature may vanish where the slope does not
        by_class = np.maximum(shares - squares + self.ridge[3:], _MIN_CURVATURE)
        unit = self.unit[0]
        rough = Arrow.of(means[4:13].reshape(3, 3) * unit**2, np.array(coupling) * unit, by_class)
        return value, gradient * self.unit, _Curvature(self, theta, passed.kept, shares, rough)


@dataclass(frozen=True, eq=False)
class _Curvature:
    """The Hessian at theta."""

    loss: AtypicalityLoss  # of which it is the Hessian
    theta: FloatArray  # (3 + C,) p and v
    kept: FloatArray  # (N, 4) max s, the logarithm of sum exp s', E_q[z], E_q[z^2]; s' without p(a) max s
    shares: FloatArray  # (C,) mean of q
    rough: Arrow  # preconditioner

    def times(self, d: FloatArray) -> FloatArray:
        """Return the Hessian times d, (3 + C,)."""
        along = d * self.loss.unit
        of = Blocked(functools.partial(_hessian_sums, self.theta, along))
        means = self.loss.reduce(of, self.loss.atypicality, self.kept) / self.loss.size
        means[3:] += self.shares * along[3:]
        turned: FloatArray = (means + self.loss.ridge * along) * self.loss.unit
        return turned

    def divide(self, r: FloatArray) -> FloatArray:
        """Return M^-1 r, (3 + C,)."""
        return self.rough.divide(r)


@dataclass(frozen=True, eq=False)
class _Passed:
    """What a pass gives: sums over samples are added, what is kept of each sample is joined."""

    sums: FloatArray
    kept: FloatArray

    def __add__(self, addend: _Passed) -> _Passed:
        return _Passed(self.sums + addend.sums, np.concatenate([self.kept, addend.kept]))


def _shape_sums(logits: Any, labels: NDArray[np.int64], *_: Any) -> FloatArray:
    """Sums over samples of (1, mean over classes of (s - mean s)^2, samples of each class)."""
    xp = array_api_compat.array_namespace(logits)
    classes = logits.shape[1]
    centred = logits - row_sum(logits) / classes
    with np.errstate(over="ignore"):
        spread = float(xp.sum(xp.vecdot(centred, centred), dtype=xp.float64)) / classes
    return np.concatenate([[len(labels), spread], np.bincount(labels, minlength=classes)])


def _loss_sums(
    theta: FloatArray, logits: Any, labels: NDArray[np.int64], _features: Any, atypicality: FloatArray
) -> _Passed:
    """Sums over samples of (NLL, d NLL / d p_k, A, q, q^2, B), and what `_Curvature` keeps of each sample."""
    xp = array_api_compat.array_namespace(logits)
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
    weighted = weights * z
    total, first, second = (
        _host(row) for row in (row_sum(weights)[:, 0], xp.vecdot(weights, z), xp.vecdot(weighted, z))
    )
    mean = first / total
    square = second / total
    normaliser = np.log(total) + _host(top)[:, 0]
    nll = normaliser - (factor * label_logits + theta[3:][labels])
    by_power = (mean - label_logits) @ powers
    block = (powers * np.maximum(square - mean**2, 0)[:, None]).T @ powers
    # sums over samples of q, of a^k E_q[z] q, of a^k q z and of q^2
    share = powers / total[:, None]
    of_weights = _over_rows(np.concatenate([share[:, :1], share * mean[:, None]], axis=1), weights)
    squares = _over_rows(share[:, :1] ** 2, weights * weights)
    coupling = _over_rows(share, weighted) - of_weights[1:]
    sums = np.concatenate([[nll.sum()], by_power, block.ravel(), of_weights[0], squares[0], coupling.ravel()])
    kept = np.stack([_host(largest)[:, 0], normaliser, mean, square], axis=1)
    return _Passed(sums, kept)


def _hessian_sums(
    theta: FloatArray,
    d: FloatArray,
    logits: Any,
    _labels: Any,
    _features: Any,
    atypicality: FloatArray,
    kept: FloatArray,
) -> FloatArray:
    """Sums over samples of the Hessian of the NLL in (p, v) at theta, times d; without sum q w, which is known."""
    op = ArrayOps(logits)
    powers = _powers(atypicality)
    largest, normaliser, mean, square = kept.T
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
    xp = array_api_compat.array_namespace(scores)
    return xp.exp(xp.clip(scores, low, 0.0))


def _bounded(z: Any) -> Any:
    """Return z where it weighs anything: a class that is masked by -1e9 would with the least exponential."""
    xp = array_api_compat.array_namespace(z)
    if not z.shape[0] or float(xp.min(z)) >= _LEAST:
        return z
    return xp.clip(z, _LEAST, 0.0)


def _over_rows(rows: FloatArray, values: Any) -> FloatArray:
    """Return rows.T @ values, (k, C), of (B, k) factors and (B, C) values."""
    xp = array_api_compat.array_namespace(values)
    dtype = values.dtype if len(rows) <= _RUN else xp.float64
    factors = xp.asarray(np.ascontiguousarray(rows.T), dtype=dtype, device=array_api_compat.device(values))
    return _host(factors @ xp.astype(values, dtype, copy=False))


def _host(array: Any) -> FloatArray:
    return np.asarray(to_host(array), np.float64)


@dataclass(frozen=True, eq=False)
class AtypicalityAware(CalibrationMap):
    """Logits times a polynomial of the atypicality, plus a bias per class."""

    polynomial: FloatArray  # (p_0, p_1, p_2)
    bias: FloatArray  # (C,) v
    space: FeatureSpace  # where atypicality is measured

    name: ClassVar[str] = "aar"
    title: ClassVar[str] = "temperature by how unusual a sample is"
    rank: ClassVar[int] = 130
    needs_features: ClassVar[bool] = True

    @property
    def brief(self) -> dict[str, Any]:
        """The polynomial (p_0, p_1, p_2), the bias, and the shrinkage of the covariance."""
        return {"polynomial": self.polynomial.tolist(), "bias": self.bias.tolist(), "shrinkage": self.space.shrinkage}

    def forward(self, op: Ops, logits: Any, features: Any = None) -> Any:
        """Return log softmax(s'), cut at the smallest normal number of the dtype."""
        a = self.space.atypicality(op, features)
        p0, p1, p2 = (op.const(float(p)) for p in self.polynomial)
        factor = op.add(op.mul(op.add(op.mul(a, p2), p1), a), p0)  # Horner
        p = op.softmax(op.add(op.mul(logits, factor), op.const(self.bias)))
        # law 1: logits again. A probability that underflowed keeps a finite logarithm
        return op.log(op.clip(p, op.tiny, 1.0))

    @classmethod
    def fit(cls, reduce: Reduce, *, start: AtypicalityAware | None = None) -> AtypicalityAware:
        """Fit the feature space, in which the atypicality of each sample is measured without itself, then p and v."""
        space = start.space if start else FeatureSpace.fit(reduce)
        assert space.measured is not None  # noqa: S101 - it was fitted to these samples
        objective = AtypicalityLoss.of(without_features(reduce), space.measured)
        first = np.r_[start.polynomial, start.bias] if start else objective.plain
        # the same for all samples: saturated probabilities hide where the loss falls
        refuge = objective.constant / objective.unit
        # steps in x = theta / unit: one tolerance then fits p and v
        theta = convex_minimum(objective.at, first / objective.unit, refuge=refuge) * objective.unit
        if not np.all(np.isfinite(theta)):
            raise DataError("aar: the fit does not end in finite values; use another map")
        return cls(theta[:3], theta[3:], space)
