"""Preprocessing read from timm's and Hugging Face's files: values, refusals, and pixels against those libraries."""

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from tests.data.samples import noise, spec
from tna_onnx.data.images.preprocess import Recipe
from tna_onnx.data.images.recipe_files import read_recipe
from tna_onnx.errors import DataError, UsageError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALF = (0.5, 0.5, 0.5)

TIMM = {
    "architecture": "vit_tiny_patch16_224",
    "num_classes": 1000,
    "pretrained_cfg": {
        "tag": "augreg",
        "input_size": [3, 224, 224],
        "interpolation": "bicubic",
        "crop_pct": 0.9,
        "crop_mode": "center",
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
        "first_conv": "patch_embed.proj",
    },
}
VIT = {
    "do_normalize": True,
    "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "resample": 2,
    "size": 224,
    "feature_extractor_type": "ViTFeatureExtractor",
}
SHARED = {
    "do_resize": True,
    "size": {"shortest_edge": 224},
    "resample": 3,
    "do_rescale": True,
    "rescale_factor": 0.00392156862745098,
    "do_normalize": True,
    "image_mean": list(MEAN),
    "image_std": list(STD),
}
CROPPED = {"do_center_crop": True, "crop_size": {"height": 224, "width": 224}}
CLIP = {"image_processor_type": "CLIPImageProcessor", "do_convert_rgb": True, **SHARED, **CROPPED}
CONVNEXT = {"image_processor_type": "ConvNextImageProcessor", "crop_pct": 0.875, **SHARED}
MOBILEVIT = {
    "image_processor_type": "MobileViTImageProcessor",
    "do_resize": True,
    "size": {"shortest_edge": 288},
    "resample": 2,
    "do_center_crop": True,
    "crop_size": {"height": 256, "width": 256},
    "do_rescale": True,
    "rescale_factor": 0.00392156862745098,
    "do_flip_channel_order": True,
}


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


def read(folder: Path, config: object) -> Recipe:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return read_recipe(path)


def timm(**changes: Any) -> dict[str, Any]:
    return {**TIMM, "pretrained_cfg": TIMM["pretrained_cfg"] | changes}  # type: ignore[operator]


HALVES: dict[str, Any] = {"mean": HALF, "std": HALF, "scale": 1 / 255}
PLAIN: dict[str, Any] = {"mean": MEAN, "std": STD, "scale": 1 / 255}
READ = {
    "timm": (TIMM, Recipe(crop_pct=0.9, crop=(224, 224), interpolation="bicubic", **HALVES)),
    "timm at the top": (
        TIMM["pretrained_cfg"],
        Recipe(crop_pct=0.9, crop=(224, 224), interpolation="bicubic", **HALVES),
    ),
    "timm defaults": (
        {"input_size": [3, 96, 96], "crop_pct": None},
        Recipe(crop_pct=0.875, crop=(96, 96), interpolation="bicubic", **PLAIN),
    ),
    "timm squash": (
        timm(crop_mode="squash", crop_pct=1.0, input_size=[3, 224, 192]),
        Recipe(resize=(224, 192), crop=(224, 192), interpolation="bicubic", **HALVES),
    ),
    "ViT": (VIT, Recipe(resize=(224, 224), color="RGB", **HALVES)),
    "ViT dict": (VIT | {"size": {"height": 200, "width": 180}}, Recipe(resize=(200, 180), color="RGB", **HALVES)),
    "legacy pair": (VIT | {"size": [180, 200]}, Recipe(resize=(200, 180), color="RGB", **HALVES)),
    "CLIP": (CLIP, Recipe(resize=224, crop=(224, 224), color="RGB", interpolation="bicubic", **PLAIN)),
    "CLIP bare": (
        CLIP | {"size": 256, "crop_size": 224},
        Recipe(resize=256, crop=(224, 224), color="RGB", interpolation="bicubic", **PLAIN),
    ),
    "CLIP, fast": (
        CLIP | {"image_processor_type": "CLIPImageProcessorFast", "do_center_crop": False, "device": None},
        Recipe(resize=224, color="RGB", interpolation="bicubic", **PLAIN),
    ),
    "no resize, raw values": (
        CLIP | {"do_resize": False, "do_rescale": False, "do_normalize": False},
        Recipe(crop=(224, 224), color="RGB", scale=1.0),
    ),
    "ConvNeXT": (CONVNEXT, Recipe(crop=(224, 224), crop_pct=0.875, color="RGB", interpolation="bicubic", **PLAIN)),
    "ConvNeXT warps": (
        CONVNEXT | {"size": {"shortest_edge": 384}},
        Recipe(resize=(384, 384), color="RGB", interpolation="bicubic", **PLAIN),
    ),
    "MobileViT": (MOBILEVIT, Recipe(resize=288, crop=(256, 256), color="BGR", scale=MOBILEVIT["rescale_factor"])),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", READ)
def test_values(name: str, tmp_path: Path) -> None:
    config, recipe = READ[name]
    assert read(tmp_path, config) == replace(recipe, interpolation=recipe.interpolation or "bilinear")
    recipe.resolve(spec("image", (None, 3, None, None)))


REFUSED = [
    (timm(crop_mode="border"), "'crop_mode', found 'border'"),
    (timm(input_size=[3, 224, 192]), "'crop_mode', found 'center'"),
    (timm(interpolation="random"), "'interpolation', found 'random'"),
    (timm(input_size=[4, 224, 224]), "'input_size'"),
    (timm(input_size=[3, 224.5, 224]), "positive number of pixels, .* for 'input_size'"),
    (timm(crop_pct=0), "'crop_pct', found 0"),
    (timm(mean="half"), "'mean', found 'half'"),
    (VIT | {"feature_extractor_type": "PerceiverFeatureExtractor"}, "'PerceiverFeatureExtractor' is not known"),
    (without(VIT, "feature_extractor_type"), "'None' is not known"),
    (VIT | {"do_pad": True}, "'do_pad', found True"),
    (VIT | {"size": {"longest_edge": 224}}, "'size', found {'longest_edge': 224}"),
    (without(VIT, "size"), "'size', found None"),
    (VIT | {"resample": 4}, r"0 \(nearest\), .* 'resample', found 4"),
    (VIT | {"do_normalize": "yes"}, "true or false for 'do_normalize', found 'yes'"),
    (without(VIT, "image_mean"), "'image_mean', found None"),
    (VIT | {"crop_pct": 0.9}, "expected no value, as ViT reads none, for 'crop_pct', found 0.9"),
    (CONVNEXT | {"size": {"height": 224, "width": 224}}, "'size'"),
    (without(CONVNEXT, "crop_pct"), "'crop_pct', found None"),
    (MOBILEVIT | {"do_normalize": True}, "'do_normalize', found True"),
    ({"architectures": ["ResNet"]}, "expected timm's config.json"),
]


@pytest.mark.parametrize(("config", "pattern"), REFUSED)
def test_refusals(config: object, pattern: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=pattern) as caught:
        read(tmp_path, config)
    assert str(tmp_path / "config.json") in str(caught.value)
    assert "flags" in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_recipe(tmp_path / "config.json")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(DataError, match=r"config\.json: is not JSON"):
        read_recipe(tmp_path / "config.json")


# ---- against the libraries ----

# Even differences between the resized and the cut size, so that no half pixel has to be rounded.
IMAGES = [noise(300, 400), noise(320, 256), noise(120, 90)]


def applied(recipe: Recipe, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    return recipe.resolve(spec("image", (None, 3, None, None)))(Image.fromarray(pixels))


@pytest.mark.parametrize("name", [name for name in READ if name.startswith("timm")])
@pytest.mark.parametrize("pixels", IMAGES, ids=["wide", "high", "small"])
def test_pixels_are_those_of_timm(name: str, pixels: npt.NDArray[np.uint8], tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = pytest.importorskip("timm.data")
    config: Any = READ[name][0]
    cfg = config.get("pretrained_cfg", config)
    transform = data.create_transform(**data.resolve_data_config({}, pretrained_cfg=cfg), is_training=False)
    expected = transform(Image.fromarray(pixels)).numpy()
    # The same 8-bit pixels; three float32 operations on values below 3, in another order.
    np.testing.assert_allclose(applied(read(tmp_path, config), pixels), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", [name for name in READ if not name.startswith("timm") and "legacy" not in name])
@pytest.mark.parametrize("pixels", IMAGES, ids=["wide", "high", "small"])
def test_pixels_are_those_of_transformers(name: str, pixels: npt.NDArray[np.uint8], tmp_path: Path) -> None:
    """Against its implementation on PIL images."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers = pytest.importorskip("transformers")
    config: Any = READ[name][0]
    kind = str(config.get("image_processor_type", config.get("feature_extractor_type")))
    kind = kind.removesuffix("Fast").replace("FeatureExtractor", "ImageProcessor")
    if not hasattr(transformers, f"{kind}Pil"):
        pytest.skip(f"this version of transformers has no {kind}Pil")
    recipe = read(tmp_path, config)
    if recipe.resize is None and recipe.crop_pct is None and min(pixels.shape[:2]) < 224:
        pytest.skip("that library pads before it cuts; this package refuses")
    processor = getattr(transformers, f"{kind}Pil")(**without(config, "image_processor_type", "feature_extractor_type"))
    expected = np.asarray(processor(Image.fromarray(pixels), return_tensors="np")["pixel_values"][0])
    np.testing.assert_allclose(applied(recipe, pixels), expected, rtol=0, atol=2e-6)
