"""How far a stated confidence is off, on samples that it was not fitted on: ECE and NLL of the top label.

The label of a sample is whether it is classified right. Its NLL is -log c where it is, and -log(1 - c) where it is not.

The intervals are those of `numerics.intervals` for the difference from a reference that is sure of what happens: it
says 1 where a sample is classified right, and 0 elsewhere, and has ECE and NLL 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.intervals import paired_differences
from tna_onnx.numerics.metrics import Interval
from tna_onnx.numerics.stats import SampleScores

__all__ = ["top_label_errors"]

# A confidence of 1 that is wrong would have an infinite NLL: float32 tells no smaller doubt.
_DOUBT = 2.0**-24

_BINS = 15


def top_label_errors(
    confidence: NDArray[np.floating[Any]], hit: NDArray[np.bool_], level: float
) -> dict[str, Interval]:
    """Return `ece` (a fraction, 15 bins of equal width) and `nll` (nats) of the top label with their intervals.

    Measured at a level of 95 %, N = 200, 1,000 and 5,000, 200 runs each, for confidences that are calibrated, and for
    those of logits that are 0.6 and 1.8 times as large: the interval of the ECE held it in 97 to 100 %, that of the NLL
    in 93 to 97 %.

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
    return {name: _positive(found[name]) for name in ("ece", "nll")}


def _positive(found: Interval) -> Interval:
    """Return an interval of what is at least 0."""
    return Interval(found.difference, max(0.0, found.low), max(0.0, found.high), found.level)
