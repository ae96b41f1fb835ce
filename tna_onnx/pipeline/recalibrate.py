"""What happens inside `calibrate`, in order: open, search and fit, write, check, compare, report."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.nodes import beside_earlier, free_block
from tna_onnx.graph.readout import Head
from tna_onnx.graph.rewrite import Rewritten, unchanged
from tna_onnx.graph.save import pending
from tna_onnx.maps import MAPS
from tna_onnx.maps.feature_space import FeatureSpace
from tna_onnx.numerics.threads import one_thread
from tna_onnx.pipeline.adapter import adapter_tensors
from tna_onnx.pipeline.checking import FinalFile, check_written, checked_samples, with_file
from tna_onnx.pipeline.collected_details import Started, collect_details
from tna_onnx.pipeline.comparing import compare_heads, require_plausible
from tna_onnx.pipeline.crossfit import seen
from tna_onnx.pipeline.job import Job
from tna_onnx.pipeline.opening import open_task
from tna_onnx.pipeline.reporting import Finished, report_of
from tna_onnx.pipeline.sample_checks import LabelCheck, check_labels
from tna_onnx.pipeline.strategy import Outcome, Part, Strategy
from tna_onnx.pipeline.task import Task
from tna_onnx.pipeline.teaching import with_teacher
from tna_onnx.pipeline.writing import Writing, provenance_entries
from tna_onnx.progress import Progress
from tna_onnx.results.gates import GateMissed
from tna_onnx.results.report import Report
from tna_onnx.runtime import allowed_cores, require_address_space, trim_memory

__all__ = ["Finish", "recalibrate"]

Finish: TypeAlias = Callable[[Path, Report, FinalFile], Report]

_log = logging.getLogger("tna_onnx")


def recalibrate(job: Job, progress: Progress, finish: Finish | None = None) -> Report:
    """Recalibrate a model and write it, unless the result misses a gate.

    Args:
        job: what was asked for.
        progress: called with (stage, done, total).
        finish: makes the final file of the one at a path, which is gone afterwards, and returns the report on it.

    Raises:
        UsageError, UnsupportedModel, DataError, DeviceError, CheckFailed, GateMissed: see `tna_onnx.calibrate`.
        MemoryError: a limit leaves no room for libraries.
    """
    require_address_space()
    started = Started()
    task = open_task(job, progress)
    try:
        with one_thread(allowed_cores()):
            return _recalibrate(job, task, started, progress, finish)
    except RuntimeError as error:
        if not task.placement.gave_up(error):
            raise
        task = task.on_host(str(error))
    # nothing is written yet, and the features are here; outside of the handler, whose error holds what the device held
    with one_thread(allowed_cores()):
        return _recalibrate(job, task, started, progress, finish)


def _recalibrate(job: Job, task: Task, started: Started, progress: Progress, finish: Finish | None) -> Report:
    # wrong labels would make every later number meaningless: before the search
    labels = check_labels(job, task)
    writing = _writing(job, task, labels)
    strategy = _strategy(job, task, [name for name in writing.choices if labels.covers(name)])
    outcome = _search(task, strategy, progress)
    fitted = outcome.logits.mapped_scores(outcome.fitted)
    outcome.logits.forget()  # they are asked for when the file is there, and writing takes memory of its own
    folding = writing.folding(outcome)
    rewritten = _rewritten(job, task, writing, outcome)
    # a dry run writes and checks the file too, and leaves none behind
    target = None if job.dry_run else task.output
    ways = {"verbatim": outcome.unchanged, "keep": finish is None}
    with pending(task.model, rewritten.proto, target, apart=rewritten.apart, **ways) as path:
        # the report of a model in memory has it
        if target is not None or job.dry_run:
            rewritten.forget()
            trim_memory()
        checked = checked_samples(task)
        shipped = writing.shipped(outcome, checked)
        verification = check_written(task, path, checked, shipped)
        _log.info("check: %s samples, largest |p - p'| %.1e", f"{verification.samples:,}", verification.max_difference)
        # these are there already, where the checked samples are those of the report
        after = shipped if task.shown is checked else writing.shipped(outcome, task.shown)
        compared = compare_heads(task, strategy, outcome, job.settings, after, progress, fitted)
        require_plausible(compared, outcome, task.source.describe())
        _log.info("compare: %s samples, %s", f"{compared.comparison.before.n:,}", compared.comparison.how)
        details = None
        if job.details:
            details = collect_details(task, job.settings, outcome, compared, path, started, progress)
        finished = Finished(task, outcome, folding, rewritten, verification, compared, details, labels)
        # gates are part of the report; raised inside of `pending`, no file gets its name
        report = report_of(job, finished)
        if task.teacher is not None:
            report = with_teacher(report, task, after, job.settings)
        if report.missed:
            raise GateMissed(report, "; no file was written")
        if finish is None:
            report = with_file(report, path, task, job.patch)
        else:
            report = finish(path, report, FinalFile(task, checked, shipped, job.patch))
    _log.info("done: %s", report.verdict)
    return report


def _writing(job: Job, task: Task, labels: LabelCheck) -> Writing:
    """Refuse a map that the graph cannot hold, or that lacks classes, before the search and not after it."""
    keep = job.settings.keep_decision
    if keep and (task.readout.several or task.readout.multi_label):
        raise UnsupportedModel(f"{task.model.name}: --keep-decision is for models that predict one class a sample")
    in_place = job.patch == ".onnx_adapter"
    if in_place:
        adapter_tensors(task.model, task.readout)
    writing = Writing(task, job.settings.fold, free_block(task.model, task.readout.output), keep, in_place)
    writing.require(job.settings.resolved_map)
    labels.require(job.settings.resolved_map)
    return writing


def _rewritten(job: Job, task: Task, writing: Writing, outcome: Outcome) -> Rewritten:
    entries = provenance_entries(task, job.settings, outcome)
    entries = beside_earlier(task.model, task.readout.output, entries)
    rewritten = writing.write(outcome, entries)
    if outcome.unchanged:
        return unchanged(task.model, task.readout)
    return rewritten


def _strategy(job: Job, task: Task, choices: Sequence[str]) -> Strategy:
    settings = job.settings
    options: dict[str, Any] = {**settings.fit_options}
    if task.training is not None and _reads_training((*choices, settings.resolved_map)):
        _log.info("training features: %s", task.training.source.describe())
        options["space"] = FeatureSpace.of_training(task.logits(task.weight, on=task.training).reduce(features=True))
    # logits that were computed before leave nothing to tilt
    features = isinstance(task.calibration.samples.readout, Head)
    return Strategy(
        logits_of=task.logits,
        weight=task.weight if features else None,
        search=settings.resolved_search,
        map=settings.resolved_map,
        settings=settings.for_search,
        allowed=tuple(choices),
        options=options,
        predictions=settings.predictions,
        part=_part_seen(task, settings.seed),
    )


def _reads_training(names: Iterable[str]) -> bool:
    """Whether one of these maps, if they are maps, takes the features of the training samples."""
    return any("space" in MAPS[name].options for name in names if name in MAPS)


def _part_seen(task: Task, seed: int) -> Part | None:
    """Return what searches and fits of folds see of very many samples; None for all of them."""
    table = task.calibration.table
    rows = seen(len(table), seed, table.clusters)
    # behind other nodes than a linear head, samples stay in the batches in which they were collected
    linear = isinstance(task.calibration.samples.readout, Head) and task.probed.tail is None
    if len(rows) == len(table) or not linear:
        return None
    _log.info("search and fits of folds: %s of %s samples, in this process", f"{len(rows):,}", f"{len(table):,}")
    return Part(rows, lambda: task.part(rows).logits)


def _search(task: Task, strategy: Strategy, progress: Progress) -> Outcome:
    """Search and fit.

    Raises:
        UnsupportedModel: the weight cannot be tilted.
        DataError: the map cannot be fitted.
    """
    try:
        outcome = strategy.run(progress)
    # `numerics` knows neither files nor heads: name both here
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{task.model.name}: {task.where}: {error}; use --search none") from error
    for each in outcome.candidates:
        _log.debug("search: %g degrees, %s members, accuracy %.4f", each.angle, each.ensemble_size or "many",
                   np.mean(each.scores.hit))  # fmt: skip
    for method, scores in outcome.scores.items():
        _log.debug("choice: %s, cross-validated NLL %.4f", method.label, np.mean(scores.nll, dtype=np.float64))
    _log.info("search: %s, weights scored: %d", _weight(outcome), len(outcome.candidates))
    _log.info("choice: %s, methods compared: %d", outcome.label, len(outcome.scores))
    return outcome


def _weight(outcome: Outcome) -> str:
    """The chosen weight in words, for the log."""
    chosen = outcome.chosen
    if chosen.angle == 0:
        return "original weight"
    members = f"{chosen.ensemble_size} members" if chosen.ensemble_size else "the limit of many members"
    return f"mRC {chosen.reached:.3g} degrees, {members}"
