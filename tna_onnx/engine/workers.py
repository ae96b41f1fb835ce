"""Chunks on several workers: results in order, a bounded number of chunks in flight, lost workers replaced.

A worker has one chunk at a time, and none before it is there: a chunk never waits for a machine that may not come.
Given out are the first chunk without a result and those behind it, at most `IN_FLIGHT` a worker. That is what waits
here for its turn, and what a driver that is killed has to compute again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any, Protocol

from tna_onnx.errors import DeviceError, TnaError

__all__ = ["IN_FLIGHT", "Failed", "LostWorker", "Worker", "attempted", "map_on"]

# Chunks a worker. One that takes four times as long as the others does not keep them waiting.
IN_FLIGHT = 4

# Times that a chunk is tried. A worker that is lost by chance is not lost three times on the same chunk.
_ATTEMPTS = 3

# Seconds until the first worker has to be there: a cluster may have to start a machine.
_PATIENCE = 900.0


class LostWorker(Exception):
    """A worker ended without a result: it was killed, or its machine was."""


class Worker(Protocol):
    """A process, here or elsewhere, that computes one chunk after the other. LostWorker is the end of a future too."""

    fresh: bool
    """Whether it was started for this call."""

    def ready(self) -> Future[Any]:
        """Return a future that is done when the worker is there."""

    def give(self, chunk: tuple[Any, ...]) -> Future[Any]:
        """Start on a chunk; the result is what `attempted` returns."""

    def stop(self, *, at_once: bool) -> None:
        """Tell it to end, in the middle of a chunk if need be; nothing happens to one that has ended."""

    def join(self) -> None:
        """Wait until it has ended."""


@dataclass(frozen=True)
class Failed:
    """An error that is no bug, as a worker sends it: exceptions may arrive with a traceback, or as another class."""

    error: TnaError | MemoryError


def attempted(of: Callable[..., Any], chunk: tuple[Any, ...]) -> Any:
    """Return of(*chunk), or the error that it ends with. Run by workers."""
    try:
        return of(*chunk)
    except (TnaError, MemoryError) as error:
        return Failed(error)


def map_on(start: Callable[[], Worker], count: int, chunks: Iterable[tuple[Any, ...]]) -> Generator[Any, None, None]:
    """Yield the results of chunks, in their order.

    Args:
        start: starts a worker.
        count: number of workers; fewer are started for fewer chunks.
        chunks: taken one by one, as workers become free.

    Raises:
        DeviceError: workers do not start, or a chunk was the last one of several.
        Exception: what a chunk failed with, the first one in order.
    """
    crew = _Crew(start, count, (_Task(place, chunk) for place, chunk in enumerate(chunks)))
    at_once = True
    try:
        yield from crew.run()
        at_once = False
    finally:
        crew.stop(at_once=at_once)


@dataclass(eq=False)
class _Task:
    place: int
    chunk: tuple[Any, ...]
    attempts: int = 0


@dataclass(eq=False)
class _Crew:
    start: Callable[[], Worker]
    count: int
    tasks: Iterator[_Task]
    starting: dict[Future[Any], Worker] = field(default_factory=dict)
    idle: list[Worker] = field(default_factory=list)
    busy: dict[Future[Any], tuple[Worker, _Task]] = field(default_factory=dict)
    waiting: deque[_Task] = field(default_factory=deque)
    results: dict[int, Any] = field(default_factory=dict)
    first: int = 0
    failed: bool = False
    stillborn: int = 0

    def run(self) -> Generator[Any, None, None]:
        while True:
            while self.first in self.results:
                result = self.results.pop(self.first)
                if isinstance(result, Failed):
                    raise result.error
                self.first += 1
                self._give_out()  # workers go on while the caller looks at the result
                yield result
            self._give_out()
            if not self.busy and not self.starting:
                return
            self._wait()

    def stop(self, *, at_once: bool) -> None:
        workers = [*self.idle, *self.starting.values(), *(worker for worker, _ in self.busy.values())]
        for worker in workers:
            worker.stop(at_once=at_once)
        for worker in workers:
            worker.join()

    def _give_out(self) -> None:
        while len(self.waiting) < self.count - len(self.busy):
            # no new chunk once one has failed; those before it still count
            if self.failed or self._in_flight() >= IN_FLIGHT * self.count:
                break
            task = next(self.tasks, None)
            if task is None:
                break
            self.waiting.append(task)
        while self.waiting and self.idle:
            task, worker = self.waiting.popleft(), self.idle.pop()
            self.busy[worker.give(task.chunk)] = (worker, task)
        while len(self.starting) < len(self.waiting):
            worker = self.start()
            self.starting[worker.ready()] = worker

    def _in_flight(self) -> int:
        return len(self.waiting) + len(self.busy) + len(self.results)

    def _wait(self) -> None:
        patience = None if self.busy else _PATIENCE
        done, _ = wait([*self.busy, *self.starting], patience, FIRST_COMPLETED)
        if not done:
            raise DeviceError(f"no worker was there within {_PATIENCE:.0f} seconds; check what delays the machines")
        for future in done:
            if future in self.starting:
                self._welcome(future)
            else:
                self._take(future)

    def _welcome(self, future: Future[Any]) -> None:
        worker = self.starting.pop(future)
        self.idle.append(worker)
        try:
            future.result()
            self.stillborn = 0
        except LostWorker as error:
            self._bury(worker)
            self.stillborn += worker.fresh
            if self.stillborn == _ATTEMPTS:
                raise DeviceError(f"workers end before their first chunk ({error})") from error

    def _take(self, future: Future[Any]) -> None:
        worker, task = self.busy.pop(future)
        self.idle.append(worker)
        try:
            result = future.result()
        except LostWorker as error:
            self._bury(worker)
            task.attempts += 1
            if task.attempts < _ATTEMPTS:
                self.waiting.appendleft(task)  # others wait for its result
                return
            result = Failed(_too_often(task, error))
        self.failed = self.failed or isinstance(result, Failed)
        self.results[task.place] = result

    def _bury(self, worker: Worker) -> None:
        self.idle.remove(worker)
        worker.stop(at_once=True)
        worker.join()


def _too_often(task: _Task, error: LostWorker) -> DeviceError:
    return DeviceError(
        f"part {task.place + 1} of the samples ended {_ATTEMPTS} workers ({error}); most often there is too little "
        "memory: use fewer workers, a smaller --batch-size or a machine with more memory"
    )
