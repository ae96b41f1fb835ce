"""What every source of labelled samples offers to the rest of the package, and what sources and their users share.

A source is opened once (`tna_onnx.data.open_source`), with its labels already checked, and is then read in batches as
often as needed. To add one: write a file in `tna_onnx/data/sources` with a frozen dataclass that has the members of
`Source` and the function that opens it, and add its row to `tna_onnx.data.formats`.

Laws, which one test runs over every source:

1. The batches joined along axis 0 are the same whatever the batch size.
2. `batches(size, rows)` gives the rows of `batches(size)` taken by index.
3. Every array of a batch is a fresh C-contiguous array in the dtype of its `InputSpec`; writing to it changes nothing.
4. `digest()` changes with any byte of the data, and does not change when the data moves.

A source may also have `sample_digests()`, which `tna_onnx.data.digest.sample_digests` otherwise computes from batches,
and then a text `sample_form` that says what they are of; and `notes`, lines that reports show.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from tna_onnx.errors import DataError, UsageError

__all__ = [
    "AnyArray",
    "Batch",
    "InputSpec",
    "IntArray",
    "Source",
    "require_samples",
    "shape_text",
    "source_notes",
    "split_rows",
]

AnyArray: TypeAlias = npt.NDArray[Any]
IntArray: TypeAlias = npt.NDArray[np.int64]
Batch: TypeAlias = dict[str, AnyArray]
"""Input name -> array (B, ...) of the samples of one batch."""


_MIN_OWNERS = 10  # of several predictions a sample: two samples for each fold of cross-fitting


@dataclass(frozen=True)
class InputSpec:
    """One input of the model, as its file declares it.

    `shape` includes the batch axis, which is axis 0; None is an axis of any length. A source leaves axis 0 free:
    whether the model accepts a given batch size is for the engine to settle.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]


class Source(Protocol):
    """Labelled samples that fit the model's inputs; the laws are in the module's docstring."""

    @property
    def labels(self) -> IntArray:
        """Class indices, int64 (N,), in [0, number of classes)."""

    def __len__(self) -> int:
        """Return the number of samples N."""

    def describe(self) -> str:
        """Return one line for reports, e.g. "image folder calib (5,000 images, 10 classes)"."""

    def recipe(self) -> dict[str, object] | None:
        """Return the resolved preprocessing as JSON-able values; None if samples are used as stored."""

    def batches(self, size: int, rows: IntArray | None = None) -> Iterator[Batch]:
        """Yield the samples `rows` (default: all) in that order, `size` at a time; the last batch may be shorter.

        Raises:
            UsageError: `size` is below 1.
            IndexError: a row is not a sample.
            DataError: a sample cannot be read or does not fit the model (raised while iterating).
        """

    def digest(self) -> str:
        """Return SHA-256 (hex) of the contents, independent of where they are stored.

        Raises:
            DataError: a file cannot be read.
        """


def require_samples(source: Source, bins: int, held_out: int = 0) -> None:
    """Refuse fewer samples than the ECE has bins: some bins would be empty whatever the model says.

    Args:
        source: the data.
        bins: number of bins of the ECE.
        held_out: samples that a fold of cross-fitting leaves out.

    Raises:
        UsageError: `bins` is below 1.
        DataError: too few samples.
    """
    if bins < 1:
        raise UsageError(f"bins must be at least 1, got {bins}")
    n_samples = len(source) - held_out
    owners = getattr(source, "owners", None)
    if owners is not None and len(owners) < _MIN_OWNERS:
        raise DataError(
            f"{source.describe()}: {len(owners)} samples with labels, fewer than {_MIN_OWNERS}; positions of one "
            "sample are not independent, so intervals and folds are of samples; give more of them"
        )
    if n_samples < bins:
        rest = f" outside a fold of {held_out}" if held_out else ""
        raise DataError(
            f"{source.describe()}: {n_samples} samples{rest}, fewer than the {bins} bins of the ECE; "
            "give more samples, or fewer --bins"
        )


def source_notes(source: Source) -> tuple[str, ...]:
    """Return what a source says of how it was read: which columns fill which inputs, say."""
    notes: tuple[str, ...] = getattr(source, "notes", ())
    return notes


def shape_text(shape: tuple[int | None, ...]) -> str:
    """Write the shape of an input with N for the batch axis and ? for other free axes.

    >>> shape_text((None, 3, 224, None))
    '(N, 3, 224, ?)'
    """
    if not shape:
        return "()"  # a scalar: there is no batch axis to call N
    axes = ["?" if length is None else str(length) for length in shape[1:]]
    return f"({', '.join(['N', *axes])})"


def split_rows(n_samples: int, size: int, rows: IntArray | None) -> list[IntArray]:
    """Cut `rows` (default: 0..n_samples-1) into runs of `size`, in order; the last may be shorter.

    Rows follow NumPy's rules for an index array (negative ones count from the end).

    Raises:
        UsageError: `size` is below 1.
        IndexError: `rows` is not one axis of integers within the samples.
    """
    if size < 1:
        raise UsageError(f"the batch size must be at least 1, got {size}")
    chosen = np.arange(n_samples, dtype=np.int64) if rows is None else _resolved(n_samples, np.asarray(rows))
    if chosen.ndim != 1:
        raise IndexError(f"rows must have one axis, got shape {chosen.shape}")
    return [chosen[start : start + size] for start in range(0, len(chosen), size)]


def _resolved(n_samples: int, rows: AnyArray) -> IntArray:
    """Return arange(n_samples)[rows], without making all those numbers for a few rows of very many samples.

    Raises:
        IndexError: a row is not a sample.
    """
    if rows.dtype.kind not in "iu":  # a mask
        return np.arange(n_samples, dtype=np.int64)[rows]
    if rows.size and not -n_samples <= int(rows.min()) <= int(rows.max()) < n_samples:
        raise IndexError(f"rows must be samples, 0 to {n_samples - 1}, got {rows.min()} to {rows.max()}")
    wrapped: IntArray = rows.astype(np.int64)
    wrapped[wrapped < 0] += n_samples
    return wrapped
