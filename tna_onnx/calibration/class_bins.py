"""Each class in one pass: its probability over all samples against how often it is the label, and its predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.engine.logits import Logits
from tna_onnx.maps.base import CalibrationMap, apply_map
from tna_onnx.numerics.class_counts import ClassCounts
from tna_onnx.numerics.ops import softmax
from tna_onnx.numerics.reliability import Bins, bin_of
from tna_onnx.numerics.stats import SampleScores
from tna_onnx.results.details import ClassBins, ClassResult, Confusion

__all__ = ["ClassSums", "MappedLogits", "class_bins", "class_sums", "label_bins"]

# Classes that a row names beside the one that they are taken for.
_MAX_CONFUSED = 3

MappedLogits = tuple[Logits, CalibrationMap | None]
"""Logits, and the map behind them."""


@dataclass(frozen=True, eq=False)
class ClassSums:
    """Per class and bin, (C, B): probabilities that fell there, their sum, and how often the class was the label."""

    count: NDArray[Any]
    probability: NDArray[Any]
    label: NDArray[Any]

    def __add__(self, other: ClassSums) -> ClassSums:
        return ClassSums(self.count + other.count, self.probability + other.probability, self.label + other.label)

    def bins(self, c: int) -> Bins:
        """Return the diagram of class c."""
        return Bins.of_sums(self.count[c], self.probability[c], self.label[c])


@dataclass(frozen=True, eq=False)
class _Sums:
    """What one pass over the samples adds up."""

    bins: ClassSums
    counts: ClassCounts

    def __add__(self, other: _Sums) -> _Sums:
        return _Sums(self.bins + other.bins, self.counts + other.counts)

    def result(self, c: int, names: tuple[str, ...], confused: list[tuple[int, int]]) -> ClassResult:
        """Return the predictions of class c; `confused` is what it is taken for."""
        named = tuple(Confusion(names[predicted], n) for predicted, n in confused)
        return ClassResult(int(self.counts.predicted[c]), int(self.counts.right[c]), named)


@dataclass(frozen=True, eq=False)
class _MappedSums:
    """(logits, labels, features) of a chunk -> its `_Sums` after a map."""

    fitted: CalibrationMap | None
    bins: int

    def __call__(self, logits: Any, labels: Any, features: Any) -> _Sums:
        mapped = apply_map(self.fitted, logits, features)
        counts = ClassCounts.of(np.argmax(mapped, axis=1), labels, mapped.shape[1])
        return _Sums(class_sums(mapped, labels, self.bins), counts)


def class_sums(logits: NDArray[Any], labels: NDArray[np.int64], bins: int) -> ClassSums:
    """Sum up (N, C) logits and (N,) labels per class and bin of its probability."""
    p = softmax(logits.astype(np.float64))
    shape = (logits.shape[1], bins)
    # class and bin in one index: one count for all classes
    index = np.arange(shape[0]) * bins + bin_of(p, bins)
    own = index[np.arange(len(labels)), labels]
    sums = (np.bincount(index.ravel()), np.bincount(index.ravel(), p.ravel()), np.bincount(own))
    # bincount ends at the last bin that holds something
    return ClassSums(*(np.pad(each, (0, shape[0] * bins - len(each))).reshape(shape) for each in sums))


def class_bins(names: tuple[str, ...], before: MappedLogits, after: MappedLogits, bins: int) -> tuple[ClassBins, ...]:
    """Return the diagrams of all classes before and after.

    Args:
        names: of the classes.
        before: logits and map of the input.
        after: logits and map of the result, of the same samples.
        bins: of each diagram.
    """
    old = _sums(*before, bins)
    new = _sums(*after, bins)
    confused_old = old.counts.confused(_MAX_CONFUSED)
    confused_new = new.counts.confused(_MAX_CONFUSED)
    samples = old.bins.label.sum(axis=1)
    return tuple(
        ClassBins(
            name,
            int(samples[c]),
            old.bins.bins(c),
            new.bins.bins(c),
            old.result(c, names, confused_old.get(c, [])),
            new.result(c, names, confused_new.get(c, [])),
        )
        for c, name in enumerate(names)
    )


def label_bins(names: tuple[str, ...], before: SampleScores, after: SampleScores, bins: int) -> tuple[ClassBins, ...]:
    """Return the diagrams of all labels of samples that have several.

    Args:
        names: of the labels.
        before: scores of the input.
        after: scores of the result, of the same samples.
        bins: of each diagram.
    """
    sides = zip(before.by_label(), after.by_label(), _results(before), _results(after), strict=True)
    return tuple(
        ClassBins(
            name,
            int(one.hit.sum()),
            Bins.of(one.confidence, one.hit, bins),
            Bins.of(two.confidence, two.hit, bins),
            first,
            second,
        )
        for name, (one, two, first, second) in zip(names, sides, strict=True)
    )


def _results(scores: SampleScores) -> list[ClassResult]:
    """Return how often each label is predicted, and holds where it is; labels are not taken for one another."""
    assert scores.predicted is not None  # noqa: S101 - of several labels
    predicted = scores.predicted.sum(axis=0).tolist()
    right = (scores.predicted & scores.hit).sum(axis=0).tolist()
    return [ClassResult(p, r, ()) for p, r in zip(predicted, right, strict=True)]


def _sums(logits: Logits, fitted: CalibrationMap | None, bins: int) -> _Sums:
    features = fitted is not None and fitted.needs_features
    sums: _Sums = logits.reduce(features=features)(_MappedSums(fitted, bins))
    return sums
