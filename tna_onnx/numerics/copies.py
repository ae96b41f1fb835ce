"""Samples that depend on one another: equal ones, near copies, and sequences in the order of the file.

With r the distance within which k = 32 of at most 4,096 drawn samples lie, e(d) = k (d / r)^D of them are expected
within d by chance. Two samples are near copies if e(d), by the smaller r, is below 1/1000 and d below r/4; and only if
there are more such pairs than chance gives, about N / 2000. D = log(2) / log(r / r'), the median over samples, with r'
the distance of the k/2-th. All of many samples are compared only where some of 400 have near copies.
Source of D: P. Grassberger & I. Procaccia, Measuring the strangeness of strange attractors, Physica D 9 (1983).
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

MIN_FEATURES = 16
"""With fewer features, distinct samples are often as close as copies, and no head learns a sample by heart."""

Pairs = NDArray[np.int64]

_CHANCE = 1e-3
_CLOSEST = 0.25  # of r
_NEIGHBOURS = 32  # k
_PROBES = 400
_OTHERS = 4096
_MOST_NUMBERS = 2**25  # 128 MB
_MANY = 2000
_PROJECTED = 16
_SLACK = 1.6  # projected distances vary: a copy is missed beyond this many times the expected one
_BLOCK = 2**22
_LINKS = 32


def equal_pairs(digests: NDArray[np.uint64]) -> Pairs:
    """Return pairs (P, 2) that link each of N samples to the one before it that has the same digest.

    >>> equal_pairs(np.array([7, 8, 7, 7], np.uint64)).tolist()
    [[0, 2], [2, 3]]
    """
    order = np.argsort(digests, kind="stable")
    same = digests[order][1:] == digests[order][:-1]
    return np.stack([order[:-1][same], order[1:][same]], axis=1)


def connected(n: int, pairs: Pairs) -> NDArray[np.int64]:
    """Return the group of each of n samples, (n,): the least index of those that pairs (P, 2) link, directly or not.

    >>> connected(5, np.array([[3, 4], [1, 3]])).tolist()
    [0, 1, 2, 1, 1]
    """
    group = np.arange(n)
    while len(pairs):
        least = group[pairs].min(axis=1)
        new = group.copy()
        # a sample's group follows too: else a chain would take as many rounds as it has links
        for at in (pairs[:, 0], pairs[:, 1], group[pairs[:, 0]], group[pairs[:, 1]]):
            np.minimum.at(new, at, least)
        new = new[new]
        if np.array_equal(new, group):
            break
        group = new
    return group


def near_copies(features: NDArray[Any], *, equal: bool = False) -> Pairs:
    """Return the pairs (P, 2) of samples that are near copies; of a large group, enough of them to connect it.

    `features`: (N, n) finite numbers. `equal`: whether equal features, but for those that are nearly all zero, are no
    chance, as where the same pixels are in two files; by default equal samples must be known otherwise.

    >>> rng = np.random.default_rng(0)
    >>> features = rng.standard_normal((200, 16))
    >>> features[100:150] = features[:50] + 0.01
    >>> near_copies(features)[:2].tolist()
    [[0, 100], [1, 101]]
    """
    n = len(features)
    none = np.zeros((0, 2), np.int64)
    if n <= 2 * _NEIGHBOURS or features.shape[1] < MIN_FEATURES:
        return none
    # of the samples that distances are measured to, and of a projection
    rng = np.random.default_rng(0)
    # of very wide features fewer, which are copied
    n_references = min(_OTHERS, max(4 * _NEIGHBOURS, _MOST_NUMBERS // features.shape[1]))
    references = np.sort(rng.permutation(n)[:n_references])
    probes = np.sort(rng.permutation(n)[:_PROBES])
    closer, width = _neighbours(features, probes, references)
    usable = closer > 0
    # nearly all features are the same: there is no width to hold a distance against
    if 2 * np.count_nonzero(usable) < len(probes):
        return none
    ratio = float(np.median(width[usable] / closer[usable]))
    dimension = math.log(2) / math.log(max(ratio, 1 + 1e-6))
    limit = min(_CLOSEST, (_CHANCE / _NEIGHBOURS) ** (1 / dimension))
    points = _Points(features, rng)
    if n > _MANY and not len(
        _confirmed(features, points.closer(probes, limit * width), references, dimension, equal=equal)
    ):
        return none
    rows = np.arange(n)
    _, width = _neighbours(features, rows, references)
    pairs = _confirmed(features, points.closer(rows, limit * width, later=True), references, dimension, equal=equal)
    by_chance = n * _CHANCE / 2
    if len(pairs) > by_chance + 4 * math.sqrt(by_chance) + 2:
        return pairs
    return none


def _neighbours(
    features: NDArray[Any], rows: NDArray[np.int64], references: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the distances (len(rows),) of rows to their k/2-th and k-th neighbour among others."""
    origin = np.asarray(features[references[:_NEIGHBOURS]], np.float32).mean(axis=0)
    reference_rows = np.asarray(features[references], np.float32) - origin
    squares = np.einsum("ij,ij->i", reference_rows, reference_rows)
    ranks = (_NEIGHBOURS // 2 - 1, _NEIGHBOURS - 1)
    parts = []
    step = max(1, _BLOCK // max(len(references), features.shape[1]))
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        block = np.asarray(features[part], np.float32) - origin
        distance = squares - 2 * block @ reference_rows.T + np.einsum("ij,ij->i", block, block)[:, None]
        # a sample is no neighbour of itself
        distance[references[None] == part[:, None]] = np.inf
        # two columns alone are kept: all of them would be as many numbers as there are pairs
        parts.append(np.partition(distance, ranks, axis=1)[:, ranks])
    distances = np.concatenate(parts).astype(np.float64)
    closer, width = np.sqrt(np.maximum(distances, 0)).T
    return closer, width


def _confirmed(
    features: NDArray[Any], candidates: Pairs, references: NDArray[np.int64], dimension: float, *, equal: bool
) -> Pairs:
    """Return those of some pairs (P, 2) that are near copies, in features of a dimension D."""
    if not len(candidates):
        return candidates
    distance = _distances(features, candidates[:, 0], candidates[:, 1])
    rows, at = np.unique(candidates, return_inverse=True)
    _, width = _neighbours(features, rows, references)
    width = width[at.reshape(candidates.shape)].min(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = _NEIGHBOURS * (distance / width) ** dimension
    # features that are all zero, or of few values, are equal by chance; equal samples are known by their digests
    counts = distance > 0
    if equal:
        same = np.flatnonzero(~counts)
        counts[same] = [np.count_nonzero(features[row]) >= MIN_FEATURES // 2 for row in candidates[same, 0]]
    near: Pairs = candidates[(expected < _CHANCE) & (distance < _CLOSEST * width) & counts]
    return near


def _distances(features: NDArray[Any], first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.float64]:
    distances = np.empty(len(first))
    dtype = np.result_type(features.dtype, np.float32)  # of both sides: equal features have a distance of 0
    step = max(1, _BLOCK // features.shape[1])
    for start in range(0, len(first), step):
        at = slice(start, start + step)
        difference = features[first[at]].astype(dtype) - features[second[at]]
        distances[at] = np.sqrt(np.einsum("ij,ij->i", difference, difference, dtype=np.float64))
    return distances


class _Points:
    """Samples in a space of few dimensions, where those that are close to each other are found fast.

    Args:
        features: (N, n).
        rng: of the projection.
    """

    def __init__(self, features: NDArray[Any], rng: np.random.Generator) -> None:
        n, dimensions = features.shape
        step = max(1, _BLOCK // dimensions)
        # any point near them will do: distances do not change, and are rounded less
        origin = np.asarray(features[:_NEIGHBOURS], np.float32).mean(axis=0)
        rows = (np.asarray(features[start : start + step], np.float32) - origin for start in range(0, n, step))
        self._factor = 1.0
        if dimensions > _PROJECTED:
            directions = np.linalg.qr(rng.standard_normal((dimensions, _PROJECTED)))[0].astype(np.float32)
            points = np.concatenate([block @ directions for block in rows])
            self._factor = _SLACK * math.sqrt(_PROJECTED / dimensions)
        else:
            points = np.concatenate(list(rows))
        squares = np.einsum("ij,ij->i", points, points)
        ones = np.ones_like(squares)
        # |a - b|^2 as one product
        self._left = np.c_[-2 * points, squares, ones]
        self._right = np.c_[points, ones, squares]

    def closer(self, rows: NDArray[np.int64], limits: NDArray[np.float64], *, later: bool = False) -> Pairs:
        """Return pairs (P, 2) of rows and others that may be closer than a limit; at most 32 for each row.

        `limits`: distance in the space of the features for each of them; `later`: hold each, of all rows, against those
        after it only.
        """
        n = len(self._left)
        bounds = np.asarray((self._factor * limits) ** 2, np.float32)
        pair_lists = [np.zeros((0, 2), np.int64)]
        step = max(1, _BLOCK // n)
        for start in range(0, len(rows), step):
            first = rows[start : start + step]
            offset = start if later else 0
            close = self._left[first] @ self._right[offset:].T <= bounds[start : start + step, None]
            row, column = np.nonzero(close)
            pairs = np.stack([first[row], column + offset], axis=1)
            distinct = pairs[:, 1] > pairs[:, 0] if later else pairs[:, 1] != pairs[:, 0]
            row = row[distinct]
            rank = np.arange(len(row)) - np.searchsorted(row, row)
            pair_lists.append(pairs[distinct][rank < _LINKS])
        return np.concatenate(pair_lists)


# Samples that far apart are still looked at together.
_LAGS = 10


def order_dependence(values: NDArray[Any], labels: NDArray[np.int64], predicted: NDArray[np.int64]) -> float:
    """Return how many standard errors the products of neighbours in the order of the samples lie above 0.

    Of (N,) values less the mean of their label, as files often come sorted by class; or, where they do not, of errors,
    1 at the label and -1 at the predicted class, less their mean: the larger of the two, up to ten places apart.
    Products of independent values have mean 0 and no covariance, so the variance of their sum is the sum of their
    squares.

    >>> same = np.zeros(200, np.int64)
    >>> order_dependence(np.repeat([1.0, -1.0, 1.0, -1.0], 50), same, same) > 4
    True
    """
    _, number = np.unique(labels, return_inverse=True)
    rest = values - (np.bincount(number, values) / np.bincount(number))[number]
    lags = range(1, min(_LAGS, len(rest) - 1) + 1)
    tests = [_above_zero([rest[lag:] * rest[:-lag] for lag in lags])]
    if len(labels) < _LAGS * (1 + np.count_nonzero(labels[1:] != labels[:-1])):
        y, k = np.unique([labels, predicted], return_inverse=True)[1].reshape(2, -1)
        wrong = (y != k).astype(np.float64)
        mean = (np.bincount(y, minlength=k.max() + 1) - np.bincount(k, minlength=y.max() + 1)) / len(y)
        # products of u - m are u u' - u m - u' m + m m
        along = mean[y] - mean[k] - mean @ mean / 2
        products = []
        for lag in lags:
            (y1, k1, w1, a1), (y2, k2, w2, a2) = (
                [column[rows] for column in (y, k, wrong, along)] for rows in (slice(lag, None), slice(-lag))
            )
            alike = (y1 == y2) + 1.0 * (k1 == k2) - (y1 == k2) - (k1 == y2)
            products.append(w1 * w2 * alike - a1 - a2)
        tests.append(_above_zero(products))
    return max(tests)


def _above_zero(products: list[NDArray[np.float64]]) -> float:
    joined = np.concatenate(products)
    error = float(np.sqrt(np.sum(joined**2)))
    return float(np.sum(joined)) / error if error else 0.0
