"""`study`: the paper's experiments on one model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tna_onnx.api import arguments
from tna_onnx.data.images.preprocess import Recipe
from tna_onnx.data.options import Data
from tna_onnx.errors import UsageError
from tna_onnx.graph.options import ModelOptions, ModelSource
from tna_onnx.studies.settings import StudySettings

if TYPE_CHECKING:
    from tna_onnx.results.study import Studies


@arguments.checked
def study(
    model: ModelSource,
    calib: Any,
    *,
    eval: Any = None,  # noqa: A002 - the word of the command line
    out: str | Path | None = None,
    only: Sequence[str] = (),
    repeats: int | None = None,
    seed: int | None = None,
    labels: Any = None,
    preset: Recipe | str | Path | None = None,
    classes: Sequence[str] | str | Path | None = None,
    settings: StudySettings | None = None,
    data: Data | None = None,
    model_options: ModelOptions | None = None,
    device: str = "auto",
    batch_size: int = 64,
    cache: str | Path | None = None,
    json: str | Path | None = None,
    progress: arguments.ProgressWord = None,
) -> Studies:
    """Make the paper's experiments on an ONNX classifier: tables and curves of one model.

    Args:
        model: an ONNX model with a linear head, as for `calibrate`.
        calib: labelled calibration data, as for `calibrate`.
        eval: held-out data to score, likewise; they are needed, and are read as `calib` is, but for what a `Data` says
            of its own. Studies that repeat splits split both sets together.
        out: folder for each study's CSV and JSON; without it nothing is written.
        only: names of studies: `table`, `rotations`, `angles`, `members`, `angle`, `samples`, `dimension`;
            all of them by default.
        repeats: splits of the samples, draws of rotations and draws of calibration data, at least 2; 5 by default.
        seed: of all random draws; the same seed gives the same numbers.
        labels: labels of the samples of `calib`, if they are stored apart: a file, or values (N,).
        preset: preprocessing of images: a `Recipe`, the name of one in `PRESETS`, or the path of a
            preprocessor_config.json (Hugging Face) or config.json (timm).
        classes: class names in the model's order, or a file with them.
        settings: all of the studies and their searches.
        data: how `calib` and `eval` are read, without samples.
        model_options: which head or output.
        device: `auto`, `cpu`, `cuda` or `cuda:INDEX`.
        batch_size: samples per run.
        cache: folder in which features are kept.
        json: JSON file to write.
        progress: True for bars on standard error, or a function that is called with (stage, done, total).

    Raises:
        TypeError: an unknown keyword; the message names the dataclass that has it.
        UsageError: a path or setting that cannot be used, or is given both as a keyword and in a dataclass.
        UnsupportedModel: no linear head that can be tilted.
        DataError: the data do not fit the model.
        DeviceError: ONNX Runtime or the device is missing.
        ResultError: a file cannot be written.
    """
    study_settings = arguments.combined(settings, StudySettings, repeats=repeats, seed=seed)
    if isinstance(only, str):  # a sequence of letters
        only = only.split(",")
    reading = arguments.reading_of(data, labels=labels, preprocessing=preset, classes=classes)
    calibration = arguments.samples_of(calib, reading)
    calibration.refuse_beside("study")
    held_out = arguments.held_out_of(eval, calibration, reading)
    if held_out is None:
        raise UsageError("eval is missing: a study scores held-out data; expected labelled samples")
    # the work loads with the first call, so that the name of the function is there at once
    from tna_onnx.studies.run import StudyJob, run_studies

    job = StudyJob(
        model=model,
        calib=calibration,
        held_out=held_out,
        only=tuple(only),
        settings=study_settings,
        options=model_options or ModelOptions(),
        folder=None if out is None else Path(out),
        device=device,
        batch_size=batch_size,
        cache=cache,
    )
    return arguments.run_with_progress(run_studies, job, progress, json)
