"""Small optimisation problems that calibration maps reduce to, with how they ended.

- `increasing_root`: the root of an increasing function of a positive scale, by Halley steps in log scale kept inside a
  bracket (Press et al., *Numerical Recipes*, section 9.4: rtsafe, and equation 9.4.6). Where functions are sums over
  all data, the second derivative is nearly free and the error is cubed with each pass, not squared.
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

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Root:
    """Where a root search ended: `converged`, at the `lower`/`upper` end of the range, or out of iterations."""

    value: float
    iterations: int
    status: Literal["converged", "lower", "upper", "stopped"]


def increasing_root(
    function: Callable[[float], tuple[float, float, float]],
    low: float,
    high: float,
    *,
    start: float = 1.0,
    tolerance: float = 1e-10,
    max_iterations: int = 100,
) -> Root:
    """Find x in [low, high] where an increasing function changes sign.

    Args:
        function: x -> (f(x), f'(x), f''(x)) for x > 0; f does not decrease.
        low: lower end of the range, positive.
        high: upper end of the range.
        start: first x tried; a warm start saves steps.
        tolerance: relative error of x.
        max_iterations: evaluations of f at most.

    Raises:
        ValueError: the range is empty or not positive, or f is not finite.

    >>> round(increasing_root(lambda x: (x - 3.0, 1.0, 0.0), 1e-3, 1e3).value, 9)
    3.0
    """
    if not 0 < low < high:
        raise ValueError(f"expected 0 < low < high, got {low} and {high}")
    left = math.log(low)
    right = math.log(high)
    # a warm start can lie outside of the range
    u = min(max(math.log(start), left), right)
    # no step yet: the first one may be as long as the bracket
    last = before_last = right - left
    halley = 0.0  # length of the last step, if it was Halley's
    for iteration in range(1, max_iterations + 1):
        x = math.exp(u)
        value, slope, bend = function(x)
        if not (math.isfinite(value) and math.isfinite(slope) and math.isfinite(bend)):
            raise ValueError(f"function is not finite at {x}: value {value}, slope {slope}, second derivative {bend}")
        if value == 0:
            return Root(x, iteration, "converged")
        if value < 0:
            left = u
        else:
            right = u
        # derivatives with respect to u = log x, by the chain rule
        step = _halley(value, x * slope, x * slope + x * x * bend)
        following = u + step
        if abs(step) > tolerance and not (left < following < right and 2 * abs(step) <= before_last):
            # the step leaves the bracket or creeps: halve the bracket (not for a last step, within rounding of its end)
            following = (left + right) / 2
            halley = 0.0
            ended = False
        else:
            ended = _left_over(abs(step), halley, tolerance) <= tolerance
            halley = abs(step)
        before_last = last
        last = abs(following - u)
        if ended or last <= tolerance:
            return Root(math.exp(following), iteration, _end(following, low, high))
        u = following
    return Root(math.exp(u), max_iterations, "stopped")


def _halley(value: float, slope: float, bend: float) -> float:
    """Halley's step to the root; at most twice Newton's."""
    if not slope > 0:
        return math.inf
    newton = -value / slope
    if not (math.isfinite(newton) and math.isfinite(newton * bend)):  # a slope about to underflow
        return math.inf
    return newton / max(1 + newton * bend / slope / 2, 0.5)


def _left_over(step: float, before: float, tolerance: float) -> float:
    """Error that a step leaves, from the lengths of two successive Halley steps (0: there was none before).

    A step e leaves K e^3, which is the length of the next one: K = step / before^3, and not below 1, the natural scale
    of a logarithm. A step below tolerance^(2/3) leaves tolerance^2 K: it is the last for any K.
    """
    if step <= tolerance ** (2 / 3):
        return 0.0
    if not before > 0:
        return math.inf
    return max(step / before**3, 1.0) * step**3


def _end(u: float, low: float, high: float) -> Literal["converged", "lower", "upper"]:
    # far above the tolerance of a step: a search that ran into an end stops this near to it
    if u - math.log(low) < 1e-6:
        return "lower"
    if math.log(high) - u < 1e-6:
        return "upper"
    return "converged"


def simplex_weights(gram: FloatArray, target: FloatArray) -> FloatArray:
    """Minimise w'Gw - 2 t'w over weights w >= 0 that sum to one.

    Args:
        gram: (k, k) symmetric positive semidefinite, k small (2^k - 1 linear systems are solved).
        target: (k,).

    Returns:
        (k,) weights; of equal minima the one with the fewest non-zero weights.

    >>> simplex_weights(np.eye(2), np.array([0.9, 0.1])).round(6).tolist()
    [0.9, 0.1]
    """
    k = len(target)
    best = math.inf
    weights = np.full(k, 1 / k)
    # of equal minima, the first: supports come in ascending size
    slack = 1e-13 * float(np.abs(gram).max())
    for size in range(1, k + 1):
        for support in map(list, itertools.combinations(range(k), size)):
            system = np.ones((size + 1, size + 1))
            # KKT conditions: [G 1; 1' 0] [w; lambda] = [t; 1]
            system[:size, :size] = gram[np.ix_(support, support)]
            system[size, size] = 0.0
            # least squares: equal distributions make the system singular
            solution = np.linalg.lstsq(system, np.append(target[support], 1.0), rcond=None)[0][:size]
            # outside of the simplex: the minimum has another support. Less than this is rounding
            if solution.min() < -1e-12:
                continue
            w = np.zeros(k)
            w[support] = np.maximum(solution, 0.0) / np.maximum(solution, 0.0).sum()
            value = float(w @ gram @ w - 2 * target @ w)
            if value < best - slack:
                best = value
                weights = w
    return weights


def mixture_weights(likelihoods: FloatArray, *, max_iterations: int = 50) -> FloatArray:
    """Maximise sum_i log(likelihoods_i . w) over the probability simplex, by sequential quadratic programming.

    Args:
        likelihoods: (N, k) non-negative, a positive one in every row; k small.
        max_iterations: steps at most; the last one gains less than 1e-14 a sample.

    Returns:
        (k,) weights. Source: Kim, Carbonetto, Stephens & Anitescu (2020), "A fast algorithm for maximum likelihood
        estimation of mixture proportions using sequential quadratic programming".

    >>> mixture_weights(np.array([[0.9, 0.1], [0.2, 0.1]])).round(6).tolist()
    [1.0, 0.0]
    """
    n, k = likelihoods.shape
    # inside: every row has a positive likelihood there
    weights = np.full(k, 1 / k)
    mixed = likelihoods @ weights
    for _ in range(max_iterations):
        ratios = likelihoods / mixed[:, None]
        slope = ratios.mean(axis=0)
        gram = ratios.T @ ratios / n
        # the minimum of the quadratic model, (v - w)' G (v - w) / 2 - slope' (v - w)
        direction = simplex_weights(gram, gram @ weights + slope) - weights
        gain = float(slope @ direction)
        if gain <= 1e-14:
            break
        size = 1.0
        while size > 1e-9:
            following = mixed + size * (likelihoods @ direction)
            # at the border a likelihood may vanish: half as far then
            if following.min() > 0 and np.mean(np.log(following / mixed)) >= 1e-4 * size * gain:
                break
            size /= 2
        weights = weights + size * direction
        mixed = likelihoods @ weights
    result: FloatArray = np.maximum(weights, 0) / np.maximum(weights, 0).sum()
    return result
