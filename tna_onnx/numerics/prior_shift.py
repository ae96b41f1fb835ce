"""Class frequencies of samples without labels, how sure they are, and whether only frequencies have changed.

Under label shift P'(y | x) is proportional to P(y | x) q_y / p_y. Two estimates of q:

    EM          q maximises L(q) = mean_i log sum_y P(y | x_i) q_y / p_y: with its slopes g, q <- q g, and every third
                step is an extrapolation, kept where L has not fallen; L(best) - L(q) <= max g - 1 (Lindsay 1983)
    black box   K q = m, K_ky the share of class y that is predicted as k, m_k the share of predictions k; refused where
                the smallest singular value of K is below the spectral norm of its own noise

Draws give intervals, and the noise of the mean confidence less what classes explain, which is 0 under label shift.
Source: Saerens et al. (2002), equation 2.9; Lipton et al. (2018), section 4, theorem 3; Varadhan & Roland (2008), S3.
"""

import contextlib
import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

SMOOTHING = 0.5
"""Samples that are added to each class, so that no frequency is 0 (Jeffreys' prior)."""

RULED_OUT = -1e4
"""What is added to the logit of a class that cannot occur: finite in float16, and so far below the others that the
exponential of the difference is 0 in float64 too."""

_TOLERANCE = 1e-9
_MAX_CYCLES = 2000

# An extrapolated frequency is at least this part of the last one: one that is 0 would stay 0.
_KEPT = 0.1

# A probability below this counts as this: rounding to 0 must not rule a class out for good.
_TINY = 1e-30


@dataclass(frozen=True, eq=False)
class EmFit:
    """Frequencies that EM found for B weightings of the same samples."""

    priors: FloatArray  # (B, C), rows add up to 1
    gain: FloatArray  # (B,) L(q), the log-likelihood above that of the old frequencies, nats a sample
    gap: FloatArray  # (B,) how much of it may be missing at most, nats a sample


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

    Source: Saerens et al. (2002), equation 2.9.

    `probabilities`: (N, C) calibrated P(y | x) of the samples. `source`: (C,) or (B, C) frequencies p that the
    probabilities were calibrated under, all positive. `counts`: (B, N) how often each sample counts; None is once.
    `start`: (C,) or (B, C) positive frequencies to begin with; None begins with `source`. `tolerance`: bound on what is
    missing from L, nats a sample. `max_cycles`: most cycles of three steps; then the result says how much may be
    missing.

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


def joint_counts(
    labels: IntArray, predicted: IntArray, n_classes: int, counts: NDArray[np.integer] | None = None
) -> FloatArray:
    """Return (C, C) sums: samples of class y that are predicted as k, at [k, y]; `counts`: how often each counts."""
    sums = np.bincount(predicted * n_classes + labels, counts, n_classes**2)
    return sums.reshape(n_classes, n_classes).astype(np.float64)


def conditional(joint: FloatArray) -> FloatArray:
    """Return K (C, C) from `joint_counts`: each column adds up to 1.

    Source: Lipton et al. (2018), section 4.
    """
    totals = joint.sum(axis=0)
    if not np.all(totals > 0):
        raise DataError(f"class {int(np.argmin(totals))} has no sample, so nothing tells how it is predicted")
    shares: FloatArray = joint / totals
    return shares


def black_box(matrix: FloatArray, shares: FloatArray) -> FloatArray:
    """Solve K q = m; what is negative becomes 0, and the rest adds up to 1.

    Source: Lipton et al. (2018), section 4; in terms of q = w p in place of the weights w.

    `matrix`: (C, C) K of `conditional`; `shares`: (C,) shares of predictions among the new samples.

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

    Where a class has the frequency q_y = 0, it gets `RULED_OUT`, and the largest of the others gets 0.

    Source: Saerens et al. (2002), equation 2.4.
    """
    possible = target > 0
    ratio: FloatArray = np.log(np.where(possible, target, 1.0)) - np.log(source)
    if possible.all():
        return ratio
    return np.where(possible, ratio - ratio[possible].max(), RULED_OUT)


# Draws side by side: as many as keep the weights of the samples within this many numbers.
_NUMBERS = 20_000_000

# Draws that show the noise of K.
_NOISE_DRAWS = 20

# Of L, nats a sample: intervals need no more digits, as L is flat around its maximum.
_DRAWN_TOLERANCE = 1e-6
_DRAWN_CYCLES = 100


@dataclass(frozen=True, eq=False)
class Observed:
    """What a model says of M labelled samples and of N others."""

    labels: IntArray  # class indices (M,)
    old: NDArray[np.floating]  # P(y | x) of the labelled samples, (M, C)
    probabilities: NDArray[np.floating]  # P(y | x) of the others, (N, C)
    source: FloatArray  # (C,) frequencies p that the probabilities are calibrated under, all positive
    counted: bool  # whether p was counted on the labels, so that it has their noise

    @property
    def n_classes(self) -> int:
        """Number of classes C."""
        return int(self.probabilities.shape[1])

    @functools.cached_property
    def old_predicted(self) -> IntArray:
        """Predicted classes of the labelled samples, (M,)."""
        return np.asarray(self.old.argmax(axis=1))

    @functools.cached_property
    def old_confidence(self) -> FloatArray:
        """Largest probabilities of the labelled samples, (M,)."""
        return np.asarray(self.old.max(axis=1), np.float64)

    @property
    def joint(self) -> FloatArray:
        """(C, C) counts, see `joint_counts`."""
        return joint_counts(self.labels, self.old_predicted, self.n_classes)


@dataclass(frozen=True, eq=False)
class Draws:
    """Estimates of B draws."""

    em: FloatArray  # (B, C) frequencies
    black_box: FloatArray | None  # (B, C) frequencies; None where they are not asked for, or a K is singular
    surprise: FloatArray  # (B,) differences of confidence, fractions


def redraw(observed: Observed, em: FloatArray, count: int, seed: int, *, with_black_box: bool) -> Draws:
    """Draw both sets of samples again and estimate on each draw.

    `em`: (C,) estimate of EM on them, where the fits begin.
    """
    rng = np.random.default_rng(seed)
    n, classes = observed.probabilities.shape
    m = len(observed.labels)
    predicted = observed.probabilities.argmax(axis=1)
    confidence = observed.probabilities.max(axis=1).astype(np.float64)
    start = smoothed(em, n)
    draws_a_block = max(1, _NUMBERS // n)
    em_rows = []
    box_rows = []
    surprises = []
    for first in range(0, count, draws_a_block):
        size = min(draws_a_block, count - first)
        counts = rng.multinomial(n, np.full(n, 1 / n), size=size)
        old_counts = rng.multinomial(m, np.full(m, 1 / m), size=size)
        fitted = fit_em(
            observed.probabilities,
            _redrawn_source(observed, old_counts),
            counts,
            start=start,
            tolerance=_DRAWN_TOLERANCE,
            max_cycles=_DRAWN_CYCLES,
        ).priors
        em_rows.append(fitted)
        for row, old_row, q in zip(counts, old_counts, fitted, strict=True):
            surprises.append(float(row @ confidence) / n - _expected(observed, old_row, q))
            if with_black_box:
                shares = np.bincount(predicted, row, classes) / n
                # a draw may have made K singular
                with contextlib.suppress(DataError):
                    box_rows.append(black_box(_redrawn(observed, old_row), shares))
    complete = with_black_box and len(box_rows) == count
    return Draws(np.concatenate(em_rows), np.stack(box_rows) if complete else None, np.array(surprises))


def _redrawn_source(observed: Observed, counts: NDArray[np.integer]) -> FloatArray:
    """Return the frequencies before, (C,), or (B, C) where they come from the labelled samples of each draw."""
    if not observed.counted:
        return observed.source
    m = len(observed.labels)
    by_class = np.stack([np.bincount(observed.labels, row, observed.n_classes) for row in counts])
    return smoothed(by_class / m, m)


def _redrawn(observed: Observed, counts: NDArray[np.integer]) -> FloatArray:
    """Return K of a draw; a class that it lost keeps its column."""
    joint = joint_counts(observed.labels, observed.old_predicted, observed.n_classes, counts)
    lost = joint.sum(axis=0) == 0
    joint[:, lost] = observed.joint[:, lost]
    return conditional(joint)


def _expected(observed: Observed, counts: NDArray[np.integer], q: FloatArray) -> float:
    """Return the mean confidence of old samples, classes weighted by q; over the classes that have samples."""
    totals = np.bincount(observed.labels, counts, observed.n_classes)
    sums = np.bincount(observed.labels, counts * observed.old_confidence, observed.n_classes)
    occupied = totals > 0
    share = q[occupied] / max(q[occupied].sum(), np.finfo(np.float64).tiny)
    return float(share @ (sums[occupied] / totals[occupied]))


def disagreement(first: FloatArray, second: FloatArray) -> float:
    """Return the total variation between frequencies, a fraction.

    >>> disagreement(np.array([0.5, 0.5]), np.array([0.4, 0.6]))
    0.1
    """
    return round(float(np.abs(first - second).sum()) / 2, 15)


def surprise(observed: Observed, q: FloatArray) -> float:
    """Return the mean confidence on the new samples less what their classes explain, a fraction."""
    confidence = float(observed.probabilities.max(axis=1).mean(dtype=np.float64))
    return confidence - _expected(observed, np.ones(len(observed.labels), np.int64), q)


def gains_by_noise(observed: Observed, count: int, seed: int) -> FloatArray:
    """Return what EM gains where nothing has changed, (count,) nats a sample.

    Labelled samples, drawn so that classes are as frequent as p says, stand for the N new ones, and their probabilities
    are taken for true: the frequencies before are the mean of these or, where p was counted, shares of M draws of it.
    """
    rng = np.random.default_rng(seed)
    n, m = len(observed.probabilities), len(observed.labels)
    counts = np.bincount(observed.labels, minlength=observed.n_classes)
    share = (observed.source / np.maximum(counts, 1))[observed.labels]
    share /= share.sum()
    mean = np.maximum(share @ observed.old.astype(np.float64), _TINY)
    mean /= mean.sum()
    gains = []
    block = max(1, _NUMBERS // m)
    for first in range(0, count, block):
        size = min(block, count - first)
        source = smoothed(rng.multinomial(m, mean, size=size) / m, m) if observed.counted else mean
        new = rng.multinomial(n, share, size=size)
        # twice the gain of all N to a fiftieth
        gains.append(fit_em(observed.old, source, new, tolerance=0.01 / n, max_cycles=_DRAWN_CYCLES).gain)
    return np.concatenate(gains)


def p_of_draws(value: float, drawn: FloatArray) -> float:
    """Return how often noise alone makes a number as large as the one that was found, by (B,) draws of that noise.

    >>> p_of_draws(3.0, np.array([1.0, 2.0, 4.0]))
    0.5
    """
    return (1 + int(np.count_nonzero(drawn >= value))) / (1 + len(drawn))


def p_of_normal(value: float, drawn: FloatArray) -> float:
    """Return how often a normal distribution with the spread of the draws is as far from 0."""
    spread = float(np.std(drawn))
    if spread == 0:
        return float(value == 0)
    return math.erfc(abs(value) / spread / math.sqrt(2))


def invertible(observed: Observed, seed: int) -> str:
    """Return why K cannot be inverted; empty if it can. `seed`: of the draws that show the noise."""
    try:
        matrix = conditional(observed.joint)
    except DataError as error:
        return str(error)
    smallest = float(np.linalg.svd(matrix, compute_uv=False)[-1])
    rng = np.random.default_rng(seed)
    # columns from their posterior, with Perks' prior: one sample drawn again would always be the same
    prior = observed.joint + 1 / observed.n_classes
    drawn = (rng.standard_gamma(prior) for _ in range(_NOISE_DRAWS))
    noise = float(np.mean([np.linalg.norm(joint / joint.sum(axis=0) - matrix, 2) for joint in drawn]))
    if smallest > noise:
        return ""
    return (
        f"the confusion matrix may be singular: its smallest singular value is {smallest:.3g}, its noise {noise:.3g}; "
        "classes are confused too much, or have too few samples"
    )
