"""Notes of a report: sentences that a user should read beside the numbers, also on samples that decided on something in
the file before (`decided_on`), on which it looks better than it is.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tna_onnx.data.choices import Limits
from tna_onnx.data.digest import sample_digests, sample_form
from tna_onnx.data.images.recipes import recipe_text
from tna_onnx.data.positions import PositionSource
from tna_onnx.data.source import Source
from tna_onnx.data.suspicion import read_sketch, sketch_of, sketch_overlap
from tna_onnx.graph.load import Model
from tna_onnx.graph.nodes import provenance
from tna_onnx.graph.scores import adds_up_to_one
from tna_onnx.graph.walk import walk_back
from tna_onnx.numerics.averages import LIMIT
from tna_onnx.numerics.metric import METRICS
from tna_onnx.numerics.metrics import objective_value
from tna_onnx.pipeline.comparing import Compared
from tna_onnx.pipeline.crossfit import SEEN
from tna_onnx.pipeline.job import Job
from tna_onnx.pipeline.methods import FOLDS, Reason
from tna_onnx.pipeline.sample_checks import MIN_SHARED_DIGESTS, SKETCH_MARGIN, DigestedSamples
from tna_onnx.pipeline.settings import Settings
from tna_onnx.pipeline.steps import OriginalClass
from tna_onnx.pipeline.strategy import Outcome
from tna_onnx.pipeline.task import Task, class_names
from tna_onnx.results.gates import differences_text
from tna_onnx.results.recall import Recall
from tna_onnx.results.report import Changes, Comparison
from tna_onnx.results.verdict import Standing

# Methods that the note on a choice names as left out.
_LISTED = 2

# Share of changed predictions from which on users should know.
_MANY_CHANGED = 0.01


def notes_on(
    task: Task,
    outcome: Outcome,
    job: Job,
    compared: Compared,
    changes: Changes,
    drift: float | None,
    labels: Sequence[str],
) -> list[str]:
    """Collect what is unusual about a run.

    Args:
        task: what was opened.
        outcome: what was chosen.
        job: what was asked for.
        compared: the honest numbers.
        changes: what the new file holds that the model does not.
        drift: what quantising the new weight does to probabilities.
        labels: sentences on what looks wrong about the labels.
    """
    notes = _input_notes(task, outcome, labels, drift)
    notes += _choice_notes(task, outcome, job.settings)
    notes += _label_notes(task, outcome)
    if compared.changed_predictions > _MANY_CHANGED:
        # what was asked for by name has no say there
        advice = "; --predictions keep changes none" if outcome.scores else ""
        what = "labels" if task.readout.multi_label else "classes"
        notes.append(f"{compared.changed_predictions:.1%} of the predicted {what} change{advice}")
    if job.settings.keep_decision and outcome.keeps_predictions:
        notes.append(f"no predicted class changes: no output {OriginalClass.output} (--keep-decision)")
    comparison = compared.comparison
    standing = Standing.of(comparison.differences, job.settings.objective)
    notes += [f"{METRICS[name].label} is significantly worse than the input's" for name in standing.worse]
    if comparison.how == "cross-fitted":
        notes.append(_cross_fitted_note(outcome, compared))
    notes += _notes_on_many(outcome, cross_fitted=comparison.how == "cross-fitted")
    # with the gate a worse result is an error, and needs no note
    if not job.gates.fail_if_worse:
        notes += _worse_notes(comparison, standing)
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
    changed = "no predicted class" if outcome.keeps_predictions else f"{compared.changed_predictions:.2%} of them"
    return (
        f"{text}; the folds chose {listed}, so that accuracy may differ from that of the file ({outcome.label}), which "
        f"changes {changed}"
    )


def _notes_on_many(outcome: Outcome, *, cross_fitted: bool) -> list[str]:
    """Say what does not see all of very many samples."""
    samples = len(outcome.before)
    what = []
    if len(outcome.candidates[0].scores) < samples:
        what.append("the search")
    final = outcome.fitted is not None
    if samples > SEEN and (outcome.scores or (cross_fitted and final)):
        what.append("fits that are cross-validated")
    if not what:
        return []
    verb = "sees" if what == ["the search"] else "see"
    ending = ", and seen by the final fit" if final else ""
    return [f"{' and '.join(what)} {verb} {SEEN:,} samples at most, at random; all {samples:,} are scored{ending}"]


def _input_notes(task: Task, outcome: Outcome, labels: Sequence[str], drift: float | None) -> list[str]:
    """Notes on the device, the labels, the model and the preprocessing."""
    notes = []
    if task.fallback:
        notes.append(f"device auto: CUDA was not obtained, ran on the CPU: {task.fallback}")
    notes += labels
    notes += task.data_notes
    notes += [note for each in (task.calibration, task.held_out) if each for note in _position_notes(each.source)]
    # the output of an unchanged model is its input, functions and all
    if task.model.inlined and not outcome.unchanged:
        notes.append(f"model-local functions were inlined: {', '.join(task.model.inlined)}")
    notes += _head_notes(task, drift)
    if task.readout.slack and not outcome.unchanged:
        notes.append(
            f"a Clip or constant behind the probabilities of '{task.readout.output}' stays: it moves a calibrated one "
            f"by up to {task.readout.slack:.2g}"
        )
    if adds_up_to_one(walk_back(task.model, task.readout.output).node):
        notes.append(
            f"output '{task.readout.output}' adds up the shares in the leaves of trees, and is taken for "
            "probabilities; --output-kind says otherwise"
        )
    recipe = task.source.recipe()
    if recipe is not None:
        accuracy = outcome.before.mean("hit")
        notes.append(f"preprocessing: {recipe_text(recipe)}; accuracy of the input model with it {accuracy:.2%}")
    return notes


def _position_notes(source: Source) -> list[str]:
    """Say what counts where a sample has several predictions."""
    if not isinstance(source, PositionSource) or source.clusters is None:
        return []
    return [
        f"{source.describe()}: each labelled position counts as one; intervals and folds are of whole samples, whose "
        "positions depend on one another"
    ]


def _label_notes(task: Task, outcome: Outcome, max_names: int = 8) -> list[str]:
    """Say what the numbers are where a sample has several labels, and which labels were not fitted by themselves."""
    if not task.readout.multi_label:
        return []
    notes = [
        f"{task.readout.n_classes:,} labels, each by itself: NLL (log loss), Brier and ECE are means over labels, "
        "accuracy is the share of labels that are right; intervals and folds are of whole samples"
    ]
    shared: tuple[int, ...] = getattr(outcome.fitted, "shared", ())
    if shared:
        names = task.class_names or tuple(map(str, range(task.readout.n_classes)))
        more = ", ..." if len(shared) > max_names else ""
        listed = ", ".join(names[c] for c in shared[:max_names])
        notes.append(
            f"{len(shared):,} of {task.readout.n_classes:,} labels have the temperature of all labels, as they lack "
            f"samples for a fit of their own, or their scores do not go with the labels: {listed}{more}"
        )
    return notes


def _choice_notes(task: Task, outcome: Outcome, settings: Settings) -> list[str]:
    """Notes on what was chosen, and why."""
    notes = []
    if outcome.scores:
        notes.append(_why(outcome, settings))
        notes += _kept_note(task, outcome)
    notes += [f"{method.label} could not be fitted and was left out: {why}" for method, why in outcome.failed.items()]
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
            "the new last layer averages turned copies of the old one; it is the average of infinitely many copies "
            "(the limit of many members), because fewer may cost too much accuracy, or are no better"
        )
    elif chosen.ensemble_size > first:
        notes.append(
            "the new last layer averages turned copies of the old one; it takes many of them to keep the accuracy: "
            f"averaged {chosen.ensemble_size} members, not {first}"
        )
    return notes


def _underconfidence(outcome: Outcome) -> list[str]:
    """Say that a tilt cannot help where confidences are too low."""
    confidence = outcome.before.mean("confidence")
    accuracy = outcome.before.mean("hit")
    if confidence >= accuracy:
        return []
    ending = "--map ts raises them too" if outcome.map == "none" else "what raises them is the map"
    return [
        f"the model is underconfident on these data: mean confidence {confidence:.1%}, accuracy {accuracy:.1%}; a tilt "
        f"only lowers confidences, {ending}"
    ]


# Why a method with a lower loss was not chosen, in the order of a note.
_REASONS: dict[Reason, str] = {
    "predictions": "changes predictions, which is not worth it or costs a class recall",
    "accuracy": "costs accuracy",
    "error": "raises the ECE",
}


def _why(outcome: Outcome, settings: Settings) -> str:
    """Say what was chosen among what: the best of those that no rule left out, and what was left out though better."""
    values = {
        method: objective_value(scores, settings.objective, settings.bins) for method, scores in outcome.scores.items()
    }
    ranked = sorted(values, key=lambda method: values[method])
    least = min(value for method, value in values.items() if method not in outcome.left_out)
    rule = "by their likelihood" if outcome.by_likelihood else "as the simplest within a standard error of the best"
    text = f"chosen of {len(outcome.scores)} methods, {rule}: {outcome.words}"
    for reason, words in _REASONS.items():
        better = [each for each in ranked if outcome.left_out.get(each) == reason and values[each] < least]
        if better:
            text += f"; left out, as it {words}: {', '.join(method.words for method in better[:_LISTED])}"
    return text


def _kept_note(task: Task, outcome: Outcome) -> list[str]:
    """Say what a change of predictions would gain and cost, where they are kept though it would gain."""
    if outcome.changing is None:
        return []
    before, after = outcome.before, outcome.scores[outcome.changing]
    gain = after.mean("nll") - outcome.scores[outcome.method].mean("nll")
    recall = Recall.of(before, after, class_names(task, task.calibration))
    parts = [
        f"{METRICS['nll'].label} {METRICS['nll'].change(gain)}",
        f"accuracy {METRICS['accuracy'].change(after.mean('hit') - before.mean('hit'))} points",
        f"balanced accuracy {METRICS['accuracy'].change(recall.balanced.difference)} points",
    ]
    lowest = recall.lowest
    loss = -100 * lowest.difference.difference
    kind = "label" if task.readout.multi_label else "class"
    cost = f"; {kind} {lowest.name} would lose {loss:.2f} points of recall" if loss > 0 else ""
    return [
        f"predicted classes are kept; --predictions change would take {outcome.changing.label} (cross-validated, "
        f"against {outcome.label}: {', '.join(parts)}{cost})"
    ]


def _head_notes(task: Task, drift: float | None) -> list[str]:
    if task.head is None:
        return [f"output '{task.readout.output}' is calibrated as it is ({task.readout.holds}), without a linear head"]
    stored = task.head.stored_weight
    if stored.quantized is not None:
        kind = "per class" if stored.quantized.axis is not None else "with one scale"
        if drift is None:
            return [f"the weight is quantised in the file ({stored.quantized.dtype}) and stays as it is"]
        return [
            f"the weight was quantised anew ({stored.quantized.dtype}, {kind}): that moves a probability by at most "
            f"{drift:.2g}; --quantized-head float keeps it in float"
        ]
    if stored.shared and drift is None and task.model.initializers.get(stored.name) is None and stored.steps:
        return [f"'{stored.read_as}' is quantised in the file; the head was given a float tensor of its own"]
    if stored.shared:
        return [f"'{stored.read_as}' is read elsewhere too, or computed: the head was given a tensor of its own"]
    return []


def _worse_notes(comparison: Comparison, standing: Standing) -> list[str]:
    """Say that a result which no gate holds back is worse; nothing if it is not."""
    if standing.word != "worse":
        return []
    text = differences_text(comparison.differences, standing.worse)
    return [f"the result is significantly worse than the input: {text}; --no-fail-if-worse lets it pass"]


def _dry_run_note(changes: Changes, max_names: int = 8) -> str:
    """Say what a dry run would have written."""

    def listed(what: str, names: tuple[str, ...]) -> str:
        more = f" and {len(names) - max_names} more" if len(names) > max_names else ""
        return f"{what} {', '.join(names[:max_names]) or 'none'}{more}"

    return (
        f"dry run, no file was written; a run would write {changes.target or 'the model in memory'} with "
        f"{listed('changed tensors:', changes.tensors)}; {listed('new tensors:', changes.added)}; "
        f"{listed('new nodes:', changes.nodes)}"
    )


def digests_in_file(source: Source, prefix: str) -> dict[str, str]:
    """Return what a file says of samples that decided on something in it: a few digests, and what they are of."""
    return {f"{prefix}_sketch": sketch_of(sample_digests(source)), f"{prefix}_form": sample_form(source)}


def decided_thresholds(model: Model, each: DigestedSamples, limits: Limits) -> bool | None:
    """Return whether samples gave the thresholds of a guarded model; None where nothing tells."""
    return _among(provenance(model), "guard", each, limits)


def decided_on(model: Model, each: DigestedSamples, limits: Limits) -> tuple[str, ...]:
    """Say which decisions of a file came from some of these samples, so that they are no test of them."""
    notes = []
    if decided_thresholds(model, each, limits):
        notes.append(
            f"{each.name}: the thresholds of {model.name} come from these samples, or from some of them: they are no "
            "test of its promises; give others"
        )
    shifted = _shift_of(model)
    for prefix in ("calib", "target"):
        if _among(shifted, prefix, each, limits):
            what = "--calib" if prefix == "calib" else "--target-data"
            notes.append(
                f"{each.name}: {model.name} was shifted with these samples, or with some of them ({what}): they are no "
                "test of its class frequencies; give others"
            )
    return tuple(notes)


def _shift_of(model: Model) -> dict[str, Any]:
    try:
        found = json.loads(provenance(model).get("shift", "{}"))
    except (ValueError, RecursionError):  # not written by this tool
        return {}
    if not isinstance(found, dict):
        return {}
    return found


def _among(entries: dict[str, Any], prefix: str, each: DigestedSamples, limits: Limits) -> bool | None:
    text = entries.get(f"{prefix}_sketch")
    if not isinstance(text, str) or entries.get(f"{prefix}_form") != each.form:
        return None
    overlap = sketch_overlap(each.digests, read_sketch(text))
    if overlap.n < MIN_SHARED_DIGESTS:  # a full sketch tells only of digests below its largest
        return None
    return overlap.shared >= MIN_SHARED_DIGESTS and 100 * overlap.share > limits.overlap + 100 * SKETCH_MARGIN
