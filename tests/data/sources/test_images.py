"""Folders of images: which files count, their order and labels, decoding in threads, and every refusal."""

import hashlib
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.data.samples import gather, noise, spec, write_folder, write_image
from tna_onnx.data import InputSpec, Recipe
from tna_onnx.data.request import Request
from tna_onnx.data.sources.folder import FolderImages, open_folder
from tna_onnx.data.sources.images import ImageSource
from tna_onnx.errors import DataError, UsageError

IMAGE = spec("image", (None, 3, None, None))
TWO = ["0/a.png", "1/b.png"]


def opened(root: Path, n_classes: int = 2, recipe: Recipe | None = None, wanted: InputSpec = IMAGE) -> ImageSource:
    return open_folder(root, Request([wanted], n_classes, recipe))


def names(source: ImageSource) -> tuple[str, ...]:
    assert isinstance(source.files, FolderImages)
    return source.files.names


def refusal(root: Path, n_classes: int = 2) -> str:
    with pytest.raises(DataError) as caught:
        opened(root, n_classes)
    assert str(root) in str(caught.value)
    return str(caught.value)


# ---- which files, in which order ----


def test_files_labels_and_order(tmp_path: Path) -> None:
    files = ["10/b.png", "2/z.png", "2/a/deep/er.PNG", "2/a.bmp", "10/a.Jpg"]
    root = write_folder(tmp_path / "calib", files)
    for ignored in ["2/notes.txt", "2/.hidden.png", "2/.thumbs/x.png", ".cache/y.png", "at the top.png", "2/._a.png"]:
        (root / ignored).parent.mkdir(exist_ok=True)
        (root / ignored).write_text("ignored")
    source = opened(root, n_classes=11)
    assert names(source) == ("10/a.Jpg", "10/b.png", "2/a/deep/er.PNG", "2/a.bmp", "2/z.png")
    np.testing.assert_array_equal(source.labels, np.array([10, 10, 2, 2, 2]), strict=True)
    assert source.describe() == "image folder calib (5 images, 2 classes)"


def test_named_classes_are_numbered_alphabetically(tmp_path: Path) -> None:
    source = opened(write_folder(tmp_path, ["dog/1.png", "cat/2.png"]))
    assert names(source) == ("cat/2.png", "dog/1.png")
    np.testing.assert_array_equal(source.labels, [0, 1])


def test_an_empty_class_folder_is_a_class(tmp_path: Path) -> None:
    write_folder(tmp_path, ["ant/1.png", "cat/2.png"])
    (tmp_path / "bee").mkdir()
    np.testing.assert_array_equal(opened(tmp_path, 3).labels, [0, 2])


def test_links_to_folders_count_as_classes_and_not_below(tmp_path: Path) -> None:
    write_folder(tmp_path / "elsewhere", ["x.png", "y.png"])
    root = write_folder(tmp_path / "calib", ["0/a.png"])
    (root / "1").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (root / "0" / "circle").symlink_to(root, target_is_directory=True)
    assert names(opened(root)) == ("0/a.png", "1/x.png", "1/y.png")


def test_the_current_folder_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_folder(tmp_path / "calib", TWO))
    assert opened(Path()).describe() == "image folder calib (2 images, 2 classes)"


# ---- refusals on opening ----


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


def test_number_of_class_folders(tmp_path: Path) -> None:
    message = refusal(write_folder(tmp_path, ["cat/a.png", "dog/b.png"]), n_classes=5)
    assert "2 class folders for a model with 5 classes" in message


def test_class_folder_outside_the_range(tmp_path: Path) -> None:
    assert "0 to 1" in refusal(write_folder(tmp_path, ["0/a.png", "7/b.png"]))


def test_one_class_only(tmp_path: Path) -> None:
    write_folder(tmp_path, ["0/a.png", "0/b.png"])
    (tmp_path / "1").mkdir()
    assert "every label is 0" in refusal(tmp_path)


def test_a_folder_that_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path, TWO)

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert "cannot be listed (Permission denied)" in refusal(tmp_path)


def test_the_recipe_is_resolved_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--crop"):
        opened(tmp_path / "none", recipe=Recipe(crop=0))


def test_missing_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "PIL.Image", raising=False)
    with pytest.raises(UsageError, match=r"pip install 'tna-onnx\[images\]'"):
        opened(write_folder(tmp_path, []))


# ---- reading ----


def test_batches_hold_the_files_pixels(tmp_path: Path) -> None:
    source = opened(write_folder(tmp_path, [*TWO, "1/c.png"]), recipe=Recipe(scale=1.0, mean=(3.0,)))
    expected = np.stack([noise(5, 6, seed=seed).transpose(2, 0, 1) for seed in range(3)]).astype(np.float32) - 3
    np.testing.assert_array_equal(gather(source, 2)["image"], expected, strict=True)
    assert source.recipe()["mean"] == [3.0, 3.0, 3.0]


def test_many_more_images_than_threads(tmp_path: Path) -> None:
    files = [f"{row % 2}/{row:03}.png" for row in range(100)]
    source = opened(write_folder(tmp_path, files, 2, 3), recipe=Recipe(scale=1.0))
    order = [int(Path(name).stem) for name in names(source)]
    expected = np.stack([noise(2, 3, seed=seed).transpose(2, 0, 1) for seed in order])
    np.testing.assert_array_equal(gather(source, 7)["image"], expected)


def test_threads_end_with_the_reader(tmp_path: Path) -> None:
    batches = opened(write_folder(tmp_path, [f"{row % 2}/{row:02}.png" for row in range(40)])).batches(3)
    next(batches)
    assert [thread for thread in threading.enumerate() if thread.name.startswith("tna-onnx-read")]
    del batches
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tna-onnx-read")]


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    write_folder(tmp_path, [*TWO, "1/c.png"])
    broken = tmp_path / "1" / "b.png"
    broken.write_bytes(broken.read_bytes()[:60])
    with pytest.raises(DataError, match=r"1/b\.png: cannot be read as an image"):
        list(opened(tmp_path).batches(3))


def test_an_image_that_does_not_fit_the_model_is_named(tmp_path: Path) -> None:
    source = opened(write_folder(tmp_path, TWO), wanted=spec("image", (None, 3, 4, 4)))
    with pytest.raises(DataError, match=r"0/a\.png: the model takes images of 4 x 4 .* has 5 x 6"):
        list(source.batches(1))
    source = opened(tmp_path, recipe=Recipe(crop=6))
    with pytest.raises(DataError, match=r"0/a\.png: the crop of 6 x 6 .* has 5 x 6"):
        list(source.batches(1))


def test_different_sizes_in_a_batch(tmp_path: Path) -> None:
    write_folder(tmp_path, TWO)
    write_image(tmp_path / "1" / "c.png", noise(8, 6))
    with pytest.raises(DataError, match=r"1/c\.png: has shape \(3, 8, 6\) .* .*0/a\.png in .* \(3, 5, 6\)") as caught:
        list(opened(tmp_path).batches(3))
    assert "--resize" in str(caught.value)
    assert [batch["image"].shape[2] for batch in opened(tmp_path).batches(1)] == [5, 5, 8]


# ---- digest ----


def test_digest_against_its_definition(tmp_path: Path) -> None:
    source = opened(write_folder(tmp_path, ["0/ä.png", "1/b.png"]))
    expected = hashlib.sha256()
    for name, label in [("0/ä.png", 0), ("1/b.png", 1)]:
        encoded = name.encode()
        expected.update(len(encoded).to_bytes(8, "big") + encoded + label.to_bytes(8, "big"))
        expected.update(hashlib.sha256((tmp_path / name).read_bytes()).digest())
    assert source.digest() == expected.hexdigest()


def test_digest_follows_names_and_labels(tmp_path: Path) -> None:
    root = write_folder(tmp_path, ["0/a.png", "1/b.png", "1/c.png"])
    digests = [opened(root).digest()]
    (root / "0" / "a.png").rename(root / "0" / "aa.png")
    digests.append(opened(root).digest())
    (root / "1" / "c.png").rename(root / "0" / "c.png")
    digests.append(opened(root).digest())
    (root / "0" / "notes.txt").touch()
    assert opened(root).digest() == digests[-1]
    assert len(set(digests)) == 3


def test_digest_of_a_file_that_is_gone(tmp_path: Path) -> None:
    source = opened(write_folder(tmp_path, TWO))
    (tmp_path / "1" / "b.png").unlink()
    with pytest.raises(DataError, match=r"1/b\.png: cannot be read"):
        source.digest()


# ---- images that cannot be read ----


def test_bad_images_are_skipped_and_counted(tmp_path: Path) -> None:
    files = [f"{row % 2}/{row}.png" for row in range(8)]
    write_folder(tmp_path, files)
    for name in ("0/2.png", "1/5.png"):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:60])
    (tmp_path / "1" / "7.png").write_text("")
    source = open_folder(tmp_path, Request([IMAGE], 2, Recipe(scale=1.0), skip_bad=True))
    np.testing.assert_array_equal(source.labels, [0, 0, 0, 1, 1])
    expected = np.stack([noise(5, 6, seed=seed).transpose(2, 0, 1) for seed in (0, 4, 6, 1, 3)])
    np.testing.assert_array_equal(gather(source, 2)["image"], expected)
    np.testing.assert_array_equal(gather(source, 2, np.array([4, 1]))["image"], expected[[4, 1]])
    assert source.describe() == (
        f"image folder {tmp_path.name} (5 images, 2 classes), 3 unreadable skipped: "
        f"{tmp_path / '0/2.png'}, {tmp_path / '1/5.png'}, {tmp_path / '1/7.png'}"
    )
    for name in source.skipped:
        Path(name).unlink()
    assert opened(tmp_path).digest() == source.digest(), "what is skipped does not count"


def test_many_skipped_images_are_not_all_named(tmp_path: Path) -> None:
    write_folder(tmp_path, TWO)
    for row in range(200):
        (tmp_path / "0" / f"bad{row:03}.png").touch()
    source = open_folder(tmp_path, Request([IMAGE], 2, skip_bad=True))
    assert source.describe().endswith("bad002.png and 197 more")


def test_skipping_needs_something_that_is_good(tmp_path: Path) -> None:
    write_folder(tmp_path, TWO)
    (tmp_path / "0" / "a.png").write_text("")
    with pytest.raises(DataError, match="every label is 1"):
        open_folder(tmp_path, Request([IMAGE], 2, skip_bad=True))
    (tmp_path / "1" / "b.png").write_text("")
    with pytest.raises(DataError, match=r"none of 2 images can be read, .*0/a\.png first"):
        open_folder(tmp_path, Request([IMAGE], 2, skip_bad=True))


def test_an_image_that_does_not_fit_is_not_skipped(tmp_path: Path) -> None:
    """It can be read: the preprocessing is wrong, not the file."""
    source = open_folder(write_folder(tmp_path, TWO), Request([IMAGE], 2, Recipe(crop=9), skip_bad=True))
    with pytest.raises(DataError, match="the crop of 9 x 9"):
        next(source.batches(2))


def test_a_missing_image_of_a_manifest_is_bad(tmp_path: Path) -> None:
    from tna_onnx.data import open_source

    write_folder(tmp_path, TWO)
    (tmp_path / "list.csv").write_text("path,label\n0/a.png,0\ngone.png,0\n1/b.png,1\n")
    source = open_source(tmp_path / "list.csv", [IMAGE], 2, skip_bad=True)
    assert len(source) == 2
    assert source.describe().endswith(f"1 unreadable skipped: {tmp_path / 'gone.png'}")
