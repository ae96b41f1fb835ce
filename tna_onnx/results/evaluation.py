"""The result of `evaluate`."""

from __future__ import annotations

from dataclasses import dataclass

from tna_onnx.numerics.metrics import Metrics
from tna_onnx.numerics.reliability import Bins

__all__ = ["Evaluation"]


@dataclass(frozen=True)
class Evaluation:
    """Metrics and top-label diagram of one model on labelled data, and the gates that they missed, a line each."""

    model: str
    model_sha256: str
    output: str
    output_kind: str
    data: str
    metrics: Metrics
    reliability: Bins
    preprocessing: dict[str, object] | None
    provider: str
    notes: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
