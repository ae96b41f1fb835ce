"""Read samples in threads, ahead of whoever takes them: order kept, a bounded number of groups, no thread left behind.

A group is what becomes one batch. Threads work on the group that the reader waits for and on the next ones, at least
two samples a thread. So while the network runs a batch, the following one is read and stacked. A thread takes a run of
neighbours at a time, of which there are some for each thread: handing over a small image takes as long as reading it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence
    from concurrent.futures import Future

__all__ = ["WORKERS", "read_ahead"]

T = TypeVar("T")
P = TypeVar("P")
B = TypeVar("B")

WORKERS = min(16, os.cpu_count() or 1)  # decoding leaves Python's lock; past 16 threads what remains in it takes turns

_RUNS = 4  # of a group, for each thread: the last ones are done at about the same time


def read_ahead(
    groups: Iterable[Sequence[T]],
    load: Callable[[T], P],
    join: Callable[[Sequence[T], list[P]], B],
    workers: int = WORKERS,
) -> Generator[B, None, None]:
    """Yield join(group, [load(item) for item in group]) for each group, in order, computed by threads.

    An exception of `load` or `join` is raised when its group is reached, that of the first item first. When the
    generator is closed, items that no thread has begun are dropped, and the threads end.
    """
    pending: deque[tuple[list[Future[list[P]]], Future[B]]] = deque()
    closed = threading.Event()
    with ThreadPoolExecutor(workers, thread_name_prefix="tna-onnx-read") as pool:
        try:
            for group in groups:
                size = max(1, len(group) // (_RUNS * workers))
                runs = (group[start : start + size] for start in range(0, len(group), size))
                loads = [pool.submit(_each, load, run, closed) for run in runs]
                # The pool starts tasks in the order of submission: when this one waits for the loads of its group,
                # other threads have begun all of them.
                joined = pool.submit(_gather, join, group, loads)
                pending.append((loads, joined))
                # Two samples a thread keep all threads busy until the reader comes back; more would only take memory.
                ahead = len(pending) - 1
                if ahead and ahead * len(group) >= 2 * workers:
                    yield _take(pending)
            while pending:
                yield _take(pending)
        finally:
            closed.set()
            for loads, joined in pending:  # the reader stopped, or an item failed: do not read what nobody will see
                joined.cancel()
                for future in loads:
                    future.cancel()


def _each(load: Callable[[T], P], run: Sequence[T], closed: threading.Event) -> list[P]:
    loaded = []
    for item in run:
        if closed.is_set():  # nobody will see these
            break
        loaded.append(load(item))
    return loaded


def _gather(join: Callable[[Sequence[T], list[P]], B], group: Sequence[T], loads: list[Future[list[P]]]) -> B:
    return join(group, [loaded for future in loads for loaded in future.result()])


def _take(pending: deque[tuple[list[Future[list[P]]], Future[B]]]) -> B:
    """Wait for the oldest group; it stays pending meanwhile, so that a failure drops the rest of it."""
    result = pending[0][1].result()
    pending.popleft()
    return result
