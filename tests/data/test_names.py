"""Class names, and labels that are names: what they are turned into, and what every refusal says."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tna_onnx.data.labelfile import metadata_class_names, read_class_names
from tna_onnx.data.labels import folder_labels, label_indices
from tna_onnx.errors import DataError

CLASSES = ["cat", "cow", "dog"]


def read(folder: Path, content: object, name: str = "classes.json") -> tuple[str, ...]:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_class_names(path)


@pytest.mark.parametrize(
    "content",
    [
        CLASSES,
        {"0": "cat", "2": "dog", "1": "cow"},
        {"dog": 2, "cat": 0, "cow": 1},
        {"architectures": ["ViT"], "id2label": {"0": "cat", "1": "cow", "2": "dog"}, "label2id": {"cat": 0}},
        {"label2id": {"cat": 0, "dog": 2, "cow": 1}},
        {"architecture": "resnet18", "label_names": CLASSES},
        {"names": {"0": "cat", "1": "cow", "2": "dog"}},
        {"class_to_idx": {"cat": 0, "dog": 2, "cow": 1}},
    ],
)
def test_json(tmp_path: Path, content: object) -> None:
    assert read(tmp_path, content) == ("cat", "cow", "dog")


def test_text(tmp_path: Path) -> None:
    assert read(tmp_path, "cat\ncow \r\n dog\n\n", "classes.txt") == ("cat", "cow", "dog")
    assert read(tmp_path, "\ufefftench, Tinca tinca\ncow", "classes.names") == ("tench, Tinca tinca", "cow")


@pytest.mark.parametrize(
    ("name", "content", "pattern"),
    [
        ("a.txt", "cat\n\ndog\n", "line 2 is empty"),
        ("a.txt", "", "expected class names"),
        ("a.json", "{", "is not JSON"),
        ("a.json", '["cat", 3]', "expected class names .* found"),
        ("a.json", '{"0": ["n01440764", "tench"]}', "found .*n01440764"),
        ("a.json", '{"1": "cat", "2": "dog"}', r"indices 0 to 1, found indices \[1, 2\]"),
        ("a.json", '{"cat": 0, "dog": 0}', r"indices 0 to 1, found indices \[0\]"),
        ("a.json", '{"cat": "animal"}', "expected class names"),
    ],
)
def test_files_that_hold_no_names(tmp_path: Path, name: str, content: str, pattern: str) -> None:
    with pytest.raises(DataError, match=pattern) as caught:
        read(tmp_path, content, name)
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize(
    ("metadata", "names"),
    [
        ({}, None),
        ({"names": "{0: 'cat', 1: 'dog'}"}, ("cat", "dog")),
        ({"id2label": '{"0": "cat", "1": "dog"}'}, ("cat", "dog")),
        ({"classes": '["cat", "dog"]'}, ("cat", "dog")),
        ({"class_names": "cat\ndog\n"}, ("cat", "dog")),
        ({"classes": "cat,dog"}, ("cat", "dog")),
        ({"classes": "10"}, None),
        ({"names": "__import__('os')"}, None),
        ({"names": "none", "id2label": '{"0": "cat", "1": "dog"}'}, ("cat", "dog")),
    ],
)
def test_metadata(metadata: dict[str, str], names: tuple[str, ...] | None) -> None:
    assert metadata_class_names(metadata) == names


# ---- names as labels ----


@given(st.lists(st.sampled_from(CLASSES), min_size=2).filter(lambda names: len(set(names)) > 1))
def test_names_are_looked_up_in_the_models_order(names: list[str]) -> None:
    expected = np.array([CLASSES.index(name) for name in names])
    for stored in (np.array(names), np.array(names, object), np.array(names)[:, np.newaxis]):
        np.testing.assert_array_equal(label_indices(stored, len(names), 3, "labels", CLASSES), expected, strict=True)


def refusal(labels: list[object], n_classes: int = 3, class_names: list[str] | None = None) -> str:
    with pytest.raises(DataError) as caught:
        label_indices(np.array(labels), len(labels), n_classes, "calib", class_names)
    assert str(caught.value).startswith("calib: ")
    return str(caught.value)


def test_too_few_names_without_a_list() -> None:
    message = refusal(["dog", "cat"])
    assert "2 labels for a model with 3 classes" in message
    assert "found 'cat', 'dog'" in message
    assert "--classes FILE" in message


def test_unknown_names_show_both_lists() -> None:
    message = refusal(["Cat", "dogs", "aardvark", "cow"], class_names=CLASSES)
    assert "3 of 4 labels are not class names of the model" in message
    assert "'Cat', 'aardvark', 'dogs'." in message
    assert "3 class names are 'cat', 'cow', 'dog'" in message


def test_names_that_the_model_has_twice() -> None:
    birds = ["crane", "cat", "crane"]
    np.testing.assert_array_equal(label_indices(np.array([1, 2]), 2, 3, "calib", birds), [1, 2])
    assert "class 0 is 'crane', class 2 is 'crane'" in refusal(["crane", "cat"], 3, birds)


@pytest.mark.parametrize(
    ("labels", "pattern"),
    [
        (np.array(["cat", None], object), "found None in row 1"),
        (np.array([3, "cat"], object), "found 3 in row 0"),
        (np.array([b"dog", b"cat"]), "found b.dog. in row 0"),
        (np.array([["cat", "dog"]]), r"found shape \(1, 2\)"),
        (np.array(["7", "0"]), "must lie in 0 to 2, but 1 of 2 do not"),
    ],
)
def test_other_labels(labels: np.ndarray, pattern: str) -> None:
    with pytest.raises(DataError, match=pattern):
        label_indices(labels, len(labels), 3, "calib", CLASSES)


def test_folders_with_a_list_may_lack_classes() -> None:
    assert folder_labels(["dog", "cat"], 3, "calib", CLASSES) == {"dog": 2, "cat": 0}
    with pytest.raises(DataError, match="1 of 2 class folders are not class names"):
        folder_labels(["dog", "bee"], 3, "calib", CLASSES)
