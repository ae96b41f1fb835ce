"""Scores of which conformal sets are made, in NumPy: what `graph.decisions` writes as nodes.

Only sizes are computed here, to choose a temperature; thresholds come from what the graph itself computes.

Source: as in `graph.decisions.SetScore`; L. Dabah, T. Tirer, On Temperature Scaling and Conformal Prediction of Deep
Classifiers, arXiv:2402.05806, section 3 (a temperature that calibrates enlarges adaptive sets).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tna_onnx.numerics.conformal import quantile

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

__all__ = ["mean_size", "small_set_temperature", "tempered"]

# From 1/4 to 4: beyond, probabilities round to 0 and 1, or are equal for all classes.
# As float32, which is what the graph divides by.
_TEMPERATURES = np.geomspace(0.25, 4, 25).astype(np.float32)


def tempered(p: NDArray[Any], temperature: float) -> NDArray[np.float64]:
    """Return p^(1/T) / sum, (N, C)."""
    with np.errstate(divide="ignore"):
        logs = np.log(p) / temperature
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def mean_size(
    p: NDArray[Any], labels: NDArray[np.int64], level: float, name: str, penalty: NDArray[Any] | None = None
) -> float:
    """Return the mean number of classes in sets whose threshold comes from the same samples; infinity if too few.

    Args:
        p: (N, C) probabilities.
        labels: (N,).
        level: of the coverage, in (0, 1).
        name: `lac`; or anything else for sums from the largest probability down.
        penalty: (C,) that is added to these sums by rank, if any.
    """
    rows = np.arange(len(p))
    # scores from the likeliest class down; float32, as ties of the graph count
    order = np.argsort(-p, axis=1, kind="stable")
    falling = np.take_along_axis(p, order, axis=1).astype(np.float32)
    scores = 1 - falling
    if name != "lac":
        scores = np.cumsum(falling, axis=1, dtype=np.float32)
        if penalty is not None:
            scores = scores + penalty.astype(np.float32)
    ranks = np.argmax(order == labels[:, None], axis=1)
    threshold = quantile(scores[rows, ranks], level)
    if math.isinf(threshold):
        return math.inf
    return float(np.mean(np.sum(scores <= np.float32(threshold), axis=1)))


def small_set_temperature(
    p: NDArray[Any], labels: NDArray[np.int64], level: float, name: str, penalty: NDArray[Any] | None = None
) -> float:
    """Return the temperature with the smallest sets, as a number that float32 holds; 1 where none has smaller ones.

    Arguments are those of `mean_size`.
    """
    best = 1.0
    smallest = mean_size(p, labels, level, name, penalty)
    for temperature in map(float, _TEMPERATURES):
        size = mean_size(tempered(p, temperature), labels, level, name, penalty)
        if size < smallest:
            best, smallest = temperature, size
    return best
