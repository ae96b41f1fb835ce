"""What a calibration map is.

Laws, which one test runs over every map:

1. softmax(forward(...)) is the calibrated distribution: every map takes logits and gives logits (log-probabilities
   up to a constant per row), so that a Softmax, LogSoftmax or ArgMax behind it keeps working.
2. `fit` needs the data only through `reduce`: the fit of chunks is the fit of the whole.
3. `forward` is written in the words of `numerics.ops` alone: NumPy, torch and ONNX nodes run the same formula.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tna_onnx.numerics.ops import ArrayOps, Ops

__all__ = ["CalibrationMap", "Reduce", "apply_map"]

Reduce = Callable[[Callable[[Any, NDArray[np.int64]], Any]], Any]
"""reduce(of) = sum over chunks of of(logits, labels): logits (B, C), labels (B,)."""


class CalibrationMap(Protocol):
    """A fitted map, a frozen value."""

    @property
    def parameters(self) -> dict[str, float | list[float]]:
        """Fitted values by name, JSON-able."""

    def forward(self, op: Ops, logits: Any) -> Any:
        """Return calibrated logits (N, C), written in the words of `op`."""


def apply_map(fitted: CalibrationMap | None, logits: Any) -> Any:
    """Run a map on arrays, (N, C) -> (N, C); None is the identity."""
    return logits if fitted is None else fitted.forward(ArrayOps(logits), logits)
