"""What a sample's scores are made of, for NumPy arrays: a search spends more time here than anywhere but in products.

With s the logits less the largest of their row, a sample's scores come from s_y of its label y, the sums of
e_c = exp s_c and of e_c^2, and whether y is the first c with s_c = 0. The largest, e_c = 1, is left out of the sums and
added in float64: a sure sample's loss is what the others add up to. These are added in the dtype of the logits, in runs
of at most 256 classes, and the runs in float64: a conversion of every element would take longer than all the rest.

No e_c is taken for less than the root of the smallest normal number (2e-19 of float32): processors take many times as
long for squares below normal numbers. It moves a sum with a 1 in it by less than 1e-12 for a million classes.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

__all__ = ["Terms", "numpy_terms", "terms"]

Terms = tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.float32], NDArray[np.float32]]
"""Confidence, hit, NLL and Brier score of samples (`SampleScores`)."""

# Classes that are summed in the dtype of the logits.
_RUN = 256

# Classes up to which arrays are turned over, since NumPy is slow along short rows.
_NARROW = 64


def numpy_terms(logits: NDArray[Any], labels: NDArray[Any]) -> Terms:
    """Return the scores of (N, C) logits against (N,) labels."""
    # exponentials of float16 would have three digits
    if logits.dtype == np.float16:
        logits = logits.astype(np.float32)
    return _narrow(logits, labels) if logits.shape[1] <= _NARROW else _wide(logits, labels)


def _wide(logits: NDArray[Any], labels: NDArray[Any]) -> Terms:
    rows = np.arange(len(logits))
    first = np.argmax(logits, axis=1)
    shifted = logits - logits[rows, first][:, None]
    own = shifted[rows, labels]
    _take_exponentials(shifted)
    ones = shifted[rows, first]  # or not a number, where a logit is infinite
    shifted[rows, first] = 0
    total, squares = _sums_of_runs(shifted)
    return terms(own, ones + total, ones + squares, first == labels)


def _narrow(logits: NDArray[Any], labels: NDArray[Any]) -> Terms:
    by_class = logits.T.copy()
    by_class -= by_class.max(axis=0)
    own = by_class[labels, np.arange(len(logits))]
    # down columns, finding all of the largest takes less time than finding the first
    largest = by_class == 0
    # mostly every row has one largest
    tied = np.count_nonzero(largest) != len(own)
    hits = np.argmax(largest, axis=0) == labels if tied else own == 0
    ones = np.sum(largest, axis=0) if tied else 1
    _take_exponentials(by_class)
    np.copyto(by_class, 0, where=largest)
    total, squares = _sums_of_columns(by_class)
    return terms(own, ones + total, ones + squares, hits)


def _take_exponentials(shifted: NDArray[Any]) -> None:
    least = _least_exponent(shifted.dtype)
    # cutting takes as long as the exponentials, and mostly there is nothing to cut
    if np.min(shifted, initial=0.0) < least:
        np.maximum(shifted, least, out=shifted)
    np.exp(shifted, out=shifted)


@functools.cache
def _least_exponent(dtype: np.dtype[Any]) -> float:
    """Return s of the least exp s with a square that is a normal number."""
    return math.ceil(math.log(np.finfo(dtype).tiny) / 2)


def terms(own: NDArray[Any], total: NDArray[Any], squares: NDArray[Any], hits: NDArray[np.bool_]) -> Terms:
    """Put the scores together: (N,) s_y, sum of e_c, sum of e_c^2, hits."""
    # the exponential of the largest logit is 1
    confidence = 1 / total
    nll = np.log(total) - own
    # sum_c (p_c - [c == y])^2 multiplied out: sum p^2 - 2 p_y + 1
    brier = squares * confidence**2 - 2 * np.exp(own) * confidence + 1
    return confidence.astype(np.float32), hits, nll.astype(np.float32), brier.astype(np.float32)


def _sums_of_columns(values: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sums, and sums of squares, over the first axis."""
    # one row after the other, which `sum` would not do for a lone sample
    total = values[0].copy()
    squares = values[0] ** 2
    for row in values[1:]:
        total += row
        squares += row * row
    return total.astype(np.float64), squares.astype(np.float64)


def _sums_of_runs(values: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sums, and sums of squares, over the second axis."""
    xp = array_api_compat.array_namespace(values)  # vecdot of NumPy is of its second version
    samples, classes = values.shape
    whole = classes - classes % _RUN
    rest = values[:, whole:]
    total = np.einsum("nc->n", rest).astype(np.float64)
    squares = xp.vecdot(rest, rest).astype(np.float64)
    if whole:
        # a view: rows are cut, and not moved
        runs = values[:, :whole].reshape(samples, -1, _RUN)
        total += np.einsum("nrc->nr", runs).sum(axis=1, dtype=np.float64)
        squares += xp.vecdot(runs, runs).sum(axis=1, dtype=np.float64)
    return total, squares
