"""What is sent to chunks of samples: functions of logits, labels and features that can be pickled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from tna_onnx.engine.placement import LinearHead
from tna_onnx.maps.base import CalibrationMap, apply_map
from tna_onnx.numerics.ops import Blocked, to_host
from tna_onnx.numerics.stats import SampleScores

__all__ = ["of_mapped", "of_scaled", "on_host", "predicted", "scores_of_heads"]


def predicted(
    fitted: CalibrationMap | None, logits: Any, labels: NDArray[np.int64], features: Any
) -> NDArray[np.int64]:
    """Return the predicted classes (B,) after a map; of several labels, 1 for each that is predicted, (B, C)."""
    mapped = apply_map(fitted, logits, features)
    if labels.ndim == 2:
        return (to_host(mapped) > 0).astype(np.int64)
    return to_host(array_api_compat.array_namespace(mapped).argmax(mapped, axis=1))


def on_host(logits: Any, *_: Any) -> NDArray[Any]:
    """Return (B, C) logits as an array of NumPy."""
    return to_host(logits)


def of_mapped(
    fitted: CalibrationMap | None, logits: Any, labels: NDArray[np.int64], features: NDArray[Any] | None
) -> SampleScores:
    """Score (B, C) logits after a map."""
    return SampleScores.of_logits(apply_map(fitted, logits, features), labels)


def of_scaled(scale: float, shift: Any, logits: Any, labels: NDArray[np.int64], *_: Any) -> SampleScores:
    """Score (B, C) logits times a factor, plus a (C,) shift or None."""
    scaled = logits * scale
    if shift is not None:
        scaled += shift
    return SampleScores.of_logits(scaled, labels)


def scores_of_heads(heads: Sequence[LinearHead], features: Any, labels: NDArray[np.int64]) -> list[SampleScores]:
    """Score (B, n) features under each of several heads."""
    return [Blocked(SampleScores.of_logits)(head(features), labels) for head in heads]
