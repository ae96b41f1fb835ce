"""Sums over chunks on this machine."""

import functools
import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tna_onnx.engine.local import map_chunks, sum_chunks


@given(st.lists(st.text(max_size=3), min_size=1, max_size=40))
def test_the_order_is_kept(words: list[str]) -> None:
    chunks = [(word, word) for word in words]
    assert sum_chunks(lambda a, b: a + b, chunks) == functools.reduce(operator.add, [w + w for w in words])
    assert list(map_chunks(lambda a, b: a + b, chunks)) == [w + w for w in words]


def test_neighbours_are_added_first() -> None:
    """The order of additions is a part of the contract: sums of floats depend on it."""
    values = [0.1, 0.2, 0.3, 0.4, 0.5]
    assert sum_chunks(lambda x: x, [(v,) for v in values]) == ((0.1 + 0.2) + (0.3 + 0.4)) + 0.5


def test_no_chunk() -> None:
    assert list(map_chunks(len, [])) == []
    with pytest.raises(ValueError, match="no chunk"):
        sum_chunks(len, [])
