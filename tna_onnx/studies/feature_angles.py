"""Angles between features and class vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["feature_angles"]


def feature_angles(weight: NDArray[Any], features: NDArray[Any], classes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return (N,) angles in degrees between features (N, n) and the vectors of `classes` (N,); NaN of zero vectors."""
    z = np.asarray(features, np.float64)
    w = np.asarray(weight, np.float64)[classes]
    lengths = np.linalg.norm(z, axis=1) * np.linalg.norm(w, axis=1)
    lengths[lengths == 0] = np.nan
    angles: NDArray[np.float64] = np.degrees(np.arccos(np.clip(np.einsum("in,in->i", z, w) / lengths, -1, 1)))
    return angles
