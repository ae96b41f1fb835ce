"""Samples per run of the network: a number, or the result of a short probe under a memory bound (`auto`).

The probe runs 1, 2, 4, ... of the real samples and doubles until one of these rules ends it:

1. Two sizes in a row gained little.
2. The next size would take more than its share of the free memory.
3. The device has no memory for this size. Half of the size that fitted is then the largest to choose.
4. The network cannot run this size, whatever its inputs say.
5. The probe has taken long enough.
6. The next image has another size: a batch ends before it, but as many images as it may have are decoded ahead.

Of the sizes that are about as fast as the fastest it takes the one nearest to 64.

Times differ from run to run, so `auto` may choose another size the next time, and another size may add up in another
order. It is therefore not the default: the same command is to give the same bytes. A feature store that was begun keeps
its size.
"""

import functools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tna_onnx.data import Batch, Source
from tna_onnx.data.choices import BatchSize
from tna_onnx.data.positions import PositionSource
from tna_onnx.errors import DataError, UsageError
from tna_onnx.extraction.store import begun_batch_size, data_key, find_stores, model_key
from tna_onnx.graph.load import Model
from tna_onnx.runtime import OutOfMemory, Session, free_device_memory, free_memory, resident_memory

DEFAULT = 64
"""Samples per run of the network by default, and for `auto` where there is no network to probe."""

_MAX_SIZE = 1024  # what larger batches gain is lost again on waiting for the first and the last one
_MIN_GAIN = 1.05  # less is within the noise of a few runs
_RUNS = 3  # of each size
_MAX_SECONDS = 10.0  # of probing
_MEMORY_SHARE = 0.25  # of the free memory: batches that are read ahead, and the later stages, need some too


def check_batch_size(size: BatchSize) -> None:
    """Check a batch size."""
    if size != "auto" and not (isinstance(size, (int, np.integer)) and size >= 1):
        raise UsageError(f"batch size must be at least 1, or auto, got {size}")


def choose_batch_size(requested: BatchSize, session: Session | None, outputs: Sequence[str], source: Source) -> int:
    """Return the number of samples per run. `session`: the network; None if there is nothing to run."""
    if requested != "auto":
        return requested
    # rows of a sample come together: sizes of batches cannot be tried by their number of rows
    if session is None or isinstance(source, PositionSource):
        return DEFAULT
    if session.fixed_batch:
        return session.fixed_batch * max(1, DEFAULT // session.fixed_batch)
    device = session.device
    run = functools.partial(session.run, outputs)
    if device is None or free_device_memory(device.index) is None:
        return _probe(run, source)
    # the batches of a network on a device are there, not on the host
    return _probe(
        run,
        source,
        resident=lambda: -(free_device_memory(device.index) or 0),
        free=lambda: free_device_memory(device.index, device.memory) or 0,
    )


def batch_size_for(
    requested: BatchSize,
    model: Model,
    session: Session | None,
    outputs: Sequence[str],
    source: Source,
    cache: Path | None = None,
) -> int:
    """Return the samples per run: as requested; for `auto` those of a store that was begun, or found by a probe.

    `session`: a session on it; None where there is nothing to run.
    """
    # the digests read the whole model and all data: only where there is a store to match
    if requested == "auto" and cache is not None and find_stores(cache):
        begun = begun_batch_size(cache, {**model_key(model), **data_key(source)})
        # the size is part of a store's key: with another one nothing of it could be used
        if begun is not None:
            return begun
    return choose_batch_size(requested, session, outputs, source)


def batch_size_notes(requested: BatchSize, size: int) -> tuple[str, ...]:
    """Return a note on the size that `auto` chose; empty for a size that the user gave."""
    if requested != "auto":
        return ()
    return (f"batch size auto: {size}; --batch-size {size} gives the same again",)


def _probe(
    run: Callable[[Batch], object],
    source: Source,
    clock: Callable[[], float] = time.perf_counter,
    resident: Callable[[], int] = resident_memory,
    free: Callable[[], int] = free_memory,
) -> int:
    """Return the size nearest to the default of those that are about as fast as the fastest.

    `clock`: seconds; `resident`: bytes that this process holds; `free`: bytes that the machine can still give.
    """
    rates = _rates(run, source, clock, resident, free)
    enough = max(rates.values()) / _MIN_GAIN
    fast = (size for size, rate in rates.items() if rate >= enough)
    # sizes double: how far apart two are is their ratio
    return min(fast, key=lambda size: abs(math.log(size / DEFAULT)))


def _rates(
    run: Callable[[Batch], object],
    source: Source,
    clock: Callable[[], float],
    resident: Callable[[], int],
    free: Callable[[], int],
) -> dict[int, float]:
    """Return size -> samples per second of every size that may be chosen."""
    max_size = min(_MAX_SIZE, len(source))
    max_memory = _MEMORY_SHARE * free()
    started = clock()
    resident_before = resident()
    rates: dict[int, float] = {}
    batch: Batch = {}
    fastest = size = 1
    while size <= max_size:
        batch = _extended(source, batch, size)
        if len(next(iter(batch.values()))) < size:  # rule 6
            break
        try:
            seconds = _seconds(run, batch, clock)
        except OutOfMemory:  # rule 3: the size before this one fitted, but leaves no room for anything else
            if not rates:
                raise
            return {fitted: rate for fitted, rate in rates.items() if fitted <= max(1, size // 4)}
        except DataError:  # rule 4
            if not rates:
                raise
            return rates
        rates[size] = size / seconds
        if rates[size] > _MIN_GAIN * rates[fastest]:
            fastest = size
        little_gained = size >= 4 * fastest  # rule 1
        full = 2 * (resident() - resident_before) > max_memory  # rule 2: the next size takes twice the memory
        late = clock() - started + 2 * _RUNS * seconds > _MAX_SECONDS  # rule 5: the next size takes twice the time
        if little_gained or full or late:
            break
        size *= 2
    return rates


def _extended(source: Source, batch: Batch, size: int) -> Batch:
    """Return the first `size` samples, or those before one of another shape; those of `batch` are not read again."""
    if not batch:
        return next(iter(source.batches(size, np.arange(size))))
    start = len(next(iter(batch.values())))
    more = next(iter(source.batches(size - start, np.arange(start, size))))
    if any(batch[name].shape[1:] != more[name].shape[1:] for name in more):
        return batch
    return {name: np.concatenate([batch[name], more[name]]) for name in more}


def _seconds(run: Callable[[Batch], object], batch: Batch, clock: Callable[[], float]) -> float:
    """Return the seconds of the fastest of a few runs; the first one also allocates memory."""
    times = []
    for _ in range(_RUNS):
        start = clock()
        run(batch)
        times.append(clock() - start)
    return max(min(times), 1e-9)  # a coarse clock may show no time at all
