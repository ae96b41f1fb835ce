"""Samples without labels: every source reads them when it is given `NO_LABELS` as labels that are stored apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["NO_LABELS", "classes_text"]

NO_LABELS: npt.NDArray[Any] = np.zeros(0, np.int64)
"""Stands for labels, and is told by its identity: labels that the samples bring are not read, each sample has -1."""
NO_LABELS.flags.writeable = False


def classes_text(labels: npt.NDArray[np.int64]) -> str:
    """Write for reports how many classes samples have.

    >>> classes_text(np.array([0, 4, 4])), classes_text(np.array([-1, -1]))
    ('2 classes', 'without labels')
    """
    if len(labels) and labels[0] < 0:
        return "without labels"
    return f"{len(np.unique(labels)):,} classes"
