"""Features, logits and labels of N samples on disk, memory-mapped, chunk by chunk, so that an interrupted run goes on.

A store is a folder with `features.bin` and `logits.bin` (raw rows), `labels.npy` and `manifest.json`. The manifest says
what the rows were computed from (the key: digests of model and data, head, preprocessing, provider, batch size,
versions), which chunks are finished, their checksums, and a digest of itself. It is replaced in one step after each
chunk, when the chunk's bytes are on disk. A chunk whose checksum differs is computed again, and so are those after it.
A store with another key, or with a manifest that was changed, is not used at all.

Without a folder the rows lie in unnamed temporary files, which the system removes with the process.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError, UsageError
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


_MANIFEST, _LABELS = "manifest.json", "labels.npy"


_SCHEMA = 1


@dataclass(eq=False)
class DiskStore:
    """A store in the making. Use as a context: the folder is locked meanwhile.

    Attributes:
        folder: where it lies.
        key: what its rows are computed from.
        samples: number of samples N.
        chunk: samples per chunk, a multiple of the batch size.
        checksums: of the finished chunks.
        arrays: name -> (N, ...) rows, mapped.
        notes: what was found on opening.
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
        """Samples that are there already."""
        return min(self.samples, len(self.checksums) * self.chunk)

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the rows of one tensor, (N, *shape), mapped for writing."""
        if name not in self.arrays:
            self.arrays[name] = allocate(self.folder / f"{name}.bin", (self.samples, *shape), dtype)
        return self.arrays[name]

    def finish_up_to(self, count: int) -> None:
        """Note every chunk that is complete with `count` samples: bytes first, then the manifest, in one step.

        Raises:
            UsageError: the disk is full, or the folder cannot be written.
        """
        while self.done < self.samples and (self.done + self.chunk <= count or count == self.samples):
            rows = slice(self.done, min(self.done + self.chunk, self.samples))
            try:
                for array in self.arrays.values():
                    if isinstance(array, np.memmap):
                        array.flush()
                self.checksums.append(_checksum(self.arrays, rows))
                self._write()
            except OSError as error:
                raise UsageError(
                    f"{self.folder}: cannot be written: {error.strerror}; choose another --cache"
                ) from error

    def _write(self) -> None:
        manifest = {
            "schema": _SCHEMA,
            "key": self.key,
            "samples": self.samples,
            "chunk": self.chunk,
            "arrays": {k: {"shape": list(a.shape[1:]), "dtype": a.dtype.str} for k, a in self.arrays.items()},
            "checksums": self.checksums,
        }
        manifest["sha256"] = _digest(manifest)
        _replace(self.folder / _MANIFEST, json.dumps(manifest, indent=1, sort_keys=True).encode())


@contextlib.contextmanager
def open_store(cache: Path, key: Mapping[str, Any], labels: NDArray[np.int64], batch_size: int) -> Iterator[DiskStore]:
    """Open the store for a key under `cache`, with what an earlier run has finished, and lock it.

    Args:
        cache: folder of stores; made if it is missing.
        key: what the rows are computed from, JSON-able.
        labels: (N,) of all samples.
        batch_size: samples per run; chunks are whole batches.

    Raises:
        UsageError: the folder cannot be written, or another process is filling the same store.
    """
    plain = json.loads(json.dumps(dict(key)))
    folder = cache / _digest(plain)[:16]
    store = DiskStore(folder, plain, len(labels), batch_size * max(1, 1024 // batch_size))
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _lock(stack.enter_context((folder / "lock").open("w")), folder)
            _restore(store, "r+")
            _replace(folder / _LABELS, _npy(labels))
            if not store.done:  # from here on, a folder without rows is known to be a store
                store._write()
        except OSError as error:
            raise UsageError(f"{folder}: cannot be written: {error.strerror}; choose another --cache") from error
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


def find_stores(folder: Path) -> list[Path]:
    """Return the folder if it is a store, else the stores in it, finished or not.

    A manifest alone is none: other programs have files of that name.
    """
    found = [folder] if (folder / _MANIFEST).exists() else sorted(p.parent for p in folder.glob(f"*/{_MANIFEST}"))
    return [store for store in found if (store / _LABELS).exists() or (store / "features.bin").exists()]


def read_stored(folder: Path) -> StoredFeatures:
    """Open a finished store and check all of its chunks.

    Args:
        folder: the store, or a cache with one store in it.

    Raises:
        DataError: no store, several, an unfinished or damaged one.
    """
    found = find_stores(folder)
    if len(found) != 1:
        names = ", ".join(p.name for p in found) or "none"
        raise DataError(f"{folder}: expected one feature store, found {names}; give the folder of one")
    manifest = _manifest(found[0])
    if manifest is None:
        raise DataError(
            f"{found[0]}: the manifest of the feature store cannot be read, or was changed; collect the features again"
        )
    store = DiskStore(found[0], manifest["key"], manifest["samples"], manifest["chunk"])
    try:
        _restore(store, "r")
        labels = np.frombuffer((found[0] / _LABELS).read_bytes()[-8 * store.samples :], "<i8")
    except (OSError, ValueError) as error:
        raise DataError(
            f"{found[0]}: the feature store cannot be read ({error}); collect the features again"
        ) from error
    if store.done < store.samples:
        what = "; ".join(store.notes) or f"{store.done:,} of {store.samples:,} samples are there"
        raise DataError(f"{found[0]}: the feature store is not complete: {what}; collect the features again")
    if len(labels) != store.samples or labels_digest(labels) != store.key.get("labels_sha256"):
        raise DataError(f"{found[0]}: {_LABELS} does not belong to this store; collect the features again")
    return StoredFeatures(found[0], store.key, store.arrays, labels.astype(np.int64))


def begun_batch_size(cache: Path, key: Mapping[str, Any]) -> int | None:
    """Return the batch size of the store that has most of the samples of a key, given in part; None without one."""
    plain, found = json.loads(json.dumps(dict(key))), []
    for folder in find_stores(cache):
        manifest = _manifest(folder)
        if manifest is not None and {**manifest["key"], **plain} == manifest["key"]:
            found.append((len(manifest["checksums"]) * manifest["chunk"], int(manifest["key"]["batch_size"])))
    return max(found)[1] if found else None


def labels_digest(labels: NDArray[Any]) -> str:
    """Return SHA-256 (hex) of labels."""
    return hashlib.sha256(np.ascontiguousarray(labels, "<i8").tobytes()).hexdigest()


def _restore(store: DiskStore, mode: Literal["r", "r+"]) -> None:
    """Take over the chunks of an earlier run that are whole."""
    manifest = _manifest(store.folder)
    same = manifest is not None and all(manifest[name] == getattr(store, name) for name in ("key", "samples", "chunk"))
    if manifest is None or not same:
        if (store.folder / _MANIFEST).exists():
            store.notes.append("the store's manifest does not fit: computed anew")
        return
    for name, described in manifest["arrays"].items():
        shape, dtype = (store.samples, *described["shape"]), np.dtype(described["dtype"])
        path = store.folder / f"{name}.bin"
        if not path.exists() or path.stat().st_size != math.prod(shape) * dtype.itemsize:
            store.notes.append(f"{path.name} is damaged: computed anew")
            store.arrays.clear()
            return
        store.arrays[name] = np.memmap(path, dtype, mode, shape=shape)
    for k, checksum in enumerate(manifest["checksums"]):
        rows = slice(k * store.chunk, min((k + 1) * store.chunk, store.samples))
        if _checksum(store.arrays, rows) != checksum:
            store.notes.append(f"chunk {k} is damaged: computed anew from there")
            break
        store.checksums.append(checksum)


def _manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest; None if there is none, or not as `DiskStore` wrote it."""
    try:
        manifest: dict[str, Any] = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        written = manifest.pop("sha256") == _digest(manifest) and manifest["schema"] == _SCHEMA
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return manifest if written else None


def _digest(value: Any) -> str:
    """Return SHA-256 (hex) of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _npy(labels: NDArray[np.int64]) -> bytes:
    """Return the content of a `.npy` file."""
    file = io.BytesIO()
    np.save(file, labels.astype("<i8"))
    return file.getvalue()


def _replace(path: Path, content: bytes) -> None:
    """Write a file in one step: the old content stays until the new one is on disk."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _checksum(arrays: Mapping[str, NDArray[Any]], rows: slice) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(np.ascontiguousarray(arrays[name][rows]).data)
        release(arrays[name], rows)
    return digest.hexdigest()


def _lock(file: Any, folder: Path) -> None:
    try:
        import fcntl  # noqa: PLC0415 - POSIX only; elsewhere two runs on one store must be kept apart by the user
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise UsageError(f"{folder}: another process is filling this feature store; wait for it to end") from error
