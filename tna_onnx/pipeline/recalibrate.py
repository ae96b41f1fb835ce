"""What happens inside `calibrate`, in order: open, search and fit, write, check, compare, report."""

import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tna_onnx.data.images.known_recipes import source_search
from tna_onnx.engine.placement import computing
from tna_onnx.errors import UnsupportedModel
from tna_onnx.graph.nodes import merged_provenance
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.graph.rewrite import Rewritten, unchanged
from tna_onnx.graph.save import pending
from tna_onnx.maps import MAPS
from tna_onnx.maps.clamp import Clamped
from tna_onnx.numerics.metrics import Metrics, metric_value, sample_losses
from tna_onnx.numerics.positive import positive_scores
from tna_onnx.numerics.reliability import Reliability
from tna_onnx.numerics.residuals import mean_and_error
from tna_onnx.pipeline.checking import FinalFile, check_file, check_runs, checked_samples, tells_apart, with_file
from tna_onnx.pipeline.collected_details import Started, collect_details
from tna_onnx.pipeline.crossfit import fit_rows
from tna_onnx.pipeline.job import Job, Task
from tna_onnx.pipeline.kept_decisions import has_own_threshold, kept_decisions, recall_and_precision, thresholds_of
from tna_onnx.pipeline.opening import open_task
from tna_onnx.pipeline.reference import reference_entry
from tna_onnx.pipeline.reporting import Compared, classes_of, compare_heads, notes_on, require_plausible
from tna_onnx.pipeline.sample_checks import LabelCheck, check_task_labels
from tna_onnx.pipeline.settings import Settings
from tna_onnx.pipeline.strategy import DataPart, Outcome, Strategy
from tna_onnx.pipeline.teaching import with_teacher
from tna_onnx.pipeline.writing import Shipped, Writing, provenance_entries, versions
from tna_onnx.progress import Progress
from tna_onnx.results.details import BinFree, LabelMetrics
from tna_onnx.results.gates import GateMissed, samples_text
from tna_onnx.results.measured import check_positive, subgroup_notes
from tna_onnx.results.report import (
    Alternative,
    Changes,
    CurvePoint,
    KeptDecision,
    MethodScores,
    Report,
    Verification,
    compare_scores,
)
from tna_onnx.runtime import require_address_space, trim_memory
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
    task = open_task(job, progress, verified=True)
    # nothing is written before the device has done its part, and the features are here
    with computing():
        return _recalibrate(task, started, progress, finish)


def _recalibrate(task: Task, started: Started, progress: Progress, finish: Finish | None) -> Report:
    job = task.job
    # wrong labels would make every later number meaningless: before the search
    labels = check_task_labels(task)
    if finish is None:
        check_positive(task.settings.positive, task.readout.n_classes, labels=task.readout.multi_label)
    writing = _writing(task, labels)
    choices = [name for name in writing.choices if labels.covers(name)] if task.settings.resolved_map == "auto" else []
    clamps: list[str] = []
    if choices and tells_apart(task):
        clamps = [name for name in writing.clamps if name in choices]
    strategy = _strategy(writing, labels, choices, clamps)
    outcome = _search(task, strategy, progress)
    if isinstance(outcome.fitted, Clamped) and _changes_some(task, outcome):
        strategy = _strategy(writing, labels, choices)
        outcome = _search(task, strategy, progress)
    fitted = outcome.logits.mapped_scores(outcome.fitted)
    outcome.logits.forget()  # they are asked for when the file is there, and writing takes memory of its own
    reference = reference_entry(writing, outcome, writing.shipped(outcome, task.reported))
    recorded = provenance_entries(task, outcome) | reference
    entries = merged_provenance(task.model, task.readout.output, recorded)
    rewritten = writing.write(outcome, entries)
    if outcome.unchanged:
        rewritten = unchanged(task.model, task.readout)
    # a dry run writes and checks the file too, and leaves none behind
    target = None if job.dry_run else task.output
    write_options = {"verbatim": outcome.unchanged, "keep": finish is None}
    with pending(task.model, rewritten.proto, target, large_values=rewritten.large_values, **write_options) as path:
        # the report of a model in memory has it
        if target is not None or job.dry_run:
            rewritten.forget()
            trim_memory()
        checked = checked_samples(task)
        shipped = writing.shipped(outcome, checked)
        verification = check_runs(task, checked, shipped, path, checker=check_file(task.model, path))
        _log.info("check: %s samples, largest |p - p'| %.1e", f"{verification.samples:,}", verification.max_difference)
        # these are there already, where the checked samples are those of the report
        after = shipped if task.reported is checked else writing.shipped(outcome, task.reported)
        compared = compare_heads(
            task, strategy, outcome, after, fitted, progress, writing.labels if writing.keeps_labels else ()
        )
        require_plausible(compared, outcome, task.source.describe())
        _log.info("compare: %s samples, %s", f"{compared.comparison.before.n:,}", compared.comparison.how)
        folded = writing.folding(outcome) is not None
        report = _report(
            task, outcome, compared, labels, rewritten, verification, folded=folded, keeps_labels=writing.keeps_labels
        )
        report = replace(report, kept_decisions=_kept_decisions(task, outcome, compared, after))
        if job.details:
            report = replace(report, details=collect_details(task, outcome, compared, path, started, progress))
        if task.teacher is not None:
            report = with_teacher(report, task, after)
        # raised inside of `pending`: no file gets its name
        if report.missed:
            raise GateMissed(report, "; no file was written")
        report = with_file(report, path) if finish is None else finish(path, report, FinalFile(task, checked, shipped))
    _log.info("done: %s", report.verdict)
    return report


def _writing(task: Task, labels: LabelCheck) -> Writing:
    """Refuse a map that the graph cannot hold, or that lacks classes, before the search and not after it."""
    settings = task.settings
    writing = Writing(task)
    writing.require(settings.resolved_map)
    labels.require(settings.resolved_map)
    return writing


def _changes_some(task: Task, outcome: Outcome) -> bool:
    """Whether a map that keeps predictions changes that of any sample."""
    for collected in filter(None, (task.calibration, task.held_out)):
        logits = task.logits(task.weight, on=collected)
        if np.any(logits.predictions() != logits.predictions(outcome.fitted)):
            return True
    return False


def _strategy(writing: Writing, labels: LabelCheck, choices: Sequence[str], clamps: Sequence[str] = ()) -> Strategy:
    task, settings = writing.task, writing.task.settings
    keeps_labels = writing.keeps_labels
    # logits that were computed before leave nothing to tilt
    features = isinstance(task.calibration.samples.readout, Head)
    threshold = settings.predictions == "auto" and has_own_threshold(task.readout) and not keeps_labels
    free = threshold or (settings.predictions == "auto" and keeps_labels)
    search = _search_of(task.settings.resolved_search, task.head, stays=keeps_labels or bool(writing.kept))
    # of two classes and several labels, the best probabilities may need other predictions
    if settings.predictions == "change" or (settings.predictions == "auto" and (free or task.readout.n_classes == 2)):
        clamps = ()
    if threshold and search == "auto":
        # what reads features, or turns the weight, is no function of one logit: no threshold would keep decisions
        search, choices = "none", [name for name in choices if name == "none" or not MAPS[name].needs_features]
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


def _search_of(search: str, head: Head | None, *, stays: bool) -> str:
    # a tilted weight would move labels, and what else stays
    if search == "auto" and stays:
        return "none"
    # a tilted weight would be a float one in place of integers, which is done only where it is asked for
    if search == "auto" and head is not None and head.stored_weight.packed:
        return "none"
    return search


def _fit_part(task: Task, seed: int) -> DataPart | None:
    """Return what searches and fits of folds see of very many samples; None for all of them."""
    table = task.calibration.table
    rows = fit_rows(len(table), seed, table.clusters)
    # behind other nodes than a linear head, samples stay in the batches in which they were collected
    linear = isinstance(task.calibration.samples.readout, Head) and task.probed.tail is None
    if len(rows) == len(table) or not linear:
        return None
    _log.info("search and fits of folds: %s of %s samples, in this process", f"{len(rows):,}", f"{len(table):,}")
    return DataPart(rows, lambda: task.part(rows).logits)


def _search(task: Task, strategy: Strategy, progress: Progress) -> Outcome:
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


def _report(
    task: Task,
    outcome: Outcome,
    compared: Compared,
    labels: LabelCheck,
    rewritten: Rewritten,
    verification: Verification,
    *,
    folded: bool,
    keeps_labels: bool,
) -> Report:
    """Put a report together, gates included."""
    job = task.job
    names = (tuple(sorted(names)) for names in (rewritten.changed, rewritten.added, rewritten.nodes))
    changes = Changes(str(task.output or ""), *names)
    protected = _protected(task.settings.predictions, task.readout, keeps_labels=keeps_labels)
    missed = _missed(job, compared, protected=protected)
    # a missed gate leaves no file, so the report names none
    kept = not missed and not job.dry_run
    drift = task.quantization_drift(outcome.weight)
    return Report(
        **_about_model(task),
        **_about_method(task, outcome),
        protected=protected,
        **_numbers(task, outcome, compared),
        folded=folded,
        resolution=task.readout.resolution,
        quantization_drift=drift,
        output=changes.target if kept else "",
        recalibrated=rewritten.proto if kept and not changes.target else None,
        changes=changes,
        dry_run=job.dry_run,
        verification=verification,
        classes_unseen=labels.coverage.unseen,
        classes_scarce=labels.coverage.scarce,
        missed=missed,
        notes=(
            *notes_on(task, outcome, compared, changes, drift, labels.warnings),
            *(moved.text for moved in verification.moved),
            *_subgroup_notes(task, compared),
        ),
    )


def _about_model(task: Task) -> dict[str, Any]:
    """Return fields of a report on the model, its samples and what ran it."""
    return {
        "model": task.model.name,
        "model_sha256": task.model.sha256,
        "head": task.head.node if task.head else "",
        "classes": task.readout.n_classes,
        "features": task.head.n_features if task.head else 0,
        "preprocessing": task.source.recipe(),
        "recipe_search": source_search(task.source),
        "provider": task.provider,
        "versions": versions(),
    }


def _protected(predictions: str, readout: Readout, *, keeps_labels: bool) -> bool:
    """Whether predictions are kept, or may change only where each class gains."""
    free = predictions == "auto" and (keeps_labels or has_own_threshold(readout))
    return predictions != "change" and not free


def _about_method(task: Task, outcome: Outcome) -> dict[str, Any]:
    """Return fields of a report on what was searched, compared and fitted."""
    settings, chosen = task.settings, outcome.chosen
    return {
        "search": settings.resolved_search,
        "map": outcome.map,
        "method": outcome.label,
        "parameters": outcome.parameters,
        "methods": tuple(_methods(outcome, settings.bins)),
        "changing": outcome.changing.label if outcome.changing else "",
        "alternative": _alternative(task, outcome),
        "angle": chosen.angle,
        "reached": chosen.reached,
        "ensemble_size": chosen.ensemble_size,
        "rotations": chosen.rotations,
        "objective": settings.objective,
        "curve": tuple(_point(candidate, settings) for candidate in outcome.candidates),
        "settings": {
            **settings.recorded,
            "device": task.job.device,
            "computed_on": task.computed_on,
            "batch_size": task.batch_size,
            "confidence_level": settings.confidence_level,
            "gates": dataclasses.asdict(task.job.gates),
        },
    }


def _numbers(task: Task, outcome: Outcome, compared: Compared) -> dict[str, Any]:
    """Return fields of a report on how good input and result are."""
    settings, bins = task.settings, task.settings.bins
    before, after, comparison = compared.before, compared.after, compared.comparison
    labels = np.asarray(task.calibration.table.labels)
    return {
        "calibration": compare_scores(
            task.source.describe(), "fitted", outcome.before.labelled(labels), compared.fitted.labelled(labels), bins,
            settings.seed, settings.level, same_predictions=outcome.keeps_predictions,
            classes=classes_of(task, task.calibration),
        ),
        "comparison": comparison,
        "recall": compared.recall,
        # of several labels a sample, those of all of them together
        "reliability": Reliability.of(before.pooled(), after.pooled(), bins),
        "bin_free_before": BinFree.of(before, bins, settings.seed),
        "bin_free_after": BinFree.of(after, bins, settings.seed, cross_fitted=comparison.how == "cross-fitted"),
        "changed_predictions": compared.changed_labels,
        "kept_label": compared.kept_label,
        "labels": LabelMetrics.of(before, after, bins, task.opened.names, getattr(outcome.fitted, "shared", ())),
        "subgroups": compared.subgroups,
    }  # fmt: skip


def _kept_decisions(task: Task, outcome: Outcome, compared: Compared, after: Shipped) -> tuple[KeptDecision, ...]:
    """Return the thresholds that keep the decisions of the input, where callers have some and decisions may change."""
    names = classes_of(task, task.reported).names
    if not names or not has_own_threshold(task.readout) or outcome.keeps_predictions:
        return ()
    kind: dict[str, bool] = {"in_logits": task.readout.activation == "none" and task.readout.holds == "logits"}
    old = task.logits(task.weight, on=task.reported)
    values: Sequence[float | None] = [None] * (len(names) if task.readout.multi_label else 1)
    # a tilted weight is no function of one logit either
    if outcome.chosen.angle == 0 and not (outcome.fitted is not None and outcome.fitted.needs_features):
        values = thresholds_of(outcome.fitted, old, after, positive=None if task.readout.multi_label else 1, **kind)
    labels = np.asarray(task.reported.table.labels)
    before, new = (scores.labelled(labels) for scores in (compared.before, compared.after))
    return kept_decisions(values, before, new, names, **kind)


def _alternative(task: Task, outcome: Outcome) -> Alternative | None:
    """Return what would make P(positive) of two classes right, where predictions are kept."""
    other = outcome.unprotected
    if other is None:
        return None
    labels = np.asarray(task.calibration.table.labels)
    positive = classes_of(task, task.calibration).positive
    sides = (outcome.scores[method].labelled(labels) for method in (outcome.method, other))
    recalls = [recall_and_precision(positive_scores(side, 2, positive)[0])[0] for side in sides]
    threshold = None
    if outcome.unprotected_fit is not None and not outcome.unprotected_fit.needs_features:
        original = task.logits(task.weight)
        (threshold,) = thresholds_of(
            outcome.unprotected_fit, original, Shipped(original, outcome.unprotected_fit), positive=positive
        )
    return Alternative(other.label, threshold, *recalls)


def _subgroup_notes(task: Task, compared: Compared) -> tuple[str, ...]:
    parts = task.reported.source.sample_info.get("by")
    if parts is None:
        return ()
    return subgroup_notes(parts, compared.subgroups, task.settings.confidence_level)


def _methods(outcome: Outcome, bins: int) -> Iterator[MethodScores]:
    """Yield the methods that were compared, with their distance to the one of the lowest NLL."""
    if not outcome.scores:
        return
    lowest = min(outcome.scores.values(), key=lambda scores: scores.mean("nll"))
    losses = sample_losses(lowest)
    for method, scores in outcome.scores.items():
        error = mean_and_error(sample_losses(scores) - losses, outcome.before.clusters, outcome.before.weights)[1]
        yield MethodScores(
            method=method.label,
            metrics=Metrics.of(scores, bins),
            words=method.words,
            error=float(error),
            keeps_predictions=method.keeps_order,
            folds=method.folds,
            left_out=outcome.left_out.get(method, ""),
        )


def _missed(job: Job, compared: Compared, *, protected: bool) -> tuple[str, ...]:
    """Return a line for each gate that the result misses."""
    gates, comparison = job.gates, compared.comparison
    after, where = comparison.after, comparison.samples
    still_off = protected and after.positive is not None and after.positive.off
    return (
        *gates.limits_missed(after, where),
        *gates.changes_missed(comparison.differences, job.settings.objective, after, where, still_off=still_off),
        *gates.classes_missed({loss.name: loss.after for loss in compared.recall.classes}, samples_text(after, where)),
    )


def _point(candidate: Candidate, settings: Settings) -> CurvePoint:
    return CurvePoint(
        angle=candidate.angle,
        ensemble_size=candidate.ensemble_size,
        rotations=candidate.rotations,
        objective=metric_value(candidate.scores, settings.objective, settings.bins),
        accuracy=candidate.scores.mean("hit"),
        parameters=candidate.parameters,
        reached=candidate.reached,
    )
