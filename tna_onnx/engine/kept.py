"""Logits that are kept for many passes: in memory, or where they are large, in a temporary file.

From the file a pass reads them chunk by chunk. What it has read goes back to the system, so that large logits take the
memory of one chunk.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.extraction.mapped import release, reserve

__all__ = ["KeptChunks"]

# Bytes of logits up to which they stay in memory: less than libraries take.
_IN_MEMORY = 2**27


class KeptChunks:
    """Chunks of the logits of N samples, which can be passed over again and again; nobody may write to them.

    Args:
        chunks: (B, C) each, in order; arrays that are not NumPy's stay where they are.
        samples: their number N.
        size: bytes of all of them, at most.
    """

    def __init__(self, chunks: Iterator[Any], samples: int, size: int) -> None:
        self._mapped: NDArray[Any] | None = None
        self._rows: list[slice] = []
        self._arrays: list[Any] = []
        file: IO[bytes] | None = None
        start = 0
        for chunk in chunks:
            if not start and size > _IN_MEMORY and isinstance(chunk, np.ndarray):
                file = _room(samples * chunk[0].nbytes)
            if file is None:
                self._arrays.append(chunk)
                continue
            # written, and mapped afterwards: each page of a map would be asked for by itself
            file.write(np.ascontiguousarray(chunk).data)
            stop = start + len(chunk)
            self._rows.append(slice(start, stop))
            start = stop
        if file is not None:
            file.flush()
            # the map outlives the handle
            self._mapped = np.memmap(file, chunk.dtype, "r", shape=(samples, *chunk.shape[1:]))
            file.close()

    def __iter__(self) -> Iterator[Any]:
        """Yield the chunks; of those in a file, one at a time is in memory."""
        yield from self._arrays
        for rows in self._rows:
            assert self._mapped is not None  # noqa: S101 - it has rows
            # a plain array: operations on mapped ones give mapped ones
            yield np.asarray(self._mapped[rows])
            release(self._mapped, rows, stays=0)


def _room(size: int) -> IO[bytes] | None:
    """Return a temporary file with room for so many bytes; None where the folder for such files has none."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        file: IO[bytes] = stack.enter_context(tempfile.TemporaryFile(prefix="tna-onnx-"))
        reserve(file, size)
        file.seek(0)
        stack.pop_all()
        return file
    return None
