"""`shift`: a model for data in which classes are more or less frequent than in those that it was made for."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from tna_onnx.api import arguments
from tna_onnx.api.arguments import ProgressWord, ShiftWords
from tna_onnx.data.choices import BatchSize
from tna_onnx.graph.options import ModelSource
from tna_onnx.shifting.shift_settings import ShiftSettings

if TYPE_CHECKING:
    from tna_onnx.results.outcomes import Shift


def shift(
    model: ModelSource,
    calib: Any,
    target: Any = None,
    *,
    eval: Any = None,  # noqa: A002 - the word of the command line
    output: str | Path | None = None,
    settings: ShiftSettings | None = None,
    dry_run: bool = False,
    device: str = "auto",
    batch_size: BatchSize = 64,
    overwrite: bool = False,
    json: str | Path | None = None,
    progress: ProgressWord = None,
    **keywords: Unpack[ShiftWords],
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
        eval: labelled samples of those data, for the report.
        output: path of the new file; `NAME.shift.onnx` beside the model by default.
        settings: where the frequencies come from, as one value.
        dry_run: do everything, but write no model.
        device: `auto`, `cpu`, `cuda` or `cuda:INDEX`.
        batch_size: samples per run; `auto` finds them by a short probe.
        overwrite: allow the output to be the input.
        json: JSON file to write.
        progress: True for bars on standard error, or a function that is called with (stage, done, total).
        **keywords: single fields by name: of `tna_onnx.ShiftSettings` (`target_prior`, `source_prior`, `estimator`,
            ...), of `tna_onnx.Data` and of `tna_onnx.ModelOptions`; and `eval_labels`.

    Raises:
        TypeError: a keyword that none of these has.
        UsageError: a path or setting that cannot be used, or frequencies that are given and to be estimated, or
            neither.
        UnsupportedModel: the file is no classifier that can be read, has been shifted or guarded before, or has no
            place for the change.
        DataError: the data do not fit the model, are too few or serve two purposes, or frequencies are none.
        CheckFailed: more than class frequencies has changed, `eval` shows a higher NLL, or the file does not verify. No
            file is written.
        DeviceError: ONNX Runtime or the device is missing.
    """
    arguments.check_call(shift, locals(), ShiftWords)
    labelled = arguments.data_of(calib, keywords)
    labelled.refuse_beside("shift")
    unlabelled = arguments.held_out_of(target, labelled, keywords)
    # the work loads with the first call, so that the name of the function is there at once
    from tna_onnx.shifting.shift import ShiftJob  # noqa: PLC0415
    from tna_onnx.shifting.shift import shift as run  # noqa: PLC0415

    job = ShiftJob(
        model=model,
        calib=labelled,
        target=None if unlabelled is None else dataclasses.replace(unlabelled, labels=None),
        held_out=arguments.held_out_of(eval, labelled, keywords),
        options=arguments.model_options_of(keywords),
        settings=arguments.with_words(settings or ShiftSettings(), keywords),
        output=output,
        overwrite=overwrite,
        dry_run=dry_run,
        device=device,
        batch_size=batch_size,
    )
    return arguments.run_shown(run, job, progress, json)
