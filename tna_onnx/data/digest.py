"""SHA-256 of files and arrays, read in pieces so that large ones never sit in memory for it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from tna_onnx.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from tna_onnx.data.source import AnyArray, IntArray

__all__ = ["arrays_sha256", "files_sha256", "stream_sha256", "tree_sha256"]

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
        # Lengths and labels have 8 bytes in one order, so that every machine gets the same digest.
        digest.update(len(encoded).to_bytes(8, "big") + encoded + label.to_bytes(8, "big"))
        digest.update(_file_sha256(root / name))
    return digest.hexdigest()


def files_sha256(paths: Sequence[Path], labels: IntArray) -> str:
    """Return SHA-256 (hex) over the bytes of each file, in order, and the labels; names of files do not count.

    Hashed as the number of files (8 bytes), the SHA-256 of each, and the labels as big-endian 8-byte integers.

    Raises:
        DataError: a file cannot be read.
    """
    digest = hashlib.sha256(len(paths).to_bytes(8, "big"))
    for path in paths:
        digest.update(_file_sha256(path))
    digest.update(labels.astype(">i8").tobytes())
    return digest.hexdigest()


def arrays_sha256(arrays: Mapping[str, AnyArray], labels: IntArray) -> str:
    """Return SHA-256 (hex) over name, dtype, shape and values of each array, in order of the names, and the labels."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        header = repr((name, array.dtype.str, array.shape)).encode()
        digest.update(len(header).to_bytes(8, "big") + header)
        rows = max(1, _PIECE // max(1, array.nbytes // max(1, len(array))))
        for start in range(0, len(array), rows):
            digest.update(np.ascontiguousarray(array[start : start + rows]).data)
    digest.update(labels.astype(">i8").tobytes())
    return digest.hexdigest()


def _file_sha256(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            return stream_sha256(stream)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check that it still exists") from error
