"""Features, logits and labels of N samples on disk, memory-mapped, chunk by chunk, so that an interrupted run goes on.

A store is a folder with `features.bin` and `logits.bin` (raw rows), `labels.npy` and `manifest.json`. The manifest says
what the rows were computed from (the key: digests of model and data, head, preprocessing, provider, batch size,
versions), which chunks are finished, and their checksums.

1. A chunk counts as finished once its bytes are on disk: they are written before the manifest that names them.
2. A chunk whose checksum differs is computed again, and so are those after it.
3. Nothing is used of a store with another key, or with a manifest that was changed.
4. One process at a time fills a store. The lock belongs to the process: it ends with it, however that ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import filelock
import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError, UsageError
from tna_onnx.extraction.manifest import MANIFEST, json_digest, read_manifest, replace_file, write_manifest
from tna_onnx.extraction.mapped import allocate, release

__all__ = [
    "DiskStore",
    "StoredFeatures",
    "begun_batch_size",
    "find_stores",
    "labels_digest",
    "open_store",
    "read_stored",
]

_LABELS = "labels.npy"

# Samples per chunk, to the nearest whole batches below: little is lost when a run is interrupted, and a million samples
# make a manifest of 70 kB.
_CHUNK = 1024


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
        notes: what could not be used of an earlier run.
    """

    folder: Path
    key: dict[str, Any]
    samples: int
    chunk: int
    checksums: list[str] = field(default_factory=list)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def done(self) -> int:
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
        """Record every chunk that is complete once `count` samples are in the arrays.

        Raises:
            UsageError: the disk is full, or the folder cannot be written.
        """
        try:
            while self.done < self.samples and (self.done + self.chunk <= count or count == self.samples):
                for array in self.arrays.values():  # rule 1: bytes first
                    if isinstance(array, np.memmap):
                        array.flush()
                self.checksums.append(_checksum(self.arrays, self._rows(len(self.checksums))))
                self._write_manifest()
        except OSError as error:
            raise _cannot_write(self.folder, error) from error

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

    def _restore(self, mode: Literal["r", "r+"]) -> None:
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
            if not path.exists() or path.stat().st_size != math.prod(shape) * dtype.itemsize:
                self.notes.append(f"{path.name} is damaged: computed anew")
                return
            arrays[name] = np.memmap(path, dtype, mode, shape=shape)
        self.arrays.update(arrays)
        for chunk, checksum in enumerate(manifest["checksums"]):
            if _checksum(self.arrays, self._rows(chunk)) != checksum:  # rule 2
                self.notes.append(f"chunk {chunk} is damaged: computed anew from there")
                return
            self.checksums.append(checksum)

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
    plain_key = _as_json(key)
    folder = cache / json_digest(plain_key)[:16]  # the manifest has the whole key (rule 3)
    chunk = batch_size * max(1, _CHUNK // batch_size)  # whole batches, as a resumed run makes them
    store = DiskStore(folder, plain_key, len(labels), chunk)
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_locked(folder))  # rule 4, before anything of the store is read
            store._restore("r+")
            replace_file(folder / _LABELS, _npy(labels))
            if not store.done:  # from here on, a folder without rows is known to be a store
                store._write_manifest()
        except OSError as error:
            raise _cannot_write(folder, error) from error
        yield store


@dataclass(frozen=True, eq=False)
class StoredFeatures:
    """A finished store, opened for reading.

    Attributes:
        folder: where it lies.
        key: what its rows were computed from.
        arrays: name -> (N, ...) rows.
        labels: (N,) int64.
    """

    folder: Path
    key: dict[str, Any]
    arrays: dict[str, NDArray[Any]]
    labels: NDArray[np.int64]


def read_stored(folder: Path) -> StoredFeatures:
    """Open a finished store and check all of its chunks.

    Args:
        folder: the store, or a cache with one store in it.

    Raises:
        DataError: no store, several, an unfinished or damaged one.
    """
    stores = find_stores(folder)
    if len(stores) != 1:
        names = ", ".join(path.name for path in stores) or "none"
        raise DataError(f"{folder}: expected one feature store, found {names}; give the folder of one")
    place = stores[0]
    manifest = read_manifest(place)
    if manifest is None:
        raise DataError(
            f"{place}: the manifest of the feature store cannot be read, or was changed; collect the features again"
        )
    store = DiskStore(place, manifest["key"], manifest["samples"], manifest["chunk"])
    try:
        store._restore("r")
        # The values are the last bytes of the .npy file. Its header says nothing new, and a damaged one is not parsed.
        labels = np.frombuffer((place / _LABELS).read_bytes()[-8 * store.samples :], "<i8")
    except (OSError, ValueError) as error:
        raise DataError(f"{place}: the feature store cannot be read ({error}); collect the features again") from error
    if store.done < store.samples:
        reason = "; ".join(store.notes) or f"{store.done:,} of {store.samples:,} samples are there"
        raise DataError(f"{place}: the feature store is not complete: {reason}; collect the features again")
    # labels have a file of their own, which the checksums of chunks leave out
    if len(labels) != store.samples or labels_digest(labels) != store.key.get("labels_sha256"):
        raise DataError(f"{place}: {_LABELS} does not belong to this store; collect the features again")
    return StoredFeatures(place, store.key, store.arrays, labels.astype(np.int64))


def find_stores(folder: Path) -> list[Path]:
    """Return the folder if it is a store, else the stores in it, finished or not.

    A `manifest.json` alone does not make a store: other programs have files of that name.
    """
    places = [folder]
    if not (folder / MANIFEST).exists():
        places = sorted(path.parent for path in folder.glob(f"*/{MANIFEST}"))
    return [place for place in places if (place / _LABELS).exists() or (place / "features.bin").exists()]


def begun_batch_size(cache: Path, key: Mapping[str, Any]) -> int | None:
    """Return the batch size of the fullest store in `cache` whose key has these entries; None without one."""
    entries = _as_json(key)
    begun = []
    for folder in find_stores(cache):
        manifest = read_manifest(folder)
        if manifest is not None and entries.items() <= manifest["key"].items():
            done = len(manifest["checksums"]) * manifest["chunk"]
            begun.append((done, int(manifest["key"]["batch_size"])))
    return max(begun)[1] if begun else None


def labels_digest(labels: NDArray[Any]) -> str:
    """Return SHA-256 (hex) of labels."""
    # little-endian on every machine: a store may be moved
    return hashlib.sha256(np.ascontiguousarray(labels, "<i8").tobytes()).hexdigest()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a store (rule 4); the file may stay behind, and is then no lock.

    Raises:
        UsageError: another process holds it.
    """
    lock = filelock.FileLock(folder / "lock", timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise UsageError(f"{folder}: another process is filling this feature store; wait for it to end") from error
    except NotImplementedError as error:  # older versions of filelock, where the file system has no locks
        raise UsageError(f"{folder}: this file system has no locks; choose another --cache") from error
    try:
        yield
    finally:
        lock.release()


def _cannot_write(folder: Path, error: OSError) -> UsageError:
    return UsageError(f"{folder}: cannot be written: {error.strerror}; choose another --cache")


def _as_json(key: Mapping[str, Any]) -> dict[str, Any]:
    """Return a key as it comes back from the manifest: tuples are lists there."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(key)))
    return plain


def _npy(labels: NDArray[np.int64]) -> bytes:
    """Return the content of a `.npy` file."""
    file = io.BytesIO()
    np.save(file, labels.astype("<i8"))
    return file.getvalue()


def _checksum(arrays: Mapping[str, NDArray[Any]], rows: slice) -> str:
    """Return SHA-256 (hex) of some rows of all arrays, in the order of their names."""
    digest = hashlib.sha256()
    # a restored store has its arrays in another order than the run that made it
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name][rows]).data)
        release(arrays[name], rows)
    return digest.hexdigest()
