"""Random Givens rotations: which pairs of coordinates turn, by which angles.

A path is a sequence of rotations, a function of the seed and the number of the path. Rotations of disjoint coordinates
commute: `levels` cuts a sequence into sets of these, which can be applied together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.checks import MAX_N_T

__all__ = ["Rotations", "TiltParameters", "levels"]

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
            raise ValueError(f"alpha and beta must be positive and finite, got {self.alpha} and {self.beta}")
        if not 0 < self.theta_s <= math.pi:
            raise ValueError(f"theta_s must lie in (0, pi] radians, got {self.theta_s}")
        if not 1 <= self.n_t <= MAX_N_T:
            raise ValueError(f"n_t must lie in 1 to {MAX_N_T:,}, got {self.n_t}")

    def max_rotations(self, n: int) -> int:
        """Rotations after which the expected cosine E<w, R w> = (1 - 2/n (1 - E cos t))^k is below 0.01."""
        from scipy import special  # noqa: PLC0415 - heavy

        # E cos t by the midpoint rule over quantiles of tau
        quantiles = special.betaincinv(self.alpha, self.beta, (np.arange(256) + 0.5) / 256)
        turned = float(np.mean(1 - np.cos(self.theta_s * quantiles)))
        needed = 4 + math.ceil(math.log(_LAST_COSINE) / math.log1p(-min(2 / n * max(turned, 1e-9), 0.99)))
        if needed > _MAX_ROTATIONS:
            raise ValueError(
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
        self._blocks: dict[tuple[int, int], tuple[NDArray[np.int64], NDArray[np.float64]]] = {}

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
        wanted = slice(start - first * _ROTATIONS, stop - first * _ROTATIONS)
        return np.concatenate(pairs)[:, wanted], np.concatenate(turn)[:, wanted]

    def _block(self, row: int, column: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return (paths, rotations, 2) pairs and (paths, rotations) angles."""
        if (row, column) not in self._blocks:
            if len(self._blocks) >= _KEPT:
                self._blocks.clear()
            self._blocks[row, column] = self._draw(row, column)
        return self._blocks[row, column]

    def _draw(self, row: int, column: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
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
    one, other = np.ascontiguousarray(pairs[::-1].T)
    places = np.empty(2 * len(pairs), np.int64)
    values = np.empty_like(places)
    first = np.empty(coordinates, np.int64)
    while size := len(backwards):
        places[: 2 * size : 2] = one
        places[1 : 2 * size : 2] = other
        values[: 2 * size : 2] = backwards
        values[1 : 2 * size : 2] = backwards
        first[places[: 2 * size]] = values[: 2 * size]
        ready = (first[one] == backwards) & (first[other] == backwards)
        yield backwards[ready][::-1]
        later = ~ready
        one, other, backwards = one[later], other[later], backwards[later]
