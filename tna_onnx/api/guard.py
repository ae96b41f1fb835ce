"""`guard`: decisions with guarantees as further outputs of a model; `edit_decision`: other thresholds of one; `shift`:
other class frequencies in its bias.

The work loads with the first call, so that the names of the functions are there at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tna_onnx.api import arguments
from tna_onnx.data.choices import Frequencies
from tna_onnx.data.options import Data
from tna_onnx.errors import UsageError
from tna_onnx.graph.options import ModelOptions, ModelSource
from tna_onnx.guarding.guard_settings import GuardSettings, refuse_unused
from tna_onnx.shifting.shift_settings import ShiftSettings

if TYPE_CHECKING:
    from tna_onnx.results.inspection import Inspection
    from tna_onnx.results.outcomes import Guard, Shift


@arguments.checked
def guard(
    model: ModelSource,
    calib: Any,
    *,
    eval: Any = None,  # noqa: A002 - the word of the command line
    ood_data: Any = None,
    output: str | Path | None = None,
    add: Sequence[str] | None = None,
    coverage: float | None = None,
    risk: float | None = None,
    seed: int | None = None,
    labels: Any = None,
    preset: arguments.PresetWord = None,
    classes: arguments.ClassNames = None,
    settings: GuardSettings | None = None,
    data: Data | None = None,
    model_options: ModelOptions | None = None,
    dry_run: bool = False,
    device: str = "auto",
    batch_size: int = 64,
    overwrite: bool = False,
    json: str | Path | None = None,
    progress: arguments.ProgressWord = None,
) -> Guard:
    """Add decisions to a classifier, each with a guarantee that needs no more than exchangeable samples.

    `confidence` (N,) is the largest probability. `accept` (N,) is whether to answer: the error among accepted samples
    is bounded. `set` (N, C) marks classes: the true one is among them at the stated rate. `ood` (N,) tells how far a
    sample is from those that the model knows, and `ood_alarm` (N,) whether it is too far. Outputs that the model had
    stay as they are.

    Args:
        model: an ONNX model as for `calibrate`, recalibrated or not.
        calib: labelled samples that neither the model nor its calibration has seen: a path, a URL, a mapping of arrays,
            an iterable of batches, or a `tna_onnx.Data`.
        eval: further samples for the report, likewise. It is read as `calib` is.
        ood_data: samples that the model should not know, for the report, likewise; their labels may be any.
        output: path of the new file; `NAME.guard.onnx` beside the model by default.
        add: decisions to add: `confidence`, `accept`, `set`, `ood`; by default the first three, and none with a
            `decide` in `settings`.
        coverage: how often the set contains the true class, per cent; 95 by default.
        risk: largest error among accepted samples, per cent; 2 by default.
        seed: of the split of the data, if they serve two purposes.
        settings: all of the outputs and their levels.
        data: how `calib`, `eval` and `ood_data` are read, without samples.
        model_options: which output, and what it holds.
        dry_run: do everything, but write no model.
        labels, preset, classes, overwrite, device, batch_size, json, progress: as for `calibrate`.

    Raises:
        UsageError: a path or setting that cannot be used, or is given both as a keyword and in a dataclass.
        UnsupportedModel: the file is no classifier that can be read, or its opset is too old.
        DataError: the data do not fit the model, were seen by its calibration, or are too few for a level.
        CheckFailed: the file does not verify. No file is written.
        DeviceError: ONNX Runtime or the device is missing.
    """
    guard_settings = arguments.combined(settings, GuardSettings, add=add, coverage=coverage, risk=risk, seed=seed)
    refuse_unused(guard_settings)
    reading = arguments.reading_of(data, labels=labels, preprocessing=preset, classes=classes)
    labelled = arguments.samples_of(calib, reading)
    labelled.refuse_beside("guard", "by")
    from tna_onnx.guarding.guard import guard as run
    from tna_onnx.guarding.guard_job import GuardJob

    job = GuardJob(
        model=model,
        calib=labelled,
        held_out=arguments.held_out_of(eval, labelled, reading),
        unknown=arguments.beside_of(ood_data, labelled, reading),
        options=model_options or ModelOptions(),
        settings=guard_settings,
        output=output,
        overwrite=overwrite,
        dry_run=dry_run,
        device=device,
        batch_size=batch_size,
    )
    return arguments.run_with_progress(run, job, progress, json)


def edit_decision(
    model: ModelSource,
    thresholds: Mapping[str, float],
    *,
    output: str | Path | None = None,
    overwrite: bool = False,
    json: str | Path | None = None,
) -> Inspection:
    """Write a copy of a model whose output `decision` has other thresholds.

    Nothing is promised of thresholds that were set by hand, and the file says so.

    Args:
        model: a file with the output `decision`, as `guard` or `calibrate` wrote it.
        thresholds: class, by name or number -> what its probability has to reach.
        output: path of the new file; `NAME.guard.onnx` beside the model by default.
        overwrite: allow the output to be the input.
        json: JSON file to write.

    Returns:
        What the new file is.

    Raises:
        UsageError: a path, class or threshold that cannot be used.
        UnsupportedModel: the file has no such output, or is not as `guard` wrote it.
        CheckFailed: the new file does not verify. No file is written.
    """
    from tna_onnx.api.inspect import inspect
    from tna_onnx.graph.load import load_model
    from tna_onnx.graph.save import file_beside, pending
    from tna_onnx.guarding.deciding import with_thresholds
    from tna_onnx.pipeline.checking import check_file

    if not thresholds:
        raise UsageError("expected a class and its threshold, such as {'spam': 0.7}")
    arguments.check_targets(json, in_use=[model, output])
    file = load_model(model)
    target = file_beside(file, output, ".guard.onnx", overwrite=overwrite)
    before, proto = with_thresholds(file, thresholds)
    with pending(file, proto, target) as path:
        check_file(before, path)
    assert target is not None  # noqa: S101 - only a dry run has none
    return arguments.save_json(json, inspect(target))


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
    preset: arguments.PresetWord = None,
    classes: arguments.ClassNames = None,
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
        settings: all on where the frequencies come from.
        data: how the samples are read, without samples.
        model_options: which output, and what it holds.
        dry_run: do everything, but write no model.
        labels, preset, classes, overwrite, device, batch_size, json, progress: as for `calibrate`.

    Raises:
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
