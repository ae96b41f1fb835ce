"""Arrays in mapped files, whose pages go back to the system once they are read."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import UsageError

__all__ = ["ReadOnce", "TemporaryRows", "allocate", "release"]


_STAYS = 2**28  # bytes of a mapped array that may stay in memory between two passes over it


def allocate(path: Path | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Map a file whose blocks are reserved, so that a full disk is an error here; an unnamed one without a path.

    Raises:
        UsageError: no room, or the file cannot be written.
    """
    size = math.prod(shape) * dtype.itemsize
    where = tempfile.gettempdir() if path is None else str(path.parent)
    advice = "set TMPDIR to a larger disk" if path is None else "choose another --cache"
    try:
        with tempfile.TemporaryFile(prefix="tna-onnx-") if path is None else _opened(path) as file:
            if os.fstat(file.fileno()).st_size != size:
                file.truncate(0)
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
                else:
                    file.truncate(size)
            return np.memmap(file, dtype, "r+", shape=shape)  # the map outlives the handle
    except OSError as error:
        raise UsageError(f"{where}: no room for {size:,} bytes of features ({error.strerror}); {advice}") from error


def _opened(path: Path) -> Any:
    return path.open("r+b" if path.exists() else "w+b")


def release(array: NDArray[Any], rows: slice) -> None:
    """Let the system take back the pages of some rows of a large mapped array; they come back when they are read.

    So what a process keeps in memory does not grow with the file. Nothing happens to other arrays.
    """
    mapped = getattr(array, "_mmap", None)
    if mapped is None or getattr(array, "mode", "") == "c" or array.nbytes < _STAYS:  # changes would be lost
        return
    if not hasattr(mmap, "MADV_DONTNEED"):
        return
    part = array[rows]
    if part.nbytes == 0 or not part.flags.c_contiguous:
        return
    start = part.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    mapped.madvise(mmap.MADV_DONTNEED, first, start + part.nbytes - first)


@dataclass(frozen=True, eq=False)
class ReadOnce:
    """An array that is read from front to back, as for a digest; rows that were read are released."""

    array: NDArray[Any]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values."""
        return self.array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape with the samples along axis 0."""
        return self.array.shape

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return self.array.nbytes

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.array)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """Return a copy of some rows."""
        part = np.array(self.array[rows])
        release(self.array, rows)
        return part


@dataclass(eq=False)
class TemporaryRows:
    """Arrays of N rows in unnamed temporary files."""

    samples: int
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return the rows of one tensor, (N, *shape), mapped for writing."""
        if name not in self.arrays:
            self.arrays[name] = allocate(None, (self.samples, *shape), dtype)
        return self.arrays[name]
