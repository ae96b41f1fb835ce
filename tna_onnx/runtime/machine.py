"""Cores and memory that this process may use. psutil knows the machine; a Linux container can be smaller than that.

The limits of a container are in the files of its control group (cgroup v2): `cpu.max`, `memory.max`, `memory.stat`.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from pathlib import Path

__all__ = ["allowed_cores", "free_memory", "require_address_space", "resident_memory", "share_cores", "trim_memory"]

_CGROUP = Path("/sys/fs/cgroup")

_SHARING = [1]

# Bytes of address space that NumPy's and SciPy's linear algebra take when they are used first.
_ROOM = 2**28


def allowed_cores(cgroup: Path = _CGROUP) -> int:
    """Return the number of cores that this process may use, at least 1.

    A scheduler may bind the process to some cores of the machine, and a container may have a share of their time.

    Args:
        cgroup: folder of the control group; on other systems than Linux there is none.
    """
    import psutil  # noqa: PLC0415 - heavy

    process = psutil.Process()
    cores = os.cpu_count() or 1
    if hasattr(process, "cpu_affinity"):  # macOS cannot bind a process to cores
        cores = len(process.cpu_affinity())
    # no container, or one without a limit ("max")
    with contextlib.suppress(OSError, ValueError):
        quota, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        cores = min(cores, int(quota) // int(period))
    return max(1, cores // _SHARING[0])


def share_cores(processes: int) -> None:
    """Take one of so many shares of the cores from now on: other processes take the others."""
    _SHARING[0] = processes


def free_memory(cgroup: Path = _CGROUP) -> int:
    """Return the bytes that the machine can still give without swapping, and its container if there is one.

    Args:
        cgroup: folder of the control group; on other systems than Linux there is none.
    """
    import psutil  # noqa: PLC0415 - heavy

    free = int(psutil.virtual_memory().available)
    try:
        limit = int((cgroup / "memory.max").read_text(encoding="ascii"))
        statistics = (cgroup / "memory.stat").read_text(encoding="ascii")
        used = dict(line.split() for line in statistics.splitlines())
        # Only anonymous pages count as used: the kernel drops pages of files when it needs their room.
        return max(0, min(free, limit - int(used["anon"])))
    except (OSError, ValueError, KeyError):  # no container, or one without a limit ("max")
        return free


def require_address_space() -> None:
    """Refuse to begin where a limit (`ulimit -v`) leaves libraries no room for their buffers.

    OpenBLAS ends the process where it gets none, or asks for them for ever.

    Raises:
        MemoryError: it does.
    """
    try:
        mmap.mmap(-1, _ROOM).close()
    except OSError as error:
        raise MemoryError(f"no {_ROOM:,} bytes of address space: {error.strerror}") from error


def resident_memory() -> int:
    """Return the bytes of this process that are in memory."""
    import psutil  # noqa: PLC0415 - heavy

    return int(psutil.Process().memory_info().rss)


def trim_memory() -> None:
    """Give freed memory back to the system, where the C library keeps it for itself: glibc does."""
    # absent from other systems and C libraries
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
