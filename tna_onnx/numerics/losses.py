"""Losses of single samples whose mean is a metric, so that two models can be compared sample by sample.

The NLL and the Brier score are such means. A calibration error is one too, once the side is known on which each bin
errs: with r_i = hit_i - confidence_i,

    ECE = 1/N sum_i sign_j(i) r_i        sign_j = sign of the sum of r over bin j
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.metric import Objective
from tna_onnx.numerics.reliability import bin_of
from tna_onnx.numerics.stats import SampleScores

__all__ = ["sample_losses"]


def sample_losses(scores: SampleScores, objective: Objective = "nll", bins: int = 15) -> NDArray[np.float64]:
    """Return (N,) losses whose mean is the objective: nats for the NLL, no unit otherwise.

    Of several labels a sample, the loss of a sample is the mean of those of its labels.

    >>> one = SampleScores(np.float32([0.75, 0.75]), np.array([True, False]), np.float32([0, 0]), np.float32([0, 0]))
    >>> sample_losses(one, "ece", 2).tolist()
    [-0.25, 0.75]
    """
    if scores.predicted is not None:
        by_label = [sample_losses(each, objective, bins) for each in scores.by_label()]
        mean: NDArray[np.float64] = np.mean(by_label, axis=0)
        return mean
    if objective in ("nll", "brier"):
        return getattr(scores, objective).astype(np.float64)  # type: ignore[no-any-return]  # by the field's name
    residual: NDArray[np.float64] = scores.hit - scores.confidence.astype(np.float64)
    if objective == "adaece":
        return residual * _sides_by_mass(scores.confidence, residual, bins)
    bin_ = bin_of(scores.confidence, bins)
    losses: NDArray[np.float64] = np.sign(np.bincount(bin_, residual, bins))[bin_] * residual
    return losses


def _sides_by_mass(confidence: NDArray[np.float32], residual: NDArray[np.float64], bins: int) -> NDArray[np.float64]:
    """Return the side of each sample's bin, of bins of equal mass; samples of one confidence share the mean side."""
    ranks = np.arange(len(confidence))
    bin_ = ((ranks + 1) * bins - 1) // max(1, len(confidence))
    _, tie, counts = np.unique(confidence, return_inverse=True, return_counts=True)
    tied = np.repeat(np.arange(len(counts)), counts)
    mean = np.bincount(tie, residual, len(counts)) / counts
    side = np.sign(np.bincount(bin_, mean[tied], bins))
    shared: NDArray[np.float64] = np.bincount(tied, side[bin_], len(counts)) / counts
    return shared[tie]
