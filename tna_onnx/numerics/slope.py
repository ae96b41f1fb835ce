"""Slope and intercept of calibration, as clinical studies report them.

With p the stated probability of an event and y whether it came, the log odds are fitted as

    slope      logit P(y = 1) = a + b logit p     b < 1: probabilities are too extreme; b > 1: too timid
    intercept  logit P(y = 1) = a + logit p       a < 0: probabilities are too high on average; a > 0: too low

by maximum likelihood. The event is the second class where there are two, else that the predicted class is right.
Standard errors are those of the sandwich estimator, of sums over clusters where samples come in some.

Source: D. Cox, Two further applications of a model for binary regression, Biometrika 45 (1958); B. Van Calster et al.,
Calibration: the Achilles heel of predictive analytics, BMC Medicine 17 (2019).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.residuals import cluster_sums
from tna_onnx.numerics.scores import SampleScores

FloatArray = NDArray[np.float64]

_CERTAIN = 2.0**-24  # float32 tells no smaller doubt
_STEPS = 50
_CONVERGED = 1e-10
_SEPARATED = 50.0  # beyond, the likelihood has no maximum: all events are certain


def event_of(scores: SampleScores, classes: int) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return the stated probability of an event and whether it came, both (N,); of several labels, (N C,).

    `scores`: of N samples, with their labels where there are two classes.
    """
    scores = scores.pooled()
    p = scores.confidence.astype(np.float64)
    if classes != 2 or scores.labels is None:
        return p, scores.hit
    second = (scores.labels == 1) == scores.hit
    return np.where(second, p, 1 - p), scores.labels == 1


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
    line = _fit(np.stack([np.ones_like(odds), odds], axis=1), np.zeros_like(odds), event, z, clusters, counted)
    level = _fit(np.ones((len(odds), 1)), odds, event, z, clusters, counted)
    return {"slope": None if line is None else line[1], "intercept": None if level is None else level[0]}


def _fit(
    columns: FloatArray,
    offset: FloatArray,
    event: NDArray[np.bool_],
    z: float,
    clusters: NDArray[np.int64] | None,
    weights: FloatArray,
) -> list[tuple[float, float, float]] | None:
    """Fit logit P(event) = columns @ w + offset by Newton's method; return (w, low, high) of each coefficient."""
    w = np.zeros(columns.shape[1])
    loss = _loss(columns @ w + offset, event, weights)
    for _ in range(_STEPS):
        q = 1 / (1 + np.exp(-np.clip(columns @ w + offset, -500, 500)))
        gradients = columns * (weights * (event - q))[:, None]
        hessian = (columns * (weights * q * (1 - q))[:, None]).T @ columns
        if np.linalg.cond(hessian) > 1 / np.finfo(float).eps:
            return None
        step = np.linalg.solve(hessian, gradients.sum(axis=0))
        if np.max(np.abs(step)) < _CONVERGED:
            break
        # far from the maximum a whole step may lead too far
        while (new := _loss(columns @ (w + step) + offset, event, weights)) > loss and np.max(
            np.abs(step)
        ) > _CONVERGED:
            step = step / 2
        w, loss = w + step, new
        if np.max(np.abs(w)) > _SEPARATED:
            return None
    else:
        return None
    sums = gradients if clusters is None else cluster_sums(gradients, clusters)
    count = len(sums)
    if count < 2:
        return None
    inverse = np.linalg.inv(hessian)
    covariance = count / (count - 1) * inverse @ (sums.T @ sums) @ inverse
    reach = [z * math.sqrt(value) for value in np.diag(covariance)]
    return [(float(value), float(value - far), float(value + far)) for value, far in zip(w, reach, strict=True)]


def _loss(odds: FloatArray, event: NDArray[np.bool_], weights: FloatArray) -> float:
    """Return the negative log-likelihood of events with these log odds."""
    return float(weights @ np.logaddexp(0, np.where(event, -odds, odds)))
