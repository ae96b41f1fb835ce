"""Two batches at a time, each on half of the cores: what waits for the other threads of one, works on the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["AT_ONCE", "side_by_side"]

AT_ONCE = 2
"""Batches that are run at a time where there are cores and memory for it; more would only take memory."""

T = TypeVar("T")
R = TypeVar("R")


def side_by_side(of: Callable[[T], R], items: Iterable[T], at_once: int) -> Iterator[tuple[T, R]]:
    """Yield (item, of(item)) for each item, in order, up to so many computed at a time.

    The first is computed alone: what it finds may decide about the others. The first exception in the order of the
    items is raised, one of the items' own after those of the items before.

    Args:
        of: called in threads.
        items: taken one by one, at most two more than have been yielded and are being computed.
        at_once: how many are computed at a time.

    >>> list(side_by_side(abs, [-1, 2, -3], 2))
    [(-1, 1), (2, 2), (-3, 3)]
    """
    left = iter(items)
    for item in left:
        yield item, of(item)
        break
    if at_once == 1:
        for item in left:
            yield item, of(item)
        return
    pending: deque[tuple[T, Future[R]]] = deque()
    failures: list[Exception] = []
    with ThreadPoolExecutor(at_once, thread_name_prefix="tna-onnx-run") as pool:
        try:
            for item in _until_failure(left, failures):
                pending.append((item, pool.submit(of, item)))
                # one more than are computed: a thread that is done finds the next one
                if len(pending) > at_once:
                    yield _oldest(pending)
            while pending:
                yield _oldest(pending)
        finally:
            # the caller stopped, or an item failed: do not begin what nobody will see
            for _, future in pending:
                future.cancel()
    for failure in failures:
        raise failure


def _until_failure(items: Iterator[T], failures: list[Exception]) -> Iterator[T]:
    """Yield items up to an exception, which is noted."""
    try:
        yield from items
    except Exception as failure:  # noqa: BLE001 - raised when it is its turn
        failures.append(failure)


def _oldest(pending: deque[tuple[T, Future[R]]]) -> tuple[T, R]:
    """Wait for the oldest; it stays pending meanwhile, so that an interruption cancels the others."""
    item, future = pending[0]
    result = future.result()
    pending.popleft()
    return item, result
