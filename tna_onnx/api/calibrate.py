"""`calibrate`: recalibrate a classifier and write it as a drop-in file; `card` describes that file to others, and
`study` makes the paper's experiments on one model.

The work loads with the first call, so that the names of the functions are there at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tna_onnx.api import arguments
from tna_onnx.data.options import Data
from tna_onnx.errors import UsageError
from tna_onnx.files import open_regular, resolved
from tna_onnx.graph.options import ModelOptions, ModelSource
from tna_onnx.guarding.guard_settings import GuardSettings, refuse_unused
from tna_onnx.pipeline.settings import MapChoice, Predictions, Search, Settings
from tna_onnx.results.gates import GateMissed, Gates
from tna_onnx.studies.settings import StudySettings

if TYPE_CHECKING:
    from tna_onnx.results.report import Card, Report
    from tna_onnx.results.study import Studies

_MAX_BYTES = 2**28  # the details of a report of many classes are a few megabytes


@arguments.checked
def calibrate(
    model: ModelSource,
    calib: Any,
    y: Any = None,
    *,
    eval: Any = None,  # noqa: A002 - the word of the command line
    teacher: ModelSource | None = None,
    output: str | Path | None = None,
    map: MapChoice | None = None,  # noqa: A002 - the word of the command line
    search: Search | None = None,
    predictions: Predictions | None = None,
    seed: int | None = None,
    labels: Any = None,
    preset: arguments.PresetWord = None,
    classes: arguments.ClassNames = None,
    settings: Settings | None = None,
    data: Data | None = None,
    gates: Gates | None = None,
    guard: GuardSettings | None = None,
    model_options: ModelOptions | None = None,
    dry_run: bool = False,
    device: str = "auto",
    batch_size: int = 64,
    cache: str | Path | None = None,
    overwrite: bool = False,
    details: bool = False,
    report: str | Path | None = None,
    json: str | Path | None = None,
    figures: str | Path | None = None,
    progress: arguments.ProgressWord = None,
) -> Report:
    """Recalibrate an ONNX classifier and write it as a drop-in file.

    Args:
        model: path of the ONNX file, its bytes, or an onnx.ModelProto; never modified.
        calib: labelled calibration data: a path, a URL, a mapping of arrays, an iterable of batches (docs/data.md), or
            a `tna_onnx.Data`.
        y: labels of the samples of `calib`, as `labels`: `calibrate(model, X, y)`.
        eval: held-out data for the report, in the same forms as `calib`. It is read as `calib` is, but for what a
            `Data` says of its own. Without it the report is cross-fitted on `calib`.
        teacher: a model whose probabilities are fitted in place of labels, in the forms of `model`: the float model of
            which a quantised one was made. The labels of `calib` are not read; without `eval`, a quarter of the samples
            is kept for the report.
        output: path of the new file; `NAME.tna.onnx` beside the model by default. Without it a model in memory gives
            `Report.recalibrated` and no file.
        map: calibration map, such as `ts`; chosen by default, as are `search` and `predictions`; see `Settings`.
        search: how the weight of the last layer may change.
        predictions: whether predicted classes may change.
        seed: of all random draws.
        labels: labels of the samples of `calib`, if they are stored apart: a file, or values (N,).
        preset: preprocessing of images: a `Recipe`, the name of one in `PRESETS`, or the path of a
            preprocessor_config.json (Hugging Face) or config.json (timm).
        classes: class names in the model's order, or a file with them.
        settings: all of search, map and intervals.
        data: how `calib` and `eval` are read, without samples.
        gates: limits on the result.
        guard: decisions to add to the file, whose thresholds come from half of `calib`.
        model_options: which head or output.
        dry_run: do everything, verification and gates included, but write no model; `Report.changes` says what would
            be written. `cache` is still filled.
        device: `auto`, `cpu`, `cuda` or `cuda:INDEX`.
        batch_size: samples per run.
        cache: folder that keeps the features; interrupted runs continue from them, and later runs start from them.
        overwrite: allow the output to be the input.
        details: collect the numbers behind the figures of the HTML report too, as `Report.details`.
        report: HTML page to write.
        json: JSON file to write.
        figures: folder for the figures as SVG.
        progress: True for bars on standard error, or a function that is called with (stage, done, total).

    Raises:
        TypeError: an unknown keyword; the message names the dataclass that has it.
        UsageError: a path or setting that cannot be used, or is given both as a keyword and in a dataclass.
        UnsupportedModel: no head that can be replaced.
        DataError: the data do not fit the model, or a map cannot be fitted on them.
        DeviceError: ONNX Runtime or the device is missing.
        ResultError: `report`, `json` or `figures` cannot be written; the model is.
        CheckFailed: the file does not verify, or the accuracy is not the expected one. No file is written.
        GateMissed: a CheckFailed whose `result` is the Report of a result that missed gates. No file is written.
    """
    if y is not None and labels is not None:
        raise UsageError("y and labels are both given; give one")
    run_settings = arguments.combined(settings, Settings, map=map, search=search, predictions=predictions, seed=seed)
    decisions = None if guard is None else _decisions(guard, run_settings)
    from tna_onnx.pipeline.job import Job

    reading = arguments.reading_of(data, labels=labels if y is None else y, preprocessing=preset, classes=classes)
    calibration = arguments.samples_of(calib, reading)
    job = Job(
        model=model,
        calib=calibration,
        held_out=arguments.held_out_of(eval, calibration, reading),
        options=model_options or ModelOptions(),
        settings=run_settings,
        gates=arguments.gates_of(gates, run_settings),
        output=output,
        overwrite=overwrite,
        dry_run=dry_run,
        details=details or report is not None or figures is not None,
        device=device,
        batch_size=batch_size,
        cache=cache,
        teacher=teacher,
    )
    if teacher is not None:
        if decisions is not None:
            raise UsageError("--add needs labels for its thresholds; use --teacher without it, and guard the result")
        job.calib.refuse_beside("calibrate with --teacher", "by", "weight")
    arguments.check_targets(report, json, in_use=[*arguments.files_of(job), teacher])
    arguments.check_targets(output, in_use=[teacher, job.calib, job.held_out])
    if figures is not None and Path(figures).is_file():
        raise UsageError(f"{figures}: is a file; expected the name of a folder for the figures")
    try:
        with arguments.progress_callback(progress) as callback:
            if decisions is None:
                from tna_onnx.pipeline.recalibrate import recalibrate

                result = recalibrate(job, callback)
            else:
                from tna_onnx.guarding.guard import recalibrate_and_guard

                result = recalibrate_and_guard(job, decisions, callback)
    except GateMissed as missed:
        _write(missed.result, json, report, figures)
        raise
    _write(result, json, report, figures)
    return result


def _decisions(guard: GuardSettings, settings: Settings) -> GuardSettings:
    """Return the decisions to add; what both settings have is that of the run, unless they say their own."""
    shared = {name: getattr(settings, name) for name in ("seed", "trust_labels", "confidence_level")}
    if guard.decide:
        shared["positive"] = settings.positive
    guard = dataclasses.replace(guard, **(shared | arguments.stated_in(guard)))
    refuse_unused(guard)
    return guard


def _write(result: Report, json: str | Path | None, page: str | Path | None, figures: str | Path | None) -> None:
    arguments.save_json(json, result)
    # what draws loads only where it is asked for
    if page is not None:
        from tna_onnx.render.html.pages import page_of

        arguments.write_text(page, page_of(result))
    if figures is not None:
        from tna_onnx.render.figures import write_figures

        write_figures(result, Path(figures))


def card(
    result: Report | str | Path,
    output: str | Path | None = None,
    *,
    task: str | None = None,
    license: str | None = None,  # noqa: A002 - the word of the command line, and of the Hub
    base_model: str | None = None,
    overwrite: bool = False,
) -> Card:
    """Write a model card for the Hugging Face Hub.

    Args:
        result: the report of `calibrate`, or the path of what its `--json` wrote.
        output: Markdown file to write; None for none.
        task: task of the model on the Hub, such as `image-classification`.
        license: identifier of the model's licence on the Hub.
        base_model: name of the input model on the Hub.
        overwrite: replace a file that is there.

    Raises:
        UsageError: the result cannot be read or wrote no model; a file cannot be written, or would be lost.
        ResultError: a file cannot be written.
    """
    from tna_onnx.render.model_card import model_card
    from tna_onnx.results.report import Card, Report

    arguments.check_targets(output)
    if output is not None and not overwrite and Path(output).exists():
        raise UsageError(f"{output}: is there already; choose another name, or say --overwrite")
    report = result
    if not isinstance(report, Report):
        report = _read_report(Path(report))
    if report.missed or report.dry_run:
        raise UsageError("the result is of a run that wrote no model; give the result of a run that wrote one")
    # the same network with other numbers in its last layer: of the Hub's words the nearest
    relation = "finetune" if base_model else None
    header = {"license": license, "base_model": base_model, "base_model_relation": relation, "pipeline_tag": task}
    text = model_card(report, header)
    if output is not None:
        arguments.write_text(output, text)
    return Card(text)


def _read_report(path: Path) -> Report:
    from tna_onnx.results.as_json import from_json
    from tna_onnx.results.report import Report

    try:
        with open_regular(resolved(path)) as stream:
            return from_json(Report, loads(stream.read(_MAX_BYTES)))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{path}: is not the JSON of a calibration ({error}); write one with `tna-onnx calibrate --json FILE`"
        ) from error


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
    preset: arguments.PresetWord = None,
    classes: arguments.ClassNames = None,
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
        settings: all of the studies and their searches.
        data: how `calib` and `eval` are read, without samples.
        cache: folder in which features are kept.
        labels, preset, classes, model_options, device, batch_size, json, progress: as for `calibrate`.

    Raises:
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
