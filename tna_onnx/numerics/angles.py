"""Angles between class vectors and their tilted selves, and a bound on their mean."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["angles_between", "envelope_reaches", "mean_rotation"]

FloatArray = NDArray[np.floating[Any]]

# Where the tangent of 2 asin(sqrt(x)) goes through (1, pi): angle a with cot(a / 2) = pi - a, and its x.
_TANGENT = 0.8104702831753707
_TANGENT_X = math.sin(_TANGENT / 2) ** 2


def mean_rotation(weight: FloatArray, tilted: FloatArray) -> float:
    """MRC: mean over classes of the angle between each class vector and its tilted self.

    Args:
        weight: (C, n) class vectors; zero vectors have no direction and are left out.
        tilted: (C, n) tilted class vectors, of any norm.

    Returns:
        Mean angle in radians.

    Source: definition of mRC, section "Tilt the class vectors".

    >>> mean_rotation(np.eye(2), np.array([[0.0, 1.0], [0.0, 1.0]])) / np.pi * 180
    45.0
    """
    return float(np.mean(angles_between(weight, tilted)))


def angles_between(weight: FloatArray, tilted: FloatArray) -> NDArray[np.float64]:
    """Angle in radians between each class vector and its tilted self, both (C, n); zero vectors are left out."""
    w = np.asarray(weight, np.float64)
    v = np.asarray(tilted, np.float64)
    length = np.linalg.norm(w, axis=1) * np.linalg.norm(v, axis=1)
    # zero vectors have no direction: an angle of 0 would pull the mean down
    kept = length > 0
    cosine = np.einsum("cn,cn->c", w, v)[kept] / length[kept]
    # clip: rounding takes the cosine of equal vectors past 1
    angle: NDArray[np.float64] = np.arccos(np.clip(cosine, -1.0, 1.0))
    return angle


def envelope_reaches(angle: float) -> float:
    """Return x where the smallest concave function above 2 asin(sqrt(x)) on [0, 1] has this value.

    That function is the curve itself up to the point where its tangent goes through (1, pi), and then the tangent.
    """
    if angle <= _TANGENT:
        return math.sin(angle / 2) ** 2
    return _TANGENT_X + (angle - _TANGENT) * (1 - _TANGENT_X) / (math.pi - _TANGENT)
