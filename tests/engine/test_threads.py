"""Threads of linear algebra: one for small products, at workers as here, and everything is set back afterwards."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from tna_onnx.engine import threads as module
from tna_onnx.engine.processes import Processes
from tna_onnx.engine.threads import threads_for, threads_of_workers, worker_threads


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in module._NAMES:
        monkeypatch.delenv(name, raising=False)


def seen(monkeypatch: pytest.MonkeyPatch, cores: int, sharing: int) -> set[str]:
    monkeypatch.setattr(module, "_threads_here", lambda: cores)
    monkeypatch.setattr(module, "allowed_cores", lambda: cores)
    found = worker_threads(sharing)
    assert found.keys() == {*module._NAMES}
    return {*found.values()}


@pytest.mark.parametrize(
    ("cores", "sharing", "threads"), [(1, 1, "1"), (1, 8, "1"), (2, 2, "2"), (16, 4, "4"), (16, 16, "2")]
)
def test_a_share_of_the_cores_but_one_only_where_the_driver_has_one(
    monkeypatch: pytest.MonkeyPatch, cores: int, sharing: int, threads: str
) -> None:
    assert seen(monkeypatch, cores, sharing) == {threads}


def test_the_word_of_the_user_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_threads_here", lambda: 3)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert worker_threads(4) == {"OMP_NUM_THREADS": "3"}
    before = dict(os.environ)
    with threads_of_workers(4):
        assert dict(os.environ) == before


def test_processes_start_with_them_and_the_environment_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_threads_here", lambda: 8)
    monkeypatch.setattr(module, "allowed_cores", lambda: 8)
    before = dict(os.environ)
    assert list(Processes(2).map_chunks(os.getenv, [(name,) for name in module._NAMES])) == ["4"] * 3
    assert dict(os.environ) == before


SMALL = (2000, 10, 256)
LARGE = (12_500, 1000, 2048)


@dataclass
class Library:
    """What threadpoolctl knows of a library."""

    threads: int

    def get_num_threads(self) -> int:
        return self.threads

    def set_num_threads(self, threads: int) -> None:
        self.threads = threads


def libraries(monkeypatch: pytest.MonkeyPatch, *threads: int, cores: int) -> list[Library]:
    found = [Library(each) for each in threads]
    monkeypatch.setattr(module, "_libraries", lambda: found)
    monkeypatch.setattr(module, "allowed_cores", lambda: cores)
    return found


@pytest.mark.parametrize(("size", "inside"), [(SMALL, [1, 1]), (LARGE, [4, 3]), ((50_000, 1000, 0), [4, 3])])
def test_small_products_have_one_thread_and_large_ones_the_cores_that_are_allowed(
    monkeypatch: pytest.MonkeyPatch, size: tuple[int, int, int], inside: list[int]
) -> None:
    found = libraries(monkeypatch, 16, 3, cores=4)
    with threads_for(*size):
        assert [each.threads for each in found] == inside
    assert [each.threads for each in found] == [16, 3]


def test_large_products_keep_two_threads_where_one_core_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    # a worker with two threads must give the same bits as its driver
    (found,) = libraries(monkeypatch, 16, cores=1)
    with threads_for(*LARGE):
        assert found.threads == 2


def test_what_the_user_has_set_lower_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = libraries(monkeypatch, 1, cores=8)
    with threads_for(*LARGE):
        assert found.threads == 1
    assert found.threads == 1


def test_blocks_that_overlap_leave_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = libraries(monkeypatch, 8, cores=8)
    entered = threading.Event()
    left = threading.Event()

    def other() -> None:
        with threads_for(*SMALL):
            entered.set()
            left.wait()

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait()
    with threads_for(*LARGE):
        left.set()
        thread.join()
        assert found.threads == 1  # the first block's, until the last one ends
    assert found.threads == 8


def test_threads_are_set_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = libraries(monkeypatch, 8, cores=8)
    with pytest.raises(ZeroDivisionError), threads_for(*SMALL):
        1 / 0  # noqa: B018
    assert found.threads == 8


def test_the_libraries_of_this_process_are_known() -> None:
    found = ThreadpoolController().select(user_api="blas").info()
    assert module._threads_here() == min((each["num_threads"] for each in found), default=module._cores_of_libraries())
    with threads_for(*SMALL):
        inside = ThreadpoolController().select(user_api="blas").info()
        assert all(each["num_threads"] == 1 for each in inside)
        assert worker_threads(1) == dict.fromkeys(module._NAMES, "1")
    assert ThreadpoolController().select(user_api="blas").info() == found


def test_workers_multiply_as_this_process_does_in_a_block() -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((700, 300)).astype(np.float32)
    b = rng.standard_normal((300, 20)).astype(np.float32)
    with threads_for(*SMALL):
        here = a @ b
        (there,) = Processes(1).map_chunks(np.matmul, [(a, b)])
    np.testing.assert_array_equal(there, here)
