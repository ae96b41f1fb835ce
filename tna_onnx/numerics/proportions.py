"""How far a share of n samples may be from its probability: the score test of a proportion, from both sides.

With z the quantile of the normal distribution, a share f of n samples agrees with a probability p where

    |f - p| <= z sqrt(p (1 - p) / n)

Solved for p it is Wilson's interval around a share. Solved for f it is where a share lies if p is the probability.

Source: Wilson (1927), "Probable inference, the law of succession, and statistical inference"; Bröcker & Smith (2007),
"Increasing the reliability of reliability diagrams", for the second in a reliability diagram.
"""

from __future__ import annotations

import math
from statistics import NormalDist

__all__ = ["LEVEL", "Z", "consistent_range", "wilson_interval"]

LEVEL = 0.95
"""Level of both intervals, a fraction."""

Z = NormalDist().inv_cdf((1 + LEVEL) / 2)
"""Its quantile of the standard normal distribution, without unit."""


def wilson_interval(share: float, n: int) -> tuple[float, float]:
    """Return the probabilities that agree with a share of n >= 1 samples; fractions.

    >>> tuple(round(end, 3) for end in wilson_interval(1.0, 4))
    (0.51, 1.0)
    """
    weight = Z * Z / n
    middle = (share + weight / 2) / (1 + weight)
    reach = math.sqrt(weight * share * (1 - share) + weight * weight / 4) / (1 + weight)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def consistent_range(p: float, n: int) -> tuple[float, float]:
    """Return the shares of n >= 1 samples that agree with their probability p; fractions.

    For samples with different probabilities around a mean p it is a little too wide.

    >>> tuple(round(end, 3) for end in consistent_range(0.5, 100))
    (0.402, 0.598)
    """
    reach = Z * math.sqrt(p * (1 - p) / n)
    return max(0.0, p - reach), min(1.0, p + reach)
