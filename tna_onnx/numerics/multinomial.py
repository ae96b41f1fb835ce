"""Convex fits of multinomial regression with a ridge, by Newton steps and conjugate gradients (`numerics.fitting`).

    fit_scores    s' = x + D x + c,  x = P s / T, P = I - 11'/C;  D is a number, a diagonal or a matrix
                  loss = mean_i ( log sum_k exp s'_ik - s'_iy ) + sum_j strength_j theta_j^2,  theta = (D, c)
    ridge_path    f(P) = mean_i NLL( s_i + P u_i ; y_i ) + lambda |P|^2, each lambda from the stronger one before

With q = softmax(s'), the gradient has sums of q - onehot(y), and the Hessian times (E, w) those of q (t - E_q[t]),
t = E x + w. Along the principal axes u it is nearly mean q_c (1 - q_c) mean u_j^2 + 2 lambda on its diagonal.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.fitting import DENSE, Curvature, DiagonalCurvature, MatrixCurvature, convex_minimum
from tna_onnx.numerics.ops import (
    ArrayOps,
    Blocked,
    SoftLabels,
    WeightedLabels,
    by_column,
    label_shares,
    namespace,
    own_column,
    plain_labels,
    row_dot,
    row_max,
    row_sum,
    several_threads,
    to_host,
    total_weight,
    weigh,
)

FloatArray = NDArray[np.float64]

# Length of the gradient at which a fit ends: the loss is about half its square above the minimum. Smaller steps follow
# the rounding of float32.
_END = 1e-5
# The same where one more step follows, which squares it.
_BEFORE_LAST = 1e-4

# Smallest curvature: far below any that matters. A number without a ridge has none where all rows are saturated.
_MIN_CURVATURE = 1e-12


class Form(Protocol):
    """What D is. Arrays are (B, C); a D is an array of `shape`."""

    def shape(self, classes: int) -> tuple[int, ...]:
        """Return the shape of D."""

    def times(self, d: Any, x: Any) -> Any:
        """Return D x for each row x, (B, C)."""

    def against(self, r: Any, x: Any) -> Any:
        """Return the adjoint of D -> D x at r, summed over the rows, in the shape of D."""

    def curvature(self, q: Any, x: Any) -> Any:
        """Return the second derivatives of the summed NLL with respect to each entry of D alone."""


@dataclass(frozen=True)
class Scalar:
    """D is one number."""

    def shape(self, classes: int) -> tuple[int, ...]:  # noqa: ARG002
        return (1,)

    def times(self, d: Any, x: Any) -> Any:
        return d * x

    def against(self, r: Any, x: Any) -> Any:
        xp = namespace(x)
        return xp.sum(row_dot(r, x), dtype=xp.float64)

    def curvature(self, q: Any, x: Any) -> Any:
        xp = namespace(x)
        mean = row_dot(q, x)
        centred = x - mean[:, None]
        return xp.sum(row_dot(q * centred, centred), dtype=xp.float64)

    def columns(self, r: Any, x: Any) -> Any:
        """Return the adjoint of (D, c) -> D x + c at each row r, (B, k)."""
        xp = namespace(x)
        return xp.concat([row_dot(r, x)[:, None], r], axis=1)

    def gram(self, g: Any, x: Any) -> FloatArray:
        """Return the sum over rows of J' diag(g) J, (k, k), for the Jacobian J of (D, c) -> D x + c."""
        plain, first, second = _moments(g, x)
        matrix = np.diag(np.append(second.sum(), plain))
        matrix[0, 1:] = matrix[1:, 0] = first
        return matrix


@dataclass(frozen=True)
class Diagonal:
    """D is a diagonal matrix, held as (C,)."""

    def shape(self, classes: int) -> tuple[int, ...]:
        return (classes,)

    def times(self, d: Any, x: Any) -> Any:
        return d * x

    def against(self, r: Any, x: Any) -> Any:
        xp = namespace(x)
        return xp.sum(r * x, axis=0, dtype=xp.float64)

    def curvature(self, q: Any, x: Any) -> Any:
        xp = namespace(x)
        return xp.sum((q - q * q) * x * x, axis=0, dtype=xp.float64)

    def columns(self, r: Any, x: Any) -> Any:
        return namespace(x).concat([r * x, r], axis=1)

    def gram(self, g: Any, x: Any) -> FloatArray:
        plain, first, second = map(np.diag, _moments(g, x))
        return np.block([[second, first], [first, plain]])


@dataclass(frozen=True)
class Matrix:
    """D is a (C, C) matrix."""

    def shape(self, classes: int) -> tuple[int, ...]:
        return (classes, classes)

    def times(self, d: Any, x: Any) -> Any:
        return by_column(x @ d.T)

    def against(self, r: Any, x: Any) -> Any:
        return r.T @ x

    def curvature(self, q: Any, x: Any) -> Any:
        return (q - q * q).T @ (x * x)


VectorForm: TypeAlias = Scalar | Diagonal
"""A D of at most a number for each class, for which a Hessian may be a matrix."""


def _moments(g: Any, x: Any) -> tuple[FloatArray, ...]:
    """Sums over rows of g, g x and g x^2, (C,) each."""
    xp = namespace(x)
    weighted = g * x
    return tuple(to_host(xp.sum(values, axis=0, dtype=xp.float64)) for values in (g, weighted, weighted * x))


@dataclass(frozen=True)
class Shape:
    """What is known of samples before a fit."""

    samples: float  # their number N; the sum of their weights where they have some
    classes: int  # number of classes C
    spread: float  # root mean square of the centred logits P s
    gap: float  # mean distance of the label's logit from the largest one; 0 where every sample is right


def shape_of(reduce: Callable[..., Any]) -> Shape:
    """Look at the samples once."""
    samples, entries, square, gap = reduce(Blocked(_shape_sums)).tolist()
    # a sum of weights need not be a whole number
    number = round(samples) if samples == round(samples) else samples
    return Shape(number, round(entries / samples), math.sqrt(square / entries), gap / samples)


def fit_scores(
    reduce: Callable[..., Any],
    form: Form,
    size: Shape,
    temperature: float | None,
    strength: tuple[Any, float],
    *,
    start: tuple[Any, FloatArray] | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Return (D, c), the minimum of the loss.

    Gives d in its shape and c (C,), float64. They are finite if the logits are. `temperature`: T; None takes x = s,
    neither divided nor centred. `strength`: of D (a number, or an array of its shape) and of c. `start`: (D, c) where
    the steps begin; zeros otherwise.
    """
    objective = _Objective.of(reduce, form, size, temperature, strength)
    tolerance = _BEFORE_LAST if objective.dense else _END
    return _split(convex_minimum(objective.loss, objective.first(start), tolerance=tolerance), objective.shape)


def fit_above_floor(
    reduce: Callable[..., Any],
    form: Form,
    size: Shape,
    temperature: float,
    strength: tuple[Any, float],
    share: float,
    *,
    start: tuple[Any, FloatArray] | None = None,
) -> tuple[FloatArray, FloatArray, float]:
    """Return (D, c, e), a minimum of the loss where a share e of the labels is noise; see `fit_scores`.

    `share`: e where the steps begin, between 0 and 1.
    """
    objective = _Objective.of(reduce, form, size, temperature, strength)
    first = np.append(objective.first(start), math.log(share / (1 - share)))
    theta = convex_minimum(objective.loss_above_floor, first, tolerance=_END)
    return *_split(theta[:-1], objective.shape), _logistic(theta[-1])


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-min(max(x, -500.0), 500.0)))


@dataclass(frozen=True, eq=False)
class _Objective:
    """The loss as a function of the flat theta."""

    reduce: Callable[..., Any]  # runs over chunks of (logits, labels)
    form: Form  # what D is
    shape: tuple[int, ...]  # of D
    temperature: float | None  # T, or None
    size: float  # number of samples
    ridge: FloatArray  # (k,) diagonal of the Hessian of the ridge

    @classmethod
    def of(
        cls, reduce: Callable[..., Any], form: Form, size: Shape, temperature: float | None, strength: tuple[Any, float]
    ) -> _Objective:
        """Return the loss for samples of a size, with a strength for D and one for c."""
        shape = form.shape(size.classes)
        ridge = _joined((np.broadcast_to(strength[0], shape), np.full(size.classes, strength[1])))
        return cls(reduce, form, shape, temperature, size.samples, 2 * ridge)

    @property
    def dense(self) -> VectorForm | None:
        """The form, where the Hessian is a matrix."""
        if isinstance(self.form, VectorForm) and len(self.ridge) <= DENSE:
            return self.form
        return None

    def first(self, start: tuple[Any, FloatArray] | None) -> FloatArray:
        """Return the theta where steps begin."""
        return np.zeros(len(self.ridge)) if start is None else _joined(start)

    def loss(self, theta: FloatArray) -> tuple[float, FloatArray, Curvature]:
        """Return the value, the gradient and the curvature."""
        k = len(theta)
        at = _Point(self.form, self.temperature, *_split(theta, self.shape))
        sums = self._mean(at.loss_sums, self.dense)
        value = float(sums[0] + theta @ (self.ridge * theta) / 2)
        gradient = sums[1 : 1 + k] + self.ridge * theta
        if self.dense:
            hessian = sums[1 + k :].reshape(k, k)
            return value, gradient, MatrixCurvature(hessian + np.diag(self.ridge + _MIN_CURVATURE))

        def product(direction: FloatArray) -> FloatArray:
            return self._mean(at.product_sums, _split(direction, self.shape), 0.0) + self.ridge * direction

        # in float32 the curvature may vanish where the slope does not
        diagonal = np.maximum(sums[1 + k :] + self.ridge, _MIN_CURVATURE)
        return value, gradient, DiagonalCurvature(product, diagonal)

    def loss_above_floor(self, theta: FloatArray) -> tuple[float, FloatArray, Curvature]:
        """Return value, gradient and curvature at (theta, log(e / (1 - e))) where a share e of the labels is noise."""
        share = _logistic(theta[-1])
        linear = theta[:-1]
        k = len(linear)
        at = _Point(self.form, self.temperature, *_split(linear, self.shape), share)
        sums = self._mean(at.loss_sums, self.dense)
        right = sums[1 + k]
        # both logarithms from theta: e may be too small for 1 - e to differ from 1
        prior = (math.log1p(math.exp(-abs(theta[-1]))) * 2 + abs(float(theta[-1]))) / self.size
        value = float(sums[0] + linear @ (self.ridge * linear) / 2) + prior
        slope = share - (1 - right) - (1 - 2 * share) / self.size
        gradient = np.append(sums[1 : 1 + k] + self.ridge * linear, slope)
        by_odds = share * (1 - share)
        # the secant of the prior's slope: it stays above the prior on the way to its minimum
        odds = max(abs(theta[-1]), 1e-9)
        steepness = math.tanh(odds / 2) / odds / self.size
        if self.dense:
            scale = np.append(np.ones(k), by_odds)
            information = sums[2 + k :].reshape(1 + k, 1 + k) * scale * scale[:, None]
            return value, gradient, MatrixCurvature(information + np.diag(np.append(self.ridge, steepness)))

        def product(direction: FloatArray) -> FloatArray:
            of_share = float(direction[-1]) * by_odds
            *turned, noise = self._mean(at.product_sums, _split(direction[:-1], self.shape), of_share)
            ridge = self.ridge * direction[:-1]
            return np.append(np.array(turned) + ridge, by_odds * noise + steepness * direction[-1])

        diagonal = np.maximum(sums[2 + k :] + self.ridge, _MIN_CURVATURE)
        of_odds = by_odds * (1 + 2 / self.size) + _MIN_CURVATURE
        return value, gradient, DiagonalCurvature(product, np.append(diagonal, of_odds))

    def _mean(self, sums: Callable[..., FloatArray], *arguments: Any) -> FloatArray:
        mean: FloatArray = self.reduce(Blocked(functools.partial(sums, *arguments))) / self.size
        return mean


def _shape_sums(logits: Any, labels: NDArray[np.int64], *_: Any) -> FloatArray:
    """Sums over samples of (1, C, |P s|^2, max s - s_y)."""
    xp = namespace(logits)
    n = total_weight(labels)
    classes = logits.shape[1]
    centred = logits - row_sum(logits) / logits.shape[1]
    gap = row_max(logits) - own_column(logits, labels)
    with np.errstate(over="ignore"):  # of a class that is masked by the least float32
        square = float(xp.sum(weigh(centred * centred, labels), dtype=xp.float64))
    return np.array([n, n * classes, square, float(xp.sum(weigh(gap, labels), dtype=xp.float64))])


@dataclass(frozen=True, eq=False)
class _Point:
    """One theta, and sums over samples there."""

    form: Form  # what D is
    temperature: float | None  # T, or None
    d: FloatArray  # D
    c: FloatArray  # (C,)
    share: float | None = None  # e, the noise in the labels; None without

    def _scores(self, op: ArrayOps, logits: Any) -> tuple[Any, Any]:
        """Return x and s', (B, C) each."""
        x = logits
        if self.temperature is not None:
            x = (logits - op.mean(logits)) * (1 / self.temperature)
        return x, x + self.form.times(op.const(self.d), x) + op.const(self.c)

    def loss_sums(self, dense: VectorForm | None, logits: Any, labels: NDArray[np.int64], *_: Any) -> FloatArray:
        """Sums over samples of (NLL, its gradient, with a share of noise a_i, the Hessian or its diagonal).

        `dense`: the form, for the whole Hessian; with a share of noise the Fisher information of (d, c, e).
        """
        xp = namespace(logits)
        x, scores = self._scores(ArrayOps(logits), logits)
        top = row_max(scores)
        weights = xp.exp(scores - top)
        total = row_sum(weights, double=True)
        # own score and top first: where a row is saturated, their difference is exact
        nll = xp.log(total) + (top - own_column(scores, labels))
        q = weights / xp.astype(total, weights.dtype)
        r = q - label_shares(labels, q)
        noise_sums: tuple[Any, ...] = ()
        if self.share is not None:
            of_label = (1 - self.share) * xp.exp(-nll)
            right = of_label / (of_label + self.share / logits.shape[1])
            nll = -xp.log(of_label + self.share / logits.shape[1])
            weight = xp.astype(right, q.dtype)
            r = r * weight
            noise_sums = (xp.sum(weigh(right, labels)),)
        r = weigh(r, labels)
        parts = (xp.sum(weigh(nll, labels)), self.form.against(r, x), xp.sum(r, axis=0, dtype=xp.float64), *noise_sums)
        if dense and self.share is not None:
            return _joined((*parts, _information(dense, q, x, self.share, labels)))
        if dense:
            weighted = weigh(q, labels)
            half = dense.columns(weighted * 0.5, x)
            return _joined((*parts, _less(dense.gram(weighted, x), half, dense.columns(q, x))))
        curved = q - q * q
        spread = x
        if self.share is not None:
            curved = curved * weight
            spread = x * xp.sqrt(weight)  # curvatures are quadratic in x
        if isinstance(labels, WeightedLabels):
            curved = weigh(curved, labels)
            spread = weigh(spread, WeightedLabels(labels.labels, np.sqrt(labels.weights)))
        return _joined((*parts, self.form.curvature(q, spread), xp.sum(curved, axis=0, dtype=xp.float64)))

    def product_sums(
        self, along: tuple[FloatArray, FloatArray], along_share: float, logits: Any, labels: NDArray[np.int64], *_: Any
    ) -> FloatArray:
        """Sums over samples of the Hessian of the NLL times `along`, a direction of (D, c).

        With a share of noise, of the Fisher information of (D, c, e), times (*along, along_share): the expected Hessian
        where the model holds, J' diag(1 / p) J with the Jacobian J of the probabilities p = (1 - e) q + e / C. It is
        positive semidefinite everywhere.
        """
        xp = namespace(logits)
        op = ArrayOps(logits)
        x, scores = self._scores(op, logits)
        q = op.softmax(scores)
        turned = _centred(q, self.form.times(op.const(along[0]), x) + op.const(along[1]))
        noise_sums: tuple[Any, ...] = ()
        if self.share is not None:
            away = 1 / logits.shape[1] - q
            moved = ((1 - self.share) * turned + along_share * away) / _mixed(q, self.share, op.tiny)
            turned = (1 - self.share) * _centred(q, moved)
            noise_sums = (xp.sum(weigh(row_dot(moved, away), labels), dtype=xp.float64),)
        r = weigh(turned, labels)
        return _joined((self.form.against(r, x), xp.sum(r, axis=0, dtype=xp.float64), *noise_sums))


def _less(gram: FloatArray, a: Any, b: Any) -> FloatArray:
    """Return G - a' b - b' a, (k, k), positive definite also where rounding is all that is left."""
    across = to_host(a.T @ b)
    rounding = 10 * float(namespace(a).finfo(a.dtype).eps)
    less: FloatArray = gram + np.diag(rounding * np.diag(gram)) - across - across.T
    return less


def _information(form: VectorForm, q: Any, x: Any, share: float, labels: Any) -> FloatArray:
    """Return the Fisher information of (d, c, e), (k + 1, k + 1): J' diag(1 / p) J as in `_Point.product_sums`.

    With S = diag q - q q', S diag(1 / p) S = diag(w q) - w q q' - q (w q)' + q (w . q) q' for w = q / p.
    """
    xp = namespace(q)
    uniform = 1 / q.shape[1]
    p = _mixed(q, share, ArrayOps(q).tiny)
    ratio = q / p
    weighted = weigh(ratio * q, labels)
    half = form.columns(weighted - q * (weigh(row_dot(ratio, q), labels) / 2)[:, None], x)
    matrix = (1 - share) ** 2 * _less(form.gram(weighted, x), half, form.columns(q, x))
    along = (uniform - q) / p
    across = to_host(xp.sum(form.columns(weigh((1 - share) * _centred(q, along), labels), x), axis=0, dtype=xp.float64))
    of_share = float(xp.sum(weigh(row_dot(along, uniform - q), labels), dtype=xp.float64))
    return np.block([[matrix, across[:, None]], [across, np.array(of_share)]])


def _mixed(q: Any, share: float, tiny: float) -> Any:
    return (1 - share) * q + max(share * (1 / q.shape[1]), tiny)


def _centred(q: Any, t: Any) -> Any:
    """Return (diag q - q q') t for each row."""
    return q * (t - row_dot(q, t)[:, None])


def _joined(parts: tuple[Any, ...]) -> FloatArray:
    """Flatten parts into one float64 vector on the host."""
    return np.concatenate([np.ravel(np.asarray(to_host(part), np.float64)) for part in parts])


def _split(theta: FloatArray, shape: tuple[int, ...]) -> tuple[FloatArray, FloatArray]:
    """Return (D, c) of a flat theta."""
    entries = int(np.prod(shape))
    return theta[:entries].reshape(shape), theta[entries:]


Float32Array = NDArray[np.float32]

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
    """Principal axes of features."""

    axes: Float32Array  # (n, r) orthonormal columns, the widest first
    coordinates: Float32Array  # (N, r) of the samples along them
    spread: Float32Array  # (r,) mean squares of the coordinates


def principal_axes(features: Float32Array) -> Axes:
    """Return the principal axes, around zero, of (N, n) features: at most min(N, n)."""
    samples, n = features.shape
    # the smaller of the two Gram matrices has all axes
    wide = n <= samples
    with several_threads(samples, n, min(samples, n)):
        return _axes(features, wide=wide)


def _axes(features: Float32Array, *, wide: bool) -> Axes:
    gram = features.T @ features if wide else features @ features.T
    # float32: axes that are a little off still span the same space
    values, vectors = np.linalg.eigh(gram)
    large = np.flatnonzero(values > _MIN_SPREAD * values[-1])[::-1]
    basis = np.ascontiguousarray(vectors[:, large], np.float32)
    if wide:
        coordinates = features @ basis
        axes = basis
    else:
        lengths = np.sqrt(values[large]).astype(np.float32)
        coordinates = basis * lengths
        axes = features.T @ (basis / lengths)
    return Axes(axes, coordinates, (values[large] / len(features)).astype(np.float32))


def ridge_path(
    scores: Float32Array, labels: NDArray[np.int64], axes: Axes, strengths: Sequence[float]
) -> Iterator[Float32Array]:
    """Yield the (C, r) minimum of f for each strength lambda. `scores`: (N, C) s; `labels`: (N,) y."""
    problem = _Problem(scores, labels, axes)
    solution = np.zeros((scores.shape[1], axes.coordinates.shape[1]), np.float32)
    for strength in strengths:
        solution = problem.minimum(np.float32(strength), solution)
        yield solution


class _Problem:
    """f for one set of samples."""

    def __init__(self, scores: Float32Array, labels: NDArray[np.int64], axes: Axes) -> None:
        self._scores = scores
        self._labels: NDArray[np.int64] | SoftLabels = plain_labels(labels)
        # with a mean of 1, as float32; None where all samples count the same
        self._weights: Float32Array | None = None
        if isinstance(labels, WeightedLabels):
            self._weights = np.asarray(labels.weights / np.mean(labels.weights), np.float32)[:, None]
        self._u = axes.coordinates
        self._spread = axes.spread
        self._rows = np.arange(len(labels))

    def minimum(self, strength: np.float32, start: Float32Array) -> Float32Array:
        """Return the minimum of f, found from `start`."""
        current = start
        value, q = self._value(current, strength)
        for _ in range(_MAX_STEPS):
            gradient = self._gradient(current, q, strength)
            step, gain = self._step(gradient, q, strength)
            # half of the slope along a Newton step is what it gains
            if gain < 2 * _EXCESS:
                break
            size = np.float32(1)
            while True:
                trial = current + size * step
                new_value, new_q = self._value(trial, strength)
                if new_value <= value - 1e-4 * size * gain or size < 1e-3:
                    break
                size /= np.float32(2)
            if new_value > value:  # rounding is all that is left
                break
            current = trial
            value = new_value
            q = new_q
        return current

    def _value(self, at: Float32Array, strength: np.float32) -> tuple[float, Float32Array]:
        """Return f and the probabilities (N, C)."""
        with self._threads:
            s = self._u @ at.T
        s += self._scores
        label_logits = own_column(s, self._labels)[:, 0].astype(np.float64)
        top: Float32Array = row_max(s)
        s -= top
        np.exp(s, out=s)
        total: Float32Array = row_sum(s)
        losses = np.log(total.astype(np.float64))[:, 0] + top[:, 0] - label_logits
        if self._weights is not None:
            losses = losses * self._weights[:, 0]
        s /= total
        return float(losses.mean() + strength * np.vdot(at, at)), s

    @property
    def _threads(self) -> AbstractContextManager[None]:
        return several_threads(*self._u.shape, self._scores.shape[1])

    def _gradient(self, at: Float32Array, q: Float32Array, strength: np.float32) -> Float32Array:
        residual = q / np.float32(len(q))
        if isinstance(self._labels, SoftLabels):
            residual -= self._labels.shares / np.float32(len(q))
        else:
            residual[self._rows, self._labels] -= np.float32(1 / len(q))
        if self._weights is not None:
            residual *= self._weights
        with self._threads:
            slope = residual.T @ self._u
        gradient: Float32Array = slope + 2 * strength * at
        return gradient

    def _product(self, d: Float32Array, q: Float32Array, strength: np.float32) -> Float32Array:
        """Return the Hessian times d: mean_i (diag q - q q') (d u) u' + 2 lambda d."""
        with self._threads:
            moved = self._u @ d.T
        moved *= q
        moved -= q * row_sum(moved)
        if self._weights is not None:
            moved *= self._weights
        with self._threads:
            turned = moved.T @ self._u
        product: Float32Array = turned / np.float32(len(q)) + 2 * strength * d
        return product

    def _step(self, gradient: Float32Array, q: Float32Array, strength: np.float32) -> tuple[Float32Array, float]:
        """Solve H step = -gradient roughly; return the step and -gradient . step."""
        curved = q * (1 - q) if self._weights is None else q * (1 - q) * self._weights
        curvature = np.asarray(np.mean(curved, axis=0, dtype=np.float64), np.float32)
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
