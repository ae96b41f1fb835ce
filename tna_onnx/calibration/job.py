"""What `calibrate` was asked for, in one value."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tna_onnx.calibration.settings import Settings
from tna_onnx.calibration.turn import Turn
from tna_onnx.data.options import Data
from tna_onnx.extraction.batch_size import DEFAULT
from tna_onnx.extraction.words import BatchSize
from tna_onnx.graph.options import ModelOptions, ModelSource
from tna_onnx.results.gates import Gates

__all__ = ["Job"]


@dataclass(frozen=True, eq=False)
class Job:
    """A recalibration before anything is opened.

    Attributes:
        model: the source.
        calib: calibration data.
        held_out: data for the report; None to cross-fit on `calib`.
        training: a part of the training data, for maps that compare features with those; None without.
        options: on the model's head and output.
        settings: of search, map and intervals.
        gates: limits on the result.
        output: path to write; None for the default.
        overwrite: allow the output to be the input.
        dry_run: write no model.
        details: collect the numbers behind the figures.
        device: `auto`, `cpu`, `cuda` or `cuda:INDEX`.
        batch_size: samples per run, or `auto`.
        cache: folder of feature stores.
        engine: who runs the model, searches and fits, in the words of the command line.
        turn: which of several heads this is; None where there is one.
    """

    model: ModelSource
    calib: Data
    held_out: Data | None = None
    training: Data | None = None
    options: ModelOptions = field(default_factory=ModelOptions)
    settings: Settings = field(default_factory=Settings)
    gates: Gates = field(default_factory=Gates)
    output: str | Path | None = None
    overwrite: bool = False
    dry_run: bool = False
    details: bool = False
    device: str = "auto"
    batch_size: BatchSize = DEFAULT
    cache: str | Path | None = None
    engine: str = "local"
    turn: Turn | None = None

    @property
    def folder(self) -> Path | None:
        """Folder of feature stores, as a path."""
        if self.cache is None:
            return None
        return Path(self.cache)

    @property
    def needs_head(self) -> bool:
        """Whether class vectors are searched."""
        return self.settings.resolved_search in ("sparse", "complete")
