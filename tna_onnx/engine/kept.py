"""Logits that are kept for many passes: in memory, or where they are large, in a temporary file.

From the file a pass reads them chunk by chunk. What it has read goes back to the system, so that large logits take the
memory of one chunk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tna_onnx.errors import UsageError
from tna_onnx.extraction.mapped import allocate, release

__all__ = ["KeptChunks"]

# Bytes of logits up to which they stay in memory: less than libraries take.
_IN_MEMORY = 2**27


class KeptChunks:
    """Chunks of the logits of N samples, which can be passed over again and again.

    Args:
        chunks: (B, C) each, in order; arrays that are not NumPy's stay where they are.
        samples: their number N.
        size: bytes of all of them, at most.
    """

    def __init__(self, chunks: Iterator[Any], samples: int, size: int) -> None:
        self._mapped: NDArray[Any] | None = None
        self._rows: list[slice] = []
        self._arrays: list[Any] = []
        start = 0
        for chunk in chunks:
            rows = slice(start, start + len(chunk))
            if not start and size > _IN_MEMORY and isinstance(chunk, np.ndarray):
                self._mapped = _room(samples, chunk)
            if self._mapped is None:
                self._arrays.append(chunk)
            else:
                self._mapped[rows] = chunk
                self._rows.append(rows)
                release(self._mapped, rows, stays=0)
            start = rows.stop

    def __iter__(self) -> Iterator[Any]:
        """Yield the chunks; of those in a file, one at a time is in memory."""
        yield from self._arrays
        for rows in self._rows:
            assert self._mapped is not None  # noqa: S101 - it has rows
            # a plain array: operations on mapped ones give mapped ones
            yield np.asarray(self._mapped[rows])
            release(self._mapped, rows, stays=0)


def _room(samples: int, chunk: NDArray[Any]) -> NDArray[Any] | None:
    """Return a mapped (N, C) array; None where the folder for temporary files has no room for it."""
    with contextlib.suppress(UsageError):
        return allocate(None, (samples, *chunk.shape[1:]), chunk.dtype)
    return None
