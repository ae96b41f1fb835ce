"""What a report says of one number per class: all of them where they are few, otherwise the largest and the norm."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["MAX_LISTED", "per_class"]

MAX_LISTED = 20
"""Most classes whose numbers are listed one by one."""


def per_class(name: str, values: NDArray[np.float64]) -> dict[str, Any]:
    """Return the fields that describe (C,) values under a name.

    >>> per_class("bias", np.array([0.5, -0.25]))
    {'bias': [0.5, -0.25]}
    >>> per_class("bias", np.eye(30)[7] * -2)
    {'bias_norm': 2.0, 'bias_largest': -2.0, 'bias_largest_class': 7}
    """
    if len(values) <= MAX_LISTED:
        return {name: values.tolist()}
    largest = int(np.abs(values).argmax())
    return {
        f"{name}_norm": float(np.linalg.norm(values)),
        f"{name}_largest": float(values[largest]),
        f"{name}_largest_class": largest,
    }
