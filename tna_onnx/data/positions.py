"""Samples with several labels each, one at a position: a class for each token of a text, or each pixel of an image.

Every labelled position becomes a row of its own. The network still runs whole samples: a batch holds them, and says
which of their positions are its rows (`POSITIONS`, first of its arrays, so that its length is the number of rows).

Positions without a label hold `ignore_label`. At `last`, a sample has one row: its last labelled position; where labels
are one a sample, the last position that its attention mask does not hide, or else the last of all.

Memory stays bounded. Where the features or logits of all rows would take more than 2 GiB, whole samples are left out at
random, and where fewer than 200 samples would stay, positions of those.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tna_onnx.data.digest import sample_digests, sample_form
from tna_onnx.data.placed import Several
from tna_onnx.data.source import Batch, IntArray, Source, source_notes, split_rows
from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["POSITIONS", "SHAPE", "PositionSource", "clusters_of", "first_batches", "sample_labels"]

POSITIONS = "tna_onnx/positions"
"""Array of a batch: (R,) int64, where its rows are among the positions of its samples, one sample after the other."""

SHAPE = "tna_onnx/shape"
"""Array of a batch: how many positions a sample has along each axis."""

_NONE = -1  # a position without a label, once labels are checked
_MAX_BYTES = 2**31  # of features or logits of all rows
_MIN_ROWS = 10_000  # a head of 150,000 classes still gets so many
_MIN_SAMPLES = 200  # intervals come from the spread of samples
_BATCH_BYTES = 2**28  # of the logits of one batch, at all positions


def clusters_of(source: Source) -> IntArray | None:
    """Return which rows of a source are of one sample, (R,); None where each is a sample."""
    own: IntArray | None = getattr(source, "clusters", None)
    return own


def first_batches(source: Source, size: int, most: int) -> int:
    """Return how many rows the first whole batches of a source have: at most `most`, but one batch at least."""
    if isinstance(source, PositionSource):
        return source.first_batches(size, most)
    return min(most // size * size or size, len(source))


def sample_labels(source: Source) -> IntArray:
    """Return what tells the labels of two samples apart, one a sample: the class, or a number for all of them."""
    own: IntArray = getattr(source, "sample_labels", source.labels)
    return own


@dataclass(frozen=True, eq=False)
class PositionSource:
    """Samples whose labelled positions are its rows; made by `PositionSource.of`.

    Attributes:
        source: the samples; their labels only tell them apart.
        labels: class indices (R,), a row's.
        owner: the sample of each row, (R,), ascending.
        flat: the place of each row among the positions of its sample, (R,); None for the last position.
        shape: positions along each axis; empty where a batch tells it.
        batch_samples: most samples that a batch may hold.
        notes: lines that reports show.
    """

    source: Source
    labels: IntArray
    owner: IntArray
    flat: IntArray | None
    shape: tuple[int, ...]
    batch_samples: int
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, source: Source, n_classes: int, several: Several) -> PositionSource:
        """Take the labelled positions of samples.

        Raises:
            DataError: the labels are one a sample, and not of its last position.
        """
        placed: IntArray | None = getattr(source, "placed", None)
        if placed is None:
            if several.position != "last":
                raise DataError(
                    f"{source.describe()}: the model gives several predictions a sample, so each position needs a "
                    "label; expected arrays (.npz, .npy, HDF5, in memory) with labels of shape (N, P), or (N, H, W)"
                )
            rows = np.arange(len(source), dtype=np.int64)
            return cls(source, source.labels, rows, None, (), _batch_samples(source, n_classes), source_notes(source))
        shape = placed.shape[1:]
        flat_labels = placed.reshape(len(placed), -1)
        clusters, flat = np.nonzero(flat_labels != _NONE)
        if several.position == "last":
            last = np.r_[clusters[1:] != clusters[:-1], True]
            clusters = clusters[last]
            flat = flat[last]
        kept, note = _within_memory(clusters, max(n_classes, several.n_features) if several.n_features else 0)
        clusters = clusters[kept]
        flat = flat[kept]
        size = max(1, _BATCH_BYTES // (4 * n_classes * flat_labels.shape[1]))
        notes = (*source_notes(source), *note)
        return cls(source, flat_labels[clusters, flat], clusters, flat, shape, size, notes)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.labels)

    def describe(self) -> str:
        """Return one line for reports."""
        title = getattr(self.source, "title", None) or self.source.describe()
        what = "each at its last position" if self.flat is None else f"{len(self):,} labelled positions"
        return f"{title} ({len(self.owners):,} samples, {what}, {len(np.unique(self.labels)):,} classes)"

    def recipe(self) -> dict[str, object] | None:
        """Return the preprocessing of the samples."""
        return self.source.recipe()

    @cached_property
    def owners(self) -> IntArray:
        """The samples that have a row, ascending."""
        return np.unique(self.owner)

    @property
    def clusters(self) -> IntArray | None:
        """The sample of each row, (R,), where a sample has several; None where rows are as independent as samples."""
        return None if len(self.owners) == len(self) else self.owner

    @property
    def sample_labels(self) -> IntArray:
        """What tells the labels of two samples apart, for each of `owners`."""
        return self.source.labels[self.owners]

    @property
    def sample_form(self) -> str:
        """What `sample_digests` are of."""
        return sample_form(self.source)

    def sample_digests(self) -> NDArray[np.uint64]:
        """Return 64 bits for each of `owners`: a leak is one of whole samples."""
        return sample_digests(self.source)[self.owners]

    def digest(self) -> str:
        """Return SHA-256 (hex) of the samples and of the rows that are taken of them."""
        digest = hashlib.sha256(self.source.digest().encode("ascii"))
        for array in (self.labels, self.owner, self.flat):
            if array is not None:
                digest.update(array.astype(">i8").tobytes())
        return digest.hexdigest()

    def batches(self, size: int, rows: IntArray | None = None) -> Iterator[Batch]:
        """Yield batches of at most `size` whole samples, with the rows that are asked for; in ascending order.

        Raises:
            UsageError, IndexError, DataError: see `Source.batches`.
        """
        chosen = np.concatenate([np.zeros(0, np.int64), *split_rows(len(self), size, rows)])
        own = self.owner[chosen]
        if np.any(np.diff(own) < 0):
            raise IndexError("rows of several samples have to ascend")
        samples, starts = np.unique(own, return_index=True)
        size = min(size, self.batch_samples)
        ends = np.append(starts, len(own))
        for number, batch in enumerate(self.source.batches(size, samples)):
            first = number * size
            last = min(first + size, len(samples))
            inside = chosen[ends[first] : ends[last]]
            yield self._placed(batch, inside, np.searchsorted(samples[first:last], self.owner[inside]))

    def first_batches(self, size: int, most: int) -> int:
        """Return how many rows the first whole batches have: at most `most`, but one batch at least."""
        _, starts = np.unique(self.owner, return_index=True)
        ends = np.append(starts[:: min(size, self.batch_samples)], len(self))[1:]
        fitting = int(np.searchsorted(ends, most, side="right"))
        return int(ends[max(0, fitting - 1)])

    def _placed(self, batch: Batch, rows: IntArray, samples: IntArray) -> Batch:
        """Put the positions of some rows beside a batch; `samples` are the rows' places in it."""
        shape = self.shape
        if self.flat is None:
            flat, length = _last_positions(batch)
            shape = (length,)
        else:
            flat = self.flat[rows]
        places = samples * int(np.prod(shape)) + flat
        return {POSITIONS: places.astype(np.int64), SHAPE: np.array(shape, np.int64), **batch}


def _within_memory(clusters: IntArray, values: int) -> tuple[NDArray[np.intp], tuple[str, ...]]:
    """Return the rows to keep, `values` float32 numbers each, and a note if those are not all."""
    most = max(_MIN_ROWS, _MAX_BYTES // (4 * max(1, values)))
    if not values or len(clusters) <= most:
        return np.arange(len(clusters)), ()
    # a fixed seed: the same command takes the same samples
    rng = np.random.default_rng(0)
    samples, counts = np.unique(clusters, return_counts=True)
    order = rng.permutation(len(samples))
    fitting = int(np.searchsorted(np.cumsum(counts[order]), most, side="right"))
    taken = samples[order[: max(fitting, min(_MIN_SAMPLES, len(samples)))]]
    kept = np.flatnonzero(np.isin(clusters, taken))
    note = f"{len(taken):,} of {len(samples):,} samples were taken at random"
    if len(kept) > most:
        kept = np.sort(rng.choice(kept, most, replace=False))
        note += ", and positions of those"
    return kept, (
        f"{note}, to bound the memory: {len(kept):,} of {len(clusters):,} labelled positions, with {values:,} numbers "
        "each",
    )


def _batch_samples(source: Source, n_classes: int) -> int:
    """Return how many samples a batch may hold whose positions a batch tells: those of one sample are counted."""
    _, length = _last_positions(next(iter(source.batches(1, np.zeros(1, np.int64)))))
    return max(1, _BATCH_BYTES // (4 * n_classes * length))


def _last_positions(batch: Batch) -> tuple[IntArray, int]:
    """Return the last position of each sample, (B,), and how many there are.

    Raises:
        DataError: no input tells how long the samples are.
    """
    mask: Any = batch.get("attention_mask")
    if mask is not None and mask.ndim == 2:
        # padding may be on either side
        return (mask.shape[1] - 1 - np.argmax(mask[:, ::-1] != 0, axis=1)).astype(np.int64), mask.shape[1]
    length = next((array.shape[1] for array in batch.values() if array.ndim > 1), 0)
    if not length:
        raise DataError("--position last: no input has an axis of positions; give labels of shape (N, P)")
    return np.full(len(next(iter(batch.values()))), length - 1, np.int64), length
