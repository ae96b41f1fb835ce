"""How far a stated confidence is off, on samples that it was not fitted on: ECE and NLL of the top label.

The label of a sample is whether it is classified right. Its NLL is -log c where it is, and -log(1 - c) where it is not.

The intervals are those of `numerics.intervals` for the difference from a reference that is sure of what happens: it
says 1 where a sample is classified right, and 0 elsewhere, and has ECE and NLL 0. An NLL is mostly that of the few
samples that are wrong: with fewer than 10 of them, resampling says too little of how far it varies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.intervals import paired_differences
from tna_onnx.numerics.metrics import Interval
from tna_onnx.numerics.stats import SampleScores

__all__ = ["MIN_EACH", "TopLabelErrors", "top_label_errors"]

MIN_EACH = 10
"""Samples that are right, and samples that are wrong, from which the NLL has an interval."""

# A confidence of 1 that is wrong would have an infinite NLL: float32 tells no smaller doubt.
_DOUBT = 2.0**-24

_BINS = 15


@dataclass(frozen=True)
class TopLabelErrors:
    """ECE and NLL of the top label.

    Attributes:
        ece: over 15 bins of equal width, a fraction.
        ece_interval: its interval, fractions; None below 2 samples.
        nll: nats.
        nll_interval: its interval, nats; None below 10 samples that are right, or 10 that are wrong.
    """

    ece: float
    ece_interval: tuple[float, float] | None
    nll: float
    nll_interval: tuple[float, float] | None


def top_label_errors(confidence: NDArray[np.floating[Any]], hit: NDArray[np.bool_], level: float) -> TopLabelErrors:
    """Return the errors of the top label with their intervals.

    Measured at a level of 95 %, N = 200, 1,000 and 5,000, 200 runs each, for confidences that are calibrated, and for
    those of logits that are 0.6 and 1.8 times as large, nine cases with an accuracy of about 60 to 82 %: the interval
    of the ECE held it in 95 to 100 %, that of the NLL in 92 to 97 %. With few errors that of the NLL would not hold:
    in 75 % where 1 % of 200 samples are wrong, in 13 % where 0.1 % are. It is left out there.

    Args:
        confidence: (N,) stated probabilities that the sample is classified right.
        hit: (N,) whether it is.
        level: of the intervals, a fraction.
    """
    stated = np.clip(np.asarray(confidence, np.float64), _DOUBT, 1 - _DOUBT)
    loss = -np.log(np.where(hit, stated, 1 - stated)).astype(np.float32)
    nothing = np.zeros_like(loss)
    known = SampleScores(hit.astype(np.float32), hit, nothing, nothing)
    stated32 = np.asarray(confidence, np.float32)
    found = paired_differences(known, SampleScores(stated32, hit, loss, nothing), min(_BINS, len(hit)), level=level)
    ece, nll = found["ece"], found["nll"]
    right = int(np.count_nonzero(hit))
    enough = min(right, len(hit) - right) >= MIN_EACH
    return TopLabelErrors(
        ece.difference,
        _within(ece, 1.0) if len(hit) > 1 else None,
        nll.difference,
        _within(nll, np.inf) if enough else None,
    )


def _within(found: Interval, most: float) -> tuple[float, float]:
    """Return the interval of what is between 0 and `most`."""
    return min(max(0.0, found.low), most), min(max(0.0, found.high), most)
