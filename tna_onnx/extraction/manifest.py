"""The manifest of a feature store: `manifest.json`, which carries a digest of itself and is replaced in one step."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

__all__ = ["MANIFEST", "json_digest", "read_manifest", "replace_file", "write_manifest"]

MANIFEST = "manifest.json"

# Goes up when an older version would misread the files.
_SCHEMA = 1


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of a store; None if there is none, or if it is not as `write_manifest` wrote it."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        # rule 3 of the store: a manifest that was changed is none
        intact = manifest.pop("sha256") == json_digest(manifest) and manifest["schema"] == _SCHEMA
    # The file may be anything: of another program, cut short, no text, a list, nested without end.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return manifest if intact else None


def write_manifest(folder: Path, content: dict[str, Any]) -> None:
    """Replace the manifest of a store.

    Raises:
        OSError: the folder cannot be written.
    """
    manifest = {"schema": _SCHEMA, **content}
    manifest["sha256"] = json_digest(manifest)
    replace_file(folder / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True).encode())


def json_digest(value: Any) -> str:
    """Return SHA-256 (hex) of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def replace_file(path: Path, content: bytes) -> None:
    """Write a file in one step: the old content stays until the new one is on disk.

    Raises:
        OSError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        # Without this a crash of the machine could leave the new name with no content.
        os.fsync(file.fileno())
    # a rename: a reader finds the old file or the new one, never a part
    temporary.replace(path)
