"""Several heads of one model: each is recalibrated as if it were alone, all of them in one file.

The turns are a chain: each reads the file of the turn before, and its own checks hold the result against that one. The
last one writes the file that was asked for. If a head misses a gate, the rest are judged all the same, and no file is
written.
"""

from __future__ import annotations

import functools
import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path

from tna_onnx.calibration.job import Job
from tna_onnx.calibration.recalibrate import recalibrate
from tna_onnx.calibration.target import target_of
from tna_onnx.calibration.turn import Tables, Turn
from tna_onnx.data.options import Data
from tna_onnx.errors import TnaError, UnsupportedModel, UsageError
from tna_onnx.extraction.isolated import open_source
from tna_onnx.extraction.keys import model_key
from tna_onnx.graph.cut import ancestors
from tna_onnx.graph.head import choose_head
from tna_onnx.graph.load import Model
from tna_onnx.graph.options import ModelSource
from tna_onnx.graph.own_names import calibrated_heads
from tna_onnx.graph.readout import Readout
from tna_onnx.graph.scores import find_readout
from tna_onnx.progress import Progress
from tna_onnx.results.gates import GateMissed
from tna_onnx.results.heads import HeadReports
from tna_onnx.results.report import Report

__all__ = ["recalibrate_heads"]


def recalibrate_heads(job: Job, words: Sequence[str], progress: Progress) -> HeadReports:
    """Recalibrate several heads of a model, and write one file.

    Args:
        job: what was asked for, for each head.
        words: the heads: graph outputs, or labels of linear nodes.
        progress: called with (stage, done, total).

    Raises:
        UsageError, UnsupportedModel, DataError, DeviceError, CheckFailed, GateMissed: see `tna_onnx.calibrate_heads`.
    """
    _check_arguments(job, words)
    model = open_source(job.model, job.options)
    target = target_of(job, model)
    if target is None:
        raise UsageError("a model that is no file needs an output where it has several heads: the path of a file")
    outputs = _outputs(job, model, words)
    source_key = None if job.cache is None else model_key(model)
    tables = Tables()
    reports: dict[str, Report] = {}
    source: ModelSource = job.model
    # on the disk of the result, where there is one
    folder = None if job.dry_run else target.resolve().parent
    with tempfile.TemporaryDirectory(prefix=".tna-onnx-", dir=folder) as made:
        for k, readout in enumerate(outputs):
            others = tuple(each.output for each in outputs if each is not readout)
            turn = Turn(readout.output, others, model.sha256, tables, source_key)
            # nothing is written where it was asked for once a gate is missed
            last = k == len(outputs) - 1 and not any(each.missed for each in reports.values())
            own = replace(
                _job_of(job, turn),
                model=source,
                output=target if last else Path(made) / f"{k}.onnx",
                dry_run=last and job.dry_run,
            )
            try:
                report = recalibrate(own, functools.partial(_named, progress, readout.output))
                source = own.output if own.output is not None else source
            except GateMissed as missed:
                report = missed.result
            except TnaError as error:
                text = _of_the_source(str(error), Path(made), model.name)
                raise type(error)(f"head '{readout.output}': {text}") from error
            reports[readout.output] = replace(report, model=model.name, model_sha256=model.sha256)
    return _result(job, model, target, reports)


def _of_the_source(text: str, made: Path, name: str) -> str:
    """Call a file of a turn, which the user does not know, what the model is called."""
    return re.sub(re.escape(str(made)) + r"[/\\][0-9]+\.onnx", lambda _: name, text)


def _check_arguments(job: Job, words: Sequence[str]) -> None:
    """Refuse what several heads cannot have.

    Raises:
        UsageError: such an argument.
    """
    if len(words) < 2:
        raise UsageError("several heads are two or more; for one, leave the others out of --head, or use calibrate")
    if job.options.output_kind is not None:
        raise UsageError(
            f"--output-kind {job.options.output_kind} is for one head; with several, the graph has to show what each "
            "output holds: leave it out, or calibrate this head by itself with --output-name"
        )
    if job.options.output_name is not None:
        raise UsageError("--output-name chooses one output; name each head by its output: --head A --head B")
    if job.engine != "local":
        raise UsageError(f"several heads are collected in this process; leave --engine {job.engine} out")
    for data in (job.calib, job.held_out, job.training):
        if data is not None and data.label_column is not None:
            raise UsageError(
                f"--label-column {data.label_column} is for one head; with several, labels are found under the names "
                "of their outputs"
            )
        if data is not None and data.classes is not None:
            raise UsageError("--classes names the classes of one head; leave it out where there are several")


def _outputs(job: Job, model: Model, words: Sequence[str]) -> list[Readout]:
    """Return the scores that the words name.

    Raises:
        UnsupportedModel: a word names none, two are of one head, or one head reads the other.
    """
    if calibrated_heads(model):
        raise UnsupportedModel(f"{model.name}: its heads were recalibrated before; start from the original model")
    readouts = [_readout(job, model, word) for word in words]
    named = list(zip(words, readouts, strict=True))
    for (word, one), (other_word, other) in combinations(named, 2):
        if one.logits == other.logits:
            raise UsageError(f"--head {word} and --head {other_word} are one head, '{one.logits}'; name it once")
    for reader, read in permutations(readouts, 2):
        if model.producers.get(read.logits) in ancestors(model, reader.logits):
            raise UnsupportedModel(
                f"{model.name}: head '{reader.output}' reads the scores of head '{read.output}', so that a change of "
                "these changes both; calibrate only one of them"
            )
    return readouts


def _readout(job: Job, model: Model, word: str) -> Readout:
    if word not in model.outputs:
        return choose_head(model, word)
    if job.needs_head:
        return choose_head(model, None, word)
    return find_readout(model, None, word)


def _job_of(job: Job, turn: Turn) -> Job:
    """Return the job of one turn, whose labels have the name of the head's output."""

    def labelled(data: Data | None) -> Data | None:
        return None if data is None else replace(data, label_column=turn.output)

    calib = replace(job.calib, label_column=turn.output)
    options = replace(
        job.options,
        # labels of nodes without names move, once a map is appended
        head=None,
        output_name=turn.output,
        # it was opened before
        isolate=False,
    )
    return replace(
        job,
        calib=calib,
        held_out=labelled(job.held_out),
        training=labelled(job.training),
        options=options,
        # the path was looked at before the first turn
        overwrite=True,
        turn=turn,
    )


def _of_the_file(report: Report, target: Path, written: str, digest: str, job: Job) -> Report:
    """Return the report of a head on the file of all heads; that of its own turn is gone."""
    changes = report.changes
    if changes is not None:
        changes = replace(changes, target=str(target))
    return replace(report, output=written, output_sha256=digest, dry_run=job.dry_run, changes=changes)


def _named(progress: Progress, output: str, stage: str, done: int, total: int) -> None:
    progress(f"{output}: {stage}", done, total)


def _result(job: Job, model: Model, target: Path, reports: dict[str, Report]) -> HeadReports:
    """Put the reports together.

    Raises:
        GateMissed: a head missed one.
    """
    missed = tuple(f"{name}: {line}" for name, each in reports.items() for line in each.missed)
    written = "" if missed or job.dry_run else str(target)
    # the last turn wrote the file of all
    digest = [*reports.values()][-1].output_sha256 if written else ""
    heads = {name: _of_the_file(each, target, written, digest, job) for name, each in reports.items()}
    result = HeadReports(model.name, model.sha256, written, heads, job.dry_run, missed)
    if missed:
        raise GateMissed(result, "; no file was written")
    return result
