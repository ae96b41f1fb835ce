"""The report on a recalibration, from what its stages found."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tna_onnx.data.source import source_search
from tna_onnx.extraction.batch_size import batch_size_notes
from tna_onnx.graph.rewrite import Rewritten
from tna_onnx.maps.base import Folding
from tna_onnx.numerics.metrics import Metrics, objective_value, sample_losses
from tna_onnx.numerics.reliability import Reliability
from tna_onnx.numerics.residuals import mean_and_error
from tna_onnx.pipeline.comparing import Compared
from tna_onnx.pipeline.job import Job
from tna_onnx.pipeline.notes import notes_on
from tna_onnx.pipeline.sample_checks import LabelCheck
from tna_onnx.pipeline.settings import Settings
from tna_onnx.pipeline.strategy import Outcome
from tna_onnx.pipeline.task import Task
from tna_onnx.pipeline.writing import versions
from tna_onnx.results.details import BinFree, Details, LabelMetrics
from tna_onnx.results.recall import Recall
from tna_onnx.results.report import Changes, Comparison, CurvePoint, MethodScores, Report, Verification, compare_scores
from tna_onnx.search.candidates import Candidate

__all__ = ["Finished", "report_of"]


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
    )


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
    lowest = min(outcome.scores.values(), key=lambda scores: float(np.mean(scores.nll, dtype=np.float64)))
    losses = sample_losses(lowest)
    for method, scores in outcome.scores.items():
        error = mean_and_error(sample_losses(scores) - losses, outcome.before.clusters)[1]
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
        accuracy=float(np.mean(candidate.scores.hit)),
        parameters=candidate.parameters,
        reached=candidate.reached,
    )
