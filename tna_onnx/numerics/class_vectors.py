"""Class vectors as paths of rotations need them: where all paths of one weight begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np

__all__ = ["ClassVectors"]

# Squared length of a class vector that counts as zero: squares of float32 underflow soon below.
_NOTHING = 1e-30


@dataclass(frozen=True, eq=False)
class ClassVectors:
    """What all paths of one weight share.

    Attributes:
        vectors: (n, C) class vectors, feature-major: the two coordinates of a rotation are contiguous.
        half: (C,) float64 factor from a deficit to the squared sine of half the angle, 1 / (2 |w_c|^2); zero for
            vectors without a direction, which then count for nothing.
        share: one over the number of vectors with a direction.
    """

    vectors: Any
    half: Any
    share: float

    @classmethod
    def of(cls, weight: Any) -> ClassVectors:
        if weight.ndim != 2 or weight.shape[1] < 2:
            raise ValueError(f"weight must be (C, n) with n >= 2, got shape {tuple(weight.shape)}")
        xp = array_api_compat.array_namespace(weight)
        vectors = xp.asarray(weight.T, copy=True)
        vectors = np.ascontiguousarray(vectors) if isinstance(vectors, np.ndarray) else vectors.contiguous()
        squared = xp.zeros(vectors.shape[1], dtype=xp.float64, device=array_api_compat.device(vectors))
        for row in range(0, vectors.shape[0], 64):  # a few rows at a time: a float64 copy of all would be large
            squared += xp.sum(xp.astype(vectors[row : row + 64], xp.float64) ** 2, axis=0)
        directed = squared > _NOTHING
        if not bool(xp.any(directed)):
            raise ValueError("every class vector is zero, or nearly so: there is nothing to tilt")
        # the inner `where` divides by 1 where the outer one takes zero
        half = xp.where(directed, 0.5 / xp.where(directed, squared, xp.ones_like(squared)), xp.zeros_like(squared))
        return cls(vectors, half, 1 / int(xp.count_nonzero(directed)))
