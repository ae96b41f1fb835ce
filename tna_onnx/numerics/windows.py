"""Deficits of paths after each rotation of a window: by NumPy, or compiled, with the same bits.

A deficit is e_c = <w_c, w_c - V_c>. What a rotation adds to it has the dtype of the weight; sums over rotations are
float64, added in the order of the path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.class_vectors import ClassVectors, FloatArray
from tna_onnx.numerics.compiled import Kernels
from tna_onnx.numerics.turns import Step, Turns

__all__ = ["ByKernels", "ByNumPy", "Window", "Windows"]

# Classes that NumPy turns together: what a window of one path loses then stays in the cache.
_CLASSES = 640


class Window(Protocol):
    """Deficits of P paths after each of K rotations."""

    @property
    def means(self) -> NDArray[np.float64]:
        """(K, P) means over classes of e_c / (2 |w_c|^2), up to rounding."""

    def largest(self) -> NDArray[np.float64]:
        """Return (P,) the largest e_c / (2 |w_c|^2) of a class after a rotation."""

    def deficits(self, path: NDArray[np.intp], rotation: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return (q, C) deficits of these positions after these rotations, ascending by path and then rotation."""


class Windows(Protocol):
    """Paths walked side by side from window to window."""

    def walk(self, going: NDArray[np.int64], pairs: NDArray[np.int64], turn: NDArray[np.float64]) -> Window:
        """Go on along P of the paths: make (P, K) rotations of (P, K, 2) coordinates."""


@dataclass(frozen=True, eq=False)
class _Added:
    """A window with all deficits.

    Attributes:
        half: (C,) factor from a deficit to the squared sine of half the angle.
        share: one over the number of vectors with a direction.
        after: (K, P, C) deficits after each rotation.
    """

    half: NDArray[np.float64]
    share: float
    after: NDArray[np.float64]

    @property
    def means(self) -> NDArray[np.float64]:
        product: NDArray[np.float64] = self.after.reshape(-1, len(self.half)) @ (self.half * self.share)
        return product.reshape(self.after.shape[:2])

    def largest(self) -> NDArray[np.float64]:
        largest: NDArray[np.float64] = (self.after.max(axis=0) * self.half).max(axis=1)
        return largest

    def deficits(self, path: NDArray[np.intp], rotation: NDArray[np.intp]) -> NDArray[np.float64]:
        return self.after[rotation, path]


class ByNumPy:
    """Paths that NumPy walks: some classes after the others, rotations of disjoint coordinates together."""

    def __init__(self, start: ClassVectors, vectors: Sequence[tuple[slice, FloatArray]], paths: int) -> None:
        self._start = start
        self._vectors = vectors
        self._tilted = [np.tile(block, (paths, 1)) for _, block in vectors]
        self._last = np.zeros((paths, len(start.half)))

    @staticmethod
    def cut(start: ClassVectors) -> list[tuple[slice, FloatArray]]:
        """Cut class vectors (n, C) into blocks (n, c); returns which classes, and their vectors."""
        blocks = [slice(k, k + _CLASSES) for k in range(0, start.shape[1], _CLASSES)]
        return [(classes, start.block(classes)) for classes in blocks]

    def walk(self, going: NDArray[np.int64], pairs: NDArray[np.int64], turn: NDArray[np.float64]) -> Window:
        """Go on along P of the paths: make (P, K) rotations of (P, K, 2) coordinates."""
        paths, count = turn.shape
        n, classes = self._start.shape
        turns = Turns(np.tile(going, count), pairs.swapaxes(0, 1).reshape(-1, 2), turn.T.reshape(-1))
        steps = [*turns.steps(n, self._start.weight.dtype)]
        after = np.empty((count, paths, classes))
        for (columns, vectors), tilted in zip(self._vectors, self._tilted, strict=True):
            gains = after.reshape(-1, classes)[:, columns]
            for step in steps:
                gains[step.number] = _gains(step, turns.pairs, vectors, tilted)
        after[0] += self._last[going]
        # in the order of the path: NumPy would add up a lone class pairwise
        for k in range(1, count):
            after[k] += after[k - 1]
        self._last[going] = after[-1]
        return _Added(self._start.half, self._start.share, after)


def _gains(step: Step, pairs: NDArray[np.int64], vectors: FloatArray, tilted: FloatArray) -> FloatArray:
    """Make rotations; return (k, c) what the deficits <w, w - V> gain: w_i (old_i - new_i) + w_j (old_j - new_j)."""
    old, new = step.apply(tilted)
    old -= new
    old *= vectors.take(pairs[step.number].T, axis=0)
    gains = old[0]
    gains += old[1]
    return gains


@dataclass(frozen=True, eq=False)
class _Gained:
    """A window with what each rotation adds: deficits are added up where they are asked for.

    Attributes:
        means: as above.
        kernels: compiled loops.
        half: (C,) factor from a deficit to the squared sine of half the angle.
        before: (P, C) deficits before the first rotation.
        gains: (P, K, C) what each rotation adds, in the dtype of the weight.
        highest: (P, C) largest deficit after a rotation.
    """

    means: NDArray[np.float64]
    kernels: Kernels
    half: NDArray[np.float64]
    before: NDArray[np.float64]
    gains: FloatArray
    highest: NDArray[np.float64]

    def largest(self) -> NDArray[np.float64]:
        largest: NDArray[np.float64] = (self.highest * self.half).max(axis=1)
        return largest

    def deficits(self, path: NDArray[np.intp], rotation: NDArray[np.intp]) -> NDArray[np.float64]:
        found = np.empty((len(path), len(self.half)))
        self.kernels.add_up_to(self.before, self.gains, path, rotation, found)
        return found


class ByKernels:
    """Paths that compiled loops walk, one after the other, with all classes."""

    def __init__(self, start: ClassVectors, vectors: FloatArray, paths: int, kernels: Kernels) -> None:
        self._start = start
        self._vectors = vectors
        self._kernels = kernels
        self._tilted = np.repeat(vectors[None], paths, axis=0)
        self._last = np.zeros((paths, len(start.half)))
        # one array, used again: memory that is new has to be cleared
        self._gains = np.empty(0, vectors.dtype)

    def walk(self, going: NDArray[np.int64], pairs: NDArray[np.int64], turn: NDArray[np.float64]) -> Window:
        """Go on along P of the paths: make (P, K) rotations of (P, K, 2) coordinates."""
        paths, count = turn.shape
        dtype = self._vectors.dtype
        cos = np.cos(turn).astype(dtype)
        sin = np.sin(turn).astype(dtype)
        shape = paths, count, len(self._start.half)
        if self._gains.size < paths * count * shape[2]:
            self._gains = np.empty(shape, dtype).reshape(-1)
        gains = self._gains[: paths * count * shape[2]].reshape(shape)
        self._kernels.turn(self._tilted, self._vectors, going, pairs, cos, sin, gains)
        before = self._last[going]
        after = before.copy()
        highest = np.empty_like(before)
        self._kernels.add(gains, after, highest)
        self._last[going] = after
        weights = self._start.half * self._start.share
        means = np.empty((paths, count))
        self._kernels.weigh(gains, weights, means)
        means[:, 0] += before @ weights
        np.cumsum(means, axis=1, out=means)
        return _Gained(means.T, self._kernels, self._start.half, before, gains, highest)
