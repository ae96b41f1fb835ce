"""Features and labels of a store, by the name under which other processes find them."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.files import open_regular
from tna_onnx.errors import DataError, UsageError
from tna_onnx.extraction.agreed import require_versions, versions
from tna_onnx.extraction.manifest import json_digest, read_manifest
from tna_onnx.extraction.stored import read_labels
from tna_onnx.extraction.table import FeatureTable

__all__ = ["SharedRows", "shared_rows"]


@dataclass(frozen=True)
class SharedRows:
    """What is sent to a worker in place of a table; it opens the store's files itself.

    Attributes:
        folder: of the store.
        manifest: SHA-256 (hex) of what its manifest says, checksums of all rows included.
        shape: of the features, as the table has them.
        dtype: of the features.
        versions: of the driver's libraries, sorted by name.
    """

    folder: Path
    manifest: str
    shape: tuple[int, ...]
    dtype: str
    versions: tuple[tuple[str, str], ...]

    def table(self) -> FeatureTable:
        """Return the table; a process opens it once.

        Raises:
            UsageError: the store is not here, or is another one.
            DeviceError: other versions of libraries.
        """
        return _opened(self)


def shared_rows(table: FeatureTable) -> SharedRows | None:
    """Return how other processes find the rows of a table; None where they are in no store, or were converted."""
    folder = table.folder
    manifest = None if folder is None else read_manifest(folder)
    if folder is None or manifest is None:
        return None
    stored = manifest["arrays"].get("features")
    shape = table.features.shape
    # rows that lie there in another dtype have been copied
    same = stored is not None and stored["dtype"] == table.features.dtype.str
    if not same or math.prod(shape[1:]) != math.prod(stored["shape"]) or manifest["samples"] != len(table):
        return None
    here = tuple(sorted(versions().items()))
    return SharedRows(folder.absolute(), json_digest(manifest), shape, table.features.dtype.str, here)


# A run has one table that is read again and again, and one of held-out samples.
@functools.lru_cache(maxsize=2)
def _opened(rows: SharedRows) -> FeatureTable:
    require_versions(dict(rows.versions))
    manifest = read_manifest(rows.folder)
    if manifest is None or json_digest(manifest) != rows.manifest:
        raise UsageError(f"{rows.folder}: a worker does not see this store; put it on a disk that all share")
    try:
        labels = read_labels(rows.folder, manifest)
        return FeatureTable(_mapped(rows, manifest), labels)
    except (OSError, ValueError, DataError) as error:
        raise UsageError(f"{rows.folder}: a worker cannot read this store ({error})") from error


def _mapped(rows: SharedRows, manifest: Mapping[str, Any]) -> NDArray[Any]:
    stored = manifest["arrays"]["features"]
    with open_regular(rows.folder / "features.bin", follow=False) as file:
        features = np.memmap(file, np.dtype(rows.dtype), "r", shape=(manifest["samples"], *stored["shape"]))
    return features.reshape(rows.shape)
