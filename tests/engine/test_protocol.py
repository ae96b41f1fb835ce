"""Sums over chunks: the order of additions is a part of the contract, and any engine adds in it."""

import functools
import math
import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tna_onnx.engine.protocol import add_neighbours


def by_levels(parts: list[float]) -> float:
    """Add neighbours, then neighbouring sums, level by level: the definition."""
    while len(parts) > 1:
        odd_one = parts[len(parts) & ~1 :]
        parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)] + odd_one
    return parts[0]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=70))
def test_sums_have_the_bits_of_the_definition(values: list[float]) -> None:
    assert add_neighbours(iter(values)) == by_levels(values)


@given(st.lists(st.binary(max_size=3), min_size=1, max_size=40))
def test_parts_keep_their_order(words: list[bytes]) -> None:
    assert add_neighbours(words) == functools.reduce(operator.add, words)


def test_few_sums_are_in_memory() -> None:
    alive = 0
    most = 0

    class Part:
        def __init__(self) -> None:
            nonlocal alive, most
            alive += 1
            most = max(most, alive)

        def __add__(self, _: "Part") -> "Part":
            return Part()

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    add_neighbours(Part() for _ in range(1000))
    # one for each binary digit of the number of parts, and those of the addition at work
    assert most <= math.log2(1000) + 4


def test_no_part() -> None:
    with pytest.raises(ValueError, match="no chunk"):
        add_neighbours([])
