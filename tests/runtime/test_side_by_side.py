"""Items computed side by side: in order, so many at a time, the first alone, and the first failure in their order."""

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime.fakes import product
from tna_onnx.runtime import Device, open_session, side_by_side
from tna_onnx.runtime import providers as module


def take(results: Iterator[tuple[int, int]], seen: list[int]) -> None:
    """Write results down as they come."""
    for _, result in results:
        seen.append(result)


@given(items=st.lists(st.integers()), at_once=st.integers(1, 4))
def test_all_items_come_in_order(items: list[int], at_once: int) -> None:
    assert list(side_by_side(lambda item: -item, items, at_once)) == [(item, -item) for item in items]


def test_the_first_is_computed_alone_and_the_others_two_at_a_time() -> None:
    both = threading.Barrier(2, timeout=20)
    first = threading.Event()

    def of(item: int) -> int:
        if item == 0:
            first.set()
            return item
        assert first.is_set()
        both.wait()  # no pair would pass if one were computed after the other
        return item

    assert [result for _, result in side_by_side(of, range(7), 2)] == list(range(7))


@pytest.mark.parametrize("at_once", [1, 2])
def test_results_before_a_failure_come_first(at_once: int) -> None:
    def of(item: int) -> int:
        if item == 3:
            raise KeyError("third")
        return item

    seen: list[int] = []
    with pytest.raises(KeyError, match="third"):
        take(side_by_side(of, range(9), at_once), seen)
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_failure_of_the_items_comes_after_the_results_of_those_before(at_once: int) -> None:
    def items() -> Iterator[int]:
        yield from (0, 1, 2)
        raise ValueError("cannot be read")

    seen: list[int] = []
    with pytest.raises(ValueError, match="cannot be read"):
        take(side_by_side(lambda item: item, items(), at_once), seen)
    assert seen == [0, 1, 2]


def test_an_earlier_failure_of_a_result_comes_before_one_of_the_items() -> None:
    def items() -> Iterator[int]:
        yield from (0, 1)
        raise ValueError("cannot be read")

    def of(item: int) -> int:
        return 1 // (1 - item)

    with pytest.raises(ZeroDivisionError):
        list(side_by_side(of, items(), 2))


def test_who_stops_early_leaves_no_thread_and_begins_nothing_more() -> None:
    begun = []

    def of(item: int) -> int:
        begun.append(item)
        return item

    results = side_by_side(of, range(100), 2)
    for _, result in results:
        if result == 3:
            break
    results.close()  # type: ignore[attr-defined]
    assert len(begun) < 10
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tna-onnx-run")]


@pytest.mark.parametrize(("cores", "free", "expected"), [(8, 2**40, 2), (1, 2**40, 1), (8, 2**20, 1)])
def test_a_session_is_made_for_two_batches_where_there_are_cores_and_memory(
    monkeypatch: pytest.MonkeyPatch, cores: int, free: int, expected: int
) -> None:
    monkeypatch.setattr(module, "allowed_cores", lambda: cores)
    monkeypatch.setattr(module, "free_memory", lambda: free)
    session = open_session(product("N"), "m.onnx", Device("cpu"), at_once=2)
    assert session.at_once == expected
    threads = session._session.get_session_options().intra_op_num_threads
    assert threads in (0, cores // expected)  # 0: as many as the machine has
