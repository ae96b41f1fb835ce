"""Samples with several labels: one at each position (`PositionSource`), or 0 or 1 for each class (`LabelSource`).

A position is a token of a text, or a pixel of an image. Every labelled position becomes a row. Batches hold entire
samples and the indices of their rows (`POSITIONS`, the first array). Above 2 GiB of features or logits, a random part
of the samples is used, of 200 at least, then of their positions.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.choices import IGNORED
from tna_onnx.data.digest import row_digests
from tna_onnx.data.foreign import repeated
from tna_onnx.data.labels import check_integral, check_range, check_two_classes
from tna_onnx.data.options import Request
from tna_onnx.data.source import AnyArray, Batch, IntArray, Source, SourceView, split_rows
from tna_onnx.errors import DataError, listed

POSITIONS = "tna_onnx/positions"
"""Array of a batch: (R,) int64, where its rows are among the positions of its samples, one sample after the other."""

SHAPE = "tna_onnx/shape"
"""Array of a batch: how many positions a sample has along each axis."""

_NONE = -1  # a position without a label, once labels are checked
_MAX_BYTES = 2**31  # of features or logits of all rows
_MIN_ROWS = 10_000  # a head of 150,000 classes still gets so many
_MIN_SAMPLES = 200  # intervals come from the spread of samples
_BATCH_BYTES = 2**28  # of the logits of one batch, at all positions
_COMPARED = 1000  # samples of which labels and inputs are compared
_MAX_LABELS = 4096  # above, their assignment takes minutes
_MIN_GAIN = 0.1  # of another order of the labels: in correlation, and in standard errors
_MIN_ERRORS = 4


def placed_labels(
    labels: AnyArray, n_samples: int, n_classes: int, where: str, ignore_label: int
) -> tuple[IntArray, IntArray]:
    """Return a group number for each sample, (N,), and the labels by position, (N, P...), -1 where there is none.

    `labels`: integers, or floats without a fraction, of shape (N, P...).

    >>> placed_labels(np.array([[2, -100], [0, 1]]), 2, 3, "labels", -100)[1].tolist()
    [[2, -1], [0, 1]]
    """
    if labels.ndim < 2:
        raise DataError(
            f"{where}: the model gives several predictions a sample; expected a label for each position, shape (N, P), "
            f"found shape {labels.shape}; where a sample has one label, leave -100 at its other positions"
        )
    if len(labels) != n_samples:
        raise DataError(f"{where}: {len(labels)} rows of labels for {n_samples} samples; give one row per sample")
    if labels.dtype.kind == "u" and ignore_label < 0 and ignore_label != IGNORED:
        raise DataError(f"{where}: labels are {labels.dtype}, without a {ignore_label}; give --ignore-label as stored")
    labelled = labels != ignore_label
    flat = labels[labelled]
    if not flat.size:
        raise DataError(f'{where}: every label is {ignore_label}, which means "no label"; see --ignore-label')
    check_integral(flat, where)
    outside = np.unique(flat[(flat < 0) | (flat >= n_classes)])
    if outside.size == 1 and outside[0] != n_classes:  # labels may start at 1
        raise DataError(
            f"{where}: the model has {n_classes} classes, and some labels are {int(outside[0])}; if that stands for "
            f"no label, add --ignore-label {int(outside[0])} (now {ignore_label})"
        )
    check_range(flat, n_classes, where)
    check_two_classes(flat, where)
    # never in the dtype of the file: in an unsigned one, -1 is its largest number
    placed = np.full(labels.shape, _NONE, np.int64)
    placed[labelled] = flat
    return row_digests({"labels": placed}).view(np.int64), placed


def refuse_copies(placed: IntArray, columns: Mapping[str, Any], where: str) -> None:
    """Refuse labels equal to the model's input at the same position: the labels of a language model are shifted by
    one.
    """
    rows = np.arange(min(len(placed), _COMPARED))
    labelled = placed[rows] != _NONE
    for name, column in columns.items():
        if column.dtype.kind not in "iu" or tuple(column.shape) != placed.shape or not labelled.any():
            continue
        if np.array_equal(column[rows][labelled], placed[rows][labelled]):
            raise DataError(
                f"{where}: every label is the value of {name!r} at its own position; for a language model give the "
                "next one, labels[:, t] = input_ids[:, t + 1], and -100 at the last position"
            )


@dataclass(frozen=True, eq=False)
class PositionSource(SourceView):
    """Samples whose labelled positions are its rows; made by `PositionSource.of`."""

    labels: IntArray  # class indices (R,), a row's
    owner: IntArray  # the sample of each row, (R,), ascending
    flat: IntArray  # the place of each row among the positions of its sample, (R,)
    shape: tuple[int, ...]  # positions along each axis
    batch_samples: int  # most samples that a batch may hold
    notes: tuple[str, ...] = ()  # lines that reports show

    @classmethod
    def of(cls, source: Source, n_classes: int, n_features: int) -> PositionSource:
        """Make the labelled positions of samples the rows of a source."""
        placed: IntArray | None = getattr(source, "placed", None)
        if placed is None:
            raise DataError(
                f"{source.describe()}: the model gives several predictions a sample, so each position needs a "
                "label; expected arrays (.npz, in memory) with labels of shape (N, P), or (N, H, W)"
            )
        shape = placed.shape[1:]
        flat_labels = placed.reshape(len(placed), -1)
        clusters, flat = np.nonzero(flat_labels != _NONE)
        selected, note = _within_memory(clusters, max(n_classes, n_features) if n_features else 0)
        clusters = clusters[selected]
        flat = flat[selected]
        size = max(1, _BATCH_BYTES // (4 * n_classes * flat_labels.shape[1]))
        notes = (*source.notes, *note)
        return cls(source, flat_labels[clusters, flat], clusters, flat, shape, size, notes)

    def __len__(self) -> int:
        return len(self.labels)

    def describe(self) -> str:
        title = getattr(self.source, "title", None) or self.source.describe()
        classes = len(np.unique(self.labels))
        return f"{title} ({len(self.owners):,} samples, {len(self):,} labelled positions of {classes:,} classes)"

    @cached_property
    def owners(self) -> IntArray:
        """The samples that have at least one row, ascending."""
        return np.unique(self.owner)

    @property
    def clusters(self) -> IntArray | None:
        """The sample of each row, (R,); None if every sample has one row."""
        if len(self.owners) == len(self):
            return None
        return self.owner

    @property
    def sample_info(self) -> dict[str, AnyArray]:
        """What belongs to the sample of each row beside inputs and labels, by its role."""
        return {role: values[self.owner] for role, values in self.source.sample_info.items()}

    @property
    def sample_labels(self) -> IntArray:
        """One group number for each of `owners`, equal for samples with equal labels."""
        return self.source.labels[self.owners]

    def sample_digests(self) -> NDArray[np.uint64]:
        """Return 64 bits for each of `owners`: leaks are searched by sample, not by position."""
        return self.source.sample_digests()[self.owners]

    def digest(self) -> str:
        """Return SHA-256 (hex) of the samples and of the selected rows."""
        digest = hashlib.sha256(self.source.digest().encode("ascii"))
        for array in (self.labels, self.owner, self.flat):
            digest.update(array.astype(">i8").tobytes())
        return digest.hexdigest()

    def batches(self, size: int, rows: IntArray | None = None) -> Iterator[Batch]:
        """Yield batches of at most `size` entire samples, with the requested rows in ascending order."""
        selected = np.concatenate([np.zeros(0, np.int64), *split_rows(len(self), size, rows)])
        owners = self.owner[selected]
        if np.any(np.diff(owners) < 0):
            raise IndexError("rows of several samples have to ascend")
        samples, starts = np.unique(owners, return_index=True)
        size = min(size, self.batch_samples)
        ends = np.append(starts, len(owners))
        for number, batch in enumerate(self.source.batches(size, samples)):
            first = number * size
            last = min(first + size, len(samples))
            inside = selected[ends[first] : ends[last]]
            places = (
                np.searchsorted(samples[first:last], self.owner[inside]) * math.prod(self.shape) + self.flat[inside]
            )
            yield {POSITIONS: places.astype(np.int64), SHAPE: np.array(self.shape, np.int64), **batch}

    def first_rows(self, size: int, max_rows: int) -> IntArray:
        """Return the first rows of each sample of the first batch: `max_rows` in all, but at least one of each."""
        _, starts = np.unique(self.owner, return_index=True)
        samples = min(size, self.batch_samples, len(starts))
        ends = np.append(starts, len(self))[1:]
        rows = max(1, max_rows // samples)
        return np.concatenate([np.arange(starts[k], min(ends[k], starts[k] + rows)) for k in range(samples)])


def first_batches(source: Source, size: int, max_rows: int) -> int:
    """Return the number of rows in the first batches of a source: at most `max_rows`, but at least one batch."""
    if not isinstance(source, PositionSource):
        return min(max_rows // size * size or size, len(source))
    _, starts = np.unique(source.owner, return_index=True)
    ends = np.append(starts[:: min(size, source.batch_samples)], len(source))[1:]
    fitting = int(np.searchsorted(ends, max_rows, side="right"))
    return int(ends[max(0, fitting - 1)])


def _within_memory(clusters: IntArray, values: int) -> tuple[NDArray[np.intp], tuple[str, ...]]:
    """Return the rows that fit in memory, at `values` float32 numbers each, and a note if some are left out."""
    max_rows = max(_MIN_ROWS, _MAX_BYTES // (4 * max(1, values)))
    if not values or len(clusters) <= max_rows:
        return np.arange(len(clusters)), ()
    # a fixed seed: the same command takes the same samples
    rng = np.random.default_rng(0)
    samples, counts = np.unique(clusters, return_counts=True)
    order = rng.permutation(len(samples))
    fitting = int(np.searchsorted(np.cumsum(counts[order]), max_rows, side="right"))
    sampled = samples[order[: max(fitting, min(_MIN_SAMPLES, len(samples)))]]
    selected = np.flatnonzero(np.isin(clusters, sampled))
    note = f"{len(sampled):,} of {len(samples):,} samples were taken at random"
    if len(selected) > max_rows:
        selected = np.sort(rng.choice(selected, max_rows, replace=False))
        note += ", and positions of those"
    return selected, (
        f"{note}, to bound the memory: {len(selected):,} of {len(clusters):,} labelled positions, with {values:,} "
        "numbers each",
    )


# ---- 0 or 1 for each class


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
        labels_per_sample = self.labels.sum() / max(1, len(self))
        return f"{title} ({len(self):,} samples, {self.labels.shape[1]:,} labels, {labels_per_sample:.3g} a sample)"

    @property
    def sample_labels(self) -> IntArray:
        """The group number of each sample, (N,), equal where all labels are equal."""
        return self.source.labels


def order_warning(predicted: IntArray, marks: IntArray, names: Sequence[str] | None = None) -> str:
    """Return a warning that another order of the label columns fits the predictions better; empty if none does.

    The order p maximises sum_c R[c, p(c)], R[c, k] the correlation of predictions of label c with column k.

    `predicted`: (N, C) of 0 and 1; `marks`: labels of the same samples, (N, C).
    """
    if marks.shape[1] > _MAX_LABELS or len(marks) < 2:
        return ""
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 - heavy

    # at random: files often come sorted
    half = np.random.default_rng(0).permutation(len(marks)) % 2 == 0
    halves = [_correlations(predicted[rows], marks[rows]) for rows in (half, ~half)]
    # as they stand, where nothing is better: a label that is never predicted has no column of its own
    ties = 1e-9 * np.eye(marks.shape[1])
    orders = [linear_sum_assignment(correlations + ties, maximize=True)[1] for correlations in halves]
    needed = max(_MIN_GAIN, _MIN_ERRORS / math.sqrt(len(marks) // 2))
    if any(_gain(order, half) < needed for order, half in zip(orders, reversed(halves), strict=True)):
        return ""
    moved = np.flatnonzero((orders[0] != np.arange(len(orders[0]))) & (orders[0] == orders[1]))
    named = names or [str(c) for c in range(len(orders[0]))]
    pairs = [f"{named[c]}: column {named[orders[0][c]]}" for c in moved.tolist()]
    return (
        "another order of the label columns fits the model's predictions much better "
        f"(for label {listed(pairs)}); give them in the order of the model's output"
    )


def _correlations(predicted: IntArray, marks: IntArray) -> NDArray[np.float64]:
    """Return R, (C, C); 0 where a column is constant."""
    p = predicted - predicted.mean(axis=0)
    y = marks - marks.mean(axis=0)
    size = np.sqrt(np.outer(np.sum(p * p, axis=0), np.sum(y * y, axis=0)))
    correlations: NDArray[np.float64] = np.divide(p.T @ y, size, out=np.zeros_like(size), where=size > 0)
    return correlations


def _gain(order: IntArray, correlations: NDArray[np.float64]) -> float:
    """Return the gain of an order: the rise in mean correlation of the labels that it moves."""
    moved = np.flatnonzero(order != np.arange(len(order)))
    if not moved.size:
        return 0.0
    return float(np.mean(correlations[moved, order[moved]] - correlations[moved, moved]))
