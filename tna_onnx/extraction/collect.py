"""One pass of the network over the samples, up to the features."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data import Batch, Source
from tna_onnx.data.sources.columns import ArraySource
from tna_onnx.errors import DataError, UnsupportedModel, UsageError
from tna_onnx.extraction.batch_size import BatchSize, choose_batch_size
from tna_onnx.extraction.head_check import check_batch_axis, class_logits
from tna_onnx.extraction.keys import data_key, model_key
from tna_onnx.extraction.mapped import TemporaryRows, release
from tna_onnx.extraction.sessions import open_cut
from tna_onnx.extraction.store import begun_batch_size, find_stores, open_store
from tna_onnx.extraction.table import FeatureTable
from tna_onnx.graph.cut import read_beside
from tna_onnx.graph.load import Model
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.progress import Progress
from tna_onnx.runtime import Device, Session, runtime_version

__all__ = ["batch_size_for", "collect_features"]


# Rows checked at a time: their flags fit into the cache.
_FINITE_ROWS = 4096


# Axes that a tensor may have; a vector of that many numbers may be a shape.
_LONGEST_SHAPE = 8


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
        stored = begun_batch_size(cache, {**model_key(model), **data_key(source)})
    return choose_batch_size(wanted, probe, probe.outputs if probe and wanted == "auto" else (), source, stored)


def collect_features(
    model: Model,
    readout: Readout,
    source: Source,
    device: Device,
    batch_size: int,
    progress: Progress,
    cache: Path | None = None,
    given: Collection[str] = (),
) -> FeatureTable:
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
        self._session = open_cut(model, self._computed, device) if self._computed else None
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
            **data_key(self._source),
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
    ) -> FeatureTable:
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
        return FeatureTable(features, labels, self._batch_size, beside, tuple(scalars), fold, arrays.get("logits"))

    def given(self) -> FeatureTable | None:
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
        return FeatureTable(features, self._source.labels, self._batch_size)

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


def _rows(model: Model, readout: Readout, raw: NDArray[Any], samples: int) -> NDArray[Any]:
    """Return what is kept of each sample, along axis 0."""
    if not isinstance(readout, Head):
        return class_logits(model, readout, raw, samples)
    if not readout.linear:
        check_batch_axis(model, readout, raw, samples)
        return raw if len(raw) == samples else raw.reshape(samples, -1, *raw.shape[1:])
    features, n = raw.T if readout.features_transposed else raw, readout.n_features
    if len(features) != samples or features.size != samples * n:
        raise UnsupportedModel(
            f"{model.name}: features '{readout.features}' have shape {raw.shape}; expected (N, {n}), one vector a "
            "sample"
        )
    return features.reshape(samples, n)
