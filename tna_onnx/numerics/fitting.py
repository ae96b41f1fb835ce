"""Small optimisation problems that calibration maps reduce to, with how they ended.

- `increasing_root`: the root of an increasing function of a positive scale, by Newton steps in log scale kept inside a
  bracket (Press et al., *Numerical Recipes*, section 9.4: rtsafe).
- `simplex_weights`: min_w w'Gw - 2 t'w over the probability simplex. The minimum over k weights is the
  best of the equality-constrained minima over the 2^k - 1 supports, each a linear system (KKT conditions).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["Root", "increasing_root", "mixture_weights", "simplex_weights"]


@dataclass(frozen=True)
class Root:
    """Where a root search ended: `converged`, at the `lower`/`upper` end of the range, or out of iterations."""

    value: float
    iterations: int
    status: Literal["converged", "lower", "upper", "stopped"]


def increasing_root(
    function: Callable[[float], tuple[float, float]],
    low: float,
    high: float,
    *,
    start: float = 1.0,
    tolerance: float = 1e-10,
    max_iterations: int = 100,
) -> Root:
    """Find x in [low, high] where an increasing function changes sign.

    Args:
        function: x -> (f(x), f'(x)) for x > 0; f does not decrease.
        low: lower end of the range, positive.
        high: upper end of the range.
        start: first x tried; a warm start saves steps.
        tolerance: relative size of the last step.
        max_iterations: evaluations of f at most.

    Raises:
        ValueError: the range is empty or not positive, or f is not finite.

    >>> round(increasing_root(lambda x: (x - 3.0, 1.0), 1e-3, 1e3).value, 9)
    3.0
    """
    if not 0 < low < high:
        raise ValueError(f"expected 0 < low < high, got {low} and {high}")
    left, right = math.log(low), math.log(high)
    u = min(max(math.log(start), left), right)
    last = before_last = right - left
    for iteration in range(1, max_iterations + 1):
        x = math.exp(u)
        value, slope = function(x)
        if not (math.isfinite(value) and math.isfinite(slope)):
            raise ValueError(f"function is not finite at {x}: value {value}, slope {slope}")
        if value == 0:
            return Root(x, iteration, "converged")
        left, right = (u, right) if value < 0 else (left, u)
        step = -value / (x * slope) if slope > 0 else math.inf
        following = u + step
        if abs(step) > tolerance and not (left < following < right and 2 * abs(step) <= before_last):
            # Newton leaves the bracket or creeps: halve the bracket (not for a last step, within rounding of its end)
            following = (left + right) / 2
        before_last, last = last, abs(following - u)
        if abs(following - u) <= tolerance:
            return Root(math.exp(following), iteration, _end(following, low, high))
        u = following
    return Root(math.exp(u), max_iterations, "stopped")


def _end(u: float, low: float, high: float) -> Literal["converged", "lower", "upper"]:
    if u - math.log(low) < 1e-6:
        return "lower"
    return "upper" if math.log(high) - u < 1e-6 else "converged"


def simplex_weights(gram: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """Minimise w'Gw - 2 t'w over weights w >= 0 that sum to one.

    Args:
        gram: (k, k) symmetric positive semidefinite, k small (2^k - 1 linear systems are solved).
        target: (k,).

    Returns:
        (k,) weights; of equal minima the one with the fewest non-zero weights.

    >>> simplex_weights(np.eye(2), np.array([0.9, 0.1])).round(6).tolist()
    [0.9, 0.1]
    """
    k, best, weights = len(target), math.inf, np.full(len(target), 1 / len(target))
    slack = 1e-13 * float(np.abs(gram).max())
    for size in range(1, k + 1):
        for support in map(list, itertools.combinations(range(k), size)):
            system = np.ones((size + 1, size + 1))
            system[:size, :size], system[size, size] = gram[np.ix_(support, support)], 0.0
            solution = np.linalg.lstsq(system, np.append(target[support], 1.0), rcond=None)[0][:size]
            if solution.min() < -1e-12:
                continue
            w = np.zeros(k)
            w[support] = np.maximum(solution, 0.0) / np.maximum(solution, 0.0).sum()
            value = float(w @ gram @ w - 2 * target @ w)
            if value < best - slack:
                best, weights = value, w
    return weights


def mixture_weights(likelihoods: NDArray[np.float64], *, max_iterations: int = 10_000) -> NDArray[np.float64]:
    """Maximise sum_i log(likelihoods_i . w) over the probability simplex, by expectation maximisation.

    Args:
        likelihoods: (N, k) non-negative, a positive one in every row.
        max_iterations: steps at most; the last ones change less than 1e-12.

    Returns:
        (k,) weights. Source: Dempster, Laird & Rubin (1977), section 4.3.

    >>> mixture_weights(np.array([[0.9, 0.1], [0.2, 0.1]])).round(6).tolist()
    [1.0, 0.0]
    """
    weights = np.full(likelihoods.shape[1], 1 / likelihoods.shape[1])
    for _ in range(max_iterations):
        following = weights * np.mean(likelihoods / (likelihoods @ weights)[:, None], axis=0)
        if np.max(np.abs(following - weights)) < 1e-12:
            break
        weights = following
    result: NDArray[np.float64] = weights / weights.sum()
    return result
