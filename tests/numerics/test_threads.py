"""Threads of linear algebra: one in a block but for large products, and everything is set back afterwards."""

import threading
from dataclasses import dataclass

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController

from tna_onnx.numerics import ops as module
from tna_onnx.numerics.ops import Blocked, one_thread, several_threads

SMALL = (2000, 256, 10)
LARGE = (2048, 2048, 1000)


@dataclass
class Library:
    """What threadpoolctl knows of a library."""

    threads: int

    def get_num_threads(self) -> int:
        return self.threads

    def set_num_threads(self, threads: int) -> None:
        self.threads = threads


def libraries(monkeypatch: pytest.MonkeyPatch, *threads: int) -> list[Library]:
    found = [Library(each) for each in threads]
    monkeypatch.setattr(module, "_libraries", lambda: found)
    return found


def test_one_thread_in_a_block_and_the_cores_for_large_products(monkeypatch: pytest.MonkeyPatch) -> None:
    found = libraries(monkeypatch, 16, 3, 1)
    with one_thread(4):
        assert [each.threads for each in found] == [1, 1, 1]
        with several_threads(*SMALL):
            assert [each.threads for each in found] == [1, 1, 1]
        with several_threads(*LARGE):
            # what the user has set lower stays
            assert [each.threads for each in found] == [4, 3, 1]
        assert [each.threads for each in found] == [1, 1, 1]
    assert [each.threads for each in found] == [16, 3, 1]


def test_large_products_have_two_threads_where_one_core_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = libraries(monkeypatch, 16)
    with one_thread(1), several_threads(*LARGE):
        assert found.threads == 2


def test_elsewhere_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = libraries(monkeypatch, 16)
    with several_threads(*LARGE):
        assert found.threads == 16


def test_sums_of_row_blocks_are_the_same_with_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).standard_normal((5000, 1000))
    of = Blocked(lambda rows: np.array([rows.sum(), np.exp(rows).sum()]))
    alone = of(values).tolist()
    for threads in (2, 5):
        libraries(monkeypatch, threads)
        with one_thread(8):
            assert of(values).tolist() == alone
            assert Blocked(lambda rows: rows[:, 0].tolist())(values) == values[:, 0].tolist()


def test_blocks_that_overlap_leave_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = libraries(monkeypatch, 8)
    entered = threading.Event()
    left = threading.Event()

    def other() -> None:
        with one_thread(8):
            entered.set()
            left.wait()

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait()
    with one_thread(8):
        left.set()
        thread.join()
        assert found.threads == 1
    assert found.threads == 8


def test_threads_are_set_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = libraries(monkeypatch, 8)
    with one_thread(8):
        with pytest.raises(ZeroDivisionError), several_threads(*LARGE):
            1 / 0  # noqa: B018
        assert found.threads == 1
    with pytest.raises(ZeroDivisionError), one_thread(8):
        1 / 0  # noqa: B018
    assert found.threads == 8


def test_the_libraries_of_this_process_are_known() -> None:
    before = [each["num_threads"] for each in ThreadpoolController().select(user_api="blas").info()]
    with one_thread(8):
        inside = ThreadpoolController().select(user_api="blas").info()
        assert all(each["num_threads"] == 1 for each in inside)
    assert [each["num_threads"] for each in ThreadpoolController().select(user_api="blas").info()] == before
