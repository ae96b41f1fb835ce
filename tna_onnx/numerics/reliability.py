"""Reliability diagrams: samples, mean confidence and accuracy of B bins of equal width; plain tuples, for JSON too.

Bin j holds j/B < confidence <= (j+1)/B, as in `numerics.metrics`; bin 0 holds 0 as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.stats import SampleScores

__all__ = ["Bins", "Reliability", "bin_of"]


@dataclass(frozen=True)
class Bins:
    """A reliability diagram of B bins: bin j holds j/B < confidence <= (j+1)/B, bin 0 holds 0 as well.

    Attributes:
        count: samples in each bin.
        confidence: mean confidence in each bin, a fraction; 0 where it is empty.
        accuracy: share of each bin that came true, a fraction; 0 where it is empty.
    """

    count: tuple[int, ...]
    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]

    @classmethod
    def of(cls, confidence: NDArray[Any], hit: NDArray[np.bool_], bins: int) -> Bins:
        """Bin (N,) confidences and whether each came true."""
        # the bins of the ECE, so that a diagram shows what the number sums up
        index = bin_of(confidence, bins)
        sums = [np.bincount(index, values, bins) for values in (confidence.astype(np.float64), hit)]
        return cls.of_sums(np.bincount(index, minlength=bins), *sums)

    @classmethod
    def of_sums(cls, count: NDArray[Any], confidence: NDArray[Any], hits: NDArray[Any]) -> Bins:
        """Divide (B,) sums by their counts."""
        size = np.maximum(count, 1)  # sums of an empty bin are 0, and stay 0
        return cls(
            tuple(count.astype(int).tolist()), tuple((confidence / size).tolist()), tuple((hits / size).tolist())
        )

    @property
    def ece(self) -> float:
        """Sum over bins of count / N * |accuracy - confidence|."""
        gap = sum(n * abs(a - c) for n, a, c in zip(self.count, self.accuracy, self.confidence, strict=True))
        return gap / max(1, sum(self.count))


@dataclass(frozen=True)
class Reliability:
    """Top-label reliability diagrams before and after, of the same samples.

    Attributes:
        before: diagram of the input model.
        after: diagram of the recalibrated model.
    """

    before: Bins
    after: Bins

    @classmethod
    def of(cls, before: SampleScores, after: SampleScores, bins: int) -> Reliability:
        """Bin paired scores."""
        return cls(*(Bins.of(scores.confidence, scores.hit, bins) for scores in (before, after)))


def bin_of(values: NDArray[Any], bins: int) -> NDArray[np.intp]:
    """Bin of each value in [0, 1]."""
    # borders are divided, not added up: float64(j / B) is the closest number to the border
    return np.searchsorted(np.arange(1, bins) / bins, values.astype(np.float64), side="left")
