"""Features and labels of N samples on disk, memory-mapped, so that an interrupted run goes on.

A store is a folder: rows in `features.bin`, `labels.npy`, `manifest.json` with the key (digests of
model and data, head, preprocessing, provider, batch size, versions), `checksums.txt`, and `columns.json` for groups and
weights.

1. A chunk counts as finished once its bytes are on disk: they are written before the line that names them.
2. A chunk whose checksum differs is computed again, and so are those after it.
3. Nothing is used of a store with another key, or with a manifest that was changed.
4. One process at a time fills a store. Its lock ends with it, however that ends.
"""

import contextlib
import hashlib
import io
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.digest import stream_sha256
from tna_onnx.data.foreign import open_foreign, read_npy
from tna_onnx.data.mapped import allocate, release
from tna_onnx.data.options import Data
from tna_onnx.data.source import Source
from tna_onnx.errors import DataError, UnsupportedModel, UsageError
from tna_onnx.files import remove_leftovers, write_file
from tna_onnx.graph.load import Model

_ROWS = "features.bin"
_LABELS = "labels.npy"
_COLUMNS = "columns.json"
_MANIFEST = "manifest.json"
_CHECKSUMS = "checksums.txt"

# Goes up when an older version would misread the files.
_SCHEMA = 2

# Samples per chunk, to the nearest whole batches below: the disk is waited for a thousand times in a million samples.
_CHUNK = 1024

_FEATURES = "features"
_DTYPES = tuple(np.dtype(name).str for name in ("float16", "float32", "float64"))
_MAX_BYTES = 2**30
_MAX_COUNT = 2**48  # samples, or values of one: beyond what any disk holds


@dataclass(eq=False)
class DiskStore:
    """A feature store: `open_store` gives one that is being filled, `read_stored` a finished one."""

    folder: Path  # where it lies
    key: dict[str, Any]  # what its rows are computed from
    samples: int  # number of samples N
    chunk: int  # samples per chunk, a multiple of the batch size
    checksums: list[str] = field(default_factory=list)  # of the finished chunks
    features: Any = None  # (N, ...) rows, mapped; None until their shape is known
    notes: list[str] = field(default_factory=list)  # what could not be used of an earlier run
    # of a finished one: (N,) int64, or (N, C) of 0 and 1 where samples have several
    labels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    # of a finished one: what else belongs to each sample, (N,) each: `group`, `weight`
    columns: dict[str, NDArray[Any]] = field(default_factory=dict)
    columns_sha256: str = ""  # of `columns.json`, hex; empty without
    classes: tuple[str, ...] = ()  # names of the classes, if they are known

    @property
    def done(self) -> int:
        """Number of samples in finished chunks."""
        return min(self.samples, len(self.checksums) * self.chunk)  # the last chunk may be shorter

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the features, (N, *shape), mapped for writing."""
        if self.features is None:
            self.features = allocate(self.folder / _ROWS, (self.samples, *shape), dtype)
        return np.asanyarray(self.features)

    def finish_up_to(self, count: int) -> None:
        """Record every chunk that is complete once `count` samples are in the arrays."""
        try:
            while self.done < self.samples and (self.done + self.chunk <= count or count == self.samples):
                if isinstance(self.features, np.memmap):  # rule 1: bytes first
                    self.features.flush()
                if not self.checksums:  # shape and dtype are known now
                    self.begin()
                self.checksums.append(self._checksum(len(self.checksums)))
                with (self.folder / _CHECKSUMS).open("ab") as file:
                    file.write(f"{self.checksums[-1]}\n".encode("ascii"))
                    file.flush()
                    os.fsync(file.fileno())
        except OSError as error:
            raise _cannot_write(self.folder, error) from error

    def _checksum(self, chunk: int) -> str:
        """Return SHA-256 (hex) of the rows of a chunk."""
        rows = slice(chunk * self.chunk, min((chunk + 1) * self.chunk, self.samples))
        digest = hashlib.sha256(np.ascontiguousarray(self.features[rows]).data)
        release(self.features, rows)
        return digest.hexdigest()

    def begin(self) -> None:
        """Write the manifest, and the checksums of the chunks that were taken over."""
        arrays = {}
        if self.features is not None:
            arrays = {_FEATURES: {"shape": list(self.features.shape[1:]), "dtype": self.features.dtype.str}}
        manifest = {"schema": _SCHEMA, "key": self.key, "samples": self.samples, "chunk": self.chunk, "arrays": arrays}
        if self.columns_sha256:
            manifest["columns_sha256"] = self.columns_sha256
        if self.classes:
            manifest["classes"] = self.classes
        manifest["sha256"] = json_digest(manifest)
        lines = "".join(f"{checksum}\n" for checksum in self.checksums)
        # first: these lines are right under the manifest that is there, too
        _write(self.folder / _CHECKSUMS, lines.encode("ascii"))
        _write(self.folder / _MANIFEST, json.dumps(manifest, indent=1, sort_keys=True).encode())

    def take_over(self, manifest: dict[str, Any], mode: Literal["r", "r+"]) -> None:
        """Take over the finished chunks of an earlier run; a note says where they end early."""
        self.columns_sha256 = str(manifest.get("columns_sha256", ""))
        array = manifest["arrays"].get(_FEATURES)
        if array is None:
            return
        dtype = np.dtype(array["dtype"])
        shape = (self.samples, *array["shape"])
        path = self.folder / _ROWS
        # NumPy would make a file that is too short longer, and fill it with zeros.
        if not path.is_file() or path.stat().st_size != math.prod(shape) * dtype.itemsize:
            self.notes.append(f"{_ROWS} is damaged: computed anew")
            return
        self.features = np.memmap(path, dtype, mode, shape=shape)
        n_chunks = -(-self.samples // self.chunk)
        for chunk, checksum in zip(range(n_chunks), _read_checksums(self.folder), strict=False):
            if self._checksum(chunk) != checksum:  # rule 2
                self.notes.append(f"chunk {chunk} is damaged: computed anew from there")
                return
            self.checksums.append(checksum)


@contextlib.contextmanager
def open_store(
    cache: Path,
    key: Mapping[str, Any],
    labels: NDArray[np.int64],
    batch_size: int,
    columns: Mapping[str, NDArray[Any]] = MappingProxyType({}),
    classes: tuple[str, ...] = (),
) -> Iterator[DiskStore]:
    """Open the store for a key under `cache`, with the chunks that an earlier run finished; locked in the context.

    `labels`: (N,) of all samples. `batch_size`: samples per run; chunks are whole batches, as a resumed run makes them.
    `columns`: what else belongs to each sample, (N,) each: `group`, `weight`; those of an earlier run stay otherwise.
    `classes`: their names, if they are known.
    """
    plain_key = json.loads(json.dumps(dict(key)))  # as it comes back from the manifest: tuples are lists there
    folder = cache / json_digest(plain_key)[:16]  # the manifest has the whole key (rule 3)
    store = DiskStore(folder, plain_key, len(labels), batch_size * max(1, _CHUNK // batch_size), classes=classes)
    with contextlib.ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # of runs that were killed, in the stores of other keys too
            for place in cache.iterdir():
                remove_leftovers(place)
            stack.enter_context(_lock(folder))  # rule 4, before anything of the store is read
            manifest = _read_manifest(folder)
            if manifest and all(manifest[name] == getattr(store, name) for name in ("key", "samples", "chunk")):
                store.take_over(manifest, "r+")
            elif (folder / _MANIFEST).exists():  # rule 3
                store.notes.append("the store's manifest does not fit: computed anew")
            npy = io.BytesIO()
            np.save(npy, labels.astype("<i8"))
            _write(folder / _LABELS, npy.getvalue())
            if columns:
                content = json.dumps({name: values.tolist() for name, values in columns.items()}).encode()
                _write(folder / _COLUMNS, content)
                store.columns_sha256 = hashlib.sha256(content).hexdigest()
            store.begin()  # from here on, a folder without rows is known to be a store
        except OSError as error:
            raise _cannot_write(folder, error) from error
        yield store


def read_stored(folder: Path) -> DiskStore:
    """Open a finished store and check all of its chunks."""
    stores = find_stores(folder)
    if len(stores) != 1:
        names = ", ".join(path.name for path in stores) or "none"
        raise DataError(f"{folder}: expected one feature store, found {names}; give the folder of one")
    place = stores[0]
    manifest = _read_manifest(place)
    if manifest is None:
        raise DataError(
            f"{place}: the manifest of the feature store cannot be read, was changed, or is of another version; "
            "collect the features again"
        )
    store = DiskStore(place, manifest["key"], manifest["samples"], manifest["chunk"])
    try:
        store.take_over(manifest, "r")
        labels = read_npy(place / _LABELS)
        store.columns = _read_columns(store)
    except (OSError, ValueError, DataError) as error:
        raise DataError(f"{place}: the feature store cannot be read ({error}); collect the features again") from error
    if store.features is None or store.done < store.samples:
        reason = "; ".join(store.notes) or f"{store.done:,} of {store.samples:,} samples are there"
        raise DataError(f"{place}: the feature store is not complete: {reason}; collect the features again")
    # labels have a file of their own, which the checksums of chunks leave out
    key = store.key
    shape = (store.samples, key[N_LABELS]) if N_LABELS in key else (store.samples,)
    if labels.shape != shape or labels.dtype.kind != "i" or labels_digest(labels) != key.get("labels_sha256"):
        raise DataError(f"{place}: {_LABELS} does not belong to this store; collect the features again")
    store.labels = labels.astype(np.int64)
    return store


def is_store(data: Data) -> bool:
    """Whether samples are named by the folder of a feature store."""
    path = data.samples
    # no pattern and no URL: these may be longer than any name
    named = isinstance(path, (str, Path)) and os.path.isdir(path)  # noqa: PTH112
    return named and bool(find_stores(Path(path)))


def stored_class_names(folder: Path) -> tuple[str, ...] | None:
    """Return the names of the classes in a folder with a feature store; None if it holds none, or no single store."""
    stores = find_stores(folder)
    manifest = _read_manifest(stores[0]) or {}
    if len(stores) > 1 or not isinstance(manifest.get("classes"), list):
        return None
    return tuple(map(str, manifest["classes"]))


def find_stores(folder: Path) -> list[Path]:
    """Return the folder if it is a store, else the stores in it, finished or not.

    A `manifest.json` alone does not make a store: other programs have files of that name.
    """
    places = [folder]
    if not (folder / _MANIFEST).exists():
        places = sorted(path.parent for path in folder.glob(f"*/{_MANIFEST}"))
    return [place for place in places if (place / _LABELS).exists() or (place / _ROWS).exists()]


def json_digest(value: Any) -> str:
    """Return SHA-256 (hex) of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of a store; None if there is none, or if it is not as `DiskStore.begin` wrote it."""
    try:
        with open_foreign(folder / _MANIFEST) as file:
            manifest: dict[str, Any] = json.loads(file.read(_MAX_BYTES).decode("utf-8"))
        intact = manifest.pop("sha256") == json_digest(manifest) and manifest["schema"] == _SCHEMA
        return manifest if intact and _is_plausible(manifest) else None
    # The file may be anything: of another program, cut short, no text, a list, nested without end, no file at all.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError, DataError):
        return None


def _is_plausible(manifest: dict[str, Any]) -> bool:
    """Whether a store could have written it: the digest of a manifest that someone made up fits as well."""
    array = manifest["arrays"].get(_FEATURES, {"dtype": _DTYPES[0], "shape": []})
    counts = [manifest["samples"], manifest["chunk"] - 1, *array["shape"]]
    # checksums are of bytes, which fit numbers of another type as well
    are_features = {*manifest["arrays"]} <= {_FEATURES} and array["dtype"] in _DTYPES
    are_counts = all(type(count) is int and 0 <= count < _MAX_COUNT for count in counts)
    return are_features and are_counts and isinstance(manifest["key"], dict)


def _read_checksums(folder: Path) -> list[str]:
    """Return the lines of the checksums of a store; what follows the last line break is cut by a kill, or empty."""
    try:
        with open_foreign(folder / _CHECKSUMS) as file:
            return file.read(_MAX_BYTES).decode("ascii").split("\n")[:-1]
    except (OSError, ValueError, DataError):
        return []


def _read_columns(store: DiskStore) -> dict[str, NDArray[Any]]:
    """Read what else belongs to each sample."""
    if not store.columns_sha256:
        return {}
    with open_foreign(store.folder / _COLUMNS) as file:
        content = file.read(_MAX_BYTES)
    if hashlib.sha256(content).hexdigest() != store.columns_sha256:
        raise ValueError(f"{_COLUMNS} does not belong to this store")
    columns = json.loads(content)
    if not isinstance(columns, dict) or any(not isinstance(values, list) for values in columns.values()):
        raise ValueError(f"{_COLUMNS} holds no columns")
    return {name: np.array(values, np.float64 if name == "weight" else str) for name, values in columns.items()}


def _lock(folder: Path) -> contextlib.AbstractContextManager[object]:
    """Lock a store until the context ends; the file may stay behind, and is then no lock."""
    import filelock  # noqa: PLC0415 - heavy

    try:
        return filelock.FileLock(folder / "lock").acquire(timeout=0)
    except filelock.Timeout as error:
        raise UsageError(f"{folder}: another process is filling this feature store; wait for it to end") from error


def _cannot_write(folder: Path, error: OSError) -> UsageError:
    return UsageError(f"{folder}: cannot be written: {error.strerror}; choose another --cache")


N_LABELS = "n_labels"
"""Entry of a key: how many labels each sample has, where those are 0 or 1 for each; without it a sample has a class."""


def model_key(model: Model) -> dict[str, Any]:
    """Return the digests (SHA-256, hex) of a model's file and of its external data."""
    digests = {}
    try:
        # the weights may lie there, and not in the file
        for location in model.external_files:
            with model.open_data(location) as stream:
                digests[location] = stream_sha256(stream).hex()
    except OSError as error:
        raise UnsupportedModel(f"{model.name}: external data cannot be read: {error}") from error
    return {"model_sha256": model.sha256, "external_sha256": digests}


def data_key(source: Source) -> dict[str, Any]:
    """Return the digests (SHA-256, hex) of samples and labels, the preprocessing recipe, and the labels of a sample."""
    key = {"data_sha256": source.digest(), "labels_sha256": labels_digest(source.labels), "recipe": source.recipe()}
    if source.labels.ndim == 2:
        key[N_LABELS] = source.labels.shape[1]
    return key


def labels_digest(labels: NDArray[Any]) -> str:
    """Return SHA-256 (hex) of labels."""
    # little-endian on every machine: a store may be moved
    return hashlib.sha256(np.ascontiguousarray(labels, "<i8").data).hexdigest()


def _write(path: Path, content: bytes) -> None:
    """Write a file of a store, in one step. A link or a pipe in its place is removed: nothing outside is written."""
    if path.is_symlink() or not (path.is_file() or path.is_dir()):
        path.unlink(missing_ok=True)
    write_file(path, content)
