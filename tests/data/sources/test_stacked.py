"""Numbers side by side: converted to the model's dtype, and refused where that would change them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.samples import spec
from tna_onnx.data.sources.columns import stack
from tna_onnx.errors import DataError

ROWS = np.arange(3)


def test_values_and_shape() -> None:
    parts = [np.array([1.0, 2.0, 3.0]), np.array([4, 5, 6]), np.array([True, False, True])]
    stacked = stack("t", spec("X", (None, 3)), "abc", parts)
    assert stacked.shape == (3, 3)
    expected = np.array([[1, 4, 1], [3, 6, 1]], np.float32)
    np.testing.assert_array_equal(stacked[np.array([0, 2])], expected, strict=True)
    one = stack("t", spec("x", (None,)), "a", parts[:1])
    np.testing.assert_array_equal(one[ROWS], np.array([1, 2, 3], np.float32), strict=True)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=20))
def test_floats_are_rounded_as_numpy_does(values: list[float]) -> None:
    wide = np.array(values)
    stacked = stack("t", spec("x", (None, 1)), "a", [wide])
    np.testing.assert_array_equal(stacked[np.arange(len(wide))][:, 0], wide.astype(np.float32))


@pytest.mark.parametrize(
    ("values", "dtype", "found"),
    [
        ([1.0, np.nan, 2.0], np.float32, "found nan in row 1"),
        ([1.0, 2.0, np.inf], np.float32, "found inf in row 2"),
        ([1.0, 1e300, 2.0], np.float32, "found 1e+300 in row 1"),
        ([1.0, 2.5, 2.0], np.int64, "found 2.5 in row 1"),
        ([1.0, np.nan, 2.0], np.int64, "found nan in row 1"),
        ([1, 300, 2], np.uint8, "found 300 in row 1"),
    ],
)
def test_what_cannot_be_converted(values: list[float], dtype: type, found: str) -> None:
    stacked = stack("calib.csv", spec("x", (None, 1), dtype), ["age"], [np.array(values)])
    with pytest.raises(DataError, match=r"calib\.csv: column 'age': expected a .* number of ") as caught:
        _ = stacked[ROWS]
    assert found in str(caught.value)
