"""Files of labels and manifests: what is read from each form, and every refusal."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.samples import gather, noise, spec, write_folder, write_image
from tna_onnx.data import Source, open_source
from tna_onnx.data.labelfile import LabelFile, find_label_column, read_label_file
from tna_onnx.errors import DataError, UsageError

IMAGE = spec("image", (None, 3, 5, 6))
FILES = ["b.png", "sub/a.png", "c d.png"]


def read(folder: Path, name: str, text: str, label_column: str | None = None, *, paths: bool = False) -> LabelFile:
    (folder / name).write_text(text)
    return read_label_file(folder / name, label_column, is_path=lambda text: paths and text.endswith(".png"))


def refusal(folder: Path, name: str, text: str, label_column: str | None = None) -> str:
    with pytest.raises(DataError) as caught:
        read(folder, name, text, label_column)
    assert str(folder / name) in str(caught.value)
    return str(caught.value)


WITH_PATHS = [
    ("a.csv", "path,label\nb.png,cat\nsub/a.png,dog\n"),
    ("a.csv", "\ufeffLabel , other,FILENAME\ncat,1,b.png\ndog,2,sub/a.png\n"),
    ("a.csv", "b.png,cat\n\nsub/a.png,dog"),
    ("a.csv", 'image,class\n"b.png","cat"\r\nsub/a.png, dog\r\n'),
    ("a.tsv", "path\tlabel\nb.png\tcat\nsub/a.png\tdog\n"),
    ("a.jsonl", '{"path": "b.png", "label": "cat"}\n\n{"label": "dog", "path": "sub/a.png"}\n'),
    ("a.json", '[{"path": "b.png", "label": "cat"}, {"label": "dog", "path": "sub/a.png", "extra": 1}]'),
    ("a.json", '{"b.png": "cat", "sub/a.png": "dog"}'),
    ("a.txt", "b.png cat\nsub/a.png\tdog\n"),
]


@pytest.mark.parametrize(("name", "text"), WITH_PATHS)
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


def test_npy(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.array([1, 0], np.int32))
    found = read_label_file(tmp_path / "y.npy", is_path=lambda _: False)
    np.testing.assert_array_equal(found.labels, np.array([1, 0], np.int32), strict=True)
    assert found.labels.flags.owndata


def test_lines_are_labels_with_spaces_unless_all_start_with_a_path(tmp_path: Path) -> None:
    assert read(tmp_path, "a.txt", "great auk\nb.png cat", paths=True).labels.tolist() == ["great auk", "b.png cat"]
    assert read(tmp_path, "a.txt", "b.png great auk", paths=True).labels.tolist() == ["great auk"]


@pytest.mark.parametrize(
    ("name", "text", "pattern"),
    [
        ("a.csv", "", "is empty"),
        ("a.csv", "path,label\na.png,1\nb.png\n", "expected 2 cells .* found 1 in row 2"),
        ("a.csv", "a,b,c\n1,2,3\n", "names of the columns, path and label, found 'a', 'b', 'c'"),
        ("a.csv", "path,colour\na.png,1\n", "no column can hold the labels"),
        ("a.csv", "path,class,category\na.png,1,2\n", "several columns can hold the labels .*--label-column"),
        ("a.csv", "file,image,label\na,b,1\n", "several columns can hold the paths"),
        ("a.csv", 'path,label\n"a.png,1\n', "cannot be read as a table"),
        ("a.json", "{", "is not JSON"),
        ("a.jsonl", '{"path": "a", "label": 1}\n{', "is not JSON in line 2"),
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


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_label_file(tmp_path / "gone.csv", is_path=lambda _: False)
    (tmp_path / "a.csv").write_bytes(b"path,label\n\xff,1\n")
    with pytest.raises(DataError, match="UTF-8"):
        read_label_file(tmp_path / "a.csv", is_path=lambda _: False)


def test_a_column_can_be_named(tmp_path: Path) -> None:
    text = "path,label,fine\na.png,1,7\nb.png,0,9\n"
    assert read(tmp_path, "a.csv", text, "fine").labels.tolist() == ["7", "9"]
    assert "no column 'coarse'" in refusal(tmp_path, "a.csv", text, "coarse")
    assert find_label_column(["x", "Labels", "class"], None, "a") == "Labels"


# ---- manifests ----


def opened(folder: Path, name: str, text: str, **options: Any) -> Source:
    write_folder(folder, FILES)
    (folder / name).write_text(text)
    return open_source(folder / name, [IMAGE], options.pop("n_classes", 2), **options)


def test_a_manifest(tmp_path: Path) -> None:
    text = f"path,label\nc d.png,dog\n{tmp_path / 'b.png'},cat\nsub/a.png,dog\nc d.png,dog\n"
    source = opened(tmp_path, "list.csv", text, class_names=["dog", "cat"])
    assert source.describe() == "manifest list.csv (4 images, 2 classes)"
    np.testing.assert_array_equal(source.labels, [0, 1, 0, 0])
    expected = np.stack([noise(5, 6, seed=seed).transpose(2, 0, 1) for seed in (2, 0, 1, 2)]) / 255
    np.testing.assert_allclose(gather(source, 3)["image"], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "text"), WITH_PATHS)
def test_every_form_of_manifest(tmp_path: Path, name: str, text: str) -> None:
    source = opened(tmp_path, name, text)
    np.testing.assert_array_equal(source.labels, [0, 1])


def test_missing_images(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"list\.csv: 1 of 2 files are not there \('x\.png'\); paths count from"):
        opened(tmp_path, "list.csv", "path,label\nx.png,0\nb.png,1\n")


def test_a_manifest_without_paths(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no column holds the paths .* 'index' only"):
        opened(tmp_path, "list.csv", "index,label\n1,0\n2,1\n")


def test_a_manifest_takes_no_labels_apart(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="brings its own labels; leave --labels out"):
        opened(tmp_path, "list.csv", "b.png,0\nsub/a.png,1\n", labels=[0, 1])


# ---- flat folders ----


def flat(folder: Path, name: str, text: str, **options: Any) -> Source:
    (folder / name).write_text(text)
    return open_source(write_folder(folder / "images", FILES), [IMAGE], 2, labels=folder / name, **options)


@pytest.mark.parametrize(("name", "text"), WITH_PATHS)
def test_a_folder_with_a_file_that_names_images(tmp_path: Path, name: str, text: str) -> None:
    source = flat(tmp_path, name, text)
    assert source.describe() == "image folder images (2 images, 2 classes)"
    np.testing.assert_array_equal(gather(source, 2)["image"][1], gather(source, 2, np.array([1]))["image"][0])


@pytest.mark.parametrize(
    ("name", "text"), [("a.txt", "cat\ndog\ncat\n"), ("a.json", json.dumps(["cat", "dog", "cat"]))]
)
def test_a_folder_with_one_label_for_each_image(tmp_path: Path, name: str, text: str) -> None:
    source = flat(tmp_path, name, text)
    assert len(source) == 3
    first = gather(source, 3)["image"][0]
    np.testing.assert_allclose(first, noise(5, 6, seed=0).transpose(2, 0, 1) / 255, rtol=0, atol=1e-6)


def test_labels_as_an_array(tmp_path: Path) -> None:
    write_folder(tmp_path, FILES)
    np.testing.assert_array_equal(open_source(tmp_path, [IMAGE], 2, labels=[1, 0, 1]).labels, [1, 0, 1])


@pytest.mark.parametrize(
    ("name", "text", "pattern"),
    [
        ("a.txt", "cat\ndog\n", "2 labels for 3 samples"),
        ("a.csv", "x.png,cat\nb.png,dog\n", r"a\.csv: 1 of 2 files are not there"),
        ("a.csv", "photo,label\nb.png,cat\nc d.png,dog\n", r"a\.csv: no column holds the paths \(found 'photo'\)"),
    ],
)
def test_labels_that_do_not_fit_the_folder(tmp_path: Path, name: str, text: str, pattern: str) -> None:
    with pytest.raises(DataError, match=pattern):
        flat(tmp_path, name, text)


def test_a_flat_folder_without_labels(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png", noise(5, 6))
    with pytest.raises(DataError, match=r"no class folders, but images; .* --labels"):
        open_source(tmp_path, [IMAGE], 2)


def test_an_empty_folder_with_labels(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no images; looked for"):
        open_source(tmp_path, [IMAGE], 2, labels=[0, 1])
