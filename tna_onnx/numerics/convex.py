"""The minimum of a smooth convex function of many variables, by Newton steps.

The linear systems of the steps are solved by conjugate gradients (Nocedal & Wright, *Numerical Optimization*, algorithm
7.1). Only products with the Hessian are needed, so it never has to be in memory. Where the function is a sum over all
data, each evaluation and each product is a pass over these: a `Curvature` keeps what an evaluation has worked out for
the products, and knows as much of the Hessian's inverse as is cheap.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Curvature", "DiagonalCurvature", "convex_minimum"]

FloatArray = NDArray[np.float64]

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
    """A curvature of which the products and the diagonal are known.

    Attributes:
        product: d -> H d.
        diagonal: (k,) positive, near the diagonal of H.
    """

    product: Callable[[FloatArray], FloatArray]
    diagonal: FloatArray

    def times(self, d: FloatArray) -> FloatArray:
        """Return H d."""
        return self.product(d)

    def divide(self, r: FloatArray) -> FloatArray:
        """Return r over the diagonal."""
        return r / self.diagonal


def convex_minimum(
    function: Function,
    start: FloatArray,
    *,
    refuge: FloatArray | None = None,
    tolerance: float = 1e-7,
    max_iterations: int = 100,
) -> FloatArray:
    """Minimise a smooth convex function.

    Args:
        function: x -> (f(x), gradient, curvature).
        start: (k,) where to begin.
        refuge: (k,) a point where f is smooth, to begin at if `start` is too far from the minimum for Newton's steps.
        tolerance: length of the gradient in the norm of M^-1 (`Curvature`); its square is about twice the excess of f
            over its minimum.
        max_iterations: Newton steps at most.

    Returns:
        (k,) the minimum, or the last point that could be improved where f is known too roughly to reach the tolerance;
        NaN where f or its gradient are.

    >>> plain = DiagonalCurvature(lambda d: d, np.ones(2))
    >>> convex_minimum(lambda x: (x @ x / 2 - x[0], x - [1, 0], plain), np.zeros(2)).tolist()
    [1.0, 0.0]
    """
    first = _Point.of(function, start)
    if refuge is None or first.length <= _FAR:
        return _descent(function, first, tolerance, max_iterations).x
    there = _descent(function, _Point.of(function, refuge), tolerance, max_iterations)
    if there.length <= _NEAR:
        return there.x
    # not even from there: the better end of the two
    here = _descent(function, first, tolerance, max_iterations)
    return min((there, here), key=lambda end: end.value if math.isfinite(end.value) else math.inf).x


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


def _descent(function: Function, at: _Point, tolerance: float, max_iterations: int) -> _Point:
    """Take Newton steps from a point; return the last one."""
    for _ in range(max_iterations):
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
        before = at
        at = following
        gained = before.value - at.value > 1e-6 * abs(before.value)
        if not gained and at.length > before.length / 2:  # the same: near the minimum a Newton step does better
            break
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
