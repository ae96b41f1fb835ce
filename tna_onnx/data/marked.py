"""Labels of samples that may have several: for each of C labels, 1 where it holds and 0 where it does not; checked.

Such labels are an array (N, C), columns of a table, or lists in one column. Sources keep what tells the labels of two
samples apart in place of a class index, and the marks beside it (`ArraySource.placed`); `LabelSource` shows the marks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tna_onnx.data.digest import row_digests, sample_digests, sample_form
from tna_onnx.data.labels import listed
from tna_onnx.data.source import Batch, IntArray, Source, source_notes
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from tna_onnx.data.source import AnyArray

__all__ = ["LabelSource", "joined_columns", "marked_labels"]


def marked_labels(values: AnyArray, n_samples: int, n_labels: int, where: str) -> tuple[IntArray, IntArray]:
    """Return what tells the labels of two samples apart, (N,), and the labels, (N, C) of 0 and 1, int64.

    Args:
        values: truth values or numbers 0 and 1, (N, C), or lists of them.
        n_samples: the number N of samples.
        n_labels: the number C of labels of the model.
        where: what messages start with.

    Raises:
        DataError: another shape, other values, or labels of which none holds, or each.

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
    """Return an array with two axes of numbers.

    Raises:
        DataError: the values are something else.
    """
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
    """Refuse what is neither 0 nor 1.

    Raises:
        DataError: such a value.
    """
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


def joined_columns(
    columns: Mapping[str, AnyArray],
    names: Sequence[str],
    name: str,
    where: str,
    n_labels: int,
    order: Sequence[str] | None,
) -> dict[str, AnyArray]:
    """Return columns in which those of the labels are one, (N, C), under a name.

    Args:
        columns: name -> values (N,).
        names: of the columns with the labels, in the order of the model's output.
        name: of the new column.
        where: what messages start with.
        n_labels: the number of labels of the model.
        order: the model's own names of its labels, if known.

    Raises:
        DataError: a column is missing or named twice, there are not as many as labels, or the model names them in
            another order.
    """
    if len(names) != n_labels:
        raise DataError(
            f"{where}: {len(names)} label columns ({listed(names)}) for a model with {n_labels} labels; name a column "
            "for each, in the order of the model's output"
        )
    twice = [each for each in dict.fromkeys(names) if names.count(each) > 1]
    if twice:
        raise DataError(f"{where}: label column {listed(twice)} named twice; name one column for each label")
    missing = [each for each in names if each not in columns]
    if missing:
        raise DataError(f"{where}: no column {listed(missing)} for the labels; the columns are {listed(columns)}")
    if order is not None and set(order) == set(names) and list(order) != list(names):
        raise DataError(
            f"{where}: the label columns are {listed(names)}, and the model's labels are {listed(order)}; name the "
            "columns in the model's order"
        )
    for each in names:
        if columns[each].dtype.kind not in "biuf":
            raise DataError(f"{where}: column {each!r}: expected 0 and 1, found {columns[each].flat[0]!r:.80}")
    others = {each: values for each, values in columns.items() if each not in names}
    return {**others, name: np.stack([columns[each].astype(np.float64) for each in names], axis=1)}


@dataclass(frozen=True, eq=False)
class LabelSource:
    """Samples with several labels each; made by `LabelSource.of`.

    Attributes:
        source: the samples; their labels only tell them apart.
        labels: (N, C) of 0 and 1.
    """

    source: Source
    labels: IntArray

    @classmethod
    def of(cls, source: Source) -> LabelSource:
        """Take the labels that a source keeps beside its own.

        Raises:
            DataError: it has none.
        """
        marks: IntArray | None = getattr(source, "placed", None)
        if marks is None:
            raise DataError(
                f"{source.describe()}: the model gives several labels a sample; expected arrays (.npz, .npy, HDF5, in "
                "memory) with labels of shape (N, C), or a table with a column for each label"
            )
        return cls(source, marks)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.labels)

    def describe(self) -> str:
        """Return one line for reports."""
        title = getattr(self.source, "title", None) or self.source.describe()
        held = float(self.labels.sum(axis=1).mean())
        return f"{title} ({len(self):,} samples, {self.labels.shape[1]:,} labels, {held:.3g} a sample)"

    def recipe(self) -> dict[str, object] | None:
        """Return the preprocessing of the samples."""
        return self.source.recipe()

    @property
    def notes(self) -> tuple[str, ...]:
        """Lines that reports show."""
        return source_notes(self.source)

    @property
    def sample_labels(self) -> IntArray:
        """What tells the labels of two samples apart, (N,)."""
        return self.source.labels

    @property
    def sample_form(self) -> str:
        """What `sample_digests` are of."""
        return sample_form(self.source)

    def sample_digests(self) -> NDArray[np.uint64]:
        """Return 64 bits for each sample."""
        return sample_digests(self.source)

    def digest(self) -> str:
        """Return SHA-256 (hex) of the samples and their labels."""
        return self.source.digest()

    def batches(self, size: int, rows: IntArray | None = None) -> Iterator[Batch]:
        """Yield batches of samples; see `Source.batches`."""
        return self.source.batches(size, rows)
