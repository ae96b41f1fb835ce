"""Multinomial regression of labels on tempered logits, with a ridge: what the linear maps have in common.

With x = P s / T, P = I - 11'/C (the mean over classes is zero), scores are linear in theta = (D, c):

    s' = x + D x + c        loss = mean_i ( log sum_k exp s'_ik - s'_iy ) + sum_j strength_j theta_j^2

D is a number, a diagonal or a matrix; these are the forms below. The loss is convex, and strictly so wherever every
parameter has a strength. With q = softmax(s') and r = q - onehot(y), for a direction (E, w) and t = E x + w:

    gradient    mean_i (r_i against x_i, r_i) + 2 strength theta
    Hessian     the same sums with r_i = q_i (t_i - E_q[t_i])

where "against" is the adjoint of D -> D x. The minimum is found by Newton steps whose systems are solved by conjugate
gradients, so that no Hessian is in memory. Sums over classes are in the dtype of the logits, over samples float64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.convex import DiagonalCurvature, convex_minimum
from tna_onnx.numerics.ops import ArrayOps, Blocked, own_column, row_max, row_sum, to_host

__all__ = ["Diagonal", "Form", "Matrix", "Scalar", "Shape", "fit_scores", "shape_of"]

FloatArray = NDArray[np.float64]

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
        xp = array_api_compat.array_namespace(x)
        return xp.sum(xp.vecdot(r, x), dtype=xp.float64)

    def curvature(self, q: Any, x: Any) -> Any:
        xp = array_api_compat.array_namespace(x)
        mean = xp.vecdot(q, x)
        centred = x - mean[:, None]
        return xp.sum(xp.vecdot(q * centred, centred), dtype=xp.float64)


@dataclass(frozen=True)
class Diagonal:
    """D is a diagonal matrix, held as (C,)."""

    def shape(self, classes: int) -> tuple[int, ...]:
        return (classes,)

    def times(self, d: Any, x: Any) -> Any:
        return d * x

    def against(self, r: Any, x: Any) -> Any:
        xp = array_api_compat.array_namespace(x)
        return xp.sum(r * x, axis=0, dtype=xp.float64)

    def curvature(self, q: Any, x: Any) -> Any:
        xp = array_api_compat.array_namespace(x)
        return xp.sum((q - q * q) * x * x, axis=0, dtype=xp.float64)


@dataclass(frozen=True)
class Matrix:
    """D is a (C, C) matrix."""

    def shape(self, classes: int) -> tuple[int, ...]:
        return (classes, classes)

    def times(self, d: Any, x: Any) -> Any:
        return x @ d.T

    def against(self, r: Any, x: Any) -> Any:
        return r.T @ x

    def curvature(self, q: Any, x: Any) -> Any:
        return (q - q * q).T @ (x * x)


@dataclass(frozen=True)
class Shape:
    """What is known of samples before a fit.

    Attributes:
        samples: their number N.
        classes: number of classes C.
        spread: root mean square of the centred logits P s.
        gap: mean distance of the label's logit from the largest one; 0 where every sample is right.
    """

    samples: int
    classes: int
    spread: float
    gap: float


def shape_of(reduce: Callable[..., Any]) -> Shape:
    """Look at the samples once.

    Args:
        reduce: runs over chunks of (logits, labels).
    """
    samples, entries, square, gap = reduce(Blocked(_shape_sums)).tolist()
    return Shape(round(samples), round(entries / samples), math.sqrt(square / entries), gap / samples)


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

    Args:
        reduce: runs over chunks of (logits, labels).
        form: what D is.
        size: of the samples.
        temperature: T; None takes x = s, neither divided nor centred.
        strength: of D (a number, or an array of its shape) and of c.
        start: (D, c) where the steps begin; zeros otherwise.

    Returns:
        D in its shape and c (C,), float64. They are finite if the logits are.
    """
    shape = form.shape(size.classes)
    ridge = _joined((np.broadcast_to(strength[0], shape), np.full(size.classes, strength[1])))
    objective = _Objective(reduce, form, shape, temperature, size.samples, 2 * ridge)
    first = np.zeros(len(ridge))
    if start is not None:
        first = _joined(start)
    theta = convex_minimum(objective.loss, first)
    return _split(theta, shape)


@dataclass(frozen=True, eq=False)
class _Objective:
    """The loss as a function of the flat theta.

    Attributes:
        reduce: runs over chunks of (logits, labels).
        form: what D is.
        shape: of D.
        temperature: T, or None.
        size: number of samples.
        ridge: (k,) diagonal of the Hessian of the ridge.
    """

    reduce: Callable[..., Any]
    form: Form
    shape: tuple[int, ...]
    temperature: float | None
    size: int
    ridge: FloatArray

    def loss(self, theta: FloatArray) -> tuple[float, FloatArray, DiagonalCurvature]:
        """Return the value, the gradient and the curvature."""
        of = functools.partial(_loss_sums, self.form, self.temperature, *_split(theta, self.shape))
        sums = self.reduce(Blocked(of)) / self.size
        k = len(theta)
        # in float32 the curvature may vanish where the slope does not
        diagonal = np.maximum(sums[1 + k :] + self.ridge, _MIN_CURVATURE)
        value = float(sums[0] + theta @ (self.ridge * theta) / 2)
        curvature = DiagonalCurvature(functools.partial(self.product, theta), diagonal)
        return value, sums[1 : 1 + k] + self.ridge * theta, curvature

    def product(self, theta: FloatArray, direction: FloatArray) -> FloatArray:
        """Return the Hessian at theta times a direction."""
        along = _split(direction, self.shape)
        of = functools.partial(_hessian_sums, self.form, self.temperature, *_split(theta, self.shape), *along)
        turned: FloatArray = self.reduce(Blocked(of)) / self.size + self.ridge * direction
        return turned


def _shape_sums(logits: Any, labels: NDArray[np.int64], *_: Any) -> FloatArray:
    """Sums over samples of (1, C, |P s|^2, max s - s_y)."""
    xp = array_api_compat.array_namespace(logits)
    n, classes = logits.shape
    centred = logits - row_sum(logits) / logits.shape[1]
    gap = row_max(logits) - own_column(logits, labels)
    sums = (xp.sum(values, dtype=xp.float64) for values in (centred * centred, gap))
    return np.array([n, n * classes, *map(float, sums)])


def _loss_sums(
    form: Form, temperature: float | None, d: FloatArray, c: FloatArray, logits: Any, labels: NDArray[np.int64], *_: Any
) -> FloatArray:
    """Sums over samples of (NLL, its gradient, the diagonal of its Hessian)."""
    xp = array_api_compat.array_namespace(logits)
    op = ArrayOps(logits)
    x = _tempered(op, logits, temperature)
    scores = _scores(op, form, d, c, x)
    top = row_max(scores)
    weights = xp.exp(scores - top)
    total = row_sum(weights, double=True)
    # own score and top first: where a row is saturated, their difference is exact
    nll = xp.log(total) + (top - own_column(scores, labels))
    q = weights / xp.astype(total, weights.dtype)
    index = xp.asarray(labels, device=array_api_compat.device(logits))
    own = index[:, None] == xp.arange(logits.shape[1], device=array_api_compat.device(logits))
    r = q - xp.astype(own, q.dtype)
    parts = (
        xp.sum(nll),
        form.against(r, x),
        xp.sum(r, axis=0, dtype=xp.float64),
        form.curvature(q, x),
        xp.sum(q - q * q, axis=0, dtype=xp.float64),
    )
    return _joined(parts)


def _hessian_sums(
    form: Form,
    temperature: float | None,
    d: FloatArray,
    c: FloatArray,
    along_d: FloatArray,
    along_c: FloatArray,
    logits: Any,
    *_: Any,
) -> FloatArray:
    """Sums over samples of the Hessian of the NLL at (d, c), times (along_d, along_c)."""
    xp = array_api_compat.array_namespace(logits)
    op = ArrayOps(logits)
    x = _tempered(op, logits, temperature)
    q = op.softmax(_scores(op, form, d, c, x))
    t = form.times(op.const(along_d), x) + op.const(along_c)
    r = q * (t - xp.vecdot(q, t)[:, None])
    return _joined((form.against(r, x), xp.sum(r, axis=0, dtype=xp.float64)))


def _tempered(op: ArrayOps, logits: Any, temperature: float | None) -> Any:
    """Return x = P s / T, or s."""
    if temperature is None:
        return logits
    return (logits - op.mean(logits)) * (1 / temperature)


def _scores(op: ArrayOps, form: Form, d: FloatArray, c: FloatArray, x: Any) -> Any:
    return x + form.times(op.const(d), x) + op.const(c)


def _joined(parts: tuple[Any, ...]) -> FloatArray:
    """Flatten parts into one float64 vector on the host."""
    return np.concatenate([np.ravel(np.asarray(to_host(part), np.float64)) for part in parts])


def _split(theta: FloatArray, shape: tuple[int, ...]) -> tuple[FloatArray, FloatArray]:
    """Return (D, c) of a flat theta."""
    entries = int(np.prod(shape))
    return theta[:entries].reshape(shape), theta[entries:]
