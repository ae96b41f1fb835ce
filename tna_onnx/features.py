"""Data x session -> penultimate features in a memory-mapped store, with the check that the head is the right one.

Only the sub-graph up to the feature tensor runs over the data. On the first batch the whole model runs too, and

    features @ weight.T + bias == logits

must hold within rounding, or the head is not what the graph walk took it for.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import InputSpec, Source
from tna_onnx.errors import DataError, UnsupportedModel, UsageError
from tna_onnx.graph.cut import cut_at
from tna_onnx.graph.head import Head
from tna_onnx.graph.load import Model
from tna_onnx.runtime import Device, Session, open_session

__all__ = [
    "FeatureStore",
    "HeadTensors",
    "Progress",
    "check_head",
    "collect_features",
    "input_specs",
    "open_probe",
    "silent",
]

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total)."""


def silent(stage: str, done: int, total: int) -> None:
    """Show no progress."""


# Elements of one block of logits: 16 MB of float32. Large enough for the matrix product, small enough for the cache of
# the sums that follow.
_BLOCK = 2**22

# |features @ weight.T + bias - logits| may reach this many units of rounding of sum |z||w| + |b|: the runtime sums in
# another order. A wrong head is off by the size of the logits.
_ROUNDINGS = 16


@dataclass(frozen=True, eq=False)
class FeatureStore:
    """Features and labels of N samples.

    Attributes:
        features: (N, n), mapped from an unnamed temporary file, in the model's dtype.
        labels: (N,) int64.
    """

    features: NDArray[Any]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.labels)

    def chunks(self, n_classes: int) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        """Yield (features, labels) in row blocks sized so that their logits take 16 MB; float32 or float64."""
        rows = max(1, _BLOCK // max(n_classes, self.features.shape[1]))
        dtype = np.float64 if self.features.dtype == np.float64 else np.float32
        for start in range(0, len(self), rows):
            block = slice(start, start + rows)
            yield np.asarray(self.features[block], dtype), self.labels[block]


def input_specs(session: Session) -> tuple[InputSpec, ...]:
    """What a data source has to fill, from the session's inputs."""
    return tuple(InputSpec(i.name, i.shape, i.dtype) for i in session.inputs)


def open_probe(model: Model, head: Head, device: Device) -> Session:
    """Open the whole model with the features and the logits as outputs."""
    made = [name for name in (head.features, head.logits) if name in model.producers]
    return _open(model, [*dict.fromkeys(made)], device)


@dataclass(frozen=True)
class HeadTensors:
    """What the first batch showed of a head's tensors.

    Attributes:
        logits_rank: axes of the logits: 2, or 1 for some binary heads.
        plain_features: the feature tensor is (N, n) in the dtype of the logits, so that appended nodes can read it.
    """

    logits_rank: int
    plain_features: bool


def check_head(model: Model, head: Head, probe: Session, source: Source, batch_size: int) -> HeadTensors:
    """Compare features @ weight.T + bias with the model's logits on the first batch.

    Raises:
        UnsupportedModel: shapes or values differ: the head is not a plain linear layer of these features.
        DataError: the logits hold NaN or infinite values.
    """
    batch = next(source.batches(batch_size))
    features, raw = _two(head, probe, batch)
    try:
        logits = head.class_logits(raw)
    except ValueError as mismatch:
        raise UnsupportedModel(
            f"{model.path}: logits '{head.logits}' have shape {raw.shape}; expected (N, {head.n_classes}) for head "
            f"'{head.node}'"
        ) from mismatch
    if not np.all(np.isfinite(logits)):
        row = int(np.flatnonzero(~np.isfinite(logits).all(axis=1))[0])
        raise DataError(f"{model.path}: logits '{head.logits}' of sample {row} hold NaN or infinite values")
    z, w = _matrix(model, head, features).astype(np.float64), head.weight.astype(np.float64)
    size = np.abs(z) @ np.abs(w).T + np.abs(head.bias)
    coarse = max(np.finfo(head.stored_weight.value.dtype).eps, np.finfo(features.dtype).eps, np.finfo(logits.dtype).eps)
    error = np.abs(z @ w.T + head.bias - logits)
    if np.any(error > _ROUNDINGS * float(coarse) * size):
        raise UnsupportedModel(
            f"{model.path}: head '{head.node}' does not give the model's logits: features @ weight.T + bias differs "
            f"from '{head.logits}' by up to {error.max():.3g} (largest logit {np.abs(logits).max():.3g}); choose "
            "another with --head NODE"
        )
    plain = features.ndim == 2 and not head.features_transposed and features.dtype == raw.dtype
    return HeadTensors(raw.ndim, plain)


def collect_features(
    model: Model, head: Head, source: Source, device: Device, batch_size: int, progress: Progress
) -> FeatureStore:
    """Run the sub-graph up to the features over all samples.

    Raises:
        DataError: features of the wrong shape, or with NaN or infinite values.
        UsageError: no room for the features in the temporary folder.
    """
    session = _open(model, [head.features], device) if head.features in model.producers else None
    store: NDArray[Any] | None = None
    done = 0
    for batch in source.batches(batch_size):
        raw = batch[head.features] if session is None else session.run([head.features], batch)[0]
        features = _matrix(model, head, raw)
        if not np.all(np.isfinite(features)):
            row = done + int(np.flatnonzero(~np.isfinite(features).all(axis=1))[0])
            raise DataError(f"{source.describe()}: features of sample {row} hold NaN or infinite values")
        if store is None:
            store = _allocate((len(source), head.n_features), features.dtype)
        store[done : done + len(features)] = features
        done += len(features)
        progress("collect features", done, len(source))
    if store is None or done != len(source):
        raise DataError(f"{source.describe()}: {done} samples read; expected {len(source)}")
    return FeatureStore(store, source.labels)


def _open(model: Model, outputs: list[str], device: Device) -> Session:
    cut = cut_at(model, outputs).SerializeToString()
    return open_session(cut, str(model.path), device, folder=model.path.parent if model.external_files else None)


def _two(head: Head, probe: Session, batch: dict[str, NDArray[Any]]) -> tuple[NDArray[Any], NDArray[Any]]:
    if head.features in batch:
        return batch[head.features], probe.run([head.logits], batch)[0]
    features, logits = probe.run([head.features, head.logits], batch)
    return features, logits


def _matrix(model: Model, head: Head, features: NDArray[Any]) -> NDArray[Any]:
    """Return features as (N, n): transposed for transA, middle axes of length one dropped."""
    if head.features_transposed:
        features = features.T
    n = head.n_features
    if features.ndim < 2 or features.shape[-1] != n or features.size != len(features) * n:
        raise UnsupportedModel(
            f"{model.path}: features '{head.features}' have shape {features.shape}; expected (N, {n}), one vector a "
            "sample"
        )
    return features.reshape(len(features), n)


def _allocate(shape: tuple[int, int], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Map an unnamed temporary file whose blocks are reserved, so that a full disk is an error here."""
    size = shape[0] * shape[1] * dtype.itemsize
    try:
        with tempfile.TemporaryFile(prefix="tna-onnx-") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
            return np.memmap(file, dtype, "r+", shape=shape)  # the map outlives the handle
    except OSError as error:
        raise UsageError(
            f"{tempfile.gettempdir()}: no room for {size:,} bytes of features ({error.strerror}); set TMPDIR to a "
            "larger disk"
        ) from error
