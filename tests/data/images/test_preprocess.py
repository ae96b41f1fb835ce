"""Recipes: the choices that `resolve` makes or refuses."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.data.samples import noise, open_source, spec, write_folder
from tna_onnx.data.images.known_recipes import preprocessing_notes
from tna_onnx.data.images.preprocess import PRESETS, Recipe
from tna_onnx.data.source import InputSpec
from tna_onnx.errors import DataError, UsageError

NCHW = spec("image", (None, 3, None, None))


@pytest.mark.parametrize(
    ("shape", "layout", "color"),
    [
        ((None, 3, 224, 224), "NCHW", "RGB"),
        ((1, 1, 28, 28), "NCHW", "L"),
        ((None, 224, 224, 3), "NHWC", "RGB"),
        ((None, None, None, 1), "NHWC", "L"),
        ((3, 3, 3, 5), "NCHW", "RGB"),
    ],
)
def test_layout_and_color_follow_from_the_shape(shape: tuple[int | None, ...], layout: str, color: str) -> None:
    resolved = Recipe().resolve(spec("image", shape))
    assert (resolved.layout, resolved.color) == (layout, color)
    assert (resolved.height, resolved.width) == (shape[2:] if layout == "NCHW" else shape[1:3])


@pytest.mark.parametrize(
    ("shape", "word"), [((None, 3, 32, 3), "both"), ((None, 1, 28, 1), "both"), ((None, None, None, None), "neither")]
)
def test_an_ambiguous_layout_has_to_be_given(shape: tuple[int | None, ...], word: str) -> None:
    with pytest.raises(UsageError, match=f"{word} of axes 1 and 3 .*Recipe") as caught:
        Recipe().resolve(spec("image", shape))
    assert "'image'" in str(caught.value)
    assert Recipe(layout="NHWC", color="L" if shape[3] == 1 else "RGB").resolve(spec("image", shape)).layout == "NHWC"


def test_an_open_number_of_channels_has_to_be_given() -> None:
    wanted = spec("image", (None, None, 8, 8))
    with pytest.raises(UsageError, match=r"number of channels open; .* --color"):
        Recipe(layout="NCHW").resolve(wanted)
    assert Recipe(layout="NCHW", color="BGR").resolve(wanted).color == "BGR"


DATA_ERRORS = [
    ((None, 784), "float32", Recipe(), r"4 axes .* shape \(N, 784\)"),
    ((None, 3, 8, 8), "int8", Recipe(), "holds 0 to 255, .* dtype int8"),
    ((None, 4, 8, 8), "float32", Recipe(layout="NCHW"), r"\(N, 4, 8, 8\), read as NCHW, has 4 channels, .* 1 or 3"),
    ((None, 3, 224, 224), "float32", Recipe(layout="NHWC"), "read as NHWC, has 224 channels, .*npz"),
]


@pytest.mark.parametrize(("shape", "dtype", "recipe", "pattern"), DATA_ERRORS)
def test_inputs_that_do_not_take_images(
    shape: tuple[int | None, ...], dtype: str, recipe: Recipe, pattern: str
) -> None:
    with pytest.raises(DataError, match=pattern) as caught:
        recipe.resolve(spec("image", shape, dtype))
    assert "'image'" in str(caught.value)


WRONG: dict[str, Any] = {"layout": "CHW", "color": "RGBA", "interpolation": "box"}
USAGE_ERRORS = [
    (Recipe(resize=0), "--resize .* got 0"),
    (Recipe(crop=-3), "--crop .* got -3"),
    (Recipe(mean=(0.5, 0.5)), "--mean has 2 values, .* 3 channels"),
    (Recipe(std=(1.0, 0.0, 1.0)), r"--std .* above 0, got \(1.0, 0.0, 1.0\)"),
    (Recipe(std=(math.nan,)), "--std must be finite"),
    (Recipe(mean=(math.inf,)), "--mean must be finite, got"),
    (Recipe(scale=0.0), "--scale .* got 0.0"),
    (Recipe(std=(1e-50,)), r"--std .*1e-50"),
    (Recipe(crop_pct=0.0), "crop_pct must be above 0 and at most 1, got 0.0"),
    (Recipe(crop_pct=math.nan), "crop_pct must be above 0 and at most 1, got nan"),
    (Recipe(crop_pct=0.9, resize=256, crop=224), "resize and crop_pct both"),
    (Recipe(crop_pct=0.9), r"crop_pct needs the side of a square crop, .* \(N, 3, \?, \?\) and --crop is None"),
    (Recipe(crop_pct=0.9, crop=(224, 200)), r"crop_pct needs the side of a square crop, .* --crop is \(224, 200\)"),
    (Recipe(color="L"), "3 channels, but --color L gives 1"),
    *[(replace(Recipe(), **{key: value}), f"{key} must be one of .* got '{value}'") for key, value in WRONG.items()],
]


@pytest.mark.parametrize(("recipe", "pattern"), USAGE_ERRORS)
def test_recipes_that_cannot_be_used(recipe: Recipe, pattern: str) -> None:
    with pytest.raises(UsageError, match=pattern):
        recipe.resolve(NCHW)


@pytest.mark.parametrize(
    ("side", "share", "resize"), [(224, 0.875, 256), (224, 0.9, 248), (299, 0.875, 341), (32, 1.0, 32)]
)
def test_crop_pct(side: int, share: float, resize: int) -> None:
    """The resized sides are timm's, floor(side / crop_pct)."""
    by_model = Recipe(crop_pct=share).resolve(spec("image", (None, 3, side, side)))
    assert (by_model.resize, by_model.crop) == (resize, (side, side))
    assert by_model == Recipe(resize=resize, crop=side).resolve(spec("image", (None, 3, side, side)))
    by_crop = Recipe(crop_pct=share, crop=side).resolve(NCHW)
    assert (by_crop.resize, by_crop.crop) == (resize, (side, side))


def test_resize_and_crop_pct_displace_each_other() -> None:
    assert PRESETS["clip"].override(resize=256) == replace(PRESETS["clip"], resize=256, crop_pct=None)
    assert PRESETS["imagenet"].override(crop_pct=0.9) == replace(PRESETS["imagenet"], resize=None, crop_pct=0.9)
    assert PRESETS["clip"].override(mean=(0.0,)) == replace(PRESETS["clip"], mean=(0.0,))


@pytest.mark.parametrize("recipe", [Recipe(mean=(0.5,)), Recipe(std=(2.0,)), Recipe(scale=1 / 255)])
def test_integer_inputs_are_not_normalised(recipe: Recipe) -> None:
    with pytest.raises(UsageError, match="'image' takes uint8 pixels as they are"):
        recipe.resolve(spec("image", NCHW.shape, np.uint8))


# --- Pixels of model inputs against a direct computation


GREY = spec("image", (None, 1, None, None))


def apply(recipe: Recipe, pixels: npt.NDArray[np.uint8], wanted: InputSpec = NCHW) -> npt.NDArray[Any]:
    return recipe.resolve(wanted)(Image.fromarray(pixels))


def test_standardisation_of_each_image_against_its_definition() -> None:
    """As TensorFlow's per_image_standardization of pixels of 0 to 1; flat images have no deviation to divide by."""
    for pixels in (noise(20, 31), np.full((4, 4, 3), 7, np.uint8)):
        x = (pixels / 255.0).transpose(2, 0, 1)
        expected = (x - x.mean()) / max(x.std(), 1 / np.sqrt(x.size))
        found = apply(PRESETS["per-image"], pixels)
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)
        batch = PRESETS["per-image"].resolve(NCHW).values(np.stack([pixels, 255 - pixels]).transpose(0, 3, 1, 2))
        np.testing.assert_array_equal(batch[0], found)
    with pytest.raises(UsageError, match="contradict"):
        PRESETS["per-image"].override(mean=(0.5,)).resolve(NCHW)


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


@given(side=st.integers(1, 20), height=st.integers(1, 30), width=st.integers(1, 30))
def test_the_shorter_side_is_exact_and_the_longer_rounded_down(side: int, height: int, width: int) -> None:
    short = min(height, width)
    found = apply(Recipe(resize=side), noise(height, width))
    assert found.shape == (3, side * height // short, side * width // short)


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


# --- What is said about preprocessing, in each command that reads images


IMAGE = spec("image", (None, 3, 16, 16))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "calib", ["0/a.png", "1/b.png"], 16, 16)


def said(folder: Path, recipe: Recipe | None, inputs: Any = IMAGE) -> list[str]:
    source = open_source(folder, [inputs], 2, recipe)
    notes = preprocessing_notes(source, [inputs], recipe)
    assert notes[0].startswith("preprocessing: ")
    return notes[1:]


@pytest.mark.parametrize("recipe", [None, Recipe(), Recipe(resize=(16, 16))])
def test_nobody_has_said_how_images_are_normalised(folder: Path, recipe: Recipe | None) -> None:
    [warning] = said(folder, recipe)
    assert warning.startswith("WARNING: nothing says how the model's images are normalised")


@pytest.mark.parametrize(
    "recipe", [Recipe(scale=1 / 255), Recipe(scale=1.0), Recipe(mean=(0.5,)), Recipe(std=(0.2,)), PRESETS["cifar10"]]
)
def test_it_was_said(folder: Path, recipe: Recipe) -> None:
    assert said(folder, recipe) == []


def test_an_integer_input_takes_pixels_as_they_are(folder: Path) -> None:
    assert said(folder, None, spec("image", (None, 16, 16, 3), np.uint8)) == []


def test_mean_and_std_in_other_units_than_the_scale(folder: Path) -> None:
    [warning] = said(folder, Recipe(scale=1.0, mean=(0.5,), std=(0.2,)))
    assert "takes pixels to -2.5 to 1272, which no usual recipe does" in warning


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.random.default_rng(0).standard_normal((4, 3, 16, 16)), ""),
        (np.random.default_rng(0).random((4, 3, 16, 16)) * 65025, "WARNING: 'image' has values from"),
        (np.random.default_rng(0).integers(0, 256, (4, 3, 16, 16)), "'image' holds whole numbers from 0 to 255"),
        (np.zeros((4, 3, 16, 16)), ""),
    ],
)
def test_stored_images(values: Any, expected: str) -> None:
    source = open_source({"image": values.astype(np.float32), "labels": np.arange(4) % 2}, [IMAGE], 2)
    notes = preprocessing_notes(source, [IMAGE], None)
    assert [note[: len(expected)] for note in notes] == ([expected] if expected else [])


def test_arrays_that_are_no_images() -> None:
    table = spec("x", (None, 4))
    source = open_source({"x": np.full((4, 4), 1e6, np.float32), "labels": np.arange(4) % 2}, [table], 2)
    assert preprocessing_notes(source, [table], None) == []


def test_one_number_stands_for_all_channels() -> None:
    spec = InputSpec("x", (None, 3, 8, 8), np.dtype(np.float32))
    one, three = Recipe(mean=0.6, std=[0.3]), Recipe(mean=(0.6, 0.6, 0.6), std=(0.3, 0.3, 0.3))  # type: ignore[arg-type]
    assert one.resolve(spec) == three.resolve(spec)
