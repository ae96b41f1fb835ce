"""Images in files: decoding in threads, batches, and files that cannot be read."""

import threading
from pathlib import Path

import numpy as np
import pytest

from tests.data.samples import TWO, gather, noise, open_images, write_folder, write_image
from tna_onnx.data import Recipe
from tna_onnx.errors import DataError

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
    with pytest.raises(DataError, match=r"1/b\.png: cannot be read as an image"):
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
        f"image folder {tmp_path.name} (5 images, 2 classes), 3 unreadable skipped: "
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


def test_an_image_that_does_not_fit_is_not_skipped(tmp_path: Path) -> None:
    """It can be read: the preprocessing is wrong, not the file."""
    source = open_images(write_folder(tmp_path, TWO), 2, Recipe(crop=9), skip_bad=True)
    with pytest.raises(DataError, match="the crop of 9 x 9"):
        next(source.batches(2))
