"""Image files of many kinds become upright 8-bit images; broken ones are refused by name."""

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.samples import noise
from tna_onnx.data.images.decode import read_image, require_pillow
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


@pytest.mark.parametrize("suffix", ["jpg", "png", "gif", "bmp", "tif", "ppm", "webp"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.7])
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
        require_pillow()
