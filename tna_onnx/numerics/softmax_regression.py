"""Softmax regression with a ridge towards a given model, for a whole path of ridges.

    f(P) = mean_i NLL( s_i + P u_i ; y_i ) + lambda |P|^2            P (C, r)

s_i are given scores and u_i (r,) the coordinates of sample i along the principal axes of the features. There the
Hessian is close to its diagonal: with q = softmax(s + P u), the part of class c and axis j is about

    h_c k_j + 2 lambda,        h_c = mean_i q_ic (1 - q_ic),  k_j = mean_i u_ij^2

which makes conjugate gradients short. Each strength of the ridge starts from the solution of the stronger one before.
Products are float32, sums over samples of what is compared float64. Steps: Newton's, whose systems are solved by
conjugate gradients (Nocedal & Wright, *Numerical Optimization*, algorithm 7.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.ops import own_column, row_max, row_sum
from tna_onnx.numerics.threads import several_threads

__all__ = ["Axes", "principal_axes", "ridge_path"]

FloatArray = NDArray[np.float32]

# Axes along which the features spread less than this part of the widest, in squares, are left out: their coordinates
# are rounding errors of float32.
_MIN_SPREAD = 1e-7

# A step is the last one when it gains less than this, nats: a hundredth of the standard error that decides anything.
_EXCESS = 1e-5
_MAX_STEPS = 20

# Systems are solved to this part of their right side, in the norm of the preconditioner, or in so many products.
_TOLERANCE = 0.2
_MAX_PRODUCTS = 25


@dataclass(frozen=True, eq=False)
class Axes:
    """Principal axes of features.

    Attributes:
        axes: (n, r) orthonormal columns, the widest first.
        coordinates: (N, r) of the samples along them.
        spread: (r,) mean squares of the coordinates.
    """

    axes: FloatArray
    coordinates: FloatArray
    spread: FloatArray


def principal_axes(features: FloatArray) -> Axes:
    """Return the principal axes, around zero, of (N, n) features: at most min(N, n)."""
    samples, n = features.shape
    # the smaller of the two Gram matrices has all axes
    wide = n <= samples
    with several_threads(samples, n, min(samples, n)):
        return _axes(features, wide=wide)


def _axes(features: FloatArray, *, wide: bool) -> Axes:
    gram = features.T @ features if wide else features @ features.T
    # float32: axes that are a little off still span the same space
    values, vectors = np.linalg.eigh(gram)
    kept = np.flatnonzero(values > _MIN_SPREAD * values[-1])[::-1]
    basis = np.ascontiguousarray(vectors[:, kept], np.float32)
    if wide:
        coordinates = features @ basis
        axes = basis
    else:
        lengths = np.sqrt(values[kept]).astype(np.float32)
        coordinates = basis * lengths
        axes = features.T @ (basis / lengths)
    return Axes(axes, coordinates, (values[kept] / len(features)).astype(np.float32))


def ridge_path(
    scores: FloatArray, labels: NDArray[np.int64], axes: Axes, strengths: Sequence[float]
) -> Iterator[FloatArray]:
    """Yield the (C, r) minimum of f for each strength lambda.

    Args:
        scores: (N, C) s.
        labels: (N,) y.
        axes: u.
        strengths: positive, in descending order.
    """
    problem = _Problem(scores, labels, axes)
    solution = np.zeros((scores.shape[1], axes.coordinates.shape[1]), np.float32)
    for strength in strengths:
        solution = problem.minimum(np.float32(strength), solution)
        yield solution


class _Problem:
    """f for one set of samples."""

    def __init__(self, scores: FloatArray, labels: NDArray[np.int64], axes: Axes) -> None:
        self._scores = scores
        self._labels = labels
        self._u = axes.coordinates
        self._spread = axes.spread
        self._rows = np.arange(len(labels))

    def minimum(self, strength: np.float32, start: FloatArray) -> FloatArray:
        """Return the minimum of f, found from `start`."""
        here = start
        value, q = self._value(here, strength)
        for _ in range(_MAX_STEPS):
            gradient = self._gradient(here, q, strength)
            step, gain = self._step(gradient, q, strength)
            # half of the slope along a Newton step is what it gains
            if gain < 2 * _EXCESS:
                break
            size = np.float32(1)
            while True:
                there = here + size * step
                new_value, new_q = self._value(there, strength)
                if new_value <= value - 1e-4 * size * gain or size < 1e-3:
                    break
                size /= np.float32(2)
            if new_value > value:  # rounding is all that is left
                break
            here = there
            value = new_value
            q = new_q
        return here

    def _value(self, at: FloatArray, strength: np.float32) -> tuple[float, FloatArray]:
        """Return f and the probabilities (N, C)."""
        with self._threads:
            s = self._u @ at.T
        s += self._scores
        own = own_column(s, self._labels)[:, 0].astype(np.float64)
        top: FloatArray = row_max(s)
        s -= top
        np.exp(s, out=s)
        total: FloatArray = row_sum(s)
        losses = np.log(total.astype(np.float64))[:, 0] + top[:, 0] - own
        s /= total
        return float(losses.mean() + strength * np.vdot(at, at)), s

    @property
    def _threads(self) -> AbstractContextManager[None]:
        return several_threads(*self._u.shape, self._scores.shape[1])

    def _gradient(self, at: FloatArray, q: FloatArray, strength: np.float32) -> FloatArray:
        residual = q / np.float32(len(q))
        residual[self._rows, self._labels] -= np.float32(1 / len(q))
        with self._threads:
            slope = residual.T @ self._u
        gradient: FloatArray = slope + 2 * strength * at
        return gradient

    def _product(self, d: FloatArray, q: FloatArray, strength: np.float32) -> FloatArray:
        """Return the Hessian times d: mean_i (diag q - q q') (d u) u' + 2 lambda d."""
        with self._threads:
            moved = self._u @ d.T
        moved *= q
        moved -= q * row_sum(moved)
        with self._threads:
            turned = moved.T @ self._u
        product: FloatArray = turned / np.float32(len(q)) + 2 * strength * d
        return product

    def _step(self, gradient: FloatArray, q: FloatArray, strength: np.float32) -> tuple[FloatArray, float]:
        """Solve H step = -gradient roughly; return the step and -gradient . step."""
        curvature = np.asarray(np.mean(q * (1 - q), axis=0, dtype=np.float64), np.float32)
        diagonal = curvature[:, None] * self._spread + 2 * strength
        step = np.zeros_like(gradient)
        residual = -gradient
        direction = np.zeros_like(gradient)
        last = 1.0
        first = float(np.vdot(residual, residual / diagonal))
        for k in range(_MAX_PRODUCTS):
            scaled = residual / diagonal
            square = float(np.vdot(residual, scaled))
            # so small a gradient gains nothing, whatever the step
            if square <= max(_TOLERANCE**2 * first, 0.1 * _EXCESS):
                break
            direction = scaled + np.float32(square / last) * direction if k else scaled
            turned = self._product(direction, q, strength)
            length = np.float32(square / float(np.vdot(direction, turned)))
            step += length * direction
            residual -= length * turned
            last = square
        return step, -float(np.vdot(gradient, step))
