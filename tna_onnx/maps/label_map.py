"""What the maps of several labels a sample share: each label is a problem of two classes, with the logits (0, s).

A label's own fit needs samples of both sides. Where there are fewer than `FEW` of one, or the fit fails, the label has
the temperature that all labels share: it says nothing on how often a label holds, which such data cannot tell.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError
from tna_onnx.maps.base import Reduce
from tna_onnx.numerics.ops import to_host
from tna_onnx.numerics.scores import as_two_classes

__all__ = ["FEW", "LabelColumns", "brief_of", "in_two_classes"]

FEW = 5
"""Samples with the label, or without it, below which it has no fit of its own."""

_Fit = TypeVar("_Fit")

# Numbers of labels that `brief` lists.
_MAX_LISTED = 20


def in_two_classes(reduce: Reduce) -> Reduce:
    """Return the reduction in which the labels of a sample are samples of two classes; others are as they were."""

    def reduced(of: Any, *aligned: NDArray[Any]) -> Any:
        return reduce(functools.partial(_paired, of), *aligned)

    return reduced


def _paired(of: Any, logits: Any, labels: NDArray[np.int64], *others: Any) -> Any:
    return of(*as_two_classes(logits, labels), *others)


@dataclass(frozen=True, eq=False)
class LabelColumns:
    """Logits and labels of all samples, (N, C) each; `+` joins."""

    logits: NDArray[Any]
    labels: NDArray[np.int64]

    @classmethod
    def of(cls, reduce: Reduce) -> LabelColumns:
        """Gather them: every label is fitted with many passes over its own.

        Raises:
            DataError: the labels are one class a sample.
        """
        columns: LabelColumns = reduce(_gathered)
        if columns.labels.ndim == 1:
            raise DataError("this map is for models with several labels a sample, and these labels are one class each")
        return columns

    def __add__(self, other: LabelColumns) -> LabelColumns:
        return LabelColumns(np.concatenate([self.logits, other.logits]), np.concatenate([self.labels, other.labels]))

    def scarce(self, few: int = FEW) -> NDArray[np.bool_]:
        """Return which labels, (C,), have fewer samples than `few` on one side."""
        held = self.labels.sum(axis=0)
        scarce: NDArray[np.bool_] = np.minimum(held, len(self.labels) - held) < few
        return scarce

    def reduce(self, c: int) -> Reduce:
        """Return the reduction over label c, of two classes; `aligned` arrays are not cut."""
        column = self.logits[:, c]
        pair = np.stack([np.zeros_like(column), column], axis=1)
        labels = self.labels[:, c]
        return lambda of, *aligned: of(pair, labels, None, *aligned)

    def fits(self, fit: Callable[[Reduce], _Fit], together: _Fit, few: int = FEW) -> tuple[list[_Fit], tuple[int, ...]]:
        """Return the fit of each label, and the labels that have `together` in its place: the shared temperature."""
        own = {c: self._fit(fit, c) for c in np.flatnonzero(~self.scarce(few)).tolist()}
        labels = range(self.labels.shape[1])
        return [own.get(c) or together for c in labels], tuple(c for c in labels if own.get(c) is None)

    def _fit(self, fit: Callable[[Reduce], _Fit], c: int) -> _Fit | None:
        try:
            return fit(self.reduce(c))
        # a label that the model knows nothing of, or everything
        except DataError:
            return None


def _gathered(logits: Any, labels: NDArray[np.int64], *_: Any) -> LabelColumns:
    return LabelColumns(to_host(logits), labels)


def brief_of(shared: Sequence[int], **values: Sequence[float]) -> dict[str, Any]:
    """Return parameters by label, and which labels share a temperature; of many labels their range, or their number."""
    brief: dict[str, Any] = {}
    for name, numbers in values.items():
        if len(numbers) > _MAX_LISTED:
            brief[f"{name}_range"] = [min(numbers), max(numbers)]
        else:
            brief[name] = list(numbers)
    if len(shared) > _MAX_LISTED:
        brief["labels_shared"] = len(shared)
    elif shared:
        brief["labels_shared"] = list(shared)
    return brief
