"""What an engine is: two functions over chunks of samples.

To add an engine, write one file with these two functions. It may send `of`, chunks and what comes back to other
processes: all can be pickled. `of` is sent once to each worker, which keeps it: what it opens for its first chunk (a
model, samples) serves the next ones. A chunk may be computed twice, if a worker is lost, so `of` gives the same again.
Chunks are in the order of the samples, and so is what comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any, Protocol, TypeVar

__all__ = ["Addable", "Engine", "add_neighbours"]


class Addable(Protocol):
    """A statistic of some samples; `+` gives the statistic of both."""

    def __add__(self, other: Any, /) -> Any:
        """Merge."""


S = TypeVar("S", bound=Addable)
T = TypeVar("T")


class Engine(Protocol):
    """Where functions of chunks are run; a module with these functions is one (`engine.local`)."""

    def map_chunks(self, of: Callable[..., T], chunks: Iterable[tuple[Any, ...]]) -> Generator[T, None, None]:
        """Yield of(*chunk_1), of(*chunk_2), ...; closing the generator ends all workers.

        Raises:
            Exception: what `of` raises, for the first chunk that it fails on.
            DeviceError: workers cannot be reached, or one chunk ends worker after worker.
        """

    def sum_chunks(self, of: Callable[..., S], chunks: Iterable[tuple[Any, ...]]) -> S:
        """Return of(*chunk_1) + of(*chunk_2) + ...; neighbours are added first, pair by pair (`add_neighbours`).

        Floating-point sums depend on the order: every engine adds in this one, so that all give the same bits.

        Raises:
            ValueError: no chunk.
        """


def add_neighbours(parts: Iterable[S]) -> S:
    """Return part_1 + part_2 + ...: neighbours first, then neighbouring sums, as in ((a + b) + (c + d)) + e.

    Joining k parts copies each value log k times, and no more than log k sums are in memory.

    Raises:
        ValueError: no part.

    >>> add_neighbours(["a", "b", "c"])
    'abc'
    """
    # (number of doublings, sum), as the digits of a binary counter
    sums: list[tuple[int, Any]] = []
    for part in parts:
        level = 0
        total: Any = part
        while sums and sums[-1][0] == level:
            total = sums.pop()[1] + total
            level += 1
        sums.append((level, total))
    if not sums:
        raise ValueError("no chunk to sum")
    _, total = sums.pop()
    while sums:
        total = sums.pop()[1] + total
    return total  # type: ignore[no-any-return]
