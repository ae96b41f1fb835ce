"""How well a score tells unknown samples from known ones: the ROC curve and the area under it.

A sample raises the alarm where its score is above a threshold t. The curve is P(unknown > t) over P(known > t). The
area is the probability that an unknown sample has the larger score, ties counted half (Mann-Whitney).

Source: T. Fawcett, An introduction to ROC analysis, Pattern Recognition Letters 27 (2006), section 7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

__all__ = ["area_under", "roc_points"]

_POINTS = 200


def area_under(known: NDArray[Any], unknown: NDArray[Any]) -> float:
    """Return the area under the ROC curve of scores (N,) and (M,).

    >>> area_under(np.array([1.0, 2.0]), np.array([2.0, 3.0]))
    0.875
    """
    from scipy import stats  # noqa: PLC0415 - heavy

    ranks = stats.rankdata(np.concatenate([known, unknown]))[len(known) :]
    above = float(ranks.sum()) - len(unknown) * (len(unknown) + 1) / 2
    return above / (len(known) * len(unknown))


def roc_points(known: NDArray[Any], unknown: NDArray[Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return up to 200 points of the curve: (false alarms, detected), fractions, from (0, 0) to (1, 1)."""
    both = np.concatenate([known, unknown])
    chosen = np.linspace(0, len(both) - 1, min(_POINTS - 1, len(both))).astype(int)
    # from the largest threshold down, each once
    thresholds = np.unique(np.sort(both)[chosen])[::-1]
    false_alarms = [float(np.mean(known > t)) for t in thresholds]
    detected = [float(np.mean(unknown > t)) for t in thresholds]
    # below every score, all samples raise the alarm
    return (*false_alarms, 1.0), (*detected, 1.0)
