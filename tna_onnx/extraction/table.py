"""The feature table: features and labels of N samples, in row blocks or batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import Batch
from tna_onnx.data.mapped import release, room
from tna_onnx.errors import UsageError

# Elements of one block of logits: 16 MB of float32. Large enough for the matrix product, small enough for the sums that
# follow to find it in the cache.
_BLOCK = 2**22


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """Features and labels of N samples.

    `rows` features of a sample may follow one another on the tensor's axis 0; they are kept as one more axis.

    Attributes:
        features: (N, n), mapped from a file, in the model's dtype. Where only the graph can compute the logits,
            (N, ...): all values of a sample. For a model without a head, the logits (N, C).
        labels: (N,) int64.
        batch_size: samples per batch when they were collected.
        beside: tensor name -> (N, ...), what else of the data the nodes after the linear layer read.
        scalars: the same per batch, for tensors without a row per sample.
        rows: how many rows of the feature tensor belong to a sample, where that is more than one; else 0.
        logits: (N, ...) as the model gives them, if they were kept with the features.
        folder: the feature store on disk, if they are kept in one.
        resumed: notes on what an earlier run had left in that store.
        clusters: (N,) which of the N belong to one sample of the data, where those have several predictions; else None.
        weights: (N,) how much each sample counts; None where all count the same.
    """

    features: NDArray[Any]
    labels: NDArray[np.int64]
    batch_size: int = 0
    beside: Batch = field(default_factory=dict)
    scalars: tuple[Batch, ...] = ()
    rows: int = 0
    logits: NDArray[Any] | None = None
    folder: Path | None = None
    resumed: tuple[str, ...] = ()
    clusters: NDArray[np.int64] | None = None
    weights: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.labels)

    def part(self, rows: NDArray[np.intp]) -> FeatureTable:
        """Return some samples, in this order, as a table: features and labels are all that a linear head needs."""
        columns = {"clusters": self.clusters, "weights": self.weights}
        chosen: dict[str, Any] = {name: values if values is None else values[rows] for name, values in columns.items()}
        return FeatureTable(self._selected(rows), self.labels[rows], self.batch_size, **chosen)

    def _selected(self, rows: NDArray[np.intp]) -> NDArray[Any]:
        features = self.features
        shape = (len(rows), *features.shape[1:])
        bytes_each = features[:1].nbytes
        try:
            selected = room(shape, features.dtype)
        except UsageError:  # no room in the folder for such files: in memory then
            selected = np.empty(shape, features.dtype)
        step = max(1, _BLOCK // bytes_each)
        for start in range(0, len(rows), step):
            read = rows[start : start + step]
            written = slice(start, start + len(read))
            selected[written] = features[read]
            release(features, slice(int(read.min()), int(read.max()) + 1))
            release(selected, written)
        return selected

    def chunks(self, n_classes: int) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        """Yield (features, labels) in row blocks sized so that their logits take 16 MB; float32 or float64."""
        for rows in self.blocks(n_classes):
            yield self.block(rows)
            # A second pass reads them again: memory is to stay the same however many samples there are.
            release(self.features, rows)

    def blocks(self, n_classes: int) -> list[slice]:
        """Return the rows of these chunks."""
        rows = max(1, _BLOCK // max(n_classes, self.features.shape[1]))
        return [slice(start, min(start + rows, len(self))) for start in range(0, len(self), rows)]

    def block(self, rows: slice) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Return (features, labels) of some rows; float32 or float64."""
        # float16 is widened: sums over the features would have three digits
        dtype = np.float64 if self.features.dtype == np.float64 else np.float32
        return np.asarray(self.features[rows], dtype), self.labels[rows]

    def batches(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], Batch]]:
        """Yield (features, labels, beside) in the batches in which they were collected, with their own shapes."""
        for k, start in enumerate(range(0, len(self), self.batch_size)):
            block = slice(start, start + self.batch_size)
            features = np.asarray(self.features[block])
            if self.rows:
                features = features.reshape(-1, *features.shape[2:])
            further = {name: np.asarray(values[block]) for name, values in self.beside.items()}
            if self.scalars:
                further |= self.scalars[k]
            yield features, self.labels[block], further
            for array in (self.features, *self.beside.values()):
                release(array, block)
