"""Deficits of paths after each rotation of a window: by NumPy, or compiled, with the same bits.

A deficit is e_c = <w_c, w_c - V_c>. What a rotation adds to it has the dtype of the weight; sums over rotations are
float64, added in the order of the path.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.class_vectors import ClassVectors, FloatArray
from tna_onnx.numerics.compiled import Kernels
from tna_onnx.numerics.turns import Step, Turns

__all__ = ["ByKernels", "ByNumPy", "Window"]

# Classes that NumPy turns together: what a window of one path loses then stays in the cache.
_CLASSES = 640


class Window(Protocol):
    """Deficits of P paths after each of K rotations. Rotation k of path p has the place p K + k."""

    @property
    def before(self) -> NDArray[np.float64]:
        """(P, C) deficits before the first rotation."""

    @property
    def means(self) -> NDArray[np.float64]:
        """(P, K) means over classes of e_c / (2 |w_c|^2) after each rotation, up to rounding."""

    def deficits(self, places: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return (q, C) deficits after the rotations at these places, an array of its own."""

    def largest(self) -> NDArray[np.float64]:
        """Return (P, C) largest deficit of each class after a rotation."""


@dataclass(frozen=True, eq=False)
class _Added:
    """A window with all deficits.

    Attributes:
        before: (P, C) as above.
        means: (P, K) as above.
        after: (K, P, C) deficits after each rotation.
    """

    before: NDArray[np.float64]
    means: NDArray[np.float64]
    after: NDArray[np.float64]

    def deficits(self, places: NDArray[np.int64]) -> NDArray[np.float64]:
        count = len(self.after)
        return self.after[places % count, places // count]

    def largest(self) -> NDArray[np.float64]:
        largest: NDArray[np.float64] = self.after.max(axis=0)
        return largest


class ByNumPy:
    """Paths that NumPy walks: some classes after the others, rotations of disjoint coordinates together.

    Args:
        start: class vectors.
        paths: at most so many are walked side by side.
    """

    def __init__(self, start: ClassVectors, paths: int) -> None:
        self._start = start
        self._weights = start.half * start.share
        classes = start.shape[1]
        self._blocks = [slice(k, k + _CLASSES) for k in range(0, classes, _CLASSES)]
        # cut once for all paths: with many classes that takes as long as a tenth of a path
        self._vectors = [start.block(columns) for columns in self._blocks]
        self._tilted = [np.empty((paths, *block.shape), block.dtype) for block in self._vectors]
        self._last = np.zeros((paths, classes))

    def begin(self, paths: int) -> None:
        """Set out along so many paths."""
        for tilted, vectors in zip(self._tilted, self._vectors, strict=True):
            tilted[:paths] = vectors
        self._last[:] = 0

    def walk(self, going: NDArray[np.int64], pairs: NDArray[np.int64], turn: NDArray[np.float64]) -> Window:
        """Go on along P of the paths: make (P, K) rotations of (P, K, 2) coordinates."""
        paths, count = turn.shape
        n, classes = self._start.shape
        turns = Turns(np.tile(going, count), pairs.swapaxes(0, 1).reshape(-1, 2), turn.T.reshape(-1))
        steps = [*turns.steps(n, self._start.weight.dtype)]
        coordinates = np.ascontiguousarray(turns.pairs.T)
        after = np.empty((count, paths, classes))
        for columns, vectors, tilted in zip(self._blocks, self._vectors, self._tilted, strict=True):
            gains = after.reshape(-1, classes)[:, columns]
            for step in steps:
                gains[step.number] = _gains(step, coordinates, vectors, tilted.reshape(-1, vectors.shape[1]))
        before = self._last[going]
        after[0] += before
        # in the order of the path: NumPy would add up a lone class pairwise
        for k in range(1, count):
            after[k] += after[k - 1]
        self._last[going] = after[-1]
        means = after.reshape(-1, classes) @ self._weights
        return _Added(before, means.reshape(count, paths).T, after)


def _gains(step: Step, coordinates: NDArray[np.int64], vectors: FloatArray, tilted: FloatArray) -> FloatArray:
    """Make rotations; return (k, c) what the deficits <w, w - V> gain: w_i (old_i - new_i) + w_j (old_j - new_j)."""
    old, new = step.apply(tilted)
    old -= new
    old *= vectors.take(coordinates.take(step.number, axis=1), axis=0)
    gains: FloatArray = old[0]
    gains += old[1]
    return gains


class _Gained:
    """A window with what each rotation adds: deficits are added up where they are asked for.

    Args:
        before: (P, C) as above.
        means: (P, K) as above.
        gains: (P, K, C) what each rotation adds, in the dtype of the weight.
        kernels: compiled loops.
    """

    def __init__(
        self, before: NDArray[np.float64], means: NDArray[np.float64], gains: FloatArray, kernels: Kernels
    ) -> None:
        self.before = before
        self.means = means
        self._gains = gains
        self._kernels = kernels
        self._largest = np.full_like(before, -np.inf)
        self._after = before
        # deficits have been added up to the end
        self._complete = False

    def deficits(self, places: NDArray[np.int64]) -> NDArray[np.float64]:
        count = self.means.shape[1]
        # the end is needed anyway: both in one pass
        ends = np.zeros(0, np.int64) if self._complete else np.arange(count - 1, self.means.size, count)
        ascending = np.union1d(places, ends)
        found = np.empty((len(ascending), self.before.shape[1]))
        path, rotation = np.divmod(ascending, count)
        self._kernels.add(self.before, self._gains, path, rotation, found, self._largest)
        if not self._complete:
            self._after = found[np.searchsorted(ascending, ends)]
            self._complete = True
        return found[np.searchsorted(ascending, places)]

    def largest(self) -> NDArray[np.float64]:
        self._complete_it()
        return self._largest

    def after(self) -> NDArray[np.float64]:
        """Return (P, C) deficits after the last rotation."""
        self._complete_it()
        return self._after

    def _complete_it(self) -> None:
        if not self._complete:
            self.deficits(np.zeros(0, np.int64))


class ByKernels:
    """Paths that compiled loops walk, one after the other, with all classes.

    Args:
        start: class vectors.
        paths: at most so many are walked side by side.
        kernels: compiled loops.
    """

    def __init__(self, start: ClassVectors, paths: int, kernels: Kernels) -> None:
        self._weights = start.half * start.share
        self._kernels = kernels
        self._vectors = start.block(slice(None))
        # used again for path after path: memory that is new has to be cleared by the system
        self._tilted = np.empty((paths, *self._vectors.shape), self._vectors.dtype)
        self._gains = np.empty(0, self._vectors.dtype)
        self._last = np.zeros((paths, len(self._weights)))
        self._walked: tuple[NDArray[np.int64], _Gained] | None = None

    def begin(self, paths: int) -> None:
        """Set out along so many paths."""
        self._tilted[:paths] = self._vectors
        self._last[:] = 0
        self._walked = None

    def walk(self, going: NDArray[np.int64], pairs: NDArray[np.int64], turn: NDArray[np.float64]) -> Window:
        """Go on along P of the paths: make (P, K) rotations of (P, K, 2) coordinates."""
        if self._walked:
            walked, window = self._walked
            self._last[walked] = window.after()
        dtype = self._vectors.dtype
        cos = np.cos(turn).astype(dtype)
        sin = np.sin(turn).astype(dtype)
        shape = (*turn.shape, len(self._weights))
        size = math.prod(shape)
        # the window before is done with: its memory is used again
        if self._gains.size < size:
            self._gains = np.empty(size, dtype)
        gains = self._gains[:size].reshape(shape)
        self._kernels.turn(self._tilted, self._vectors, going, pairs, cos, sin, gains)
        before = self._last[going]
        means = np.empty(turn.shape)
        self._kernels.weigh(gains, self._weights, means)
        means[:, 0] += before @ self._weights
        np.cumsum(means, axis=1, out=means)
        gained = _Gained(before, means, gains, self._kernels)
        self._walked = going, gained
        return gained
