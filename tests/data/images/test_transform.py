"""Pixels of model inputs against a direct computation."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.data.samples import noise, spec
from tna_onnx.data import PRESETS, InputSpec, Recipe
from tna_onnx.errors import DataError

NCHW = spec("image", (None, 3, None, None))
GREY = spec("image", (None, 1, None, None))


def apply(recipe: Recipe, pixels: npt.NDArray[np.uint8], wanted: InputSpec = NCHW) -> npt.NDArray[Any]:
    return recipe.resolve(wanted)(Image.fromarray(pixels))


def test_imagenet_against_its_definition() -> None:
    pixels = noise(300, 401)
    shorter_side_256 = Image.fromarray(pixels).resize((256 * 401 // 300, 256), Image.Resampling.BILINEAR)
    assert shorter_side_256.size == (342, 256)
    cut = np.asarray(shorter_side_256)[16:240, 59:283] / 255.0
    expected = ((cut - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]).transpose(2, 0, 1)
    found = apply(PRESETS["imagenet"], pixels, spec("image", (None, 3, 224, 224)))
    assert found.dtype == np.float32
    # Three float32 operations on values below 3 against float64: a few units of 2^-23 times 3.
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)


@settings(deadline=None, max_examples=60)
@given(
    pixels=st.tuples(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3])).map(lambda size: noise(*size)),
    scale=st.sampled_from([1.0, 1 / 255, -1 / 127.5]),
    mean=st.floats(-1, 1),
    std=st.floats(0.1, 2),
)
def test_normalisation_against_numpy(pixels: npt.NDArray[np.uint8], scale: float, mean: float, std: float) -> None:
    wanted = GREY if pixels.ndim == 2 else NCHW
    expected = (pixels.astype(np.float64) * scale - mean) / std
    expected = expected[np.newaxis] if pixels.ndim == 2 else expected.transpose(2, 0, 1)
    found = apply(Recipe(scale=scale, mean=(mean,), std=(std,)), pixels, wanted)
    # Each of the constants and operations rounds by at most 2^-24 of 255 (|x * scale| + |mean|) / 0.1 at the most.
    np.testing.assert_allclose(found, expected, rtol=0, atol=8 * 2.0**-24 * (255 * abs(scale) + 1) / std)


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float32"])
def test_layouts_hold_the_same_values(dtype: str) -> None:
    pixels = noise(4, 5)
    first = apply(Recipe(scale=1.0), pixels, spec("image", (None, 3, 4, 5), dtype))
    last = apply(Recipe(scale=1.0), pixels, spec("image", (None, 4, 5, 3), dtype))
    np.testing.assert_array_equal(last, pixels.astype(dtype), strict=True)
    np.testing.assert_array_equal(first, last.transpose(2, 0, 1), strict=True)
    for array in (first, last):
        assert array.flags.c_contiguous
        assert array.flags.writeable


def test_half_precision_rounds_once_at_the_end() -> None:
    pixels = noise(4, 5)
    recipe = Recipe(mean=(0.5,), std=(0.25,))
    half = apply(recipe, pixels, spec("image", NCHW.shape, np.float16))
    np.testing.assert_array_equal(half, apply(recipe, pixels).astype(np.float16), strict=True)


def test_color_and_grey() -> None:
    pixels = noise(4, 5)
    luma = (pixels @ np.array([0.299, 0.587, 0.114]))[np.newaxis]
    found = apply(Recipe(scale=1.0), pixels, GREY)
    assert found.shape == (1, 4, 5)
    np.testing.assert_allclose(found, luma, rtol=0, atol=0.51)  # rounded to an integer, weights to 2^-16

    grey = apply(Recipe(scale=1.0), noise(4, 5, channels=1))
    np.testing.assert_array_equal(grey, np.broadcast_to(noise(4, 5, channels=1), (3, 4, 5)))


@settings(deadline=None)
@given(side=st.integers(1, 20), height=st.integers(1, 30), width=st.integers(1, 30))
def test_the_shorter_side_is_exact_and_the_longer_rounded_down(side: int, height: int, width: int) -> None:
    short = min(height, width)
    found = apply(Recipe(resize=side), noise(height, width))
    assert found.shape == (3, side * height // short, side * width // short)


@settings(deadline=None)
@given(height=st.integers(1, 12), width=st.integers(1, 12), data=st.data())
def test_crop_is_the_centre(height: int, width: int, data: st.DataObject) -> None:
    size = data.draw(st.tuples(st.integers(1, height), st.integers(1, width)))
    pixels = noise(height, width)
    found = apply(Recipe(crop=size, scale=1.0), pixels).transpose(1, 2, 0)
    top, left = round((height - size[0]) / 2), round((width - size[1]) / 2)
    np.testing.assert_array_equal(found, pixels[top : top + size[0], left : left + size[1]])


@pytest.mark.parametrize(
    ("shape", "wanted"), [((None, 3, 9, 7), "9 x 7"), ((None, 3, None, 8), "any x 8"), ((None, 5, None, 3), "5 x any")]
)
def test_size_that_the_model_does_not_take(shape: tuple[int | None, ...], wanted: str) -> None:
    with pytest.raises(DataError, match=f"takes images of {wanted} .* has 9 x 6 after") as caught:
        apply(Recipe(), noise(9, 6), spec("image", shape))
    assert "--resize" in str(caught.value)
    assert "--crop" in str(caught.value)
