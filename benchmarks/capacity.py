"""What 100 million samples cost on a cluster: rates measured here, and a simulation of the schedule with them.

    python benchmarks/capacity.py [--samples 100000000] [--rate 100] [--workers 64,256,1024]

Measured: SHA-256 and forced writes of chunks, the driver's time for a chunk and for a manifest. Simulated: the real
schedule (`engine.workers.map_on`) on a clock of its own, with workers of `--rate` samples a second, whose chunks vary
by a fifth, and that are lost once in ten hours each, to be there again after two minutes.
"""

from __future__ import annotations

import argparse
import hashlib
import heapq
import itertools
import os
import random
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from tna_onnx.engine import workers
from tna_onnx.engine.workers import LostWorker, map_on
from tna_onnx.extraction.store import DiskStore

CHUNK = 1024
LIFE, RETURN = 36_000.0, 120.0  # seconds
SPREAD = 0.2  # standard deviation of the logarithm of a chunk's time


class Clock:
    """Workers on a simulated clock; stands for `concurrent.futures.wait` too."""

    def __init__(self, seconds: float, seed: int = 0) -> None:
        self.now = 0.0
        self.busy = 0.0
        self.lost = 0
        self._seconds = seconds
        self._draw = random.Random(seed)
        self._events: list[tuple[float, int, Future[Any], bool]] = []
        self._count = itertools.count()

    def start(self) -> Clock.Worker:
        """Start a worker."""
        return Clock.Worker(self)

    def wait(self, *_ignored: object) -> tuple[set[Future[Any]], set[Future[Any]]]:
        """Go on to the next event."""
        self.now, _, future, dies = heapq.heappop(self._events)
        if dies:
            self.lost += 1
            future.set_exception(LostWorker())
        else:
            future.set_result(None)
        return {future}, set()

    def after(self, seconds: float, *, dies: bool = False) -> Future[Any]:
        """Return a future that is done in so many seconds."""
        future: Future[Any] = Future()
        heapq.heappush(self._events, (self.now + seconds, next(self._count), future, dies))
        return future

    class Worker:
        """One worker."""

        fresh = True

        def __init__(self, clock: Clock) -> None:
            self._clock = clock

        def ready(self) -> Future[Any]:
            """Be there after a while."""
            return self._clock.after(RETURN)

        def give(self, _: tuple[Any, ...]) -> Future[Any]:
            """Take a chunk's time, or be lost amid it."""
            clock = self._clock
            took = clock._seconds * clock._draw.lognormvariate(-(SPREAD**2) / 2, SPREAD)
            life = clock._draw.expovariate(1 / LIFE)
            clock.busy += min(took, life)
            return clock.after(min(took, life), dies=life < took)

        def stop(self, *, at_once: bool) -> None:
            """Nothing holds it."""

        def join(self) -> None:
            """Nothing to wait for."""


def seconds_of(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Median seconds of five runs."""
    found = []
    for _ in range(5):
        begun = clock()
        work()
        found.append(clock() - begun)
    return sorted(found)[2]


def rates(folder: Path) -> None:
    """Print what a chunk costs besides the network: its checksum and its way to the disk."""
    rows = np.random.default_rng(0).standard_normal((CHUNK, 2048)).astype(np.float16)
    gigabytes = rows.nbytes / 1e9

    def write() -> None:
        with (folder / "rows").open("wb") as file:
            file.write(rows.data)
            file.flush()
            os.fsync(file.fileno())

    # CPU seconds: what others do on the machine does not count
    checksum = seconds_of(lambda: [hashlib.sha256(rows.data) for _ in range(9)], time.process_time) / 9
    print(f"checksum {gigabytes / checksum:.2f} GB/s, {1e6 * checksum / CHUNK:.1f} us a sample")
    print(f"forced write {gigabytes / seconds_of(write):.2f} GB/s")


def driver(folder: Path, samples: int) -> None:
    """Print what the driver spends on recording all chunks, in the order in which they come."""
    store = DiskStore(folder, {}, samples, CHUNK)
    begun, cpu = time.perf_counter(), time.process_time()
    for place in range(store.n_chunks):
        store.take(hashlib.sha256(str(place).encode()).hexdigest())
    store.record()
    manifest = (folder / "manifest.json").stat().st_size

    def again() -> None:
        store._unrecorded = 1
        store.record()

    last = seconds_of(again)
    spent = time.process_time() - cpu
    print(f"{store.n_chunks:,} chunks recorded: {spent:.1f} s CPU, {time.perf_counter() - begun:.1f} s", end="")
    print(f"; manifest {manifest / 1e6:.1f} MB, written in {1000 * last:.0f} ms")


def main() -> None:
    """Print rates and simulated runs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=100_000_000)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--workers", default="64,256,1024")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        rates(Path(name))
        driver(Path(name), options.samples)
    chunks = -(-options.samples // CHUNK)
    print("\nworkers | hours | busy | lost workers | driver, CPU s")
    for count in map(int, options.workers.split(",")):
        clock = Clock(CHUNK / options.rate)
        vars(workers)["wait"] = clock.wait
        begun = time.process_time()
        done = sum(1 for _ in map_on(clock.start, count, ((place,) for place in range(chunks))))
        spent = time.process_time() - begun
        share = clock.busy / (clock.now * count)
        print(f"{count} | {clock.now / 3600:.1f} | {100 * share:.1f} % | {clock.lost} | {spent:.0f}", flush=True)
        assert done == chunks


if __name__ == "__main__":
    main()
