"""The numbers of a report, which compare the input with the result, and their notes (`notes_on`).

Both are scored on the same samples: held-out data if there are any; else cross-fitted calibration samples; else, where
nothing was chosen or fitted, any data.
"""

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.images.preprocess import recipe_text
from tna_onnx.data.labels import listed
from tna_onnx.data.positions import PositionSource
from tna_onnx.data.source import Source
from tna_onnx.engine.logits import Logits
from tna_onnx.errors import DataError
from tna_onnx.graph.nodes import PREFIX
from tna_onnx.graph.readers import LabelOutput
from tna_onnx.graph.readout import Readout
from tna_onnx.graph.tensors import epsilon, numpy_type
from tna_onnx.maps.base import apply_map
from tna_onnx.numerics.averages import LIMIT
from tna_onnx.numerics.metric import JUDGED, METRICS
from tna_onnx.numerics.metrics import metric_value
from tna_onnx.numerics.operating_points import Recalls
from tna_onnx.numerics.ops import to_host
from tna_onnx.numerics.positive import NO_CLASSES, Classes
from tna_onnx.numerics.residuals import CrossFit, order_dependence
from tna_onnx.numerics.scores import SUM_TOLERANCE, SampleScores, weighted_mean
from tna_onnx.pipeline.crossfit import SEEN, folds
from tna_onnx.pipeline.job import Collected, Task, class_names
from tna_onnx.pipeline.methods import ENOUGH, FOLDS, Method, Reason
from tna_onnx.pipeline.other_outputs import labels_of_samples
from tna_onnx.pipeline.settings import Settings
from tna_onnx.pipeline.strategy import Outcome, Strategy
from tna_onnx.pipeline.writing import Shipped
from tna_onnx.progress import Progress, silent
from tna_onnx.results.gates import differences_text
from tna_onnx.results.measured import Subgroup, named_classes, resolution_notes, subgroups_of
from tna_onnx.results.report import Changes, Comparison, How, KeptLabel, compare_scores
from tna_onnx.results.verdict import ClassRecall, Recall, Standing

# Logits above this number are given back once they are scored: three sets of them would stay beside each other.
_LARGE = 2**24

_IMPLAUSIBLE_RISE = 0.20
_MOST = 0.5


@dataclass(frozen=True, eq=False)
class Compared:
    """Paired scores, what they come to, and the scores after of the calibration data, which were fitted.

    Cross-fitted numbers are of the methods that the folds chose, by their labels in `folds`.
    """

    before: SampleScores
    after: SampleScores
    fitted: SampleScores
    comparison: Comparison
    recall: Recall
    changed_predictions: float
    folds: tuple[str, ...] = ()
    subgroups: tuple[Subgroup, ...] = ()
    kept_label: KeptLabel | None = None  # labels that stay, whatever the likeliest class is
    in_order: float = 0.0  # standard errors by which samples next to one another err alike

    @property
    def changed_labels(self) -> float:
        """Share of samples whose predicted class is another one: the label, where the model has an output for it."""
        return 0.0 if self.kept_label else self.changed_predictions


def compare_heads(
    task: Task,
    strategy: Strategy,
    outcome: Outcome,
    after: Shipped,
    fitted: SampleScores,
    progress: Progress = silent,
    labels: Sequence[LabelOutput] = (),
) -> Compared:
    """Score the input and the result on held-out data, or cross-fitted.

    `after`: what the written file computes for the held-out data, or for the calibration data without them. `fitted`:
    scores after of the calibration data. `labels`: outputs that stay the model's own decision.
    """
    original = task.logits(task.weight, on=task.reported)
    how: How = "unchanged"
    before = scores = outcome.before
    changed = 0.0
    chosen: list[Method] = []
    cross_fit = None
    if task.held_out is not None:
        how = "held-out"
        before, first = _passed(task, outcome, Shipped(original, None))
        scores, second = _passed(task, outcome, after)
        if not outcome.keeps_predictions:
            changed = weighted_mean(first != second, before.weights)
    elif not outcome.keeps_predictions:
        different = original.predictions() != after.logits.predictions(after.fitted)
        changed = weighted_mean(different, before.weights)
    places = None
    if labels and not (outcome.keeps_predictions and labels[0].first):
        places = labels_of_samples(task, labels[0], task.reported, original.predictions())
    in_order = _order_dependence(task, before, original)
    _give_back(original, task.readout)
    # an unchanged model is the same in every fold: nothing to cross-fit
    if task.held_out is None and not outcome.unchanged:
        how = "cross-fitted"
        chosen = strategy.chosen_in_folds(outcome)
        scores = strategy.cross_fitted(outcome, progress, chosen)
        cross_fit = CrossFit(fitted, folds(len(scores), strategy.settings.seed, scores.clusters))
    compared = functools.partial(_numbers, task, outcome, how, places, before, cross_fit)
    comparison, recall, subgroups = compared(scores)
    # the method in the file is scored too high by its own scores, which chose it, and too low by those of folds that
    # chose others: the worse of two for each fold
    if any(method != outcome.method for method in chosen) and outcome.method in outcome.scores:
        other, classes, other_parts = compared(outcome.scores[outcome.method])
        comparison, recall = comparison.holding(other), recall.holding(classes)
        differences = {part.name: part.differences for part in other_parts}
        subgroups = tuple(part.holding(differences[part.name]) for part in subgroups)
    if in_order > _IN_ORDER:  # a likelihood ratio takes samples for independent
        nll = replace(comparison.differences["nll"], likelier=False)
        comparison = replace(comparison, differences={**comparison.differences, "nll": nll})
    compared_heads = Compared(
        before, scores, fitted, comparison, recall, changed, tuple(method.label for method in chosen), subgroups,
        in_order=in_order,
    )  # fmt: skip
    if places is None:
        return compared_heads
    return replace(compared_heads, kept_label=_kept_label(task, compared_heads, after, labels[0].name, places))


# Probabilities in memory at once.
_TOGETHER = 2**22


def _kept_label(task: Task, compared: Compared, after: Shipped, name: str, places: NDArray[np.int64]) -> KeptLabel:
    """Return how a label output that stays differs from the new likeliest classes. `places`: (N,) its classes."""
    table = task.reported.table
    step = max(1, _TOGETHER // task.readout.n_classes)
    p, most = [], []
    for start in range(0, len(places), step):
        rows = np.arange(start, min(start + step, len(places)))
        features = np.asarray(table.features[rows], np.float64)
        logits = np.asarray(after.logits.at(rows), np.float64)
        new = task.readout.probabilities(apply_map(after.fitted, logits, features))
        p.append(new[np.arange(len(rows)), places[rows]])
        most.append(new.argmax(axis=1))
    differing = weighted_mean(np.concatenate(most) != places, compared.before.weights)
    return KeptLabel(name, len(places), differing, compared.changed_predictions, float(np.min(np.concatenate(p))))


def _numbers(
    task: Task,
    outcome: Outcome,
    how: How,
    places: NDArray[np.int64] | None,
    before: SampleScores,
    cross_fit: CrossFit | None,
    after: SampleScores,
) -> tuple[Comparison, Recall, tuple[Subgroup, ...]]:
    """Compare paired scores: in all, by class, and by subgroup if there are any.

    `places`: (N,) classes of a label output that stays; None without one.
    """
    settings = task.settings
    source, labels = task.reported.source, np.asarray(task.reported.table.labels)
    labelled, after = (side.labelled(labels, places) for side in (before, after))
    # cross-fitted, other folds may have chosen a method that changes some
    same = places is not None or (outcome.keeps_predictions and np.array_equal(before.hit, after.hit))
    shared: dict[str, Any] = {"level": settings.level, "same_predictions": same}
    names = class_names(task, task.reported)
    comparison = compare_scores(
        source.describe(), how, labelled, after, settings.bins, settings.seed,
        cross_fit=cross_fit, classes=classes_of(task, task.reported), **shared,
    )  # fmt: skip
    subgroups: tuple[Subgroup, ...] = ()
    parts = source.sample_info.get("by")
    if parts is not None:
        subgroups = subgroups_of(
            after, parts, classes_of(task, task.reported), settings.bins, settings.level, labelled,
            cross_fit, same_predictions=same,
        )  # fmt: skip
    return comparison, Recall.of(labelled, after, names, **shared), subgroups


def classes_of(task: Task, collected: Collected) -> Classes:
    """Return two classes, or labels, for P(positive); none where there is no positive class to measure."""
    labels = task.readout.multi_label
    # a teacher's probabilities stand for labels
    if task.teacher is not None or not (labels or task.readout.n_classes == 2):
        return NO_CLASSES
    return named_classes(task.settings.positive, class_names(task, collected), labels=labels)


def require_plausible(compared: Compared, outcome: Outcome, calib: str) -> None:
    """Refuse a cross-fitted gain of a new weight that copies among the samples explain better than any last layer does.

    Only a refit has enough numbers to learn samples by heart: what the best of other methods gains is plausible.
    """
    if compared.comparison.how != "cross-fitted" or compared.before.predicted is not None:
        return
    if outcome.map != "refit":
        return
    rivals = [scored for method, scored in outcome.scores.items() if method.map != outcome.map]
    before, after = (scores.mean("hit") for scores in (compared.before, compared.after))
    plausible = max([before, *(scored.mean("hit") for scored in rivals)])
    if after - plausible < _IMPLAUSIBLE_RISE or compared.changed_predictions <= _MOST:
        return
    raise DataError(
        f"{calib}: cross-fitted accuracy rises from {100 * before:.2f} % to {100 * after:.2f} % with {outcome.label}, "
        f"while {100 * compared.changed_predictions:.1f} % of the predictions change: that is implausible for a new "
        "last layer, and typical of samples that are alike in groups (those of one person, device or recording, or "
        "augmentations). Expected independent samples; add samples of other groups as --eval, to measure the result "
        "on them"
    )


def _passed(task: Task, outcome: Outcome, shipped: Shipped) -> tuple[SampleScores, NDArray[np.int64]]:
    """Check and score the held-out samples under one head, and return what it predicts, where that may change."""
    _require_finite(task.readout, shipped.logits, task.reported.source)
    scores = shipped.logits.mapped_scores(shipped.fitted)
    predicted = np.zeros(0, np.int64)
    if not outcome.keeps_predictions:
        predicted = shipped.logits.predictions(shipped.fitted)
    _give_back(shipped.logits, task.readout)
    return scores, predicted


def _give_back(logits: Logits, readout: Readout) -> None:
    """Give large logits back, once they have served the comparison."""
    if len(logits) * readout.n_classes > _LARGE:
        logits.forget()


def _require_finite(readout: Readout, logits: Logits, source: Source) -> None:
    """Refuse logits that the file cannot give as finite numbers: a NaN would miss no gate."""
    # features are widened to float32 here; a float16 file overflows earlier
    largest = float(np.finfo(np.float16).max) if readout.logits_type == "float16" else np.inf
    done = 0
    for values, labels, _ in logits.chunks():
        xp = array_api_compat.array_namespace(values)
        # of a NaN, no comparison holds; infinite is more than any bound
        sizes = to_host(xp.max(xp.abs(values), axis=1))
        bad = ~(sizes <= largest) | ~np.isfinite(sizes)
        if bad.any():
            raise DataError(
                f"{source.describe()}: logits '{readout.logits}' of sample "
                f"{done + int(np.flatnonzero(bad)[0])} hold NaN or infinite values"
            )
        done += len(labels)


# Steps of a quantised output that a reader should know of: a log loss sees them.
_COARSE_OUTPUT = 1e-3

# Methods that the note on a choice names as left out.
_LISTED = 2

# Share of changed predictions from which on users should know.
_MANY_CHANGED = 0.01


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
    notes += _order_note(task.reported.source, compared.in_order)
    notes += _notes_on_many(outcome, cross_fitted=comparison.how == "cross-fitted")
    # otherwise a worse result is an error, and needs no note
    if standing.word == "worse" and job.gates.require == "nothing":
        text = differences_text(comparison.differences, standing.worse)
        notes.append(f"the result is significantly worse than the input: {text}; --require nothing lets it pass")
    if job.dry_run:
        notes.append(_dry_run_note(changes))
    return notes


# Chance takes independent samples this far once in 30,000 sets.
_IN_ORDER = 4.0


def _order_dependence(task: Task, before: SampleScores, original: Logits) -> float:
    """Return by how many standard errors samples next to one another err alike, where nothing is said of groups."""
    if before.clusters is not None or before.predicted is not None or task.teacher is not None:
        return 0.0
    labels = np.asarray(task.reported.table.labels)
    return order_dependence(before.hit - before.confidence.astype(np.float64), labels, original.predictions())


def _order_note(source: Source, z: float) -> list[str]:
    if z <= _IN_ORDER:
        return []
    return [
        f"{source.describe()}: samples next to one another err alike (z {z:.1f}), like those of one "
        "person, device or recording; intervals are then too narrow. Name the column of groups by --group-column"
    ]


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
    ending = "--map ts can raise them" if outcome.map == "none" else "the map raises them"
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
    before, after = outcome.before, outcome.scores[outcome.changing]
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
        cost = f"; {kind} {lowest.name} would lose {loss:.2f} points of recall" if loss > 0 else ""
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
        kind = "per class" if stored.quantized.axis is not None else "with one scale"
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
