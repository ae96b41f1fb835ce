"""Copies among samples: groups of samples that are equal, or so alike that they are not independent.

Frames of one video and augmentations of one image lie much closer in feature space than other samples do. How close is
too close follows from the data. Let r be the distance from a sample within which a quarter of the m samples of its
class lie. Where features have D dimensions, about

    e(d) = (m / 4) (d / r)^D

of them are expected within a smaller distance d by chance. Two samples are near copies if e(d), by the smaller r and m
of the two, is below 1/1000, and d below r/4; and only if there are more such pairs than chance gives, about N / 2000 of
N samples: a few are no harm. D is estimated from distances within classes, as log(5) / log(r / r') and as log(2) /
log(r'' / r), where r' and r'' are the distances that hold a twentieth and a half: the larger of the two, as copies
among the data only make either smaller. Of many samples, all are held against each other only where some of 400 have
near copies.

Source of D: P. Grassberger & I. Procaccia, Measuring the strangeness of strange attractors, Physica D 9 (1983).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["MIN_FEATURES", "connected", "equal_pairs", "near_copies"]

MIN_FEATURES = 8
"""With fewer features, distinct samples are often as close as copies, and no head learns a sample by heart."""

IntArray = NDArray[np.int64]
Pairs = NDArray[np.int64]

_CHANCE = 1e-3
_CLOSEST = 0.25  # of r
_FEW = 16  # a class of fewer samples does not show its width
_PROBES = 400
_MANY = 5000
_OTHERS = 128
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


def connected(n: int, pairs: Pairs) -> IntArray:
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


def near_copies(features: NDArray[Any], classes: IntArray, seed: int = 0) -> Pairs:
    """Return the pairs (P, 2) of samples that are near copies; of a large group, enough of them to connect it.

    Args:
        features: (N, n) finite numbers.
        classes: (N,) which samples look alike, as predicted: labels may be wrong. Small classes are taken together.
        seed: of the samples that distances are estimated from, and of a projection.

    >>> rng = np.random.default_rng(0)
    >>> features = rng.standard_normal((200, 16))
    >>> features[100:150] = features[:50] + 0.01
    >>> near_copies(features, np.zeros(200, np.int64))[:2].tolist()
    [[0, 100], [1, 101]]
    """
    none = np.zeros((0, 2), np.int64)
    if len(features) < _FEW or features.shape[1] < MIN_FEATURES:
        return none
    rng = np.random.default_rng(seed)
    groups = _Classes(features, classes, rng)
    probes = rng.permutation(len(features))[:_PROBES]
    fifth, fourth, half = groups.quantiles(probes, (0.05, 0.25, 0.5))
    usable = (fourth > 0) & np.isfinite(half)
    fourth, fifth, half = (values[usable] for values in (fourth, fifth, half))
    # nearly all features are the same: there is no width to hold a distance against
    if 2 * len(fourth) < len(probes):
        return none
    ratios = ((5, np.median(fourth / np.maximum(fifth, 1e-30))), (2, np.median(half / fourth)))
    dimension = max(math.log(count) / math.log(max(float(ratio), 1 + 1e-6)) for count, ratio in ratios)
    largest = float(np.quantile(fourth, 0.9))
    usual = float(np.median(groups.size[probes]))
    limit = min(_CLOSEST, (4 * _CHANCE / usual) ** (1 / dimension)) * largest
    points = _Points(features, limit, rng)
    if len(features) > _MANY and not len(groups.near(points.closer(probes), dimension)):
        return none
    pairs = groups.near(points.closer(), dimension)
    by_chance = len(features) * _CHANCE / 2
    return pairs if len(pairs) > by_chance + 4 * math.sqrt(by_chance) + 2 else none


class _Classes:
    """Distances of samples to others of their class."""

    def __init__(self, features: NDArray[Any], classes: IntArray, rng: np.random.Generator) -> None:
        _, number, counts = np.unique(classes, return_inverse=True, return_counts=True)
        if np.median(counts[number]) < _FEW:
            number, counts = np.zeros(len(classes), np.int64), np.array([len(classes)])
        self._features = features
        self._rng = rng
        self._order = np.argsort(number, kind="stable")
        self._start = (np.cumsum(counts) - counts)[number]
        self.size = counts[number]
        """(N,) samples of each sample's class."""

    def quantiles(self, rows: NDArray[np.int64], shares: Sequence[float]) -> NDArray[np.float64]:
        """Return the distances (len(shares), len(rows)) that hold shares of a sample's class, of others at random."""
        parts = []
        step = max(1, _BLOCK // (_OTHERS * self._features.shape[1]))
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            place = (self._rng.random((len(part), _OTHERS)) * self.size[part, None]).astype(np.int64)
            other = self._order[self._start[part, None] + place]
            distance = _distances(self._features, np.repeat(part, _OTHERS), other.reshape(-1)).reshape(other.shape)
            # a sample is no neighbour of itself; the last of its class would have none but that
            distance[other == part[:, None]] = np.inf
            parts.append(np.quantile(distance, shares, axis=1, method="lower"))
        return np.concatenate(parts, axis=1)

    def near(self, candidates: Pairs, dimension: float) -> Pairs:
        """Return those of some pairs (P, 2) that are near copies, in features of a dimension D."""
        if not len(candidates):
            return candidates
        distance = _distances(self._features, candidates[:, 0], candidates[:, 1])
        rows, at = np.unique(candidates, return_inverse=True)
        (width,) = self.quantiles(rows, (0.25,))
        # a class of one sample has no width
        width = np.where(np.isfinite(width), width, 0)[at.reshape(candidates.shape)].min(axis=1)
        size = self.size[candidates].min(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            expected = size / 4 * (distance / width) ** dimension
        near: Pairs = candidates[(expected < _CHANCE) & (distance < _CLOSEST * width)]
        return near


def _distances(features: NDArray[Any], first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.float64]:
    distances = np.empty(len(first))
    step = max(1, _BLOCK // features.shape[1])
    for start in range(0, len(first), step):
        at = slice(start, start + step)
        difference = features[first[at]].astype(np.float32) - features[second[at]]
        distances[at] = np.sqrt(np.einsum("ij,ij->i", difference, difference, dtype=np.float64))
    return distances


class _Points:
    """Samples in a space of few dimensions, where those that are close to each other are found fast.

    Args:
        features: (N, n).
        limit: distance in the space of the features.
        rng: of the projection.
    """

    def __init__(self, features: NDArray[Any], limit: float, rng: np.random.Generator) -> None:
        n, dimensions = features.shape
        step = max(1, _BLOCK // dimensions)
        # any point near them will do: distances do not change, and are rounded less
        origin = np.asarray(features[:step], np.float32).mean(axis=0)
        directions = np.eye(dimensions, dtype=np.float32)
        if dimensions > _PROJECTED:
            directions = np.linalg.qr(rng.standard_normal((dimensions, _PROJECTED)))[0].astype(np.float32)
            limit *= _SLACK * math.sqrt(_PROJECTED / dimensions)
        rows = (np.asarray(features[start : start + step], np.float32) for start in range(0, n, step))
        points = np.concatenate([(each - origin) @ directions for each in rows])
        squares = np.einsum("ij,ij->i", points, points)
        ones = np.ones_like(squares)
        # |a - b|^2 as one product
        self._left = np.c_[-2 * points, squares, ones]
        self._right = np.c_[points, ones, squares]
        self._limit = limit**2

    def closer(self, rows: NDArray[np.int64] | None = None) -> Pairs:
        """Return pairs (P, 2) that may be closer than the limit; at most 32 for each first sample.

        Args:
            rows: first samples, each held against all others; by default all, each held against those after it.
        """
        n = len(self._left)
        found = [np.zeros((0, 2), np.int64)]
        step = max(1, _BLOCK // n)
        for start in range(0, n if rows is None else len(rows), step):
            first = np.arange(start, min(start + step, n)) if rows is None else rows[start : start + step]
            offset = start if rows is None else 0
            row, column = np.nonzero(self._left[first] @ self._right[offset:].T <= self._limit)
            pairs = np.stack([first[row], column + offset], axis=1)
            other = pairs[:, 1] > pairs[:, 0] if rows is None else pairs[:, 1] != pairs[:, 0]
            row = row[other]
            rank = np.arange(len(row)) - np.searchsorted(row, row)
            found.append(pairs[other][rank < _LINKS])
        return np.concatenate(found)
