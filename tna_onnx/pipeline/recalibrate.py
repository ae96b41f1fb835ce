"""What happens inside `calibrate`, in order: open, search and fit, write, check, compare, report."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tna_onnx.data.images.recipes import source_search
from tna_onnx.data.source import source_beside
from tna_onnx.errors import UnsupportedModel
from tna_onnx.extraction.batch_size import batch_size_notes
from tna_onnx.graph.nodes import beside_earlier, free_block
from tna_onnx.graph.readout import Head
from tna_onnx.graph.rewrite import Rewritten, unchanged
from tna_onnx.graph.save import pending
from tna_onnx.maps import MAPS
from tna_onnx.maps.base import Folding
from tna_onnx.maps.feature_space import FeatureSpace
from tna_onnx.numerics.metrics import Metrics, objective_value, sample_losses
from tna_onnx.numerics.reliability import Reliability
from tna_onnx.numerics.residuals import mean_and_error
from tna_onnx.numerics.threads import one_thread
from tna_onnx.pipeline.checking import FinalFile, check_written, checked_samples, with_file
from tna_onnx.pipeline.collected_details import Started, collect_details
from tna_onnx.pipeline.crossfit import fit_rows
from tna_onnx.pipeline.job import Job, Task
from tna_onnx.pipeline.opening import open_task
from tna_onnx.pipeline.patch import adapter_tensors
from tna_onnx.pipeline.reporting import Compared, compare_heads, notes_on, require_plausible
from tna_onnx.pipeline.sample_checks import LabelCheck, check_labels
from tna_onnx.pipeline.settings import Settings
from tna_onnx.pipeline.strategy import Outcome, Part, Strategy
from tna_onnx.pipeline.teaching import with_teacher
from tna_onnx.pipeline.writing import Writing, provenance_entries, versions
from tna_onnx.progress import Progress
from tna_onnx.results.details import BinFree, Details, LabelMetrics
from tna_onnx.results.gates import GateMissed
from tna_onnx.results.measured import subgroup_notes
from tna_onnx.results.recall import Recall
from tna_onnx.results.report import Changes, Comparison, CurvePoint, MethodScores, Report, Verification, compare_scores
from tna_onnx.runtime import allowed_cores, require_address_space, trim_memory
from tna_onnx.search.candidates import Candidate

Finish: TypeAlias = Callable[[Path, Report, FinalFile], Report]

_log = logging.getLogger("tna_onnx")


def recalibrate(job: Job, progress: Progress, finish: Finish | None = None) -> Report:
    """Recalibrate a model and write it, unless the result misses a gate.

    `finish`: makes the final file of the one at a path, which is gone afterwards, and returns the report on it. Raises
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
    with pending(task.model, rewritten.proto, target, large_values=rewritten.large_values, **ways) as path:
        # the report of a model in memory has it
        if target is not None or job.dry_run:
            rewritten.forget()
            trim_memory()
        checked = checked_samples(task)
        shipped = writing.shipped(outcome, checked)
        verification = check_written(task, path, checked, shipped)
        _log.info("check: %s samples, largest |p - p'| %.1e", f"{verification.samples:,}", verification.max_difference)
        # these are there already, where the checked samples are those of the report
        after = shipped if task.reported is checked else writing.shipped(outcome, task.reported)
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
        search="none" if settings.resolved_search == "auto" and _is_packed(task) else settings.resolved_search,
        map=settings.resolved_map,
        settings=settings.for_search,
        allowed=tuple(choices),
        options=options,
        predictions=settings.predictions,
        part=_fit_part(task, settings.seed),
    )


def _is_packed(task: Task) -> bool:
    """Whether a tilted weight would be a float one in place of integers, which is done only where it is asked for."""
    return task.head is not None and task.head.stored_weight.packed


def _reads_training(names: Iterable[str]) -> bool:
    """Whether one of these maps, if they are maps, takes the features of the training samples."""
    return any("space" in MAPS[name].options for name in names if name in MAPS)


def _fit_part(task: Task, seed: int) -> Part | None:
    """Return what searches and fits of folds see of very many samples; None for all of them."""
    table = task.calibration.table
    rows = fit_rows(len(table), seed, table.clusters)
    # behind other nodes than a linear head, samples stay in the batches in which they were collected
    linear = isinstance(task.calibration.samples.readout, Head) and task.probed.tail is None
    if len(rows) == len(table) or not linear:
        return None
    _log.info("search and fits of folds: %s of %s samples, in this process", f"{len(rows):,}", f"{len(table):,}")
    return Part(rows, lambda: task.part(rows).logits)


def _search(task: Task, strategy: Strategy, progress: Progress) -> Outcome:
    """Search and fit."""
    try:
        outcome = strategy.run(progress)
    # `numerics` knows neither files nor heads: name both here
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{task.model.name}: {task.where}: {error}; use --search none") from error
    for candidate in outcome.candidates:
        _log.debug("search: %g degrees, %s members, accuracy %.4f", candidate.angle, candidate.ensemble_size or "many",
                   candidate.scores.mean("hit"))  # fmt: skip
    for method, scores in outcome.scores.items():
        _log.debug("choice: %s, cross-validated NLL %.4f", method.label, scores.mean("nll"))
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


@dataclass(frozen=True, eq=False)
class Finished:
    """What the stages of a recalibration found.

    Attributes:
        task: what was opened.
        outcome: what was chosen and fitted.
        folding: what the map did to weight and bias; None if it was appended, or there is none.
        rewritten: the new model.
        verification: of the written file.
        compared: the honest numbers.
        details: the numbers behind the figures, if they were asked for.
        labels: what was seen on the labels.
    """

    task: Task
    outcome: Outcome
    folding: Folding | None
    rewritten: Rewritten
    verification: Verification
    compared: Compared
    details: Details | None
    labels: LabelCheck

    def drift(self) -> float | None:
        """Measure what quantising the new weight does to probabilities."""
        return self.task.quantization_drift(self.outcome.weight)


def report_of(job: Job, finished: Finished) -> Report:
    """Put a report together, gates included."""
    task = finished.task
    outcome = finished.outcome
    comparison = finished.compared.comparison
    missed = _missed(job, comparison, finished.compared.recall)
    changes = _changes(finished.rewritten, task.output)
    drift = finished.drift()
    written = ""
    in_memory = None
    # a missed gate leaves no file, so the report names none
    if not missed and not job.dry_run:
        written = str(task.output or "")
        in_memory = None if task.output else finished.rewritten.proto
    return Report(
        model=task.model.name,
        model_sha256=task.model.sha256,
        output=written,
        **_what_was_done(job.settings, finished),
        settings=_settings(job, task),
        calibration=_on_calibration_data(job.settings, finished),
        comparison=comparison,
        recall=finished.compared.recall,
        **_diagrams(job.settings, finished.compared),
        verification=finished.verification,
        preprocessing=task.source.recipe(),
        recipe_search=source_search(task.source),
        provider=task.provider,
        versions=versions(),
        notes=(
            *notes_on(task, outcome, job, finished.compared, changes, drift, finished.labels.warnings),
            *(moved.text for moved in finished.verification.moved),
            *batch_size_notes(job.batch_size, task.batch_size),
            *_subgroup_notes(job, finished),
        ),
        quantization_drift=drift,
        recalibrated=in_memory,
        details=finished.details,
        changes=changes,
        changed_predictions=finished.compared.changed_predictions,
        dry_run=job.dry_run,
        classes_unseen=finished.labels.coverage.unseen,
        classes_scarce=finished.labels.coverage.scarce,
        changing=outcome.changing.label if outcome.changing else "",
        missed=missed,
        labels=_labels(job.settings, finished),
        subgroups=finished.compared.subgroups,
    )


def _subgroup_notes(job: Job, finished: Finished) -> tuple[str, ...]:
    parts = source_beside(finished.task.reported.source).get("by")
    if parts is None:
        return ()
    return subgroup_notes(parts, finished.compared.subgroups, job.settings.confidence_level)


def _labels(settings: Settings, finished: Finished) -> tuple[LabelMetrics, ...]:
    """Each label by itself, where a sample has several."""
    shared: tuple[int, ...] = getattr(finished.outcome.fitted, "shared", ())
    compared = finished.compared
    return LabelMetrics.of(compared.before, compared.after, settings.bins, finished.task.class_names, shared)


def _diagrams(settings: Settings, compared: Compared) -> dict[str, Any]:
    """Reliability with bins and without: the fields `reliability` and `bin_free_*` of a report."""
    bins = settings.bins
    return {
        # of several labels a sample, those of all of them together
        "reliability": Reliability.of(compared.before.pooled(), compared.after.pooled(), bins),
        "bin_free_before": BinFree.of(compared.before, bins, settings.seed),
        "bin_free_after": BinFree.of(
            compared.after, bins, settings.seed, cross_fitted=compared.comparison.how == "cross-fitted"
        ),
    }


def _what_was_done(settings: Settings, finished: Finished) -> dict[str, Any]:
    """Head, search and map: the fields of a report from `head` to `curve`."""
    task = finished.task
    outcome = finished.outcome
    chosen = outcome.chosen
    return {
        "head": task.head.node if task.head else "",
        "classes": task.readout.n_classes,
        "features": task.head.n_features if task.head else 0,
        "search": settings.resolved_search,
        "map": outcome.map,
        "method": outcome.label,
        "folded": finished.folding is not None,
        "parameters": outcome.parameters,
        "methods": tuple(_methods(outcome, settings)),
        "angle": chosen.angle,
        "reached": chosen.reached,
        "ensemble_size": chosen.ensemble_size,
        "rotations": chosen.rotations,
        "objective": settings.objective,
        "curve": tuple(_point(candidate, settings) for candidate in outcome.candidates),
    }


def _methods(outcome: Outcome, settings: Settings) -> Iterator[MethodScores]:
    """Yield the methods that were compared, with their distance to the one of the lowest NLL."""
    if not outcome.scores:
        return
    lowest = min(outcome.scores.values(), key=lambda scores: scores.mean("nll"))
    losses = sample_losses(lowest)
    for method, scores in outcome.scores.items():
        error = mean_and_error(sample_losses(scores) - losses, outcome.before.clusters, outcome.before.weights)[1]
        yield MethodScores(
            method=method.label,
            metrics=Metrics.of(scores, settings.bins),
            words=method.words,
            error=float(error),
            keeps_predictions=method.keeps_order,
            folds=method.folds,
            left_out=outcome.left_out.get(method, ""),
        )


def _settings(job: Job, task: Task) -> dict[str, object]:
    return {
        **job.settings.recorded,
        "device": job.device,
        "computed_on": task.computed_on,
        "batch_size": task.batch_size,
        "confidence_level": job.settings.confidence_level,
        "gates": dataclasses.asdict(job.gates),
    }


def _on_calibration_data(settings: Settings, finished: Finished) -> Comparison:
    """Compare on the data that were fitted."""
    outcome = finished.outcome
    described = finished.task.source.describe()
    return compare_scores(
        described,
        "fitted",
        outcome.before,
        finished.compared.fitted,
        settings.bins,
        settings.seed,
        settings.level,
        same_predictions=outcome.keeps_predictions,
        interval=settings.interval,
    )


def _missed(job: Job, comparison: Comparison, recall: Recall) -> tuple[str, ...]:
    """Lines on the gates that a result misses."""
    after = comparison.after
    changes = job.gates.changes_missed(comparison.differences, job.settings.objective, after, comparison.samples)
    classes = job.gates.recall_missed(recall, after, comparison.samples)
    return (*job.gates.limits_missed(after, comparison.samples), *changes, *classes)


def _changes(rewritten: Rewritten, target: Path | None) -> Changes:
    names = (tuple(sorted(names)) for names in (rewritten.changed, rewritten.added, rewritten.nodes))
    return Changes(str(target or ""), *names)


def _point(candidate: Candidate, settings: Settings) -> CurvePoint:
    return CurvePoint(
        angle=candidate.angle,
        ensemble_size=candidate.ensemble_size,
        rotations=candidate.rotations,
        objective=objective_value(candidate.scores, settings.objective, settings.bins),
        accuracy=candidate.scores.mean("hit"),
        parameters=candidate.parameters,
        reached=candidate.reached,
    )
