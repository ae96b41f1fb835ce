"""Chunks on workers: order, bounds and losses, with workers that finish, fail and die as a test says."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tna_onnx.engine import workers as module
from tna_onnx.engine.workers import IN_FLIGHT, LostWorker, attempted, map_on
from tna_onnx.errors import DataError, DeviceError


@dataclass
class Hall:
    """Workers whose chunks end one at a time, in a random order, when somebody waits for them."""

    of: Callable[[int], Any]
    seed: int = 0
    dies: Callable[[int], bool] = lambda _: False
    stillborn: int = 0
    workers: list[Fake] = field(default_factory=list)
    running: list[tuple[Future[Any], Fake, int | None]] = field(default_factory=list)
    given: list[int] = field(default_factory=list)
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def start(self) -> Fake:
        self.workers.append(Fake(self))
        return self.workers[-1]

    def wait(self, futures: list[Future[Any]], *_: object) -> tuple[set[Future[Any]], set[Future[Any]]]:
        """Stand for `concurrent.futures.wait`: one of those that run ends."""
        assert set(futures) == {future for future, _, _ in self.running}
        future, worker, chunk = self.running.pop(self.random.randrange(len(self.running)))
        if chunk is None and self.stillborn:
            self.stillborn -= 1
            future.set_exception(LostWorker("ended"))
        elif chunk is None:
            future.set_result(None)
        elif self.dies(chunk):
            worker.alive = False
            future.set_exception(LostWorker("killed"))
        else:
            try:
                future.set_result(attempted(self.of, (chunk,)))
            except Exception as error:  # noqa: BLE001 - as a pool does
                future.set_exception(error)
        return {future}, set()

    def map(self, count: int, chunks: int, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setattr(module, "wait", self.wait)
        return map_on(self.start, count, ((k,) for k in range(chunks)))


@dataclass(eq=False)
class Fake:
    hall: Hall
    alive: bool = True
    stopped: bool = False
    joined: bool = False
    fresh: bool = True

    def ready(self) -> Future[Any]:
        return self._running(None)

    def give(self, chunk: tuple[int]) -> Future[Any]:
        assert self.alive
        assert not self.stopped
        assert not any(worker is self for _, worker, _ in self.hall.running), "one chunk at a time"
        self.hall.given.append(chunk[0])
        return self._running(chunk[0])

    def _running(self, chunk: int | None) -> Future[Any]:
        future: Future[Any] = Future()
        self.hall.running.append((future, self, chunk))
        return future

    def stop(self, *, at_once: bool) -> None:
        self.stopped = True

    def join(self) -> None:
        assert self.stopped
        self.joined = True


@settings(max_examples=60)
@given(st.integers(1, 6), st.integers(0, 40), st.integers(0, 10**6))
def test_results_come_in_order_whatever_ends_first_and_whoever_dies(count: int, chunks: int, seed: int) -> None:
    draw = random.Random(seed)
    deaths = {k: draw.randrange(3) for k in range(chunks)}  # never three times

    def dies(chunk: int) -> bool:
        deaths[chunk] -= 1
        return deaths[chunk] >= 0

    hall = Hall(lambda k: k * k, seed, dies)
    with pytest.MonkeyPatch.context() as patch:
        got = []
        for result in hall.map(count, chunks, patch):
            got.append(result)
            assert max(hall.given) < len(got) + IN_FLIGHT * count
            assert sum(not worker.stopped for worker in hall.workers) <= count
    assert got == [k * k for k in range(chunks)]
    assert all(worker.stopped and worker.joined for worker in hall.workers)
    assert all(deaths[k] <= 0 for k in range(chunks))


def test_few_chunks_start_few_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    hall = Hall(str)
    assert list(hall.map(8, 3, monkeypatch)) == ["0", "1", "2"]
    assert len(hall.workers) <= 3


@pytest.mark.parametrize("seed", range(8))
def test_the_first_error_in_order_is_raised_after_the_results_before_it(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    def of(k: int) -> int:
        if k in (5, 6, 9):
            raise DataError(f"chunk {k}")
        return k

    hall = Hall(of, seed)
    got = []
    with pytest.raises(DataError, match="chunk 5"):
        got.extend(hall.map(4, 1000, monkeypatch))
    assert got == [0, 1, 2, 3, 4]
    assert max(hall.given) < 9 + 4 * IN_FLIGHT
    assert all(worker.joined for worker in hall.workers)


def test_a_bug_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    hall = Hall(lambda k: 1 // (k - 2))
    with pytest.raises(ZeroDivisionError):
        list(hall.map(2, 5, monkeypatch))
    assert all(worker.joined for worker in hall.workers)


def test_a_chunk_that_ends_three_workers_is_an_error_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    hall = Hall(lambda k: k, dies=lambda chunk: chunk == 4)
    got = []
    with pytest.raises(DeviceError, match=r"part 5 of the samples ended 3 workers \(killed\).*too little memory"):
        got.extend(hall.map(2, 30, monkeypatch))
    assert got == [0, 1, 2, 3]
    assert hall.given.count(4) == 3
    assert all(worker.joined for worker in hall.workers)


def test_workers_that_do_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(Hall(lambda k: k, stillborn=2).map(1, 3, monkeypatch)) == [0, 1, 2]
    with pytest.raises(DeviceError, match=r"workers end before their first chunk \(ended\)"):
        list(Hall(lambda k: k, stillborn=3).map(2, 3, monkeypatch))


def test_no_worker_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    hall = Hall(lambda k: k)
    run = hall.map(2, 3, monkeypatch)
    monkeypatch.setattr(module, "wait", lambda *_: (set(), set()))
    with pytest.raises(DeviceError, match="no worker was there within 900 seconds"):
        list(run)
    assert all(worker.joined for worker in hall.workers)


def test_closing_ends_all_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    hall = Hall(lambda k: k)
    run = hall.map(3, 100, monkeypatch)
    assert next(run) == 0
    run.close()
    assert all(worker.joined for worker in hall.workers)
