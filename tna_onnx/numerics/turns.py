"""Rotations of several paths, applied in steps: those of disjoint coordinates together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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

    def steps(self, n: int, dtype: np.dtype[Any]) -> Iterator[Step]:
        """Yield what can be turned together, for (P, n, C) class vectors of this dtype as P n rows."""
        if not len(self.path):
            return
        rows = self.path[:, None] * n + self.pairs
        both = np.ascontiguousarray(rows.T)
        cos = np.cos(self.turn).astype(dtype)[:, None]
        sin = np.sin(self.turn).astype(dtype)[:, None]
        signed = np.stack([sin, -sin])
        for k in levels(rows, int(rows.max()) + 1):
            yield Step(k, both.take(k, axis=1), cos.take(k, axis=0), signed.take(k, axis=1))


@dataclass(frozen=True, eq=False)
class Step:
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
