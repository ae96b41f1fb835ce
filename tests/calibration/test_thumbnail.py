"""Small pictures of samples hold the pixels that the samples were made of."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest

from tna_onnx.calibration.thumbnail import png, thumbnails
from tna_onnx.data.source import Source


def test_png_holds_the_pixels() -> None:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(2)
    for shape in ((5, 7), (5, 7, 3)):
        pixels = rng.integers(0, 256, shape).astype(np.uint8)
        head, data = png(pixels).split(",")
        assert head == "data:image/png;base64"
        with image.open(io.BytesIO(base64.b64decode(data))) as opened:
            np.testing.assert_array_equal(np.asarray(opened), pixels)


class Pictures:
    """A source of a few arrays, with a recipe."""

    def __init__(self, values: np.ndarray, recipe: dict[str, object] | None) -> None:
        self._values, self._recipe = values, recipe

    def recipe(self) -> dict[str, object] | None:
        return self._recipe

    def batches(self, size: int, rows: np.ndarray) -> list[dict[str, np.ndarray]]:
        return [{"x": self._values[rows]}]


def pixels_of(source: object, rows: list[int]) -> np.ndarray:
    image = pytest.importorskip("PIL.Image")
    found = thumbnails(source, np.array(rows))  # type: ignore[arg-type]
    opened = [image.open(io.BytesIO(base64.b64decode(found[row].split(",")[1]))) for row in rows]
    return np.stack([np.asarray(one) for one in opened])


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("color", ["RGB", "BGR"])
def test_thumbnails_undo_the_recipe(layout: str, color: str) -> None:
    rng = np.random.default_rng(3)
    pixels = rng.integers(0, 256, (4, 8, 9, 3)).astype(np.uint8)
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    values = pixels if color == "RGB" else pixels[..., ::-1]
    values = ((values / 255 - mean) / std).astype(np.float32)
    recipe = {"layout": layout, "color": color, "mean": mean, "std": std, "scale": 1 / 255}
    source = Pictures(values if layout == "NHWC" else np.moveaxis(values, -1, 1), recipe)
    np.testing.assert_array_equal(pixels_of(source, [1, 3]), pixels[[1, 3]])


def test_thumbnails_without_a_recipe() -> None:
    grey = np.linspace(-1, 1, 2 * 64).reshape(2, 1, 8, 8).astype(np.float32)
    found = pixels_of(Pictures(grey, None), [0, 1])
    assert (found.min(), found.max()) == (0, 255)
    stored = np.full((1, 3, 8, 8), 7, np.uint8)
    assert np.unique(pixels_of(Pictures(stored, None), [0])).tolist() == [7]
    large = np.zeros((1, 3, 200, 300), np.uint8)
    assert pixels_of(Pictures(large, None), [0]).shape == (1, 50, 75, 3)  # blocks of four, 96 at most


@pytest.mark.parametrize("shape", [(3, 8), (3, 16, 8, 8), (3, 1, 2, 2), (3, 4, 3)])
def test_what_is_no_picture_has_none(shape: tuple[int, ...]) -> None:
    source: Source = Pictures(np.zeros(shape, np.float32), None)  # type: ignore[assignment]
    assert thumbnails(source, np.array([0])) == {}
