"""Recipes for images that are written down with a model: in its metadata, or in its folder (Hugging Face, timm).

They are followed as the library itself does for PIL images: timm's `transforms_imagenet_eval`, and the processors in
`_PROCESSORS`. Any other value is an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from tna_onnx.data.choices import DEFAULT_LIMITS, Interpolation, Limits
from tna_onnx.data.foreign import foreign_json, parse_json, read_text
from tna_onnx.data.images.preprocess import FILTERS, MAX_SIDE, PRESETS, Recipe
from tna_onnx.data.options import Data
from tna_onnx.errors import DataError, UsageError
from tna_onnx.files import model_folders

# timm: `resolve_data_config`, for what a configuration leaves out.
_TIMM_DEFAULTS: dict[str, Any] = {
    "interpolation": "bicubic",
    "crop_pct": 0.875,
    "crop_mode": "center",
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
}

# Image processor -> what a bare number under `size` means, the shorter side or both sides; whether it cuts by default.
_PROCESSORS: dict[str, tuple[str, bool]] = {
    "ViT": ("both", False),
    "DeiT": ("both", True),
    "Beit": ("both", False),
    "Siglip": ("shorter", False),
    "CLIP": ("shorter", True),
    "ConvNext": ("shorter", False),
    "Bit": ("shorter", True),
    "MobileNetV1": ("shorter", True),
    "MobileNetV2": ("shorter", True),
    "MobileViT": ("shorter", True),
}
_ENDINGS = ("ImageProcessorFast", "ImageProcessorPil", "ImageProcessor", "FeatureExtractor")
_CONVNEXT_WARPS = 384  # from this side on, ConvNextImageProcessor resizes both sides and cuts nothing

_FOLLOWED = {
    "do_resize", "size", "resample", "do_center_crop", "crop_size", "crop_pct", "do_rescale", "rescale_factor",
    "do_normalize", "image_mean", "image_std", "do_flip_channel_order",
}  # fmt: skip
# Say nothing about pixels: images are always RGB here, and read by this package.
_IGNORED = {
    "image_processor_type", "feature_extractor_type", "processor_class", "do_convert_rgb", "data_format",
    "input_data_format", "return_tensors", "device", "disable_grouping", "default_to_square", "_processor_class",
    "_valid_processor_keys",
}  # fmt: skip


def stated_recipe(data: Data) -> Recipe | None:
    """Return the preprocessing that is stated; None if none is."""
    if isinstance(data.preprocessing, str) and data.preprocessing in PRESETS:
        return PRESETS[data.preprocessing]
    if isinstance(data.preprocessing, (str, Path)):
        return read_recipe(Path(data.preprocessing), data.limits)
    return data.preprocessing


def read_recipe(path: Path, limits: Limits = DEFAULT_LIMITS) -> Recipe:
    """Return the preprocessing in a `config.json` of timm or a `preprocessor_config.json` of Hugging Face."""
    if not path.is_file():
        raise UsageError(f"{path}: no such file; give timm's config.json or Hugging Face's preprocessor_config.json")
    config = parse_json(read_text(path, limits, "utf-8"), str(path), "download it again")
    # Older files of timm have the values at the top, newer ones under a key beside the architecture.
    if isinstance(config, dict):
        inner = config.get("pretrained_cfg", config)
        if isinstance(inner, dict) and "input_size" in inner:
            return _Reader(path, _TIMM_DEFAULTS | {k: v for k, v in inner.items() if v is not None}).timm()
        if any(key.startswith("do_") or key in ("image_mean", "image_processor_type") for key in config):
            return _Reader(path, config).hugging_face()
    raise DataError(
        f"{path}: expected timm's config.json (with 'input_size', at the top or under 'pretrained_cfg') or Hugging "
        "Face's preprocessor_config.json (with 'do_resize', 'image_mean', ...); state the preprocessing with flags "
        "instead"
    )


class _Reader:
    """Takes values out of one configuration, with errors that name file and key."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self.path = path
        self.config = config

    def timm(self) -> Recipe:
        """Follow `transforms_imagenet_eval`."""
        shape = self.config.get("input_size")
        if not isinstance(shape, (list, tuple)) or len(shape) != 3 or shape[0] not in (1, 3):
            raise self.refusal("input_size", "channels (1 or 3), height and width")
        size = (self.pixels(shape[1], "input_size"), self.pixels(shape[2], "input_size"))
        share = self.number("crop_pct")
        mode = self.config["crop_mode"]
        interpolation = self.config["interpolation"]
        if not isinstance(interpolation, str) or interpolation not in FILTERS:
            raise self.refusal("interpolation", f"one of {', '.join(FILTERS)}")
        if not 0 < share <= 1:
            raise self.refusal("crop_pct", "a number above 0 and at most 1")
        common: dict[str, Any] = {
            "crop": size,
            "mean": self.numbers("mean"),
            "std": self.numbers("std"),
            "interpolation": interpolation,
            "scale": 1 / 255,
        }
        if mode == "squash":
            if max(size) > MAX_SIDE * share:
                raise self.refusal("crop_pct", f"a share that makes images of at most {MAX_SIDE:,} pixels on each side")
            return Recipe(resize=(math.floor(size[0] / share), math.floor(size[1] / share)), **common)
        if mode != "center" or size[0] != size[1]:
            raise self.refusal("crop_mode", "squash, or center with a square input_size")
        return Recipe(crop_pct=share, **common)

    def hugging_face(self) -> Recipe:
        """Follow the processor's `preprocess`."""
        kind = self.processor()
        unknown = [k for k, v in self.config.items() if k not in _FOLLOWED | _IGNORED and v not in (None, False)]
        if unknown:
            raise self.refusal(unknown[0], "no value, as its effect is not known here,")
        resize, crop, share = self.sizes(kind)
        mean = std = None
        # MobileViTImageProcessor takes BGR and never normalises.
        if kind == "MobileViT" and self.config.get("do_normalize"):
            raise self.refusal("do_normalize", f"no normalisation, as {kind} does none,")
        if kind != "MobileViT" and self.on("do_normalize"):
            mean = self.numbers("image_mean")
            std = self.numbers("image_std")
        flip = self.config.get("do_flip_channel_order", kind == "MobileViT")
        return Recipe(
            resize=resize,
            crop=crop,
            crop_pct=share,
            scale=self.number("rescale_factor", 1 / 255) if self.on("do_rescale") else 1.0,
            mean=mean,
            std=std,
            color="BGR" if flip else "RGB",
            # Without resizing the filter is not used, and need not be known.
            interpolation=self.resample() if self.on("do_resize") else "bilinear",
        )

    def processor(self) -> str:
        """Return the name of the image processor without its ending."""
        name = str(self.config.get("image_processor_type") or self.config.get("feature_extractor_type"))
        kind = next((name.removesuffix(ending) for ending in _ENDINGS if name.endswith(ending)), name)
        if kind not in _PROCESSORS:
            raise DataError(
                f"{self.path}: image processor {name!r} is not known; expected one of {', '.join(_PROCESSORS)}. State "
                "the preprocessing with flags instead"
            )
        return kind

    def sizes(self, kind: str) -> tuple[int | tuple[int, int] | None, tuple[int, int] | None, float | None]:
        bare, cuts = _PROCESSORS[kind]
        resize: int | tuple[int, int] | None = None
        if self.on("do_resize"):
            resize = self.size("size", bare)
        if kind == "ConvNext":
            if not isinstance(resize, int):
                raise self.refusal("size", 'do_resize and {"shortest_edge": pixels}')
            if resize >= _CONVNEXT_WARPS:
                return (resize, resize), None, None
            return None, (resize, resize), self.number("crop_pct")
        if self.config.get("crop_pct") is not None:
            raise self.refusal("crop_pct", f"no value, as {kind} reads none,")
        if not self.on("do_center_crop", default=cuts):
            return resize, None, None
        crop = self.size("crop_size", "both")
        if isinstance(crop, int):  # {"shortest_edge": pixels} does not say what is cut
            raise self.refusal("crop_size", "a number, or height and width")
        return resize, crop, None

    def size(self, key: str, bare: str) -> int | tuple[int, int]:
        """Return the shorter side, or (height, width)."""
        value = self.config.get(key)
        if isinstance(value, dict) and set(value) == {"shortest_edge"}:
            return self.pixels(value["shortest_edge"], key)
        if isinstance(value, dict) and set(value) == {"height", "width"}:
            return self.pixels(value["height"], key), self.pixels(value["width"], key)
        if isinstance(value, (list, tuple)) and len(value) == 2:
            return self.pixels(value[1], key), self.pixels(value[0], key)  # legacy: (width, height)
        side = self.pixels(value, key)
        if bare == "shorter":
            return side
        return side, side

    def resample(self) -> Interpolation:
        """Return the filter, stored as Pillow's number; a missing value depends on the version of that library."""
        value = self.config.get("resample")
        for name, number in FILTERS.items():
            if value == number:
                return name
        raise self.refusal("resample", f"one of {', '.join(f'{number} ({name})' for name, number in FILTERS.items())}")

    def on(self, key: str, *, default: bool = True) -> bool:
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refusal(key, "true or false")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.config.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.refusal(key, "a number")
        return float(value)

    def numbers(self, key: str) -> tuple[float, ...]:
        value = self.config.get(key)
        if not isinstance(value, (list, tuple)) or not all(
            type(part) in (int, float) and math.isfinite(part) for part in value
        ):
            raise self.refusal(key, "a list of numbers, one per channel")
        return tuple(float(part) for part in value)

    def pixels(self, value: object, key: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SIDE:
            raise self.refusal(key, f"a positive number of pixels, at most {MAX_SIDE:,},")
        return value

    def refusal(self, key: str, expected: str) -> DataError:
        """Return the error on the value of `key`."""
        return DataError(
            f"{self.path}: expected {expected} for {key!r}, found {self.config.get(key)!r:.200}; state the "
            "preprocessing with flags instead"
        )


_METADATA = "preprocessing"  # the entry's name, behind the prefix of this package


def recipe_in(entries: Mapping[str, str], model: str) -> Recipe | None:
    """Return the recipe that this package wrote into a model's metadata; None where there is none."""
    text = entries.get(_METADATA)
    if text is None:
        return None
    try:
        values = foreign_json(text)
        names = [field.name for field in fields(Recipe)]
        if not isinstance(values, dict) or not set(values) <= {*names, "height", "width", "dtype"}:
            raise ValueError("other keys than those of a recipe")
        return Recipe(**{name: _stored(name, values[name]) for name in names if values.get(name) is not None})
    except (ValueError, OverflowError, RecursionError) as error:
        raise DataError(
            f"{model}: its metadata tna_onnx.{_METADATA} describe no preprocessing ({error}); state it with options"
        ) from error


def ultralytics_recipe(entries: Mapping[str, str]) -> Recipe | None:
    """Return the recipe of a classifier that Ultralytics exported, by its metadata; None for other models.

    Follows `classify_transforms` (ultralytics/data/augment.py): the shorter side becomes that of the crop, unless the
    crop is no square.

    >>> ultralytics_recipe({"task": "classify", "imgsz": "[224, 224]"}).resize
    224
    """
    if entries.get("task") != "classify":
        return None
    try:
        sides = foreign_json(entries.get("imgsz", ""))
    except (ValueError, RecursionError):
        return None
    if type(sides) is int:
        sides = [sides, sides]
    if not isinstance(sides, list) or len(sides) != 2 or not all(type(side) is int and side > 0 for side in sides):
        return None
    height, width = sides
    resize: int | tuple[int, int] = (height, width)
    if height == width:
        resize = height
    return Recipe(resize=resize, crop=(height, width), scale=1 / 255)


def recipe_beside(path: Path, limits: Limits) -> tuple[Path, Recipe] | None:
    """Return the recipe in a Hugging Face or timm file in a model's folder, and that file's path; None without one."""
    for place in model_folders(path):
        file = place / "preprocessor_config.json"
        if file.is_file():
            return file, read_recipe(file, limits)
        file = place / "config.json"
        # most files of this name are about other things
        try:
            if file.is_file():
                return file, read_recipe(file, limits)
        except (DataError, UsageError):
            continue
    return None


# Types of the values of a recipe in metadata; of others, numbers.
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("layout", "color", "interpolation"), (str,)),
    **dict.fromkeys(("resize", "crop"), (int,)),
    "per_image": (bool,),
}


def _stored(name: str, value: Any) -> Any:
    """Return a value of the metadata in the form of its field: lists as tuples."""
    parts = [value]
    if name in ("mean", "std") or (isinstance(value, list) and name in ("resize", "crop") and len(value) == 2):
        value = tuple(value) if isinstance(value, list) else ()
        parts = value or [None]
    if not all(type(part) in _TYPES.get(name, (int, float)) for part in parts):
        raise ValueError(f"{name}: {value!r:.80}")
    return value
