"""Feature stores that are there: found in a folder, and read when they are finished."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.files import open_regular
from tna_onnx.errors import DataError
from tna_onnx.extraction.keys import N_LABELS, labels_digest
from tna_onnx.extraction.manifest import MANIFEST, as_json, read_manifest
from tna_onnx.extraction.store import LABELS, DiskStore

__all__ = ["StoredFeatures", "begun_batch_size", "find_stores", "read_labels", "read_stored"]

_NPY_HEADER = 4096  # bytes: more than the header of a `.npy` file has


@dataclass(frozen=True, eq=False)
class StoredFeatures:
    """A finished store, opened for reading.

    Attributes:
        folder: where it lies.
        key: what its rows were computed from.
        arrays: name -> (N, ...) rows.
        labels: (N,) int64; (N, C) of 0 and 1 where samples have several.
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
        store.restore("r")
        labels = _last_values(place, _labels_shape(manifest))
    except (OSError, ValueError) as error:
        raise DataError(f"{place}: the feature store cannot be read ({error}); collect the features again") from error
    if store.done < store.samples:
        reason = "; ".join(store.notes) or f"{store.done:,} of {store.samples:,} samples are there"
        raise DataError(f"{place}: the feature store is not complete: {reason}; collect the features again")
    _require_own(place, labels, manifest)
    return StoredFeatures(place, store.key, store.arrays, labels.astype(np.int64))


def read_labels(folder: Path, manifest: Mapping[str, Any]) -> NDArray[np.int64]:
    """Return the labels of a store, (N,); of several a sample, (N, C).

    Raises:
        OSError: they cannot be read.
        ValueError: there are too few.
        DataError: they are those of another store.
    """
    labels = _last_values(folder, _labels_shape(manifest))
    _require_own(folder, labels, manifest)
    return labels.astype(np.int64)


def _labels_shape(manifest: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of a store's labels.

    Raises:
        ValueError: the manifest says something that is none.
    """
    each = manifest["key"].get(N_LABELS)
    if each is None:
        return (manifest["samples"],)
    if type(each) is not int or each < 1:
        raise ValueError(f"{N_LABELS} is {each!r}")
    return manifest["samples"], each


def _last_values(folder: Path, shape: tuple[int, ...]) -> NDArray[Any]:
    """Read the last int64 of the labels.

    Raises:
        ValueError: there are fewer.
    """
    size = 8 * math.prod(shape)
    # The values are the last bytes of the .npy file. Its header says nothing new, and a damaged one is not parsed.
    with open_regular(folder / LABELS, follow=False) as file:
        # before memory is taken for what a manifest says
        if os.fstat(file.fileno()).st_size < size:
            raise ValueError(f"{LABELS} is too short")
        return np.frombuffer(file.read(size + _NPY_HEADER)[-size:], "<i8").reshape(shape)


def _require_own(folder: Path, labels: NDArray[Any], manifest: Mapping[str, Any]) -> None:
    # labels have a file of their own, which the checksums of chunks leave out
    if len(labels) != manifest["samples"] or labels_digest(labels) != manifest["key"].get("labels_sha256"):
        raise DataError(f"{folder}: {LABELS} does not belong to this store; collect the features again")


def find_stores(folder: Path) -> list[Path]:
    """Return the folder if it is a store, else the stores in it, finished or not.

    A `manifest.json` alone does not make a store: other programs have files of that name.
    """
    places = [folder]
    if not (folder / MANIFEST).exists():
        places = sorted(path.parent for path in folder.glob(f"*/{MANIFEST}"))
    return [place for place in places if (place / LABELS).exists() or (place / "features.bin").exists()]


def begun_batch_size(cache: Path, key: Mapping[str, Any]) -> int | None:
    """Return the batch size of the fullest store in `cache` whose key has these entries; None without one."""
    entries = as_json(key)
    begun = []
    for folder in find_stores(cache):
        manifest = read_manifest(folder)
        if manifest is not None and entries.items() <= manifest["key"].items():
            done = len(manifest["checksums"]) * manifest["chunk"]
            begun.append((done, int(manifest["key"]["batch_size"])))
    if not begun:
        return None
    return max(begun)[1]
