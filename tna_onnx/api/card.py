"""`card`: describe a recalibrated model to others, from the report of its calibration."""

from __future__ import annotations

import json
import os
from pathlib import Path, PurePath

from tna_onnx.api.arguments import check_targets, write_text
from tna_onnx.errors import UsageError
from tna_onnx.files import open_regular, resolved
from tna_onnx.results.as_json import from_json
from tna_onnx.results.report import Card, Report

_MAX_BYTES = 2**28  # the details of a report of many classes are a few megabytes

# Files of `--figures`, and what they show.
_FIGURES = {
    "reliability.svg": "Reliability before and after",
    "confidence.svg": "Confidences before and after",
    "risk-coverage.svg": "Error of the answers that are kept, by the share that is kept",
}


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

    Figures of `calibrate --figures` are linked if their folder is called `figures` and stands beside the result.

    Args:
        result: the report of `calibrate`, or the path of what its `--json` wrote.
        output: Markdown file to write; None for none.
        task: task of the model on the Hub, such as `image-classification`.
        license: identifier of the model's licence on the Hub.
        base_model: name of the input model on the Hub.
        overwrite: replace a card that someone else wrote.

    Raises:
        UsageError: the result cannot be read or wrote no model; a file cannot be written, or would be lost.
        ResultError: a file cannot be written.
    """
    from tna_onnx.render.card import MARK, model_card  # noqa: PLC0415 - loads what reads models

    check_targets(output)
    if output is not None and not overwrite and Path(output).is_file():
        with open_regular(resolved(output)) as stream:
            if MARK.encode() not in stream.read(2**20):
                raise UsageError(
                    f"{output}: was not written by `tna-onnx card`; choose another name, or say --overwrite"
                )
    report, where = result, Path()
    if not isinstance(report, Report):
        where = Path(report)
        report = _read_report(where)
    if report.missed or report.dry_run:
        raise UsageError(f"{where}: is of a run that wrote no model; expected one that did, so run it without the gate")
    folder = where.parent / "figures"
    start = Path(output).parent if output is not None else Path()
    figures = {
        PurePath(os.path.relpath(folder / name, start)).as_posix(): shown
        for name, shown in _FIGURES.items()
        if (folder / name).is_file()
    }
    # the same network with other numbers in its last layer: of the Hub's words the nearest
    relation = "finetune" if base_model else None
    header = {"license": license, "base_model": base_model, "base_model_relation": relation, "pipeline_tag": task}
    text = model_card(report, header, figures)
    if output is not None:
        write_text(output, text)
    return Card(text)


def _read_report(path: Path) -> Report:
    try:
        with open_regular(resolved(path)) as stream:
            return from_json(Report, json.loads(stream.read(_MAX_BYTES)))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{path}: is not the JSON of a calibration ({error}); write one with `tna-onnx calibrate --json FILE`"
        ) from error
