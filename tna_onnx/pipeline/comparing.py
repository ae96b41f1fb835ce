"""Input and result, compared on the same samples (`compare_heads`), and the thresholds that keep today's decisions.

The samples are held-out data if there are any; else cross-fitted calibration samples; else, where nothing was chosen or
fitted, any data. A rising map of one logit s takes s = 0, the probability 1/2, to one number t; a map that is constant
around 0 has no such t. Samples show which.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.engine.logits import Logits
from tna_onnx.errors import DataError
from tna_onnx.maps.base import CalibrationMap, apply_map
from tna_onnx.numerics.copies import order_dependence
from tna_onnx.numerics.ops import namespace, sigmoid, to_host
from tna_onnx.numerics.positive import NO_CLASSES, Classes, positive_scores
from tna_onnx.numerics.residuals import CrossFit
from tna_onnx.numerics.scores import SampleScores, weighted_mean
from tna_onnx.pipeline.crossfit import folds
from tna_onnx.pipeline.job import Collected, Task
from tna_onnx.pipeline.methods import Method
from tna_onnx.pipeline.other_outputs import labels_of_samples
from tna_onnx.pipeline.strategy import Outcome, Strategy
from tna_onnx.pipeline.writing import Shipped, Writing
from tna_onnx.progress import Progress, silent
from tna_onnx.results.measured import Subgroup, named_classes, subgroups_of
from tna_onnx.results.report import Alternative, Comparison, How, KeptDecision, KeptLabel, compare_scores
from tna_onnx.results.verdict import Recall

# Logits above this number are given back once they are scored: three sets of them would stay beside each other.
_LARGE = 2**24

# A refit that gains so much accuracy over all other methods, and changes more predictions than this, has learnt copies.
_IMPLAUSIBLE_RISE = 0.20
_MOST_CHANGED = 0.5


@dataclass(frozen=True, eq=False)
class Compared:
    """Paired scores, and what they come to.

    Cross-fitted numbers are of the methods that the folds chose, by their labels in `folds`.
    """

    before: SampleScores
    after: SampleScores
    comparison: Comparison
    recall: Recall
    changed_predictions: float
    folds: tuple[str, ...] = ()
    subgroups: tuple[Subgroup, ...] = ()
    kept_label: KeptLabel | None = None  # labels that stay, whatever the likeliest class is
    in_order: float = 0.0  # standard errors by which samples next to one another err alike; 0 by chance

    @property
    def changed_labels(self) -> float:
        """Share of samples whose predicted class is another one: the label, where the model has an output for it."""
        if self.kept_label:
            return 0.0
        return self.changed_predictions


def compare_heads(
    writing: Writing, strategy: Strategy, outcome: Outcome, after: Shipped, progress: Progress = silent
) -> Compared:
    """Score the input and the result on held-out data, or cross-fitted.

    `after`: what the written file computes for the held-out data, or for the calibration data without them.
    """
    task = writing.task
    label = writing.labels[0] if writing.keeps_labels else None
    original = task.logits(task.weight, on=task.reported)
    how: How = "unchanged"
    before = scores = outcome.before
    if task.held_out is not None:
        how = "held-out"
        before = _held_out_scores(task, Shipped(original, None))
    predicted = original.predictions()
    places = None
    if label is not None and not (outcome.keeps_predictions and label.first):
        places = labels_of_samples(task, label, task.reported, predicted)
    in_order = _order_dependence(task, before, predicted)
    _give_back(task, original)
    if task.held_out is not None:
        scores = _held_out_scores(task, after)
    changed = 0.0
    if not outcome.keeps_predictions:
        changed = weighted_mean(predicted != after.logits.predictions(after.fitted), before.weights)
    _give_back(task, after.logits)
    methods_of_folds: list[Method] = []
    cross_fit = None
    # an unchanged model is the same in every fold: nothing to cross-fit
    if task.held_out is None and not outcome.unchanged:
        how = "cross-fitted"
        methods_of_folds = strategy.chosen_in_folds(outcome)
        scores = strategy.cross_fitted(outcome, progress, methods_of_folds)
        cross_fit = CrossFit(outcome.after, folds(len(scores), strategy.settings.seed, scores.clusters))
    numbers = functools.partial(_numbers, task, outcome, how, places, before, cross_fit)
    comparison, recall, subgroups = numbers(scores)
    # the method in the file is scored too high by its own scores, which chose it, and too low by those of folds that
    # chose others: the worse of two for each fold
    if any(method != outcome.method for method in methods_of_folds) and outcome.method in outcome.scores:
        of_file, recall_of_file, subgroups_of_file = numbers(outcome.scores[outcome.method])
        comparison = comparison.holding(of_file)
        recall = recall.holding(recall_of_file)
        by_name = {subgroup.name: subgroup for subgroup in subgroups_of_file}
        subgroups = tuple(subgroup.holding(by_name[subgroup.name]) for subgroup in subgroups)
    if in_order:  # a likelihood ratio takes samples for independent
        nll = replace(comparison.differences["nll"], likelier=False)
        comparison = replace(comparison, differences={**comparison.differences, "nll": nll})
    kept_label = None
    if label is not None and places is not None:
        kept_label = _kept_label(task, before, changed, after, label.name, places)
    return Compared(
        before, scores, comparison, recall, changed, tuple(method.label for method in methods_of_folds),
        subgroups, kept_label, in_order,
    )  # fmt: skip


# Probabilities in memory at once.
_TOGETHER = 2**22


def _kept_label(
    task: Task, before: SampleScores, changed: float, after: Shipped, name: str, places: NDArray[np.int64]
) -> KeptLabel:
    """Return how a label output that stays differs from the new likeliest classes. `places`: (N,) its classes."""
    table = task.reported.table
    step = max(1, _TOGETHER // task.readout.n_classes)
    p = []
    likeliest = []
    for start in range(0, len(places), step):
        rows = np.arange(start, min(start + step, len(places)))
        features = np.asarray(table.features[rows], np.float64)
        logits = np.asarray(after.logits.at(rows), np.float64)
        new = task.readout.probabilities(apply_map(after.fitted, logits, features))
        p.append(new[np.arange(len(rows)), places[rows]])
        likeliest.append(new.argmax(axis=1))
    differing = weighted_mean(np.concatenate(likeliest) != places, before.weights)
    return KeptLabel(name, len(places), differing, changed, float(np.min(np.concatenate(p))))


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
    source = task.reported.source
    labels = np.asarray(task.reported.table.labels)
    labelled, after = (side.labelled(labels, places) for side in (before, after))
    # cross-fitted, other folds may have chosen a method that changes some
    same = places is not None or (outcome.keeps_predictions and np.array_equal(before.hit, after.hit))
    shared: dict[str, Any] = {"level": settings.level, "same_predictions": same}
    names = task.opened.class_names(task.reported.source)
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
    return named_classes(task.settings.positive, task.opened.class_names(collected.source), labels=labels)


def require_plausible(compared: Compared, outcome: Outcome, calib: str) -> None:
    """Refuse a cross-fitted gain of a new weight that copies among the samples explain better than any last layer does.

    Only a refit has enough numbers to learn samples by heart: what the best of the others gains is plausible, of
    those compared on all folds.
    """
    if compared.comparison.how != "cross-fitted" or compared.before.predicted is not None:
        return
    if outcome.map != "refit":
        return
    rivals = [scored for method, scored in outcome.scores.items() if method.map != outcome.map]
    before, after = (scores.mean("hit") for scores in (compared.before, compared.after))
    plausible = max([before, *(scored.mean("hit") for scored in rivals)])
    if after - plausible < _IMPLAUSIBLE_RISE or compared.changed_predictions <= _MOST_CHANGED:
        return
    raise DataError(
        f"{calib}: cross-fitted accuracy rises from {100 * before:.2f} % to {100 * after:.2f} % with {outcome.label}, "
        f"while {100 * compared.changed_predictions:.1f} % of the predictions change: that is implausible for a new "
        "last layer, and typical of samples that are alike in groups (those of one person, device or recording, or "
        "augmentations). Expected independent samples; add samples of other groups as --eval, to measure the result "
        "on them"
    )


def _held_out_scores(task: Task, shipped: Shipped) -> SampleScores:
    """Check and score the held-out samples under one head."""
    _require_finite(task, shipped.logits)
    return shipped.logits.mapped_scores(shipped.fitted)


def _give_back(task: Task, logits: Logits) -> None:
    """Give large logits back, once they have served the comparison."""
    if len(logits) * task.readout.n_classes > _LARGE:
        logits.forget()


def _require_finite(task: Task, logits: Logits) -> None:
    """Refuse logits that the file cannot give as finite numbers: a NaN would miss no gate."""
    # features are widened to float32 here; a float16 file overflows earlier
    largest = float(np.finfo(np.float16).max) if task.readout.logits_type == "float16" else np.inf
    done = 0
    for values, labels, _ in logits.chunks():
        xp = namespace(values)
        # of a NaN, no comparison holds; infinite is more than any bound
        sizes = to_host(xp.max(xp.abs(values), axis=1))
        bad = ~(sizes <= largest) | ~np.isfinite(sizes)
        if bad.any():
            raise DataError(
                f"{task.reported.source.describe()}: logits '{task.readout.logits}' of sample "
                f"{done + int(np.flatnonzero(bad)[0])} hold NaN or infinite values"
            )
        done += len(labels)


# Chance takes independent samples this far once in 30,000 sets.
_IN_ORDER = 4.0


def _order_dependence(task: Task, before: SampleScores, predicted: NDArray[np.int64]) -> float:
    """Return by how many standard errors samples next to one another err alike; 0 by chance, or of named groups."""
    if before.clusters is not None or before.predicted is not None or task.teacher is not None:
        return 0.0
    labels = np.asarray(task.reported.table.labels)
    z = order_dependence(before.hit - before.confidence.astype(np.float64), labels, predicted)
    if z <= _IN_ORDER:
        return 0.0
    return z


def _compared_values(logits: Any, positive: int | None, *, in_logits: bool) -> NDArray[Any]:
    """Return what callers compare with a threshold: of each label, (N, L), or of the positive one of two, (N, 1)."""
    values: NDArray[Any] = to_host(logits)
    if positive is not None:
        values = values[:, [positive]] - values[:, [1 - positive]]
    if in_logits:
        return values
    return np.asarray(sigmoid(values), values.dtype)


def thresholds_of(
    fitted: CalibrationMap | None, old: Logits, new: Shipped, *, positive: int | None, in_logits: bool = False
) -> list[float | None]:
    """Return the value that keeps the decisions of s > 0 on all samples, for each label; None where there is none.

    There is none where the map is constant around 0. One that reads features is no map of one logit.

    `old`: logits of the input model. `new`: of the result, for the same samples. `positive`: of two classes; None for
    labels. `in_logits`: for an output that holds logits; else the values are probabilities.
    """
    # largest new value of what was not predicted, and smallest of what was, of L labels or one class, (L,)
    below: Any = -np.inf
    above: Any = np.inf
    for (before, _, _), (after, _, _) in zip(old.chunks(), new.logits.chunks(), strict=True):
        s = _compared_values(before, positive, in_logits=True)
        mapped = _compared_values(apply_map(new.fitted, after), positive, in_logits=in_logits)
        below = np.maximum(below, np.where(s > 0, -np.inf, mapped).max(axis=0).astype(np.float64))
        above = np.minimum(above, np.where(s > 0, mapped, np.inf).min(axis=0).astype(np.float64))
        classes = np.shape(before)[1]
    middle = _compared_values(apply_map(fitted, np.zeros((1, classes))), positive, in_logits=in_logits)[0]
    return [_between(*ends) for ends in zip(middle.tolist(), below, above, strict=True)]


def _between(middle: float, below: float, above: float) -> float | None:
    """Return a number t with below <= t < above, as it is printed: the middle, where rounding does not hide it."""
    if not below < above:
        return None
    if not below <= middle < above:
        middle = (below + above) / 2
    for digits in (8, 10, 17):  # a float32 probability has no more than eight
        printed = float(f"{middle:.{digits}g}")
        if below <= printed < above:
            return printed
    return None


def recall_and_precision(scores: SampleScores) -> tuple[float | None, float | None]:
    """Return recall and precision where the probability is above 1/2, fractions; None where there is nothing to share.

    `scores`: of one label, or of the positive class (`positive_scores`).
    """
    predicted = scores.confidence > 0.5
    masks = (predicted & scores.hit, scores.hit, predicted)
    right, came, decided = (float(np.sum(scores.weigh(mask.astype(np.float64)))) for mask in masks)
    recall = precision = None
    if came:
        recall = right / came
    if decided:
        precision = right / decided
    return recall, precision


def kept_decisions(task: Task, outcome: Outcome, compared: Compared, after: Shipped) -> tuple[KeptDecision, ...]:
    """Say what happens at 1/2 to each label, or to the second class, beside the threshold that keeps decisions.

    There is nothing to say where callers have no threshold of their own, or no decision changes.
    """
    names = classes_of(task, task.reported).names
    if not names or not task.has_own_threshold or outcome.keeps_predictions:
        return ()
    in_logits = task.readout.activation == "none" and task.readout.holds == "logits"
    positive = None if task.readout.multi_label else 1
    called = names[positive:]
    values: Sequence[float | None] = [None] * len(called)
    # a tilted weight is no function of one logit either
    if outcome.chosen.angle == 0 and not (outcome.fitted is not None and outcome.fitted.needs_features):
        old = task.logits(task.weight, on=task.reported)
        values = thresholds_of(outcome.fitted, old, after, positive=positive, in_logits=in_logits)
    labels = np.asarray(task.reported.table.labels)
    sides = [
        map(recall_and_precision, positive_scores(scores.labelled(labels), len(names)))
        for scores in (compared.before, compared.after)
    ]
    return tuple(
        KeptDecision(name, 0.0 if in_logits else 0.5, threshold, *old_shares, *new_shares)
        for name, threshold, old_shares, new_shares in zip(called, values, *sides, strict=True)
    )


def alternative(task: Task, outcome: Outcome) -> Alternative | None:
    """Return what would make P(positive) of two classes right, where predictions are kept."""
    method = outcome.unprotected
    if method is None:
        return None
    labels = np.asarray(task.calibration.table.labels)
    positive = classes_of(task, task.calibration).positive
    sides = (outcome.scores[one].labelled(labels) for one in (outcome.method, method))
    recalls = [recall_and_precision(positive_scores(side, 2, positive)[0])[0] for side in sides]
    threshold = None
    fitted = outcome.unprotected_fit
    if fitted is not None and not fitted.needs_features:
        original = task.logits(task.weight)
        (threshold,) = thresholds_of(fitted, original, Shipped(original, fitted), positive=positive)
    return Alternative(method.label, threshold, *recalls)
