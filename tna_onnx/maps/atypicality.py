"""Atypicality-aware recalibration (AAR): the temperature depends on how unusual a sample's features are.

    s' = (p_2 a^2 + p_1 a + p_0) s + v        the result is log softmax(s')

with the atypicality a of `maps.feature_space` and one bias v per class. p and v minimise the mean NLL plus
1e-3 |v|^2 / C, a convex function, by Newton steps from p = (1, 0, 0) and v = 0. With q = softmax(s') and a direction
(d, w), t = (d_2 a^2 + d_1 a + d_0) s + w is how s' moves, and the Hessian turns it into sums over samples of
r = q (t - E_q[t]), for v, and of a^k (r . s), for p_k.
Source: Yuksekgonul et al. (2023), "Beyond Confidence: Reliable Models Should Also Consider Atypicality", section 4.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError
from tna_onnx.maps.base import Reduce, without_features
from tna_onnx.maps.feature_space import FeatureSpace
from tna_onnx.numerics.fitting import convex_minimum
from tna_onnx.numerics.ops import ArrayOps, Blocked, Ops, own_column, row_max, row_sum, to_host

__all__ = ["AtypicalityAware"]

FloatArray = NDArray[np.float64]

# Weight of |v|^2 / C in the loss: without it the biases are free to move together.
_RIDGE = 1e-3

# Smallest curvature: far below any that matters. v has 2e-3 / C, p about one where anything is uncertain.
_MIN_CURVATURE = 1e-12


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
    # each class has a bias of its own
    keeps_order: ClassVar[bool] = False
    foldable: ClassVar[bool] = False
    needs_features: ClassVar[bool] = True
    binary: ClassVar[bool] = False
    options: ClassVar[Mapping[str, tuple[str, ...]]] = {"space": ()}

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
        # law 1: logits again. A probability that underflowed keeps a finite logarithm
        return op.log(op.clip(p, op.tiny, 1.0))

    def folded(self) -> None:
        """Return None: every sample has a factor of its own."""

    @classmethod
    def fit(
        cls, reduce: Reduce, *, start: AtypicalityAware | None = None, space: FeatureSpace | None = None
    ) -> AtypicalityAware:
        """Fit the feature space, then p and v.

        Args:
            reduce: runs over chunks of (logits, labels, features).
            start: a map fitted on the same features; its space is taken over, its p and v are where the steps start.
            space: `FeatureSpace.of_training` of other samples' features, standardised here; without it, the space is
                fitted on these samples, and the atypicality of each is measured without itself.

        Raises:
            DataError: the features do not vary within the classes, or the fit does not end in finite values.
        """
        if start:
            space = start.space
        elif space:
            space = space.standardised(space.atypicalities(reduce))
        else:
            space = FeatureSpace.fit(reduce)
        atypicality = space.measured
        if atypicality is None:
            atypicality = space.atypicalities(reduce)
        objective = _Objective.of(without_features(reduce), atypicality)
        first = np.r_[start.polynomial, start.bias] if start else objective.plain
        # steps in x = theta / unit: one tolerance then fits p and v
        theta = convex_minimum(objective.loss, objective.product, first / objective.unit) * objective.unit
        if not np.all(np.isfinite(theta)):
            raise DataError("aar: the fit does not end in finite values; use another map")
        return cls(theta[:3], theta[3:], space)


@dataclass(frozen=True, eq=False)
class _Objective:
    """The mean NLL and the ridge, as a function of x = (p, v) / unit.

    Attributes:
        reduce: runs over chunks of (logits, labels, features).
        atypicality: (N,).
        size: number of samples.
        classes: number of classes C.
        unit: (3 + C,) one unit of p moves the loss as much as one unit of v.
        ridge: (3 + C,) diagonal of the ridge's Hessian.
    """

    reduce: Reduce
    atypicality: FloatArray
    size: float
    classes: int
    unit: FloatArray
    ridge: FloatArray

    @classmethod
    def of(cls, reduce: Reduce, atypicality: FloatArray) -> _Objective:
        size, total, spread = reduce(Blocked(_shape_sums)).tolist()
        classes = round(total / size)
        # 1e-12: logits that are all equal have no spread
        unit = np.r_[np.full(3, 1 / max(np.sqrt(spread / size), 1e-12)), np.ones(classes)]
        ridge = np.r_[np.zeros(3), np.full(classes, 2 * _RIDGE / classes)]
        return cls(reduce, atypicality, size, classes, unit, ridge)

    @property
    def plain(self) -> FloatArray:
        """(3 + C,) p and v that leave the logits as they are."""
        theta: FloatArray = np.r_[1.0, np.zeros(2 + self.classes)]
        return theta

    def loss(self, x: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        """Return the value, the gradient and the diagonal of the Hessian."""
        theta = x * self.unit
        sums = self.reduce(Blocked(functools.partial(_loss_sums, theta)), self.atypicality) / self.size
        nll, gradient, diagonal = np.split(sums, [1, 4 + self.classes])
        # in float32 the curvature may vanish where the slope does not
        diagonal = np.maximum((diagonal + self.ridge) * self.unit**2, _MIN_CURVATURE)
        value = float(nll[0] + theta @ (self.ridge * theta) / 2)
        return value, (gradient + self.ridge * theta) * self.unit, diagonal

    def product(self, x: FloatArray, d: FloatArray) -> FloatArray:
        """Return the Hessian at x times d."""
        of = Blocked(functools.partial(_hessian_sums, x * self.unit, d * self.unit))
        sums = self.reduce(of, self.atypicality) / self.size
        turned: FloatArray = (sums + self.ridge * d * self.unit) * self.unit
        return turned


def _shape_sums(logits: Any, *_: Any) -> FloatArray:
    """Sums over samples of (1, C, mean over classes of (s - mean s)^2)."""
    xp = array_api_compat.array_namespace(logits)
    centred = logits - row_sum(logits) / logits.shape[1]
    n, classes = logits.shape
    return np.array([n, n * classes, float(xp.sum(centred * centred, dtype=xp.float64)) / classes])


def _loss_sums(
    theta: FloatArray, logits: Any, labels: NDArray[np.int64], _features: Any, atypicality: FloatArray
) -> FloatArray:
    """Sums over samples of (NLL, d NLL / d p_0..2, d NLL / d v, and the second derivatives of each of these)."""
    xp = array_api_compat.array_namespace(logits)
    op = ArrayOps(logits)
    powers = _powers(op, atypicality)
    scores = _scores(op, theta, logits, powers)
    top = row_max(scores)
    q = xp.exp(scores - top)
    total = row_sum(q, double=True)
    nll = xp.log(total) + top - own_column(scores, labels)
    q = q / xp.astype(total, q.dtype)
    weighted = q * logits
    mean = row_sum(weighted)
    spread = xp.vecdot(weighted, logits)[:, None] - mean * mean
    inner = mean - own_column(logits, labels)  # d NLL / d scores = q - onehot
    by_power = [[float(xp.sum(x, dtype=xp.float64)) for x in (inner * p, spread * p * p)] for p in powers]
    slopes, bends = zip(*by_power, strict=True)
    # d NLL / d v_c: the sum of q_c less the number of samples of class c
    hits = np.bincount(labels, minlength=logits.shape[1])
    by_class = _host(xp.sum(q, axis=0, dtype=xp.float64))
    squares = _host(xp.sum(q * q, axis=0, dtype=xp.float64))
    return np.concatenate([[float(xp.sum(nll))], slopes, by_class - hits, bends, by_class - squares])


def _hessian_sums(
    theta: FloatArray, d: FloatArray, logits: Any, _labels: Any, _features: Any, atypicality: FloatArray
) -> FloatArray:
    """Sums over samples of the Hessian of the NLL in (p, v) at theta, times d.

    With t = c s + w: E_q[t] = c E_q[s] + E_q[w], and r = q (t - E_q[t]) is never written down.
    """
    xp = array_api_compat.array_namespace(logits)
    op = ArrayOps(logits)
    powers = _powers(op, atypicality)
    q = op.softmax(_scores(op, theta, logits, powers))
    weighted = q * logits
    c = _factor(d, powers)[:, 0]
    w = op.const(d[3:])
    mean = row_sum(weighted)[:, 0]
    moved = c * mean + q @ w
    inner = c * xp.vecdot(weighted, logits) + weighted @ w - moved * mean  # r . s
    by_power = [float(xp.sum(inner * p[:, 0], dtype=xp.float64)) for p in powers]
    return np.concatenate([by_power, _host(c @ weighted - moved @ q + xp.sum(q, axis=0) * w)])


def _powers(op: ArrayOps, atypicality: FloatArray) -> list[Any]:
    """Return (1, a, a^2), (N, 1) each, in the dtype of the logits."""
    return [op.const(atypicality[:, None] ** k) for k in range(3)]


def _factor(theta: FloatArray, powers: list[Any]) -> Any:
    """Return p_0 + p_1 a + p_2 a^2, (N, 1)."""
    return sum(float(p) * power for p, power in zip(theta, powers, strict=False))


def _scores(op: ArrayOps, theta: FloatArray, logits: Any, powers: list[Any]) -> Any:
    return logits * _factor(theta, powers) + op.const(theta[3:])


def _host(array: Any) -> FloatArray:
    return np.asarray(to_host(array), np.float64)
