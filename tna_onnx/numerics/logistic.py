"""Logistic regression of the second of two classes on a few features of the logits, with a ridge that vanishes with N.

    z = w_0 + f w        loss = mean_i ( log(1 + exp z_i) - y_i z_i ) + (0.05 / N) |standardised w|^2

f is (N, k) with k of one or two, so the Hessian is a small matrix: with g = (1, f) the gradient and the Hessian are
sums over samples of (p - y) g and p (1 - p) g g', p = 1 / (1 + exp -z), one pass a step. In the ridge, f has mean 0 and
variance 1, so that neither the zero nor the unit of f matters. Newton steps with halving, from w = 0, in float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.ops import Blocked, to_host

__all__ = ["RIDGE", "LogisticFit", "fit_logistic"]

FloatArray = NDArray[np.float64]

RIDGE = 0.05
"""N times the ridge: a normal prior with a standard deviation of 3.2. It moves the slope of 100 ordinary samples by a
per cent, and where a threshold separates the classes it keeps probabilities about 1 / N away from 0 and 1."""

# Newton's steps square the error: after a gain of this share of the loss, what is left is rounding.
_TOLERANCE = 1e-14

_MAX_ITERATIONS = 100


@dataclass(frozen=True, eq=False)
class LogisticFit:
    """Where a regression ended: z = intercept + f weights.

    Attributes:
        intercept: w_0.
        weights: (k,).
        loss: at the minimum, the ridge included.
    """

    intercept: float
    weights: FloatArray
    loss: float


@dataclass(frozen=True, eq=False)
class _Columns:
    """g = (1, standardised f) of logits; it can be pickled where `features` can."""

    features: Callable[[Any], Any]
    mean: FloatArray
    scale: FloatArray

    def __call__(self, logits: Any) -> Any:
        f = self.features(logits)
        xp = array_api_compat.array_namespace(f)
        device = array_api_compat.device(f)
        f = (f - xp.asarray(self.mean, device=device)) / xp.asarray(self.scale, device=device)
        return xp.concat([xp.ones_like(f[:, :1]), f], axis=1)


def fit_logistic(reduce: Callable[..., Any], features: Callable[[Any], Any]) -> LogisticFit:
    """Fit w.

    Args:
        reduce: runs over chunks of (logits, labels), logits (B, 2).
        features: logits -> f, (B, k) float64; a function that can be pickled. A column without variation gets 0.
    """
    count, *sums = reduce(Blocked(functools.partial(_moments, features)))
    total, square = np.split(np.array(sums), 2)
    mean = total / count
    spread = np.sqrt(np.maximum(square / count - mean * mean, 0))
    # below this share of the mean, a spread is the rounding of two equal numbers
    scale = np.where(spread > 1e-7 * np.abs(mean), spread, np.inf)
    columns = _Columns(features, mean, scale)
    w = np.zeros(1 + len(mean))
    value, gradient, hessian = _loss(reduce, columns, w)
    for _ in range(_MAX_ITERATIONS):
        step = -np.linalg.solve(hessian, gradient)
        size = 1.0
        following = _loss(reduce, columns, w + step)
        # where probabilities are saturated there is next to no curvature, and steps are far too long
        while not following[0] <= value + 1e-4 * size * float(gradient @ step) and size > 1e-6:
            size /= 2
            following = _loss(reduce, columns, w + size * step)
        gain = value - following[0]
        if gain > 0:
            w = w + size * step
            value, gradient, hessian = following
        if gain <= _TOLERANCE * value:
            break
    weights = w[1:] / scale
    return LogisticFit(float(w[0] - weights @ mean), weights, value)


def _moments(features: Callable[[Any], Any], logits: Any, *_: Any) -> FloatArray:
    """Sums over samples of (1, f, f^2)."""
    f = features(logits)
    xp = array_api_compat.array_namespace(f)
    return np.concatenate([[len(f)], to_host(xp.sum(f, axis=0)), to_host(xp.sum(f * f, axis=0))])


def _loss(reduce: Callable[..., Any], columns: _Columns, w: FloatArray) -> tuple[float, FloatArray, FloatArray]:
    """Return the value, the gradient and the Hessian of the loss."""
    k = len(w)
    sums = reduce(Blocked(functools.partial(_sums, columns, w)))
    n = float(sums[0])
    strength = RIDGE / n
    gradient = sums[2 : 2 + k] / n + 2 * strength * w
    hessian = sums[2 + k :].reshape(k, k) / n + 2 * strength * np.eye(k)
    return float(sums[1]) / n + strength * float(w @ w), gradient, hessian


def _sums(columns: _Columns, w: FloatArray, logits: Any, labels: NDArray[np.int64], *_: Any) -> FloatArray:
    """Sums over samples of (1, NLL, its gradient, its Hessian)."""
    g = columns(logits)
    xp = array_api_compat.array_namespace(g)
    device = array_api_compat.device(g)
    # the sign makes the two labels one case: -log p(y) = log(1 + exp -own)
    sign = xp.asarray(2.0 * np.asarray(labels) - 1, device=device)
    own = sign * (g @ xp.asarray(w, device=device))
    small = xp.exp(-xp.abs(own))
    nll = xp.log1p(small) + xp.clip(-own, 0, None)
    # 1 - p(y), without cancellation on either side
    wrong = xp.where(own > 0, small, xp.ones_like(small)) / (1 + small)
    spread = small / (1 + small) ** 2
    gradient = -((sign * wrong) @ g)
    hessian = (g * spread[:, None]).T @ g
    host = [np.ravel(to_host(part)) for part in (gradient, hessian)]
    return np.concatenate([[len(labels), float(xp.sum(nll))], *host])
