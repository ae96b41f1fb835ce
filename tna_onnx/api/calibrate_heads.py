"""`calibrate_heads`: recalibrate several heads of one model, and write them in one file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tna_onnx.api.arguments import data_of, gates_of, held_out_of, model_options_of, refuse_unknown, settings_of
from tna_onnx.api.shown import ProgressWord, check_targets, shown, with_json
from tna_onnx.api.words import SearchWords, Unpack
from tna_onnx.calibration.settings import Settings
from tna_onnx.errors import UsageError
from tna_onnx.extraction.words import BatchSize
from tna_onnx.graph.options import ModelSource
from tna_onnx.results.gates import Gates
from tna_onnx.results.heads import HeadReports

__all__ = ["calibrate_heads"]


def calibrate_heads(
    model: ModelSource,
    calib: Any,
    *,
    heads: Sequence[str],
    eval: Any = None,  # noqa: A002 - the word of the command line
    output: str | Path | None = None,
    settings: Settings | None = None,
    gates: Gates | None = None,
    dry_run: bool = False,
    device: str = "auto",
    batch_size: BatchSize = 64,
    overwrite: bool = False,
    json: str | Path | None = None,
    progress: ProgressWord = None,
    **words: Unpack[SearchWords],
) -> HeadReports:
    """Recalibrate several heads of an ONNX model (a digit and its parity, say), and write one file.

    Each head is recalibrated as `calibrate` would alone, with the same settings and gates. Its labels have the name of
    its graph output: an array, a data set or a column. Heads that read the same features share the run of the network.

    Args:
        model: as for `calibrate`.
        calib: labelled calibration data, as for `calibrate`, with labels for each head.
        heads: two or more, by the names of their graph outputs, or by their nodes.
        eval: held-out data for the report, likewise.
        output: path of the new file; `NAME.tna.onnx` beside the model by default.
        settings: of search, map and intervals, as one value, for all heads.
        gates: limits on the result of each head, as one value.
        dry_run: do everything, but write no model.
        device: `auto`, `cpu`, `cuda` or `cuda:INDEX`.
        batch_size: samples per run; `auto` finds them by a short probe.
        overwrite: allow the output to be the input.
        json: JSON file to write.
        progress: True for bars on standard error, or a function that is called with (stage, done, total).
        **words: single fields by name, as for `calibrate`; without `head`, `output_name`, `label_column` and `classes`.

    Raises:
        TypeError: a keyword that none of these has.
        UsageError: a path or setting that cannot be used, or the same head twice.
        UnsupportedModel: a word names no head, or one head reads the scores of another.
        DataError: the data do not fit the model, or have no labels for a head.
        DeviceError: ONNX Runtime or the device is missing.
        ResultError: `json` cannot be written; the model is.
        CheckFailed: the file does not verify. No file is written.
        GateMissed: a CheckFailed whose `result` is the HeadReports. No file is written.
    """
    refuse_unknown("calibrate_heads", words, SearchWords)
    if words.get("head") is not None:
        raise UsageError("head names one head; name all of them in heads")
    chosen = settings_of(words, settings)
    calibration = data_of(calib, words)
    # the work loads with the first call, so that the name of the function is there at once
    from tna_onnx.calibration.heads import recalibrate_heads  # noqa: PLC0415
    from tna_onnx.calibration.job import Job  # noqa: PLC0415

    job = Job(
        model=model,
        calib=calibration,
        held_out=held_out_of(eval, calibration, words),
        options=model_options_of(words),
        settings=chosen,
        gates=gates_of(words, chosen, gates),
        output=output,
        overwrite=overwrite,
        dry_run=dry_run,
        device=device,
        batch_size=batch_size,
    )
    check_targets(json)
    with shown(progress) as callback:
        return with_json(json, lambda: recalibrate_heads(job, tuple(heads), callback), lambda _: None)
