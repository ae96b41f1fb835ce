"""`reduce` on this machine: a statistic of every chunk, merged with `+`.

Neighbours are merged pairwise, so joining k chunks copies each value log k times and the order is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

__all__ = ["Addable", "reduce_chunks"]


class Addable(Protocol):
    """A statistic of some samples; `+` gives the statistic of both."""

    def __add__(self, other: Any, /) -> Any:
        """Merge."""


S = TypeVar("S", bound=Addable)


def reduce_chunks(of: Callable[..., S], chunks: Iterable[tuple[Any, ...]]) -> S:
    """Return of(*chunk_1) + of(*chunk_2) + ...

    Raises:
        ValueError: no chunk.

    >>> reduce_chunks(lambda a, b: a * b, [(1, 2), (3, 4), (5, 6)])
    44
    """
    parts = [of(*chunk) for chunk in chunks]
    if not parts:
        raise ValueError("no chunk to reduce")
    while len(parts) > 1:
        parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)] + parts[len(parts) & ~1 :]
    return parts[0]
