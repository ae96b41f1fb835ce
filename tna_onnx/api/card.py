"""`card`: describe a recalibrated model to others, from the report of its calibration."""

from __future__ import annotations

import json
from pathlib import Path

from tna_onnx.api.arguments import check_targets, write_text
from tna_onnx.errors import UsageError
from tna_onnx.files import open_regular, resolved
from tna_onnx.results.as_json import from_json
from tna_onnx.results.report import Card, Report

_MAX_BYTES = 2**28  # the details of a report of many classes are a few megabytes


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

    check_targets(output)
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
