"""The device of `--device`, and the cores and memory that this process may use.

Free memory of a CUDA device is read from the driver, since ONNX Runtime does not report it. The limits of a Linux
container are in the files of its control group (cgroup v2): `cpu.max`, `memory.max`, `memory.stat`.
"""

import contextlib
import ctypes
import mmap
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tna_onnx.errors import UsageError

_GIB = 2**30

# What may follow the device, each once.
_OPTION = re.compile(r"tf32=(?P<tf32>as-deployed|off)|memory=(?P<memory>\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Device:
    """The value of `--device`."""

    kind: str  # `auto`, `cpu` or `cuda`
    index: int = 0  # of the CUDA device
    # whether ONNX Runtime may round float32 products to TF32 on CUDA, as it does where models are deployed
    tf32: bool = True
    memory: int | None = None  # bytes of the CUDA device that a run may take; None for all that is free


def parse_device(text: str) -> Device:
    """Read `auto`, `cpu`, `cuda` or `cuda:1`, in any case; `gpu` is CUDA.

    `,tf32=off` behind it keeps float32 products on CUDA in float32, and `,memory=8` takes 8 GiB of the device at most.

    >>> parse_device("cuda:1,tf32=off")
    Device(kind='cuda', index=1, tf32=False, memory=None)
    """
    word, *options = text.lower().replace("gpu", "cuda").split(",")
    match = re.fullmatch(r"(auto|cpu|cuda)(?::(\d+))?", word)
    if match is None or (match[2] and match[1] != "cuda"):
        raise UsageError(f"device '{text}' is not known; expected auto, cpu, cuda or cuda:INDEX")
    matches = [_OPTION.fullmatch(option) for option in options]
    fields = {name: value for match in matches if match for name, value in match.groupdict().items() if value}
    memory = float(fields["memory"]) if "memory" in fields else None
    if len(fields) != len(options) or memory == 0:
        raise UsageError(f"device '{text}': expected tf32=as-deployed, tf32=off or memory=GIB behind the device")
    limit = None if memory is None else round(memory * _GIB)
    return Device(match[1], int(match[2] or 0), fields.get("tf32") != "off", limit)


# The driver is a part of the system, and counts the devices that this process sees.
DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
"""The library of NVIDIA's driver."""


def free_device_memory(index: int, limit: int | None = None) -> int | None:
    """Return the free bytes of a CUDA device; None where no driver says.

    `limit`: bytes that may be taken; None for all.
    """
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return None
    free = _free(driver, index)
    if free is None or limit is None:
        return free
    return min(free, limit)


def _free(driver: Any, index: int) -> int | None:
    device = ctypes.c_int()
    context = ctypes.c_void_p()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), ctypes.c_int(index)):
        return None
    # the context that ONNX Runtime and torch use too
    if driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device):
        return None
    free = ctypes.c_size_t()
    total = ctypes.c_size_t()
    try:
        if driver.cuCtxPushCurrent_v2(context):
            return None
        failed = driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        driver.cuCtxPopCurrent_v2(ctypes.byref(context))
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(device)
    if failed:
        return None
    return int(free.value)


_CGROUP = Path("/sys/fs/cgroup")

# Bytes of address space that NumPy's and SciPy's linear algebra take when they are used first.
_ROOM = 2**28


def allowed_cores(cgroup: Path = _CGROUP) -> int:
    """Return the number of cores that this process may use, at least 1.

    A scheduler may bind the process to some cores of the machine, and a container may have a share of their time. Ray,
    Spark and Dask tell their workers the number of threads by OMP_NUM_THREADS.

    `cgroup`: folder of the control group; on other systems than Linux there is none.
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
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdecimal() and int(threads):
        cores = min(cores, int(threads))
    return max(1, cores)


def free_memory(cgroup: Path = _CGROUP) -> int:
    """Return the bytes that the machine can still give without swapping, and its container if there is one.

    `cgroup`: folder of the control group; on other systems than Linux there is none.
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

    Raises MemoryError: it does.
    """
    try:
        mmap.mmap(-1, _ROOM).close()
    except OSError as error:
        raise MemoryError(f"no {_ROOM:,} bytes of address space: {error.strerror}") from error


def trim_memory() -> None:
    """Give freed memory back to the system, where the C library keeps it for itself: glibc does."""
    # absent from other systems and C libraries
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
