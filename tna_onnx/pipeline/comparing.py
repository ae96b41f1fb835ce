"""The honest numbers: scores of the input and of the result on the same samples.

- With held-out data, both heads score the features that the network gave for them, once.
- Without, each calibration sample is scored by what was chosen and fitted without it (cross-fitting).
- Where nothing was chosen or fitted, every bit of the output is the input's, and any data will do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np
from numpy.typing import NDArray

from tna_onnx.engine.logits import Logits
from tna_onnx.errors import DataError
from tna_onnx.maps.refit import Refit
from tna_onnx.numerics.ops import to_host
from tna_onnx.numerics.residuals import CrossFit
from tna_onnx.numerics.scores import SampleScores, weighted_mean
from tna_onnx.pipeline.crossfit import folds
from tna_onnx.pipeline.methods import Method
from tna_onnx.pipeline.settings import Settings
from tna_onnx.pipeline.strategy import Outcome, Strategy
from tna_onnx.pipeline.task import Collected, Task, class_names
from tna_onnx.pipeline.writing import Shipped
from tna_onnx.progress import Progress, silent
from tna_onnx.results.recall import Recall
from tna_onnx.results.report import Comparison, How, compare_scores

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


def compare_heads(
    task: Task,
    strategy: Strategy,
    outcome: Outcome,
    settings: Settings,
    after: Shipped,
    progress: Progress = silent,
    fitted: SampleScores | None = None,
) -> Compared:
    """Score the input and the result on held-out data, or cross-fitted.

    Args:
        task: what was opened.
        strategy: how the result was made.
        outcome: the result.
        settings: bins, seed and confidence level.
        after: what the written file computes for the held-out data, or for the calibration data without them.
        progress: called with (stage, done, total).
        fitted: scores after of the calibration data, if they are known.

    Raises:
        DataError: held-out logits that are not finite, or a map cannot be fitted without one of the folds.
    """
    how, before, scores, changed, chosen = _paired_scores(task, strategy, outcome, after, progress)
    if fitted is None:
        fitted = outcome.logits.mapped_scores(outcome.fitted)
        _give_back(outcome.logits, task)
    cross_fit = None
    if how == "cross-fitted":
        cross_fit = CrossFit(fitted, folds(len(scores), strategy.settings.seed, scores.clusters))
    names = class_names(task, task.shown)

    def compared(scores: SampleScores) -> tuple[Comparison, Recall]:
        # cross-fitted, other folds may have chosen a method that changes some
        same = outcome.keeps_predictions and np.array_equal(before.hit, scores.hit)
        shared: dict[str, Any] = {"level": settings.level, "same_predictions": same}
        comparison = compare_scores(
            task.shown.source.describe(), how, before, scores, settings.bins, settings.seed,
            cross_fit=cross_fit, interval=settings.interval, **shared,
        )  # fmt: skip
        labelled = before.labelled(np.asarray(task.shown.table.labels))
        return comparison, Recall.of(labelled, scores, names, **shared)

    comparison, recall = compared(scores)
    # the method in the file is scored too high by its own scores, which chose it, and too low by those of folds that
    # chose others: the worse of two for each fold
    if any(method != outcome.method for method in chosen) and outcome.method in outcome.scores:
        other, classes = compared(outcome.scores[outcome.method])
        comparison, recall = comparison.holding(other), recall.holding(classes)
    return Compared(before, scores, fitted, comparison, recall, changed, tuple(method.label for method in chosen))


def require_plausible(compared: Compared, outcome: Outcome, calib: str) -> None:
    """Refuse a cross-fitted gain of a new weight that copies among the samples explain better than any last layer does.

    Only a refit has enough numbers to learn samples by heart: what the best of other methods gains is plausible.

    Args:
        compared: the numbers.
        outcome: what was fitted.
        calib: what messages call the calibration samples.

    Raises:
        DataError: accuracy is 20 points above that of the input and of every other method, while most predictions
            change.
    """
    if compared.comparison.how != "cross-fitted" or compared.before.predicted is not None:
        return
    if not isinstance(outcome.fitted, Refit):
        return
    others = [each for method, each in outcome.scores.items() if method.map != outcome.map]
    before, after = (scores.mean("hit") for scores in (compared.before, compared.after))
    plausible = max([before, *(each.mean("hit") for each in others)])
    if after - plausible < _IMPLAUSIBLE_RISE or compared.changed_predictions <= _MOST:
        return
    raise DataError(
        f"{calib}: cross-fitted accuracy rises from {before:.2%} to {after:.2%} with {outcome.label}, while "
        f"{compared.changed_predictions:.1%} of the predictions change: that is implausible for a new last layer, and "
        "what samples look like that are alike in groups (frames of one video, images of one patient, augmentations). "
        "Expected independent samples; give others with --eval, which the result is then held against"
    )


def _paired_scores(
    task: Task, strategy: Strategy, outcome: Outcome, after: Shipped, progress: Progress
) -> tuple[How, SampleScores, SampleScores, float, list[Method]]:
    """Return how, scores before and after, the share that changes its class, and the methods of folds."""
    original = Shipped(task.logits(task.weight, on=task.shown), None)
    if task.held_out is not None:
        before, first = _passed(task, outcome, original)
        scores, second = _passed(task, outcome, after)
        return "held-out", before, scores, _share(first != second, before), []
    changed = 0.0
    if not outcome.keeps_predictions:
        different = original.logits.predictions() != after.logits.predictions(after.fitted)
        changed = _share(different, outcome.before)
    _give_back(original.logits, task)
    # no fold could differ from another: nothing to cross-fit
    if outcome.unchanged:
        return "unchanged", outcome.before, outcome.before, changed, []
    chosen = strategy.chosen_in_folds(outcome)
    return "cross-fitted", outcome.before, strategy.cross_fitted(outcome, progress, chosen), changed, chosen


def _share(different: NDArray[np.bool_], scores: SampleScores) -> float:
    return weighted_mean(different, scores.weights) if different.size else 0.0


def _passed(task: Task, outcome: Outcome, shipped: Shipped) -> tuple[SampleScores, NDArray[np.int64]]:
    """Check and score the held-out samples under one head, and return what it predicts, where that may change."""
    _require_finite(task, shipped.logits, task.shown)
    scores = shipped.logits.mapped_scores(shipped.fitted)
    predicted = np.zeros(0, np.int64)
    if not outcome.keeps_predictions:
        predicted = shipped.logits.predictions(shipped.fitted)
    _give_back(shipped.logits, task)
    return scores, predicted


def _give_back(logits: Logits, task: Task) -> None:
    """Give large logits back, once they have served the comparison."""
    if len(logits) * task.readout.n_classes > _LARGE:
        logits.forget()


def _require_finite(task: Task, logits: Logits, samples: Collected) -> None:
    """Refuse logits that the file cannot give as finite numbers: a NaN would miss no gate.

    Raises:
        DataError: such a sample.
    """
    # features are widened to float32 here; a float16 file overflows earlier
    largest = float(np.finfo(np.float16).max) if task.readout.logits_type == "float16" else np.inf
    done = 0
    for values, labels, _ in logits.chunks():
        xp = array_api_compat.array_namespace(values)
        # of a NaN, no comparison holds; infinite is more than any bound
        sizes = to_host(xp.max(xp.abs(values), axis=1))
        bad = ~(sizes <= largest) | ~np.isfinite(sizes)
        if bad.any():
            raise DataError(
                f"{samples.source.describe()}: logits '{task.readout.logits}' of sample "
                f"{done + int(np.flatnonzero(bad)[0])} hold NaN or infinite values"
            )
        done += len(labels)
