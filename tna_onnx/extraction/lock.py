"""The lock of a feature store: one process at a time fills it. It ends with its process, however that ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tna_onnx.errors import UsageError

__all__ = ["locked"]


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a store in the context; the file may stay behind, and is then no lock.

    Raises:
        UsageError: another process holds it.
    """
    import filelock  # noqa: PLC0415 - heavy

    lock = filelock.FileLock(folder / "lock", timeout=0, mode=0o600)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise UsageError(f"{folder}: another process is filling this feature store; wait for it to end") from error
    except NotImplementedError as error:  # older versions of filelock, where the file system has no locks
        raise UsageError(f"{folder}: this file system has no locks; choose another --cache") from error
    try:
        yield
    finally:
        lock.release()
