"""Division by a matrix that is a small block, a diagonal, and what couples the two.

    M = [A  B]    A (j, j), B (j, C), D (C, C) diagonal
        [B' D]

M is solved for the block by S = A - B D^-1 B', (j, j). S need not be positive definite, so its eigenvalues are made so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Arrow"]

FloatArray = NDArray[np.float64]

# Least eigenvalue of S, of the largest, where A has been scaled to a unit diagonal. Smaller ones are rounding or due to
# what M leaves out of the matrix that it stands for.
_MIN_EIGENVALUE = 1e-3

# Smallest curvature: far below any that matters.
_MIN_CURVATURE = 1e-12


@dataclass(frozen=True, eq=False)
class Arrow:
    """The matrix M.

    Attributes:
        inverse: (j, j) S^-1.
        coupling: (j, C) B.
        diagonal: (C,) that of D.
    """

    inverse: FloatArray
    coupling: FloatArray
    diagonal: FloatArray

    @classmethod
    def of(cls, block: FloatArray, coupling: FloatArray, diagonal: FloatArray) -> Arrow:
        """Take M apart: A, B and the diagonal of D."""
        scale = 1 / np.sqrt(np.maximum(np.diag(block), _MIN_CURVATURE))
        rest = (block - (coupling / diagonal) @ coupling.T) * scale * scale[:, None]
        # sums that are not finite have no eigenvalues; what comes of them is not finite either
        values, vectors = np.linalg.eigh(rest if np.all(np.isfinite(rest)) else np.eye(len(rest)))
        sizes = np.abs(values)
        sizes = np.maximum(sizes, max(_MIN_EIGENVALUE * sizes.max(), _MIN_CURVATURE))
        inverse = (vectors / sizes) @ vectors.T * scale * scale[:, None]
        return cls(inverse, coupling, diagonal)

    def divide(self, r: FloatArray) -> FloatArray:
        """Return M^-1 r, (j + C,)."""
        by_class = r[len(self.inverse) :] / self.diagonal
        by_power = self.inverse @ (r[: len(self.inverse)] - self.coupling @ by_class)
        return np.concatenate([by_power, by_class - (by_power @ self.coupling) / self.diagonal])
