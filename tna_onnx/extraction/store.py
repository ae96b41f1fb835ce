"""Features, logits and labels of N samples on disk, memory-mapped, chunk by chunk, so that an interrupted run goes on.

A store is a folder with `features.bin` and `logits.bin` (raw rows), `labels.npy` and `manifest.json`. The manifest says
what the rows were computed from (the key: digests of model and data, head, preprocessing, provider, batch size,
versions), which chunks are finished, and their checksums.

1. A chunk counts as finished once its bytes are on disk: they are written before the manifest that names them.
2. A chunk whose checksum differs is computed again, and so are those after it.
3. Nothing is used of a store with another key, or with a manifest that was changed.
4. One process at a time fills a store. The lock belongs to the process: it ends with it, however that ends.
5. Of the chunk in work, `journal.txt` names the batches that are done, with a checksum each.
6. Nothing in a store is opened through a link, and a store is filled by the user who made it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.files import open_regular
from tna_onnx.errors import UsageError
from tna_onnx.extraction.journal import JOURNAL, Done, append_line, clear, read_lines
from tna_onnx.extraction.lock import locked
from tna_onnx.extraction.manifest import MANIFEST, as_json, json_digest, read_manifest, replace_file, write_manifest
from tna_onnx.extraction.mapped import allocate, release
from tna_onnx.extraction.own_files import make_folder, open_own

__all__ = ["LABELS", "DiskStore", "cannot_write", "chunk_size", "open_store", "rows_checksum"]

LABELS = "labels.npy"

# Samples per chunk, to the nearest whole batches below: a million samples make a manifest of 70 kB, and the disk is
# waited for a thousand times.
_CHUNK = 1024

# Where several processes fill the store, the next manifest waits this long, and this many times as long as the last one
# took: that of a hundred million samples has 7 MB, and workers wait for who writes it.
_SECONDS, _TIMES = 1.0, 50.0


@dataclass(eq=False)
class DiskStore:
    """A store that is being filled, as `open_store` gives it.

    Attributes:
        folder: where it lies.
        key: what its rows are computed from.
        samples: number of samples N.
        chunk: samples per chunk, a multiple of the batch size.
        checksums: of the finished chunks.
        arrays: name -> (N, ...) rows, mapped.
        begun: samples of the chunk in work that are done (rule 5).
        notes: what could not be used of an earlier run.
    """

    folder: Path
    key: dict[str, Any]
    samples: int
    chunk: int
    checksums: list[str] = field(default_factory=list)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    begun: int = 0
    notes: list[str] = field(default_factory=list)
    _unrecorded: int = 0
    _record_at: float = 0.0

    @property
    def n_chunks(self) -> int:
        """Number of chunks, finished or not."""
        return -(-self.samples // self.chunk)

    @property
    def done(self) -> int:
        """Number of samples whose rows are there."""
        return self.finished + self.begun

    @property
    def finished(self) -> int:
        """Number of samples in finished chunks."""
        return min(self.samples, len(self.checksums) * self.chunk)  # the last chunk may be shorter

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the rows of one tensor, (N, *shape), mapped for writing.

        Raises:
            UsageError: no room on the disk.
        """
        if name not in self.arrays:
            self.arrays[name] = allocate(self.folder / f"{name}.bin", (self.samples, *shape), dtype)
        return self.arrays[name]

    def finish_up_to(self, count: int) -> None:
        """Record every chunk that is complete once `count` samples are in the arrays, and the batch that is not one.

        Raises:
            UsageError: the disk is full, or the folder cannot be written.
        """
        try:
            while self.finished < self.samples and (self.finished + self.chunk <= count or count == self.samples):
                self._finish_chunk()
            if count > self.done:
                self._finish_batch(count)
        except OSError as error:
            raise cannot_write(self.folder, error) from error

    def take(self, checksum: str) -> None:
        """Take over the next chunk, which another process has filled and put on disk (rule 1)."""
        self.checksums.append(checksum)
        self.begun = 0
        self._unrecorded += 1
        if time.monotonic() >= self._record_at:
            self.record()

    def record(self) -> None:
        """Write down which chunks were taken over.

        Raises:
            UsageError: the folder cannot be written.
        """
        if not self._unrecorded:
            return
        begun = time.monotonic()
        try:
            self._write_manifest()
            clear(self.folder)
        except OSError as error:
            raise cannot_write(self.folder, error) from error
        self._unrecorded = 0
        now = time.monotonic()
        self._record_at = now + max(_SECONDS, _TIMES * (now - begun))

    def reopened(self) -> dict[str, NDArray[Any]]:
        """Return the arrays mapped anew, with what other machines have written."""
        known, self.arrays = self.arrays, {}
        return {name: self.array(name, rows.shape[1:], rows.dtype) for name, rows in known.items()}

    def _finish_chunk(self) -> None:
        for array in self.arrays.values():  # rule 1: bytes first
            if isinstance(array, np.memmap):
                array.flush()
        self.checksums.append(rows_checksum(self.arrays, self._rows(len(self.checksums))))
        self.begun = 0
        self._write_manifest()
        clear(self.folder)

    def _finish_batch(self, count: int) -> None:
        # the first one: the manifest has to say what the arrays are
        if not self.done:
            self._write_manifest()
        rows = slice(self.done, count)
        append_line(self.folder, Done(self.done, count, rows_checksum(self.arrays, rows)))
        self.begun = count - self.finished

    def _rows(self, chunk: int) -> slice:
        return slice(chunk * self.chunk, min((chunk + 1) * self.chunk, self.samples))

    def _write_manifest(self) -> None:
        arrays = {name: {"shape": list(a.shape[1:]), "dtype": a.dtype.str} for name, a in self.arrays.items()}
        content = {
            "key": self.key,
            "samples": self.samples,
            "chunk": self.chunk,
            "arrays": arrays,
            "checksums": self.checksums,
        }
        write_manifest(self.folder, content)

    def restore(self, mode: Literal["r", "r+"]) -> None:
        """Take over the finished chunks of an earlier run; a note says where they end early."""
        manifest = read_manifest(self.folder)
        if manifest is None or not self._belongs(manifest):  # rule 3
            if (self.folder / MANIFEST).exists():
                self.notes.append("the store's manifest does not fit: computed anew")
            return
        arrays = {}
        for name, described in manifest["arrays"].items():
            path = self.folder / f"{name}.bin"
            dtype = np.dtype(described["dtype"])
            shape = (self.samples, *described["shape"])
            # NumPy would make a file that is too short longer, and fill it with zeros.
            if not path.exists() or path.lstat().st_size != math.prod(shape) * dtype.itemsize:
                self.notes.append(f"{path.name} is damaged: computed anew")
                return
            opened = open_own(path) if mode == "r+" else open_regular(path, follow=False)  # rule 6
            with opened as file:
                arrays[name] = np.memmap(file, dtype, mode, shape=shape)
        self.arrays.update(arrays)
        for chunk, checksum in enumerate(manifest["checksums"]):
            if rows_checksum(self.arrays, self._rows(chunk)) != checksum:  # rule 2
                self.notes.append(f"chunk {chunk} is damaged: computed anew from there")
                return
            self.checksums.append(checksum)
        self._restore_batches()

    def _restore_batches(self) -> None:
        """Take over the batches of the chunk that an earlier run was killed in."""
        end = self._rows(len(self.checksums)).stop
        for line in read_lines(self.folder):
            fits = line.start == self.done and line.start < line.stop < end
            if not fits or rows_checksum(self.arrays, slice(line.start, line.stop)) != line.checksum:
                return
            self.begun = line.stop - self.finished

    def _restart_journal(self) -> None:
        """Drop what follows the last line that was taken over."""
        if not self.begun:
            clear(self.folder)
            return
        lines = [line for line in read_lines(self.folder) if self.finished <= line.start and line.stop <= self.done]
        # in one step: a kill in here must not cost what an earlier run has computed
        replace_file(self.folder / JOURNAL, "".join(map(str, lines)).encode("ascii"))

    def _belongs(self, manifest: Mapping[str, Any]) -> bool:
        return (manifest["key"], manifest["samples"], manifest["chunk"]) == (self.key, self.samples, self.chunk)


@contextlib.contextmanager
def open_store(cache: Path, key: Mapping[str, Any], labels: NDArray[np.int64], batch_size: int) -> Iterator[DiskStore]:
    """Open the store for a key under `cache`, with the chunks that an earlier run finished; locked in the context.

    Args:
        cache: folder of stores; made if it is missing.
        key: what the rows are computed from, JSON-able.
        labels: (N,) of all samples.
        batch_size: samples per run; chunks are whole batches.

    Raises:
        UsageError: the folder cannot be written, or another process is filling the same store.
    """
    plain_key = as_json(key)
    folder = cache / json_digest(plain_key)[:16]  # the manifest has the whole key (rule 3)
    store = DiskStore(folder, plain_key, len(labels), chunk_size(batch_size))
    with contextlib.ExitStack() as stack:
        try:
            make_folder(folder)  # rule 6
            stack.enter_context(locked(folder))  # rule 4, before anything of the store is read
            store.restore("r+")
            store._restart_journal()
            replace_file(folder / LABELS, _npy(labels))
            if not store.done:  # from here on, a folder without rows is known to be a store
                store._write_manifest()
        except OSError as error:
            raise cannot_write(folder, error) from error
        yield store


def chunk_size(batch_size: int) -> int:
    """Return the samples per chunk: whole batches, as a resumed run makes them."""
    return batch_size * max(1, _CHUNK // batch_size)


def cannot_write(folder: Path, error: OSError) -> UsageError:
    """Return the error for a store that cannot be written."""
    return UsageError(f"{folder}: cannot be written: {error.strerror}; choose another --cache")


def _npy(labels: NDArray[np.int64]) -> bytes:
    """Return the content of a `.npy` file."""
    file = io.BytesIO()
    np.save(file, labels.astype("<i8"))
    return file.getvalue()


def rows_checksum(arrays: Mapping[str, NDArray[Any]], rows: slice) -> str:
    """Return SHA-256 (hex) of some rows of all arrays, in the order of their names."""
    digest = hashlib.sha256()
    # a restored store has its arrays in another order than the run that made it
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name][rows]).data)
        release(arrays[name], rows)
    return digest.hexdigest()
