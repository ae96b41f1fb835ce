"""Workers that stay from one call to the next: a search makes hundreds of calls, and a process takes a second to start.

They are started as they are needed, by the first call that needs so many. Each call gives its function anew.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from tna_onnx.engine.protocol import S, T, add_neighbours
from tna_onnx.engine.workers import Worker, map_on

__all__ = ["Reusable", "Staying"]


class Reusable(Worker, Protocol):
    """A worker that can be given another function."""

    def take(self, of: Callable[..., Any]) -> Future[Any]:
        """Compute chunks with this function from now on; the future is done when it is there."""


class Staying:
    """An engine of workers that stay until it is closed.

    Args:
        start: starts a worker with its first function.
        count: number of workers, at most.
    """

    def __init__(self, start: Callable[[Callable[..., Any]], Reusable], count: int) -> None:
        self.count = count
        self._start = start
        self._free: list[Reusable] = []

    def map_chunks(self, of: Callable[..., T], chunks: Iterable[tuple[Any, ...]]) -> Generator[T, None, None]:
        """Yield of(*chunk_1), of(*chunk_2), ...; see `Engine`."""
        return map_on(lambda: self._lent(of), self.count, chunks)

    def sum_chunks(self, of: Callable[..., S], chunks: Iterable[tuple[Any, ...]]) -> S:
        """Return of(*chunk_1) + of(*chunk_2) + ...; see `Engine`."""
        return add_neighbours(self.map_chunks(of, chunks))

    def close(self) -> None:
        """End all workers."""
        for worker in self._free:
            worker.stop(at_once=False)
        while self._free:
            self._free.pop().join()

    def _lent(self, of: Callable[..., Any]) -> _Lent:
        if self._free:
            return _Lent(self._free.pop(), of, self._free)
        return _Lent(self._start(of), None, self._free)


@runtime_checkable
class HasWorkers(Protocol):
    """An engine with workers of its own."""

    def staying(self) -> AbstractContextManager[Staying]:
        """Give an engine of the same workers that lasts for a block, and so do they."""


class _Lent:
    """A worker for one call; it goes back to those that are free unless it is ended.

    Args:
        worker: that does the work.
        of: the function that it is still to be given, if any.
        free: where it goes back to.
    """

    def __init__(self, worker: Reusable, of: Callable[..., Any] | None, free: list[Reusable]) -> None:
        self._worker = worker
        self._of = of
        self._free = free
        self._ended = False
        # one that was killed while it had nothing to do says nothing of those that are started now
        self.fresh = of is None

    def ready(self) -> Future[Any]:
        """Return a future that is done when the worker has the function; see `Worker`."""
        return self._worker.ready() if self._of is None else self._worker.take(self._of)

    def give(self, chunk: tuple[Any, ...]) -> Future[Any]:
        """Start on a chunk; see `Worker`."""
        return self._worker.give(chunk)

    def stop(self, *, at_once: bool) -> None:
        """End it, or give it back; see `Worker`."""
        self._ended = at_once
        if at_once:
            self._worker.stop(at_once=True)

    def join(self) -> None:
        """Wait until it has ended, if it has to; see `Worker`."""
        if self._ended:
            self._worker.join()
        else:
            self._free.append(self._worker)
