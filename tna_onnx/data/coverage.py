"""Classes that labels do not cover: without a sample, or with few.

A map with numbers of its own for each class learns from such labels that a class without samples never comes. Where
classes are missing by chance, others were nearly missed: of K classes that come equally often, with lambda samples each
on average, K e^-lambda have none and lambda K e^-lambda have one. Cross-validation sees what that costs, as samples of
a fold belong to classes that the other folds lack. Where many more have none than one, they were left out of the data,
and nothing in the data can tell what that costs. Good (1953) estimates the share of what was not seen in the same way,
from what was seen once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tna_onnx.data.source import IntArray

__all__ = ["FEW", "Coverage", "marks_text"]

FEW = 5
"""A class with fewer samples is named."""

# So many times as many classes have no sample as have one: left out, not missed by chance. A hundredth of the classes
# at least, as counts of two or three classes tell little, and little depends on them.
_LEFT_OUT = 2
_SHARE = 0.01

_MAX_NAMES = 8


@dataclass(frozen=True)
class Coverage:
    """How labels cover C classes.

    Attributes:
        classes: number of classes C.
        unseen: classes without a sample.
        scarce: classes with fewer than `FEW` samples, but with one at least.
        left_out: whether classes are missing that sampling alone would not miss.
    """

    classes: int
    unseen: tuple[int, ...]
    scarce: tuple[int, ...]
    left_out: bool

    @classmethod
    def of(cls, labels: IntArray, n_classes: int) -> Coverage:
        """Count labels (N,) in [0, C).

        >>> Coverage.of(np.array([0, 0, 1, 1, 1, 1, 1]), 3)
        Coverage(classes=3, unseen=(2,), scarce=(0,), left_out=True)
        """
        counts = np.bincount(labels, minlength=n_classes)
        unseen = np.flatnonzero(counts == 0)
        scarce = np.flatnonzero((counts > 0) & (counts < FEW))
        missed = _LEFT_OUT * int(np.count_nonzero(counts == 1))
        left_out = len(unseen) > max(missed, _SHARE * n_classes)
        return cls(n_classes, tuple(unseen.tolist()), tuple(scarce.tolist()), left_out)

    def text(self, what: str, class_names: Sequence[str] | None = None) -> str:
        """Say which classes lack samples, in one sentence; empty if none do.

        Args:
            what: the data, as in `the calibration data`.
            class_names: in the order of the model's output, if known.

        >>> Coverage.of(np.array([0] * 9), 2).text("the calibration data", ["cat", "dog"])
        'the calibration data have no sample of 1 of 2 classes (dog)'
        """
        parts = []
        if self.unseen:
            parts.append(f"no sample of {self._listed(self.unseen, class_names)}")
        if self.scarce:
            parts.append(f"fewer than {FEW} of {self._listed(self.scarce, class_names)}")
        if not parts:
            return ""
        return f"{what} have {' and '.join(parts)}"

    def _listed(self, classes: tuple[int, ...], names: Sequence[str] | None) -> str:
        return f"{len(classes):,} of {self.classes:,} classes ({_named(classes, names)})"


def marks_text(marks: IntArray, what: str, names: Sequence[str] | None = None) -> str:
    """Say which of C labels hold for no sample, or nearly none, or for nearly all; empty if none do.

    Args:
        marks: (N, C) of 0 and 1.
        what: the data, as in `the calibration data`.
        names: of the labels, if known.

    >>> marks_text(np.array([[1, 0]] * 5 + [[0, 0]] * 5), "the data", ["cat", "dog"])
    'the data have no sample with 1 of 2 labels (dog)'
    """
    held = marks.sum(axis=0)
    parts = []
    for count, word in ((held, "with"), (len(marks) - held, "without")):
        none = np.flatnonzero(count == 0)
        few = np.flatnonzero((count > 0) & (count < FEW))
        for found, how in ((none, "no sample"), (few, f"fewer than {FEW} samples")):
            if len(found):
                listed = _named(tuple(found.tolist()), names)
                parts.append(f"{how} {word} {len(found):,} of {len(held):,} labels ({listed})")
    if not parts:
        return ""
    return f"{what} have {' and '.join(parts)}"


def _named(classes: tuple[int, ...], names: Sequence[str] | None) -> str:
    """List classes by name, or by number."""
    listed = [str(c) for c in classes[:_MAX_NAMES]]
    if names:
        listed = [names[c] for c in classes[:_MAX_NAMES]]
    if len(classes) > _MAX_NAMES:
        listed.append(f"{len(classes) - _MAX_NAMES:,} more")
    return ", ".join(listed)
