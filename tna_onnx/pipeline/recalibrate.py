"""What happens inside `calibrate`, in order: open, search and fit, write, check, compare, report."""

import functools
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from tna_onnx.engine.placement import computing
from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.readout import Head
from tna_onnx.graph.rewrite import unchanged
from tna_onnx.graph.save import pending
from tna_onnx.maps import MAPS
from tna_onnx.pipeline.checking import FileCheck, check_file, checked_samples, tells_apart, with_file
from tna_onnx.pipeline.collected_details import collect_details
from tna_onnx.pipeline.comparing import compare_heads, require_plausible
from tna_onnx.pipeline.crossfit import fit_rows
from tna_onnx.pipeline.job import Job, Task
from tna_onnx.pipeline.opening import open_task
from tna_onnx.pipeline.reporting import report_on
from tna_onnx.pipeline.sample_checks import LabelCheck, check_task_labels
from tna_onnx.pipeline.strategy import DataPart, Outcome, Strategy
from tna_onnx.pipeline.teaching import with_teacher
from tna_onnx.pipeline.writing import Writing, provenance_entries
from tna_onnx.progress import Progress
from tna_onnx.results.gates import GateMissed
from tna_onnx.results.measured import check_positive
from tna_onnx.results.report import Report
from tna_onnx.runtime import require_address_space, trim_memory

Finish: TypeAlias = Callable[[Path, Report, FileCheck], Report]

_log = logging.getLogger("tna_onnx")


def recalibrate(job: Job, progress: Progress, finish: Finish | None = None) -> Report:
    """Recalibrate a model and write it, unless the result misses a gate.

    `finish`: makes the final file of the one at a path, which is gone afterwards, and returns the report on it. Raises
    MemoryError: a limit leaves no room for libraries.
    """
    require_address_space()
    started = datetime.now(UTC)
    task = open_task(job, progress, verified=True)
    # nothing is written before the device has done its part, and the features are here
    with computing():
        return _recalibrate(task, started, progress, finish)


def _recalibrate(task: Task, started: datetime, progress: Progress, finish: Finish | None) -> Report:
    job = task.job
    # wrong labels would make every later number meaningless: before the search
    labels = check_task_labels(task)
    if finish is None:
        check_positive(task.settings.positive, task.readout.n_classes, labels=task.readout.multi_label)
    writing = Writing(task)
    # refused before the search and not after it: a map that the graph cannot hold, or that lacks classes
    writing.require(task.settings.resolved_map)
    labels.require(task.settings.resolved_map)
    strategy = _strategy(writing, labels)
    outcome = _search(task, strategy, progress)
    _ = outcome.after  # scored while the logits are there
    outcome.logits.forget()  # they are asked for when the file is there, and writing takes memory of its own
    if outcome.unchanged:
        rewritten = unchanged(task.model, task.readout)
    else:
        rewritten = writing.write(outcome, provenance_entries(writing, outcome))
    # a dry run writes and checks the file too, and leaves none behind
    target = None if job.dry_run else task.output
    with pending(
        task.model, rewritten.proto, target, large_values=rewritten.large_values, verbatim=outcome.unchanged,
        keep=finish is None,
    ) as path:  # fmt: skip
        # the report of a model in memory has it
        if target is not None or job.dry_run:
            rewritten.forget()
            trim_memory()
        checked = checked_samples(task)
        shipped = writing.shipped(outcome, checked)
        check = FileCheck(task, checked, shipped)
        verification = check.run(path, checker=check_file(task.model, path))
        _log.info("check: %s samples, largest |p - p'| %.1e", f"{verification.samples:,}", verification.max_difference)
        # these are there already, where the checked samples are those of the report
        after = shipped if task.reported is checked else writing.shipped(outcome, task.reported)
        compared = compare_heads(writing, strategy, outcome, after, progress)
        require_plausible(compared, outcome, task.source.describe())
        _log.info("compare: %s samples, %s", f"{compared.comparison.before.n:,}", compared.comparison.how)
        report = report_on(writing, outcome, compared, after, labels, rewritten, verification)
        if job.details:
            report = replace(report, details=collect_details(report, task, outcome, compared, path, started, progress))
        if task.teacher is not None:
            report = with_teacher(report, task, after)
        # raised inside of `pending`: no file gets its name
        if report.missed:
            raise GateMissed(report, "; no file was written")
        report = with_file(report, path) if finish is None else finish(path, report, check)
    _log.info("done: %s", report.verdict)
    return report


def _strategy(writing: Writing, labels: LabelCheck) -> Strategy:
    task = writing.task
    settings = task.settings
    choices: list[str] = []
    if settings.resolved_map == "auto":
        choices = [name for name in writing.choices if labels.covers(name)]
    clamps: list[str] = []
    if choices and tells_apart(task):
        clamps = [name for name in writing.clamps if name in choices]
    keeps_labels = writing.keeps_labels
    # logits that were computed before leave nothing to tilt
    features = isinstance(task.calibration.samples.readout, Head)
    free = writing.predictions_are_free
    threshold = free and not keeps_labels
    search = settings.resolved_search
    # a tilted weight would move labels, and what else stays; or be a float one in place of integers
    packed = task.head is not None and task.head.stored_weight.packed
    if search == "auto" and (keeps_labels or writing.kept or packed):
        search = "none"
    # of two classes and several labels, the best probabilities may need other predictions
    if settings.predictions == "change" or (settings.predictions == "auto" and (free or task.readout.n_classes == 2)):
        clamps = []
    if threshold and search == "auto":
        # what reads features, or turns the weight, is no function of one logit: no threshold would keep decisions
        search = "none"
        choices = [name for name in choices if name == "none" or not MAPS[name].needs_features]
    return Strategy(
        logits_of=task.logits,
        weight=task.weight if features else None,
        search=search,
        map=settings.resolved_map,
        settings=settings.for_search,
        allowed=tuple(choices),
        options=settings.fit_options,
        predictions=settings.predictions,
        clamps=tuple(clamps),
        free=free,
        two_classes=task.readout.n_classes == 2 and not task.readout.multi_label,
        # a label of several that never holds has fits of its own
        covered=task.readout.multi_label or labels.trusted or not labels.coverage.unseen,
        part=_fit_part(task, settings.seed),
    )


def _fit_part(task: Task, seed: int) -> DataPart | None:
    """Return what searches and fits of folds see of very many samples; None for all of them."""
    table = task.calibration.table
    rows = fit_rows(len(table), seed, table.clusters)
    # behind other nodes than a linear head, samples stay in the batches in which they were collected
    linear = isinstance(task.calibration.samples.readout, Head) and task.probed.tail is None
    if len(rows) == len(table) or not linear:
        return None
    _log.info("search and fits of folds: %s of %s samples, in this process", f"{len(rows):,}", f"{len(table):,}")
    part = functools.cache(lambda: task.part(rows))  # taken out where it is needed
    return DataPart(rows, lambda weight: part().logits(weight))


def _search(task: Task, strategy: Strategy, progress: Progress) -> Outcome:
    try:
        outcome = strategy.run(progress)
    # `numerics` knows neither files nor heads: name both here
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{task.model.name}: {task.where}: {error}; use --search none") from error
    for step in outcome.candidates:
        members, accuracy = step.ensemble_size or "many", step.scores.mean("hit")
        _log.debug("search: %g degrees, %s members, accuracy %.4f", step.angle, members, accuracy)
    for method, scores in outcome.scores.items():
        _log.debug("choice: %s, cross-validated NLL %.4f", method.label, scores.mean("nll"))
    candidate = outcome.chosen
    weight = "weight not tilted"
    if candidate.angle != 0:
        weight = f"mRC {candidate.reached:.3g} degrees, {candidate.ensemble_size or 'the limit of many'} members"
    _log.info("search: %s, weights scored: %d", weight, len(outcome.candidates))
    _log.info("choice: %s, methods and strengths compared: %d", outcome.label, len(outcome.scores))
    return outcome
