"""Threads of linear algebra: one where products are small, as many as cores elsewhere, and the same at workers.

A thread of OpenBLAS that has done its part of a product waits for the next one at full speed. Between small products
that costs more than it brings, ten times the whole run where other processes want the core.

OpenBLAS cuts the sums of a product in other places with one thread than with several, and in the same places with any
number of several, where the product has two columns or more, as those of class vectors have. So a worker has one thread
where its driver has one, and else at least two.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

from tna_onnx.runtime import allowed_cores

__all__ = ["threads_for", "threads_of_workers", "worker_threads"]

# Read by OpenBLAS, by what runs on OpenMP, and by MKL, when they are loaded.
_NAMES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")

# Multiplications of a product from which a second thread is worth waking: 7 ms of one core.
_LARGE = 2**28

# The number of threads is the whole process's: the first block that is entered sets it, the last one sets it back.
_LOCK = threading.Lock()
_ENTERED = [0]
_BEFORE: list[tuple[Any, int]] = []


@contextlib.contextmanager
def threads_for(samples: int, classes: int, features: int) -> Iterator[None]:
    """Give linear algebra of this process no more threads than a search and fits of this size need, for a block.

    Args:
        samples: N.
        classes: C.
        features: n of the head; 0 where there is none.
    """
    # maps multiply (N, C) logits with (C, C), too
    large = samples * classes * max(classes, features) >= _LARGE
    with _LOCK:
        if not _ENTERED[0]:
            _lower(max(2, allowed_cores()) if large else 1)
        _ENTERED[0] += 1
    try:
        yield
    finally:
        with _LOCK:
            _ENTERED[0] -= 1
            while not _ENTERED[0] and _BEFORE:
                library, threads = _BEFORE.pop()
                library.set_num_threads(threads)


def _lower(threads: int) -> None:
    for library in _libraries():
        before = library.get_num_threads()
        if before > threads:
            _BEFORE.append((library, before))
            library.set_num_threads(threads)


def worker_threads(sharing: int) -> dict[str, str]:
    """Return environment variables of a worker that shares this machine with others, `sharing` of them in all.

    What the user has set is passed on as it is, unless this process has one thread.
    """
    one = _threads_here() == 1
    told = {name: os.environ[name] for name in _NAMES if name in os.environ}
    if told and not one:
        return told
    threads = 1 if one else max(2, allowed_cores() // sharing)
    return dict.fromkeys(_NAMES, str(threads))


@contextlib.contextmanager
def threads_of_workers(sharing: int) -> Iterator[None]:
    """Start processes in a block with the threads of a worker."""
    before = {name: os.environ.get(name) for name in _NAMES}
    os.environ.update(worker_threads(sharing))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _libraries() -> list[Any]:
    """Return what sets the threads of each library of linear algebra that is loaded."""
    import threadpoolctl  # noqa: PLC0415 - only searches and workers need it

    found: list[Any] = threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers
    return found


def _threads_here() -> int:
    """Return the threads of linear algebra in this process."""
    # a library that threadpoolctl does not know, as Accelerate is, sees the cores
    return min((library.get_num_threads() for library in _libraries()), default=_cores_of_libraries())


def _cores_of_libraries() -> int:
    """Return the cores that the libraries see: they know of processors, and nothing of a container's share of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
