"""Threads of linear algebra: one, but for large products.

A waiting thread of OpenBLAS spins for about 25 ms, which costs more than it brings between small products. The number
follows from the size of the product alone, because the last bits of a product depend on its threads.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

LARGE = 2**28
"""Multiplications of a product from which other threads are worth waking: 7 ms of one core."""

# The number of threads is the whole process's: the first block that is entered sets it, the last one sets it back.
_LOCK = threading.Lock()
_ENTERED = [0]
# libraries, their threads before, and those for large products
_HELD: list[tuple[Any, int, int]] = []


@contextlib.contextmanager
def one_thread(cores: int) -> Iterator[None]:
    """Give linear algebra of this process one thread for a block; `several_threads` gives large products more in it."""
    with _LOCK:
        if not _ENTERED[0]:
            for library in _libraries():
                before = library.get_num_threads()
                _HELD.append((library, before, min(before, max(2, cores))))
                library.set_num_threads(1)
        _ENTERED[0] += 1
    try:
        yield
    finally:
        with _LOCK:
            _ENTERED[0] -= 1
            while not _ENTERED[0] and _HELD:
                library, before, _ = _HELD.pop()
                library.set_num_threads(before)


@contextlib.contextmanager
def several_threads(*shape: int) -> Iterator[None]:
    """Give a product in a block of `one_thread` the cores, if it is large; elsewhere it has them already.

    `shape`: of the product (rows, columns) and the length of its sums: so many multiplications are made.
    """
    multiplications = 1
    for length in shape:
        multiplications *= length
    if multiplications < LARGE or not _HELD:
        yield
        return
    for library, _, was_threaded in _HELD:
        library.set_num_threads(was_threaded)
    try:
        yield
    finally:
        for library, _, _ in _HELD:
            library.set_num_threads(1)


def _libraries() -> list[Any]:
    """Return a controller for the threads of each loaded library of linear algebra."""
    import threadpoolctl  # noqa: PLC0415 - only searches need it

    controllers: list[Any] = threadpoolctl.ThreadpoolController().select(user_api="blas").lib_controllers
    return controllers
