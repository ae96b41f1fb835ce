"""Class frequencies of samples without labels, where the classes are more or less frequent than they were before.

Label shift: p(x | y) is as it was, and p(y) = p_y has become q_y. A model that is calibrated under p then has

    P'(y | x)  proportional to  P(y | x) q_y / p_y        so its logits s become s + log(q / p)

Two estimates of q:

    EM          q maximises L(q) = mean_i log sum_y P(y | x_i) q_y / p_y, which is concave. With its slopes
                g_y = mean_i (P_iy / p_y) / sum_k P_ik q_k / p_k, a step is q_y <- q_y g_y, and L(best) - L(q) is at
                most max g - 1, which tells when to stop. Every third step is an extrapolation, kept where L has not
                fallen.
    black box   K q = m, K_ky the share of the samples of class y that are predicted as k, m_k the share of predictions
                k among the new samples. It needs no calibrated probabilities, only a K that can be inverted.

Sources: Saerens, Latinne & Decaestecker (2002), equation 2.9 (EM); Lipton, Wang & Smola (2018), section 4 (black box);
Varadhan & Roland (2008), scheme S3 (extrapolation). The bound on L is the one of Lindsay (1983) for mixtures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError

__all__ = ["SMOOTHING", "EmFit", "black_box", "conditional", "fit_em", "joint_counts", "log_ratio", "smoothed"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

SMOOTHING = 0.5
"""Samples that are added to each class, so that no frequency is 0 (Jeffreys' prior)."""

_TOLERANCE = 1e-9
_MAX_CYCLES = 2000

# An extrapolated frequency is at least this part of the last one: one that is 0 would stay 0.
_KEPT = 0.1

# A probability below this counts as this: rounding to 0 must not rule a class out for good.
_TINY = 1e-30


@dataclass(frozen=True, eq=False)
class EmFit:
    """Frequencies that EM found for B weightings of the same samples.

    Attributes:
        priors: (B, C), rows add up to 1.
        gain: (B,) L(q), the log-likelihood above that of the old frequencies, nats a sample.
        gap: (B,) how much of it may be missing at most, nats a sample.
    """

    priors: FloatArray
    gain: FloatArray
    gap: FloatArray


def fit_em(
    probabilities: NDArray[np.floating],
    source: FloatArray,
    counts: NDArray[np.number[Any]] | None = None,
    *,
    start: FloatArray | None = None,
    tolerance: float = _TOLERANCE,
    max_cycles: int = _MAX_CYCLES,
) -> EmFit:
    """Fit class frequencies by EM.

    Args:
        probabilities: (N, C) calibrated P(y | x) of the samples.
        source: (C,) or (B, C) frequencies p that the probabilities were calibrated under, all positive.
        counts: (B, N) how often each sample counts; None is once.
        start: (C,) or (B, C) positive frequencies to begin with; None begins with `source`.
        tolerance: bound on what is missing from L, nats a sample.
        max_cycles: most cycles of three steps; then the result says how much may be missing.

    Source: Saerens et al. (2002), equation 2.9.

    >>> fit_em(np.array([[0.9, 0.1], [0.9, 0.1], [0.1, 0.9]]), np.array([0.5, 0.5])).priors.round(3)
    array([[0.708, 0.292]])
    """
    p = np.maximum(np.asarray(probabilities, np.float64), _TINY)
    weights = np.ones((1, len(p))) if counts is None else np.asarray(counts, np.float64)
    weights = weights / weights.sum(axis=1, keepdims=True)
    shape = (len(weights), p.shape[1])
    old = np.broadcast_to(source, shape)
    q = np.array(np.broadcast_to(source if start is None else start, shape), np.float64)
    slopes, gain = _slopes(p, weights, old, q)
    for _ in range(max_cycles):
        open_rows = np.flatnonzero(slopes.max(axis=1) - 1 > tolerance)
        if not len(open_rows):
            break
        q[open_rows], slopes[open_rows], gain[open_rows] = _cycle(
            p, weights[open_rows], old[open_rows], q[open_rows], slopes[open_rows], gain[open_rows]
        )
    return EmFit(q, gain, np.maximum(slopes.max(axis=1) - 1, 0))


def _slopes(p: FloatArray, weights: FloatArray, old: FloatArray, q: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return (g, L) at q."""
    mixed = (q / old) @ p.T
    return ((weights / mixed) @ p) / old, np.sum(weights * np.log(mixed), axis=1)


def _cycle(
    p: FloatArray, weights: FloatArray, old: FloatArray, q: FloatArray, slopes: FloatArray, gain: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Make two steps and an extrapolation, or a third step where that would lower L; return (q, g, L)."""
    first = q * slopes
    second = first * _slopes(p, weights, old, first)[0]
    step = first - q
    bend = second - first - step
    size = np.linalg.norm(bend, axis=1, keepdims=True)
    length = np.maximum(np.linalg.norm(step, axis=1, keepdims=True) / np.maximum(size, _TINY), 1.0)
    far = q + 2 * length * step + length**2 * bend
    far = np.maximum(far, _KEPT * second)
    far /= far.sum(axis=1, keepdims=True)
    far_slopes, far_gain = _slopes(p, weights, old, far)
    fell = far_gain < gain
    if fell.any():
        far[fell] = second[fell]
        far_slopes[fell], far_gain[fell] = _slopes(p, weights[fell], old[fell], second[fell])
    return far, far_slopes, far_gain


def joint_counts(labels: IntArray, predicted: IntArray, n_classes: int) -> FloatArray:
    """Return (C, C) counts: samples of class y that are predicted as k, at [k, y]."""
    cells = predicted * n_classes + labels
    counts: FloatArray = np.bincount(cells, minlength=n_classes**2).reshape(n_classes, n_classes).astype(np.float64)
    return counts


def conditional(joint: FloatArray) -> FloatArray:
    """Return K (C, C) from `joint_counts`: each column adds up to 1.

    Raises:
        DataError: a class without a sample.

    Source: Lipton et al. (2018), section 4.
    """
    totals = joint.sum(axis=0)
    if not np.all(totals > 0):
        raise DataError(f"class {int(np.argmin(totals))} has no sample, so nothing tells how it is predicted")
    shares: FloatArray = joint / totals
    return shares


def black_box(matrix: FloatArray, shares: FloatArray) -> FloatArray:
    """Solve K q = m; what is negative becomes 0, and the rest adds up to 1.

    Args:
        matrix: (C, C) K of `conditional`.
        shares: (C,) shares of predictions among the new samples.

    Raises:
        DataError: K is singular.

    Source: Lipton et al. (2018), section 4; in terms of q = w p in place of the weights w.

    >>> black_box(np.array([[0.9, 0.2], [0.1, 0.8]]), np.array([0.55, 0.45]))
    array([0.5, 0.5])
    """
    try:
        solved = np.linalg.solve(matrix, shares)
    except np.linalg.LinAlgError as error:
        raise DataError("the confusion matrix is singular: some classes are predicted alike") from error
    clipped = np.maximum(solved, 0)
    if not clipped.sum() > 0:
        raise DataError("the confusion matrix gives no class a positive frequency")
    frequencies: FloatArray = clipped / clipped.sum()
    return frequencies


def smoothed(frequencies: FloatArray, n: int) -> FloatArray:
    """Return frequencies of n samples with `SMOOTHING` samples more in each class: none is 0.

    >>> smoothed(np.array([1.0, 0.0]), 9)
    array([0.95, 0.05])
    """
    classes = frequencies.shape[-1]
    estimate: FloatArray = (n * frequencies + SMOOTHING) / (n + SMOOTHING * classes)
    return estimate


def log_ratio(source: FloatArray, target: FloatArray) -> FloatArray:
    """Return (C,) log(q / p), what is added to the logits.

    Source: Saerens et al. (2002), equation 2.4.
    """
    ratio: FloatArray = np.log(target) - np.log(source)
    return ratio
