"""`study`: the paper's experiments on one model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from tna_onnx.api import arguments
from tna_onnx.api.arguments import ProgressWord, StudyWords
from tna_onnx.data.choices import BatchSize
from tna_onnx.errors import UsageError
from tna_onnx.graph.options import ModelSource
from tna_onnx.numerics.metric import Objective
from tna_onnx.studies.settings import Protocol, StudySettings

if TYPE_CHECKING:
    from tna_onnx.results.study import Studies


def study(
    model: ModelSource,
    calib: Any,
    *,
    eval: Any = None,  # noqa: A002 - the word of the command line
    out: str | Path | None = None,
    only: Sequence[str] = (),
    repeats: int = 5,
    protocol: Protocol = "default",
    objective: Objective = "ece",
    bins: int = 15,
    seed: int = 0,
    theta_s: float = 0.9,
    n_t: int | None = None,
    ensemble_size: int | None = None,
    device: str = "auto",
    batch_size: BatchSize = 64,
    cache: str | Path | None = None,
    json: str | Path | None = None,
    progress: ProgressWord = None,
    **keywords: Unpack[StudyWords],
) -> Studies:
    """Make the paper's experiments on an ONNX classifier: tables and curves of one model.

    Args:
        model: an ONNX model with a linear head, as for `calibrate`.
        calib: labelled calibration data, as for `calibrate`.
        eval: held-out data to score, likewise; they are needed. Studies that repeat splits split both sets together.
        out: folder for each study's CSV and JSON. A study that is there already with the same digest, of
            model, data and settings, is read and not made again. Without it nothing is written.
        only: names of studies: `table`, `rotations`, `angles`, `members`, `angle`, `samples`, `dimension`;
            all of them by default.
        repeats: splits of the samples, draws of rotations and draws of calibration data, at least 2.
        protocol: `default` searches weights in the way of `calibrate`, for `objective`; `paper` as the paper prints it.
        objective: metric that the angle is chosen by: the paper's ECE by default. `calibrate` has the NLL, and so has
            the row "Default" of the table.
        bins: bins of ECE and AdaECE.
        seed: of all random draws; the same seed gives the same numbers.
        theta_s: largest angle of one rotation, in radians.
        n_t: rotations from one look at mRC to the next; by default 1, and 50 for the protocol `paper`.
        ensemble_size: members of an average, n_e; by default 10, and more where accuracy requires it.
        device: `auto`, `cpu`, `cuda` or `cuda:INDEX`.
        batch_size: samples per run; `auto` finds them by a short probe.
        cache: folder in which features are kept.
        json: JSON file to write.
        progress: True for bars on standard error, or a function that is called with (stage, done, total).
        **keywords: single fields by name: of `tna_onnx.Data` (`labels`, `preprocessing`, `classes`, ...; for both data
            sets), of `tna_onnx.ModelOptions`; and `eval_labels`, the labels of `eval` if they are stored apart from its
            samples.

    Raises:
        TypeError: a keyword that none of these has.
        UsageError: a path or setting that cannot be used.
        UnsupportedModel: no linear head that can be tilted.
        DataError: the data do not fit the model.
        DeviceError: ONNX Runtime or the device is missing.
        ResultError: a file cannot be written.
    """
    arguments.check_call(study, locals(), StudyWords)
    settings = StudySettings(repeats, seed, bins, objective, protocol, theta_s, n_t, ensemble_size)
    # a text is a sequence of letters
    names = tuple(only.split(",") if isinstance(only, str) else only)
    calibration = arguments.data_of(calib, keywords)
    calibration.refuse_beside("study")
    held_out = arguments.held_out_of(eval, calibration, keywords)
    if held_out is None:
        raise UsageError("eval is missing: a study scores held-out data; expected labelled samples")
    # the work loads with the first call, so that the name of the function is there at once
    from tna_onnx.studies.run import StudyJob, run_studies  # noqa: PLC0415

    job = StudyJob(
        model=model,
        calib=calibration,
        held_out=held_out,
        only=names,
        settings=settings,
        options=arguments.model_options_of(keywords),
        folder=None if out is None else Path(out),
        device=device,
        batch_size=batch_size,
        cache=cache,
    )
    return arguments.run_shown(run_studies, job, progress, json)
