"""Metrics of scores by name, those without bins among them."""

from __future__ import annotations

from tna_onnx.numerics.cumulative import CumulativeTest
from tna_onnx.numerics.debiased import debiased_ece
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.numerics.stats import SampleScores

__all__ = ["measured"]


def measured(scores: SampleScores, bins: int) -> dict[str, float]:
    """Return all metrics of some scores by name."""
    metrics = Metrics.of(scores, bins)
    values = {name: float(getattr(metrics, name)) for name in METRICS}
    cumulative = CumulativeTest.of(scores).kolmogorov_smirnov
    return values | {"ece_debiased": debiased_ece(scores, bins), "cumulative": cumulative}
