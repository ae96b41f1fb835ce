"""Images in files: decoding in threads, batches, and files that cannot be read."""

import hashlib
import threading
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
    open_source,
    spec,
    write_folder,
    write_image,
)
from tna_onnx.data.formats import open_request, request_of
from tna_onnx.data.images.preprocess import Recipe
from tna_onnx.data.options import Data, Request
from tna_onnx.data.source import Source
from tna_onnx.data.sources.image_files import open_folder
from tna_onnx.errors import DataError, UsageError

# ---- reading ----


def test_batches_hold_the_files_pixels(tmp_path: Path) -> None:
    source = open_images(write_folder(tmp_path, [*TWO, "1/c.png"]), recipe=Recipe(scale=1.0, mean=(3.0,)))
    expected = np.stack([noise(5, 6, seed=seed).transpose(2, 0, 1) for seed in range(3)]).astype(np.float32) - 3
    np.testing.assert_array_equal(gather(source, 2)["image"], expected, strict=True)
    assert source.recipe()["mean"] == [3.0, 3.0, 3.0]


def test_threads_end_with_the_reader(tmp_path: Path) -> None:
    batches = open_images(write_folder(tmp_path, [f"{row % 2}/{row:02}.png" for row in range(40)])).batches(3)
    next(batches)
    assert [thread for thread in threading.enumerate() if thread.name.startswith("tna-onnx-read")]
    del batches
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tna-onnx-read")]


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    write_folder(tmp_path, [*TWO, "1/c.png"])
    broken = tmp_path / "1" / "b.png"
    broken.write_bytes(broken.read_bytes()[:60])
    with pytest.raises(DataError, match=r"1/b\.png: cannot be read as an image.*--skip-bad"):
        list(open_images(tmp_path).batches(3))


def test_different_sizes_in_a_batch(tmp_path: Path) -> None:
    write_folder(tmp_path, TWO)
    write_image(tmp_path / "1" / "c.png", noise(8, 6))
    with pytest.raises(DataError, match=r"1/c\.png: has shape \(3, 8, 6\) .* .*0/a\.png in .* \(3, 5, 6\)") as caught:
        list(open_images(tmp_path).batches(3))
    assert "--resize" in str(caught.value)
    assert [batch["image"].shape[2] for batch in open_images(tmp_path).batches(1)] == [5, 5, 8]


# ---- images that cannot be read ----


def test_bad_images_are_skipped_and_counted(tmp_path: Path) -> None:
    files = [f"{row % 2}/{row}.png" for row in range(8)]
    write_folder(tmp_path, files)
    for name in ("0/2.png", "1/5.png"):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:60])
    (tmp_path / "1" / "7.png").write_text("")
    source = open_images(tmp_path, 2, Recipe(scale=1.0), skip_bad=True)
    np.testing.assert_array_equal(source.labels, [0, 0, 0, 1, 1])
    expected = np.stack([noise(5, 6, seed=seed).transpose(2, 0, 1) for seed in (0, 4, 6, 1, 3)])
    np.testing.assert_array_equal(gather(source, 2)["image"], expected)
    np.testing.assert_array_equal(gather(source, 2, np.array([4, 1]))["image"], expected[[4, 1]])
    assert source.describe() == (
        f"image folder {tmp_path.name} (5 images of 2 classes), 3 unreadable skipped: "
        f"{tmp_path / '0/2.png'}, {tmp_path / '1/5.png'}, {tmp_path / '1/7.png'}"
    )
    for name in source.skipped:
        Path(name).unlink()
    assert open_images(tmp_path).digest() == source.digest(), "what is skipped does not count"


def test_skipping_needs_something_that_is_good(tmp_path: Path) -> None:
    write_folder(tmp_path, TWO)
    (tmp_path / "0" / "a.png").write_text("")
    with pytest.raises(DataError, match="every label is 1"):
        open_images(tmp_path, skip_bad=True)
    (tmp_path / "1" / "b.png").write_text("")
    with pytest.raises(DataError, match=r"none of 2 images can be read, .*0/a\.png first"):
        open_images(tmp_path, skip_bad=True)


def test_frequencies_of_classes_weigh_the_images_that_are_left(tmp_path: Path) -> None:
    write_folder(tmp_path, [*TWO, "1/c.png", "1/d.png"])
    (tmp_path / "1" / "d.png").write_text("")
    for skip_bad, weights in ((False, [3.0, 1 / 3, 1 / 3, 1 / 3]), (True, [2.25, 0.375, 0.375])):
        data = Data(tmp_path, preprocessing=Recipe(), skip_bad=skip_bad, class_prior=[0.75, 0.25])
        source = open_request(request_of(data, [ANY_SIZE], 2, None))
        np.testing.assert_allclose(source.sample_info["weight"], weights)


def test_an_image_that_does_not_fit_is_not_skipped(tmp_path: Path) -> None:
    """It can be read: the preprocessing is wrong, not the file."""
    source = open_images(write_folder(tmp_path, TWO), 2, Recipe(crop=9), skip_bad=True)
    with pytest.raises(DataError, match="the crop of 9 x 9"):
        next(source.batches(2))


# --- Folders of images: which files count, their order and labels, the digest, and every refusal


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
    hidden = ["2/.hidden.png", "2/.thumbs/x.png", ".cache/y.png", "2/._a.png", "__MACOSX/z.png"]
    for ignored in [*hidden, "2/notes.txt", "at the top.png"]:
        (root / ignored).parent.mkdir(exist_ok=True)
        (root / ignored).write_text("ignored")
    source = open_images(root, n_classes=11)
    assert names(source) == ("10/a.Jpg", "10/b.png", "2/a/deep/er.PNG", "2/a.bmp", "2/z.png")
    np.testing.assert_array_equal(source.labels, np.array([10, 10, 2, 2, 2]), strict=True)
    assert source.describe() == "image folder calib (5 images of 2 classes)"


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
    source = open_folder(root, Request(inputs=[ANY_SIZE], n_classes=2, data_root=tmp_path))
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


def test_a_folder_with_one_label_for_each_image(tmp_path: Path) -> None:
    source = flat(tmp_path, "a.txt", "cat\ndog\ncat\n")
    assert len(source) == 3
    first = gather(source, 3)["image"][0]
    np.testing.assert_allclose(first, noise(5, 6, seed=0).transpose(2, 0, 1) / 255, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "text", "pattern"),
    [
        ("a.txt", "cat\ndog\n", "2 labels for 3 samples"),
        ("a.csv", "path,label\nx.png,cat\nb.png,dog\n", r"a\.csv: 1 of 2 files are not there"),
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


def test_a_model_without_images_takes_no_folder_however_it_is_ordered(tmp_path: Path) -> None:
    write_folder(tmp_path, ["a.png", "b.png"])
    with pytest.raises(DataError, match="images need a model input of 4 axes"):
        open_images(tmp_path, wanted=spec())


@pytest.mark.parametrize("above", [("train", "val"), ("images",)])
def test_class_folders_further_down(tmp_path: Path, above: tuple[str, ...]) -> None:
    """The parts of a data set are no classes, however many there are."""
    write_folder(tmp_path, [f"{part}/{name}/a.png" for part in above for name in ("cat", "dog")])
    assert f"such as {tmp_path / above[0]}" in refusal(tmp_path)
    assert len(open_images(tmp_path / above[0], 2)) == 2


def test_no_images(tmp_path: Path) -> None:
    for name in ("0", "1"):
        (tmp_path / name).mkdir()
    (tmp_path / "0" / "a.txt").touch()
    message = refusal(tmp_path)
    assert "no images in its 2 class folders" in message
    assert ".png" in message


# --- Manifests: every form of the file, paths that count from it, and every refusal


def opened(folder: Path, name: str, text: str, **options: Any) -> Source:
    write_folder(folder, LISTED)
    (folder / name).write_text(text)
    return open_source(folder / name, [IMAGE], options.pop("n_classes", 2), **options)


def test_a_manifest(tmp_path: Path) -> None:
    text = f"path,label\nc d.png,dog\n{tmp_path / 'b.png'},cat\nsub/a.png,dog\nc d.png,dog\n"
    source = opened(tmp_path, "list.csv", text, class_names=["dog", "cat"])
    assert source.describe() == "manifest list.csv (4 images of 2 classes)"
    np.testing.assert_array_equal(source.labels, [0, 1, 0, 0])
    expected = np.stack([noise(5, 6, seed=seed).transpose(2, 0, 1) for seed in (2, 0, 1, 2)]) / 255
    np.testing.assert_allclose(gather(source, 3)["image"], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("path,label\nx.png,0\nb.png,1\n", r"list\.csv: 1 of 2 files are not there \('x\.png'\)"),
        ("index,label\n1,0\n2,1\n", r"no column holds the paths .* 'index' only"),
        ("logits_0,logits_1,label\n1,0.5,0\n2,0.1,1\n", "computed logits and features are read from Parquet"),
    ],
)
def test_manifests_without_images(tmp_path: Path, text: str, pattern: str) -> None:
    with pytest.raises(DataError, match=pattern):
        opened(tmp_path, "list.csv", text)


def test_a_manifest_takes_no_labels_apart(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="leave --labels out"):
        opened(tmp_path, "list.csv", "b.png,0\nsub/a.png,1\n", labels=[0, 1])


def test_a_missing_image_of_a_manifest_is_bad(tmp_path: Path) -> None:
    write_folder(tmp_path, TWO)
    (tmp_path / "list.csv").write_text("path,label\n0/a.png,0\ngone.png,0\n1/b.png,1\n")
    source = open_source(tmp_path / "list.csv", [ANY_SIZE], 2, skip_bad=True)
    assert len(source) == 2
    assert source.describe().endswith(f"1 unreadable skipped: {tmp_path / 'gone.png'}")
