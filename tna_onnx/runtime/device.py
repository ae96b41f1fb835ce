"""The device of `--device`, and the cores and memory that this process may use.

The limits of a Linux container are in the files of its control group (cgroup v2): `cpu.max`, `memory.max`,
`memory.stat`.
"""

import contextlib
import ctypes
import mmap
import os
import re
from dataclasses import dataclass
from pathlib import Path

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
    limit = None
    if "memory" in fields:
        limit = round(float(fields["memory"]) * _GIB)
    if len(fields) != len(options) or limit == 0:
        raise UsageError(f"device '{text}': expected tf32=as-deployed, tf32=off or memory=GIB behind the device")
    return Device(match[1], int(match[2] or 0), fields.get("tf32") != "off", limit)


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
