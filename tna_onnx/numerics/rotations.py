"""Random Givens rotations: which pairs of coordinates turn, by which angles.

A path is a function of the seed and its number. `levels` cuts it into sets of rotations that commute, `Turns` applies
each set in one step for several paths, and `ClassVectors` is where all paths of one weight begin.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import UnsupportedModel, UsageError

MAX_N_T = 10_000
"""Most rotations between two looks at mRC: with fewer than 1,000 features, so many turn a weight past any angle."""

# A path ends when the expected cosine has fallen to this: 89.4 degrees, where nothing but noise is left.
_LAST_COSINE = 0.01

# Paths and rotations that are drawn together: a call of NumPy costs far more than one draw.
_PATHS = 16
_ROTATIONS = 64

# Blocks of these that are kept: 12 MB.
_KEPT = 512

# A path that would take longer is refused: n = 100,000 at the paper's parameters takes 850,000.
_MAX_ROTATIONS = 2_000_000


@dataclass(frozen=True)
class TiltParameters:
    """How rotations are drawn: angle t = theta_s * tau with tau ~ Beta(alpha, beta).

    Attributes:
        alpha: first shape of the Beta distribution, above 0 (paper: 5); no unit.
        beta: second shape of the Beta distribution, above 0 (paper: 1); no unit.
        theta_s: largest angle of one rotation, radians (paper: 0.9).
        n_t: a path can stop after every so many rotations, where mRC is looked at, from 1 to 10,000 (paper: 50).
    """

    alpha: float = 5.0
    beta: float = 1.0
    theta_s: float = 0.9
    n_t: int = 1

    def __post_init__(self) -> None:
        if not (0 < self.alpha < math.inf and 0 < self.beta < math.inf):
            raise UsageError(f"alpha and beta must be positive and finite, got {self.alpha} and {self.beta}")
        if not 0 < self.theta_s <= math.pi:
            raise UsageError(f"theta_s must lie in (0, pi] radians, got {self.theta_s}")
        if not 1 <= self.n_t <= MAX_N_T:
            raise UsageError(f"n_t must lie in 1 to {MAX_N_T:,}, got {self.n_t}")

    def max_rotations(self, n: int) -> int:
        """Rotations after which the expected cosine E<w, R w> = (1 - 2/n (1 - E cos t))^k is below 0.01."""
        # E cos t by the midpoint rule over quantiles of tau
        shares = (np.arange(256) + 0.5) / 256
        if self.beta == 1:
            quantiles = shares ** (1 / self.alpha)
        else:
            from scipy import special  # noqa: PLC0415 - heavy

            quantiles = special.betaincinv(self.alpha, self.beta, shares)
        turned = float(np.mean(1 - np.cos(self.theta_s * quantiles)))
        needed = 4 + math.ceil(math.log(_LAST_COSINE) / math.log1p(-min(2 / n * max(turned, 1e-9), 0.99)))
        if needed > _MAX_ROTATIONS:
            raise UsageError(
                f"theta_s {self.theta_s}, alpha {self.alpha} and beta {self.beta} turn so little that {needed:,} "
                f"rotations would be needed; at most {_MAX_ROTATIONS:,} are made, raise theta_s"
            )
        return needed


class Rotations:
    """The rotations of all paths of a seed: those of path m do not depend on what else is drawn, nor in which order.

    Random numbers are a function of a counter (Philox): of a block of paths and a block of rotations.

    Args:
        n: number of coordinates, at least 2.
        seed: of all draws, at least 0.
        parameters: distribution of the rotations.

    Source: Salmon, Moraes, Dror & Shaw (2011), "Parallel random numbers: as easy as 1, 2, 3".
    """

    def __init__(self, n: int, seed: int, parameters: TiltParameters) -> None:
        self.n = n
        self.parameters = parameters
        # a path ends where mRC is looked at
        self.last = -(-parameters.max_rotations(n) // parameters.n_t) * parameters.n_t
        self._key = np.random.SeedSequence(seed).generate_state(2, np.uint64)
        self._block = functools.lru_cache(_KEPT)(self._draw)

    def of(self, paths: NDArray[np.int64], start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return rotations `start` to `stop` of P ascending paths: (P, stop - start, 2) pairs and their angles."""
        first = start // _ROTATIONS
        columns = range(first, -(-stop // _ROTATIONS))
        pairs = []
        turn = []
        for row in np.unique(paths // _PATHS).tolist():
            mine = paths[paths // _PATHS == row] % _PATHS
            drawn = [self._block(row, column) for column in columns]
            pairs.append(np.concatenate([block[mine] for block, _ in drawn], axis=1))
            turn.append(np.concatenate([block[mine] for _, block in drawn], axis=1))
        part = slice(start - first * _ROTATIONS, stop - first * _ROTATIONS)
        return np.concatenate(pairs)[:, part], np.concatenate(turn)[:, part]

    def _draw(self, row: int, column: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return a block: (paths, rotations, 2) pairs and (paths, rotations) angles."""
        # the two lowest words of the counter count the numbers of a block
        draws = np.random.Generator(np.random.Philox(key=self._key, counter=[0, 0, row, column]))
        size = (_PATHS, _ROTATIONS)
        first = draws.integers(0, self.n, size=size)
        second = draws.integers(0, self.n - 1, size=size)
        second += second >= first  # ordered pair of two different coordinates
        p = self.parameters
        # U^(1/alpha) has the distribution Beta(alpha, 1), for a fraction of the time
        tau = draws.random(size) ** (1 / p.alpha) if p.beta == 1 else draws.beta(p.alpha, p.beta, size=size)
        return np.stack([first, second], axis=-1), p.theta_s * tau


def levels(pairs: NDArray[np.int64], coordinates: int) -> Iterator[NDArray[np.int64]]:
    """Cut (K, 2) pairs of `coordinates` into sets that are disjoint within: indices, ascending.

    One set after the other, they give what all give in their order: those that share a coordinate keep theirs.

    >>> [k.tolist() for k in levels(np.array([[0, 1], [2, 3], [1, 2], [4, 5]]), 6)]
    [[0, 1, 3], [2]]
    """
    # of several values for one place NumPy keeps the last: written backwards, that is the first rotation there
    backwards = np.arange(len(pairs))[::-1]
    one, partner = np.ascontiguousarray(pairs[::-1].T)
    places = np.empty(2 * len(pairs), np.int64)
    values = np.empty_like(places)
    first = np.empty(coordinates, np.int64)
    while size := len(backwards):
        places[: 2 * size : 2] = one
        places[1 : 2 * size : 2] = partner
        values[: 2 * size : 2] = backwards
        values[1 : 2 * size : 2] = backwards
        first[places[: 2 * size]] = values[: 2 * size]
        ready = (first[one] == backwards) & (first[partner] == backwards)
        yield backwards[ready][::-1]
        later = ~ready
        one, partner, backwards = one[later], partner[later], backwards[later]


FloatArray = NDArray[np.floating[Any]]


# Squared length of a class vector that counts as zero: squares of float32 underflow soon below.
_NOTHING = 1e-30

# Class vectors that are transposed at a time.
_COLUMNS = 128


@dataclass(frozen=True, eq=False)
class ClassVectors:
    """What all paths of one weight share."""

    weight: FloatArray  # (C, n) class vectors
    # (C,) float64 factor from a deficit to the squared sine of half the angle, 1 / (2 |w_c|^2); zero for vectors
    # without a direction, which then count for nothing
    half: NDArray[np.float64]
    share: float  # one over the number of vectors with a direction

    @classmethod
    def of(cls, weight: FloatArray) -> ClassVectors:
        """Prepare a (C, n) weight."""
        if weight.ndim != 2 or weight.shape[1] < 2:
            raise UnsupportedModel(f"weight must be (C, n) with n >= 2, got shape {tuple(weight.shape)}")
        squared = np.zeros(len(weight))
        for k in range(0, weight.shape[1], 64):  # a few features at a time: a float64 copy of all would be large
            features = np.ascontiguousarray(weight[:, k : k + 64].T)
            squared += np.sum(features.astype(np.float64) ** 2, axis=0)
        directed = squared > _NOTHING
        if not directed.any():
            raise UnsupportedModel("every class vector is zero, or nearly so: there is nothing to tilt")
        half = np.divide(0.5, squared, out=np.zeros_like(squared), where=directed)
        return cls(weight, half, 1 / int(np.count_nonzero(directed)))

    @property
    def shape(self) -> tuple[int, int]:
        """(n, C)."""
        classes, n = self.weight.shape
        return n, classes

    def block(self, classes: slice) -> FloatArray:
        """Return some class vectors, (n, c), feature-major: the two coordinates of a rotation are contiguous."""
        transposed: FloatArray = self.weight[classes].T
        if transposed.flags.c_contiguous:
            return transposed
        block: FloatArray = np.empty_like(transposed, order="C")
        # some classes at a time: columns far apart would take twice as long
        for k in range(0, transposed.shape[1], _COLUMNS):
            block[:, k : k + _COLUMNS] = transposed[:, k : k + _COLUMNS]
        return block


@dataclass(frozen=True, eq=False)
class Turns:
    """Rotations of several paths, in the order of each path."""

    path: NDArray[np.int64]  # (K,) position of the path of each rotation among those walked together
    pairs: NDArray[np.int64]  # (K, 2) coordinates
    turn: NDArray[np.float64]  # (K,) angles in radians

    def reversed(self) -> Turns:
        """Return the rotations that undo these."""
        return Turns(self.path[::-1], self.pairs[::-1], -self.turn[::-1])

    def steps(self, n: int, dtype: np.dtype[Any]) -> Iterator[RotationStep]:
        """Yield what can be turned together, for (P, n, C) class vectors of this dtype as P n rows."""
        if not len(self.path):
            return
        rows = self.path[:, None] * n + self.pairs
        pairs = np.ascontiguousarray(rows.T)
        cos = np.cos(self.turn).astype(dtype)[:, None]
        sin = np.sin(self.turn).astype(dtype)[:, None]
        signed = np.stack([sin, -sin])
        for k in levels(rows, int(rows.max()) + 1):
            yield RotationStep(k, pairs.take(k, axis=1), cos.take(k, axis=0), signed.take(k, axis=1))


@dataclass(frozen=True, eq=False)
class RotationStep:
    """Rotations of disjoint rows.

    Attributes:
        number: (k,) which rotations of the `Turns` these are.
        rows: (2, k) rows i and j of each.
        cos: (k, 1) cosines.
        sin: (2, k, 1) sines, and the same with the other sign.
    """

    number: NDArray[np.int64]
    rows: NDArray[np.int64]
    cos: FloatArray
    sin: FloatArray

    def apply(self, flat: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Turn rows of (rows, C) class vectors in place; return (2, k, C) rows i and j before, and after."""
        old = flat.take(self.rows, axis=0)
        # G^T (v_i, v_j) = (cos v_i + sin v_j, cos v_j - sin v_i)
        new = self.cos * old
        new += self.sin * old[::-1]
        flat[self.rows] = new
        return old, new


# Elements of a block of the weight: 8 MB of float64, of which callers hold a few.
_BLOCK = 2**20


def class_blocks(weight: NDArray[Any]) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Yield (classes, their vectors in float64), (c, n) each, of a (C, n) weight.

    >>> [(block.start, wide.shape) for block, wide in class_blocks(np.ones((3, 2), np.float32))]
    [(0, (3, 2))]
    """
    classes, n = weight.shape
    width = max(1, _BLOCK // max(1, n))
    for start in range(0, classes, width):
        block = slice(start, min(start + width, classes))
        yield block, weight[block].astype(np.float64)
