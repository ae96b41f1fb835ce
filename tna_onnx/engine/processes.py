"""The engine of several processes on this machine (`--engine processes:N`), each with its share of the cores.

Each process is a pool of its own: a pool with several is broken as a whole when one of them is killed, and does not say
which chunk it had. The processes are spawned, so they share nothing with this one. A process lives as long as
the pipe to this one is open: it ends when it is told to, and also when this one is killed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from tna_onnx.engine.protocol import S, T, add_neighbours
from tna_onnx.engine.staying import Staying
from tna_onnx.engine.threads import stay_on_one_thread, threads_of_workers
from tna_onnx.engine.workers import LostWorker, attempted, map_on
from tna_onnx.runtime import share_cores

__all__ = ["Processes"]


@dataclass(frozen=True)
class Processes:
    """An engine of processes.

    Attributes:
        count: how many, at most.
    """

    count: int

    def map_chunks(self, of: Callable[..., T], chunks: Iterable[tuple[Any, ...]]) -> Generator[T, None, None]:
        """Yield of(*chunk_1), of(*chunk_2), ...; see `Engine`."""
        return map_on(lambda: _Process(of, self.count), self.count, chunks)

    def sum_chunks(self, of: Callable[..., S], chunks: Iterable[tuple[Any, ...]]) -> S:
        """Return of(*chunk_1) + of(*chunk_2) + ...; see `Engine`."""
        return add_neighbours(self.map_chunks(of, chunks))

    @contextlib.contextmanager
    def staying(self) -> Iterator[Staying]:
        """Give an engine of the same processes that lasts for a block, and so do they."""
        staying = Staying(lambda of: _Process(of, self.count), self.count)
        try:
            yield staying
        finally:
            staying.close()


class _Process:
    """One process."""

    fresh = True

    def __init__(self, of: Callable[..., Any], sharing: int) -> None:
        self._sharing = sharing
        context = multiprocessing.get_context("spawn")
        self._theirs, self._ours = context.Pipe(duplex=False)
        self._pool = ProcessPoolExecutor(1, context, _begin, (of, sharing, self._theirs))

    def ready(self) -> Future[Any]:
        """Return a future that is done when the process is there; see `Worker`."""
        with _no_interrupt(), threads_of_workers(self._sharing):  # the first call starts the process
            return self._submit(os.getpid)

    def take(self, of: Callable[..., Any]) -> Future[Any]:
        """Give it another function; see `Reusable`."""
        return self._submit(_take, of)

    def give(self, chunk: tuple[Any, ...]) -> Future[Any]:
        """Start on a chunk; see `Worker`."""
        return self._submit(_run, chunk)

    def _submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        result: Future[Any] = Future()
        try:
            inner = self._pool.submit(function, *arguments)
        except BrokenProcessPool as error:  # it was killed between two chunks
            result.set_exception(LostWorker(str(error)))
            return result
        inner.add_done_callback(lambda done: _hand_over(done, result))
        return result

    def stop(self, *, at_once: bool) -> None:
        """End it; see `Worker`."""
        # a pool that is told to shut down and not waited for can be waited for no more: `join` tells it
        if at_once:
            self._ours.close()

    def join(self) -> None:
        """Wait until it has ended; see `Worker`."""
        self._pool.shutdown(cancel_futures=True)
        self._ours.close()
        self._theirs.close()


def _hand_over(done: Future[Any], result: Future[Any]) -> None:
    if done.cancelled():
        result.cancel()
        return
    error = done.exception()
    if isinstance(error, BrokenProcessPool):
        error = LostWorker("a process ended without a word, or was killed")
    if error is None:
        result.set_result(done.result())
    else:
        result.set_exception(error)


@contextlib.contextmanager
def _no_interrupt() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach: it goes to this one, which ends them; here it waits until after that.

    Elsewhere than on POSIX systems `_begin` sees to it, a second later.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# What runs in the process.

_OF: list[Callable[..., Any]] = []


def _begin(of: Callable[..., Any], sharing: int, lifeline: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    share_cores(sharing)
    _take(of)


def _take(of: Callable[..., Any]) -> None:
    _OF[:] = [of]


def _end_with(lifeline: Connection) -> None:
    """End this process when the other end of a pipe is closed: nothing is ever sent."""
    with contextlib.suppress(EOFError, OSError):
        lifeline.recv_bytes()
    os._exit(1)


def _run(chunk: tuple[Any, ...]) -> Any:
    stay_on_one_thread()
    return attempted(_OF[0], chunk)
