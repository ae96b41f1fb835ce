"""Class vectors as paths of rotations need them: where all paths of one weight begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ClassVectors", "FloatArray"]

FloatArray = NDArray[np.floating[Any]]

# Squared length of a class vector that counts as zero: squares of float32 underflow soon below.
_NOTHING = 1e-30

# Class vectors that are transposed at a time.
_COLUMNS = 128


@dataclass(frozen=True, eq=False)
class ClassVectors:
    """What all paths of one weight share.

    Attributes:
        weight: (C, n) class vectors.
        half: (C,) float64 factor from a deficit to the squared sine of half the angle, 1 / (2 |w_c|^2); zero for
            vectors without a direction, which then count for nothing.
        share: one over the number of vectors with a direction.
    """

    weight: FloatArray
    half: NDArray[np.float64]
    share: float

    @classmethod
    def of(cls, weight: FloatArray) -> ClassVectors:
        """Prepare a (C, n) weight.

        Raises:
            ValueError: weight is not 2-D, has n < 2, or all its rows are zero.
        """
        if weight.ndim != 2 or weight.shape[1] < 2:
            raise ValueError(f"weight must be (C, n) with n >= 2, got shape {tuple(weight.shape)}")
        squared = np.zeros(len(weight))
        for k in range(0, weight.shape[1], 64):  # a few features at a time: a float64 copy of all would be large
            features = np.ascontiguousarray(weight[:, k : k + 64].T)
            squared += np.sum(features.astype(np.float64) ** 2, axis=0)
        directed = squared > _NOTHING
        if not directed.any():
            raise ValueError("every class vector is zero, or nearly so: there is nothing to tilt")
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
