"""The engine of this process: one chunk after the other."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any

from tna_onnx.engine.protocol import S, T, add_neighbours

__all__ = ["map_chunks", "sum_chunks"]


def map_chunks(of: Callable[..., T], chunks: Iterable[tuple[Any, ...]]) -> Generator[T, None, None]:
    """Yield of(*chunk_1), of(*chunk_2), ..."""
    for chunk in chunks:
        yield of(*chunk)


def sum_chunks(of: Callable[..., S], chunks: Iterable[tuple[Any, ...]]) -> S:
    """Return of(*chunk_1) + of(*chunk_2) + ...

    Raises:
        ValueError: no chunk.

    >>> sum_chunks(lambda a, b: a * b, [(1, 2), (3, 4), (5, 6)])
    44
    """
    return add_neighbours(map_chunks(of, chunks))
