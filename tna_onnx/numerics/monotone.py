"""Isotonic regression of binary outcomes on probabilities, as a correction of their log-odds with few knots.

1. Cells. The log-odds of the probability, cut to [-9, 9], are split into 72 cells of width 1/4. A cell counts as its
   centre, with n samples of which k are outcomes: cells are small where probabilities are crowded, near 0 and 1.
2. Pool adjacent violators on the cells (`pool`): blocks of N samples, one frequency y.
3. Shrinkage. A block without outcomes says "never" after ten samples as after ten thousand, and a new sample that it is
   wrong for would cost an infinite NLL. So each cell, at probability p, gets the posterior mean

       f(p) = (N y + m p) / (N + m),        m = 4 / (p (1 - p))

   under a beta prior around p. The prior's standard deviation is close to p (1 - p) / 2: half a unit of log-odds,
   everywhere. f increases within a block whatever y is; where blocks meet, violators are pooled once more.
4. Empty cells: the correction log-odds of f less log-odds of p is interpolated over log-odds, and constant outside.
5. Thinning: knots that interpolation between the others restores within `TOLERANCE` of probability are dropped. Between
   knots the correction is linear in p, so that f may fall there, by about as much.

Source: Zadrozny & Elkan (2002), "Transforming classifier scores into accurate multiclass probability estimates".
"""

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.ops import rows_of

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
    hits = np.bincount(cell[outcome], rows_of(weights, outcome), len(CENTRES))
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
    while open_pieces:
        first, last = open_pieces.pop()
        if last - first < 2:
            continue
        between = np.arange(first + 1, last)
        line = y[first] + (x[between] - x[first]) / (x[last] - x[first]) * (y[last] - y[first])
        excess = np.abs(line - y[between]) / allowed[between]
        worst = int(np.argmax(excess))
        if excess[worst] > 1:
            corners.add(int(between[worst]))
            open_pieces += [(first, int(between[worst])), (int(between[worst]), last)]
    return np.array(sorted(corners), np.intp)
