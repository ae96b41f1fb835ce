"""`shift`: a model for data in which classes are more or less frequent than in those that it was made for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tna_onnx.api import arguments
from tna_onnx.data.images.preprocess import Recipe
from tna_onnx.data.options import Data, Frequencies
from tna_onnx.graph.options import ModelOptions, ModelSource
from tna_onnx.shifting.shift_settings import ShiftSettings

if TYPE_CHECKING:
    from tna_onnx.results.outcomes import Shift


@arguments.checked
def shift(
    model: ModelSource,
    calib: Any,
    target: Any = None,
    *,
    eval: Any = None,  # noqa: A002 - the word of the command line
    output: str | Path | None = None,
    target_prior: Frequencies | None = None,
    source_prior: Frequencies | None = None,
    seed: int | None = None,
    labels: Any = None,
    preset: Recipe | str | Path | None = None,
    classes: Sequence[str] | str | Path | None = None,
    settings: ShiftSettings | None = None,
    data: Data | None = None,
    model_options: ModelOptions | None = None,
    dry_run: bool = False,
    device: str = "auto",
    batch_size: int = 64,
    overwrite: bool = False,
    json: str | Path | None = None,
    progress: arguments.ProgressWord = None,
) -> Shift:
    """Change the class frequencies that a classifier expects, in its bias.

    The frequencies are given (`target_prior`), or estimated on samples without labels (`target`). Both assume label
    shift: samples of a class look the same as before, and only the class frequencies have changed. If `target` is
    given, this is tested.

    Args:
        model: a calibrated ONNX model.
        calib: labelled samples of the data that the model was made for: a path, a URL, a mapping of arrays, an iterable
            of batches, or a `tna_onnx.Data`.
        target: samples as the model will see them, in the same forms as `calib`; their labels are not read.
        eval: labelled samples of those data, for the report. It and `target` are read as `calib` is, but for what a
            `Data` says of its own.
        output: path of the new file; `NAME.shift.onnx` beside the model by default.
        target_prior: class frequencies of the data that the model will see: `uniform`, a file, C numbers, or a mapping
            by class.
        source_prior: those of the data that the model was made for, in the same forms; those of `calib` by default.
        seed: of the bootstrap.
        labels: labels of the samples of `calib`, if they are stored apart: a file, or values (N,).
        preset: preprocessing of images: a `Recipe`, the name of one in `PRESETS`, or the path of a
            preprocessor_config.json (Hugging Face) or config.json (timm).
        classes: class names in the model's order, or a file with them.
        settings: all on where the frequencies come from.
        data: how the samples are read, without samples.
        model_options: which output, and what it holds.
        dry_run: do everything, but write no model.
        device: `auto`, `cpu`, `cuda` or `cuda:INDEX`.
        batch_size: samples per run.
        overwrite: allow the output to be the input.
        json: JSON file to write.
        progress: True for bars on standard error, or a function that is called with (stage, done, total).

    Raises:
        TypeError: an unknown keyword; the message names the dataclass that has it.
        UsageError: a path or setting that cannot be used, or is given both as a keyword and in a dataclass; or
            frequencies that are given and to be estimated, or neither.
        UnsupportedModel: the file is no classifier that can be read, has been shifted or guarded before, or has no
            place for the change.
        DataError: the data do not fit the model, are too few or serve two purposes, or frequencies are none.
        CheckFailed: more than class frequencies has changed, `eval` shows a higher NLL, or the file does not verify. No
            file is written.
        DeviceError: ONNX Runtime or the device is missing.
    """
    shift_settings = arguments.combined(
        settings, ShiftSettings, target_prior=target_prior, source_prior=source_prior, seed=seed
    )
    reading = arguments.reading_of(data, labels=labels, preprocessing=preset, classes=classes)
    labelled = arguments.samples_of(calib, reading)
    labelled.refuse_beside("shift")
    unlabelled = arguments.held_out_of(target, labelled, reading)
    # the work loads with the first call, so that the name of the function is there at once
    from tna_onnx.shifting.shift import shift as run
    from tna_onnx.shifting.shift_job import ShiftJob

    job = ShiftJob(
        model=model,
        calib=labelled,
        target=None if unlabelled is None else dataclasses.replace(unlabelled, labels=None),
        held_out=arguments.held_out_of(eval, labelled, reading),
        options=model_options or ModelOptions(),
        settings=shift_settings,
        output=output,
        overwrite=overwrite,
        dry_run=dry_run,
        device=device,
        batch_size=batch_size,
    )
    return arguments.run_with_progress(run, job, progress, json)
