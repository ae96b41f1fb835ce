"""`card`: describe a recalibrated model to others, from the report of its calibration."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tna_onnx.api.arguments import check_targets, write_text
from tna_onnx.errors import UsageError, writing
from tna_onnx.files import open_regular
from tna_onnx.results.as_json import SCHEMA, from_json
from tna_onnx.results.report import Card, Report

_MAX_BYTES = 2**28  # the details of a report of many classes are a few megabytes
_ADVICE = "write one with `tna-onnx calibrate --json FILE`"


def card(
    result: Report | str | Path,
    output: str | Path | None = None,
    *,
    figures: str | Path | None = None,
    task: str | None = None,
    license: str | None = None,  # noqa: A002 - the word of the command line, and of the Hub
    base_model: str | None = None,
    dataset: str | None = None,
    overwrite: bool = False,
) -> Card:
    """Write a model card for the Hugging Face Hub.

    Args:
        result: the report of `calibrate`, or the path of what its `--json` wrote.
        output: Markdown file to write; None for none.
        figures: folder of `calibrate --figures`; by default `figures` beside the result, if it is there.
        task: task of the model on the Hub, such as `image-classification`.
        license: identifier of the model's licence on the Hub.
        base_model: name of the input model on the Hub.
        dataset: name of the data set on the Hub, such as `cifar10` or `ORG/NAME`; the metrics then also go into
            `.eval_results/NAME.yaml` beside `output`, as the pages of models and data sets show them.
        overwrite: replace a card that someone else wrote.

    Raises:
        UsageError: the result cannot be read or wrote no model; a file cannot be written, or would be lost; an
            unknown task.
        ResultError: a file cannot be written.
    """
    from tna_onnx.render.card import TASKS, CardWords, eval_results, figures_of, model_card  # noqa: PLC0415 - loads what reads models

    if task is not None and task not in TASKS:
        raise UsageError(f"task '{task}': expected {', '.join(TASKS)}")
    if dataset is not None:
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", dataset):
            raise UsageError(f"dataset '{dataset}': expected the name of a data set on the Hub, such as ORG/NAME")
        if output is None:
            raise UsageError("dataset: its results are written beside the card, so the card needs a path")
    check_targets(output)
    target = Path(output) if output is not None else None
    if target is not None and not overwrite:
        _keep(target)
    report = _report(result)
    folder = figures
    if folder is None:
        folder = Path("figures") if isinstance(result, Report) else Path(result).parent / "figures"
    text = model_card(report, CardWords(task, license, base_model), figures_of(Path(folder), target))
    if target is not None:
        write_text(target, text)
    if target is not None and dataset is not None:
        results = target.parent / ".eval_results" / f"{dataset.rpartition('/')[2]}.yaml"
        with writing(results.parent):
            results.parent.mkdir(exist_ok=True)
        write_text(results, eval_results(report, dataset))
    return Card(text)


def _report(result: Report | str | Path) -> Report:
    """Return the report of a written model, read from a file where a path is given."""
    report, where = result, "the report"
    if not isinstance(report, Report):
        report, where = _read_report(Path(report)), str(report)
    if report.missed or report.dry_run:
        raise UsageError(f"{where}: is of a run that wrote no model; expected one that did, so run it without the gate")
    return report


def _read_report(path: Path) -> Report:
    try:
        with open_regular(path.resolve()) as stream:
            values = json.loads(stream.read(_MAX_BYTES))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}; {_ADVICE}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is not JSON; {_ADVICE}") from error
    kind = values.get("schema") if isinstance(values, dict) else None
    expected = f"tna-onnx/report/{SCHEMA}"
    if kind != expected:
        raise UsageError(f"{path}: expected the JSON of a calibration ({expected}), found {kind!r}; {_ADVICE}")
    try:
        return from_json(Report, values)
    except ValueError as error:
        raise UsageError(f"{path}: is not a complete report ({error}); {_ADVICE}") from error


def _keep(path: Path) -> None:
    """Refuse to replace a text that this command did not write."""
    from tna_onnx.render.card import MARK  # noqa: PLC0415

    if not path.exists():
        return
    try:
        with open_regular(path.resolve()) as stream:
            ours = MARK.encode() in stream.read(2**20)
    except OSError:
        return  # a pipe or a device has nothing to lose
    if not ours:
        raise UsageError(f"{path}: was not written by `tna-onnx card`; choose another name, or say --overwrite")
