"""Data x session -> penultimate features in a memory-mapped store, with the check that the head is the right one.

Only the sub-graph up to the feature tensor runs over the data. On the first batch the whole model runs too. Where
everything after the linear layer is linear,

    features @ weight.T + bias == logits

must hold within rounding, or the head is not what the graph walk took it for. Elsewhere (`Tail`) the sub-graph from the
features to the logits must give the logits, and a changed class vector must change the logit of its class alone. A
model without a head has its logits collected in place of features.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.batching import BatchSize, choose_batch_size
from tna_onnx.data import Batch, InputSpec, Source
from tna_onnx.data.columns import ArraySource
from tna_onnx.data.digest import stream_sha256
from tna_onnx.errors import DataError, UnsupportedModel, UsageError
from tna_onnx.graph.cut import ModelProto, cut_at, cut_between, read_beside
from tna_onnx.graph.external import real_places
from tna_onnx.graph.floats import epsilon
from tna_onnx.graph.load import Model
from tna_onnx.graph.outputs import output_of
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.graph.rewrite import rewrite
from tna_onnx.numerics.ops import softmax
from tna_onnx.runtime import Device, Session, open_session, runtime_version
from tna_onnx.store import TemporaryRows, begun_batch_size, find_stores, labels_digest, open_store, release

__all__ = [
    "FeatureStore",
    "Probed",
    "Progress",
    "Tail",
    "batch_size_for",
    "check_readout",
    "collect_features",
    "input_specs",
    "model_key",
    "open_model",
    "open_part",
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


# Rows checked at a time: their flags fit into the cache.
_FINITE_ROWS = 4096

# Axes that a tensor may have; a vector of that many numbers may be a shape.
_LONGEST_SHAPE = 8

# Classes whose vectors are changed to see that only their own logits follow.
_PROBED_CLASSES = 8


@dataclass(frozen=True, eq=False)
class FeatureStore:
    """Features and labels of N samples.

    `rows` features of a sample may follow one another on the tensor's axis 0; they are kept as one more axis.

    Attributes:
        features: (N, n), mapped from a file, in the model's dtype. Where only the graph computes the
            logits, (N, ...), all that one sample has. Logits (N, C) for a model without a head.
        labels: (N,) int64.
        batch_size: samples per batch when they were collected.
        beside: what else of the data goes into the nodes after the linear layer, with a row for each sample.
        scalars: per batch, what of that has no such rows.
        rows: how many rows of the feature tensor belong to a sample, where it is more than one; else 0.
        logits: (N, ...) as the model gives them, if they were kept beside the features.
        folder: where the store lies, if it is kept.
        resumed: what was found in an earlier store.
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
            release(self.features, block)

    def batches(self) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], Batch]]:
        """Yield (features, labels, beside) in the batches in which they were collected, as they were."""
        for k, start in enumerate(range(0, len(self), self.batch_size)):
            block = slice(start, start + self.batch_size)
            features = np.asarray(self.features[block])
            if self.rows:
                features = features.reshape(-1, *features.shape[2:])
            beside = {name: np.asarray(values[block]) for name, values in self.beside.items()}
            yield features, self.labels[block], {**beside, **(self.scalars[k] if self.scalars else {})}
            for array in (self.features, *self.beside.values()):
                release(array, block)


def input_specs(session: Session) -> tuple[InputSpec, ...]:
    """What a data source has to fill, from the session's inputs."""
    return tuple(InputSpec(i.name, i.shape, i.dtype) for i in session.inputs)


def open_probe(
    model: Model, readout: Readout, device: Device, given: Mapping[str, np.dtype[Any]] | None = None
) -> Session:
    """Open the whole model with the logits, and the features if there are any, as outputs.

    With tensors that are given, of some dtypes, it is opened from there to the logits.
    """
    if given:
        cut = cut_between(model.proto, given, [readout.logits])
        return open_part(model, cut, device)
    wanted = [readout.features, readout.logits] if isinstance(readout, Head) else [readout.logits]
    return _open(model, [*dict.fromkeys(name for name in wanted if name in model.producers)], device)


def open_model(model: Model, device: Device) -> Session:
    """Open the source model itself.

    Raises:
        DeviceError, UnsupportedModel: see `tna_onnx.runtime.open_session`.
    """
    if model.path is not None:
        return open_session(model.path, model.name, device)
    return open_session(model.proto.SerializeToString(), model.name, device)


def open_part(model: Model, cut: ModelProto, device: Device, fixed_batch: int | None = None) -> Session:
    """Open a part of a model, which the caller gives away.

    Raises:
        DeviceError, UnsupportedModel: see `tna_onnx.runtime.open_session`.
    """
    folder = real_places(model, cut)
    return open_session(cut.SerializeToString(), model.name, device, folder=folder, fixed_batch=fixed_batch)


def batch_size_for(
    wanted: BatchSize, model: Model, probe: Session | None, source: Source, cache: Path | None = None
) -> int:
    """Return the samples per run: as wanted; for `auto` those of a store that was begun, or found by a probe.

    Args:
        wanted: a number or `auto`.
        model: what runs.
        probe: a session on it, run for all of its outputs; None where there is nothing to run.
        source: the samples.
        cache: folder of feature stores.

    Raises:
        DataError: a sample cannot be read, or the network cannot run it.
    """
    stored = None
    if wanted == "auto" and cache is not None and find_stores(cache):
        stored = begun_batch_size(cache, {**model_key(model), **_data_key(source)})
    return choose_batch_size(wanted, probe, probe.outputs if probe and wanted == "auto" else (), source, stored)


class Tail:
    """The sub-graph from the features to the logits, for heads that only the graph can compute.

    Every weight is written into the model as it will be shipped, so that what is scored is what ships.
    """

    def __init__(self, model: Model, head: Head, device: Device, sample: Batch, fixed_batch: int | None) -> None:
        self._model, self._head, self._device, self._fixed_batch = model, head, device, fixed_batch
        self._feeds = {name: array.dtype for name, array in sample.items()}

    def in_float(self) -> Tail:
        """Return the same with a weight that is kept in float where the file has it quantised."""
        tail = copy.copy(self)
        tail._head = self._head.kept_in_float()
        return tail

    def logits(self, weight: NDArray[Any] | None) -> Callable[[Batch], NDArray[Any]]:
        """Return the function from {features, beside} of a batch to its (N, C) logits, under a weight."""
        written = rewrite(self._model, self._head, weight, metadata={})
        cut = cut_between(written.proto, self._feeds, [self._head.logits])
        session = open_part(self._model, cut, self._device, self._fixed_batch)

        def run(batch: Batch) -> NDArray[Any]:
            return self._head.class_logits(session.run([self._head.logits], batch)[0])

        return run


@dataclass(frozen=True)
class Probed:
    """What the first batch showed of a head or of a model without one.

    Attributes:
        readout: with what was found put in: whether the head is linear, the dtype of the logits.
        logits_shape: shape of the logits of one sample: (C,), or () for some binary heads, (C, 1, 1) for convolutions.
        plain_features: the feature tensor is (N, n) in the dtype of the logits, so that appended nodes can read it.
        tail: where only the graph computes the logits.
    """

    readout: Readout
    logits_shape: tuple[int, ...]
    plain_features: bool
    tail: Tail | None = None


def check_readout(
    model: Model, readout: Readout, probe: Session | None, source: Source, batch_size: int, device: Device
) -> Probed:
    """Compare what the head computes with the model's logits on the first batch.

    Without a session the samples hold the logits.

    Raises:
        UnsupportedModel: shapes or values differ: the head is not what the graph walk took it for.
        DataError: the logits hold NaN or infinite values.
    """
    batch = next(source.batches(batch_size))
    names = [readout.features] if isinstance(readout, Head) and readout.features not in batch else []
    *found, raw = probe.run([*names, readout.logits], batch) if probe else [batch[readout.logits]]
    logits = _class_logits(model, readout, raw, len(next(iter(batch.values()))))
    if not np.all(np.isfinite(logits)):
        row = int(np.flatnonzero(~np.isfinite(logits).all(axis=1))[0])
        raise DataError(f"{model.name}: logits '{readout.logits}' of sample {row} hold NaN or infinite values")
    _refuse_probabilities(model, readout, raw)
    entered = isinstance(readout, Head) and readout.features in batch and readout.features in model.producers
    if probe is not None and not entered:
        _check_output(model, readout, logits, batch, device)
    readout = replace(readout, logits_type=raw.dtype.name)
    if not isinstance(readout, Head):
        return Probed(readout, raw.shape[1:], plain_features=False)
    head, features = readout, found[0] if found else batch[readout.features]
    if head.linear and features.size == len(logits) * head.n_features:
        _check_linear(model, head, features, logits)
        plain = features.ndim == 2 and not head.features_transposed and features.dtype == raw.dtype
        return Probed(head, raw.shape[1:], plain)
    head = replace(head, linear=False)
    if probe is not None and probe.fixed_batch and len(features) != len(logits):
        raise UnsupportedModel(
            f"{model.name}: features '{head.features}' have shape {features.shape} for {len(logits)} samples, and the "
            "model has a fixed batch; export it with a dynamic batch"
        )
    _check_batch_axis(model, head, features, len(logits))
    sample = _with_beside(model, head, batch, features, device)
    tail = Tail(model, head, device, sample, probe.fixed_batch if probe else None)
    _check_tail(model, head, tail, sample, logits)
    return Probed(head, raw.shape[1:], plain_features=False, tail=tail)


def collect_features(
    model: Model,
    readout: Readout,
    source: Source,
    device: Device,
    batch_size: int,
    progress: Progress,
    cache: Path | None = None,
    given: Collection[str] = (),
) -> FeatureStore:
    """Run the sub-graph up to the features over all samples; up to the logits if there is no head.

    Args:
        model: the model.
        readout: its head, as `check_readout` gave it, or its logits.
        source: the samples.
        device: where to run.
        batch_size: samples per run.
        progress: called with (stage, done, total).
        cache: folder of feature stores; what an interrupted run has left there is taken over. With it the logits are
            kept too.
        given: tensors that the samples hold already.

    Raises:
        DataError: features of the wrong shape, or with NaN or infinite values.
        UsageError: no room for the features, or the cache cannot be used.
    """
    if cache is not None and given:
        raise UsageError("the data are computed features or logits already; leave --cache out")
    collector = _Collector(model, readout, source, device, batch_size, given, keep_logits=cache is not None)
    if cache is None:
        there = collector.given()
        return collector.run(TemporaryRows(len(source)).array, progress) if there is None else there
    with open_store(cache, collector.key(), source.labels, batch_size) as store:
        found = collector.run(store.array, progress, store.done, store.finish_up_to)
        return replace(found, folder=store.folder, resumed=tuple(store.notes))


def model_key(model: Model) -> dict[str, Any]:
    """What features depend on of a model: the digests of its file and of its external data."""
    digests = {}
    try:
        for location in model.external_files:
            with model.data_path(location).open("rb") as stream:
                digests[location] = stream_sha256(stream).hex()
    except OSError as error:
        raise UnsupportedModel(f"{model.name}: external data cannot be read: {error}") from error
    return {"model_sha256": model.sha256, "external_sha256": digests}


def _data_key(source: Source) -> dict[str, Any]:
    """What features depend on of the samples."""
    return {
        "data_sha256": source.digest(),
        "labels_sha256": labels_digest(source.labels),
        "recipe": source.recipe(),
    }


class _Collector:
    """One pass over the samples that keeps the features, what else the tail reads, and the logits if asked for."""

    def __init__(
        self,
        model: Model,
        readout: Readout,
        source: Source,
        device: Device,
        batch_size: int,
        given: Collection[str],
        *,
        keep_logits: bool,
    ) -> None:
        self._model, self._readout, self._source = model, readout, source
        self._batch_size, self._strict = batch_size, keep_logits
        self._head = readout if isinstance(readout, Head) else None
        self._wanted = self._head.features if self._head else readout.logits
        self._beside = read_beside(model, self._head) if self._head and not self._head.linear else []
        names = [self._wanted, *self._beside, *([readout.logits] if keep_logits else [])]
        made = (name for name in names if name in model.producers and name not in given)
        self._computed = list(dict.fromkeys(made))
        self._session = _open(model, self._computed, device) if self._computed else None
        self._rowwise: dict[str, bool] = {}

    def key(self) -> dict[str, Any]:
        """Everything that the rows depend on."""
        return {
            **model_key(self._model),
            "head": self._head.node if self._head else None,
            "features": self._wanted,
            "logits": self._readout.logits,
            "holds": self._readout.holds,
            "beside": self._beside,
            **_data_key(self._source),
            "provider": self._session.provider if self._session else "none",
            "onnxruntime": runtime_version(),
            "batch_size": self._batch_size,
        }

    def run(
        self,
        array: Callable[[str, tuple[int, ...], np.dtype[Any]], NDArray[Any]],
        progress: Progress,
        done: int = 0,
        finish_up_to: Callable[[int], None] = lambda count: None,  # noqa: ARG005
    ) -> FeatureStore:
        """Fill the arrays from sample `done` on."""
        total = len(self._source)
        rows = None if done == 0 else np.arange(done, total)
        scalars: list[Batch] = []
        fold, arrays = 0, {}
        progress("collect features", done, total)
        # one batch is run again where all are done: it tells names, shapes and dtypes
        again = self._source.batches(self._batch_size, np.arange(min(self._batch_size, total))) if done == total else ()
        for batch in again or self._source.batches(self._batch_size, rows):
            results = {**batch, **self._results(batch)}
            count = len(next(iter(batch.values())))
            raw = results[self._wanted]
            features = _rows(self._model, self._readout, raw, count)
            if self._head and self._head.linear and len(raw) == count and raw.ndim > 2:
                features = raw  # as it comes; one vector a sample
            fold = features.shape[1] if self._head and not self._head.linear and len(raw) != count else 0
            kept = {"features": features}
            alone: Batch = {}
            for k, name in enumerate(self._beside):
                if self._has_rows(name, results[name], count):
                    kept[f"beside_{k}"] = results[name]
                else:
                    alone[name] = results[name]
            if alone and self._strict:
                raise UsageError(
                    f"{self._model.name}: the nodes behind the head read {', '.join(alone)}, which have no row per "
                    "sample and cannot be kept; leave --cache out"
                )
            if self._strict and self._head:
                kept["logits"] = results[self._readout.logits]
            for name, values in kept.items():
                arrays[name] = array(name, values.shape[1:], values.dtype)
                if done < total:
                    self._put(arrays[name], name, values, done)
            scalars += [alone] if alone else []
            if done < total:
                done += count
                finish_up_to(done)
            progress("collect features", done, total)
        if "features" not in arrays or done != total:
            raise DataError(f"{self._source.describe()}: {done} samples read; expected {total}")
        beside = {name: arrays[f"beside_{k}"] for k, name in enumerate(self._beside) if f"beside_{k}" in arrays}
        labels = self._source.labels
        features = arrays["features"]
        if self._head and self._head.linear:
            features = features.reshape(total, self._head.n_features)
        return FeatureStore(features, labels, self._batch_size, beside, tuple(scalars), fold, arrays.get("logits"))

    def given(self) -> FeatureStore | None:
        """Return the samples' own array of features where that is all there is to keep: nothing is copied."""
        plain = self._head is not None and self._head.linear and not self._computed and not self._strict
        if self._head is None or not plain or not isinstance(self._source, ArraySource):
            return None
        column, total = self._source.columns[self._wanted], len(self._source)
        wanted = next(spec.dtype for spec in self._source.inputs if spec.name == self._wanted)
        if not isinstance(column, np.ndarray) or column.dtype != wanted:
            return None
        features = column.reshape(total, self._head.n_features)
        for start in range(0, total, _FINITE_ROWS):
            block = slice(start, start + _FINITE_ROWS)
            self._require_finite("features", features[block], start)
            release(features, block)
        return FeatureStore(features, self._source.labels, self._batch_size)

    def _has_rows(self, name: str, value: NDArray[Any], count: int) -> bool:
        """Whether a tensor has a row per sample; decided on the first batch.

        A vector no longer than a shape may be one, and counts as none.
        """
        there = bool(value.ndim) and len(value) == count
        if self._rowwise.setdefault(name, there and (value.ndim > 1 or count > _LONGEST_SHAPE)) and not there:
            raise UnsupportedModel(
                f"{self._model.name}: '{name}', which the nodes behind the head read, has shape {value.shape} for "
                f"{count} samples; it had a row per sample before"
            )
        return self._rowwise[name]

    def _results(self, batch: Batch) -> Batch:
        if self._session is None:
            return {}
        return dict(zip(self._computed, self._session.run(self._computed, batch), strict=True))

    def _put(self, array: NDArray[Any], name: str, values: NDArray[Any], start: int) -> None:
        if values.shape[1:] != array.shape[1:]:
            raise DataError(
                f"{self._source.describe()}: {name} of samples from {start} on have shape {values.shape[1:]}, those "
                f"before {array.shape[1:]}; give all samples the same length (padding)"
            )
        self._require_finite(name, values, start)
        array[start : start + len(values)] = values
        release(array, slice(start, start + len(values)))

    def _require_finite(self, name: str, values: NDArray[Any], start: int) -> None:
        if values.dtype.kind == "f" and not np.all(np.isfinite(values)):
            bad = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
            row = start + int(np.flatnonzero(bad)[0])
            raise DataError(f"{self._source.describe()}: {name} of sample {row} hold NaN or infinite values")


def _open(model: Model, outputs: list[str], device: Device) -> Session:
    return open_part(model, cut_at(model, outputs), device)


def _class_logits(model: Model, readout: Readout, raw: NDArray[Any], samples: int) -> NDArray[Any]:
    where = f"head '{readout.node}'" if isinstance(readout, Head) else f"output '{readout.output}'"
    try:
        if len(raw) != samples:
            raise ValueError(f"logits have shape {raw.shape} for {samples} samples")
        return readout.class_logits(raw)
    except (TypeError, ValueError) as mismatch:
        what = "" if "probabilities" not in str(mismatch) else f"; {mismatch}"
        raise UnsupportedModel(
            f"{model.name}: logits '{readout.logits}' have shape {raw.shape} for {samples} samples; expected (N, "
            f"{readout.n_classes}) for {where}{what}"
        ) from mismatch


def _refuse_probabilities(model: Model, readout: Readout, raw: NDArray[Any]) -> None:
    """Refuse an output that was said to hold logits when every row is a distribution."""
    if readout.holds != "logits" or readout.activation != "none":
        return
    if raw.ndim == 2 and np.all(raw >= 0) and np.all(np.abs(raw.sum(axis=1) - 1) < 1e-3):
        raise UnsupportedModel(
            f"{model.name}: output '{readout.output}' should hold logits, but all values are positive and add up to 1: "
            "they are probabilities; use --search none --output-kind probabilities, or choose another --output-name"
        )


def _check_output(model: Model, readout: Readout, logits: NDArray[Any], batch: Batch, device: Device) -> None:
    """Compare an output that comes after the logits with what it should be.

    Raises:
        UnsupportedModel: it is not the softmax of the logits, say, because that runs over another axis.
    """
    output = output_of(readout)
    if output.mapped or readout.output == readout.logits or readout.output not in model.producers:
        return
    values = _open(model, [readout.output], device).run([readout.output], batch)[0]
    coarse = 1e-3 + 16 * epsilon(readout.logits_type) * max(1.0, float(np.abs(logits).max())) + readout.output_step
    if values.size != len(logits) * output.width or np.any(
        np.abs(output.probabilities(values) - softmax(logits)) > coarse + 0.6 * (readout.output_step > 0)
    ):
        raise UnsupportedModel(
            f"{model.name}: output '{readout.output}' is not the {readout.activation} of '{readout.logits}' over the "
            "classes"
        )


def _check_linear(model: Model, head: Head, features: NDArray[Any], logits: NDArray[Any]) -> None:
    matrix = features.T if head.features_transposed else features
    if len(matrix) != len(logits):
        raise UnsupportedModel(
            f"{model.name}: features '{head.features}' have shape {features.shape}; expected (N, {head.n_features}), "
            "one vector a sample"
        )
    z, w = matrix.reshape(len(logits), -1).astype(np.float64), head.weight.astype(np.float64)
    size = np.abs(z) @ np.abs(w).T + np.abs(head.bias)
    expected = z @ w.T + head.bias
    if head.holds == "probabilities":  # logits are known up to a constant per row, and no finer than p near 1 is
        expected = expected - np.log(np.sum(np.exp(expected - expected.max(axis=1, keepdims=True)), axis=1))[:, None]
        expected -= expected.max(axis=1, keepdims=True) - logits.max(axis=1, keepdims=True)
        low = float(np.log(np.finfo(np.float32).tiny)) + 5
        expected, logits = np.maximum(expected, low), np.maximum(logits, low)
        size = size + size.max(axis=1, keepdims=True) + 64 * np.exp(-np.minimum(logits, 0) / 2).clip(1, 1e4)
    coarse = max(epsilon(head.stored_weight.value.dtype.name), epsilon(features.dtype.name), epsilon(logits.dtype.name))
    error = np.abs(expected - logits)
    if np.any(error > _ROUNDINGS * coarse * size + head.step):
        raise UnsupportedModel(
            f"{model.name}: head '{head.node}' does not give the model's logits: features @ weight.T + bias differs "
            f"from '{head.logits}' by up to {error.max():.3g} (largest logit {np.abs(logits).max():.3g}); choose "
            "another with --head NODE"
        )


def _check_batch_axis(model: Model, head: Head, features: NDArray[Any], samples: int) -> None:
    if head.features_transposed or features.ndim < 2 or len(features) % samples:
        raise UnsupportedModel(
            f"{model.name}: features '{head.features}' have shape {features.shape} for {samples} samples; expected the "
            "samples along axis 0"
        )


def _with_beside(model: Model, head: Head, batch: Batch, features: NDArray[Any], device: Device) -> Batch:
    """Return what the nodes from the linear layer to the logits read of one batch."""
    beside = read_beside(model, head)
    computed = [name for name in beside if name in model.producers and name not in batch]
    results = _open(model, computed, device).run(computed, batch) if computed else []
    values = {**batch, **dict(zip(computed, results, strict=True))}
    return {head.features: features, **{name: values[name] for name in beside}}


def _check_tail(model: Model, head: Head, tail: Tail, sample: Batch, logits: NDArray[Any]) -> None:
    """Check the sub-graph after the features: it gives the logits, and class vector k moves logit k alone.

    Raises:
        UnsupportedModel: one of them does not hold.
    """
    found = tail.logits(None)(sample)
    tolerance = 1e-3 * max(1.0, float(np.abs(logits).max())) + 2 * head.step
    if found.shape != logits.shape or np.any(np.abs(found - logits) > tolerance):
        raise UnsupportedModel(
            f"{model.name}: the nodes from head '{head.node}' to '{head.logits}' do not give the model's logits; "
            "choose another with --head NODE"
        )
    original = tail.logits(head.weight)(sample)
    seen = 0
    first = 1 if np.all(head.weight[0] == 0) else 0
    for k in range(first, min(head.n_classes, first + _PROBED_CLASSES)):
        changed = head.weight.copy()
        changed[k] = 0.5 * np.roll(changed[k], 1) - changed[k]
        moved = tail.logits(changed)(sample).astype(np.float64) - original
        if head.holds == "probabilities":  # dividing by the sum moves all others by the same
            others = np.delete(moved, k, axis=1)
            moved -= others[:, :1] if others.shape[1] else 0
        own, rest = np.abs(moved[:, k]).max(), np.abs(np.delete(moved, k, axis=1)).max(initial=0)
        if rest > 1e-3 * max(own, float(np.abs(logits).max())) + 2 * head.step:
            raise UnsupportedModel(
                f"{model.name}: class vector {k} of head '{head.node}' moves the logits of other classes too: it is "
                "not the classifier's own layer"
            )
        seen += own > head.step
    if not seen:
        raise UnsupportedModel(
            f"{model.name}: changing the class vectors of head '{head.node}' does not move the logits of the first "
            f"{len(logits)} samples"
        )


def _rows(model: Model, readout: Readout, raw: NDArray[Any], samples: int) -> NDArray[Any]:
    """Return what is kept of each sample, along axis 0."""
    if not isinstance(readout, Head):
        return _class_logits(model, readout, raw, samples)
    if not readout.linear:
        _check_batch_axis(model, readout, raw, samples)
        return raw if len(raw) == samples else raw.reshape(samples, -1, *raw.shape[1:])
    features, n = raw.T if readout.features_transposed else raw, readout.n_features
    if len(features) != samples or features.size != samples * n:
        raise UnsupportedModel(
            f"{model.name}: features '{readout.features}' have shape {raw.shape}; expected (N, {n}), one vector a "
            "sample"
        )
    return features.reshape(samples, n)
