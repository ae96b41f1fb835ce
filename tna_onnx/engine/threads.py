"""Threads of linear algebra in a worker: its share of the cores, and the same last bits as the process that sent it.

OpenBLAS cuts the sums of a product in other places with one thread than with several, and in the same places with any
number of several, where the product has two columns or more, as those of class vectors have. So a worker has one thread
where its driver has one, and else at least two; which products have them is a matter of their size.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator

from tna_onnx.numerics.threads import one_thread, threads_here
from tna_onnx.runtime import allowed_cores

__all__ = ["stay_on_one_thread", "threads_of_workers", "worker_threads"]

# Read by OpenBLAS, by what runs on OpenMP, and by MKL, when they are loaded.
_NAMES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")

# The block of a worker: as long as its process.
_STAYS = contextlib.ExitStack()


def worker_threads(sharing: int) -> dict[str, str]:
    """Return environment variables of a worker that shares this machine with others, `sharing` of them in all.

    What the user has set is passed on as it is.
    """
    told = {name: os.environ[name] for name in _NAMES if name in os.environ}
    if told:
        return told
    here = threads_here() or _cores_of_libraries()
    threads = 1 if here == 1 else max(2, allowed_cores() // sharing)
    return dict.fromkeys(_NAMES, str(threads))


@contextlib.contextmanager
def threads_of_workers(sharing: int) -> Iterator[None]:
    """Start processes in a block with the threads of a worker."""
    new = {name: value for name, value in worker_threads(sharing).items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]


@functools.cache
def stay_on_one_thread() -> None:
    """Compute in this process, a worker, as its driver does in a block of `one_thread`."""
    _STAYS.enter_context(one_thread(allowed_cores()))


def _cores_of_libraries() -> int:
    """Return the cores that the libraries see: they know of processors, and nothing of a container's share of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
