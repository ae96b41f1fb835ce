"""Rotations of several paths, applied in steps: those of disjoint coordinates together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.class_vectors import FloatArray
from tna_onnx.numerics.rotations import levels

__all__ = ["Step", "Turns"]


@dataclass(frozen=True, eq=False)
class Turns:
    """Rotations of several paths, in the order of each path.

    Attributes:
        path: (K,) position of the path of each rotation among those walked together.
        pairs: (K, 2) coordinates.
        turn: (K,) angles in radians.
    """

    path: NDArray[np.int64]
    pairs: NDArray[np.int64]
    turn: NDArray[np.float64]

    def reversed(self) -> Turns:
        """Return the rotations that undo these."""
        return Turns(self.path[::-1], self.pairs[::-1], -self.turn[::-1])

    def steps(self, n: int) -> Iterator[Step]:
        """Yield what can be turned together, for (P, n, C) class vectors as P n rows."""
        if not len(self.path):
            return
        rows = self.path[:, None] * n + self.pairs
        cos = np.cos(self.turn)[:, None]
        sin = np.sin(self.turn)[:, None]
        for k in levels(rows, int(rows.max()) + 1):
            yield Step(k, rows[k, 0], rows[k, 1], cos[k], sin[k])


@dataclass(frozen=True, eq=False)
class Step:
    """Rotations of disjoint rows.

    Attributes:
        number: (k,) which rotations of the `Turns` these are.
        i: (k,) first row of each.
        j: (k,) second row.
        cos: (k, 1) cosines, float64.
        sin: (k, 1) sines.
    """

    number: NDArray[np.int64]
    i: NDArray[np.int64]
    j: NDArray[np.int64]
    cos: FloatArray
    sin: FloatArray

    def apply(self, flat: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Turn rows of (rows, C) class vectors in place; return (k, C) rows i and j before, and after."""
        cos = self.cos.astype(flat.dtype)
        sin = self.sin.astype(flat.dtype)
        # G^T (v_i, v_j) = (cos v_i + sin v_j, cos v_j - sin v_i)
        old_i = flat.take(self.i, axis=0)
        old_j = flat.take(self.j, axis=0)
        new_i = cos * old_i
        new_i += sin * old_j
        new_j = cos * old_j
        new_j -= sin * old_i
        flat[self.i] = new_i
        flat[self.j] = new_j
        return old_i, old_j, new_i, new_j
