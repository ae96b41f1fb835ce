"""What `shift` was asked for, in one value."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tna_onnx.data.options import Data
from tna_onnx.errors import UsageError
from tna_onnx.extraction.batch_size import DEFAULT
from tna_onnx.extraction.words import BatchSize
from tna_onnx.graph.options import ModelOptions, ModelSource
from tna_onnx.shifting.settings import ShiftSettings

__all__ = ["ShiftJob"]


@dataclass(frozen=True, eq=False)
class ShiftJob:
    """New class frequencies for a model, before anything is opened.

    Attributes:
        model: the source.
        calib: labelled samples of the data that the model was made for.
        target: samples without labels of the data that it will see; None where their frequencies are given.
        held_out: labelled samples of those data, for the report; None without.
        options: on the model's head and output.
        settings: where the frequencies come from.
        output: path to write; None for the default.
        overwrite: allow the output to be the input.
        dry_run: write no model.
        device: `auto`, `cpu`, `cuda` or `cuda:INDEX`.
        batch_size: samples per run, or `auto`.

    Raises:
        UsageError: frequencies that are both given and to be estimated, or neither.
    """

    model: ModelSource
    calib: Data
    target: Data | None = None
    held_out: Data | None = None
    options: ModelOptions = field(default_factory=ModelOptions)
    settings: ShiftSettings = field(default_factory=ShiftSettings)
    output: str | Path | None = None
    overwrite: bool = False
    dry_run: bool = False
    device: str = "auto"
    batch_size: BatchSize = DEFAULT

    def __post_init__(self) -> None:
        if (self.target is None) == (self.settings.target_prior is None):
            raise UsageError(
                "expected either class frequencies (--target-prior FILE or uniform) or samples without labels to "
                "estimate them on (--target-data)"
            )
