"""Multi-label samples: each has C labels, of which any number hold, as an array (N, C) of 0 and 1 (`LabelSource`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tna_onnx.data.digest import row_digests
from tna_onnx.data.foreign import repeated
from tna_onnx.data.labels import listed
from tna_onnx.data.source import IntArray, Source, SourceView
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tna_onnx.data.options import Request
    from tna_onnx.data.source import AnyArray


def marked_labels(values: AnyArray, n_samples: int, n_labels: int, where: str) -> tuple[IntArray, IntArray]:
    """Return a group number per sample, (N,), equal for equal labels, and the labels, (N, C) of 0 and 1, int64.

    `values`: truth values or numbers 0 and 1, (N, C), or lists of them.

    >>> marked_labels(np.array([[True, False], [False, False]]), 2, 2, "labels")[1].tolist()
    [[1, 0], [0, 0]]
    """
    stored = _two_axes(np.asarray(values), n_labels, where)
    if stored.shape != (n_samples, n_labels):
        raise DataError(
            f"{where}: expected shape ({n_samples}, {n_labels}), one row a sample and one column a label of the "
            f"model's output, found {stored.shape}"
        )
    _check_values(stored, where)
    marks = stored.astype(np.int64)
    if n_samples and marks.all() == marks.any():
        raise DataError(f"{where}: every label of every sample is {marks.flat[0]}; give samples of both kinds")
    return row_digests({"labels": marks}).view(np.int64), marks


def _two_axes(values: AnyArray, n_labels: int, where: str) -> AnyArray:
    """Return an array with two axes of numbers."""
    if values.dtype == object and values.ndim == 1 and len(values):
        cells = values.tolist()
        lengths = {len(cell) if isinstance(cell, (list, tuple, np.ndarray)) else 0 for cell in cells}
        if lengths == {n_labels}:
            values = np.array([list(cell) for cell in cells])
        elif 0 not in lengths:
            raise DataError(
                f"{where}: expected a list of {n_labels} zeros and ones for each sample, found lists of "
                f"{', '.join(map(str, sorted(lengths)))}"
            )
    if values.ndim == 2 and values.dtype.kind in "biuf":
        return values
    raise DataError(
        f"{where}: the model gives {n_labels} labels a sample, each by itself (Sigmoid), so each sample needs 0 or 1 "
        f"for each of them, shape (N, {n_labels}); found shape {values.shape}, {values.dtype}. Where a sample has "
        "exactly one class, the model has to end in a Softmax. Of a table name the column of each label: "
        "--label-column a,b,c"
    )


def _check_values(stored: AnyArray, where: str) -> None:
    """Refuse values other than 0 and 1."""
    wrong = np.argwhere((stored != 0) & (stored != 1))
    if not len(wrong):
        return
    row, column = wrong[0].tolist()
    value = float(stored[row, column])
    why = "a missing label: leave such samples out"
    if 0 < value < 1:
        why = "a soft label: calibration needs what came true, 0 or 1"
    elif value > 1:
        why = "expected 1 where the label holds"
    raise DataError(
        f"{where}: {len(wrong):,} labels are neither 0 nor 1; the first is {value:g}, of sample {row} in column "
        f"{column} ({why})"
    )


def check_label_columns(where: str, columns: Iterable[str], names: Sequence[str], request: Request) -> None:
    """Check the names of the columns with the labels, which stand in the order of the model's output."""
    n_labels, order = request.n_classes, request.class_names
    if len(names) != n_labels:
        raise DataError(
            f"{where}: {len(names)} label columns ({listed(names)}) for a model with {n_labels} labels; name a column "
            "for each, in the order of the model's output"
        )
    if twice := repeated(names):
        raise DataError(f"{where}: label column {listed(twice)} named twice; name one column for each label")
    missing = [column for column in names if column not in columns]
    if missing:
        raise DataError(f"{where}: no column {listed(missing)} for the labels; the columns are {listed(columns)}")
    if order is not None and set(order) == set(names) and list(order) != list(names):
        raise DataError(
            f"{where}: the label columns are {listed(names)}, and the model's labels are {listed(order)}; name the "
            "columns in the model's order"
        )


def joined_labels(columns: Mapping[str, AnyArray], names: Sequence[str], where: str) -> AnyArray:
    """Return the label columns side by side, (N, C)."""
    for column in names:
        if columns[column].dtype.kind not in "biuf":
            raise DataError(f"{where}: column {column!r}: expected 0 and 1, found {columns[column][0]!r:.80}")
    return np.stack([columns[column].astype(np.float64) for column in names], axis=1)


@dataclass(frozen=True, eq=False)
class LabelSource(SourceView):
    """Samples of which each has C labels of 0 or 1; made by `LabelSource.of`."""

    labels: IntArray  # (N, C) of 0 and 1

    @classmethod
    def of(cls, source: Source) -> LabelSource:
        """Present the multi-label marks of a source as its labels."""
        marks: IntArray | None = getattr(source, "placed", None)
        if marks is None:
            raise DataError(
                f"{source.describe()}: the model gives several labels a sample; expected arrays (.npz, in "
                "memory) with labels of shape (N, C), or a table with a column for each label"
            )
        return cls(source, marks)

    def __len__(self) -> int:
        return len(self.labels)

    def describe(self) -> str:
        title = getattr(self.source, "title", None) or self.source.describe()
        labels_per_sample = float(self.labels.sum(axis=1).mean())
        return f"{title} ({len(self):,} samples, {self.labels.shape[1]:,} labels, {labels_per_sample:.3g} a sample)"

    @property
    def sample_labels(self) -> IntArray:
        """The group number of each sample, (N,), equal where all labels are equal."""
        return self.source.labels
