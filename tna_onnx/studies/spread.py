"""Means over repeats, and intervals of differences between what ran on the same repeats.

Repeated splits of one set of samples overlap, so that the mean of R paired differences varies more than the mean of R
independent ones: its variance is (1/R + n_2/n_1) s^2 with n_1 samples fitted and n_2 scored.

Source: Nadeau & Bengio (2003), "Inference for the generalization error", section 3, the corrected resampled t-test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

__all__ = ["deviation", "mean", "mean_interval", "paired_interval"]

_LEVEL = 0.95


def mean(values: Sequence[float]) -> float:
    """Return the mean."""
    return float(np.mean(values, dtype=np.float64))


def deviation(values: Sequence[float]) -> float | None:
    """Return the standard deviation; None of a single value."""
    if len(values) < 2:
        return None
    return float(np.std(values, ddof=1, dtype=np.float64))


def mean_interval(values: Sequence[float], overlap: float = 0.0) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of R values; None of a single value.

    Args:
        values: of the repeats.
        overlap: n_2 / n_1 for repeated splits of one set of samples, 0 for independent repeats.

    >>> mean_interval([1.0, 1.0, 1.0])
    (1.0, 1.0)
    """
    spread = deviation(values)
    if spread is None:
        return None
    from scipy.special import stdtrit  # noqa: PLC0415 - heavy

    count = len(values)
    width = float(stdtrit(count - 1, (1 + _LEVEL) / 2)) * spread * math.sqrt(1 / count + overlap)
    centre = mean(values)
    return centre - width, centre + width


def paired_interval(
    before: Sequence[float], after: Sequence[float], fitted: int, scored: int
) -> tuple[float, tuple[float, float] | None]:
    """Return the mean difference `after - before` over repeated splits, and its 95 % interval.

    Args:
        before: a metric of each repeat.
        after: the same metric on the same repeats.
        fitted: samples that each repeat fits on.
        scored: samples that each repeat is scored on.
    """
    differences = [b - a for a, b in zip(before, after, strict=True)]
    return mean(differences), mean_interval(differences, scored / fitted)
