"""Features by several workers: the store is laid out here, workers fill its chunks, and their checksums are recorded.

The store is the one that a single process fills, byte for byte; either takes over what the other has left. Chunks are
recorded in order, so a run that is killed keeps all chunks before the first one that is missing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tna_onnx.data import Source
from tna_onnx.data.options import Data
from tna_onnx.data.urls import is_url, local_path
from tna_onnx.errors import UsageError
from tna_onnx.extraction.agreed import versions
from tna_onnx.extraction.collect import Collector, session_for
from tna_onnx.extraction.filling import ChunkFiller, Column, Filled
from tna_onnx.extraction.sessions import OpenModel
from tna_onnx.extraction.store import DiskStore, open_store
from tna_onnx.extraction.table import FeatureTable
from tna_onnx.extraction.tensors import Tensors
from tna_onnx.graph.in_memory import model_bytes
from tna_onnx.graph.readout import Readout
from tna_onnx.progress import Progress

__all__ = ["MapChunks", "Spread", "require_openable"]

MapChunks = Callable[[Callable[[int], Filled], Iterable[tuple[int]]], Generator[Filled, None, None]]
"""`map_chunks` of an engine."""


@dataclass(frozen=True, eq=False)
class Spread:
    """Samples that workers open by themselves.

    Attributes:
        map_chunks: of the engine.
        data: what the user named.
    """

    map_chunks: MapChunks
    data: Data

    def collect(
        self,
        opened: OpenModel,
        readout: Readout,
        source: Source,
        names: tuple[str, ...] | None,
        batch_size: int,
        progress: Progress,
        cache: Path,
        *,
        keep_logits: bool = True,
    ) -> FeatureTable:
        """Run the model over all samples and keep its features, as `collect_features` does.

        Args:
            opened: the model.
            readout: its head, as `check_readout` gave it, or its logits.
            source: the samples, opened here.
            names: of the classes, if known.
            batch_size: samples per run.
            progress: called with (stage, done, total).
            cache: folder of feature stores, on a disk that all workers share.
            keep_logits: whether the store holds the logits too.

        Raises:
            DataError, DeviceError, UsageError: as `ChunkFiller`, the engine and `open_store` raise them.
        """
        tensors = Tensors.of(opened, readout, {}, keep_logits=keep_logits)
        session = session_for(opened, tensors, source, {})
        collector = Collector(opened, readout, source, batch_size, tensors, session)
        with open_store(cache, collector.key(), source.labels, batch_size) as store:
            # names, shapes and dtypes of the arrays, which all workers must agree on
            first = collector.rows(next(source.batches(batch_size)))
            if first.scalars:
                several = ", ".join(first.scalars)
                raise UsageError(f"{opened.model.name}: {several} have no row per sample; leave --engine out")
            for name, values in first.arrays.items():
                store.array(name, values.shape[1:], values.dtype)
            self._fill(self._filler(opened, collector, names, store), store, progress)
            table = collector.table(store.reopened(), (), first.rows)
            return replace(table, folder=store.folder, resumed=tuple(store.notes))

    def _fill(self, filler: ChunkFiller, store: DiskStore, progress: Progress) -> None:
        """Have all chunks filled that are missing."""
        missing = range(len(store.checksums), store.n_chunks)
        progress("collect features", store.finished, store.samples)
        with contextlib.closing(self.map_chunks(filler, ((place,) for place in missing))) as results:
            try:
                for filled in results:
                    store.take(filled.checksum)
                    progress("collect features", store.finished, store.samples)
            finally:
                store.record()

    def _filler(
        self, opened: OpenModel, collector: Collector, names: tuple[str, ...] | None, store: DiskStore
    ) -> ChunkFiller:
        model = opened.model
        return ChunkFiller(
            model=model.path or model_bytes(model.proto),
            limits=model.limits,
            opened=model.closed is not None,
            readout=collector.readout,
            device=opened.device,
            data=self.data,
            class_names=names,
            tensors=collector.tensors,
            has_row=collector.has_row,
            folder=store.folder,
            key=store.key,
            columns={name: Column(array.shape[1:], array.dtype) for name, array in store.arrays.items()},
            samples=store.samples,
            chunk=store.chunk,
            versions=versions(),
        )


def require_openable(data: Data, engine: str) -> None:
    """Check that workers can open samples by themselves, and find the same ones.

    Raises:
        UsageError: they cannot.
    """
    samples = data.samples
    if not isinstance(samples, (str, Path)):
        raise UsageError(f"--engine {engine} needs data that each worker can open: a path, not a Python object")
    # each worker would copy all of it, and a loader may give other samples each time
    if is_url(local_path(str(samples))):
        raise UsageError(f"{samples}: --engine {engine} needs data on a disk that all workers share; copy them there")
    if data.format == "loader":
        raise UsageError(f"{samples}: a loader gives its samples once; leave --engine {engine} out")
    if data.skip_bad:
        raise UsageError(
            f"--skip-bad decodes all images first, which each worker would do again; leave out --engine {engine}, or "
            "remove the images that cannot be read"
        )
