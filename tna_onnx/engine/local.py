"""The engine of this machine: one chunk after the other.

Neighbours are merged pairwise, so joining k chunks copies each value log k times and the order is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tna_onnx.engine.protocol import S, T

__all__ = ["collect_chunks", "reduce_chunks"]


def reduce_chunks(of: Callable[..., S], chunks: Iterable[tuple[Any, ...]]) -> S:
    """Return of(*chunk_1) + of(*chunk_2) + ...

    Raises:
        ValueError: no chunk.

    >>> reduce_chunks(lambda a, b: a * b, [(1, 2), (3, 4), (5, 6)])
    44
    """
    parts = collect_chunks(of, chunks)
    if not parts:
        raise ValueError("no chunk to reduce")
    # neighbours first, pair by pair: every engine adds in this order, so that bits are the same
    while len(parts) > 1:
        odd_one = parts[len(parts) & ~1 :]
        parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)] + odd_one
    return parts[0]


def collect_chunks(of: Callable[..., T], chunks: Iterable[tuple[Any, ...]]) -> list[T]:
    """Return [of(*chunk_1), of(*chunk_2), ...]."""
    return [of(*chunk) for chunk in chunks]
