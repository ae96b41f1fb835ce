"""Samples per run of the network: a number, or found by a short probe under a memory bound (`auto`).

The probe runs 1, 2, 4, ... of the real samples. It stops where two sizes in a row gained little, where twice the memory
would pass its share of what is free, where the device has no memory for more (half of what fitted is the most then), or
where it has taken long enough. Of the sizes that are about as fast as the fastest it takes the one nearest to 64.

Times differ from run to run, so `auto` may choose another size the next time, and other sizes may be summed in another
order. That is why it is not the default: the same command is to give the same bytes. A feature store that was begun
keeps its size.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from tna_onnx.data import Batch, Source
from tna_onnx.errors import DataError, UsageError
from tna_onnx.runtime import OutOfMemory, Session

__all__ = ["DEFAULT", "BatchSize", "batch_size_notes", "check_batch_size", "choose_batch_size", "free_memory"]

BatchSize: TypeAlias = int | Literal["auto"]

DEFAULT = 64
"""Samples per run where nothing is said, and where `auto` has no network to probe."""

_LARGEST = 1024  # what larger batches gain is lost again on waiting for the first and the last one
_GAIN = 1.05  # less is within the noise of a few runs
_RUNS = 3  # of each size
_SECONDS = 10.0  # of probing
_SHARE = 0.25  # of the free memory: the batches that are read ahead, and what comes later, want some too


def check_batch_size(size: BatchSize) -> None:
    """Refuse what is neither `auto` nor a positive number.

    Raises:
        UsageError: that.
    """
    if size != "auto" and not (isinstance(size, (int, np.integer)) and size >= 1):
        raise UsageError(f"batch size must be at least 1, or auto, got {size}")


def choose_batch_size(
    wanted: BatchSize,
    session: Session | None,
    outputs: Sequence[str],
    source: Source,
    stored: int | None = None,
) -> int:
    """Return the number of samples per run.

    Args:
        wanted: a number is taken as given.
        session: the network; None if there is nothing to run.
        outputs: of the session.
        source: the samples.
        stored: batch size of a feature store that is to be continued.

    Raises:
        DataError: a sample cannot be read, or the network cannot run it.
    """
    if wanted != "auto":
        return wanted
    if stored is not None:
        return stored
    if session is None:
        return DEFAULT
    if session.fixed_batch:
        return session.fixed_batch * max(1, DEFAULT // session.fixed_batch)
    return _probe(lambda batch: session.run(outputs, batch), source)


def batch_size_notes(wanted: BatchSize, size: int) -> tuple[str, ...]:
    """Say what `auto` chose."""
    return (f"batch size auto: {size}; --batch-size {size} gives the same again",) if wanted == "auto" else ()


def _probe(
    run: Callable[[Batch], object],
    source: Source,
    clock: Callable[[], float] = time.perf_counter,
    taken: Callable[[], int] | None = None,
    room: Callable[[], int | None] | None = None,
) -> int:
    """Run 1, 2, 4, ... samples; return the size nearest to the default of those that are about as fast as the fastest.

    Args:
        run: runs a batch.
        source: the samples.
        clock: seconds.
        taken: bytes that this process holds.
        room: bytes that the system can still give; None if unknown.
    """
    taken, free = taken or _resident, (room or free_memory)()
    most, started, before = min(_LARGEST, len(source)), clock(), taken()
    rates: dict[int, float] = {}
    batch: Batch = {}
    size = fastest = 1
    while size <= most:
        batch = _longer(source, batch, size)
        try:
            seconds = _seconds(run, batch, clock)
        except OutOfMemory:
            if not rates:
                raise
            rates = {k: rate for k, rate in rates.items() if k <= max(1, size // 4)}  # what just fitted leaves no room
            break
        except DataError:
            if not rates:
                raise
            break  # a graph that takes no more, whatever its inputs say
        rates[size] = size / seconds
        if rates[size] > _GAIN * rates[fastest]:
            fastest = size
        late = clock() - started + 2 * _RUNS * seconds > _SECONDS
        full = free is not None and 2 * (taken() - before) > _SHARE * free
        if late or full or size >= 4 * fastest:
            break
        size *= 2
    enough = max(rates.values()) / _GAIN
    return min((k for k in rates if rates[k] >= enough), key=lambda k: abs(math.log(k / DEFAULT)))


def _longer(source: Source, batch: Batch, size: int) -> Batch:
    """Return the first `size` samples, of which some are there already."""
    there = len(next(iter(batch.values()))) if batch else 0
    more = next(iter(source.batches(size - there, np.arange(there, size))))
    return {name: np.concatenate([batch[name], more[name]]) for name in more} if batch else more


def _seconds(run: Callable[[Batch], object], batch: Batch, clock: Callable[[], float]) -> float:
    """Return the seconds of the fastest of a few runs; the first one takes memory."""
    times = []
    for _ in range(_RUNS):
        start = clock()
        run(batch)
        times.append(clock() - start)
    return max(min(times), 1e-9)


def _resident() -> int:
    """Return the bytes of this process that are in memory; 0 where Linux does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def free_memory(machine: Path = Path("/proc/meminfo"), container: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes that the system, and the container if there is one, can still give; None if unknown."""
    try:
        fields: dict[str, Any] = dict(line.split(":", 1) for line in machine.read_text(encoding="ascii").splitlines())
        free = 1024 * int(fields["MemAvailable"].split()[0])
    except (OSError, ValueError, KeyError):
        return None
    try:
        limit = int((container / "memory.max").read_text(encoding="ascii"))
        used = dict(line.split() for line in (container / "memory.stat").read_text(encoding="ascii").splitlines())
        return max(0, min(free, limit - int(used["anon"])))  # pages of files can be dropped
    except (OSError, ValueError, KeyError):  # no container, or no limit: "max"
        return free
