"""Files of labels: what is read from each form, and every refusal."""

from pathlib import Path

import pytest

from tests.data.samples import LISTS
from tna_onnx.data.labelfile import LabelFile, find_label_column, read_label_file
from tna_onnx.errors import DataError


def read(folder: Path, name: str, text: str, label_column: str | None = None, *, paths: bool = False) -> LabelFile:
    (folder / name).write_text(text)
    return read_label_file(folder / name, label_column, is_path=lambda text: paths and text.endswith(".png"))


def refusal(folder: Path, name: str, text: str, label_column: str | None = None) -> str:
    with pytest.raises(DataError) as caught:
        read(folder, name, text, label_column)
    assert str(folder / name) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("name", "text"), LISTS)
def test_paths_and_labels(tmp_path: Path, name: str, text: str) -> None:
    found = read(tmp_path, name, text, paths=True)
    assert found.paths == ("b.png", "sub/a.png")
    assert found.labels.tolist() == ["cat", "dog"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "label\n1\n0\n"),
        ("a.csv", "1\n0\n"),
        ("a.csv", "index,label\n17,1\n18,0\n"),
        ("a.json", "[1, 0]"),
        ("a.jsonl", "1\n0\n"),
        ("a.txt", "1\n0\n\n"),
    ],
)
def test_labels_only(tmp_path: Path, name: str, text: str) -> None:
    found = read(tmp_path, name, text)
    assert found.paths is None
    assert [int(label) for label in found.labels] == [1, 0]


def test_lines_are_labels_with_spaces_unless_all_start_with_a_path(tmp_path: Path) -> None:
    assert read(tmp_path, "a.txt", "great auk\nb.png cat", paths=True).labels.tolist() == ["great auk", "b.png cat"]
    assert read(tmp_path, "a.txt", "b.png great auk", paths=True).labels.tolist() == ["great auk"]


@pytest.mark.parametrize(
    ("name", "text", "pattern"),
    [
        ("a.csv", "", "is empty"),
        ("a.csv", "path,label\na.png,1\nb.png\n", "expected 2 cells .* found 1 in row 2"),
        ("a.csv", "a,b,c\n1,2,3\n", "names of the columns, path and label, found 'a', 'b', 'c'"),
        ("a.csv", "path,colour\na.png,1\n", "no column is called 'label'"),
        ("a.csv", "path,class,category\na.png,1,2\n", "several columns can hold the labels .*--label-column"),
        ("a.csv", "file,image,label\na,b,1\n", "several columns can hold the paths"),
        ("a.csv", 'path,label\n"a.png,1\n', "cannot be read as a table"),
        ("a.json", "{", "is not JSON"),
        ("a.jsonl", '{"path": "a", "label": 1}\n{', "line 2: is not JSON"),
        ("a.jsonl", '{"path": "a", "label": 1}\n{"path": "a"}', "keys 'path', 'label' .* as number 2"),
        ("a.json", "[]", "expected a list of labels"),
        ("a.json", "3", "expected a list of labels"),
        ("a.txt", "1\n\n2", "line 2 is empty"),
        ("a.xlsx", "", "found .xlsx"),
    ],
)
def test_refusals(tmp_path: Path, name: str, text: str, pattern: str) -> None:
    import re

    assert re.search(pattern, refusal(tmp_path, name, text))


def test_a_column_can_be_named(tmp_path: Path) -> None:
    text = "path,label,fine\na.png,1,7\nb.png,0,9\n"
    assert read(tmp_path, "a.csv", text, "fine").labels.tolist() == ["7", "9"]
    assert "no column 'coarse'" in refusal(tmp_path, "a.csv", text, "coarse")
    assert find_label_column(["x", "Labels", "class"], None, "a") == "Labels"


@pytest.mark.parametrize("sign", ["\x85", "\u2028", "\u2029", "\x0b", "\x0c", "\x1c"])
@pytest.mark.parametrize(
    ("name", "text"), [("a.csv", "path,label\r\na.png,x{}y\r\nb.png,z\r\n"), ("a.txt", "a.png x{}y\nb.png z\n")]
)
def test_only_line_feeds_and_returns_end_a_row(tmp_path: Path, name: str, text: str, sign: str) -> None:
    (tmp_path / name).write_text(text.format(sign), encoding="utf-8", newline="")
    found = read_label_file(tmp_path / name, is_path=lambda text: text.endswith(".png"))
    assert found.labels.tolist() == [f"x{sign}y", "z"]


def test_a_path_that_occurs_twice_in_json(tmp_path: Path) -> None:
    assert "the key 'a.png' occurs twice" in refusal(tmp_path, "a.json", '{"a.png": 1, "a.png": 0}')
