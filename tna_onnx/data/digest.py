"""SHA-256 of files, read in pieces so that a large file never sits in memory for it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, BinaryIO

from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["stream_sha256", "tree_sha256"]

_PIECE = 1 << 20  # bytes: large enough that hashing, not the calls, takes the time


def stream_sha256(stream: BinaryIO) -> bytes:
    """Return the SHA-256 (32 bytes) of what is left to read in `stream`."""
    digest = hashlib.sha256()
    while piece := stream.read(_PIECE):
        digest.update(piece)
    return digest.digest()


def tree_sha256(root: Path, entries: Iterable[tuple[str, int]]) -> str:
    """Return SHA-256 (hex) over (path below `root` with forward slashes, label, file bytes) of each entry, in order.

    Each entry is hashed as the length of its name (8 bytes), the name (UTF-8), the label (8 bytes) and the SHA-256 of
    the file. Every part has a known length, so no two different lists of entries are hashed as the same bytes.

    Raises:
        DataError: a file cannot be read.
    """
    digest = hashlib.sha256()
    for name, label in entries:
        encoded = name.encode("utf-8", "surrogateescape")  # a file name need not be valid UTF-8
        digest.update(len(encoded).to_bytes(8, "big") + encoded + label.to_bytes(8, "big"))
        try:
            with (root / name).open("rb") as stream:
                digest.update(stream_sha256(stream))
        except OSError as error:
            raise DataError(f"{root / name}: cannot be read ({error.strerror}); check that it still exists") from error
    return digest.hexdigest()
