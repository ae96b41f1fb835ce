"""Image files of many kinds become upright 8-bit images; broken ones are refused by name."""

import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.data.samples import noise
from tna_onnx.data.images.decode import image_of, load_pillow, read_ahead, read_image
from tna_onnx.errors import DataError, UsageError

ORIENTATION = 0x0112  # the EXIF tag


def read(path: Path) -> np.ndarray:
    return np.asarray(read_image(path))


@pytest.mark.parametrize("suffix", ["png", "bmp", "ppm", "tif"])
@pytest.mark.parametrize("channels", [1, 3])
def test_lossless_formats(tmp_path: Path, suffix: str, channels: int) -> None:
    suffix = "pgm" if suffix == "ppm" and channels == 1 else suffix
    pixels = noise(5, 7, channels)
    Image.fromarray(pixels).save(tmp_path / f"a.{suffix}")
    image = read_image(tmp_path / f"a.{suffix}")
    assert image.mode == ("L" if channels == 1 else "RGB")
    np.testing.assert_array_equal(np.asarray(image), pixels)


@pytest.mark.parametrize("mode", ["RGB", "L", "I;16"])
def test_orientation_is_applied(tmp_path: Path, mode: str) -> None:
    image = Image.fromarray(noise(5, 7, channels=1).astype(np.uint16) << 8) if mode == "I;16" else None
    image = image or Image.fromarray(noise(5, 7)).convert(mode)
    upright = np.asarray(image) >> 8 if mode == "I;16" else np.asarray(image)
    exif = Image.Exif()
    exif[ORIENTATION] = 6  # stored lying on its left side: turn clockwise to view
    image.save(tmp_path / "a.png", exif=exif)
    np.testing.assert_array_equal(read(tmp_path / "a.png"), np.rot90(upright, -1))
    with Image.open(tmp_path / "a.png") as opened:  # as a data engine hands it over
        np.testing.assert_array_equal(np.asarray(image_of(opened, "a")), np.rot90(upright, -1))
        assert opened.size == image.size


def test_alpha_is_dropped(tmp_path: Path) -> None:
    pixels = noise(5, 7, 4)
    Image.fromarray(pixels).save(tmp_path / "rgba.png")
    np.testing.assert_array_equal(read(tmp_path / "rgba.png"), pixels[..., :3])
    Image.fromarray(noise(5, 7, 2)).save(tmp_path / "la.png")
    np.testing.assert_array_equal(read(tmp_path / "la.png"), noise(5, 7, 2)[..., 0])


@pytest.mark.parametrize("transparency", [None, 3, bytes(range(0, 250, 10))])
def test_palette(tmp_path: Path, transparency: int | bytes | None) -> None:
    """A palette with several transparent colours makes Pillow warn, and warnings are errors here."""
    palette = noise(1, 256)[0]
    indices = noise(5, 7, channels=1)
    image = Image.fromarray(indices)
    image.putpalette(palette.tobytes())
    image.save(tmp_path / "a.png", **({} if transparency is None else {"transparency": transparency}))
    np.testing.assert_array_equal(read(tmp_path / "a.png"), palette[indices])


def test_cmyk(tmp_path: Path) -> None:
    Image.new("CMYK", (4, 3), (255, 0, 0, 0)).save(tmp_path / "a.tif")
    np.testing.assert_array_equal(read(tmp_path / "a.tif"), np.full((3, 4, 3), [0, 255, 255]))


def test_jpeg_in_cmyk(tmp_path: Path) -> None:
    """Stored inverted, as Adobe's programs do; Pillow undoes that."""
    Image.new("CMYK", (16, 16), (255, 0, 0, 0)).save(tmp_path / "a.jpg", quality=95)
    np.testing.assert_allclose(read(tmp_path / "a.jpg"), np.full((16, 16, 3), [0, 255, 255]), rtol=0, atol=3)


@pytest.mark.parametrize("suffix", ["png", "tif", "pgm"])
def test_sixteen_bit_grey_keeps_its_upper_bits(tmp_path: Path, suffix: str) -> None:
    values = np.array([[0, 255, 256, 0x7FFF, 0x8000, 65535]], np.uint16)
    path = tmp_path / f"a.{suffix}"
    if suffix == "pgm":  # not every Pillow can write this one
        path.write_bytes(b"P5 6 1 65535\n" + values.astype(">u2").tobytes())
    else:
        Image.fromarray(values).save(path)
    image = read_image(path)
    assert image.mode == "L"
    np.testing.assert_array_equal(np.asarray(image), [[0, 0, 1, 0x7F, 0x80, 255]])


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_pixels_without_a_known_range(tmp_path: Path, dtype: type) -> None:
    Image.fromarray(np.ones((3, 4), dtype)).save(tmp_path / "a.tif")
    with pytest.raises(DataError, match=r"a\.tif: expected 8 or 16 bits .* mode '[FI]'"):
        read_image(tmp_path / "a.tif")


def test_first_frame_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.new("L", (4, 3), value) for value in (10, 200)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(np.asarray(read_image(tmp_path / "a.gif").convert("L")), np.full((3, 4), 10))


@pytest.mark.parametrize(
    ("suffix", "share"),
    [("jpg", 0.7), ("png", 0.1), ("gif", 0.1), ("bmp", 0.7), ("tif", 0.7), ("ppm", 0.0), ("webp", 0.7)],
)
def test_truncated_files(tmp_path: Path, suffix: str, share: float) -> None:
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(noise(40, 40)).save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(DataError, match=rf"a\.{suffix}: cannot be read as an image"):
        read_image(path)


def test_other_files(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("not an image")
    with pytest.raises(DataError, match=r"a\.png: cannot be read as an image"):
        read_image(tmp_path / "a.png")
    with pytest.raises(DataError, match=r"gone\.png: cannot be read as an image"):
        read_image(tmp_path / "gone.png")


def test_missing_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "PIL.Image", raising=False)
    with pytest.raises(UsageError, match=r"pip install 'tna-onnx\[images\]'"):
        load_pillow()


# ---- Reading ahead: order, bounds, failures, and no thread left behind


def both(group: Sequence[int], parts: list[int]) -> tuple[list[int], list[int]]:
    return list(group), parts


def running() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("tna-onnx-read")]


@given(st.lists(st.lists(st.integers(), max_size=5), max_size=12), st.integers(1, 5))
def test_order_is_kept(groups: list[list[int]], workers: int) -> None:
    def load(item: int) -> int:
        time.sleep(item % 3 / 2000)  # later items finish before earlier ones
        return -item

    found = list(read_ahead(groups, load, both, workers))
    assert found == [(group, [-item for item in group]) for group in groups]
    assert not running()


@pytest.mark.parametrize(("size", "workers", "ahead"), [(4, 2, 1), (64, 2, 1), (1, 2, 4), (2, 3, 3)])
def test_groups_ahead_are_bounded(size: int, workers: int, ahead: int) -> None:
    """One group ahead, and at least two items for each thread."""
    groups = iter([[number] * size for number in range(40)])
    results = read_ahead(groups, abs, both, workers)
    for number in range(3):
        assert next(results)[0][0] == number
    assert next(groups)[0] == 3 + ahead
    results.close()


@pytest.mark.parametrize(
    "groups",
    [
        pytest.param([[0], *([item] for item in range(1, 40))], id="items"),
        # a quarter of what falls to a thread: 125 items
        pytest.param([[0], range(1000, 2000), range(2000, 3000)], id="runs of items"),
    ],
)
def test_what_nobody_reads_is_not_loaded(groups: list[Sequence[int]]) -> None:
    gate, started = threading.Event(), []

    def load(item: int) -> int:
        started.append(item)
        assert item == 0 or gate.wait(timeout=60)
        return item

    results = read_ahead(groups, load, both, workers=2)
    next(results)
    threading.Timer(0.05, gate.set).start()
    results.close()
    assert len(started) <= 1 + 2, "item 0, and the item that each of two threads had begun"
    assert not running()


@pytest.mark.parametrize("workers", [1, 4])
def test_the_first_failure_of_a_group_is_raised_in_its_turn(workers: int) -> None:
    def load(item: int) -> int:
        if item >= 5:
            raise ValueError(str(item))
        return item

    results = read_ahead([[0, 1], [2, 3], [4, 5, 6]], load, both, workers)
    assert [group for group, _ in (next(results), next(results))] == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="5"):
        next(results)
    assert not running()


def test_a_failure_to_join_is_raised() -> None:
    def join(group: Sequence[int], parts: list[int]) -> None:
        raise ValueError(f"{group}")

    with pytest.raises(ValueError, match=r"\[1, 2\]"):
        next(read_ahead([[1, 2]], abs, join))
