"""Columns of labels that stand in another order than the model's outputs, told by how its predictions go with them.

With R[c, k] the correlation of the model's predictions of label c with column k, a permutation p of the columns with
sum_c R[c, p(c)] as large as possible (linear assignment) is found on one half of the samples and scored on the other,
both ways round. It is reported if the mean correlation of the labels that it moves is higher by 0.1, and by 4 standard
errors, on each half: a correlation of n samples has a standard error of at most 1 / sqrt(n).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tna_onnx.data.labels import listed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tna_onnx.data.source import IntArray

__all__ = ["order_warning"]

_MIN_GAIN = 0.1
_MIN_ERRORS = 4

# More labels make a matrix and an assignment that take long.
_MAX_LABELS = 4096


def order_warning(predicted: IntArray, marks: IntArray, names: Sequence[str] | None = None) -> str:
    """Say that another order of the columns fits the predictions better; empty if none does.

    Args:
        predicted: (N, C) of 0 and 1.
        marks: labels of the same samples, (N, C).
        names: of the labels, if known.
    """
    if marks.shape[1] > _MAX_LABELS or len(marks) < 2:
        return ""
    # at random: files often come sorted
    half = np.random.default_rng(0).permutation(len(marks)) % 2 == 0
    halves = [_correlations(predicted[rows], marks[rows]) for rows in (half, ~half)]
    orders = [_best(correlations) for correlations in halves]
    needed = max(_MIN_GAIN, _MIN_ERRORS / math.sqrt(len(marks) // 2))
    if any(_gain(order, other) < needed for order, other in zip(orders, reversed(halves), strict=True)):
        return ""
    moved = np.flatnonzero((orders[0] != np.arange(len(orders[0]))) & (orders[0] == orders[1]))
    pairs = [f"{_name(c, names)}: column {_name(orders[0][c], names)}" for c in moved.tolist()]
    return (
        "another order of the label columns fits the model's predictions much better "
        f"(for label {listed(pairs)}); give them in the order of the model's output"
    )


def _correlations(predicted: IntArray, marks: IntArray) -> NDArray[np.float64]:
    """Return R, (C, C); 0 where a column is constant."""
    p = predicted - predicted.mean(axis=0)
    y = marks - marks.mean(axis=0)
    size = np.sqrt(np.outer(np.sum(p * p, axis=0), np.sum(y * y, axis=0)))
    correlations: NDArray[np.float64] = np.divide(p.T @ y, size, out=np.zeros_like(size), where=size > 0)
    return correlations


def _best(correlations: NDArray[np.float64]) -> IntArray:
    """Return the column for each label."""
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 - heavy

    # as they stand, where nothing is better: a label that is never predicted has no column of its own
    order = np.asarray(linear_sum_assignment(correlations + 1e-9 * np.eye(len(correlations)), maximize=True)[1])
    return order.astype(np.int64)


def _gain(order: IntArray, correlations: NDArray[np.float64]) -> float:
    """Return by how much the mean correlation of the labels that an order moves is higher with it."""
    own = np.arange(len(order))
    moved = order != own
    if not moved.any():
        return 0.0
    return float(np.mean(correlations[own, order][moved] - np.diag(correlations)[moved]))


def _name(c: int, names: Sequence[str] | None) -> str:
    return names[c] if names else str(c)
