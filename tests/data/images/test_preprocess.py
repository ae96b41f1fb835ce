"""Recipes: the choices that `resolve` makes or refuses."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.data.samples import spec
from tna_onnx.data import PRESETS, Recipe
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
    with pytest.raises(UsageError, match=f"{word} of axes 1 and 3 .* --layout") as caught:
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
    ((None, 3, 8, 8, 8), "float32", Recipe(), r"4 axes .* shape \(N, 3, 8, 8, 8\)"),
    ((None, 3, 8, 8), "int8", Recipe(), "holds 0 to 255, .* dtype int8"),
    ((None, 3, 8, 8), "bool", Recipe(), "holds 0 to 255, .* dtype bool"),
    ((None, 3, 8, 8), "complex64", Recipe(), "holds 0 to 255, .* dtype complex64"),
    ((None, 4, 8, 8), "float32", Recipe(layout="NCHW"), r"\(N, 4, 8, 8\), read as NCHW, has 4 channels, .* 1 or 3"),
    ((None, 3, 224, 224), "float32", Recipe(layout="NHWC"), "read as NHWC, has 224 channels, .* correct --layout"),
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
    (Recipe(resize=(224, -1)), r"--resize .* got \(224, -1\)"),
    (Recipe(crop=-3), "--crop .* got -3"),
    (Recipe(crop=(0, 224)), r"--crop .* got \(0, 224\)"),
    (Recipe(mean=(0.5, 0.5)), "--mean has 2 values, .* 3 channels"),
    (Recipe(std=(1.0,) * 4), "--std has 4 values, .* 3 channels"),
    (Recipe(mean=()), "--mean has 0 values"),
    (Recipe(std=(1.0, 0.0, 1.0)), r"--std .* above 0, got \(1.0, 0.0, 1.0\)"),
    (Recipe(std=(-1.0,)), "--std .* above 0"),
    (Recipe(std=(math.nan,)), "--std must be finite"),
    (Recipe(mean=(math.inf,)), "--mean must be finite, got"),
    (Recipe(scale=0.0), "--scale .* got 0.0"),
    (Recipe(scale=math.nan), "--scale .* got nan"),
    (Recipe(scale=1e37), "--scale 1e.37"),
    (Recipe(std=(1e-50,)), r"--std .*1e-50"),
    (Recipe(crop_pct=0.0), "--crop-pct must be above 0 and at most 1, got 0.0"),
    (Recipe(crop_pct=1.5), "--crop-pct must be above 0 and at most 1, got 1.5"),
    (Recipe(crop_pct=math.nan), "--crop-pct must be above 0 and at most 1, got nan"),
    (Recipe(crop_pct=0.9, resize=256, crop=224), "--resize and --crop-pct both"),
    (Recipe(crop_pct=0.9), r"--crop-pct needs the side of a square crop, .* \(N, 3, \?, \?\) and --crop is None"),
    (Recipe(crop_pct=0.9, crop=(224, 200)), r"--crop-pct needs the side of a square crop, .* --crop is \(224, 200\)"),
    (Recipe(color="L"), "3 channels, but --color L gives 1"),
    *[(replace(Recipe(), **{key: value}), f"--{key} must be one of .* got '{value}'") for key, value in WRONG.items()],
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


def test_half_precision_overflow() -> None:
    half = spec("image", NCHW.shape, np.float16)
    assert Recipe(scale=256.0).resolve(half).scale == 256  # 255 * 256 = 65280; float16 ends at 65504
    with pytest.raises(UsageError, match=r"'image' \(float16\) cannot hold"):
        Recipe(scale=257.0).resolve(half)
