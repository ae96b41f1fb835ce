"""What an engine is: two functions over chunks of samples.

To add an engine, write one file with these two functions. It may send `of` and what comes back to other processes:
both can be pickled. Chunks are in the order of the samples, and so is what comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

__all__ = ["Addable", "Engine"]


class Addable(Protocol):
    """A statistic of some samples; `+` gives the statistic of both."""

    def __add__(self, other: Any, /) -> Any:
        """Merge."""


S = TypeVar("S", bound=Addable)
T = TypeVar("T")


class Engine(Protocol):
    """Where functions of chunks are run; a module with these functions is one (`engine.local`)."""

    def reduce_chunks(self, of: Callable[..., S], chunks: Iterable[tuple[Any, ...]]) -> S:
        """Return of(*chunk_1) + of(*chunk_2) + ...; neighbours are added first, pair by pair.

        Floating-point sums depend on the order: every engine adds in this one, so that all give the same bits.

        Raises:
            ValueError: no chunk.
        """

    def collect_chunks(self, of: Callable[..., T], chunks: Iterable[tuple[Any, ...]]) -> list[T]:
        """Return [of(*chunk_1), of(*chunk_2), ...]."""
