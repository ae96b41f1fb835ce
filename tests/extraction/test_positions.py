"""Tensors of several predictions a sample, as rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tna_onnx.extraction.sessions import layout_of, rows_of
from tna_onnx.graph.readout import Layout

SIZES = st.lists(st.integers(2, 4), min_size=1, max_size=3)


@given(SIZES, st.integers(1, 3), st.integers(5, 6))
def test_rows_are_the_class_vectors_of_the_positions(shape: list[int], samples: int, classes: int) -> None:
    """Classes first or last: row r of position p is the vector that NumPy's indices give."""
    last = np.random.default_rng(0).normal(size=(samples, *shape, classes))
    expected = np.array([last[place] for place in np.ndindex(samples, *shape)])
    first = np.moveaxis(last, -1, 1)
    for values, axis in ((last, -1), (first, 1), (expected, -1)):
        layout = layout_of(values.shape, samples, tuple(shape), 0)
        assert layout == Layout(values.ndim, axis)
        np.testing.assert_array_equal(rows_of(values, layout), expected)


def test_one_number_a_position() -> None:
    values = np.arange(6).reshape(2, 3)
    layout = layout_of(values.shape, 2, (3,), -1)
    assert layout == Layout(2, 0)
    assert rows_of(values, layout).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(("axis", "expected"), [(1, 1), (-1, -1)])
def test_the_graph_decides_where_shapes_do_not(axis: int, expected: int) -> None:
    layout = layout_of((8, 5, 5), 8, (5,), axis)
    assert layout is not None
    assert layout.class_axis == expected


@pytest.mark.parametrize("shape", [(8, 4), (8, 7, 3), (7, 5, 3), (8, 5, 3, 1), ()])
def test_other_positions_have_no_layout(shape: tuple[int, ...]) -> None:
    assert layout_of(shape, 8, (5,), -1) is None
