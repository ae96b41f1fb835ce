"""`calibrate_heads`: recalibrate several heads of one model, and write them in one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tna_onnx.api.arguments import beside_of, job_of, refuse_unknown
from tna_onnx.api.shown import ProgressWord, check_targets, shown, with_json, write_text
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
    train_features: Any = None,
    output: str | Path | None = None,
    settings: Settings | None = None,
    gates: Gates | None = None,
    dry_run: bool = False,
    device: str = "auto",
    batch_size: BatchSize = 64,
    cache: str | Path | None = None,
    overwrite: bool = False,
    details: bool = False,
    report: str | Path | None = None,
    figures: str | Path | None = None,
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
        train_features: a part of the training data, likewise, for `aar`: data for the model's inputs.
        output: path of the new file; `NAME.tna.onnx` beside the model by default.
        settings: of search, map and intervals, as one value, for all heads.
        gates: limits on the result of each head, as one value.
        dry_run: do everything, but write no model.
        device: `auto`, `cpu`, `cuda` or `cuda:INDEX`.
        batch_size: samples per run; `auto` finds them by a short probe.
        cache: folder that keeps the features of `calib`, one store for all heads that read the same ones; later runs
            with these heads, in this order, start from them.
        overwrite: allow the output to be the input.
        details: collect the numbers behind the figures too, as `Report.details` of each head.
        report: HTML page to write, with sections for each head.
        figures: folder for the figures as SVG, PNG and PDF; each head has a folder in it, called like its output.
        json: JSON file to write.
        progress: True for bars on standard error, or a function that is called with (stage, done, total).
        **words: single fields by name, as for `calibrate`; without `head`, `output_name`, `label_column` and `classes`.

    Raises:
        TypeError: a keyword that none of these has.
        UsageError: a path or setting that cannot be used, or the same head twice.
        UnsupportedModel: a word names no head, or one head reads the scores of another.
        DataError: the data do not fit the model, or have no labels for a head.
        DeviceError: ONNX Runtime or the device is missing.
        ResultError: `report`, `json` or `figures` cannot be written; the model is.
        CheckFailed: the file does not verify. No file is written.
        GateMissed: a CheckFailed whose `result` is the HeadReports. No file is written.
    """
    refuse_unknown("calibrate_heads", words, SearchWords)
    if words.get("head") is not None:
        raise UsageError("head names one head; name all of them in heads")
    # the work loads with the first call, so that the name of the function is there at once
    from tna_onnx.calibration.heads import recalibrate_heads  # noqa: PLC0415

    job = job_of(
        model,
        calib,
        eval,
        settings,
        gates,
        words,
        output=output,
        overwrite=overwrite,
        dry_run=dry_run,
        details=details or report is not None or figures is not None,
        device=device,
        batch_size=batch_size,
        cache=cache,
    )
    job = replace(job, training=beside_of(train_features, job.calib, words))
    check_targets(json, report)
    if figures is not None:
        from tna_onnx.render.figures import require_matplotlib  # noqa: PLC0415 - what draws loads only where asked for

        require_matplotlib()
    with shown(progress) as callback:
        return with_json(
            json,
            lambda: recalibrate_heads(job, tuple(heads), callback),
            lambda result: _write(result, report, figures),
        )


def _write(result: HeadReports, page: str | Path | None, figures: str | Path | None) -> None:
    if page is not None:
        from tna_onnx.render.html.heads import heads_page  # noqa: PLC0415

        write_text(page, heads_page(result))
    if figures is not None:
        from tna_onnx.render.figures import write_figures  # noqa: PLC0415

        for output, folder in result.folders.items():
            write_figures(result.heads[output], Path(figures, folder), ("svg", "png", "pdf"))
