"""What `guard` was asked for, in one value."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tna_onnx.data.options import Data
from tna_onnx.extraction.batch_size import DEFAULT
from tna_onnx.extraction.words import BatchSize
from tna_onnx.graph.options import ModelOptions, ModelSource
from tna_onnx.guarding.settings import GuardSettings

__all__ = ["GuardJob"]


@dataclass(frozen=True, eq=False)
class GuardJob:
    """Decisions for a model, before anything is opened.

    Attributes:
        model: the source.
        calib: samples that the thresholds come from.
        held_out: data for the report; None without.
        fit: samples that an outlier score and a temperature are fitted to; None for one half of `calib`.
        unknown: samples that the model should not know, for the report; None without.
        options: on the model's head and output.
        settings: what is added, at which levels.
        output: path to write; None for the default.
        overwrite: allow the output to be the input.
        dry_run: write no model.
        device: `auto`, `cpu`, `cuda` or `cuda:INDEX`.
        batch_size: samples per run, or `auto`.
    """

    model: ModelSource
    calib: Data
    held_out: Data | None = None
    fit: Data | None = None
    unknown: Data | None = None
    options: ModelOptions = field(default_factory=ModelOptions)
    settings: GuardSettings = field(default_factory=GuardSettings)
    output: str | Path | None = None
    overwrite: bool = False
    dry_run: bool = False
    device: str = "auto"
    batch_size: BatchSize = DEFAULT
