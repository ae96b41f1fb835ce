"""Sums over paths of tilted class vectors at each stop, for some classes: by NumPy, or compiled, with the same bits.

Neighbouring stops differ in the rows turned in between, so only these are added to a sum that is there already. What is
added is rounded to a multiple of 2^-51 of a bound on the sum: float64 holds every partial sum of such numbers, so sums
are exact, and the same in any order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.class_vectors import ClassVectors, FloatArray
from tna_onnx.numerics.compiled import Kernels

__all__ = ["KernelSums", "NumPySums", "SumsLayout"]


@dataclass(frozen=True)
class SumsLayout:
    """What sums over paths have in common, whichever classes they are for.

    Attributes:
        stops: A, how many.
        n: features.
        width: most classes at a time.
        members: how many class vectors are added up at a stop.
        rounding: what rounds a float64 number by being added and taken away again.
    """

    stops: int
    n: int
    width: int
    members: int
    rounding: float

    @classmethod
    def of(cls, start: ClassVectors, stops: int, width: int, members: int) -> SumsLayout:
        """Lay out sums of class vectors that have been turned."""
        # no element of a turned class vector exceeds its length
        largest = math.sqrt(0.5 / float(np.min(start.half[start.half > 0])))
        exponent = math.frexp(largest * members)[1]
        # sums are below 2^exponent; numbers near this one are multiples of 2^(exponent - 51)
        return cls(stops, start.shape[0], width, members, 1.5 * 2.0 ** (exponent + 1))


class NumPySums:
    """Sums over paths at each stop, for a block of c classes."""

    def __init__(self, layout: SumsLayout) -> None:
        self._layout = layout
        # used again for block after block: memory that is new has to be cleared by the system
        self._memory = np.empty(layout.stops * layout.n * layout.width)
        # the sum at the first stop, and what it gains from each stop to the next
        self._gains = np.empty((0, 0, 0))
        # sums over counterparts, which share no turns from stop to stop
        self._counterparts: dict[int, NDArray[np.float64]] = {}

    def begin(self, classes: int) -> None:
        """Set all sums to zero, for so many classes."""
        shape = self._layout.stops, self._layout.n, classes
        self._gains = self._memory[: math.prod(shape)].reshape(shape)
        self._gains.fill(0)
        self._counterparts.clear()

    def add(self, stop: int, vectors: FloatArray) -> None:
        """Take in (n, c) class vectors at the first stop."""
        self._gains[stop] += self._rounded(vectors)

    def change(self, stop: int, rows: NDArray[np.int64], before: FloatArray, after: FloatArray) -> None:
        """Take in what (k, c) different rows of one path have become since the stop before."""
        # what rounds cancels: both are near it, and their difference is exact
        gains = np.add(after, self._layout.rounding, dtype=np.float64)
        gains -= np.add(before, self._layout.rounding, dtype=np.float64)
        self._gains[stop][rows] += gains

    def add_counterpart(self, stop: int, vectors: FloatArray) -> None:
        """Take in (n, c) class vectors of a counterpart."""
        if stop not in self._counterparts:
            self._counterparts[stop] = np.zeros(vectors.shape)
        self._counterparts[stop] += self._rounded(vectors)

    def average(self, means: Sequence[FloatArray], first: int) -> None:
        """Write the means into A arrays (n, C), from a first class on. This ends the sums."""
        columns = slice(first, first + self._gains.shape[2])
        for mean, total in zip(means, self._totals(), strict=True):
            mean[:, columns] = total / self._layout.members

    def _totals(self) -> Iterator[NDArray[np.float64]]:
        total = self._gains[0]
        for stop, gain in enumerate(self._gains):
            if stop:
                total += gain
            yield total + self._counterparts[stop] if stop in self._counterparts else total

    def _rounded(self, vectors: FloatArray) -> NDArray[np.float64]:
        # in float64 whatever the version: NumPy 1 would add a scalar in the dtype of the vectors
        rounded = np.add(vectors, self._layout.rounding, dtype=np.float64)
        rounded -= self._layout.rounding
        return rounded


class KernelSums:
    """The same by compiled loops, without counterparts."""

    def __init__(self, layout: SumsLayout, kernels: Kernels) -> None:
        self._layout = layout
        self._kernels = kernels
        self._memory = np.empty(layout.stops * layout.n * layout.width)
        self._gains = np.empty((0, 0, 0))
        # rows that no path turns between two stops are neither cleared nor read
        self._gained = np.zeros((layout.stops, layout.n), bool)

    def begin(self, classes: int) -> None:
        """Set all sums to zero, for so many classes."""
        shape = self._layout.stops, self._layout.n, classes
        self._gains = self._memory[: math.prod(shape)].reshape(shape)
        self._gains[0] = 0
        self._gained[:] = False

    def add_paths(
        self, block: FloatArray, pairs: NDArray[np.int64], turn: NDArray[np.float64], stops: NDArray[np.int64]
    ) -> None:
        """Take in P paths.

        Args:
            block: (n, c) class vectors before the first rotation.
            pairs: (P, K, 2) coordinates.
            turn: (P, K) angles in radians.
            stops: (P, A) ascending numbers of rotations.
        """
        cos = np.cos(turn).astype(block.dtype)
        sin = np.sin(turn).astype(block.dtype)
        path = np.empty_like(block)
        rounding = np.float64(self._layout.rounding)
        self._kernels.sum_tilted(block, pairs, cos, sin, stops, rounding, path, self._gains, self._gained)

    def average(self, means: Sequence[FloatArray], first: int) -> None:
        """Write the means into A arrays (n, C), from a first class on. This ends the sums."""
        total = self._gains[0]
        members = float(self._layout.members)
        # the inverse of a power of two is exact
        share = 1 / members if math.frexp(members)[0] == 0.5 else 0.0
        for mean, gain, gained in zip(means, self._gains, self._gained, strict=True):
            self._kernels.average(total, gain, gained, members, share, first, mean)
