"""Reliability diagrams of each class: its probability over all samples against how often it is the label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.engine.logits import Logits
from tna_onnx.maps.base import CalibrationMap, apply_map
from tna_onnx.numerics.ops import softmax
from tna_onnx.numerics.reliability import Bins, bin_of
from tna_onnx.results.details import ClassBins

__all__ = ["ClassSums", "class_bins", "class_sums"]

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
class _MappedSums:
    """(logits, labels, features) of a chunk -> its `ClassSums` after a map."""

    fitted: CalibrationMap | None
    bins: int

    def __call__(self, logits: Any, labels: Any, features: Any) -> ClassSums:
        return class_sums(apply_map(self.fitted, logits, features), labels, self.bins)


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
    sums = [_sums(logits, fitted, bins) for logits, fitted in (before, after)]
    samples = sums[0].label.sum(axis=1)
    return tuple(ClassBins(name, int(samples[c]), *(each.bins(c) for each in sums)) for c, name in enumerate(names))


def _sums(logits: Logits, fitted: CalibrationMap | None, bins: int) -> ClassSums:
    features = fitted is not None and fitted.needs_features
    sums: ClassSums = logits.reduce(features=features)(_MappedSums(fitted, bins))
    return sums
