"""The report on a recalibration (`report_on`), and notes on what is unusual about the run (`notes_on`)."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.images.known_recipes import source_search
from tna_onnx.data.images.preprocess import recipe_text
from tna_onnx.data.labels import listed
from tna_onnx.data.positions import PositionSource
from tna_onnx.data.source import Source
from tna_onnx.graph.nodes import PREFIX
from tna_onnx.graph.readout import Readout
from tna_onnx.graph.rewrite import Rewritten
from tna_onnx.graph.tensors import epsilon, numpy_type
from tna_onnx.numerics.averages import LIMIT
from tna_onnx.numerics.metric import JUDGED, METRICS
from tna_onnx.numerics.metrics import Metrics, metric_value, sample_losses
from tna_onnx.numerics.operating_points import Recalls
from tna_onnx.numerics.reliability import Reliability
from tna_onnx.numerics.residuals import mean_and_error
from tna_onnx.numerics.scores import SUM_TOLERANCE, SampleScores
from tna_onnx.pipeline.comparing import (
    Compared,
    alternative,
    classes_of,
    kept_decisions,
    order_note,
    predictions_are_free,
)
from tna_onnx.pipeline.crossfit import SEEN
from tna_onnx.pipeline.job import Job, Task, class_names
from tna_onnx.pipeline.methods import ENOUGH, FOLDS, Method, Reason
from tna_onnx.pipeline.sample_checks import LabelCheck
from tna_onnx.pipeline.settings import Settings
from tna_onnx.pipeline.strategy import Outcome
from tna_onnx.pipeline.writing import Shipped, Writing, versions
from tna_onnx.results.details import BinFree, LabelMetrics
from tna_onnx.results.gates import differences_text, samples_text
from tna_onnx.results.measured import resolution_notes, subgroup_notes
from tna_onnx.results.report import Changes, CurvePoint, MethodScores, Report, Verification, compare_scores
from tna_onnx.results.verdict import ClassRecall, Recall, Standing
from tna_onnx.search.candidates import Candidate

# Steps of a quantised output that a reader should know of: a log loss sees them.
_COARSE_OUTPUT = 1e-3

# Methods that the note on a choice names as left out.
_LISTED = 2

# Share of changed predictions from which on users should know.
_MANY_CHANGED = 0.01


def report_on(
    writing: Writing,
    outcome: Outcome,
    compared: Compared,
    after: Shipped,
    labels: LabelCheck,
    rewritten: Rewritten,
    verification: Verification,
) -> Report:
    """Put a report together, gates included."""
    task = writing.task
    job = task.job
    names = (tuple(sorted(names)) for names in (rewritten.changed, rewritten.added, rewritten.nodes))
    changes = Changes(str(task.output or ""), *names)
    free = predictions_are_free(task, keeps_labels=writing.keeps_labels)
    protected = task.settings.predictions != "change" and not free
    missed = _missed(job, compared, protected=protected)
    # a missed gate leaves no file, so the report names none
    kept = not missed and not job.dry_run
    drift = task.quantization_drift(outcome.weight)
    return Report(
        **_about_model(task),
        **_about_method(task, outcome),
        protected=protected,
        **_numbers(task, outcome, compared),
        folded=writing.folding(outcome) is not None,
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
        kept_decisions=kept_decisions(task, outcome, compared, after),
        notes=(
            *notes_on(task, outcome, compared, changes, drift, labels.warnings),
            *(moved.text for moved in verification.moved),
            *_subgroup_notes(task, compared),
        ),
    )


def _about_model(task: Task) -> dict[str, Any]:
    """Return fields of a report on the model, its samples and what ran it."""
    head: dict[str, Any] = {"head": "", "features": 0}
    if task.head is not None:
        head = {"head": task.head.node, "features": task.head.n_features}
    return head | {
        "model": task.model.name,
        "model_sha256": task.model.sha256,
        "classes": task.readout.n_classes,
        "preprocessing": task.source.recipe(),
        "recipe_search": source_search(task.source),
        "provider": task.provider,
        "versions": versions(),
    }


def _about_method(task: Task, outcome: Outcome) -> dict[str, Any]:
    """Return fields of a report on what was searched, compared and fitted."""
    settings = task.settings
    chosen = outcome.chosen
    return {
        "search": settings.resolved_search,
        "map": outcome.map,
        "method": outcome.label,
        "parameters": outcome.parameters,
        "methods": tuple(_methods(outcome, settings.bins)),
        "changing": outcome.changing.label if outcome.changing else "",
        "alternative": alternative(task, outcome),
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
    settings = task.settings
    bins = task.settings.bins
    before = compared.before
    after = compared.after
    comparison = compared.comparison
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
    gates = job.gates
    comparison = compared.comparison
    after = comparison.after
    where = comparison.samples
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


def notes_on(
    task: Task, outcome: Outcome, compared: Compared, changes: Changes, drift: float | None, labels: Sequence[str]
) -> list[str]:
    """Collect what is unusual about a run."""
    job = task.job
    notes = _input_notes(task, outcome, changes, drift, labels)
    notes += _choice_notes(task, outcome)
    notes += _label_notes(task.readout, task.opened.names, outcome)
    if compared.kept_label:
        notes.append(compared.kept_label.text)
    if compared.changed_labels > _MANY_CHANGED:
        # what was asked for by name has no say there
        advice = "; --predictions keep changes none" if outcome.scores else ""
        predictions = "labels" if task.readout.multi_label else "classes"
        notes.append(f"{100 * compared.changed_labels:.1f} % of the predicted {predictions} change{advice}")
    labelled = compared.before.labelled(np.asarray(task.reported.table.labels))
    if compared.changed_labels and (few := _scarce(labelled, compared.recall)):
        notes.append(f"predicted classes change; the recall of {_unknown(few)}")
    comparison = compared.comparison
    standing = Standing.of(comparison.differences, job.settings.objective)
    notes += [f"{JUDGED[name].label} is significantly worse than the input's" for name in standing.worse]
    if comparison.how == "cross-fitted":
        notes.append(_cross_fitted_note(outcome, compared))
    notes += order_note(task.reported.source, compared.in_order)
    notes += _notes_on_many(outcome, cross_fitted=comparison.how == "cross-fitted")
    # otherwise a worse result is an error, and needs no note
    if standing.word == "worse" and job.gates.require == "nothing":
        text = differences_text(comparison.differences, standing.worse)
        notes.append(f"the result is significantly worse than the input: {text}; --require nothing lets it pass")
    if job.dry_run:
        notes.append(_dry_run_note(changes))
    return notes


def _cross_fitted_note(outcome: Outcome, compared: Compared) -> str:
    """Say what the numbers are of, where the folds did not all choose what is in the file."""
    text = f"no --eval data: before and after are cross-fitted on the calibration data ({FOLDS} folds)"
    counts = Counter(compared.folds)
    if set(counts) <= {outcome.label}:
        return text
    listed = ", ".join(f"{label} ({count} of {FOLDS})" for label, count in counts.most_common())
    if compared.kept_label:
        return f"{text}; the folds chose {listed}"
    text += f"; the folds chose {listed}, so the accuracy of the file ({outcome.label}) may differ"
    if outcome.keeps_predictions:
        text += "; the file changes no predicted class"
    return text


def _notes_on_many(outcome: Outcome, *, cross_fitted: bool) -> list[str]:
    """Say what does not see all of very many samples."""
    samples = len(outcome.before)
    compared = bool(outcome.scores) or (cross_fitted and outcome.fitted is not None)
    if len(outcome.candidates[0].scores) >= samples and (samples <= SEEN or not compared):
        return []
    return [
        f"the search, and fits that are cross-validated, see {SEEN:,} samples at most, at random; all {samples:,} are "
        "scored"
    ]


def _input_notes(
    task: Task, outcome: Outcome, changes: Changes, drift: float | None, labels: Sequence[str]
) -> list[str]:
    notes = []
    if task.fallback:
        notes.append(f"device auto: CUDA was not obtained, ran on the CPU: {task.fallback}")
    notes += labels
    notes += task.data_notes
    notes += [
        note
        for collected in (task.calibration, task.held_out)
        if collected
        for note in _position_notes(collected.source)
    ]
    # the output of an unchanged model is its input, functions and all
    if task.model.inlined and not outcome.unchanged:
        notes.append(f"model-local functions were inlined: {', '.join(task.model.inlined)}")
    notes += _head_notes(task, outcome.weight, changes, drift)
    notes += resolution_notes(task.readout.resolution, 2 if task.readout.multi_label else task.readout.n_classes)
    notes += _zero_notes(task.readout, outcome.before)
    if task.readout.output_step >= _COARSE_OUTPUT:
        notes.append(
            f"the model rounds its probabilities to steps of {task.readout.output_step:.2g}, so small ones become 0; "
            "the scores here are those before rounding, and `tna-onnx evaluate` scores the rounded ones"
        )
    if task.readout.slack and not outcome.unchanged:
        notes.append(
            f"a Clip or constant behind the probabilities of '{task.readout.output}' stays: it moves a "
            f"calibrated probability by up to {task.readout.slack:.2g}"
        )
    recipe = task.source.recipe()
    if recipe is not None:
        accuracy = outcome.before.mean("hit")
        notes.append(
            f"preprocessing: {recipe_text(recipe)}; accuracy of the input model with it {100 * accuracy:.2f} %"
        )
    return notes


def _zero_notes(readout: Readout, before: SampleScores) -> list[str]:
    """Say how many labels have a probability of 0, whose log loss is that of the smallest normal number."""
    if readout.holds != "probabilities" or readout.multi_label:
        return []
    kind = readout.logits_type
    least = np.finfo(numpy_type(kind)).tiny
    most = -np.log(np.float64(least))
    # to the rounding of this logarithm, and of a sum that is nearly 1
    count = int(np.count_nonzero(before.nll > most * (1 - epsilon(kind)) - SUM_TOLERANCE))
    if not count:
        return []
    notes = [
        f"{count:,} of {len(before.nll):,} labels have a probability of 0, or below {least:.0e}: the log loss before "
        f"is capped at {most:.0f} nats for these; ignore how far it falls"
    ]
    if np.all(before.confidence == 1):
        notes.append("every confidence is 1: the model only names a class, so a map gives each class one confidence")
    return notes


def _position_notes(source: Source) -> list[str]:
    """Say what counts where a sample has several predictions."""
    if not isinstance(source, PositionSource) or source.clusters is None:
        return []
    return [
        f"{source.describe()}: each labelled position counts as one; intervals and folds are over whole samples, "
        "because positions of a sample depend on one another"
    ]


def _label_notes(readout: Readout, names: Sequence[str] | None, outcome: Outcome) -> list[str]:
    """Say what the numbers are where a sample has several labels, and which labels were not fitted by themselves."""
    if not readout.multi_label:
        return []
    notes = [
        f"{readout.n_classes:,} labels, each measured by itself: NLL (log loss), Brier and ECE are means over "
        "labels, and accuracy is the share of labels that are right; intervals and folds are over whole samples"
    ]
    shared: tuple[int, ...] = getattr(outcome.fitted, "shared", ())
    if shared:
        names = names or tuple(map(str, range(readout.n_classes)))
        notes.append(
            f"{len(shared):,} of {readout.n_classes:,} labels share one temperature, because they have too few "
            "samples for a fit of their own or scores that do not rise with the label: "
            f"{listed(names[c] for c in shared)}"
        )
    return notes


def _choice_notes(task: Task, outcome: Outcome) -> list[str]:
    settings = task.settings
    notes = []
    if len(outcome.scores) > 1:
        notes.append(_why(outcome, settings))
    if outcome.scores:
        notes += _kept_note(task, outcome)
    notes += _failed_notes(outcome)
    chosen = outcome.chosen
    first = settings.for_search.ensemble_size
    if settings.resolved_search in ("sparse", "complete"):
        notes += _underconfidence(outcome)
    # asked for by name, and not done
    if settings.resolved_search in ("sparse", "complete") and chosen.angle == 0:
        notes.append(
            "turning the last layer did not help: no tilted weight was better than the untilted one within the "
            "accuracy constraint"
        )
    elif chosen.ensemble_size == LIMIT and settings.ensemble_size != "inf":
        notes.append(
            "the new last layer is the average of infinitely many tilted copies of the old one, because fewer copies "
            "cost accuracy or did not help"
        )
    elif chosen.ensemble_size > first:
        notes.append(
            f"the new last layer is the average of {chosen.ensemble_size} tilted copies of the old one, not of "
            f"{first}, because fewer copies cost accuracy"
        )
    return notes


def _failed_notes(outcome: Outcome) -> list[str]:
    """Say which methods could not be fitted, and why: those with one reason in one note."""
    by_reason: dict[str, list[Method]] = {}
    for method, why in outcome.failed.items():
        # fold and map stand before the reason
        by_reason.setdefault(why.rpartition(": ")[2], []).append(method)
    return [
        f"{', '.join(method.label for method in methods)} could not be fitted and are left out: "
        f"{outcome.failed[methods[0]]}"
        for methods in by_reason.values()
    ]


def _underconfidence(outcome: Outcome) -> list[str]:
    """Say that a tilt cannot help where confidences are too low."""
    confidence = outcome.before.mean("confidence")
    accuracy = outcome.before.mean("hit")
    if confidence >= accuracy:
        return []
    ending = "the map raises them"
    if outcome.map == "none":
        ending = "--map ts can raise them"
    return [
        f"the model is underconfident on these data: mean confidence {100 * confidence:.1f} %, accuracy "
        f"{100 * accuracy:.1f} %; a tilt only lowers confidences; {ending}"
    ]


# Why a method with a lower loss was not chosen, in the order of a note.
_REASONS: dict[Reason, str] = {
    "predictions": "changes predictions",
    "accuracy": "costs accuracy",
    "error": "raises the ECE",
}


def _why(outcome: Outcome, settings: Settings) -> str:
    """Say what was chosen among what: the best of those that no rule left out, and what was left out though better."""
    values = {
        method: metric_value(scores, settings.objective, settings.bins) for method, scores in outcome.scores.items()
    }
    ranked = sorted(values, key=lambda method: values[method])
    least = min(value for method, value in values.items() if method not in outcome.left_out)
    rule = "the simplest among the best was chosen"
    if outcome.by_likelihood:
        rule = "a likelihood ratio chose"
    kinds = {replace(method, step=0) for method in outcome.scores}  # one strength of each
    text = f"of {len(kinds)} methods, {rule}: {outcome.words}"
    for reason, verb in _REASONS.items():
        better = [
            candidate for candidate in ranked if outcome.left_out.get(candidate) == reason and values[candidate] < least
        ]
        if better:
            text += (
                f"; better, but not taken because it {verb}: {', '.join(method.words for method in better[:_LISTED])}"
            )
    return text


def _kept_note(task: Task, outcome: Outcome) -> list[str]:
    """Say what a change of predictions would gain and cost, where they are kept though it would gain."""
    if outcome.changing is None:
        return []
    before = outcome.before
    after = outcome.scores[outcome.changing]
    gain = after.mean("nll") - outcome.scores[outcome.method].mean("nll")
    recall = Recall.of(before, after, class_names(task, task.calibration))
    parts = [
        f"{METRICS['nll'].label} {METRICS['nll'].change(gain)}",
        f"accuracy {METRICS['accuracy'].change(after.mean('hit') - before.mean('hit'))} points",
        f"balanced accuracy {METRICS['accuracy'].change(recall.balanced.difference)} points",
    ]
    kind = "label" if task.readout.multi_label else "class"
    few = _scarce(before, recall)
    unknown = set(few)
    known = [one for one in recall.classes if one not in unknown]
    cost = ""
    if known:
        lowest = min(known, key=lambda one: one.difference.difference)
        loss = -100 * lowest.difference.difference
        if loss > 0:
            cost = f"; {kind} {lowest.name} would lose {loss:.2f} points of recall"
    if few:
        cost += f"; the recall of {_unknown(few)}"
    return [
        f"predicted classes are kept; --predictions change would take {outcome.changing.label} (cross-validated, "
        f"against {outcome.label}: {', '.join(parts)}{cost})"
    ]


def _scarce(before: SampleScores, recall: Recall) -> list[ClassRecall]:
    """Return the classes with too few samples to show what happens to their recall; none of several labels a sample."""
    if before.predicted is not None:
        return []
    counts = Recalls.of(before, before).independent
    return [one for one, count in zip(recall.classes, counts, strict=True) if count < ENOUGH]


def _unknown(classes: Sequence[ClassRecall]) -> str:
    names = listed(one.name for one in classes)
    return f"{names} cannot be known: fewer than {ENOUGH} independent samples"


def _head_notes(task: Task, weight: NDArray[Any] | None, changes: Changes, drift: float | None) -> list[str]:
    if task.head is None:
        notes = [f"output '{task.readout.output}' is calibrated as it is ({task.readout.holds}), without a linear head"]
        maker = task.model.producer(task.readout.logits)
        if task.readout.activation == "softmax" and maker is not None and maker.op_type == "Softmax":
            notes.append(
                f"output '{task.readout.output}' is a Softmax of a Softmax, so its logits lie in 0 to 1; if that is a "
                "mistake, export the model with one Softmax"
            )
        return notes
    stored = task.head.stored_weight
    if stored.integers and weight is task.weight:
        stored_as = "" if stored.quantized is None else f" ({stored.quantized.dtype})"
        return [f"the weight is quantised in the file{stored_as} and stays as it is"]
    if stored.quantized is not None:
        kind = "per class"
        if stored.quantized.axis is None:
            kind = "with one scale"
        return [
            f"the weight was quantised anew ({stored.quantized.dtype}, {kind}): that moves a probability by at most "
            f"{drift or 0:.2g}; --quantized-head float keeps it in float"
        ]
    if stored.shared and any(name.startswith(f"{PREFIX}/weight") for name in changes.added):
        return [
            f"'{stored.read_as}' is quantised, computed or read elsewhere too: the head was given a float tensor of "
            "its own"
        ]
    return []


def _dry_run_note(changes: Changes) -> str:
    parts = {"changed tensors": changes.tensors, "new tensors": changes.added, "new nodes": changes.nodes}
    text = "; ".join(f"{what}: {listed(names) or 'none'}" for what, names in parts.items())
    return f"dry run, no file was written; a run would write {changes.target or 'the model in memory'} with {text}"
