"""Which class was taken for which: counts of labels and predictions that add up over chunks of samples.

For class c with N samples in all, n_c of them with label c, m_c predicted as c and r_c both:

    recall = r_c / n_c     precision = r_c / m_c     accuracy = (N - n_c - m_c + 2 r_c) / N

The accuracy is that of the question "class c or not".
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ClassCounts"]


@dataclass(frozen=True, eq=False)
class ClassCounts:
    """Counts of N samples of C classes.

    Attributes:
        predicted: (C,) samples that each class was predicted for.
        right: (C,) of these, samples whose label it is.
        errors: (label, prediction) -> samples, where the two differ. A matrix of all pairs would not fit many classes.
    """

    predicted: NDArray[np.int64]
    right: NDArray[np.int64]
    errors: Counter[tuple[int, int]]

    @classmethod
    def of(cls, predicted: NDArray[Any], labels: NDArray[np.int64], classes: int) -> ClassCounts:
        """Count (N,) predictions against (N,) labels."""
        wrong = predicted != labels
        pairs, counts = np.unique(labels[wrong] * classes + predicted[wrong], return_counts=True)
        errors = Counter({divmod(int(pair), classes): int(n) for pair, n in zip(pairs, counts, strict=True)})
        return cls(np.bincount(predicted, minlength=classes), np.bincount(labels[~wrong], minlength=classes), errors)

    def __add__(self, other: ClassCounts) -> ClassCounts:
        return ClassCounts(self.predicted + other.predicted, self.right + other.right, self.errors + other.errors)

    def confused(self, most: int) -> dict[int, list[tuple[int, int]]]:
        """Return what each label is most often taken for: label -> (prediction, samples), most samples first."""
        listed: dict[int, list[tuple[int, int]]] = {}
        # ties in the order of the classes, whatever the order of the chunks
        for (label, predicted), n in sorted(self.errors.items(), key=lambda item: (-item[1], item[0])):
            row = listed.setdefault(label, [])
            if len(row) < most:
                row.append((predicted, n))
        return listed
