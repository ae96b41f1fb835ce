"""How labels cover the classes.

If classes are missing by chance, others are almost missing: of K equally frequent classes with lambda samples each, K
e^-lambda have none and lambda K e^-lambda one. If many more have none, they were left out (Good 1953).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tna_onnx.data.source import IntArray

FEW = 5
"""A class with fewer samples is named."""

# So many times as many classes have no sample as have one: left out, not missed by chance. A hundredth of the classes
# at least, as counts of two or three classes tell little, and little depends on them.
_LEFT_OUT = 2
_SHARE = 0.01

_MAX_NAMES = 8


@dataclass(frozen=True)
class Coverage:
    """How labels cover C classes."""

    classes: int  # number of classes C
    unseen: tuple[int, ...]  # classes without a sample
    scarce: tuple[int, ...]  # classes with fewer than `FEW` samples, but with one at least
    left_out: bool  # whether classes are missing that sampling alone would not miss

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

    def text(self, subject: str, class_names: Sequence[str] | None = None) -> str:
        """Name the classes that lack samples, in one sentence; empty if none do.

        >>> Coverage.of(np.array([0] * 9), 2).text("the calibration data", ["cat", "dog"])
        'the calibration data have no sample of 1 of 2 classes (dog)'
        """
        parts = []
        if self.unseen:
            parts.append(f"no sample of {self._listed(self.unseen, class_names)}")
        if self.scarce:
            parts.append(f"fewer than {FEW} samples of {self._listed(self.scarce, class_names)}")
        if not parts:
            return ""
        return f"{subject} have {' and '.join(parts)}"

    def _listed(self, classes: tuple[int, ...], names: Sequence[str] | None) -> str:
        return f"{len(classes):,} of {self.classes:,} classes ({_named(classes, names)})"


def label_coverage_text(marks: IntArray, subject: str, names: Sequence[str] | None = None) -> str:
    """Name the labels that hold for no sample, for few, or for nearly all, in one sentence; empty if there are none.

    `marks`: (N, C) of 0 and 1.

    >>> label_coverage_text(np.array([[1, 0]] * 5 + [[0, 0]] * 5), "the data", ["cat", "dog"])
    'the data have no sample with 1 of 2 labels (dog)'
    """
    positives = marks.sum(axis=0)
    parts = []
    for count, word in ((positives, "with"), (len(marks) - positives, "without")):
        none = np.flatnonzero(count == 0)
        rare = np.flatnonzero((count > 0) & (count < FEW))
        for group, how in ((none, "no sample"), (rare, f"fewer than {FEW} samples")):
            if len(group):
                listed = _named(tuple(group.tolist()), names)
                parts.append(f"{how} {word} {len(group):,} of {len(positives):,} labels ({listed})")
    if not parts:
        return ""
    return f"{subject} have {' and '.join(parts)}"


def _named(classes: tuple[int, ...], names: Sequence[str] | None) -> str:
    """List classes by name, or by number."""
    listed = [str(c) for c in classes[:_MAX_NAMES]]
    if names:
        listed = [names[c] for c in classes[:_MAX_NAMES]]
    if len(classes) > _MAX_NAMES:
        listed.append(f"{len(classes) - _MAX_NAMES:,} more")
    return ", ".join(listed)
