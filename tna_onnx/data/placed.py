"""Labels by position: a class for each token of a text, or each pixel of an image; checked, or refused with the reason.

Where there is no label, data hold `Several.ignore_label`, and checked labels -1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tna_onnx.data.digest import row_digests
from tna_onnx.data.indices import check_integral, check_range
from tna_onnx.data.labels import label_indices
from tna_onnx.data.words import IGNORED, Position
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tna_onnx.data.source import AnyArray, IntArray

__all__ = ["Several", "placed_labels", "refuse_copies"]

_COMPARED = 1000  # samples of which labels and inputs are compared


@dataclass(frozen=True)
class Several:
    """What a model with several predictions a sample wants of its labels.

    Attributes:
        ignore_label: stands for no label.
        position: `all` labelled positions, or the `last` one of each sample.
        n_features: length of the features that are kept for a position; 0 if nothing is kept.
    """

    ignore_label: int = IGNORED
    position: Position = "all"
    n_features: int = 0


def placed_labels(
    values: AnyArray, n_samples: int, n_classes: int, where: str, several: Several, names: Sequence[str] | None
) -> tuple[IntArray, IntArray | None]:
    """Return what tells the labels of two samples apart, (N,), and the labels by position, (N, P...), -1 for none.

    At the last position, labels may be one a sample: they are returned as they are, and None.

    Raises:
        DataError: see `_checked` and `label_indices`.
    """
    values = np.asarray(values)
    if several.position == "last" and values.ndim == 1:
        return label_indices(values, n_samples, n_classes, where, names), None
    placed = _checked(values, n_samples, n_classes, where, several.ignore_label)
    return row_digests({"labels": placed}).view(np.int64), placed


def refuse_copies(placed: IntArray, columns: Mapping[str, Any], where: str) -> None:
    """Refuse labels that are what the model reads at the same position: of a language model they come one later.

    Raises:
        DataError: they are equal to an input.
    """
    rows = np.arange(min(len(placed), _COMPARED))
    there = placed[rows] != -1
    for name, column in columns.items():
        if column.dtype.kind not in "iu" or tuple(column.shape) != placed.shape or not there.any():
            continue
        if np.array_equal(column[rows][there], placed[rows][there]):
            raise DataError(
                f"{where}: every label is the value of {name!r} at its own position; for a language model give the "
                "next one, labels[:, t] = input_ids[:, t + 1], and -100 at the last position"
            )


def _checked(labels: AnyArray, n_samples: int, n_classes: int, where: str, ignore_label: int) -> IntArray:
    """Return labels by position as class indices, a new int64 array (N, P...) with -1 where there is none.

    Args:
        labels: integers, or floats without a fraction, of shape (N, P...).
        n_samples: as in `check_labels`.
        n_classes: likewise.
        where: likewise.
        ignore_label: stands where there is no label.

    Raises:
        DataError: as `check_labels`, of the labels that are there.

    >>> _checked(np.array([[2, -100], [0, 1]]), 2, 3, "labels", -100).tolist()
    [[2, -1], [0, 1]]
    """
    if labels.ndim < 2:
        raise DataError(
            f"{where}: the model gives several predictions a sample; expected a label for each position, shape (N, P), "
            f"found shape {labels.shape}; labels of the last position alone are for --position last"
        )
    if len(labels) != n_samples:
        raise DataError(f"{where}: {len(labels)} rows of labels for {n_samples} samples; give one row per sample")
    there = labels != ignore_label
    flat = labels[there]
    if not flat.size:
        raise DataError(f'{where}: every label is {ignore_label}, which means "no label"; see --ignore-label')
    check_integral(flat, where)
    outside = np.unique(flat[(flat < 0) | (flat >= n_classes)])
    if outside.size == 1 and outside[0] != n_classes:  # labels may start at 1
        raise DataError(
            f"{where}: the model has {n_classes} classes, and some labels are {outside[0]:g}; if that stands for "
            f"no label, add --ignore-label {outside[0]:g} (now {ignore_label})"
        )
    check_range(flat, n_classes, where)
    if np.all(flat == flat[0]):
        raise DataError(
            f"{where}: every label is {flat[0]}; at least two different classes are needed: "
            "draw the samples from all classes"
        )
    return np.where(there, labels, -1).astype(np.int64)
