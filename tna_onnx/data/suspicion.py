"""Labels that disagree with the model's predictions although nothing fails.

H[y, k] counts samples of y that are predicted as k.

- Near chance: accuracy is below chance + max(0.05 (1 - chance), 2 standard errors). One class: 90 % of the predictions,
  too, are one frequent class. Neither is said where one class dominates and the probabilities rank.
- Another order: the permutation p that maximises sum_c H[c, p(c)] on one half gains 5 points on the other, and 2.67
  standard errors of the paired difference (2.33 times the root of 1 + 1/pi, for classes taken for one another).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tna_onnx.data.options import Data
from tna_onnx.data.source import AnyArray, IntArray
from tna_onnx.errors import DataError
from tna_onnx.numerics.outliers import area_under

_NEAR = 0.05  # of the way from chance to 1: a 10-class model below 14.5 %, a 1,000-class model below 5.1 %
# Another order must be better by both. The first leaves out what is not worth a warning. With the second, 0 to 1.2 %
# of data sets were reported where no order is better (2 to 50 classes, 60 to 1,000 samples), and 2 of 27,000 where the
# accuracy was 60 to 95 %; and 98 % of those with two of ten classes swapped (100 samples, an accuracy of 85 %).
_MIN_GAIN = 0.05
_NORMAL = 2.33
_MIN_ERRORS = _NORMAL * math.sqrt(1 + 1 / math.pi)
_DOMINATES = 2 / 3  # of the labels, or of the predictions
_ONE_CLASS = 0.9  # of all predictions
_MAX_CLASSES = 4096  # above, the assignment takes minutes and the matrix more than 130 MB
_MAX_EXAMPLES = 3


@dataclass(frozen=True)
class Confusion:
    """Of the `total` samples labelled `label`, `count` are predicted as `predicted`, more than as any other class."""

    label: int
    predicted: int
    count: int
    total: int


@dataclass(frozen=True)
class Suspicion:
    """Why the labels may be wrong."""

    # "chance", the labels have next to nothing to do with the predictions; "one class", nor could they, as the model
    # predicts one class nearly always; or "order", another order of the classes fits much better
    kind: Literal["chance", "one class", "order"]
    accuracy: float  # share of samples predicted as labelled
    chance: float  # what labels and predictions would give if they were independent
    # accuracy after the permutation, on samples that it was not found on; None if no order is better
    reordered: float | None
    confusions: tuple[Confusion, ...]  # the most frequent wrong predictions of a class, largest share first

    def text(self, class_names: Sequence[str] | None = None) -> str:
        """Describe the suspicion, where it shows and what to check, in one sentence or two."""
        observation = f"accuracy is {100 * self.accuracy:.1f} %"
        if self.kind == "one class":
            observation += ", what the model's most frequent prediction gives by itself"
            advice = "if the model should predict other classes more often, check the preprocessing and the labels"
        elif self.reordered is None:
            observation += f", near chance ({100 * self.chance:.1f} %)"
            advice = (
                "check the labels, the order of the classes, and that samples are what the model was trained on "
                "(images: scale, normalisation and order of the channels; tables: order and scaling of the columns; "
                "text: the tokenizer)"
            )
        else:
            observation += f", but {100 * self.reordered:.1f} % with the classes in another order"
            advice = (
                "the labels seem to follow another order than the model's output; give the model's class names in "
                "its order (--classes FILE), or correct the indices"
            )

        def name(index: int) -> str:
            if not class_names:
                return str(index)
            return f"{index} ({class_names[index]})"

        examples = [
            f"{c.count:,} of {c.total:,} samples labelled {name(c.label)} are predicted as {name(c.predicted)}"
            for c in self.confusions
        ]
        return f"{'; '.join([observation, *examples])}: {advice}"


def label_suspicion(
    predicted: IntArray, labels: IntArray, n_classes: int, confidence: Callable[[], AnyArray] | None = None
) -> Suspicion | None:
    """Return why the labels look wrong; None if they look right.

    `predicted`: predicted classes (N,) int, in [0, C); `labels`: class indices (N,), likewise. `confidence`: gives the
    probabilities (N,) of the predicted classes, where these are known; it is called where predictions alone look wrong.

    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(0, 10, 1000)
    >>> label_suspicion(labels, labels, 10) is None
    True
    >>> label_suspicion((labels + 1) % 10, labels, 10).reordered
    1.0
    """
    if not len(labels):
        raise ValueError("no samples")
    suspicion = _suspicion(predicted, labels, n_classes)
    if suspicion is not None and confidence is not None and _rank_well(predicted, labels, confidence()):
        return None
    return suspicion


def checked_labels(
    data: Data,
    predicted: AnyArray,
    labels: IntArray,
    names: Sequence[str] | None,
    n_classes: int,
    confidence: Callable[[], AnyArray] | None = None,
) -> Suspicion | None:
    """Return why labels look wrong when compared with the model's predictions; None if they look right.

    `predicted`: predicted classes (N,). `confidence`: of `label_suspicion`.
    """
    suspicion = None
    warning = ""
    if labels.ndim == 1:  # of several labels, each holds or does not: there is no order of classes
        suspicion = label_suspicion(predicted.astype(np.int64), labels, n_classes, confidence)
    if suspicion is not None:
        warning = suspicion.text(names)
    data.check_accuracy(float(np.mean(predicted == labels)), len(labels), warning)
    return suspicion


def _rank_well(predicted: IntArray, labels: IntArray, confidence: AnyArray) -> bool:
    """Whether one class dominates, and probabilities rank samples better than chance all the same."""
    classes, counts = np.unique(labels, return_counts=True)
    usual, predictions = np.unique(predicted, return_counts=True)
    dominant = classes[counts.argmax()]
    if predictions.max() > counts.max():
        dominant = usual[predictions.argmax()]
    if max(counts.max(), predictions.max()) < _DOMINATES * len(labels) or dominant not in classes:
        return False
    for c, count in zip(classes.tolist(), counts.tolist(), strict=True):
        if count == len(labels):
            return False
        scores = np.where(predicted == c, confidence, 1 - confidence)
        area = area_under(scores[labels != c], scores[labels == c])
        margin = 0.0
        if c == dominant:
            margin = _NORMAL * math.sqrt((len(labels) + 1) / (12 * count * (len(labels) - count)))
        if not area - 0.5 > margin:
            return False
    return True


def _suspicion(predicted: IntArray, labels: IntArray, n_classes: int) -> Suspicion | None:
    """Return what predictions alone say."""
    hits = _confusion(predicted, labels, n_classes)
    n_samples = int(hits.sum())
    accuracy = float(np.trace(hits)) / n_samples
    # In float64: the sum of products goes up to N^2, which leaves int64 from 3e9 samples on.
    chance = float(hits.sum(axis=0, dtype=np.float64) @ hits.sum(axis=1, dtype=np.float64)) / n_samples**2
    # The order goes first: where the classes are only in another order, the accuracy is near chance too.
    reordered = _reordered(predicted, labels, n_classes)
    if reordered is not None:
        return Suspicion("order", accuracy, chance, reordered, _confusions(hits))
    # The second term keeps small data sets from a warning that is noise.
    margin = max(_NEAR * (1 - chance), 2 * math.sqrt(chance * (1 - chance) / n_samples))
    if accuracy >= chance + margin:
        return None
    kind: Literal["chance", "one class"] = "chance"
    usual = int(hits.sum(axis=0).argmax())
    # a model that says one class of samples of many is fed with something else than it was trained on
    if hits[:, usual].sum() >= _ONE_CLASS * n_samples and hits[usual].sum() >= n_samples / 2:
        kind = "one class"
    return Suspicion(kind, accuracy, chance, None, _confusions(hits))


def warnings_of(suspicion: Suspicion | None, class_names: Sequence[str] | None) -> tuple[str, ...]:
    """Return a suspicion as a list of report notes; empty without one."""
    if suspicion is None:
        return ()
    return (suspicion.text(class_names),)


def checked_warnings(
    suspicion: Suspicion | None, class_names: Sequence[str] | None, where: str, *, trusted: bool
) -> tuple[str, ...]:
    """Return the suspicion as report notes, if it does not discredit the labels or the user trusts them."""
    warnings = warnings_of(suspicion, class_names)
    # that the model says one class nearly always speaks against the model
    if suspicion is not None and suspicion.kind != "one class" and not trusted:
        raise DataError(f"{where}: {warnings[0]}; --trust-labels writes the model regardless")
    return warnings


def _confusion(predicted: IntArray, labels: IntArray, n_classes: int) -> IntArray:
    """Return H (C, C); with very many classes, only those that occur, which leaves trace and sums unchanged."""
    if n_classes > _MAX_CLASSES:
        present, at = np.unique(np.concatenate([labels, predicted]), return_inverse=True)
        n_classes = len(present)
        predicted = at[len(labels) :]
        labels = at[: len(labels)]
    flat = np.bincount(labels * n_classes + predicted, minlength=n_classes**2)
    return flat.reshape(n_classes, n_classes).astype(np.int64)


def _reordered(predicted: IntArray, labels: IntArray, n_classes: int) -> float | None:
    """Return the accuracy of the best permutation on samples it was not fitted on; None if not clearly better."""
    if n_classes > _MAX_CLASSES:
        return None
    # every other sample: data are often sorted by class
    halves = [_confusion(predicted[half::2], labels[half::2], n_classes) for half in (0, 1)]
    # no order has more right than the largest of each row, or of each column: that mostly spares the assignment
    bound = sum(min(int(hits.max(axis=1).sum()), int(hits.max(axis=0).sum())) for hits in halves)
    if bound - np.count_nonzero(labels == predicted) < _MIN_GAIN * len(labels):
        return None
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 - heavy

    mapped = np.empty_like(labels)
    for half, hits in enumerate(halves):
        _, permutation = linear_sum_assignment(hits, maximize=True)
        mapped[1 - half :: 2] = permutation[labels[1 - half :: 2]]
    # A paired comparison: samples that both orders get right, or both wrong, say nothing. The standard error of
    # better - worse is sqrt(better + worse).
    better = int(np.count_nonzero((mapped == predicted) & (labels != predicted)))
    worse = int(np.count_nonzero((mapped != predicted) & (labels == predicted)))
    gain = (better - worse) / len(labels)
    if gain >= _MIN_GAIN and better - worse >= _MIN_ERRORS * math.sqrt(better + worse):
        return float(np.mean(mapped == predicted))
    return None


def _confusions(hits: AnyArray) -> tuple[Confusion, ...]:
    """Return the most frequent wrong predictions: for each label its most frequent class, the largest shares first."""
    totals = hits.sum(axis=1)
    predicted = hits.argmax(axis=1)
    counts = hits[np.arange(len(hits)), predicted]
    wrong = [label for label in np.flatnonzero(counts).tolist() if predicted[label] != label and totals[label] > 1]
    # A share of few samples tells less: 1 - 1/n takes 2 of 2 below 99 of 100.
    wrong.sort(key=lambda label: (-counts[label] / totals[label] * (1 - 1 / totals[label]), label))
    return tuple(Confusion(at, int(predicted[at]), int(counts[at]), int(totals[at])) for at in wrong[:_MAX_EXAMPLES])
