"""Arrays mapped from files. Pages that were read go back to the system, so memory does not grow with the file."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import DataError, UsageError

_STAYS = 2**28  # bytes of a mapped array that may stay in memory between two passes over it
_IN_MEMORY = 2**27  # bytes up to which an array that is filled is in memory
_ZEROS = 2**24  # bytes written at a time where the system cannot reserve blocks by itself


def allocate(path: Path | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Map a file for reading and writing.

    Its blocks are reserved. A full disk is an error here; later it would end the process in the middle of a write.

    `path`: the file; one of the right size keeps its content. None maps an unnamed temporary file.
    """
    size = math.prod(shape) * dtype.itemsize
    if path is None:
        place = tempfile.gettempdir()
        advice = "set TMPDIR to a larger disk"
    else:
        place = str(path.parent)
        advice = "choose another --cache"
    try:
        if path is not None:
            path.touch()
        with path.open("r+b") if path else tempfile.TemporaryFile(prefix="tna-onnx-") as file:
            # a file of the right size holds what an earlier run computed
            if os.fstat(file.fileno()).st_size != size:
                file.truncate(0)
                reserve(file, size)
            return np.memmap(file, dtype, "r+", shape=shape)  # the map outlives the handle
    except OSError as error:
        raise UsageError(f"{place}: no room for {size:,} bytes of features ({error.strerror}); {advice}") from error


def room(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array to be filled: in memory, or mapped from an unnamed temporary file where it is large."""
    if math.prod(shape) * dtype.itemsize <= _IN_MEMORY:
        return np.empty(shape, dtype)
    return allocate(None, shape, dtype)


@dataclass(eq=False)
class GrowingRows:
    """Rows of an array whose number is not known: few are kept in memory, many in an unnamed temporary file."""

    where: str  # what messages start with
    parts: list[NDArray[Any]] = field(default_factory=list)  # not yet in the file
    rows: int = 0
    size: int = 0  # bytes of all rows
    file: BinaryIO | None = None

    def append(self, part: NDArray[Any]) -> None:
        """Take rows (B, ...), which nobody changes afterwards."""
        before = next(iter(self.parts), part)
        if part.shape[1:] != before.shape[1:] or part.dtype != before.dtype:
            raise DataError(
                f"{self.where}: from row {self.rows:,} on a sample has shape {part.shape[1:]} and dtype {part.dtype}, "
                f"before {before.shape[1:]} and {before.dtype}; bring them to one shape and dtype: pad or cut lists"
            )
        self.parts.append(part)
        self.rows += len(part)
        self.size += part.nbytes
        # a quarter: where the rows come from has some in memory too, as they are stored and converted
        if self.size > _IN_MEMORY // 4 and len(self.parts) > 1 and not part.dtype.hasobject:
            self._write()

    def _write(self) -> None:
        try:
            self.file = self.file or tempfile.TemporaryFile(prefix="tna-onnx-")  # noqa: SIM115 - closed in `array`
            for part in self.parts:
                self.file.write(np.ascontiguousarray(part).data)
            self.file.flush()  # a full disk is an error here, with its advice
        except OSError as error:
            raise UsageError(
                f"{tempfile.gettempdir()}: no room for the samples ({error.strerror}); set TMPDIR to a larger disk"
            ) from error
        self.parts = [self.parts[0][:0].copy()]

    def array(self) -> NDArray[Any]:
        """Return all rows.

        Raises DataError: there are none.
        """
        if not self.rows:
            raise DataError(f"{self.where}: there are no samples; at least one of each of two classes is needed")
        if self.file is None:
            if len(self.parts) == 1:
                return self.parts[0]
            return np.concatenate(self.parts)
        with self.file:  # the map outlives the file
            return np.memmap(self.file, self.parts[0].dtype, "r", shape=(self.rows, *self.parts[0].shape[1:]))


def release(array: NDArray[Any], rows: slice, stays: int | None = None) -> None:
    """Let the system take back the pages of some rows of a large mapped array; reading them again brings them back.

    Nothing happens to small arrays, to arrays that are not mapped, and on systems without `madvise` (Windows).

    `stays`: bytes below which an array is small; those of features and samples by default.
    """
    mapped = getattr(array, "_mmap", None)
    if mapped is None or array.nbytes < (_STAYS if stays is None else stays) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    # Pages of a copy-on-write map hold changes that are nowhere else.
    if getattr(array, "mode", "") == "c":
        return
    part = array[rows]
    if part.nbytes == 0 or not part.flags.c_contiguous:
        return
    start = part.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data
    first = start // mmap.PAGESIZE * mmap.PAGESIZE  # `madvise` wants whole pages
    mapped.madvise(mmap.MADV_DONTNEED, first, start + part.nbytes - first)


def reserve(file: IO[bytes], size: int) -> None:
    """Give an empty file its size, with blocks on disk.

    Raises OSError: the disk is full.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
        return
    # macOS and Windows: setting the length alone may leave a file without blocks.
    zeros = bytes(min(size, _ZEROS))
    for start in range(0, size, _ZEROS):
        file.write(zeros[: size - start])
    file.flush()
