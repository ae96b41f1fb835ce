"""The result of `evaluate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import Metrics
from tna_onnx.numerics.reliability import Bins
from tna_onnx.results.bin_free import BinFree
from tna_onnx.results.guarding import Decisions
from tna_onnx.results.label_metrics import LabelMetrics
from tna_onnx.results.shown import Record, Shown, metric_record, values_text

__all__ = ["Evaluation"]


@dataclass(frozen=True)
class Evaluation(Shown):
    """What `evaluate` measured.

    Attributes:
        model: path of the model.
        model_sha256: SHA-256 of its file.
        output: graph output that classifies.
        output_kind: what that output holds.
        data: what the samples are, in one line.
        metrics: metrics of the model on the data.
        reliability: top-label reliability diagram on the data, with the bins of the ECE.
        bin_free: calibration of the top label without bins.
        preprocessing: what was done to the images; None where values are used as they are.
        provider: execution provider of ONNX Runtime that was obtained.
        notes: what the user should know, in sentences.
        missed: gates that the model missed, a line each.
        decisions: what a guarded model decides; None where it decides nothing.
        labels: each label of a model with several a sample; empty for others.
    """

    model: str
    model_sha256: str
    output: str
    output_kind: str
    data: str
    metrics: Metrics
    reliability: Bins
    bin_free: BinFree
    preprocessing: dict[str, object] | None
    provider: str
    notes: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    decisions: Decisions | None = None
    labels: tuple[LabelMetrics, ...] = ()

    def __repr__(self) -> str:
        """Say in one line what was measured."""
        return f"<Evaluation of {PurePath(self.model).name}: {values_text(self.metrics)}; {self.metrics.n:,} samples>"

    def records(self) -> list[Record]:
        """Return a row for each metric, with its unit."""
        return [metric_record(name, value=getattr(self.metrics, name)) for name in METRICS]
