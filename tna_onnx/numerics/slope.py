"""Slope and intercept of calibration, as clinical studies report them, by maximum likelihood.

    slope      logit P(y = 1) = a + b logit p     b < 1: probabilities are too extreme; b > 1: too timid
    intercept  logit P(y = 1) = a + logit p       a < 0: probabilities are too high on average; a > 0: too low

The event is the positive class of two, else that the predicted class is right. Standard errors are those of the
sandwich estimator over clusters.
Source: Cox, Biometrika 45 (1958); Van Calster et al., BMC Medicine 17 (2019).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.residuals import cluster_sums

FloatArray = NDArray[np.float64]

_CERTAIN = 2.0**-24  # float32 tells no smaller doubt
_STEPS = 50
_TOGETHER = 2**18  # samples whose columns are in memory at once
_CONVERGED = 1e-10
_SEPARATED = 50.0  # beyond, the likelihood has no maximum: all events are certain


def slope_and_intercept(
    p: NDArray[Any],
    event: NDArray[np.bool_],
    z: float,
    clusters: NDArray[np.int64] | None = None,
    weights: NDArray[np.float64] | None = None,
) -> dict[str, tuple[float, float, float] | None]:
    """Return `slope` and `intercept`, each with the ends of its interval; None where there is no maximum.

    `p`: stated probabilities, (N,). `event`: whether it came, (N,). `clusters`: numbers of the groups that samples come
    in, (N,); None where they are independent. `weights`: of the samples, (N,); None where all count the same.

    >>> rng = np.random.default_rng(0)
    >>> p = rng.random(20000)
    >>> found = slope_and_intercept(p, rng.random(20000) < p, 1.96)
    >>> found["slope"][1] < 1 < found["slope"][2], found["intercept"][1] < 0 < found["intercept"][2]
    (True, True)
    """
    p = np.clip(np.asarray(p, np.float64), _CERTAIN, 1 - _CERTAIN)
    odds = np.log(p) - np.log1p(-p)
    counted = np.ones_like(odds) if weights is None else weights
    event = np.asarray(event)
    line, level = (_fit(_Samples(odds, event, counted, with_slope), z, clusters) for with_slope in (True, False))
    return {"slope": None if line is None else line[1], "intercept": None if level is None else level[0]}


@dataclass(frozen=True, eq=False)
class _Samples:
    """Samples of a fit, (N,) each: of log odds w_0 + w_1 odds, or w_0 + odds without a slope."""

    odds: FloatArray
    event: NDArray[np.bool_]
    weights: FloatArray
    with_slope: bool

    def gradients(self, w: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return what each sample adds to the gradient of the log-likelihood, (N, k), and to minus its Hessian."""
        ones = np.ones_like(self.odds)
        columns = np.stack([ones, self.odds], axis=1) if self.with_slope else ones[:, None]
        q = 1 / (1 + np.exp(-np.clip(self._fitted(w), -500, 500)))
        gradients: FloatArray = columns * (self.weights * (self.event - q))[:, None]
        return gradients, (columns * (self.weights * q * (1 - q))[:, None]).T @ columns

    def loss(self, w: FloatArray) -> float:
        """Return the negative log-likelihood of the events."""
        odds = self._fitted(w)
        return float(self.weights @ np.logaddexp(0, np.where(self.event, -odds, odds)))

    def _fitted(self, w: FloatArray) -> FloatArray:
        fitted: FloatArray = w[0] + (w[1] if self.with_slope else 1) * self.odds
        return fitted

    def parts(self) -> Iterator[_Samples]:
        """Yield some samples at a time: all columns of very many in double precision would take gigabytes."""
        for start in range(0, len(self.odds), _TOGETHER):
            rows = slice(start, start + _TOGETHER)
            yield replace(self, odds=self.odds[rows], event=self.event[rows], weights=self.weights[rows])


def _fit(samples: _Samples, z: float, clusters: NDArray[np.int64] | None) -> list[tuple[float, float, float]] | None:
    """Fit by Newton's method; return (w, low, high) of each coefficient."""
    parts = [*samples.parts()]
    w = np.zeros(2 if samples.with_slope else 1)
    loss = sum(part.loss(w) for part in parts)
    for _ in range(_STEPS):
        gradient, hessian, squares = np.zeros(len(w)), np.zeros((len(w), len(w))), np.zeros((len(w), len(w)))
        for part in parts:
            gradients, bend = part.gradients(w)
            gradient += gradients.sum(axis=0)
            hessian += bend
            squares += gradients.T @ gradients
        if np.linalg.cond(hessian) > 1 / np.finfo(float).eps:
            return None
        step = np.linalg.solve(hessian, gradient)
        if np.max(np.abs(step)) < _CONVERGED:
            break
        # far from the maximum a whole step may lead too far
        while (new := sum(part.loss(w + step) for part in parts)) > loss and np.max(np.abs(step)) > _CONVERGED:
            step = step / 2
        w, loss = w + step, new
        if np.max(np.abs(w)) > _SEPARATED:
            return None
    else:
        return None
    count = len(samples.odds)
    if clusters is not None:
        sums = cluster_sums(samples.gradients(w)[0], clusters)
        count, squares = len(sums), sums.T @ sums
    if count < 2:
        return None
    inverse = np.linalg.inv(hessian)
    covariance = count / (count - 1) * inverse @ squares @ inverse
    reach = [z * math.sqrt(value) for value in np.diag(covariance)]
    return [(float(value), float(value - far), float(value + far)) for value, far in zip(w, reach, strict=True)]
