"""Requests for a new file: what `calibrate`, `guard` and `shift` have in common (`FileJob`), and that for a
recalibration (`Job`), with the path that it writes and the earlier work of this tool on which it cannot build.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tna_onnx.data.choices import BatchSize
from tna_onnx.data.options import Data
from tna_onnx.errors import UnsupportedModel, UsageError
from tna_onnx.extraction.batch_size import DEFAULT
from tna_onnx.graph.cut import mapped_logits, reads
from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import RAW_LOGITS, calibrations, provenance
from tna_onnx.graph.options import ModelOptions, ModelSource
from tna_onnx.graph.readout import Readout
from tna_onnx.graph.save import check_output
from tna_onnx.pipeline.settings import Settings
from tna_onnx.results.gates import Gates


@dataclass(frozen=True, eq=False)
class FileJob:
    """The request for a new file, before anything is opened: what `calibrate`, `guard` and `shift` have in common.

    Attributes:
        model: the source.
        calib: labelled samples that something is fitted to.
        held_out: labelled samples for the report; None without.
        options: on the model's head and output.
        output: path to write; None for the default.
        overwrite: allow the output to be the input.
        dry_run: write no model.
        device: `auto`, `cpu`, `cuda` or `cuda:INDEX`.
        batch_size: samples per run, or `auto`.
    """

    model: ModelSource
    calib: Data
    held_out: Data | None = None
    options: ModelOptions = field(default_factory=ModelOptions)
    output: str | Path | None = None
    overwrite: bool = False
    dry_run: bool = False
    device: str = "auto"
    batch_size: BatchSize = DEFAULT


@dataclass(frozen=True, eq=False)
class Job(FileJob):
    """The request for a recalibration; without held-out data the report is cross-fitted.

    Attributes:
        training: a part of the training data, for maps that compare features with those; None without.
        settings: of search, map and intervals.
        gates: limits on the result.
        details: collect the numbers behind the figures.
        cache: folder of feature stores.
        teacher: a model whose probabilities stand for the labels of `calib`; None without.
        patch: ending of the name of a patch to make (`pipeline.patch`); empty for none.
    """

    training: Data | None = None
    settings: Settings = field(default_factory=Settings)
    gates: Gates = field(default_factory=Gates)
    details: bool = False
    cache: str | Path | None = None
    teacher: ModelSource | None = None
    patch: str = ""

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


def target_of(job: Job, model: Model) -> Path | None:
    """Return the path to write, and refuse one that would harm a file of the run.

    Raises:
        UsageError: such a path.
    """
    if job.output is not None:
        target = Path(job.output)
    elif model.path is not None:
        target = model.path.with_suffix(".tna.onnx")
    else:
        return None
    # a dry run beside a model in a read-only folder writes nothing there
    if job.output is not None or not job.dry_run:
        check_output(model, target, overwrite=job.overwrite)
    # writing the model over its own data would lose them
    for path in _data_files(job):
        if target.exists() and path.exists() and target.samefile(path):
            raise UsageError(f"{target}: output is the data file; choose another --output")
    return target


def _data_files(job: Job) -> Iterator[Path]:
    for data in (job.calib, job.held_out):
        if data is not None:
            yield from (Path(each) for each in (data.samples, data.labels) if isinstance(each, (str, Path)))


def refuse_finished(model: Model, options: ModelOptions) -> None:
    """Refuse a model that holds decisions, or nodes of this tool behind its logits.

    A map behind the logits of one head is none of another one, where the options name that by its output.

    Raises:
        UnsupportedModel: such a model.
    """
    entries = provenance(model)
    # thresholds are for the probabilities as they are
    if "guard" in entries:
        raise UnsupportedModel(
            f"{model.name}: has been guarded already, with thresholds for its probabilities as they are; calibrate the "
            "model without these outputs, and guard the result"
        )
    if RAW_LOGITS not in model.producers:
        return
    if "shift" in entries and "map" not in entries:
        raise UnsupportedModel(
            f"{model.name}: has been shifted already, by nodes behind its logits; calibrate the model before, and "
            "shift the result"
        )
    output = options.output_name or options.head
    if output in model.outputs and mapped_logits(model, output) is None:
        return
    raise UnsupportedModel(
        f"{model.name}: already holds a map that tna-onnx wrote ('{RAW_LOGITS}'); start from the original model, or "
        "name the output of another head with --head"
    )


def refuse_readers(model: Model, readout: Readout) -> None:
    """Refuse a head whose scores a head reads that was calibrated, or shifted, before: that would be undone.

    Raises:
        UnsupportedModel: such a head.
    """
    for output in calibrations(model):
        if output not in ("", readout.output) and reads(model, output, readout.logits):
            raise UnsupportedModel(
                f"{model.name}: output '{output}' was recalibrated before, and is computed from the scores of "
                f"'{readout.output}', so that a change of these changes both; start from the original model"
            )
    shifted = provenance(model)
    if "shift" in shifted and shifted.get("output", readout.output) != readout.output:
        raise UnsupportedModel(
            f"{model.name}: output '{shifted['output']}' was shifted to other class frequencies; calibrate all heads "
            "before, and shift the result"
        )


def shift_notes(model: Model) -> tuple[str, ...]:
    """Say that a model was given other class frequencies, which a calibration fits anew."""
    if "shift" not in provenance(model):
        return ()
    return (
        f"{model.name} was shifted to other class frequencies: a calibration on samples with others would undo that, "
        "so these must come from the target; better calibrate first, and shift the result",
    )
