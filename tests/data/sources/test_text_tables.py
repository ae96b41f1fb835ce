"""Tables in text files: what cells stand for, headers, separators, and every refusal."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.data.samples import gather, open_source, spec
from tna_onnx.data.choices import DEFAULT_LIMITS
from tna_onnx.data.options import Request
from tna_onnx.data.source import InputSpec
from tna_onnx.data.sources.arrays import stack
from tna_onnx.data.sources.table_inputs import Kind, lay_out
from tna_onnx.data.textfile import read_columns
from tna_onnx.errors import DataError

X = np.random.default_rng(0).random((6, 3))
LABELS = np.array([0, 1, 2, 0, 1, 2])
RECORDS = [{"a": x[0], "b": x[1], "c": x[2], "target": int(y)} for x, y in zip(X, LABELS, strict=True)]


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def rows(separator: str = ",", header: bool = True) -> str:
    lines = [separator.join(map(repr, [*map(float, x), int(y)])) for x, y in zip(X, LABELS, strict=True)]
    return "\n".join([separator.join(["a", "b", "c", "target"]), *lines] if header else lines)


def columns(path: Path) -> dict[str, Any]:
    return read_columns(path, DEFAULT_LIMITS)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", rows()),
        ("t.csv", rows(";")),
        ("t.csv", rows("\t")),
        ("t.csv", "\ufeff" + rows().replace("\n", "\r\n")),
        ("t.tsv", rows("\t")),
        ("t.jsonl", "\n".join(map(json.dumps, RECORDS))),
        ("t.json", json.dumps(RECORDS)),
    ],
)
def test_forms(tmp_path: Path, name: str, text: str) -> None:
    source = open_source(written(tmp_path / name, text), [spec("X", (None, 3))], 3)
    np.testing.assert_array_equal(gather(source, 4)["X"], X.astype(np.float32), strict=True)
    np.testing.assert_array_equal(source.labels, LABELS)
    assert source.describe() == f"table {name} (6 samples of 3 classes)"


def test_without_a_header(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", rows(header=False))
    source = open_source(path, [spec("X", (None, 3))], 3, label_column="4")
    np.testing.assert_array_equal(gather(source, 4)["X"], X.astype(np.float32))
    np.testing.assert_array_equal(source.labels, LABELS)


CELLS = ("1", "-2", "+3", "007", "1.5", "1e400", ".5", "5.", "12345678901234567890", "-", "1-2", "1_0", "")


@pytest.mark.parametrize("cells", [*itertools.product(CELLS, repeat=2)])
def test_tables_of_numbers_alone_read_like_others(tmp_path: Path, cells: tuple[str, str]) -> None:
    alone = columns(written(tmp_path / "t.csv", "\n".join(["x,y", *(f"{cell},0.1" for cell in cells)])))
    with_text = columns(written(tmp_path / "t.csv", "\n".join(["x,y,z", *(f"{cell},0.1,a" for cell in cells)])))
    for name in alone:
        np.testing.assert_array_equal(alone[name], with_text[name], strict=True)


def test_names_that_are_numbers(tmp_path: Path) -> None:
    assert list(columns(written(tmp_path / "t.csv", "0,1\n0.5,2"))) == ["0", "1"]
    assert list(columns(written(tmp_path / "t.csv", "0,3\n0.5,2"))) == ["1", "2"]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "-2", "+3"], np.array([1, -2, 3])),
        (["1", "", "3"], np.array([1, np.nan, 3])),
        (["1.5", "NA", "1e3", ".5", "inf"], np.array([1.5, np.nan, 1e3, 0.5, np.inf])),
        (["True", "false"], np.array([True, False])),
        (["1_0", "2"], np.array(["1_0", "2"], object)),
        (["a", "", "1"], np.array(["a", "", "1"], object)),
        (["+18446744073709551615", "1"], np.array([2**64 - 1, 1], np.uint64)),
        (["123456789012345678901", "1"], np.array([123456789012345678901.0, 1.0])),
        (["2024-01-01", "2024-01-02"], np.array(["2024-01-01", "2024-01-02"], object)),
    ],
)
def test_cells(tmp_path: Path, cells: list[str], expected: Any) -> None:
    path = written(tmp_path / "t.csv", "\n".join(["first,x", *(f"-,{cell}" for cell in cells)]))
    np.testing.assert_array_equal(columns(path)["x"], expected, strict=True)


def test_lists_and_line_breaks_in_cells(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", 'ids,text\n"[1, 2]","one\nline, ""and"" another"\n"[3]",b\n')
    found = columns(path)
    assert found["ids"].tolist() == [[1, 2], [3]]
    assert found["text"].tolist() == ['one\nline, "and" another', "b"]


def test_a_table_is_never_a_list_of_images(tmp_path: Path) -> None:
    """Whatever is wrong with it, the message is about its columns."""
    for text in (rows(), rows(header=False), "text,label\nhello,0\nthere,1", "a,label\n1,0\n,1", "path,label\na.png,0"):
        with pytest.raises(DataError) as caught:
            open_source(written(tmp_path / "t.csv", text), [spec("X", (None, 4))], 3)
        assert "image" not in str(caught.value)
        assert "column" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "pattern"),
    [
        ("t.csv", "", "is empty"),
        ("t.csv", "a,b\n1,2\n3", "expected 2 cells in each row .* found 1 in row 2 below the first"),
        ("t.tsv", "\ta\tb\n1\t2\n", "expected 3 cells in each row .* found 2 in row 1 below the first"),
        ("t.csv", "a,b\n1,2\n3,\0", "a character NUL"),
        ("t.csv", "a,a\n1,2", "several columns are called 'a'"),
        ("t.csv", 'a,b\n"1,2', "cannot be read as a table"),
        ("t.json", "[1, 2]", "expected a list with an object for each sample"),
        ("t.json", '{"a": {"0": 1}, "b": {"0": 2}}', "orient='records'"),
        ("t.jsonl", '{"a": 1}\n{"b": 1}', "keys of the first sample, 'a'.*sample 2 has 'b'"),
        ("t.jsonl", '{"a": 1, "b": 1}\n{"b": 1, "a": 1}\n{"a": 1}', "sample 3 has 'a'"),
        ("t.jsonl", '{"a": 1}\n{"a": ', "line 2: is not JSON"),
    ],
)
def test_refusals(tmp_path: Path, name: str, text: str, pattern: str) -> None:
    with pytest.raises(DataError, match=pattern):
        columns(written(tmp_path / name, text))


def test_line_separators_inside_of_a_text_do_not_end_a_line_of_json(tmp_path: Path) -> None:
    lines = [json.dumps({"a": 1.0, "text": f"x{mark}y"}, ensure_ascii=False) for mark in "\u2028\u2029\x85"]
    path = tmp_path / "t.jsonl"
    path.write_text("\r\n".join(lines) + "\n", encoding="utf-8", newline="")
    assert [*columns(path)["text"]] == ["x\u2028y", "x\u2029y", "x\x85y"]


# --- Which columns of a table fill which inputs: every rule, and every refusal


NUMBERS: dict[str, Kind] = {"a": "number", "b": "number", "c": "number", "d": "number", "label": "number"}
ONE = [spec("X", (None, 4))]
EACH = [spec(name, (None, 1)) for name in "dcba"]


def laid(
    kinds: dict[str, Kind], inputs: list[InputSpec], *columns: str, label: str | None = "label"
) -> tuple[dict[str, tuple[str, ...]], str]:
    return lay_out("calib.csv", kinds, Request(inputs=inputs, n_classes=3, columns=columns), label)


def refusal(kinds: dict[str, Kind], inputs: list[InputSpec], *columns: str) -> str:
    with pytest.raises(DataError, match=r"calib\.csv: ") as caught:
        laid(kinds, inputs, *columns)
    return str(caught.value)


def test_all_numbers_fill_the_only_input_in_the_order_of_the_table() -> None:
    layout = laid(NUMBERS, ONE)
    assert layout[0] == {"X": ("a", "b", "c", "d")}
    assert layout[1] == "columns of input 'X': 'a', 'b', 'c', 'd' in the order of the table; label 'label'"


def test_names_decide_where_inputs_have_them() -> None:
    assert laid(NUMBERS, EACH)[0] == {name: (name,) for name in "dcba"}
    # the label may have the name of no input, and the table more columns
    assert laid({**NUMBERS, "e": "number"}, EACH[:2])[0] == {"d": ("d",), "c": ("c",)}


def test_signs_and_case_do_not_count_where_that_is_unambiguous() -> None:
    kinds: dict[str, Kind] = {"Petal Length (cm)": "number", "b": "number"}
    inputs = [spec("petal_length_cm", (None, 1)), spec("B", (None, 1))]
    assert laid(kinds, inputs, label=None)[0]["petal_length_cm"] == ("Petal Length (cm)",)
    message = refusal({**kinds, "petal-length-cm": "number", "label": "number"}, inputs)
    assert "no column for the model's input 'petal_length_cm'" in message
    assert "--columns" in message


def test_columns_that_are_named_fill_the_inputs_in_the_models_order() -> None:
    layout = laid(NUMBERS, ONE, "d", "b", "a", "c")
    assert layout[0] == {"X": ("d", "b", "a", "c")}
    two = [spec("x", (None, 3)), spec("z", (None, 1))]
    assert laid(NUMBERS, two, "d", "b", "a", "c")[0] == {"x": ("d", "b", "a"), "z": ("c",)}
    free = [spec("x", (None, None))]
    assert laid(NUMBERS, free, "d", "b")[0] == {"x": ("d", "b")}


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "__index_level_0__"])
def test_row_numbers_of_pandas_are_no_feature(name: str) -> None:
    layout = laid({name: "number", **NUMBERS}, ONE)
    assert layout[0] == {"X": ("a", "b", "c", "d")}
    assert "not used: " in layout[1]


def test_text_beside_the_numbers_is_left_out_and_said() -> None:
    layout = laid({"customer": "text", **NUMBERS}, ONE)
    assert layout[0] == {"X": ("a", "b", "c", "d")}
    assert layout[1].endswith("not used: 'customer'")


def test_columns_read_beside_the_inputs_are_not_called_unused() -> None:
    kinds: dict[str, Kind] = {"site": "number", **NUMBERS, "w": "number", "customer": "text"}
    request = Request(inputs=ONE, n_classes=3, group_column="site", weight_column="w")
    layout = lay_out("calib.csv", kinds, request, "label")
    assert layout[0] == {"X": ("a", "b", "c", "d")}
    assert layout[1].endswith("label 'label'; groups 'site'; weights 'w'; not used: 'customer'")


def test_the_only_column_of_lists_is_the_input() -> None:
    layout = laid({"id": "number", "embedding": "list", "label": "number"}, [spec("X", (None, 3, 8))])
    assert layout == ({"X": ("embedding",)}, "")


def test_a_single_number_a_sample() -> None:
    for shape in ((None,), (None, 1), (None, None)):
        assert laid({"a": "number", "label": "text"}, [spec("X", shape)])[0] == {"X": ("a",)}


@pytest.mark.parametrize(
    ("kinds", "inputs", "columns", "parts"),
    [
        ({**NUMBERS, "e": "number"}, ONE, (), ["takes 4 columns of numbers, the table has 5 ('a', ", "--drop-columns"]),
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
def test_layouts_refused(
    kinds: dict[str, Kind], inputs: list[InputSpec], columns: tuple[str, ...], parts: list[str]
) -> None:
    message = refusal(kinds, inputs, *columns)
    for part in parts:
        assert part in message


def test_labels_apart_make_no_feature_of_those_in_the_table() -> None:
    """With a free width, or one that happens to fit."""
    assert laid(NUMBERS, [spec("X", (None, None))], label=None)[0] == {"X": ("a", "b", "c", "d")}
    five = [spec("X", (None, 5))]
    with pytest.raises(DataError, match="takes 5 columns of numbers, the table has 4") as caught:
        laid(NUMBERS, five, label=None)
    assert "--drop-columns" not in str(caught.value)  # of which there are fewer yet
    assert laid(NUMBERS, five, *NUMBERS, label=None)[0] == {"X": tuple(NUMBERS)}
    assert laid(NUMBERS, [spec("label", (None, 1))], label=None)[0] == {"label": ("label",)}


# ---- Numbers side by side: converted to the model's dtype, and refused where that would change them


def test_values_and_shape() -> None:
    parts = {"a": np.array([1.0, 2.0, 3.0]), "b": np.array([4, 5, 6]), "c": np.array([True, False, True])}
    expected = np.array([[1, 4, 1], [2, 5, 0], [3, 6, 1]], np.float32)
    np.testing.assert_array_equal(stack("t", spec("X", (None, 3)), parts), expected, strict=True)
    one = stack("t", spec("x", (None,)), {"a": parts["a"]})
    np.testing.assert_array_equal(one, np.array([1, 2, 3], np.float32), strict=True)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=20))
def test_floats_are_rounded_as_numpy_does(values: list[float]) -> None:
    wide = np.array(values)
    stacked = stack("t", spec("x", (None, 1)), {"a": wide})
    np.testing.assert_array_equal(stacked[:, 0], wide.astype(np.float32))


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
    with pytest.raises(DataError, match=r"calib\.csv: column 'age': expected a .* number of ") as caught:
        stack("calib.csv", spec("x", (None, 1), dtype), {"age": np.array(values)})
    assert found in str(caught.value)
