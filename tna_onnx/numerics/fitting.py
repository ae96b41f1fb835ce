"""The small optimisation problems of calibration maps. Each returns its solution and how the search ended.

- `increasing_root`: the root of an increasing function of a positive scale, by Halley steps in log scale inside a
  bracket (*Numerical Recipes*, section 9.4).
- `simplex_weights`: min_w w'Gw - 2 t'w over the probability simplex, the best of the 2^k - 1 supports.
- `fit_logistic`: mean_i ( log(1 + exp z_i) - y_i z_i ) + (0.05 / N) |standardised w|^2 with z = w_0 + f w, f (N, 1 or
  2).
- `convex_minimum`: Newton steps, solved by conjugate gradients (Nocedal & Wright, *Numerical Optimization*, algorithm
  7.1). A `Curvature` has products with the Hessian, and as much of its inverse as is cheap.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.ops import by_column

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Root:
    """Where a root search ended: `converged`, or at the `lower`/`upper` end of the range."""

    value: float
    status: Literal["converged", "lower", "upper"]


def increasing_root(
    function: Callable[[float], tuple[float, float, float]],
    low: float,
    high: float,
    *,
    start: float = 1.0,
    tolerance: float = 1e-10,
) -> Root:
    """Find x in [low, high] where an increasing function changes sign.

    `function`: x -> (f(x), f'(x), f''(x)) for x > 0; f does not decrease. `start`: first x tried; a warm start saves
    steps.

    >>> round(increasing_root(lambda x: (x - 3.0, 1.0, 0.0), 1e-3, 1e3).value, 9)
    3.0
    """
    if not 0 < low < high:
        raise ValueError(f"expected 0 < low < high, got {low} and {high}")
    lower = math.log(low)
    right = math.log(high)
    # a warm start can lie outside of the range
    following = min(max(math.log(start), lower), right)
    # no step yet: the first one may be as long as the bracket
    last = before_last = right - lower
    halley = 0.0  # length of the last step, if it was Halley's
    for _ in range(100):  # at most 2 log2(log(high / low) / tolerance) are needed
        u = following
        x = math.exp(u)
        value, slope, bend = function(x)
        if not (math.isfinite(value) and math.isfinite(slope) and math.isfinite(bend)):
            raise ValueError(f"function is not finite at {x}: value {value}, slope {slope}, second derivative {bend}")
        if value == 0:
            return Root(x, "converged")
        if value < 0:
            lower = u
        else:
            right = u
        # derivatives with respect to u = log x, by the chain rule
        step = _halley(value, x * slope, x * slope + x * x * bend)
        following = u + step
        if abs(step) > tolerance and not (lower < following < right and 2 * abs(step) <= before_last):
            # the step leaves the bracket or creeps: halve the bracket (not for a last step, within rounding of its end)
            following = (lower + right) / 2
            halley = 0.0
            ended = False
        else:
            ended = _left_over(abs(step), halley, tolerance) <= tolerance
            halley = abs(step)
        before_last = last
        last = abs(following - u)
        if ended or last <= tolerance:
            break
    return Root(math.exp(following), _end(following, low, high))


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

    Gives (k,) weights; of equal minima the one with the fewest non-zero weights. `gram`: (k, k) symmetric positive
    semidefinite, k small (2^k - 1 linear systems are solved).

    >>> simplex_weights(np.eye(2), np.array([0.9, 0.1])).round(6).tolist()
    [0.9, 0.1]
    """
    k = len(target)
    best = math.inf
    weights = [1 / k] * k
    # of equal minima, the first: supports come in ascending size
    slack = 1e-13 * float(np.abs(gram).max())
    g, t = gram.tolist(), target.tolist()
    for size in range(1, k + 1):
        for support in itertools.combinations(range(k), size):
            solution = _on_support(g, t, *support)
            # outside of the simplex: the minimum has another support. Less than this is rounding
            if not solution or min(solution) < -1e-12:
                continue
            w = dict(zip(support, (max(value, 0.0) for value in solution), strict=True))
            w = {i: value / sum(w.values()) for i, value in w.items()}
            value = sum(w[i] * (sum(g[i][j] * w[j] for j in w) - 2 * t[i]) for i in w)
            if value < best - slack:
                best = value
                weights = [w.get(i, 0.0) for i in range(k)]
    return np.array(weights)


def _on_support(gram: list[list[float]], target: list[float], first: int, *rest: int) -> list[float]:
    """Return the minimum with sum one of some weights alone; nothing where fewer of them have it, too."""
    # the first weight is what the rest leaves: w = e_1 + sum v_j (e_j - e_1); Gauss elimination gives v
    across = {j: gram[first][j] - gram[first][first] for j in rest}
    rows = []
    for i in rest:
        row = [gram[i][j] - gram[i][first] - across[j] for j in rest]
        rows.append([*row, target[i] - target[first] - across[i]])
    for k, pivot in enumerate(rows):
        if not pivot[k] > 0:
            return []
        for row in rows[k + 1 :]:
            factor = row[k] / pivot[k]
            row[:] = [a - factor * b for a, b in zip(row, pivot, strict=True)]
    v: list[float] = []
    for k, row in reversed([*enumerate(rows)]):
        solved = sum(a * b for a, b in zip(row[k + 1 : -1], v, strict=True))
        v.insert(0, (row[-1] - solved) / row[k])
    return [1 - sum(v), *v]


def mixture_weights(likelihoods: FloatArray, counts: FloatArray | None = None) -> FloatArray:
    """Maximise sum_i log(likelihoods_i . w) over the probability simplex, by sequential quadratic programming.

    Gives (k,) weights. Source: Kim, Carbonetto, Stephens & Anitescu (2020), "A fast algorithm for maximum likelihood
    estimation of mixture proportions using sequential quadratic programming". `likelihoods`: (N, k) non-negative, a
    positive one in every row; k small. `counts`: (N,) how much each row counts; None where all count the same.

    >>> mixture_weights(np.array([[0.9, 0.1], [0.2, 0.1]])).round(6).tolist()
    [1.0, 0.0]
    """
    n, k = likelihoods.shape
    likelihoods = by_column(likelihoods)
    if counts is not None:
        counts = counts * (n / np.sum(counts))
    # inside: every row has a positive likelihood there
    weights = np.full(k, 1 / k)
    mixed = likelihoods @ weights
    for _ in range(50):  # the last step gains less than 1e-14 a sample
        ratios = likelihoods / mixed[:, None]
        slope = ratios.mean(axis=0) if counts is None else counts @ ratios / n
        gram = ratios.T @ (ratios if counts is None else ratios * counts[:, None]) / n
        # the minimum of the quadratic model, (v - w)' G (v - w) / 2 - slope' (v - w)
        direction = simplex_weights(gram, gram @ weights + slope) - weights
        gain = float(slope @ direction)
        if gain <= 1e-14:
            break
        size = 1.0
        while size > 1e-9:
            following = mixed + size * (likelihoods @ direction)
            # at the border a likelihood may vanish: half as far then
            if following.min() > 0:
                gains = np.log(following / mixed)
                if np.mean(gains if counts is None else gains * counts) >= 1e-4 * size * gain:
                    break
            size /= 2
        weights = weights + size * direction
        mixed = likelihoods @ weights
    result: FloatArray = np.maximum(weights, 0) / np.maximum(weights, 0).sum()
    return result


RIDGE = 0.05
"""N times the ridge: a normal prior with a standard deviation of 3.2. It moves the slope of 100 ordinary samples by a
per cent, and where a threshold separates the classes it keeps probabilities about 1 / N away from 0 and 1."""


@dataclass(frozen=True, eq=False)
class LogisticFit:
    """Where a regression ended: z = intercept + f weights."""

    intercept: float  # w_0
    weights: FloatArray  # (k,)
    loss: float  # at the minimum, the ridge included


def fit_logistic(features: FloatArray, labels: NDArray[np.int64], weights: FloatArray | None = None) -> LogisticFit:
    """Fit w to (N, k) features of samples with (N,) labels 0 and 1, and their weights; a constant column gets 0."""
    counts = np.ones(len(labels)) if weights is None else weights
    total = float(np.sum(counts))
    mean = counts @ features / total
    spread = np.sqrt(np.maximum(counts @ features**2 / total - mean * mean, 0))
    # below this share of the mean, a spread is the rounding of two equal numbers
    scale = np.where(spread > 1e-7 * np.abs(mean), spread, np.inf)
    columns = np.column_stack([np.ones(len(labels)), (features - mean) / scale])
    strength = RIDGE / total

    def loss(w: FloatArray) -> tuple[float, FloatArray, MatrixCurvature]:
        value, gradients, hessian = logistic_terms(columns, columns @ w, labels == 1, counts)
        curvature = MatrixCurvature(hessian / total + 2 * strength * np.eye(len(w)))
        return value / total + strength * float(w @ w), gradients.sum(axis=0) / total + 2 * strength * w, curvature

    w = convex_minimum(loss, np.zeros(1 + len(mean)))
    return LogisticFit(float(w[0] - w[1:] / scale @ mean), w[1:] / scale, loss(w)[0])


def logistic_terms(
    columns: FloatArray, odds: FloatArray, event: NDArray[np.bool_], weights: FloatArray
) -> tuple[float, FloatArray, FloatArray]:
    """Return the NLL of events under (N,) log odds, and in the (N, k) columns its gradients, (N, k), and Hessian."""
    # the sign makes the two labels one case: -log p(y) = log(1 + exp -margin)
    sign = np.where(event, 1.0, -1.0)
    margin = sign * odds
    small = np.exp(-np.abs(margin))
    # 1 - p(y), without cancellation on either side
    wrong = np.where(margin > 0, small, 1) / (1 + small)
    value = float(weights @ (np.log1p(small) + np.maximum(-margin, 0)))
    bent = columns * (weights * small / (1 + small) ** 2)[:, None]
    return value, columns * (-weights * sign * wrong)[:, None], bent.T @ columns


# Length of a gradient (`convex_minimum`) from which full steps mostly overshoot, and one that a minimum never has.
_FAR = 1.0
_NEAR = 1e-2


class Curvature(Protocol):
    """The Hessian H of a function at one point."""

    def times(self, d: FloatArray) -> FloatArray:
        """Return H d, (k,)."""

    def divide(self, r: FloatArray) -> FloatArray:
        """Return M^-1 r, (k,), for a symmetric positive definite M near H: the preconditioner, a rough one will do."""


Function: TypeAlias = Callable[[FloatArray], tuple[float, FloatArray, Curvature]]
"""x -> (f(x), gradient, curvature)."""


@dataclass(frozen=True, eq=False)
class DiagonalCurvature:
    """A curvature of which the products and the diagonal are known."""

    product: Callable[[FloatArray], FloatArray]  # d -> H d
    diagonal: FloatArray  # (k,) positive, near the diagonal of H

    def times(self, d: FloatArray) -> FloatArray:
        """Return H d."""
        return self.product(d)

    def divide(self, r: FloatArray) -> FloatArray:
        """Return r over the diagonal."""
        return r / self.diagonal


DENSE = 128
"""Numbers of a fit up to which its Hessian is a matrix, and a step one system; beyond, products cost less."""


@dataclass(frozen=True, eq=False)
class MatrixCurvature:
    """A Hessian of few variables, (k, k), which is its own preconditioner."""

    matrix: FloatArray

    @functools.cached_property
    def _inverse(self) -> FloatArray:
        return np.asarray(np.linalg.inv(self.matrix), np.float64)

    def times(self, d: FloatArray) -> FloatArray:
        """Return H d."""
        return self.matrix @ d

    def divide(self, r: FloatArray) -> FloatArray:
        """Return H^-1 r."""
        return self._inverse @ r


def convex_minimum(
    function: Function, start: FloatArray, *, refuge: FloatArray | None = None, tolerance: float = 1e-7
) -> FloatArray:
    """Minimise a smooth convex function.

    Gives (k,) the minimum, or the last point that could be improved where f is known too roughly to reach the
    tolerance; NaN where f or its gradient are. `refuge`: (k,) a point where f is smooth, to begin at if `start` is too
    far from the minimum for Newton's steps. `tolerance`: length of the gradient in the norm of M^-1 (`Curvature`); its
    square is about twice the excess of f over its minimum.

    >>> plain = DiagonalCurvature(lambda d: d, np.ones(2))
    >>> convex_minimum(lambda x: (x @ x / 2 - x[0], x - [1, 0], plain), np.zeros(2)).tolist()
    [1.0, 0.0]
    """
    first = _Point.of(function, start)
    if refuge is None or first.length <= _FAR:
        return _descent(function, first, tolerance).x
    fallback = _descent(function, _Point.of(function, refuge), tolerance)
    if fallback.length <= _NEAR:
        return fallback.x
    # not even from there: the better end of the two
    minimum = _descent(function, first, tolerance)
    return min((fallback, minimum), key=lambda end: end.value if math.isfinite(end.value) else math.inf).x


@dataclass(frozen=True, eq=False)
class _Point:
    """A point x, and what the function is there; `length` is that of the gradient."""

    x: FloatArray
    value: float
    gradient: FloatArray
    curvature: Curvature
    length: float

    @classmethod
    def of(cls, function: Function, x: FloatArray) -> _Point:
        value, gradient, curvature = function(x)
        # rounding may leave a tiny negative number of a positive definite form
        square = float(gradient @ curvature.divide(gradient))
        return cls(x, value, gradient, curvature, math.nan if math.isnan(square) else math.sqrt(max(square, 0.0)))


def _descent(function: Function, at: _Point, tolerance: float) -> _Point:
    """Take Newton steps from a point; return the last one."""
    for _ in range(100):
        if not at.length > tolerance:
            break
        step = _conjugate_gradients(at.curvature, -at.gradient, _forcing(at.length, tolerance))
        fall = -float(at.gradient @ step)
        size = 1.0
        while size > 1e-18:  # where probabilities are saturated there is no curvature, and steps are far too long
            following = _Point.of(function, at.x + size * step)
            if _goes_down(following.value - at.value, float(following.gradient @ step), fall, size, abs(at.value)):
                break
            size /= 2
        else:  # rounding is all that is left
            break
        slope = float(following.gradient @ step)
        # steps by an expected curvature may be too long again and again: where slopes on a line would be zero, then
        if slope > fall / 4 and at.value - following.value < 1e-3 * abs(at.value):
            nearer = _Point.of(function, at.x + size * fall / (fall + slope) * step)
            following = min(following, nearer, key=lambda point: point.value)
        before = at
        at = following
        gained = before.value - at.value > 1e-6 * abs(before.value)
        if not gained and at.length > before.length / 2:  # the same: near the minimum a Newton step does better
            break
    if at.length <= tolerance and isinstance(at.curvature, MatrixCurvature):
        # one more step takes no look at the function, and squares what is left
        return replace(at, x=at.x - at.curvature.divide(at.gradient))
    if math.isnan(at.length):  # no numbers to go by: not a minimum of anything
        return replace(at, x=np.full_like(at.x, np.nan))
    return at


def _forcing(length: float, tolerance: float) -> float:
    """To what share of its residual a step's system is solved.

    Close to the minimum to more digits, far from it that would be wasted; and to no more than the tolerance asks for.
    """
    return max(min(0.3, math.sqrt(length)), min(0.3, tolerance / length / 2))


def _goes_down(rise: float, slope: float, fall: float, size: float, scale: float) -> bool:
    """Armijo's condition, or where rounding hides the values, the same seen from the slopes.

    Source: Hager & Zhang (2005), "A new conjugate gradient method with guaranteed descent", conditions T1 and T2.
    """
    return rise <= -1e-4 * size * fall or (rise <= 1e-6 * scale and slope <= 0.8 * fall)


def _conjugate_gradients(curvature: Curvature, target: FloatArray, tolerance: float) -> FloatArray:
    """Solve H x = target until the residual is `tolerance` of what it was, in the norm of M^-1."""
    if isinstance(curvature, MatrixCurvature):
        return curvature.divide(target)
    x = np.zeros_like(target)
    residual = target
    scaled = curvature.divide(target)
    first = float(target @ scaled)
    square = first
    direction = scaled
    # exact arithmetic would need one step a variable; rounding makes it more
    for _ in range(10 * len(target)):
        if square <= tolerance**2 * first:
            break
        turned = curvature.times(direction)
        bend = float(direction @ turned)
        if not (bend > 0 and math.isfinite(square / bend)):  # flat, up to rounding
            break
        x = x + square / bend * direction
        residual = residual - square / bend * turned
        scaled = curvature.divide(residual)
        last = square
        square = float(residual @ scaled)
        direction = scaled + square / last * direction
    if not x.any():  # not even one step: that of the preconditioner alone
        return curvature.divide(target)
    return x
