"""Which bins hold a sample, and by which share: one of equal width, or several of equal mass, which split ties."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.metrics import equal_mass_edges
from tna_onnx.numerics.reliability import bin_of
from tna_onnx.numerics.stats import SampleScores

__all__ = ["SHARES", "Shares", "shares_by_mass", "shares_by_width"]

Shares = Callable[[slice], NDArray[np.float64]]
"""(S, B) share of each of a slice of samples that each bin holds."""


def shares_by_width(scores: SampleScores, bins: int) -> Shares:
    """Each sample lies in one bin of equal width."""
    index = bin_of(scores.confidence, bins)
    return lambda rows: np.asarray(index[rows, None] == np.arange(bins), np.float64)


def shares_by_mass(scores: SampleScores, bins: int) -> Shares:
    """Samples of one confidence share the ranks start..stop: each lies in every bin of equal mass by one fraction."""
    _, tie, count = np.unique(scores.confidence, return_inverse=True, return_counts=True)
    stop = np.cumsum(count)
    start = stop - count
    edges = equal_mass_edges(len(scores), bins)

    def shares(rows: slice) -> NDArray[np.float64]:
        t = tie[rows]
        ranks = np.minimum(stop[t, None], edges[1:]) - np.maximum(start[t, None], edges[:-1])
        return np.asarray(np.maximum(ranks, 0) / count[t, None], np.float64)

    return shares


SHARES: dict[str, Callable[[SampleScores, int], Shares]] = {"ece": shares_by_width, "adaece": shares_by_mass}
"""The bins of each calibration error, by its name."""
