"""Which columns of a table fill which inputs: every rule, and every refusal."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.samples import spec
from tna_onnx.data import InputSpec
from tna_onnx.data.request import Request
from tna_onnx.data.sources.columns import stack
from tna_onnx.data.sources.layout import Kind, Layout, lay_out
from tna_onnx.errors import DataError

NUMBERS: dict[str, Kind] = {"a": "number", "b": "number", "c": "number", "d": "number", "label": "number"}
ONE = [spec("X", (None, 4))]
EACH = [spec(name, (None, 1)) for name in "dcba"]


def laid(kinds: dict[str, Kind], inputs: list[InputSpec], *columns: str, label: str | None = "label") -> Layout:
    return lay_out("calib.csv", kinds, Request(inputs, 3, columns=columns), label)


def refusal(kinds: dict[str, Kind], inputs: list[InputSpec], *columns: str) -> str:
    with pytest.raises(DataError, match=r"calib\.csv: ") as caught:
        laid(kinds, inputs, *columns)
    return str(caught.value)


def test_all_numbers_fill_the_only_input_in_the_order_of_the_table() -> None:
    layout = laid(NUMBERS, ONE)
    assert layout.columns == {"X": ("a", "b", "c", "d")}
    assert layout.note == "columns of input 'X': 'a', 'b', 'c', 'd' in the order of the table; label 'label'"


def test_names_decide_where_inputs_have_them() -> None:
    assert laid(NUMBERS, EACH).columns == {name: (name,) for name in "dcba"}
    # the label may have the name of no input, and the table more columns
    assert laid({**NUMBERS, "e": "number"}, EACH[:2]).columns == {"d": ("d",), "c": ("c",)}


def test_signs_and_case_do_not_count_where_that_is_unambiguous() -> None:
    kinds: dict[str, Kind] = {"Petal Length (cm)": "number", "b": "number"}
    inputs = [spec("petal_length_cm", (None, 1)), spec("B", (None, 1))]
    assert laid(kinds, inputs, label=None).columns["petal_length_cm"] == ("Petal Length (cm)",)
    message = refusal({**kinds, "petal-length-cm": "number", "label": "number"}, inputs)
    assert "no column for the model's input 'petal_length_cm'" in message
    assert "--columns" in message


def test_columns_that_are_named_fill_the_inputs_in_the_models_order() -> None:
    layout = laid(NUMBERS, ONE, "d", "b", "a", "c")
    assert layout.columns == {"X": ("d", "b", "a", "c")}
    two = [spec("x", (None, 3)), spec("z", (None, 1))]
    assert laid(NUMBERS, two, "d", "b", "a", "c").columns == {"x": ("d", "b", "a"), "z": ("c",)}
    free = [spec("x", (None, None))]
    assert laid(NUMBERS, free, "d", "b").columns == {"x": ("d", "b")}


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "__index_level_0__"])
def test_row_numbers_of_pandas_are_no_feature(name: str) -> None:
    layout = laid({name: "number", **NUMBERS}, ONE)
    assert layout.columns == {"X": ("a", "b", "c", "d")}
    assert "not used: " in layout.note


def test_text_beside_the_numbers_is_left_out_and_said() -> None:
    layout = laid({"customer": "text", **NUMBERS}, ONE)
    assert layout.columns == {"X": ("a", "b", "c", "d")}
    assert layout.note.endswith("not used: 'customer'")


def test_the_only_column_of_lists_is_the_input() -> None:
    layout = laid({"id": "number", "embedding": "list", "label": "number"}, [spec("X", (None, 3, 8))])
    assert layout == Layout({"X": ("embedding",)})


def test_a_single_number_a_sample() -> None:
    for shape in ((None,), (None, 1), (None, None)):
        assert laid({"a": "number", "label": "text"}, [spec("X", shape)]).columns == {"X": ("a",)}


@pytest.mark.parametrize(
    ("kinds", "inputs", "columns", "parts"),
    [
        ({**NUMBERS, "e": "number"}, ONE, (), ["takes 4 columns of numbers, the table has 5 ('a', ", "--columns"]),
        ({"a": "number", "b": "text", "label": "text"}, ONE, (), ["has 1 ('a'; not all values are numbers in 'b')"]),
        (NUMBERS, [spec("X", (None, 3, 8, 8))], (), ["no column for the model's input 'X' (N, 3, 8, 8)", ".npz"]),
        ({"a": "number", "label": "text"}, [spec("X", (None, 2, 2))], (), ["'a' holds one number a row"]),
        ({"X": "number", "label": "text"}, ONE, (), ["'X' holds one number a row; expected shape (N, 4)"]),
        (NUMBERS, ONE, ("a", "b"), ["--columns names 2 columns, the model takes 4 ('X' (N, 4))"]),
        (NUMBERS, ONE, ("a", "b", "c", "z"), ["no column 'z', which --columns names"]),
        ({"X": "text", "label": "number"}, ONE, (), ["column 'X' holds text", "takes float32; store numbers"]),
        ({"a": "text", "label": "number"}, [spec("ids", (None, None), np.int64)], (), ["--tokenizer"]),
        (NUMBERS, [*EACH, spec("e", (None, 1))], (), ["no column for the model's input 'e'", "--columns"]),
    ],
)
def test_refusals(kinds: dict[str, Kind], inputs: list[InputSpec], columns: tuple[str, ...], parts: list[str]) -> None:
    message = refusal(kinds, inputs, *columns)
    for part in parts:
        assert part in message


def test_labels_apart_make_no_feature_of_those_in_the_table() -> None:
    """With a free width, or one that happens to fit."""
    assert laid(NUMBERS, [spec("X", (None, None))], label=None).columns == {"X": ("a", "b", "c", "d")}
    five = [spec("X", (None, 5))]
    with pytest.raises(DataError, match="takes 5 columns of numbers, the table has 4"):
        laid(NUMBERS, five, label=None)
    assert laid(NUMBERS, five, *NUMBERS, label=None).columns == {"X": tuple(NUMBERS)}
    assert laid(NUMBERS, [spec("label", (None, 1))], label=None).columns == {"label": ("label",)}


# ---- Numbers side by side: converted to the model's dtype, and refused where that would change them

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
