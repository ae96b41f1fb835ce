"""SHA-256 of files, arrays and samples, read in pieces. A sample's digest, 64 bits, depends on the model's inputs
alone.

A calibrated file records a sketch of its data, the K smallest of n digests: of the m samples of other data below the
largest of these, the share p in the sketch estimates the overlap, with a standard error of sqrt(p (1 - p) / m).
Source: K. Beyer et al., On synopses for distinct-value estimation under multiset operations, SIGMOD 2007, section 3.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tna_onnx.data.foreign import open_foreign
from tna_onnx.data.mapped import release
from tna_onnx.errors import DataError

_PIECE = 1 << 20  # bytes: large enough that hashing, not the calls, takes the time


def stream_sha256(stream: BinaryIO) -> bytes:
    """Return the SHA-256 (32 bytes) of the rest of `stream`."""
    digest = hashlib.sha256()
    while piece := stream.read(_PIECE):
        digest.update(piece)
    return digest.digest()


def tree_sha256(entries: Iterable[tuple[str, int, bytes]]) -> str:
    """Return SHA-256 (hex) over (path in the folder with forward slashes, label, SHA-256 of the file), in order.

    Each entry is hashed as the length of its name (8 bytes), the name (UTF-8), the label (8 bytes) and the SHA-256 of
    the file. Every part has a known length, so no two different lists of entries are hashed as the same bytes.
    """
    digest = hashlib.sha256()
    for name, label, content in entries:
        encoded = name.encode("utf-8", "surrogateescape")  # a file name need not be valid UTF-8
        # Lengths and labels have 8 bytes in one order, so that every machine gets the same digest.
        digest.update(len(encoded).to_bytes(8, "big") + encoded + label.to_bytes(8, "big", signed=True))
        digest.update(content)
    return digest.hexdigest()


def files_sha256(paths: Sequence[Path], labels: NDArray[np.int64]) -> str:
    """Return SHA-256 (hex) over the bytes of each file, in order, and the labels; names of files do not count.

    Hashed as the number of files (8 bytes), the SHA-256 of each, and the labels as big-endian 8-byte integers.
    """
    digest = hashlib.sha256(len(paths).to_bytes(8, "big"))
    for path in paths:
        digest.update(file_sha256(path))
    digest.update(labels.astype(">i8").tobytes())
    return digest.hexdigest()


def arrays_sha256(arrays: Mapping[str, NDArray[Any]], labels: NDArray[np.int64]) -> str:
    """Return SHA-256 (hex) over name, dtype, shape and values of each array, in order of the names, and the labels."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = arrays[name]
        header = repr((name, array.dtype.str, array.shape)).encode()
        digest.update(len(header).to_bytes(8, "big") + header)
        rows = max(1, _PIECE // max(1, array.nbytes // max(1, len(array))))
        for start in range(0, len(array), rows):
            piece = np.ascontiguousarray(array[start : start + rows])
            if piece.dtype == object:
                digest.update(repr(piece.tolist()).encode())
            else:
                digest.update(piece.data)
            release(array, slice(start, start + rows))
    digest.update(labels.astype(">i8").tobytes())
    return digest.hexdigest()


def file_sha256(path: Path) -> bytes:
    """Return the SHA-256 (32 bytes) of a file."""
    try:
        with open_foreign(path) as stream:
            return stream_sha256(stream)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check that it still exists") from error


def row_digests(batch: Mapping[str, NDArray[Any]]) -> NDArray[np.uint64]:
    """Return the digests of the samples of one batch, (B,)."""
    columns = []
    for name in sorted(batch):
        array = batch[name]
        if array.dtype == object:  # text of any length
            digests = b"".join(hashlib.sha256(repr(row).encode()).digest() for row in array.tolist())
            columns.append(np.frombuffer(digests, np.uint8).reshape(len(array), -1))
            continue
        # In one byte order, so that every machine gets the same digest.
        ordered = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        columns.append(ordered.reshape(len(array), array.size // max(1, len(array))).view(np.uint8))
    rows = np.ascontiguousarray(np.concatenate(columns, axis=1)) if len(columns) > 1 else columns[0]
    return short_digests(hashlib.sha256(row).digest() for row in rows)


def short_digests(digests: Iterable[bytes]) -> NDArray[np.uint64]:
    """Return the first 64 bits of each SHA-256: of a million samples, two agree by chance once in 30 million."""
    return np.frombuffer(b"".join(digest[:8] for digest in digests), "<u8").astype(np.uint64)


_SKETCH = 64  # digests in a file: a kilobyte, and a share of one half is known to 6 points


@dataclass(frozen=True)
class Repeats:
    """Equal samples within one data set."""

    copies: int  # samples that are equal to an earlier one
    contradicting: int  # samples that have an equal one with another label
    n: int  # number of samples


@dataclass(frozen=True)
class Overlap:
    """Samples of one data set that occur in another."""

    shared: int  # their number; for a sketch, those of the ones that could be looked up
    n: int  # number of samples that were looked up

    @property
    def share(self) -> float:
        """Shared samples per sample looked up, 0..1; 0 without any."""
        return self.shared / max(1, self.n)


def repeats_of(digests: NDArray[np.uint64], labels: NDArray[np.int64]) -> Repeats:
    """Count equal samples within one data set.

    `digests`: of the samples, (N,); `labels`: class indices (N,).

    >>> repeats_of(np.array([7, 8, 7, 7], np.uint64), np.array([0, 1, 0, 2]))
    Repeats(copies=2, contradicting=3, n=4)
    """
    if not len(digests):
        return Repeats(0, 0, 0)
    order = np.argsort(digests, kind="stable")
    _, starts, counts = np.unique(digests[order], return_index=True, return_counts=True)
    low = np.minimum.reduceat(labels[order], starts)
    high = np.maximum.reduceat(labels[order], starts)
    return Repeats(len(digests) - len(starts), int(counts[low != high].sum()), len(digests))


def overlap_of(digests: NDArray[np.uint64], reference: NDArray[np.uint64]) -> Overlap:
    """Count the samples that occur among others, in any order.

    `digests`: of the samples, (N,); `reference`: digests of the other samples, (M,).

    >>> overlap_of(np.array([1, 2, 3, 3], np.uint64), np.array([3, 9], np.uint64))
    Overlap(shared=2, n=4)
    """
    return Overlap(int(np.isin(digests, reference).sum()), len(digests))


def sketch_of(digests: NDArray[np.uint64]) -> str:
    """Return the smallest digests as text, 16 hexadecimal digits each, ascending.

    >>> sketch_of(np.array([255, 1, 1], np.uint64))
    '0000000000000001 00000000000000ff'
    """
    return " ".join(f"{digest:016x}" for digest in np.unique(digests)[:_SKETCH].tolist())


def read_sketch(text: str) -> NDArray[np.uint64]:
    """Parse the digests of a sketch; empty if the text is not one."""
    words = text.split()
    if not all(len(word) == 16 and set(word) <= set("0123456789abcdef") for word in words):
        return np.zeros(0, np.uint64)
    return np.array([int(word, 16) for word in words], np.uint64)


def sketch_overlap(digests: NDArray[np.uint64], sketch: NDArray[np.uint64]) -> Overlap:
    """Estimate from a sketch how many samples occur in the data that it was made of.

    `digests`: of the samples, (N,).
    """
    if not len(sketch):
        return Overlap(0, 0)
    # A sketch that is not full holds all of its samples: each of the new ones can be looked up.
    comparable = digests
    if len(sketch) == _SKETCH:
        comparable = digests[digests <= sketch.max()]
    return overlap_of(comparable, sketch)
