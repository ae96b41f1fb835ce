"""The feature table (`FeatureTable`), and the one pass of the network over the samples that fills it.

It holds features of a head, or the logits of a model without one. What the samples hold already is neither computed
nor copied.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.choices import STORED
from tna_onnx.data.mapped import allocate, release, room
from tna_onnx.data.several import LabelSource
from tna_onnx.data.source import Batch, Source, SourceView
from tna_onnx.data.sources.arrays import ArraySource
from tna_onnx.data.sources.image_files import folder_names
from tna_onnx.errors import DataError, UnsupportedModel, UsageError
from tna_onnx.extraction.classifier import OpenModel
from tna_onnx.extraction.head_check import check_batch_axis, class_logits
from tna_onnx.extraction.independence import is_verified_in_other_batches
from tna_onnx.extraction.sessions import batch_in_rows
from tna_onnx.extraction.store import DiskStore, data_key, model_key, open_store
from tna_onnx.graph.load import Model
from tna_onnx.graph.readers import LabelOutput
from tna_onnx.graph.readout import Head, Readout
from tna_onnx.graph.tensors import epsilon
from tna_onnx.numerics.ops import rows_of
from tna_onnx.progress import Progress
from tna_onnx.runtime import Session, runtime_version, side_by_side

# Elements of one block of logits: 16 MB of float32. Large enough for the matrix product, small enough for the sums that
# follow to find it in the cache.
_BLOCK = 2**22

# Share of the tokens from which on little is padding; units of rounding that leaving padding out may move a feature.
_FULL = 0.9
_ROUNDINGS = 16


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """Features and labels of N samples.

    `rows` features of a sample may follow one another on the tensor's axis 0; they are kept as one more axis.
    """

    # (N, n), mapped from a file, in the model's dtype. Where only the graph can compute the logits, (N, ...): all
    # values of a sample. For a model without a head, the logits (N, C).
    features: NDArray[Any]
    labels: NDArray[np.int64]  # (N,) int64
    batch_size: int = 0  # samples per batch when they were collected
    rows: int = 0  # how many rows of the feature tensor belong to a sample, where that is more than one; else 0
    folder: Path | None = None  # the feature store on disk, if they are kept in one
    resumed: tuple[str, ...] = ()  # notes on what an earlier run had left in that store
    # (N,) which of the N belong to one sample of the data, where those have several predictions; else None
    clusters: NDArray[np.int64] | None = None
    weights: NDArray[np.float64] | None = None  # (N,) how much each sample counts; None where all count the same
    # (N,) places of the classes of `OpenModel.decided`, -1 for others; None where not all were run
    decided: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.labels)

    def part(self, rows: NDArray[np.intp]) -> FeatureTable:
        """Return some samples, in this order, as a table: features and labels are all that a linear head needs."""
        return FeatureTable(
            self._selected(rows),
            self.labels[rows],
            self.batch_size,
            clusters=rows_of(self.clusters, rows),
            weights=rows_of(self.weights, rows),
            decided=rows_of(self.decided, rows),
        )

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
        step = max(1, _BLOCK // max(n_classes, self.features.shape[1]))
        dtype = np.result_type(self.features, np.float32)  # of float16, sums would have three digits
        for start in range(0, len(self.labels), step):
            rows = slice(start, min(start + step, len(self.labels)))
            yield np.asarray(self.features[rows], dtype), self.labels[rows]
            # A second pass reads them again: memory is to stay the same however many samples there are.
            release(self.features, rows)

    def blocks(self, least: int) -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        """Yield (features, labels) of neighbouring batches of the collection, joined until they have `least` samples.

        Features have the shape that the model's own tensor has.
        """
        step = self.batch_size * math.ceil(least / self.batch_size)
        for start in range(0, len(self), step):
            block = slice(start, min(start + step, len(self)))
            features = np.asarray(self.features[block])
            if self.rows:
                features = features.reshape(-1, *features.shape[2:])
            yield features, self.labels[block]
            release(self.features, block)


def require_finite(source: Source, name: str, values: NDArray[Any], start: int) -> None:
    """Refuse rows of a tensor with NaN or infinite values."""
    if values.dtype.kind == "f" and not np.all(np.isfinite(values)):
        bad = ~np.isfinite(values).reshape(len(values), -1).all(axis=1)
        row = start + int(np.flatnonzero(bad)[0])
        raise DataError(f"{source.describe()}: {name} of sample {row} hold NaN or infinite values")


# Rows checked at a time: their flags fit into the cache.
_FINITE_ROWS = 4096


def own_features(readout: Readout, source: Source, batch_size: int) -> FeatureTable | None:
    """Return the samples' own array of features, of which nothing is computed, where that is all there is to keep.

    None where something has to be converted, or the samples are no arrays.
    """
    arrays = source.source if isinstance(source, LabelSource) else source
    if not isinstance(readout, Head) or not readout.linear or not isinstance(arrays, ArraySource):
        return None
    column = arrays.columns[readout.main]
    dtype = next(spec.dtype for spec in arrays.inputs if spec.name == readout.main)
    if column.dtype != dtype:  # a conversion copies
        return None
    features = column.reshape(len(source), readout.n_features)
    for start in range(0, len(features), _FINITE_ROWS):
        block = slice(start, start + _FINITE_ROWS)
        require_finite(source, "features", features[block], start)
        release(features, block)
    return FeatureTable(features, source.labels, batch_size)


@dataclass(frozen=True, eq=False)
class ByLength(SourceView):
    """Samples of tokens in the order of their length; a batch is without what its mask takes for padding throughout."""

    mask: str  # the input that is 0 for padding
    order: NDArray[np.int64]  # (N,) of the samples

    @classmethod
    def of(cls, source: Source) -> ByLength | None:
        """Order samples of tokens (N, T) of any length, of which one input is the mask, and a tenth is padding."""
        arrays = source.source if isinstance(source, LabelSource) else source
        if not isinstance(arrays, ArraySource):
            return None
        masks = [spec.name for spec in arrays.inputs if "mask" in spec.name.lower()]
        texts = all(len(spec.shape) == 2 and not spec.shape[1] and spec.dtype.kind in "iu" for spec in arrays.inputs)
        if len(masks) != 1 or not texts or len({column.shape for column in arrays.columns.values()}) != 1:
            return None
        tokens = np.asarray(arrays.columns[masks[0]]) != 0
        lengths = np.count_nonzero(tokens, axis=1)
        if np.mean(lengths) >= _FULL * tokens.shape[1]:
            return None
        # without gaps, and all on one side: else the shortest ones do not tell what moves the others
        runs = [tokens.shape[1] - order.argmax(axis=1) for order in (tokens, tokens[:, ::-1])]
        if not any(np.array_equal(run, lengths) for run in runs):
            return None
        return cls(source, masks[0], np.argsort(lengths, kind="stable"))

    @property
    def labels(self) -> NDArray[np.int64]:
        """Class indices (N,)."""
        return self.source.labels[self.order]

    def __len__(self) -> int:
        return len(self.order)

    def describe(self) -> str:
        return self.source.describe()

    def batches(self, size: int, rows: NDArray[np.int64] | None = None) -> Iterator[Batch]:
        for batch in self.source.batches(size, self.order if rows is None else self.order[rows]):
            used = batch[self.mask].any(axis=0)
            yield {name: np.ascontiguousarray(array[:, used]) for name, array in batch.items()}


def _collected_by_length(collector: Collector, progress: Progress) -> FeatureTable | None:
    """Collect features without most of the padding, where the shortest samples show that it changes rounding only.

    The check of a written file compares samples with all of their padding.
    """
    source, readout, size = collector.source, collector.readout, collector.batch_size
    linear = isinstance(readout, Head) and readout.linear
    if not linear or not is_verified_in_other_batches(collector.model, readout, source, collector.provider):
        return None
    view = ByLength.of(source)
    if view is None:
        return None
    shortest = np.arange(min(size, len(view)))
    by_length = replace(collector, source=view)
    # a network may not take short samples; of wrong ones the usual run tells
    with contextlib.suppress(DataError, UnsupportedModel):
        padded = collector.rows(next(source.batches(size, view.order[shortest]))).features
        moved = np.abs(by_length.rows(next(view.batches(size, shortest))).features - padded)
        if np.max(moved) <= _ROUNDINGS * epsilon(padded.dtype.name) * np.max(np.abs(padded)):
            return by_length.run(progress).part(np.argsort(view.order))
    return None


def collect_features(
    opened: OpenModel,
    readout: Readout,
    source: Source,
    batch_size: int,
    progress: Progress,
    cache: Path | None = None,
    dtypes: Mapping[str, np.dtype[Any]] = MappingProxyType({}),
) -> FeatureTable:
    """Run the model over all samples and keep its features; its logits if there is no head.

    `cache`: folder of feature stores, where an interrupted run continues. `dtypes`: of tensors that the samples hold
    already.
    """
    if cache is not None and dtypes:  # nothing new to store
        raise UsageError("the data are computed features or logits already; leave --cache out")
    computed = readout.main not in dtypes and bool(opened.computed([readout.main]))
    if not dtypes:
        opened.divide_cores(math.ceil(len(source) / batch_size))
    session = None  # the samples hold all that is kept
    if computed:
        session = opened.session_from(dtypes)
    elif opened.readout.several:  # the session still knows which positions of an input are rows
        session = opened.session
    decided = opened.decided if computed and not dtypes else None
    collector = Collector(opened.model, readout, source, batch_size, session, decided)
    if cache is None:
        if not computed and (table := own_features(readout, source, batch_size)) is not None:
            return table
        return _collected_by_length(collector, progress) or collector.run(progress)
    columns = {role: values for role, values in source.sample_info.items() if role in STORED}
    classes: tuple[str, ...] = ()
    if opened.names or folder_names(source):
        classes = opened.class_names(source)
    with open_store(cache, collector.key(), source.labels, batch_size, columns, classes) as store:
        return collector.run(progress, store)


@dataclass(frozen=True, eq=False)
class BatchRows:
    """What is kept of one batch."""

    features: NDArray[Any]  # a row per sample
    rows: int  # rows of the feature tensor per sample, where there are several; else 0
    decided: NDArray[np.int64] | None  # places of the classes of the output `decided`


@dataclass(frozen=True, eq=False)
class Collector:
    """Runs the batches and keeps their rows."""

    model: Model
    readout: Readout  # its head, or the tensor of logits or probabilities
    source: Source
    batch_size: int
    session: Session | None  # None where the samples hold all that is kept
    decided: LabelOutput | None = None  # the output with the model's own decisions, where they are kept too

    @property
    def provider(self) -> str:
        """Where the network is run."""
        return self.session.provider if self.session else "none"

    @property
    def _head(self) -> Head | None:
        return self.readout if isinstance(self.readout, Head) else None

    def key(self) -> dict[str, Any]:
        """Everything that the rows depend on."""
        return {
            **model_key(self.model),
            "head": self._head.node if self._head else None,
            "features": self.readout.main,
            "logits": self.readout.logits,
            "holds": self.readout.holds,
            **data_key(self.source),
            "provider": self.provider,  # decides on the order of sums, as the next two do
            "onnxruntime": runtime_version(),
            "batch_size": self.batch_size,
        }

    def run(self, progress: Progress, store: DiskStore | None = None) -> FeatureTable:
        """Run all samples that a store does not have yet, and keep their rows there, or in a temporary file."""
        total = len(self.source)
        done = store.done if store else 0
        features: NDArray[Any] | None = None
        rows_a_sample = 0
        decided: list[NDArray[np.int64]] = []
        progress("collect features", done, total)
        at_once = 1
        if self.session:
            at_once = self.session.at_once
        for batch, rows in side_by_side(self.rows, self._batches(done), at_once):
            rows_a_sample = rows.rows
            if rows.decided is not None:
                decided.append(rows.decided)
            if features is None:
                shape, dtype = rows.features.shape[1:], rows.features.dtype
                features = store.array(shape, dtype) if store else allocate(None, (total, *shape), dtype)
            if done < total:
                self._put(features, rows.features, done)
                done += len(next(iter(batch.values())))
                if store:
                    store.finish_up_to(done)
            progress("collect features", done, total)
        if features is None or done != total:
            raise DataError(f"{self.source.describe()}: {done} samples read; expected {total}")
        if self._head and self._head.linear:
            features = features.reshape(total, self._head.n_features)
        places = None  # where an earlier run did the first ones
        if sum(map(len, decided)) == total:
            places = np.concatenate(decided)
        return FeatureTable(
            features,
            self.source.labels,
            self.batch_size,
            rows=rows_a_sample,
            folder=store.folder if store else None,
            resumed=tuple(store.notes) if store else (),
            decided=places,
        )

    def _batches(self, done: int) -> Iterator[Batch]:
        """Yield the batches from sample `done` on.

        Where all are done, the first one is run again: it tells shape and dtype of the array.
        """
        total = len(self.source)
        rows = np.arange(done, total) if done else None
        if done == total:
            rows = np.arange(min(self.batch_size, total))
        return self.source.batches(self.batch_size, rows)

    def rows(self, batch: Batch) -> BatchRows:
        """Run one batch and return what is kept of it."""
        results = batch_in_rows(self.session, batch)
        names = []
        if self.readout.main not in batch:
            names = [self.readout.main]
        if self.decided is not None:
            names.append(self.decided.name)
        if self.session is not None and names:  # else the samples hold all of it themselves
            results.update(zip(names, self.session.run(names, batch), strict=True))
        count = len(next(iter(batch.values())))
        raw = results[self.readout.main]
        features = self._main_rows(raw, count)
        as_several = self._head is not None and not self._head.linear and len(raw) != count
        decided = None if self.decided is None else self.decided.places(results[self.decided.name])
        return BatchRows(features, features.shape[1] if as_several else 0, decided)

    def _main_rows(self, raw: NDArray[Any], samples: int) -> NDArray[Any]:
        """Return what is kept of the features or logits, a row per sample."""
        head = self._head
        if head is None:
            return class_logits(self.model, self.readout, raw, samples)
        if not head.linear:
            check_batch_axis(self.model, head, raw, samples)
            if len(raw) != samples:
                raw = raw.reshape(samples, -1, *raw.shape[1:])
            return raw
        features = raw
        if head.features_transposed:
            features = raw.T
        if len(features) != samples or features.size != samples * head.n_features:
            raise UnsupportedModel(
                f"{self.model.name}: features '{head.features}' have shape {raw.shape}; expected "
                f"(N, {head.n_features}), one vector a sample"
            )
        if len(raw) == samples and raw.ndim > 2:
            return raw  # kept as it comes: (N, n, 1, 1), say
        return features.reshape(samples, head.n_features)

    def _put(self, array: NDArray[Any], values: NDArray[Any], start: int) -> None:
        if values.shape[1:] != array.shape[1:]:
            raise DataError(
                f"{self.source.describe()}: features of samples from {start} on have shape {values.shape[1:]}, those "
                f"before {array.shape[1:]}; give all samples the same length (padding)"
            )
        require_finite(self.source, "features", values, start)  # before a store keeps it
        array[start : start + len(values)] = values
        release(array, slice(start, start + len(values)))
