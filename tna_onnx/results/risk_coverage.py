"""Errors among the samples that are answered, against how many are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.stats import SampleScores

__all__ = ["RiskCoverage"]

# Points of a curve.
_POINTS = 200


@dataclass(frozen=True)
class RiskCoverage:
    """Error rate among the samples with the highest confidence.

    Attributes:
        coverage: shares of the samples, fractions.
        risk: error rate among each share, fractions.
        area: area under the curve: the mean error rate over all coverages, a fraction.
    """

    coverage: tuple[float, ...]
    risk: tuple[float, ...]
    area: float

    @classmethod
    def of(cls, scores: SampleScores) -> RiskCoverage:
        """Take every distinct confidence as a threshold; up to 200 points of the curve are kept."""
        return cls.of_values(scores.confidence, scores.hit)

    @classmethod
    def of_values(cls, values: NDArray[Any], hit: NDArray[np.bool_]) -> RiskCoverage:
        """Do the same with confidences (N,) and whether the samples are classified right, (N,)."""
        order = np.argsort(-values, kind="stable")
        confidence = values[order]
        wrong = ~hit[order]
        # samples of one confidence are taken together: their order is arbitrary
        ends = np.flatnonzero(np.r_[confidence[1:] != confidence[:-1], True]) + 1
        coverage = ends / len(values)
        risk = np.cumsum(wrong)[ends - 1] / ends
        # a step function: each threshold's risk times the coverage that it adds
        area = float(np.sum(np.diff(coverage, prepend=0.0) * risk))
        # the area is of the whole curve; only what is drawn is thinned
        kept = np.unique(np.linspace(0, len(ends) - 1, min(_POINTS, len(ends))).astype(int))
        return cls(tuple(coverage[kept].tolist()), tuple(risk[kept].tolist()), area)
