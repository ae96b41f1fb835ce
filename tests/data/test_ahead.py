"""Reading ahead: order, bounds, failures, and no thread left behind."""

import threading
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tna_onnx.data.images.decode import read_ahead


def both(group: Sequence[int], parts: list[int]) -> tuple[list[int], list[int]]:
    return list(group), parts


def running() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("tna-onnx-read")]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.integers(), max_size=5), max_size=12), st.integers(1, 5))
def test_order_is_kept(groups: list[list[int]], workers: int) -> None:
    def load(item: int) -> int:
        time.sleep(item % 3 / 2000)  # later items finish before earlier ones
        return -item

    found = list(read_ahead(groups, load, both, workers))
    assert found == [(group, [-item for item in group]) for group in groups]
    assert not running()


@pytest.mark.parametrize(("size", "workers", "ahead"), [(4, 2, 1), (64, 2, 1), (1, 2, 4), (2, 3, 3)])
def test_groups_ahead_are_bounded(size: int, workers: int, ahead: int) -> None:
    """One group ahead, and at least two items for each thread."""
    groups = iter([[number] * size for number in range(40)])
    results = read_ahead(groups, abs, both, workers)
    for number in range(3):
        assert next(results)[0][0] == number
    assert next(groups)[0] == 3 + ahead
    results.close()


def test_what_nobody_reads_is_not_loaded() -> None:
    gate, started = threading.Event(), []

    def load(item: int) -> int:
        started.append(item)
        assert item == 0 or gate.wait(timeout=60)
        return item

    results = read_ahead([[0], *([item] for item in range(1, 40))], load, both, workers=2)
    next(results)
    threading.Timer(0.05, gate.set).start()
    results.close()
    assert set(started) <= {0, 1, 2}, "item 0, and the item that each of two threads had begun"
    assert not running()


def test_a_run_that_has_begun_ends_when_nobody_reads_on() -> None:
    gate, started = threading.Event(), []

    def load(item: int) -> int:
        started.append(item)
        assert item < 1000 or gate.wait(timeout=60)
        return item

    # runs of 125 items: a quarter of what falls to a thread
    results = read_ahead([[0], range(1000, 2000), range(2000, 3000)], load, both, workers=2)
    next(results)
    threading.Timer(0.05, gate.set).start()
    results.close()
    assert len(started) <= 1 + 2
    assert not running()


@pytest.mark.parametrize("workers", [1, 4])
def test_the_first_failure_of_a_group_is_raised_in_its_turn(workers: int) -> None:
    def load(item: int) -> int:
        if item >= 5:
            raise ValueError(str(item))
        return item

    results = read_ahead([[0, 1], [2, 3], [4, 5, 6]], load, both, workers)
    assert [group for group, _ in (next(results), next(results))] == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="5"):
        next(results)
    assert not running()


def test_a_failure_to_join_is_raised() -> None:
    def join(group: Sequence[int], parts: list[int]) -> None:
        raise ValueError(f"{group}")

    with pytest.raises(ValueError, match=r"\[1, 2\]"):
        next(read_ahead([[1, 2]], abs, join))
