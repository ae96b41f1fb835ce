"""Isotonic regression of binary outcomes on probabilities, with few knots, and the CORP decomposition (`Corp`).

1. Log-odds, cut to [-9, 9], are split into 72 cells of 1/4; a cell counts as its centre.
2. Pool adjacent violators (`pool`): blocks of N samples, one frequency y.
3. A cell at probability p gets f(p) = (N y + m p) / (N + m), m = 4 / (p (1 - p)): a beta prior of half a unit of
   log-odds. Where blocks meet, violators are pooled once more.
4. The correction, log-odds of f less those of p, is linear between cells and constant outside.
5. Knots that interpolation restores within `TOLERANCE` of probability are dropped.

CORP, f the isotonic fit of hits on the confidence c, a the accuracy, S a mean score: S(c) = (S(c) - S(f)) -
(S(a) - S(f)) + S(a), miscalibration - discrimination + uncertainty; hits drawn with c give its band under calibration.
Source: Zadrozny & Elkan (2002); Dimitriadis, Gneiting & Jordan (2021), PNAS 118(8), equation 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.ops import rows_of
from tna_onnx.numerics.reliability import ties_of
from tna_onnx.numerics.scores import SampleScores, weighted_mean

FloatArray = NDArray[np.float64]

# Width of a cell in log-odds: a probability of 0.5 changes by 0.06, one of 0.99 by 0.0025.
_WIDTH = 0.25

# Largest log-odds of a cell. The closest centres are 3e-5 apart there: a ramp between them is 32,400 steep, and float16
# ends at 65,504.
_RANGE = 9.0

# m p (1 - p), step 3 of the module docstring: a standard deviation of 1/2 in log-odds. After a temperature a class is
# seldom off by more than a unit.
_PRIOR = 4.0

CENTRES: FloatArray = np.arange(-_RANGE, _RANGE, _WIDTH) + _WIDTH / 2
"""Log-odds of the cells' centres, (72,)."""

TOLERANCE = 0.002
"""Largest error in probability that thinning may make at a cell."""

# A million samples of a probability take 16.
_MAX_ROUNDS = 64

# Largest error in log-odds that thinning may make, where probabilities are so small that `TOLERANCE` allows more.
_MAX_SHIFT = 0.05


def isotonic_log_odds(
    probability: NDArray[np.floating], outcome: NDArray[np.bool_], weights: FloatArray | None = None
) -> FloatArray:
    """Fit a non-decreasing function f of the probability.

    Gives (72,) log-odds of f at the cells' centres, non-decreasing. `probability`: (N,) in [0, 1], N >= 1. `outcome`:
    (N,) whether the class was the label. `weights`: (N,) of the samples; None where all count the same.

    >>> high, low = np.full(1000, 0.9), np.full(1000, 0.1)
    >>> hits = np.arange(1000) < 700
    >>> f = isotonic_log_odds(np.r_[low, high], np.r_[~hits, hits])
    >>> log_odds = np.interp([-2.2, 2.2], CENTRES, f)
    >>> (1 / (1 + np.exp(-log_odds))).round(1).tolist()
    [0.3, 0.7]
    """
    count, hits = cells(probability, outcome, weights)  # step 1
    filled = np.flatnonzero(count)
    frequency, size = pool(hits[filled] / count[filled], count[filled])  # step 2
    p = expit(CENTRES[filled])
    prior = _PRIOR / (p * (1 - p))
    posterior, _ = pool((size * frequency + prior * p) / (size + prior), count[filled] + prior)  # step 3
    shift = logit(posterior) - CENTRES[filled]
    fitted: FloatArray = CENTRES + np.interp(CENTRES, CENTRES[filled], shift)  # step 4
    return fitted


def expit(x: FloatArray | float) -> FloatArray:
    """Return the probability of log-odds; SciPy has the same, and takes a quarter of a second to load."""
    p: FloatArray = 1 / (1 + np.exp(-np.asarray(x, np.float64)))
    return p


def logit(p: FloatArray) -> FloatArray:
    """Return the log-odds of a probability."""
    log_odds: FloatArray = np.log(p) - np.log1p(-p)
    return log_odds


def cells(
    probability: NDArray[np.floating], outcome: NDArray[np.bool_], weights: FloatArray | None = None
) -> tuple[FloatArray, FloatArray]:
    """Return how many samples, and how many outcomes, each cell has, or their weights: (72,) each."""
    p = np.asarray(probability, np.float64)
    # the ends belong to the outermost cells
    log_odds = logit(np.clip(p, expit(-_RANGE), expit(_RANGE)))
    cell = np.clip(((log_odds + _RANGE) / _WIDTH).astype(np.int64), 0, len(CENTRES) - 1)
    count = np.bincount(cell, weights, len(CENTRES))
    right = np.flatnonzero(outcome)  # few of a class: by their numbers, NumPy takes them in half the time
    hits = np.bincount(cell[right], rows_of(weights, right), len(CENTRES))
    return count.astype(np.float64), hits.astype(np.float64)


def pool(y: FloatArray, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the non-decreasing values closest to y in weighted squares, and the weights of their blocks: (K,) each.

    Every run of blocks that do not increase becomes one block, until all increase. What takes many rounds is left to
    SciPy, which takes a quarter of a second to load.
    """
    size = np.asarray(weight, np.float64)
    value = np.asarray(y, np.float64)
    start = np.arange(len(value))
    for _ in range(_MAX_ROUNDS):
        first = np.append(0, np.flatnonzero(value[1:] > value[:-1]) + 1)
        if len(first) == len(value):
            break
        total = np.add.reduceat(value * size, first)
        size = np.add.reduceat(size, first)
        value = total / size
        start = start[first]
    else:
        from scipy.optimize import isotonic_regression  # noqa: PLC0415 - heavy

        fitted = isotonic_regression(value, weights=size)
        length = np.diff(fitted.blocks)
        value, size = fitted.x, np.repeat(fitted.weights, length)
    lengths = np.diff(np.r_[start, len(y)])
    return np.repeat(value, lengths), np.repeat(size, lengths)


def thinned(x: FloatArray, log_odds: FloatArray, correction: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the knots (x, correction) that are needed where the correction is linear in x between, K each: step 5.

    `x`: (72,) ascending, at the cells' centres; `log_odds`: (72,) of f there; `correction`: (72,) what is added to a
    logit there.
    """
    f = expit(log_odds)
    # a logit that moves by d moves its probability by f (1 - f) d
    allowed: FloatArray = np.minimum(_MAX_SHIFT, TOLERANCE / (f * (1 - f)))
    corners = _kept(x, correction, allowed)
    return x[corners], correction[corners]


def _kept(x: FloatArray, y: FloatArray, allowed: FloatArray) -> NDArray[np.intp]:
    """Indices of the knots to keep: Douglas & Peucker (1973) with the vertical distance."""
    # outside of its knots the function is constant: the ends stay
    corners = {0, len(x) - 1}
    open_pieces = [(0, len(x) - 1)]
    knots = [*zip(x.tolist(), y.tolist(), allowed.tolist(), strict=True)]
    while open_pieces:
        first, last = open_pieces.pop()
        if last - first < 2:
            continue
        (x0, y0, _), (x1, y1, _) = knots[first], knots[last]
        excess = [abs(y0 + (u - x0) / (x1 - x0) * (y1 - y0) - v) / limit for u, v, limit in knots[first + 1 : last]]
        worst = max(excess)
        if worst > 1:
            corner = first + 1 + excess.index(worst)
            corners.add(corner)
            open_pieces += [(first, corner), (corner, last)]
    return np.array(sorted(corners), np.intp)


BAND_LEVEL = 0.95
"""Share of the curves of calibrated models that lie in the band, at each confidence."""

# 5 of the resamples lie beyond each side of the band.
_RESAMPLES = 200
_MAX_GROUPS = 2000
# Points of a curve; a drawing has three pixels for each.
_POINTS = 101

_Score = Callable[[FloatArray, FloatArray, FloatArray], FloatArray]


@dataclass(frozen=True)
class Decomposition:
    """A mean score of the top label in parts: score = miscalibration - discrimination + uncertainty.

    Attributes:
        miscalibration: what the best monotone map of the confidence would gain, in the unit of the metric.
        discrimination: what the order of the confidences gains over one confidence for all, in the unit of the metric.
        uncertainty: score of one confidence for all, the accuracy, in the unit of the metric.
        expected: miscalibration that a calibrated model has by chance, on average, in the unit of the metric.
    """

    miscalibration: float
    discrimination: float
    uncertainty: float
    expected: float


@dataclass(frozen=True)
class Curve:
    """The reliability curve without bins, at 101 confidences from the lowest to the highest; one if they are the same.

    Attributes:
        confidence: where the curve is read, fractions.
        accuracy: isotonic fit of the hits, fractions.
        low: lower end of the band in which the curves of calibrated models lie, fractions.
        high: upper end of that band, fractions.
    """

    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Corp:
    """What isotonic recalibration of the top label says of N samples.

    Attributes:
        nll: parts of the top label's binary NLL.
        brier: parts of the top label's squared error (hit - confidence)^2.
        others: mean NLL of the label among the other classes, 0 where it is predicted, nats.
        curve: reliability curve with its band.
    """

    nll: Decomposition
    brier: Decomposition
    others: float
    curve: Curve

    @classmethod
    def of(cls, scores: SampleScores, seed: int = 0) -> Corp:
        """Fit and resample N >= 1 scores."""
        data = _Cells.of(scores)
        fit, _ = pool(data.hits / data.count, data.count)
        binary = _binary_nll(scores)
        points = np.unique(np.linspace(data.confidence[0], data.confidence[-1], _POINTS))
        by_chance, *band = _calibrated(data.grouped(), points, np.random.default_rng(seed))
        nll = _decomposition(weighted_mean(binary, scores.weights), data, fit, _log_score, by_chance[0])
        squared = np.square(scores.hit - _confidence(scores))
        brier = _decomposition(weighted_mean(squared, scores.weights), data, fit, _squared_score, by_chance[1])
        curve = np.interp(points, data.confidence, fit)
        others = weighted_mean(scores.nll - binary, scores.weights)
        return cls(nll, brier, others, Curve(*(tuple(values.tolist()) for values in (points, curve, *band))))


@dataclass(frozen=True, eq=False)
class _Cells:
    """Samples of one confidence as a cell: ascending confidences (K,), samples and hits of each, as float64.

    With weights these are sums of weights, and `squares` of their squares.
    """

    confidence: FloatArray
    count: FloatArray
    hits: FloatArray
    squares: FloatArray

    @classmethod
    def of(cls, scores: SampleScores) -> _Cells:
        # one value for all samples of a confidence: their order is arbitrary
        if scores.weights is not None:
            scores = scores.take(scores.weights > 0)
        weights = scores.weigh(np.ones(len(scores)))
        confidence = _confidence(scores)
        cell = ties_of(confidence)
        columns = (weights * confidence, weights, weights * scores.hit, weights**2)
        total, count, hits, squares = (np.asarray(np.bincount(cell, values), np.float64) for values in columns)
        return cls(total / count, count, hits, squares)

    def grouped(self) -> _Cells:
        """Merge neighbours into groups of about equal size where there are many."""
        if len(self.count) <= _MAX_GROUPS:
            return self
        before = np.cumsum(self.count) - self.count
        group = (before * (_MAX_GROUPS / np.sum(self.count))).astype(np.intp)
        starts = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
        count = np.add.reduceat(self.count, starts)
        mean = np.add.reduceat(self.count * self.confidence, starts) / count
        return _Cells(mean, count, np.add.reduceat(self.hits, starts), np.add.reduceat(self.squares, starts))


def _calibrated(
    cells: _Cells, points: FloatArray, rng: np.random.Generator
) -> tuple[list[float], FloatArray, FloatArray]:
    """Draw hits under calibration.

    Returns the mean miscalibration of both scores, and the ends of the band of the isotonic fits at (P,) confidences.
    """
    shape = (_RESAMPLES, len(cells.count))
    # as many as would know a mean as well if they weighed the same: without weights the samples
    worth = np.maximum(1, np.round(cells.count**2 / cells.squares))
    hits = rng.binomial(worth.astype(np.int64), cells.confidence, shape) * (cells.count / worth)
    fits = np.stack([pool(row / cells.count, cells.count)[0] for row in hits])
    confidence = np.broadcast_to(cells.confidence, shape)
    gains = [
        score(cells.count, hits, confidence) - score(cells.count, hits, fits) for score in (_log_score, _squared_score)
    ]
    tail = (1 - BAND_LEVEL) / 2
    curves = np.stack([np.interp(points, cells.confidence, row) for row in fits])
    low, high = np.quantile(curves, [tail, 1 - tail], axis=0)
    return [float(np.mean(gain)) for gain in gains], low, high


def _log_score(count: FloatArray, hits: FloatArray, probability: FloatArray) -> FloatArray:
    """Mean binary NLL (...) of (..., K) hits in cells of (K,) samples under (K,) or (..., K) probabilities, nats."""
    # 0 log 0 is 0: PAV gives 0 and 1 only where it is right
    with np.errstate(divide="ignore", invalid="ignore"):
        right = np.where(hits > 0, hits * np.log(probability), 0.0)
        wrong = np.where(count > hits, (count - hits) * np.log1p(-probability), 0.0)
    likelihood = right + wrong
    return np.asarray(-np.sum(likelihood, axis=-1) / np.sum(count))


def _squared_score(count: FloatArray, hits: FloatArray, probability: FloatArray) -> FloatArray:
    """Mean squared error, as `_log_score`."""
    squares = hits * (1 - 2 * probability) + count * probability**2
    return np.asarray(np.sum(squares, axis=-1) / np.sum(count))


def _decomposition(mean: float, data: _Cells, fit: FloatArray, score: _Score, expected: float) -> Decomposition:
    """Split a mean score; rounding of float32 confidences must not make a part negative."""
    accuracy = np.full(len(fit), np.sum(data.hits) / np.sum(data.count))
    uncertainty = float(score(data.count, data.hits, accuracy))
    refined = float(score(data.count, data.hits, fit))
    return Decomposition(max(0.0, mean - refined), max(0.0, uncertainty - refined), uncertainty, max(0.0, expected))


def _binary_nll(scores: SampleScores) -> FloatArray:
    """NLL of whether the prediction is right, (N,), nats; at most the NLL of the label."""
    nll = scores.nll.astype(np.float64)
    with np.errstate(divide="ignore"):
        wrong = -np.log1p(-_confidence(scores))
    # a confidence that float32 rounds to 1 still left the label its probability
    return np.where(scores.hit, nll, np.minimum(wrong, nll))


def _confidence(scores: SampleScores) -> FloatArray:
    """Confidences as float64; probabilities are scored as a model gives them, and may round to more than 1."""
    return np.minimum(scores.confidence.astype(np.float64), 1)
