"""Logits of a model that gives probabilities of classes: log p differs from them by one number a sample only.

A softmax does not see that number. Of labels, each with a probability of its own, see `label_terms.label_logits`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["log_probabilities"]

# A thousand float16 probabilities, each rounded by up to 2^-11 of itself, add up to well within this.
_SUM_TOLERANCE = 1e-2
# A forest's share of class 0 is 1 less a sum in float32 of the others, which ends a little above 1: no sign of logits.
_ROUNDING = 1e-5


def log_probabilities(p: NDArray[Any]) -> NDArray[Any]:
    """Return log p of (N, C) probabilities in their dtype; of 0, the logarithm of its smallest normal number.

    Raises:
        ValueError: the values are no probabilities.

    >>> log_probabilities(np.array([[1.0, 0.0]])).round(1).tolist()
    [[0.0, -708.4]]
    """
    if np.any(p < -_ROUNDING) or np.any(np.abs(p.sum(axis=1) - 1) > _SUM_TOLERANCE):
        raise ValueError("the values are no probabilities: some are negative, or do not add up to 1")
    logs: NDArray[Any] = np.log(np.clip(p, np.finfo(p.dtype).tiny, 1))
    return logs
