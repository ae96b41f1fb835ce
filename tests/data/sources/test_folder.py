"""Folders of images: which files count, their order and labels, the digest, and every refusal."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.samples import (
    ANY_SIZE,
    LISTED,
    TWO,
    gather,
    names,
    noise,
    open_images,
    spec,
    write_folder,
    write_image,
)
from tna_onnx.data import Source, open_source
from tna_onnx.data.request import Request
from tna_onnx.data.sources.image_files import open_folder
from tna_onnx.errors import DataError

IMAGE = spec("image", (None, 3, 5, 6))


def refusal(root: Path, n_classes: int = 2) -> str:
    with pytest.raises(DataError) as caught:
        open_images(root, n_classes)
    assert str(root) in str(caught.value)
    return str(caught.value)


# ---- which files, in which order ----


def test_files_labels_and_order(tmp_path: Path) -> None:
    files = ["10/b.png", "2/z.png", "2/a/deep/er.PNG", "2/a.bmp", "10/a.Jpg"]
    root = write_folder(tmp_path / "calib", files)
    for ignored in ["2/notes.txt", "2/.hidden.png", "2/.thumbs/x.png", ".cache/y.png", "at the top.png", "2/._a.png"]:
        (root / ignored).parent.mkdir(exist_ok=True)
        (root / ignored).write_text("ignored")
    source = open_images(root, n_classes=11)
    assert names(source) == ("10/a.Jpg", "10/b.png", "2/a/deep/er.PNG", "2/a.bmp", "2/z.png")
    np.testing.assert_array_equal(source.labels, np.array([10, 10, 2, 2, 2]), strict=True)
    assert source.describe() == "image folder calib (5 images, 2 classes)"


def test_an_empty_class_folder_is_a_class(tmp_path: Path) -> None:
    write_folder(tmp_path, ["ant/1.png", "cat/2.png"])
    (tmp_path / "bee").mkdir()
    np.testing.assert_array_equal(open_images(tmp_path, 3).labels, [0, 2])


def test_links_to_folders_count_as_classes_and_not_below(tmp_path: Path) -> None:
    write_folder(tmp_path / "elsewhere", ["x.png", "y.png"])
    root = write_folder(tmp_path / "calib", ["0/a.png"])
    (root / "1").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (root / "0" / "circle").symlink_to(root, target_is_directory=True)
    with pytest.raises(DataError, match=r"2 of 3 files lie outside .*'1/x\.png' first.*--data-root"):
        open_images(root)
    source = open_folder(root, Request([ANY_SIZE], 2, data_root=tmp_path))
    assert names(source) == ("0/a.png", "1/x.png", "1/y.png")


# ---- refusals on opening ----


def test_a_folder_that_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path, TWO)

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert "cannot be listed (Permission denied)" in refusal(tmp_path)


# ---- digest ----


def test_digest_against_its_definition(tmp_path: Path) -> None:
    source = open_images(write_folder(tmp_path, ["0/ä.png", "1/b.png"]))
    expected = hashlib.sha256()
    for name, label in [("0/ä.png", 0), ("1/b.png", 1)]:
        encoded = name.encode()
        expected.update(len(encoded).to_bytes(8, "big") + encoded + label.to_bytes(8, "big"))
        expected.update(hashlib.sha256((tmp_path / name).read_bytes()).digest())
    assert source.digest() == expected.hexdigest()


# ---- a file of labels ----


def flat(folder: Path, name: str, text: str, **options: Any) -> Source:
    (folder / name).write_text(text)
    return open_source(write_folder(folder / "images", LISTED), [IMAGE], 2, labels=folder / name, **options)


@pytest.mark.parametrize(
    ("name", "text"), [("a.txt", "cat\ndog\ncat\n"), ("a.json", json.dumps(["cat", "dog", "cat"]))]
)
def test_a_folder_with_one_label_for_each_image(tmp_path: Path, name: str, text: str) -> None:
    source = flat(tmp_path, name, text)
    assert len(source) == 3
    first = gather(source, 3)["image"][0]
    np.testing.assert_allclose(first, noise(5, 6, seed=0).transpose(2, 0, 1) / 255, rtol=0, atol=1e-6)


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


def test_no_class_folders(tmp_path: Path) -> None:
    write_folder(tmp_path, ["a.png", "b.png"])
    assert "no class folders" in refusal(tmp_path)


def test_no_images(tmp_path: Path) -> None:
    for name in ("0", "1"):
        (tmp_path / name).mkdir()
    (tmp_path / "0" / "a.txt").touch()
    message = refusal(tmp_path)
    assert "no images in its 2 class folders" in message
    assert ".png" in message
