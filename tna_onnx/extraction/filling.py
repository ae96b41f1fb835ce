"""What a worker does with a chunk of samples: it reads them, runs the model, and writes their rows into the store.

1. A worker opens model and samples itself, at its first chunk, and compares what it finds with what the driver found.
2. It writes the bytes of its rows and no others: whole pages of a mapped file would be written back, and a page
   that two machines write to would keep the rows of one of them.
3. Its bytes are on disk before it says so, and the checksum is of what the file holds then.
4. What comes back is the place of the chunk and its checksum. No samples and no features travel.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.files import open_regular
from tna_onnx.data.options import Data
from tna_onnx.errors import UsageError
from tna_onnx.extraction.agreed import require_model, require_provider, require_samples_of, require_versions
from tna_onnx.extraction.collect import Collector, session_for
from tna_onnx.extraction.manifest import read_manifest
from tna_onnx.extraction.own_files import open_own
from tna_onnx.extraction.sessions import OpenModel
from tna_onnx.extraction.store import cannot_write, rows_checksum
from tna_onnx.extraction.tensors import Tensors
from tna_onnx.graph.integers import opened_up
from tna_onnx.graph.limits import ModelLimits
from tna_onnx.graph.load import load_model
from tna_onnx.graph.readout import Readout
from tna_onnx.runtime import Device
from tna_onnx.runtime.session import CUDA

__all__ = ["ChunkFiller", "Column", "Filled"]


@dataclass(frozen=True)
class Filled:
    """Chunk `place` is in the store, with this checksum."""

    place: int
    checksum: str


@dataclass(frozen=True)
class Column:
    """Shape of a sample's row, and dtype, of one array of the store."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(eq=False)
class ChunkFiller:
    """Fills chunks of a store; sent to workers before it is called.

    Attributes:
        model: path of the model, or its bytes.
        limits: how much of the model is taken in.
        opened: whether the driver reads it with integer heads opened.
        readout: what is collected, as the driver checked it.
        device: where to run.
        data: the samples.
        class_names: in the order of the model's output, if known.
        tensors: what is kept of a batch.
        has_row: which tensors have a row per sample, as the driver's first batch showed.
        folder: of the store, whose key the driver has written.
        key: of the store.
        columns: its arrays, by name.
        samples: their number.
        chunk: samples per chunk.
        versions: of the driver's libraries.
    """

    model: Path | bytes
    limits: ModelLimits
    opened: bool
    readout: Readout
    device: Device
    data: Data
    class_names: tuple[str, ...] | None
    tensors: Tensors
    has_row: Mapping[str, bool]
    folder: Path
    key: Mapping[str, Any]
    columns: Mapping[str, Column]
    samples: int
    chunk: int
    versions: Mapping[str, str]
    _collector: Collector | None = field(default=None, init=False, repr=False)

    @property
    def needs_gpu(self) -> bool:
        """Whether a worker needs a GPU."""
        return bool(self.key["provider"] == CUDA)

    def __call__(self, place: int) -> Filled:
        """Fill chunk `place`.

        Raises:
            UsageError: the worker sees another model or store than the driver, or cannot write.
            DataError: it sees other samples, or a sample cannot be used.
            DeviceError: it has other versions of libraries, or another device.
        """
        if self._collector is None:
            require_versions(self.versions)
            self._check_store()
            self._collector = self._open()
        rows = slice(place * self.chunk, min((place + 1) * self.chunk, self.samples))
        try:
            self._fill(self._collector, rows)
            return Filled(place, self._checksum(rows))
        except OSError as error:  # of the store: sources have errors of their own
            raise cannot_write(self.folder, error) from error

    def _fill(self, collector: Collector, rows: slice) -> None:
        files: dict[str, _RowFile] = {}
        start = rows.start
        try:
            for name, column in self.columns.items():
                files[name] = _RowFile(self.folder / f"{name}.bin", column, self.samples)
            batches = collector.source.batches(collector.batch_size, np.arange(rows.start, rows.stop))
            for batch, kept in collector.in_turn(batches):
                for name, values in kept.arrays.items():
                    collector.put(files[name], name, values, start)
                start += len(next(iter(batch.values())))
            for file in files.values():
                file.flush()
        finally:
            for file in files.values():
                file.close()

    def _checksum(self, rows: slice) -> str:
        arrays: dict[str, NDArray[Any]] = {}
        for name, column in self.columns.items():
            with open_regular(self.folder / f"{name}.bin", follow=False) as file:
                arrays[name] = np.memmap(file, column.dtype, "r", shape=(self.samples, *column.shape))
        return rows_checksum(arrays, rows)

    def _open(self) -> Collector:
        model = load_model(self.model, self.limits)
        if self.opened:
            model = opened_up(model)
        require_model(model, self.key)
        opened = OpenModel(model, self.readout, self.device)
        source = self.data.open(opened.inputs, self.readout.n_classes, self.class_names)
        require_samples_of(source, self.key)
        session = session_for(opened, self.tensors, source, {})
        provider = session.provider if session else "none"
        require_provider(provider, str(self.key["provider"]))
        collector = Collector(opened, self.readout, source, int(self.key["batch_size"]), self.tensors, session)
        collector.has_row.update(self.has_row)
        return collector

    def _check_store(self) -> None:
        manifest = read_manifest(self.folder)
        if manifest is None or manifest["key"] != self.key:
            raise UsageError(f"{self.folder}: a worker does not see this store; put --cache on a disk that all share")


class _RowFile:
    """The file of one array, to be assigned rows to."""

    def __init__(self, path: Path, column: Column, samples: int) -> None:
        self.shape = (samples, *column.shape)
        self._column = column
        # never made here: a worker that does not see the driver's file would fill one of its own
        if not path.exists():
            raise UsageError(f"{path}: is not there for a worker; put --cache on a disk that all share")
        self._file: IO[bytes] = open_own(path)

    def __setitem__(self, rows: slice, values: NDArray[Any]) -> None:
        self._file.seek(rows.start * self._column.row_bytes)
        self._file.write(np.ascontiguousarray(values, self._column.dtype).data)

    def flush(self) -> None:
        """Wait until the bytes are on disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()
