"""Tables in text files: what cells stand for, headers, separators, and every refusal."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.samples import gather, spec
from tna_onnx.data import open_source
from tna_onnx.data.choices import DEFAULT_LIMITS
from tna_onnx.data.sources.inmemory import read_columns
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
        ("t.json", json.dumps({key: [record[key] for record in RECORDS] for key in RECORDS[0]})),
        ("t.json", json.dumps({key: {str(n): r[key] for n, r in enumerate(RECORDS)} for key in RECORDS[0]})),
    ],
)
def test_forms(tmp_path: Path, name: str, text: str) -> None:
    source = open_source(written(tmp_path / name, text), [spec("X", (None, 3))], 3)
    np.testing.assert_array_equal(gather(source, 4)["X"], X.astype(np.float32), strict=True)
    np.testing.assert_array_equal(source.labels, LABELS)
    assert source.describe() == f"table {name} (6 samples, 3 classes)"


def test_without_a_header(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", rows(header=False))
    source = open_source(path, [spec("X", (None, 3))], 3, label_column="4")
    np.testing.assert_array_equal(gather(source, 4)["X"], X.astype(np.float32))
    np.testing.assert_array_equal(source.labels, LABELS)


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
        ("t.csv", "a,a\n1,2", "several columns are called 'a'"),
        ("t.csv", 'a,b\n"1,2', "cannot be read as a table"),
        ("t.json", "[1, 2]", "expected an object with the names of the columns"),
        ("t.json", '{"a": 1}', "expected a list of objects"),
        ("t.json", '{"a": [1], "b": [1, 2]}', "differ in length"),
        ("t.jsonl", '{"a": 1}\n{"b": 1}', "keys 'a' for each sample.*found 'b' as number 2"),
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
