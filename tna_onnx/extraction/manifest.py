"""The manifest of a feature store: `manifest.json`, which carries a digest of itself and is replaced in one step."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tna_onnx.data.files import open_regular
from tna_onnx.errors import DataError

__all__ = ["MANIFEST", "as_json", "json_digest", "read_manifest", "replace_file", "write_manifest"]

MANIFEST = "manifest.json"

_ARRAY = re.compile(r"features|logits|beside_[0-9]{1,6}")
_MAX_BYTES = 2**30
_MAX_COUNT = 2**48  # samples, or values of one: beyond what any disk holds
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)

# Goes up when an older version would misread the files.
_SCHEMA = 1


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of a store; None if there is none, or if it is not as `write_manifest` wrote it."""
    try:
        with open_regular(folder / MANIFEST, follow=False) as file:
            manifest: dict[str, Any] = json.loads(file.read(_MAX_BYTES).decode("utf-8"))
        # rule 3 of the store: a manifest that was changed is none
        intact = manifest.pop("sha256") == json_digest(manifest) and manifest["schema"] == _SCHEMA
        intact = intact and _is_plausible(manifest)
    # The file may be anything: of another program, cut short, no text, a list, nested without end, no file at all.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError, DataError):
        return None
    if not intact:
        return None
    return manifest


def _is_plausible(manifest: dict[str, Any]) -> bool:
    """Whether a store could have written it: the digest of a manifest that someone made up fits as well.

    Names of arrays are names of files, so they must be those of the store.
    """
    counts = [manifest["samples"], manifest["chunk"]]
    for name, described in manifest["arrays"].items():
        if not _ARRAY.fullmatch(name) or not _is_written_as(described["dtype"], name):
            return False
        counts += [1, *described["shape"]]
    if not all(type(count) is int and 0 <= count < _MAX_COUNT for count in counts) or manifest["chunk"] < 1:
        return False
    n_chunks = -(-manifest["samples"] // manifest["chunk"])
    checksums = manifest["checksums"]
    return isinstance(manifest["key"], dict) and isinstance(checksums, list) and len(checksums) <= n_chunks


def _is_written_as(dtype: Any, name: str) -> bool:
    """Whether an array may be of this dtype. Checksums are of bytes, which fit other numbers as well."""
    if not isinstance(dtype, str):
        return False
    known = np.dtype(dtype)
    # what lies beside the features may be masks and positions
    kinds = "f" if name in ("features", "logits") else "biufc"
    return known.kind in kinds and known.isnative and known.str == dtype


def write_manifest(folder: Path, content: dict[str, Any]) -> None:
    """Replace the manifest of a store.

    Raises:
        OSError: the folder cannot be written.
    """
    manifest = {"schema": _SCHEMA, **content}
    manifest["sha256"] = json_digest(manifest)
    replace_file(folder / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True).encode())


def as_json(key: Mapping[str, Any]) -> dict[str, Any]:
    """Return a key as it comes back from the manifest: tuples are lists there."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(key)))
    return plain


def json_digest(value: Any) -> str:
    """Return SHA-256 (hex) of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def replace_file(path: Path, content: bytes) -> None:
    """Write a file in one step: the old content stays until the new one is on disk.

    Raises:
        OSError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # left by a run that was killed, or put there: a link is not followed
    with os.fdopen(os.open(temporary, _NEW_FILE, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        # Without this a crash of the machine could leave the new name with no content.
        os.fsync(file.fileno())
    # a rename: a reader finds the old file or the new one, never a part
    temporary.replace(path)
