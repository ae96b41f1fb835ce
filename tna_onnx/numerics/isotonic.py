"""Isotonic regression of binary outcomes on probabilities, as few knots of a piecewise linear function.

1. Cells. Samples are sorted by probability and merged into cells of at least 1/1024 between the means of neighbours. A
   cell counts as one point (mean p, mean y) with its number of samples as weight. This bounds the slope of what is
   fitted, which low-precision arithmetic needs, and gives the crowd near p = 1 its mean in place of a staircase.
2. Pool adjacent violators on the cells (`scipy.optimize.isotonic_regression`).
3. Knots: of each constant piece its first and last cell; between knots the function is linear, outside constant.
4. Thinning: knots that linear interpolation between the others restores within 0.002 are dropped.

Source: Zadrozny & Elkan (2002), "Transforming classifier scores into accurate multiclass probability estimates".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

__all__ = ["CELL", "TOLERANCE", "cells", "isotonic_knots", "pool"]

CELL = 1 / 1024
"""Smallest distance of neighbouring knots; slopes are at most its inverse."""

TOLERANCE = 0.002
"""Largest error in probability that thinning may make at a cell."""


def isotonic_knots(
    probability: NDArray[np.floating], outcome: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Fit a non-decreasing piecewise linear function of the probability.

    Args:
        probability: (N,) in [0, 1], N >= 1.
        outcome: (N,) whether the class was the label.

    Returns:
        (x, y), K knots each: x ascending by at least `CELL`, y non-decreasing in [0, 1].

    >>> x, y = isotonic_knots(np.array([0.1, 0.2, 0.8, 0.9]), np.array([False, True, False, True]))
    >>> x.tolist(), y.tolist()
    ([0.1, 0.2, 0.8, 0.9], [0.0, 0.5, 0.5, 1.0])
    """
    x, y, weight = cells(probability, outcome)  # step 1
    fitted = pool(y, weight)  # step 2
    # step 3: a cell whose neighbours have its value is inside a constant piece
    inner = np.r_[False, (fitted[1:-1] == fitted[:-2]) & (fitted[1:-1] == fitted[2:]), False][: len(x)]
    x = x[~inner]
    fitted = fitted[~inner]
    kept = _thin(x, fitted)  # step 4
    return x[kept], fitted[kept]


def cells(
    probability: NDArray[np.floating], outcome: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return (mean p, mean y, count) of cells whose means are at least `CELL` apart."""
    p = np.asarray(probability, np.float64)
    # probability 1 belongs to the last cell
    cell = np.minimum((p / CELL).astype(np.int64), round(1 / CELL) - 1)
    count = np.bincount(cell)
    p_sum = np.bincount(cell, p)
    y_sum = np.bincount(cell[outcome], minlength=len(count))
    filled = np.flatnonzero(count)
    xs = p_sum[filled]
    ys = y_sum[filled].astype(np.float64)
    sizes = count[filled].astype(np.float64)
    # mostly so, and then there is nothing to merge one by one
    if np.all(np.diff(xs / sizes) >= CELL):
        return xs / sizes, ys / sizes, sizes
    merged: list[tuple[float, float, float]] = []
    for x, y, size in zip(xs.tolist(), ys.tolist(), sizes.tolist(), strict=True):
        # the means of neighbouring cells can lie close to their common border: then they are one
        # merging moves the mean: the cell before that may be too close then
        while merged and x / size - merged[-1][0] / merged[-1][2] < CELL:
            x_before, y_before, size_before = merged.pop()
            x += x_before  # noqa: PLW2901
            y += y_before  # noqa: PLW2901
            size += size_before  # noqa: PLW2901
        merged.append((x, y, size))
    total = np.array(merged)
    return total[:, 0] / total[:, 2], total[:, 1] / total[:, 2], total[:, 2]


def pool(y: NDArray[np.float64], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the non-decreasing values closest to y, (K,), in weighted squares."""
    return np.asarray(isotonic_regression(y, weights=weight).x, np.float64)


def _thin(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.intp]:
    """Indices of the knots to keep: Douglas & Peucker (1973) with the vertical distance."""
    # outside of its knots the function is constant: the ends stay
    kept = {0, len(x) - 1}
    open_pieces = [(0, len(x) - 1)]
    while open_pieces:
        first, last = open_pieces.pop()
        if last - first < 2:
            continue
        between = np.arange(first + 1, last)
        line = y[first] + (x[between] - x[first]) / (x[last] - x[first]) * (y[last] - y[first])
        worst = int(np.argmax(np.abs(line - y[between])))
        if abs(line[worst] - y[between[worst]]) > TOLERANCE:
            kept.add(int(between[worst]))
            open_pieces += [(first, int(between[worst])), (int(between[worst]), last)]
    return np.array(sorted(kept), np.intp)
